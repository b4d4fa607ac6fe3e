"""A loss in which one example could reach another's gradient is refused, whatever it does that with."""

import functools

import equinox as eqx
import equinox.internal as eqxi
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from jax.sharding import AxisType, PartitionSpec

import gdpjax
from gdpjax.training import make_plan, private_training

B, D = 20, 3
W = jnp.ones(D)
X = jnp.asarray(np.random.default_rng(0).normal(size=(B, D)), np.float32)
Y = jnp.asarray(np.arange(B) % 2, np.int32)
STRATEGIES = ("auto", "vmap", "microbatch", "ghost")


def traced(loss_fn, *args, params=W, strategy="auto", batch=X, **options):
    """All that can be refused is refused while the sum is traced; nothing is compiled."""
    grad_fn = gdpjax.clipped_grad(loss_fn, 1.0, strategy=strategy, **options)
    return jax.eval_shape(grad_fn, params, batch, *args)


def of_the_batch(values):
    """On the host: every row gets the sum over all rows."""
    axes = tuple(range(values.ndim - 1))
    total = values.sum(axis=axes, keepdims=True)
    return np.broadcast_to(total, values.shape)


def by_callback(x, method="expand_dims"):
    return jax.pure_callback(of_the_batch, jax.ShapeDtypeStruct(x.shape, x.dtype), x, vmap_method=method)


@jax.custom_batching.custom_vmap
def by_custom_vmap(x):
    return x


@by_custom_vmap.def_vmap
def _(axis_size, in_batched, x):
    return jnp.broadcast_to(x.sum(0), x.shape), True


def by_foreign_call(x, method="broadcast_all"):
    result = jax.ShapeDtypeStruct(x.shape, x.dtype)
    return jax.ffi.ffi_call("no_such_target", result, vmap_method=method)(x)


def product(w, x):
    return w @ x


def in_backward_rule(of_data, w, x):
    """Nothing shows in the loss itself, only in its gradient."""

    def forward(w, x):
        return w @ x, (w, x)

    def backward(saved, g):
        w, x = saved
        return g * of_data(x), g * w

    layer = jax.custom_vjp(product)
    layer.defvjp(forward, backward)
    return layer(w, x)


def in_forward_rule(of_data, w, x):
    """Return w @ x by a rule whose forward pass saves ``of_data(x)`` for the gradient."""

    def forward(w, x):
        return w @ x, of_data(x)

    def backward(saved, g):
        return g * saved, g * saved

    layer = jax.custom_vjp(product)
    layer.defvjp(forward, backward)
    return layer(w, x)


def in_jvp_rule(of_data, w, x):
    """Return w @ x by a rule whose derivative is multiplied by ``of_data(x)``."""

    def rule(primals, tangents):
        w, x = primals
        return w @ x, tangents[0] @ of_data(x)

    layer = jax.custom_jvp(product)
    layer.defjvp(rule)
    return layer(w, x)


def in_scan(f, w, x):
    def step(total, _):
        return total + w @ f(x), None

    total, _ = jax.lax.scan(step, 0.0, length=2)
    return total


def in_while_loop(f, w, x):
    return w @ jax.lax.while_loop(lambda x: x.sum() < 3, f, jax.lax.stop_gradient(x))


def in_augmentations(f, w, x):
    def of_copy(w, x, key):
        return w @ f(x)

    averaged = gdpjax.average_augmentations(of_copy, 2, key_argnums=2)
    return averaged(w, x, jax.random.key(0))


