"""The promise of a clipped sum: what the machine returns never moves by more than the stated sensitivity."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gdpjax
from gdpjax._core import trees
from gdpjax.clipping import accumulation_charge
from gdpjax.clipping._rounding_budget import rounding_budget
from tests.clipping.compiling import fast
from tests.clipping.definition import sum_of_clipped


def dot_loss(w, x):
    """Return a loss whose gradient at example x is x itself."""
    return jnp.vdot(w, x)


@functools.cache
def compiled_sum(l2_clip_norm, microbatch_size):
    """Return the clipped sum as a compiled function, which is compiled anew only for rows of another shape."""
    return fast(gdpjax.clipped_grad(dot_loss, l2_clip_norm, microbatch_size=microbatch_size))


def clipped_sum(rows, l2_clip_norm=1.0, microbatch_size=None):
    """Return the clipped sum of rows, as float64."""
    rows = np.asarray(rows)
    weight = np.zeros(rows.shape[1], rows.dtype)
    total = compiled_sum(l2_clip_norm, microbatch_size)(weight, rows)
    return np.asarray(total, np.float64)


@pytest.mark.parametrize(
    ("dtype", "size", "chunk"),
    [(jnp.float32, 200, None), (jnp.float32, 31, 7), (jnp.bfloat16, 31, None), (jnp.float16, 31, 7)],
)
def test_adding_a_row_moves_the_sum_by_at_most_the_sensitivity(dtype, size, chunk):
    """One row more, among others in any order, moves the sum by at most 1."""
    rng = np.random.default_rng(size)
    # Rows of very different sizes that agree, so that the sum is as large as it gets.
    directions = rng.normal(size=(size, 5))
    scales = 10.0 ** rng.uniform(-3, 3, size=(size, 1))
    base = directions * scales
    base[:, 0] += np.abs(base).sum(axis=1)
    rows = base.astype(dtype)
    one_more = (rng.normal(size=(1, 5)) * 50).astype(dtype)
    with_one_more = np.concatenate([rows, one_more])
    shuffled = with_one_more[rng.permutation(size + 1)]
    change = clipped_sum(shuffled, 1.0, chunk) - clipped_sum(rows, 1.0, chunk)
    assert np.linalg.norm(change) <= 1.0


def nearly_parallel_rows():
    """Return 16,384 rows that agree, so that each moves the sum by nearly the clip norm."""
    rows = np.abs(np.random.default_rng(1).normal(size=(16_384, 3)))
    rows[:, 0] += 8.0
    return rows.astype(np.float32)


@pytest.mark.parametrize("chunk", [1, 64])
def test_large_batch_in_float32_keeps_the_bound(chunk):
    """Trap 41: a plain float32 running sum over 16,384 rows moves by several clip norms for one added row."""
    rows = nearly_parallel_rows()
    without_last = clipped_sum(rows[:-1], microbatch_size=chunk)
    without_first = clipped_sum(rows[1:], microbatch_size=chunk)
    whole = clipped_sum(rows, microbatch_size=chunk)
    assert np.linalg.norm(whole - without_last) <= 1.0
    assert np.linalg.norm(whole - without_first) <= 1.0

    # Rows are clipped to C / (1 + slack), and the sum is off by less than its half of the slack.
    slack = rounding_budget([np.zeros(3, np.float32)], len(rows)).slack
    exact = sum_of_clipped(rows, 1 / (1 + slack))
    assert np.linalg.norm(whole - exact) <= slack / 2


@pytest.mark.parametrize("size", [1, 2, 5, 64, 1023])
def test_the_compensated_tree_is_exact_to_one_rounding(size):
    """The sum and its error together are that of float64."""
    rng = np.random.default_rng(size)
    values = rng.normal(size=(size, 8))
    scales = 10.0 ** rng.uniform(-4, 4, size=(size, 8))
    rows = (values * scales).astype(np.float32)
    high, low = jax.jit(trees.compensated_row_sum)(rows)
    exact = np.float64(rows).sum(axis=0)
    error = np.abs(np.float64(high) + np.float64(low) - exact)
    assert (error <= 1e-10 * np.abs(rows).sum(axis=0)).all()


@pytest.mark.parametrize("devices", [1, 2, 8])
@pytest.mark.parametrize("size", [3, 100_000])
def test_the_slack_covers_what_is_added_plainly(devices, size):
    """The slack is at least the roundings of the derivation, part by part, and slack / B does not grow."""

    def roundings(num_parts):
        """Return the cost of a running sum of so many parts for each row, in units of rounding."""
        return (num_parts + 1) / 2 - 1 / num_parts

    leaf = jax.ShapeDtypeStruct((size,), jnp.float32)
    steepest = np.inf
    for num_rows in [*range(1, 70), 255, 256, 1000, 2048, 2300, 2400, 4096, 8192]:
        budget = rounding_budget([leaf], num_rows, devices)
        within_chunks = num_rows * roundings(budget.plain_rows)
        across_devices = num_rows * roundings(devices) if devices > 1 else 0
        all_roundings = within_chunks + across_devices + 3 * num_rows
        least = 2 * all_roundings * 2.0**-24
        assert least <= budget.slack <= 0.01, (num_rows, budget)
        assert budget.slack / num_rows <= steepest
        steepest = budget.slack / num_rows


@pytest.mark.parametrize(("rows", "parts", "size"), [(8, 4, 3), (256, 16, 3), (64, 8, 20_000)])
def test_the_charge_of_several_sums_covers_the_rounding_of_all(rows, parts, size):
    """The derivation, part by part, from the roundings of one call and of the total."""
    leaf = jax.ShapeDtypeStruct((size,), jnp.float32)
    unit, total = 2.0**-24, rows * parts

    def factor_of(budget):
        charge = accumulation_charge(budget, microbatch_rows=rows, num_microbatches=parts)
        return charge.row + parts * charge.rounding

    how = rounding_budget([leaf], rows)
    b = how.plain_rows
    needed = how.norm + 2 * unit * (total * ((b + 1) / 2 - 1 / b) + 3 * total) + 2 * unit * total
    assert (1 + needed) / (1 + how.slack) <= factor_of(how) <= 1 + 1.5 * needed
    # The slack of the logical batch leaves the rounding of the total alone.
    assert 1 + 2 * unit * total <= factor_of(rounding_budget([leaf], total)) <= 1 + 3 * unit * total
    assert accumulation_charge(how, microbatch_rows=rows, num_microbatches=1) == (1.0, 0.0)
    assert accumulation_charge(how, microbatch_rows=0, num_microbatches=parts) == (0.0, 0.0)


def test_clip_norm_holds_for_constant_gradients_under_jit():
    """The clip norm holds for equal entries, whose squares all round the same way."""
    rows = np.zeros((2, 1000), np.float32)
    rows[0] = 0.003162285080179572
    weight = np.zeros(1000, np.float32)
    run = jax.jit(lambda l2_clip_norm: gdpjax.clipped_grad(dot_loss, l2_clip_norm)(weight, rows))
    for l2_clip_norm in np.geomspace(0.09, 0.1, 40, dtype=np.float32):
        total = np.float64(run(l2_clip_norm))
        assert np.linalg.norm(total) <= l2_clip_norm


bounded_sum = jax.jit(trees.bounded_sum)


@given(st.sampled_from([1, 2, 1000, 70_001, 200_000]), st.integers(0, 2**31))
@settings(max_examples=30, deadline=None)
def test_norm_error_is_within_the_derived_terms(size, seed):
    """The error of sums of every length, up to 200,000, is at most that of its roundings."""
    values = np.random.default_rng(seed).uniform(0.5, 1, size).astype(np.float32) ** 2
    exact = values.astype(np.float64).sum()
    error = abs(float(bounded_sum(values)) / exact - 1)
    assert error <= trees.sum_error_terms(size) * 2.0**-24


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.float16])
def test_gradients_whose_squares_overflow_contribute_the_clip_norm(dtype):
    """Huge gradients contribute the clip norm, up to the largest number of the dtype."""
    largest = float(jnp.finfo(dtype).max)
    for value in [largest, largest / 2, 1e4, 300.0]:
        total = clipped_sum(np.array([[value, value]], dtype))
        assert np.linalg.norm(total) <= 1.0
        np.testing.assert_allclose(np.linalg.norm(total), 1.0, rtol=3e-6)  # one row's slack is 2e-6


def test_tiny_gradients_pass_and_tiny_clip_norms_hold():
    """Gradients whose squares are zero in float32 pass, and are clipped to a tiny norm."""
    tiny = np.float32(1e-30)
    total = clipped_sum(np.full((1, 4), tiny))
    np.testing.assert_allclose(total, tiny, rtol=1e-6)
    total = clipped_sum(np.full((1, 4), np.float32(1e-20)), l2_clip_norm=1e-22)
    assert 0.99e-22 < np.linalg.norm(total) <= 1e-22
    total = clipped_sum(np.zeros((3, 4), np.float32))
    assert not total.any()


@functools.cache
def sum_with_padding():
    """Return the clipped sum as a compiled function of rows and their padding mask."""
    grad_fn = gdpjax.clipped_grad(dot_loss, 1.0)
    weight = np.zeros(4, np.float32)
    return jax.jit(lambda rows, is_padding: grad_fn(weight, rows, is_padding=is_padding))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_non_finite_row_equals_that_row_removed(bad):
    """The sum with a row that is not finite is, to the bit, the sum without it."""
    rows = np.random.default_rng(3).normal(size=(6, 4)).astype(np.float32)
    poisoned = rows.copy()
    poisoned[2, 1] = bad
    run = sum_with_padding()
    sum_of_poisoned = run(poisoned, np.zeros(6, bool))
    # The slack depends on the number of rows, so the row is removed by the padding mask.
    sum_without_row = run(rows, np.arange(6) == 2)
    np.testing.assert_array_equal(sum_of_poisoned, sum_without_row)


def test_a_batch_too_large_for_the_bound_is_refused():
    """A batch is refused if its slack would be more than a hundredth."""
    with pytest.raises(ValueError, match="too large for the rounding"):
        rounding_budget([jnp.zeros(3)], 40_000)
    assert rounding_budget([jnp.zeros(3)], 16_384).slack < 0.01


def test_padding_to_several_sizes_needs_one_slack():
    """A padded size that follows the realised batch must not change every row's clip threshold with it."""
    rows = np.full((256, 1), 100.0, np.float32)
    padded = np.concatenate([rows, np.zeros((256, 1), np.float32)])
    is_padding = np.arange(512) >= 256

    def change(**options):
        """Return how far the sum moves when the same rows are padded."""
        grad_fn = gdpjax.clipped_grad(dot_loss, 1.0, **options)
        weight = np.zeros(1, np.float32)
        alone = jax.jit(grad_fn)(weight, rows)
        with_padding = jax.jit(grad_fn)(weight, padded, is_padding=is_padding)
        return abs(alone.item() - with_padding.item())

    assert change() > 0.02  # the same rows: two hundredths of a sensitivity from the padding alone
    assert change(max_batch_size=512) == 0.0
    with pytest.raises(ValueError, match="larger than max_batch_size=100"):
        change(max_batch_size=100)


