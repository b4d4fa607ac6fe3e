"""Factored gradients keep the promise of the clip: norms are never understated, whatever cancels or overflows."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gdpjax
from tests.clipping.compiling import fast

ADD = gdpjax.NeighboringRelation.ADD_OR_REMOVE_ONE
SLOW = pytest.mark.slow


def outer_loss(w, a, s):
    """Return a loss whose gradient is sum_t a_t s_t^T, exactly those factors."""
    return jnp.sum((a @ w) * s)


@jax.custom_vjp
def ruled(w, a):
    """Return the product of a and w, with a derivative of its own."""
    return a @ w


def ruled_forward(w, a):
    return ruled(w, a), a


def ruled_backward(a, g):
    return jnp.outer(a, g), None


ruled.defvjp(ruled_forward, ruled_backward)


def ruled_loss(w, a, s):
    """Return a loss with the same gradient for a single t, by a custom derivative."""
    return jnp.sum(ruled(w, a[0]) * s[0])


@functools.cache
def compiled_clip(l2_clip_norm):
    """Return the compiled clipped gradient of outer_loss, which is compiled once for each clip norm."""
    grad_fn = gdpjax.clipped_grad(
        outer_loss,
        l2_clip_norm,
        batch_argnums=(1, 2),
        strategy="ghost",
        return_info=True,
    )
    return fast(grad_fn)


def clipped(a, s, l2_clip_norm=1.0):
    """Return the clipped sum and the info of outer_loss at zero weights, in the dtype of a."""
    weight = np.zeros((a.shape[-1], s.shape[-1]), a.dtype)
    return compiled_clip(l2_clip_norm)(weight, a, s)


@jax.jit
def gram_norms(a, s):
    """Return the square root of sum over t, t' of (a_t . a_t') (s_t . s_t'), which the library does not use here."""
    squared_norms = jnp.einsum("ntd,nud,ntp,nup->n", a, a, s, s)
    return jnp.sqrt(jnp.maximum(squared_norms, 0))


def cancelling_factors(seed, scale):
    """Return factors at three positions, of which two cancel: the gradient is that of the third."""
    rng = np.random.default_rng(seed)
    a = rng.normal(size=(1, 1, 8)) * scale
    s = rng.normal(size=(1, 1, 8)) * scale
    small = rng.normal(size=(1, 1, 8))
    first_factor = np.concatenate([a, a, small], axis=1)
    second_factor = np.concatenate([s, -s, small], axis=1)
    return np.float32(first_factor), np.float32(second_factor)


@pytest.mark.parametrize("large", [1e2, pytest.param(1e3, marks=SLOW), pytest.param(1e4, marks=SLOW)])
def test_positions_that_cancel_do_not_hide_a_gradient(large):
    """The norm is that of the sum over positions, not of the numbers that its square is a sum of."""
    num_understated = 0
    for seed in range(20):
        a, s = cancelling_factors(seed, large)
        gradient = np.einsum("td,tp->dp", np.float64(a[0]), np.float64(s[0]))
        exact_norm = np.linalg.norm(gradient)
        clipped_sum, info = clipped(a, s)
        assert np.linalg.norm(np.float64(clipped_sum)) <= 1.0

        # The formed gradient is rounded; its norm is right to the slack, and what is contributed is what was measured.
        size = np.linalg.norm(a[0]) * np.linalg.norm(s[0])
        assert abs(info.norms.item() - exact_norm) <= 8 * 2.0**-24 * size

        # The norm by Gram matrices, the broken version, is sometimes less than half of it.
        gram_norm = gram_norms(a, s).item()
        if gram_norm < 0.5 * exact_norm:
            num_understated += 1
    assert num_understated > 0 or large < 1e3


TIMES_LOSSES_DTYPES = [
    (1, outer_loss, jnp.float32),
    (3, outer_loss, jnp.float32),
    (1, ruled_loss, jnp.float32),
    (3, outer_loss, jnp.bfloat16),
    pytest.param(1, outer_loss, jnp.bfloat16, marks=SLOW),
    pytest.param(1, ruled_loss, jnp.bfloat16, marks=SLOW),
    pytest.param(1, outer_loss, jnp.float16, marks=SLOW),
    pytest.param(3, outer_loss, jnp.float16, marks=SLOW),
    pytest.param(1, ruled_loss, jnp.float16, marks=SLOW),
]


@pytest.mark.parametrize(("times", "loss", "dtype"), TIMES_LOSSES_DTYPES)
def test_no_pair_of_factors_beats_the_bound(times, loss, dtype):
    """Each row adds at most 1, with factors over the whole range of the dtype, whose product and squares overflow."""
    largest = float(jnp.finfo(dtype).max)
    smallest = float(jnp.finfo(dtype).tiny)
    sizes = [0.0, smallest, 1e-4, 1.0, 1e4, largest / 4, largest, np.inf, np.nan]
    pairs = np.array(list(itertools.product(sizes, sizes)))
    num_pairs = len(pairs)
    a_size = pairs[:, 0, None, None]
    s_size = pairs[:, 1, None, None]
    signs = np.random.default_rng(0).choice([-1.0, 1.0], size=(num_pairs, times, 3))
    with np.errstate(invalid="ignore", over="ignore"):
        a = (signs * a_size).astype(dtype)
        s = (np.abs(signs[..., :2]) * s_size).astype(dtype)
        products = pairs[:, 0] * pairs[:, 1]
    grad_fn = gdpjax.clipped_grad(loss, 1.0, batch_argnums=(1, 2), strategy="ghost")
    weight = np.zeros((3, 2), dtype)

    @fast
    def sums_with_paddings(a, s, paddings):
        return jax.lax.map(lambda is_padding: grad_fn(weight, a, s, is_padding=is_padding), paddings)

    # One row at a time: all others are padding.
    all_but_one = ~np.eye(num_pairs, dtype=bool)
    contributions = sums_with_paddings(a, s, all_but_one)
    norms = np.linalg.norm(np.float64(contributions).reshape(num_pairs, -1), axis=1)
    assert (norms <= 1.0).all()

    # Finite gradients of more than 1 contribute all of it.
    if times == 1:
        is_finite = np.isfinite(products) & (products > 1.0) & (products < largest)
        assert is_finite.any()
        np.testing.assert_allclose(norms[is_finite], 1.0, rtol=1e-4)


@pytest.mark.parametrize("num_rows", [pytest.param(1, marks=SLOW), pytest.param(129, marks=SLOW), 300])
def test_aligned_rows_move_the_sum_by_at_most_the_bound(num_rows):
    """One of many rows that point the same way, the worst rounding, moves the sum by at most the sensitivity.

    The model is large enough for plain sums of 128 rows.
    """
    rng = np.random.default_rng(0)
    a = 1 + np.abs(rng.normal(size=(num_rows, 1, 200))).astype(np.float32)
    s = 1 + np.abs(rng.normal(size=(num_rows, 1, 150))).astype(np.float32)
    weight = np.zeros((200, 150), np.float32)
    grad_fn = gdpjax.clipped_grad(outer_loss, 1.0, batch_argnums=(1, 2), strategy="ghost")
    run = jax.jit(lambda a, s, is_padding: grad_fn(weight, a, s, is_padding=is_padding))
    whole_sum = np.float64(run(a, s, np.zeros(num_rows, bool)))
    for removed in {0, num_rows // 2, num_rows - 1}:
        is_padding = np.arange(num_rows) == removed
        sum_without = np.float64(run(a, s, is_padding))
        change = np.linalg.norm(whole_sum - sum_without)
        assert 0.98 <= change <= grad_fn.sensitivity(ADD)


def test_blocks_of_very_different_size_are_all_seen():
    """The gradient of one block is seen beside another whose left factor is huge and whose right one is zero."""

    def loss(w, a, s):
        return jnp.sum(jnp.einsum("kd,kdp->kp", a, w) * s)

    a = jnp.array([[[1e30, 1e30], [1e-8, 1e-8]]], jnp.float32)
    s = jnp.array([[[0.0, 0.0], [1e18, 1e18]]], jnp.float32)
    grad_fn = gdpjax.clipped_grad(loss, 1.0, batch_argnums=(1, 2), strategy="ghost", return_info=True)
    clipped_sum, info = fast(grad_fn)(jnp.zeros((2, 2, 2)), a, s)
    np.testing.assert_allclose(info.norms, [2e10], rtol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(clipped_sum), 1.0, rtol=1e-5)


def loss_of_every_kind(params, x, tokens):
    """Return a loss whose gradients are outer products, one of a custom derivative too, table rows, and formed."""
    hidden = jnp.tanh(x @ params["w"])
    looked_up = params["e"][tokens].mean(0)
    scaled = params["b"] * x[0]
    return jnp.sum(hidden + looked_up + scaled + ruled(params["r"], x))


def test_a_bad_row_is_that_row_removed_in_every_kind():
    """A row that is not finite changes no bit of what the others add, in whatever form gradients are held."""
    shapes = {"w": (3, 2), "r": (3, 2), "e": (4, 2), "b": (2,)}
    params = {name: np.ones(shape, np.float32) for name, shape in shapes.items()}
    x = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
    tokens = np.arange(8).reshape(4, 2) % 4
    grad_fn = gdpjax.clipped_grad(loss_of_every_kind, 1.0, batch_argnums=(1, 2), strategy="ghost")
    run = fast(lambda x, is_padding: grad_fn(params, x, tokens, is_padding=is_padding))
    sums_without_row = run(x, np.arange(4) == 1)
    for bad in [np.nan, np.inf]:
        spoiled = x.copy()
        spoiled[1, 0] = bad
        sums_with_bad_row = run(spoiled, np.zeros(4, bool))
        for name in shapes:
            np.testing.assert_array_equal(sums_with_bad_row[name], sums_without_row[name])


NUM_ROWS = 140
SIZE = 20_000
FIRST_FACTOR = np.full((NUM_ROWS, SIZE), 1 + 2**-7, jnp.bfloat16)
SECOND_FACTOR = np.full((NUM_ROWS, SIZE), 1 + 130 / 256, jnp.bfloat16)
"""The product of the two rounds up."""


@pytest.mark.parametrize("strategy", ["vmap", "ghost"])
def test_norm_and_sum_are_of_one_bfloat16_gradient(strategy):
    """A row moves the sum by at most 1, although a compiler leaves out a rounding to bfloat16 for the norm only."""

    def loss(w, a, b):
        return jnp.sum(w * a * b).astype(jnp.float32)

    grad_fn = gdpjax.clipped_grad(loss, 1.0, batch_argnums=(1, 2), strategy=strategy)
    weight = np.zeros(SIZE, jnp.bfloat16)
    run = jax.jit(lambda a, b, is_padding: grad_fn(weight, a, b, is_padding=is_padding))
    no_padding = np.zeros(NUM_ROWS, bool)
    first_is_padding = np.arange(NUM_ROWS) == 0
    whole_sum = np.float64(run(FIRST_FACTOR, SECOND_FACTOR, no_padding))
    sum_without_first = np.float64(run(FIRST_FACTOR, SECOND_FACTOR, first_is_padding))
    assert 0.99 <= np.linalg.norm(whole_sum - sum_without_first) <= 1.0


def test_the_same_for_explicit_gradients():
    """The product that is clipped is rounded once, by `clip_and_sum` too."""
    clip = gdpjax.clip_and_sum(1.0)

    @jax.jit
    def run(a, b, mask):
        gradients = a * b * mask[:, None]
        clipped_sum, _ = clip.update(gradients, clip.init(0), a[0])
        return clipped_sum

    all_rows = np.ones(NUM_ROWS, jnp.bfloat16)
    all_but_first = (np.arange(NUM_ROWS) > 0).astype(jnp.bfloat16)
    whole_sum = np.float64(run(FIRST_FACTOR, SECOND_FACTOR, all_rows))
    sum_without_first = np.float64(run(FIRST_FACTOR, SECOND_FACTOR, all_but_first))
    assert 0.99 <= np.linalg.norm(whole_sum - sum_without_first) <= 1.0


def test_a_zero_activation_next_to_a_huge_cotangent_is_nothing():
    """The gradient of zero times 3e38 is zero in the norm too."""

    def loss(weight, x, y):
        return jnp.sum((x @ weight) * y)

    grad_fn = gdpjax.clipped_grad(loss, 1.0, batch_argnums=(1, 2))
    x = np.array([[0.0] * 4, [1.0] * 4], np.float32)
    y = np.array([[3e38] * 4, [1.0] * 4], np.float32)
    weight = np.zeros((4, 4), np.float32)
    clipped_sum = fast(grad_fn)(weight, x, y)
    np.testing.assert_allclose(clipped_sum, 0.25, rtol=1e-5)


@pytest.mark.parametrize(("mode", "expected"), [("clip", [0, 1, 0, 0, 1]), ("fill", [0, 1, 0, 0, 0])])
def test_indices_beyond_int32_do_not_wrap(mode, expected):
    """The index 2^32, which is 0 in 32 bits, is the last row of the table, or none."""

    def loss(table, index):
        looked_up = jnp.take(table, index, axis=0, mode=mode)
        return jnp.sum(jnp.nan_to_num(looked_up))

    with jax.enable_x64(True):
        grad_fn = gdpjax.clipped_grad(loss, 10.0, strategy="ghost")
        indices = np.array([2**32, 1])
        clipped_sum = fast(grad_fn)(np.ones((5, 1)), indices)
        np.testing.assert_allclose(np.ravel(clipped_sum), expected)