PLACES = {
    "loss": lambda f, w, x: w @ f(x),
    "jit": lambda f, w, x: jax.jit(lambda w, x: w @ f(x))(w, x),
    "checkpoint": lambda f, w, x: jax.checkpoint(lambda w, x: w @ f(x))(w, x),
    "scan": in_scan,
    "cond": lambda f, w, x: jax.lax.cond(x[0] > 0, lambda: w @ f(x), lambda: w @ x),
    "while": in_while_loop,
    "backward rule": in_backward_rule,
    "forward rule": in_forward_rule,
    "jvp rule": in_jvp_rule,
    "augmentations": in_augmentations,
}
REACHING = {"pure_callback": by_callback, "custom_vmap_call": by_custom_vmap, "ffi_call": by_foreign_call}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("name", REACHING)
def test_a_primitive_that_sees_all_rows_is_refused_by_name(name, place):
    """Wherever in the loss or in its derivative rules it is."""
    loss = functools.partial(PLACES[place], REACHING[name])
    with pytest.raises(ValueError, match=rf"\({name}\)"):
        traced(loss)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_strategy_and_entry_point_refuses(strategy):
    """Also where only the gradient shows it."""
    for place in ("loss", "backward rule"):
        loss = functools.partial(PLACES[place], by_custom_vmap)
        with pytest.raises(ValueError, match="custom_vmap"):
            traced(loss, strategy=strategy)
        with pytest.raises(ValueError, match="custom_vmap"):
            gdpjax.explain(loss, W, X, strategy=strategy)
        with pytest.raises(ValueError, match="custom_vmap"):
            gdpjax.per_example_grad(loss)(W, X)


def of_one_row(x):
    """On the host: refuses to be given several rows."""
    assert x.shape == (D,)
    return np.tanh(x)


def stopped_for_all_rows(x):
    """What solvers do: a loop that goes on while any of the rows is open."""
    halved = jax.lax.while_loop(lambda x: eqxi.unvmap_any(jnp.abs(x).max() > 0.1), lambda x: 0.5 * x, x)
    return jax.lax.stop_gradient(halved)


ONLY_ALONE = {
    "pure_callback": lambda x: jax.pure_callback(of_one_row, jax.ShapeDtypeStruct(x.shape, x.dtype), x),
    "custom_vmap": by_custom_vmap,
    "unvmap_any": stopped_for_all_rows,
    "an error": lambda x: eqx.error_if(x, jnp.any(jnp.isnan(x)), "a row is not a number"),
}
"""Functions of the data that are refused under vmap."""


@pytest.mark.parametrize("name", ONLY_ALONE)
def test_rows_one_at_a_time_see_no_other(name):
    """With strategy="sequential" the sum is that of a loop, and one row moves it by no more than C."""

    def loss(w, x, y):
        return (jnp.tanh(w @ ONLY_ALONE[name](x)) - y) ** 2

    with pytest.raises(ValueError, match=r'strategy="sequential"'):
        traced(loss, Y, batch_argnums=(1, 2))
    options = dict(strategy="sequential", batch_argnums=(1, 2))
    found = jax.jit(gdpjax.clipped_grad(loss, 1e6, microbatch_size=7, **options))(W, X, Y)
    one_by_one = sum(jax.grad(loss)(W, x, y) for x, y in zip(X, Y, strict=True))
    np.testing.assert_allclose(found, one_by_one, rtol=1e-5)

    bounded = jax.jit(gdpjax.clipped_grad(loss, 0.1, **options))
    moved = bounded(W, X.at[3].multiply(100.0), Y) - bounded(W, X, Y)
    assert np.linalg.norm(moved) <= 0.2


def test_rows_one_at_a_time_on_a_mesh_with_padding_and_info():
    mesh = jax.make_mesh((1,), ("data",), axis_types=(AxisType.Auto,))
    rows = jax.sharding.NamedSharding(mesh, PartitionSpec("data"))
    grad_fn = gdpjax.clipped_grad(lambda w, x: w @ by_custom_vmap(x), 0.5, strategy="sequential", return_info=True)
    is_padding = jnp.arange(B) >= B - 3
    total, info = jax.jit(grad_fn)(W, jax.device_put(X, rows), is_padding=is_padding)
    np.testing.assert_allclose(info.norms[:-3], np.linalg.norm(X[:-3], axis=1), rtol=1e-5)
    clipped = X * np.minimum(1.0, 0.5 / np.linalg.norm(X, axis=1))[:, None]
    np.testing.assert_allclose(total, clipped[:-3].sum(0), rtol=1e-3)