def test_a_weight_that_is_out_of_range_meets_zero():
    """A huge input without a cotangent adds 0, not NaN, beside a tiny gradient that is stretched to the clip norm."""

    def loss(params, x, s, t):
        return jnp.dot(x @ params["w"], s) + jnp.dot(params["b"], t)

    params = {"w": jnp.zeros((40, 40)), "b": jnp.zeros(40)}
    x, s, t = np.ones((3, 2, 40), np.float32)
    x[0] = 3e38
    s[0] = 0
    t[0] = 0
    t[0, 0] = 1.2e-38
    grad_fn = gdpjax.clipped_grad(loss, gdpjax.Normalize(100.0), batch_argnums=(1, 2, 3))
    sums = fast(grad_fn)(params, x, s, t)
    assert np.isfinite(sums["w"]).all()
    assert np.isfinite(sums["b"]).all()


@pytest.mark.parametrize("chunk", [None, 2])
def test_an_invalid_traced_clip_norm_shows_in_an_empty_batch_too(chunk):
    """An invalid clip norm gives NaN also for a batch of padding, whose sum would be zero whatever the norm."""

    @fast
    def total(l2_clip_norm, is_padding):
        grad_fn = gdpjax.clipped_grad(dot_loss, l2_clip_norm, microbatch_size=chunk)
        return grad_fn(jnp.zeros(3), jnp.ones((4, 3)), is_padding=is_padding)

    for is_padding in (np.zeros(4, bool), np.ones(4, bool)):
        assert np.isnan(total(-1.0, is_padding)).all()
        assert np.isfinite(total(1.0, is_padding)).all()


