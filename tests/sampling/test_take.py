"""The rows of a batch, taken from data that may have fewer of them than the batch was drawn from."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gdpjax
from gdpjax import sampling

KEY = jax.random.key(0)
BATCHES = sampling.Poisson(num_examples=1000, expected_batch_size=64, num_steps=100)
ROWS = np.random.default_rng(0).normal(size=(500, 3)).astype(np.float32)
HOST_BATCHES = {
    "poisson": BATCHES.on_host(KEY),
    "truncated": sampling.TruncatedPoisson(60, 30, 3, capacity=20).on_host(KEY),
    "cyclic": sampling.CyclicPoisson(60, 20, 3, num_groups=3, capacity=40).on_host(KEY),
    "allocation": sampling.RandomAllocation(60, 20, epochs=1, capacity=61).on_host(KEY),
    "shuffled": sampling.Shuffled(60, 20, epochs=1).on_host(KEY),
    "uniform": sampling.WithoutReplacement(60, 30, 3).on_host(KEY),
}


def take(batch, x):
    return batch.take(x)


def index(batch, x):
    """Take rows as JAX does, which reads the last row in place of one that does not exist."""
    return x[batch.indices], batch.is_padding


def largest_change(gather):
    """How far the clipped sum of a step moves at most if the last of 500 rows is replaced, of 1000 that are stated."""
    grad_fn = gdpjax.clipped_grad(lambda w, x: jnp.vdot(w, x), 1.0)

    @jax.jit
    def total(step, x):
        rows, is_padding = gather(BATCHES.sample(KEY, step), x)
        return grad_fn(jnp.zeros(3), rows, is_padding=is_padding)

    neighbour = jnp.asarray(ROWS).at[-1].multiply(-1)
    return max(jnp.linalg.norm(total(step, ROWS) - total(step, neighbour)) for step in range(20))


def test_a_row_that_is_missing_adds_nothing():
    """Trap 85: replacing one example moves a sum by two clip norms at most."""
    assert 1.9 < largest_change(take) <= 2.0001
    assert largest_change(lambda batch, x: index(batch, jnp.asarray(x))) > 40


@jax.jit
def drawn_and_taken(step):
    batch = BATCHES.sample(KEY, step)
    return batch, *batch.take(ROWS)


def test_rows_are_those_of_the_batch_and_of_nothing_else():
    """Every slot that is no padding has the row of its index; the indices themselves are those of version 0.2.0."""
    batch, rows, is_padding = jax.tree.map(np.asarray, drawn_and_taken(3))
    assert batch.indices[:5].tolist() == [4, 10, 24, 25, 31]
    exists = ~batch.is_padding & (batch.indices < 500)
    np.testing.assert_array_equal(is_padding, ~exists)
    np.testing.assert_array_equal(rows[exists], ROWS[batch.indices[exists]])


@pytest.mark.parametrize("convert", [np.asarray, jnp.asarray])
@pytest.mark.parametrize("scheme", HOST_BATCHES)
def test_batches_on_the_host_take_rows_too(scheme, convert):
    """Those of NumPy stay on the host, and missing rows are padding."""
    batches = HOST_BATCHES[scheme]
    indices, padding_before = batches[2]
    rows, is_padding = batches.take(2, convert(ROWS[:40]))
    exists = ~padding_before & (indices < 40)
    assert isinstance(rows, type(convert(ROWS)))
    assert not exists.all()
    np.testing.assert_array_equal(is_padding, ~exists)
    np.testing.assert_array_equal(rows[exists], ROWS[indices[exists]])


def test_any_pytree_is_taken_also_under_transformations():
    """It is the same in jit, vmap and scan, and with the true number of rows given to the sampler."""
    data = {"x": ROWS, "t": (np.arange(500), jnp.ones((500, 2)))}

    def rows_of(step):
        return BATCHES.sample(KEY, step, num_valid=500).take(data, ROWS[:, 0])

    steps = jnp.arange(4)
    batched = jax.jit(jax.vmap(rows_of))(steps)
    _, scanned = jax.lax.scan(lambda _, step: (None, rows_of(step)), None, steps)
    one_by_one = [jax.jit(rows_of)(step) for step in range(4)]
    stacked = jax.tree.map(lambda *rows: np.stack(rows), *one_by_one)
    jax.tree.map(np.testing.assert_array_equal, stacked, batched)
    jax.tree.map(np.testing.assert_array_equal, scanned, batched)
    assert set(batched[0]) == {"x", "t"}


def test_a_batch_unpacks_and_stays_a_batch_in_compiled_code():
    batch = jax.jit(BATCHES.sample)(KEY, 3)
    indices, is_padding, count = batch
    assert (indices.shape, is_padding.dtype, int(count)) == ((136,), bool, int((~is_padding).sum()))
    assert batch.num_examples == 1000
    assert isinstance(batch, sampling.Batch)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ((), "at least one array"),
        ((ROWS, ROWS[:499]), r"one row per example, got leading axes \[500, 499\]"),
        (({"x": ROWS, "y": 1.0},), r"leading axes \[500, None\]"),
        ((np.zeros((1001, 3)),), "num_examples=1000 rows, and the data have 1001"),
        ((np.zeros((0, 3)),), "have 0"),
        (({"x": ["a", "b"]},), r"array 0 of the data\['x'\]\[0\] must be an array"),
    ],
)
def test_other_data_are_refused(data, message):
    """In compiled code and on the host."""
    with pytest.raises(ValueError, match=message):
        jax.eval_shape(lambda: BATCHES.sample(KEY, 0).take(*data))
    with pytest.raises(ValueError, match=message):
        HOST_BATCHES["poisson"].take(0, *data)