def test_what_one_row_at_a_time_may_not_do_either():
    def prints(w, x):
        jax.debug.print("{}", x)
        return w @ x

    with pytest.raises(ValueError, match="has side effects"):
        traced(prints, strategy="sequential")
    grad_fn = gdpjax.clipped_grad(lambda w, x: w @ jax.lax.psum(x, "d"), 1.0, strategy="sequential")
    with pytest.raises(ValueError, match="names an axis across examples"):
        jax.eval_shape(in_shard_map(grad_fn), W, X)


COLLECTIVES = {
    "ppermute": lambda x: jax.lax.ppermute(x, "d", [(0, 0)]),
    "pshuffle": lambda x: jax.lax.pshuffle(x, "d", [0]),
    "psum": lambda x: jax.lax.psum(x, "d"),
    "pmean": lambda x: jax.lax.pmean(x, "d"),
    "all_gather": lambda x: jax.lax.all_gather(x, "d")[0],
    "all_to_all": lambda x: jax.lax.all_to_all(x[None], "d", 0, 0)[0],
    "axis_index": lambda x: x * jax.lax.axis_index("d"),
}
MESH = jax.make_mesh((1,), ("d",), axis_types=(AxisType.Auto,))


def in_shard_map(function):
    specs = (PartitionSpec(), PartitionSpec("d"))
    return jax.shard_map(function, mesh=MESH, in_specs=specs, out_specs=PartitionSpec(), check_vma=False)


@pytest.mark.parametrize("name", COLLECTIVES)
@pytest.mark.parametrize("place", ["loss", "backward rule"])
def test_a_collective_over_the_users_shard_map_is_refused(name, place):
    """It would add up over the rows of all devices."""
    grad_fn = gdpjax.clipped_grad(functools.partial(PLACES[place], COLLECTIVES[name]), 1.0)
    with pytest.raises(ValueError, match="names an axis across examples"):
        jax.eval_shape(in_shard_map(grad_fn), W, X)


def test_an_unknown_primitive_is_refused_and_a_sequential_foreign_call_is_not():
    """A foreign call that JAX makes row by row sees one row."""
    unknown = jax.extend.core.Primitive("no_ones_primitive")
    unknown.def_abstract_eval(lambda x: x)
    with pytest.raises(ValueError, match="primitive no_ones_primitive, which is not known"):
        traced(lambda w, x: w @ jax.lax.stop_gradient(unknown.bind(x)))

    def fixed(x):
        return jax.lax.stop_gradient(by_foreign_call(x, "sequential"))

    assert traced(lambda w, x: w @ fixed(x)).shape == W.shape


def positive(w, x):
    return jnp.outer(w * x, w * x) + 3 * jnp.eye(D)


KEY = jax.random.key(3)
FINE = {}
"""Losses that act on one example alone: name -> loss."""


def fine(function):
    FINE[function.__name__] = function
    return function


@fine
def linear_algebra(w, x):
    total = 0
    for name in ("inv", "slogdet", "cholesky", "svd", "eigh", "qr"):
        found = getattr(jnp.linalg, name)(positive(w, x))
        total += sum(jnp.sum(leaf) for leaf in jax.tree.leaves(found))
    return total


@fine
def special_functions(w, x):
    inside = jax.nn.sigmoid(w * x)
    total = 0
    for name in ("gammaln", "digamma", "erfinv", "i0e", "expi", "ndtri", "entr"):
        total += getattr(jax.scipy.special, name)(inside).sum()
    return total


@fine
def random_numbers(w, x):
    total = jax.random.gamma(KEY, 1 + w**2).sum()
    total += jax.random.categorical(KEY, w * x)
    total += jax.random.poisson(KEY, 2.0)
    for name in ("normal", "gumbel", "exponential", "laplace", "bernoulli", "rademacher"):
        drawn = getattr(jax.random, name)(KEY, shape=(D,))
        total += (w * x * drawn).sum()
    return total