@pytest.mark.parametrize(("compute", "options"), [(jnp.float32, {}), (jnp.bfloat16, {"microbatch_size": 100})])
def test_a_loss_that_computes_in_less_than_its_parameters_is_summed_in_theirs(compute, options):
    """The sum has the precision of float64 parameters: one in float32 is off by 5e-5, where the slack is 1e-8."""
    rng = np.random.default_rng(0)
    x = (1 + rng.uniform(0, 0.1, (250, 60))).astype(compute)
    s = (1 + rng.uniform(0, 0.1, (250, 60))).astype(compute)

    def loss(w, x, s):
        return jnp.dot(jnp.dot(x, w.astype(compute)), s)

    # The outer product of the factors as they are is clipped.
    rows = np.einsum("nd,np->ndp", np.float64(x), np.float64(s)).reshape(250, -1)
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    exact = (rows / norms).sum(axis=0)
    with jax.enable_x64(True):
        grad_fn = gdpjax.clipped_grad(loss, 1.0, batch_argnums=(1, 2), **options)
        total = fast(grad_fn)(np.zeros((60, 60)), x, s, is_padding=np.zeros(250, bool))
        assert total.dtype == jnp.float64
        # Every row is scaled down by the slack, so that 250 of them lack 2e-6 together.
        assert np.linalg.norm(np.ravel(total) - exact) < 5e-6
