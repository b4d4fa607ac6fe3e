"""`clipped_grad` and `per_example_grad`: agreement of strategies, argument roles, and refusals."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gdpjax
from tests.clipping.compiling import fast
from tests.clipping.definition import norms_of, sum_of_clipped


def normal(seed, *shape, dtype=np.float32):
    """Normal numbers, drawn on the host, where no program is compiled for them."""
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)


def make_problem(dtype=np.float32, batch_size=13):
    params = {
        "dense": {"kernel": normal(0, 4, 6, dtype=dtype), "bias": np.zeros(6, dtype)},
        "out": normal(1, 6, dtype=dtype),
    }
    x = normal(2, batch_size, 4) * np.exp(normal(3, batch_size, 1))
    return params, x.astype(dtype), normal(4, batch_size, dtype=dtype)


def loss(params, x, y):
    hidden = jnp.tanh(x @ params["dense"]["kernel"] + params["dense"]["bias"])
    return (hidden @ params["out"] - y) ** 2


def loss_and_aux(params, x, y):
    return loss(params, x, y), {"x": x, "n": jnp.int32(1)}


losses_of = fast(jax.vmap(loss, (None, 0, 0)))
gradients_of = fast(jax.vmap(jax.grad(loss), (None, 0, 0)))


def assert_trees_close(a, b, **tolerance):
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for left, right in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_allclose(left, right, **tolerance)


SATURATED = 5e-6
"""The absolute error of a clipped sum in float32: programs of one row and of many round tanh differently, and where it
is close to 1 the derivative 1 - tanh^2 has few digits."""
STRATEGIES = [
    {"strategy": "vmap"},
    {"strategy": "auto", "microbatch_size": 5},
    {"strategy": "microbatch", "microbatch_size": 1},
    {"strategy": "ghost", "microbatch_size": 4},
]
"""One of each kind: the whole batch, chunks of both kinds of gradients, and single rows."""
each_strategy = pytest.mark.parametrize("options", STRATEGIES, ids=str)


def by_strategy(loss_fn, clip, **options):
    """A compiled `clipped_grad` function; its padding is an argument."""
    grad_fn = gdpjax.clipped_grad(loss_fn, clip, **options)

    @fast
    def compiled(args, is_padding, kwargs):
        return grad_fn(*args, is_padding=is_padding, **kwargs)

    def call(*args, is_padding=None, **kwargs):
        return compiled(args, is_padding, kwargs)

    return call


@functools.cache
def _shared(options):
    return by_strategy(loss_and_aux, 0.5, batch_argnums=(1, 2), has_aux=True, return_info=True, **dict(options))


def with_info(options):
    """(clipped sum, info) of `loss`, compiled once for each strategy and shared by the tests."""
    return _shared(tuple(options.items()))


@each_strategy
def test_every_strategy_is_the_definition(options):
    """The sum is that of the clipped gradients, in NumPy."""
    params, x, y = make_problem()
    clipped, _ = with_info(options)(params, x, y)
    assert_trees_close(clipped, sum_of_clipped(gradients_of(params, x, y), 0.5), rtol=2e-5, atol=SATURATED)


@each_strategy
def test_info_reports_losses_norms_and_aux_with_padding_zero(options):
    """For each row what its loss says, and nothing for padding."""
    params, x, y = make_problem()
    padding = np.arange(13) >= 10
    _, info = with_info(options)(params, x, y, is_padding=padding)
    info = jax.tree.map(np.asarray, info)
    # A loss near zero is the square of a difference that cancels: absolute, not relative, accuracy.
    values = np.asarray(losses_of(params, x, y))
    np.testing.assert_allclose(info.values[:10], values[:10], rtol=1e-5, atol=1e-6)
    assert not info.values[10:].any()
    assert not info.norms[10:].any()
    assert not info.aux["x"][10:].any()
    assert info.aux["n"].sum() == 10
    norms = norms_of(gradients_of(params, x, y))
    np.testing.assert_allclose(info.norms[:10], norms[:10], rtol=1e-5)


def test_padding_content_never_matters():
    """Not a bit of the sum changes with what is in the rows of padding."""
    params, x, y = make_problem()
    padding = np.arange(13) >= 10
    for options in STRATEGIES:
        grad_fn = with_info(options)
        clean, _ = grad_fn(params, x, y, is_padding=padding)
        for garbage in [np.nan, np.inf, 1e30]:
            spoilt = np.where(padding[:, None], np.float32(garbage), x)
            assert_trees_close(grad_fn(params, spoilt, y, is_padding=padding)[0], clean, rtol=0)


def test_chunks_of_padding_are_skipped_unless_the_work_is_constant():
    """The time of a step then does not tell how many rows there are; the sum is the same."""
    params, x, y = make_problem()
    padding = np.arange(13) >= 5  # the second and third chunk of five hold no example
    options = {"microbatch_size": 5}
    for constant_work in (False, True):
        grad_fn = gdpjax.clipped_grad(loss, 0.5, batch_argnums=(1, 2), constant_work=constant_work, **options)
        program = jax.make_jaxpr(grad_fn)(params, x, y, is_padding=padding)
        assert ("cond[" in str(program)) is not constant_work

    @fast
    def both(params, x, y):
        constant = gdpjax.clipped_grad(loss, 0.5, batch_argnums=(1, 2), constant_work=True, **options)
        skipping = gdpjax.clipped_grad(loss, 0.5, batch_argnums=(1, 2), return_info=True, **options)
        return constant(params, x, y, is_padding=padding), skipping(params, x, y, is_padding=padding)

    constant, (skipping, info) = both(params, x, y)
    assert_trees_close(skipping, constant, rtol=1e-6)
    norms = np.asarray(info.norms)
    assert norms[:5].all()
    assert not norms[5:].any()


@each_strategy
def test_all_padding_and_empty_batches_give_zeros(options):
    """A Poisson batch may be empty."""
    params, x, y = make_problem()
    grad_fn = with_info(options)
    for batch in [(x, y, np.ones(13, bool)), (x[:0], y[:0], None), (x[:0], y[:0], np.ones(0, bool))]:
        clipped, info = grad_fn(params, batch[0], batch[1], is_padding=batch[2])
        assert not any(np.any(leaf) for leaf in jax.tree.leaves(clipped))
        assert info.norms.shape == batch[1].shape


@each_strategy
def test_keys_are_folded_by_position_whatever_the_strategy(options):
    """The key of a row does not depend on how the batch is cut."""

    def noisy_loss(w, x, key):
        return jnp.vdot(w, x) * jax.random.uniform(key)

    @fast
    def factors(key):
        return jax.vmap(lambda position: jax.random.uniform(jax.random.fold_in(key, position)))(np.arange(7))

    w = np.ones(3, np.float32)
    x = np.abs(normal(0, 7, 3))
    key = jax.random.key(5)
    grad_fn = by_strategy(noisy_loss, 100.0, key_argnums=2, **options)
    np.testing.assert_allclose(grad_fn(w, x, key), np.asarray(factors(key)) @ x, rtol=1e-5)


def test_keep_batch_dim():
    """A loss of batches sees a batch of one."""
    w = np.ones(3, np.float32)
    x = normal(0, 7, 3)
    batched = gdpjax.clipped_grad(lambda w, x: jnp.mean(x @ w), 1.0, keep_batch_dim=True)
    single = gdpjax.clipped_grad(lambda w, x: x @ w, 1.0)
    np.testing.assert_allclose(fast(batched)(w, x), fast(single)(w, x), rtol=1e-6)


def test_frozen_and_integer_leaves_are_zeros_outside_the_norm():
    """The rest is clipped as if they were no parameters."""
    params, x, y = make_problem()
    params["steps"] = np.arange(3, dtype=np.int32)
    trainable = {"dense": False, "out": True, "steps": True}
    grad_fn = gdpjax.clipped_grad(loss, 0.5, batch_argnums=(1, 2), trainable=trainable)
    clipped = fast(grad_fn)(params, x, y)
    assert not np.any(clipped["dense"]["kernel"])
    assert clipped["steps"].dtype == params["steps"].dtype
    assert not np.any(clipped["steps"])

    def loss_of_head(out, x, y):
        return loss({**params, "out": out}, x, y)

    head = gdpjax.clipped_grad(loss_of_head, 0.5, batch_argnums=(1, 2))
    np.testing.assert_allclose(clipped["out"], fast(head)(params["out"], x, y), rtol=3e-6)


def test_tied_parameters_are_clipped_once_with_their_true_norm():
    """The norm is that of both uses together."""
    w = np.ones(3, np.float32)
    tied = gdpjax.clipped_grad(lambda w, x: jnp.vdot(w, x) + jnp.vdot(w, x), 1.0)
    row = np.array([[3.0, 0.0, 0.0]], np.float32)
    np.testing.assert_allclose(fast(tied)(w, row), [1.0, 0, 0], rtol=1e-5)


def test_half_precision_parameters_give_float32_sums():
    """A sum in half precision would lose what the slack is for."""
    params, x, y = make_problem(jnp.bfloat16)
    clipped = jax.eval_shape(gdpjax.clipped_grad(loss, 0.5, batch_argnums=(1, 2)), params, x, y)
    assert {leaf.dtype for leaf in jax.tree.leaves(clipped)} == {jnp.dtype(jnp.float32)}


def test_small_gradients_in_float16_are_kept():
    """Below 6e-5 they are subnormal, which some operations make zero."""

    def tiny(w, x):
        hidden = jnp.sin(x.astype(jnp.float16) @ w.astype(jnp.float16))
        return 1e-5 * jnp.mean(hidden.astype(jnp.float32))

    w = np.ones((8, 4), np.float32)
    rows = np.random.default_rng(0).normal(size=(4, 8)).astype(np.float32)
    by_vmap, by_factors = (fast(gdpjax.clipped_grad(tiny, 1.0, strategy=name))(w, rows) for name in ("vmap", "auto"))
    assert np.abs(by_vmap).max() > 1e-6
    np.testing.assert_allclose(by_factors, by_vmap, atol=4 * 2.0**-24)


def test_per_example_grad_then_clip_and_sum_is_clipped_grad():
    """The two steps are the one, with padding."""
    params, x, y = make_problem()
    padding = np.arange(13) == 5
    per_example = gdpjax.per_example_grad(loss, batch_argnums=(1, 2))
    clip = gdpjax.clip_and_sum(0.5)

    def in_two_steps(params, x, y):
        each = per_example(params, x, y, is_padding=padding)
        summed, _ = clip.update(each, clip.init(params), params)
        return each, summed

    each, summed = fast(in_two_steps)(params, x, y)
    assert each["out"].shape == (13, 6)
    assert not np.asarray(each["out"])[5].any()
    together, _ = with_info({"strategy": "auto"})(params, x, y, is_padding=padding)
    assert_trees_close(summed, together, rtol=1e-6)


def call(loss_fn=loss, clip=1.0, params=None, x=None, y=None, is_padding=None, **options):
    default_params, default_x, default_y = make_problem(batch_size=4)
    options.setdefault("batch_argnums", (1, 2))
    grad_fn = gdpjax.clipped_grad(loss_fn, clip, **options)
    return grad_fn(
        default_params if params is None else params,
        default_x if x is None else x,
        default_y if y is None else y,
        is_padding=is_padding,
    )


def printing_loss(params, x, y):
    jax.debug.print("{}", y)
    return loss(params, x, y)


def calling_loss(params, x, y):
    return loss(params, x, y) + jax.experimental.io_callback(np.float32, y, y)


REFUSALS = {
    "print": (dict(loss_fn=printing_loss), "side effects"),
    "callback": (dict(loss_fn=calling_loss), "side eff"),
    "batch axis": (dict(loss_fn=lambda p, x, y: loss(p, x - jax.lax.pmean(x, "batch"), y)), "names an axis across"),
    "vector loss": (dict(loss_fn=lambda p, x, y: x), "must return a scalar for ONE example"),
    "hidden aux": (dict(loss_fn=lambda p, x, y: (loss(p, x, y), x)), "has_aux=True"),
    "aux without info": (dict(has_aux=True), "return_info=True"),
    "zero clip": (dict(clip=0.0), "l2_clip_norm must be a number > 0, from 1e-30 to 1e30, got 0"),
    "NaN clip": (dict(clip=float("nan")), "got nan"),
    "vector clip": (dict(clip=np.ones(2)), "must be one number"),
    "half precision clip": (dict(clip=jnp.bfloat16(1.0)), "float32 or wider"),
    "key parameter": (dict(params={"w": jnp.ones(2), "k": jax.random.key(0)}), r"\['k'\] is key<fry>"),
    "dict of clips": (dict(clip={"w": 1.0}), "l2_clip_norm must be a number > 0"),
    "float8 parameters": (dict(params={"w": jnp.ones(2, jnp.float8_e4m3fn)}), "16 bits or more"),
    "integer parameters": (dict(params={"w": jnp.arange(3)}), "no trainable floating-point leaf"),
    "complex parameter": (dict(params={"w": jnp.ones(2, complex)}), "complex"),
    "unequal batches": (dict(x=jnp.ones((3, 4))), "leading axes of equal length"),
    "padding shape": (dict(is_padding=jnp.zeros(3, bool)), r"is_padding must be bool\[4\]"),
    "padding dtype": (dict(is_padding=jnp.zeros(4)), r"is_padding must be bool\[4\]"),
    "trainable structure": (dict(trainable={"no": True}), "pytree structure error"),
    "unknown strategy": (dict(strategy="fast"), "strategy must be one of"),
    "chunk zero": (dict(microbatch_size=0), "microbatch_size"),
    "overlapping roles": (dict(batch_argnums=(0, 1)), "each have one role"),
    "legacy key": (dict(key_argnums=2, batch_argnums=1, y=np.zeros(2, np.uint32)), "typed PRNG key"),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_bad_input_is_refused_with_advice(case):
    """The message says what was expected."""
    options, message = REFUSALS[case]
    with pytest.raises(ValueError, match=message):
        call(**options)


@each_strategy
def test_no_row_moves_the_gradient_of_another(options):
    """Trap 22, in the sum itself: the norms of all others stay the same to the bit, and so does what they add."""
    params, x, y = make_problem()
    grad_fn = with_info(options)
    others = np.arange(13) != 3
    padding = np.arange(13) == 3
    x_moved = np.where(padding[:, None], x + 1, x)
    norms, moved = (np.asarray(grad_fn(params, rows, y)[1].norms) for rows in (x, x_moved))
    assert moved[3] != norms[3]
    np.testing.assert_array_equal(moved[others], norms[others])
    removed, _ = grad_fn(params, x, y, is_padding=padding)
    same, _ = grad_fn(params, x_moved, y, is_padding=padding)
    assert_trees_close(same, removed, rtol=0)


@pytest.mark.parametrize("batch_size", [1, 3])
def test_few_rows_with_padding(batch_size):
    """An example that takes more memory than the sums, in a batch that has fewer rows than chunks are wished for."""

    def loss(w, x, key):
        masks = [jax.random.bernoulli(draw, shape=w.shape) for draw in jax.random.split(key, 3)]
        return x[0] * sum((w * mask).sum() for mask in masks)

    grad_fn = gdpjax.clipped_grad(loss, 1e6, key_argnums=2)
    is_padding = np.arange(batch_size) > 0
    rows = np.ones((batch_size, 3), np.float32)
    total = fast(grad_fn)(np.ones(64, np.float32), rows, jax.random.key(0), is_padding=is_padding)
    assert 64 < np.sum(total) < 128