@fine
def searching(w, x):
    largest, _ = jax.lax.top_k(w * x, 2)
    interpolated = jnp.interp(x, jnp.arange(3.0), w)
    different = jnp.unique(jnp.round(x), size=3)
    return interpolated.sum() + different.sum() + jnp.median(w * x) + largest.sum()


@fine
def activations(w, x):
    total = 0
    for name in ("relu", "gelu", "silu", "softplus", "log_softmax", "relu6"):
        total += jnp.sum(getattr(jax.nn, name)(w * x))
    return total


@fine
def loops(w, x):
    def of_entry(entry):
        return jnp.sin(entry * w).sum()

    mapped = jax.lax.map(of_entry, x)
    scanned = jax.lax.associative_scan(jnp.multiply, w * x)
    return mapped.sum() + scanned.sum() + jax.vmap(of_entry)(x).sum()


@pytest.mark.parametrize("name", FINE)
def test_what_people_write_is_not_refused(name):
    """The refusal stands in no one's way."""
    assert traced(FINE[name], strategy="vmap").shape == W.shape


@pytest.mark.parametrize("impl", ["rbg", "unsafe_rbg"])
def test_a_key_made_from_an_example_whose_bits_depend_on_row_zero(impl):
    """vmap draws the bits of all rows from the key of row 0; keys of positions hold nothing of an example."""

    def from_data(w, x):
        key = jax.random.key(jax.lax.bitcast_convert_type(x[0], jnp.uint32), impl=impl)
        return w @ (x * jax.random.normal(key, (D,)))

    def dropout(w, x, key):
        layer = jax.jit(lambda x, key: x * jax.random.bernoulli(key, shape=(D,)))

        def carry(c, row):
            return ((layer(c[0], jax.random.fold_in(c[1], 1)), c[1]), None)

        (x, _), _ = jax.lax.scan(carry, (x, key), x)
        return w @ x

    with pytest.raises(ValueError, match=f"makes a {impl} key from an example"):
        traced(from_data)
    assert traced(dropout, jax.random.key(0, impl=impl), key_argnums=2).shape == W.shape


def squared(w, x, y):
    return jnp.mean(jnp.square(w @ x - y))


def test_an_argument_that_should_have_been_batched():
    """One label would move the sum by more than the sensitivity: the labels come whole and broadcast."""
    for options in [{}, {"strategy": "vmap"}, {"keep_batch_dim": True}]:
        with pytest.raises(ValueError, match=r"argument 2 is a traced array .*\[20\], as long as the batch") as caught:
            traced(squared, Y, **options)
        assert "say batch_argnums=(1, 2); if all examples share it, say shared_argnums=2" in str(caught.value)
    with pytest.raises(ValueError, match=r"argument 2\['label'\]\[0\]"):
        traced(lambda w, x, y: squared(w, x, y["label"][0]), {"label": [Y]})
    with pytest.raises(ValueError, match=r"keyword argument y is .* shared_argnames='y'"):
        gdpjax.clipped_grad(squared, 1.0)(W, X, y=Y)
    with pytest.raises(ValueError, match="argument 2 is a list of numbers, as long as the batch"):
        gdpjax.clipped_grad(squared, 1.0)(W, X, Y.tolist())
    with pytest.raises(ValueError, match=r"argument 2 is a traced array of key<fry>\[20\]"):
        traced(lambda w, x, keys: w @ x, jax.random.split(jax.random.key(0), B))
    with pytest.raises(ValueError, match="argument 2 is an array"):
        gdpjax.per_example_grad(squared)(W, X, Y)
    with pytest.raises(ValueError, match="argument 2 is an array"):
        gdpjax.explain(squared, W, X, Y)
    with pytest.raises(ValueError, match="argument 2 is an array") as caught:
        gdpjax.clipped_grad(squared, 1.0)(W, X, np.array([17.25] * B))
    assert "17" not in str(caught.value)


