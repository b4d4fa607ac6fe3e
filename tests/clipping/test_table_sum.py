"""Large batches of table rows: exact sums, the same promise, and the same derivatives."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gdpjax
from gdpjax.clipping._gradients import _table_rows
from gdpjax.clipping._gradients._exact_table_sum import is_exact, table_sum

ROWS, TIMES, WIDTH, TABLE = 300, 3, 4, 50
compiled_table_sum = jax.jit(table_sum)


def fast(function):
    """Compiled without optimisation, for what does not depend on it."""
    return jax.jit(function, compiler_options={"xla_backend_optimization_level": 0})


def lookups(seed, dtype=np.float32, num_rows=ROWS):
    """Indices (some out of range) and values of norm at most one for each row."""
    rng = np.random.default_rng(seed)
    index = rng.integers(0, TABLE + 3, (num_rows, TIMES))
    values = rng.normal(size=(num_rows, TIMES, WIDTH)) * 10.0 ** rng.uniform(-6, 2, (num_rows, 1, 1))
    norms = np.sqrt((values**2).sum((1, 2), keepdims=True))
    return index, (values / np.maximum(norms, 1)).astype(dtype)


def plainly(index, values):
    """The same sum in float64, one row after the other."""
    total = np.zeros((TABLE, WIDTH))
    for number, row in zip(index.ravel(), values.reshape(-1, WIDTH).astype(np.float64), strict=True):
        if number < TABLE:
            total[number] += row
    return total


@pytest.mark.parametrize("scale", [1e-30, 0.3, 1.0, 1e30])
def test_the_sum_is_exact_but_for_the_split_and_does_not_depend_on_order(scale):
    index, values = lookups(0)
    scaled = (values * np.float32(scale)).astype(np.float32)
    bound = jnp.float32(np.linalg.norm(scaled.astype(np.float64).reshape(ROWS, -1), axis=1).max())
    high, low = compiled_table_sum(jnp.asarray(index), jnp.asarray(scaled), bound, jnp.zeros((TABLE, WIDTH)))
    found, exact = np.asarray(high, np.float64) + np.asarray(low, np.float64), plainly(index, scaled)
    assert np.abs(found - exact).max() <= ROWS * 2.0**-33 * float(bound) + 2.0**-100
    order = np.random.default_rng(1).permutation(ROWS)
    again = compiled_table_sum(jnp.asarray(index[order]), jnp.asarray(scaled[order]), bound, jnp.zeros((TABLE, WIDTH)))
    np.testing.assert_array_equal(again[0], high)
    np.testing.assert_array_equal(again[1], low)


def test_float64_is_added_to_its_own_precision():
    with jax.enable_x64(True):
        index, values = lookups(2, np.float64)
        high, low = compiled_table_sum(
            jnp.asarray(index), jnp.asarray(values), jnp.float64(1), jnp.zeros((TABLE, WIDTH))
        )
        np.testing.assert_allclose(high + low, plainly(index, values), rtol=0, atol=1e-14)


def test_whole_numbers_cannot_overflow_when_all_rows_meet_in_one():
    """As many rows of the full bound as a batch may have, in one entry."""
    num_rows = 27_000
    assert is_exact(num_rows, 1, jnp.dtype("float32"))
    index, values = jnp.zeros((num_rows, 1), jnp.int32), jnp.full((num_rows, 1, 1), 0.9999999)
    high, low = compiled_table_sum(index, values, jnp.float32(0.9999999), jnp.zeros((2, 1)))
    exact = num_rows * float(np.float32(0.9999999))
    assert abs(float(high[0, 0]) + float(low[0, 0]) - exact) <= num_rows * 2.0**-30


def test_an_invalid_bound_makes_all_of_it_nan():
    index, values = lookups(3)
    pair = compiled_table_sum(jnp.asarray(index), jnp.asarray(values), jnp.float32(jnp.nan), jnp.zeros((TABLE, WIDTH)))
    assert np.isnan(pair[0]).all()


def loss(params, pair, label):
    """Two tables and a kernel, as in a recommender."""
    users, movies, kernel = params
    return jnp.square((users[pair[0]] * movies[pair[1]]) @ kernel - label).sum()


def problem(num_rows, hits):
    """Parameters and a batch in which ``hits`` says how many users there are."""
    keys = jax.random.split(jax.random.key(0), 5)
    shapes = [(4000, 5), (3000, 5), (5, 2)]
    params = [jax.random.normal(key, shape) for key, shape in zip(keys, shapes, strict=False)]
    pairs = jnp.stack([jax.random.randint(keys[3], (num_rows,), 0, hits), jnp.arange(num_rows) % 300], axis=1)
    return params, pairs, 3 * jax.random.normal(keys[4], (num_rows, 2))


@pytest.fixture
def in_whole_numbers(monkeypatch):
    """Counts the tables that are added in whole numbers."""
    calls = []

    def counting(*args):
        calls.append(args)
        return table_sum(*args)

    monkeypatch.setattr(_table_rows, "table_sum", counting)
    yield
    assert calls


def clipped(strategy="ghost", bound=1.0):
    return gdpjax.clipped_grad(loss, bound, batch_argnums=(1, 2), strategy=strategy)


@pytest.mark.parametrize("hits", [1, 4000])
def test_neighbouring_batches_move_by_at_most_the_clip_norm(in_whole_numbers, hits):
    num_rows = 400
    params, pairs, labels = problem(num_rows, hits)
    grad_fn = jax.jit(clipped())
    sums = [
        jax.tree.map(lambda x: np.asarray(x, np.float64), grad_fn(params, pairs, labels, is_padding=padding))
        for padding in (np.arange(num_rows) == row for row in (-1, 0, 17, num_rows - 1))
    ]
    for other in sums[1:]:
        change = np.sqrt(sum(((a - b) ** 2).sum() for a, b in zip(sums[0], other, strict=True)))
        assert 0.9 < change <= 1.0


def test_many_blocks_equal_the_oracle(in_whole_numbers):
    """More than a thousand rows, whose kernel is added in blocks by a loop."""
    params, pairs, labels = problem(1300, 400)
    with jax.enable_x64(True):
        params, labels = [jnp.asarray(p, jnp.float64) for p in params], jnp.asarray(labels, jnp.float64)
        ghost, vmap = (fast(clipped(strategy))(params, pairs, labels) for strategy in ("ghost", "vmap"))
    for found, expected in zip(ghost, vmap, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)


def test_whole_numbers_equal_floating_point(in_whole_numbers, monkeypatch):
    params, pairs, labels = problem(300, 40)
    whole = fast(clipped())(params, pairs, labels)
    monkeypatch.setattr(_table_rows, "is_exact", lambda *args: False)
    for found, expected in zip(whole, fast(clipped())(params, pairs, labels), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_derivatives_invalid_bounds_and_vmap(in_whole_numbers):
    params, pairs, labels = problem(100, 40)

    def total(scale, bound):
        grads = clipped(bound=bound)([scale * p for p in params], pairs, labels)
        return sum(jnp.vdot(g, p) for g, p in zip(grads, params, strict=True))

    value, step = fast(total), 1e-2
    numeric = (value(1 + step, 1e3) - value(1 - step, 1e3)) / (2 * step)
    np.testing.assert_allclose(fast(jax.grad(total))(1.0, 1e3), numeric, rtol=2e-3)
    assert np.isnan(value(1.0, jnp.nan))
    assert np.isnan(value(1.0, -1.0))
    together = fast(jax.vmap(total, (None, 0)))(1.0, jnp.array([0.1, 1.0]))
    np.testing.assert_allclose(together, [value(1.0, 0.1), value(1.0, 1.0)], rtol=1e-5)
