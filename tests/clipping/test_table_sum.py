"""Large batches of table rows: exact sums, the same promise, and the same derivatives."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gdpjax
from gdpjax.clipping._forms import _table
from tests.clipping.compiling import fast

ROWS = 300
TIMES = 3
WIDTH = 4
TABLE = 50
EMPTY = np.zeros((TABLE, WIDTH), np.float32)
table_sum = _table.table_sum
compiled_table_sum = jax.jit(table_sum)


def lookups(seed, dtype=np.float32, num_rows=ROWS):
    """Indices (some out of range) and values of norm at most one for each row."""
    rng = np.random.default_rng(seed)
    index = rng.integers(0, TABLE + 3, (num_rows, TIMES))
    directions = rng.normal(size=(num_rows, TIMES, WIDTH))
    values = directions * 10.0 ** rng.uniform(-6, 2, (num_rows, 1, 1))
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
    """To the bit, for values of any size."""
    index, values = lookups(0)
    scaled = (values * np.float32(scale)).astype(np.float32)
    norms = np.linalg.norm(np.float64(scaled).reshape(ROWS, -1), axis=1)
    bound = np.float32(norms.max())
    high, low = compiled_table_sum(index, scaled, bound, EMPTY)
    found = np.asarray(high, np.float64) + np.asarray(low, np.float64)
    exact = plainly(index, scaled)
    assert np.abs(found - exact).max() <= ROWS * 2.0**-33 * float(bound) + 2.0**-100
    order = np.random.default_rng(1).permutation(ROWS)
    again = compiled_table_sum(index[order], scaled[order], bound, EMPTY)
    np.testing.assert_array_equal(again[0], high)
    np.testing.assert_array_equal(again[1], low)


def test_whole_numbers_cannot_overflow_when_all_rows_meet_in_one():
    """The sum of as many rows of the full bound as a batch may have, in one entry, does not overflow."""
    num_rows = 27_000
    bound = np.float32(0.9999999)
    assert _table.is_exact(num_rows, 1, jnp.dtype("float32"))
    index = np.zeros((num_rows, 1), np.int32)
    values = np.full((num_rows, 1, 1), bound)
    parts = compiled_table_sum(index, values, bound, np.zeros((2, 1), np.float32))
    high, low = np.float64(parts)
    assert abs(high[0, 0] + low[0, 0] - num_rows * float(bound)) <= num_rows * 2.0**-30


def test_an_invalid_bound_makes_all_of_it_nan():
    """An invalid bound, which is no scale for whole numbers, gives NaN everywhere."""
    index, values = lookups(3)
    pair = compiled_table_sum(index, values, np.float32(np.nan), EMPTY)
    assert np.isnan(pair[0]).all()


def loss(params, pair, label):
    """Two tables and a kernel, as in a recommender."""
    users, movies, kernel = params
    return jnp.square((users[pair[0]] * movies[pair[1]]) @ kernel - label).sum()


def problem(num_rows, hits):
    """Parameters and a batch in which ``hits`` says how many users there are."""
    rng = np.random.default_rng(0)
    params = [rng.normal(size=shape).astype(np.float32) for shape in [(4000, 5), (3000, 5), (5, 2)]]
    pairs = np.stack([rng.integers(0, hits, num_rows), np.arange(num_rows) % 300], axis=1)
    return params, pairs, 3 * rng.normal(size=(num_rows, 2)).astype(np.float32)


@pytest.fixture
def in_whole_numbers(monkeypatch):
    """Counts the tables that are added in whole numbers."""
    calls = []

    def counting(*args):
        calls.append(args)
        return table_sum(*args)

    monkeypatch.setattr(_table, "table_sum", counting)
    yield
    assert calls


def clipped(bound=1.0):
    return gdpjax.clipped_grad(loss, bound, batch_argnums=(1, 2), strategy="ghost")


def test_neighbouring_batches_move_by_at_most_the_clip_norm(in_whole_numbers):
    """Whether all rows look up one user or each its own."""
    num_rows = 400
    grad_fn = jax.jit(clipped())

    def sum_without(row, params, pairs, labels):
        found = grad_fn(params, pairs, labels, is_padding=np.arange(num_rows) == row)
        return np.concatenate([np.ravel(np.float64(leaf)) for leaf in found])

    for hits in (1, 4000):
        batch = problem(num_rows, hits)
        whole = sum_without(-1, *batch)
        for row in (0, 17, num_rows - 1):
            change = np.linalg.norm(whole - sum_without(row, *batch))
            assert 0.9 < change <= 1.0


def test_whole_numbers_equal_floating_point(in_whole_numbers, monkeypatch):
    """The sum is the same by either way, but for rounding."""
    params, pairs, labels = problem(300, 40)
    whole = fast(clipped())(params, pairs, labels)
    monkeypatch.setattr(_table, "is_exact", lambda *args: False)
    for found, expected in zip(whole, fast(clipped())(params, pairs, labels), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