def test_what_is_shared_is_named():
    """An array as long as the batch passes if it is said to be shared."""
    centers = jnp.ones((B, D))

    def loss(w, x, centers):
        return jnp.sum(centers @ (w * x))

    assert traced(loss, centers, shared_argnums=2).shape == W.shape
    gdpjax.per_example_grad(loss, shared_argnums=(2,))(W, X, centers)
    assert gdpjax.explain(loss, W, X, centers, shared_argnums=2).batch_size == B
    by_name = gdpjax.clipped_grad(loss, 1.0, shared_argnames="centers")
    assert jax.eval_shape(lambda: by_name(W, X, centers=centers)).shape == W.shape
    # No row reaches another where there is one row, and no array is as long as an empty batch.
    assert traced(loss, centers[:1], batch=X[:1]).shape == W.shape
    for wrong in ({"shared_argnums": 1}, {"shared_argnums": 0}, {"shared_argnames": 3}):
        with pytest.raises((ValueError, TypeError)):
            traced(loss, centers, **wrong)


CLOSED = {
    "rows": lambda w, x: w @ x + jnp.sum(X),
    "labels": lambda w, x: jnp.mean(jnp.square(w @ x - Y)),
    "numpy": lambda w, x: jnp.mean(jnp.square(w @ x - np.asarray(Y, np.float64))),
    "one-hot": lambda w, x: jnp.sum((w @ x) * jax.nn.one_hot(Y, 2)),
    "in jit": lambda w, x: jax.jit(lambda w, x: jnp.mean(jnp.square(w @ x - Y)))(w, x),
    "in scan": lambda w, x: jax.lax.scan(lambda c, _: (c + w @ x - Y.sum(), None), 0.0, length=2)[0],
    "in a rule": functools.partial(in_backward_rule, lambda x: x + Y.sum()),
}


@pytest.mark.parametrize("name", CLOSED)
def test_a_loss_that_closes_over_the_batch(name):
    """In whatever form, and wherever in the loss."""
    with pytest.raises(ValueError, match="closes over an array") as caught:
        traced(CLOSED[name])
    assert "batch_argnums" in str(caught.value)
    with pytest.raises(ValueError, match="closes over an array"):
        gdpjax.per_example_grad(CLOSED[name])(W, X)


def test_a_closure_inside_a_compiled_step():
    """There the array is a tracer: its shape is all that is known."""

    def step(w, x, y):
        return gdpjax.clipped_grad(lambda w, x: jnp.mean(jnp.square(w @ x - y)), 1.0)(w, x)

    with pytest.raises(ValueError, match=r"int32\[20\]"):
        jax.eval_shape(step, W, X, Y)


def test_what_a_loss_may_close_over():
    """Positions, and arrays of a model that happens to be as wide as the batch."""
    positions = jnp.arange(B)
    wide = {"kernel": jnp.ones((D, B)), "bias": jnp.zeros(B)}
    assert traced(lambda w, x: w @ x * jnp.sum(positions)).shape == W.shape
    assert traced(lambda w, x: jnp.sum((w * x) @ wide["kernel"] + wide["bias"])).shape == W.shape
    frozen = {"w": W, "frozen": jnp.ones((D, B))}

    def loss(p, x):
        return jnp.sum((p["w"] * x) @ p["frozen"])

    assert traced(loss, params=frozen, trainable={"w": True, "frozen": False})["w"].shape == W.shape

    def shared(w, x, table):
        return jnp.sum(table @ (w * x))

    for table in (jnp.ones((B, D)), np.ones((B, D))):
        grad_fn = gdpjax.clipped_grad(shared, 1.0, shared_argnums=2)
        assert jax.eval_shape(lambda t=table, f=grad_fn: f(W, X, t)).shape == W.shape


def test_private_training_refuses_a_loss_that_closes_over_the_data_set():
    """The data set is known there, and its length."""
    plan = make_plan(
        clip=1.0,
        max_examples=40,
        expected_batch_size=4,
        num_steps=2,
        delta=1e-5,
        noise_multiplier=2.0,
    )
    x = np.ones((40, D), np.float32)
    y = np.zeros(40, np.float32)

    def step(loss, *arrays):
        training = private_training(plan, loss, optax.sgd(0.1), num_arrays=len(arrays))
        state = training.init(W, jax.random.key(0))
        return jax.eval_shape(training.step, state, training.place(*arrays))

    with pytest.raises(ValueError, match=r"closes over an array of float32\[40\].* \(40\)"):
        step(lambda w, x: jnp.mean(jnp.square(w @ x - y)), x)
    table = jnp.ones(plan.capacity)  # as long as a batch, which the library draws: no row of it
    step(lambda w, x, y: jnp.square(w @ x - y) * table.sum(), x, y)


def test_statistics_among_the_parameters():
    """Running averages are not trained: they are frozen, or the layer is to be another."""
    stats = {"params": {"w": W}, "batch_stats": {"mean": jnp.zeros(D)}}

    def loss(p, x):
        return p["params"]["w"] @ (x - p["batch_stats"]["mean"])

    with pytest.raises(ValueError, match=r"batch_stats.*GroupNorm"):
        traced(loss, params=stats)
    assert traced(loss, params=stats, trainable={"params": True, "batch_stats": False})
    model = nnx.BatchNorm(D, rngs=nnx.Rngs(0))
    with pytest.raises(ValueError, match=r"BatchStat.*GroupNorm"):
        traced(lambda p, x: jnp.sum(x), params=nnx.state(model))


def test_batch_norm_of_nnx_is_named():
    """The message says which layers to use in its place."""
    graph, params, rest = nnx.split(nnx.BatchNorm(D, rngs=nnx.Rngs(0)), nnx.Param, ...)
    with pytest.raises(ValueError, match=r"BatchNorm .*BatchStat.* use GroupNorm or LayerNorm"):
        traced(lambda p, x: jnp.sum(nnx.merge(graph, p, rest)(x)), params=params)


@pytest.mark.parametrize("keep_batch_dim", [False, True])
def test_batch_norm_of_linen_takes_the_mean_of_one(keep_batch_dim):
    """All gradients before it are exactly zero, which is private and useless."""
    model = nn.BatchNorm(use_running_average=False)
    variables = model.init(jax.random.key(0), X)

    def loss(params, x, model=model):
        rest = {"batch_stats": variables["batch_stats"]}
        return jnp.sum(jnp.sin(model.apply({"params": params, **rest}, x, mutable=["batch_stats"])[0]))

    with pytest.raises(ValueError, match=r"mean over the batch.*BatchNorm.*GroupNorm"):
        traced(loss, params=variables["params"], keep_batch_dim=keep_batch_dim)
    with_averages = functools.partial(loss, model=nn.BatchNorm(use_running_average=True))
    for fine in (
        with_averages,
        lambda p, x: jnp.sum(nn.LayerNorm(use_scale=False, use_bias=False).apply({}, x)),
    ):
        traced(fine, params=variables["params"], keep_batch_dim=keep_batch_dim)


@pytest.mark.parametrize("options", [{"strategy": "vmap"}, {"microbatch_size": 4}], ids=str)
def test_info_says_which_rows_are_not_finite(options):
    """But not those that are padding."""
    grad_fn = gdpjax.clipped_grad(squared, 1.0, batch_argnums=(1, 2), return_info=True, **options)
    x = np.array(X)
    x[[2, 5]] = np.nan
    x[4] = np.inf
    padding = jnp.arange(B) == 5
    _, info = jax.jit(grad_fn)(W, x, Y, is_padding=padding)
    assert np.flatnonzero(info.is_dropped).tolist() == [2, 4]
    assert int(info.num_dropped) == 2
    _, empty = grad_fn(W, X[:0], Y[:0])
    assert int(empty.num_dropped) == 0


def test_a_rule_that_closes_over_the_data_set_is_seen_after_a_call_on_one_batch():
    """A batch and the data set have other lengths, so what was checked for one is not known of the other."""
    labels = jnp.zeros(40)
    grad_fn = gdpjax.clipped_grad(functools.partial(in_backward_rule, lambda x: x + labels.sum()), 1.0)
    jax.eval_shape(grad_fn, W, X)
    with pytest.raises(ValueError, match=r"closes over an array of float32\[40\]"):
        jax.eval_shape(grad_fn.drawn_from(40), W, X)


def test_two_arrays_of_the_data_do_not_excuse_each_other():
    """The rows are numbers of examples; inputs and labels that the loss closes over are equally long."""

    def loss(w, index):
        return w @ X[index] + jnp.sum(X @ w) + jnp.sum(Y)

    with pytest.raises(ValueError, match="closes over an array"):
        gdpjax.per_example_grad(loss)(W, jnp.arange(B))


def of_own_row(function, num_arguments, own, others):
    """The value of the first of 16 rows, in one compiled program, beside others."""
    rows = [np.full(16, other, np.float32) for other in others]
    for row, value in zip(rows, own, strict=True):
        row[0] = value
    assert len(rows) == num_arguments
    return np.asarray(function(*rows))[0]


ITERATED = {
    "igamma": (jax.lax.igamma, 2),
    "igammac": (jax.lax.igammac, 2),
    "igamma_grad_a": (jax.lax.igamma_grad_a, 2),
    "random_gamma_grad": (jax.lax.random_gamma_grad, 2),
    "polygamma": (lambda x: jax.lax.polygamma(jnp.float32(2), x), 1),
    "zeta": (jax.lax.zeta, 2),
    "digamma": (jax.lax.digamma, 1),
    "lgamma": (jax.lax.lgamma, 1),
    "bessel_i0e": (jax.lax.bessel_i0e, 1),
    "bessel_i1e": (jax.lax.bessel_i1e, 1),
    "erf_inv": (jax.lax.erf_inv, 1),
}


@pytest.mark.parametrize("name", ITERATED)
def test_a_function_that_is_iterated_leaves_rows_alone_that_have_converged(name):
    """Its loop goes on until the slowest row has converged, which must not move the bits of another one."""
    function, num_arguments = ITERATED[name]
    compiled = jax.jit(jax.vmap(function))
    for own in [(2.5, 3.5), (0.3, 0.7), (31.0, 12.0)]:
        own = own[:num_arguments]
        alone = of_own_row(compiled, num_arguments, own, own)
        for others in [(3e4, 3e4), (1e-4, 5e5), (1e30, 0.5), (np.nan, np.inf), (0.999, 100.0)]:
            beside = of_own_row(compiled, num_arguments, own, others[:num_arguments])
            np.testing.assert_array_equal(beside, alone)


def test_the_incomplete_beta_function_is_refused_under_vmap():
    """Its loop moves rows that have converged by their last bits, which a loss may enlarge."""

    def loss(w, x):
        return w * jnp.sin(1e8 * jax.lax.betainc(x[0], x[1], x[2]))

    rng = np.random.default_rng(1)
    limits = [(7, 9), (9, 11), (0.55, 0.7)]
    rows = np.stack([rng.uniform(*pair, 32) for pair in limits], axis=1).astype(np.float32)
    weight = jnp.float32(1)
    for strategy in ("auto", "microbatch", "vmap"):
        with pytest.raises(ValueError, match=r"regularized_incomplete_beta.*strategy=.sequential"):
            gdpjax.clipped_grad(loss, 0.1, strategy=strategy)(weight, rows)

    clipped = jax.jit(gdpjax.clipped_grad(loss, 0.1, strategy="sequential", return_info=True).__call__)
    _, info = clipped(weight, rows)
    for row in ([3e4, 3e4, 0.5], [1.0, 1.0, 0.5]):
        rows[0] = row
        _, beside = clipped(weight, rows)
        np.testing.assert_array_equal(beside.norms[1:], info.norms[1:])
