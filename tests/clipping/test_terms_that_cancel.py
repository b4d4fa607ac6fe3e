"""Gradients that are a sum of terms keep the promise of the clip, by however many digits the terms cancel."""

import functools
import itertools
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gdpjax
from gdpjax.clipping._gradients import _shared_terms
from gdpjax.clipping._rounding_budget import RoundingBudget

SHAPE = (40, 30)
ROWS = 160


def with_l2(w, a, s, c):
    """Its gradient at (a, s, c) is a s^T + c w."""
    return jnp.sum((a @ w) * s) + c * jnp.sum(w**2) / 2


def with_columns(w, a, s, c):
    """Its gradient is that of the first term, less its part along each column of w, for c = 1."""
    return jnp.sum((a @ (w / jnp.linalg.norm(w, axis=0))) * s) + 0 * c


def fast(function):
    """Compiled without optimisation, for what does not depend on it."""
    return jax.jit(function, compiler_options={"xla_backend_optimization_level": 0})


def summed(loss, rule, num_rows, dtype=jnp.float32):
    """A function of the weight, rows and padding."""
    options = {"batch_argnums": (1, 2, 3), "strategy": "ghost"}
    grad_fn = gdpjax.clipped_grad(loss, rule, return_info=True, **options)

    # The terms that cancel are those of a gradient which is kept in factors.
    w = jax.ShapeDtypeStruct(SHAPE, dtype)
    shapes_of_rows = [SHAPE[:1], SHAPE[1:], ()]
    batch = tuple(jax.ShapeDtypeStruct((num_rows, *shape), dtype) for shape in shapes_of_rows)
    found = gdpjax.explain(loss, w, batch, **options)
    assert found.leaves[0].method == "outer product"

    def run(w, a, s, c, padding):
        return grad_fn(w, a, s, c, is_padding=padding)

    return run


@functools.cache
def measured(loss):
    """`summed` with one clip norm, compiled; not for what is patched."""
    return fast(summed(loss, 1.0, ROWS))


def near_the_weight(seed, num_rows, left):
    """w = u v^T, and rows of which L2 term and data cancel but for the part ``left``, all in one direction."""
    rng = np.random.default_rng(seed)
    u = np.abs(rng.normal(size=SHAPE[0])) + 0.5
    v = np.abs(rng.normal(size=SHAPE[1])) + 0.5
    size = 2.0 ** rng.uniform(-3, 3, size=num_rows)

    # The gradient of a row is a s^T + c w.
    a = u * size[:, None] * (1 + rng.uniform(0, 1e-3 * left, size=(num_rows, 1)))
    s = np.broadcast_to(v, (num_rows, SHAPE[1])) * 100
    c = -100 * size * (1 - left)
    return [np.float32(array) for array in (np.outer(u, v), a, s, c)]


def exact_gradients(loss, w, a, s, c):
    """Gradients of the arrays as they are, in float64."""
    w, a, s, c = (np.float64(array) for array in (w, a, s, c))
    of_data = np.einsum("nd,np->ndp", a, s)
    if loss is with_l2:
        return of_data + c[:, None, None] * w

    # The derivative of a column divided by its norm.
    sizes = np.linalg.norm(w, axis=0)
    columns = w / sizes
    along_columns = np.einsum("dp,ndp->np", columns, of_data)
    return (of_data - columns * along_columns[:, None, :]) / sizes


@pytest.mark.parametrize("loss", [with_l2, with_columns])
@pytest.mark.parametrize("left", [1.0, 1e-2, 1e-4, 1e-6, 0.0])
def test_norms_are_never_understated(loss, left):
    """The norm that is clipped by is at least that of the gradient, whatever is left of the terms."""
    w, a, s, c = near_the_weight(0, ROWS, left)
    gradients = exact_gradients(loss, w, a, s, c)
    exact = np.linalg.norm(gradients.reshape(ROWS, -1), axis=1)
    _, info = measured(loss)(w, a, s, c, np.zeros(ROWS, bool))

    # w / ||w|| and the scales of its columns are computed in float32: what they are is what is clipped.
    off = 0
    if loss is with_columns:
        off = 2e-6 * np.linalg.norm(a, axis=1) * np.linalg.norm(s, axis=1)
    assert (np.float64(info.norms) >= exact * (1 - 1e-6) - off).all()


def each_sum(loss, rule, num_rows, dtype=jnp.float32):
    """A compiled function: the sums of the same rows for several paddings."""
    run = summed(loss, rule, num_rows, dtype)

    @fast
    def sums_with_paddings(w, rows, paddings):
        return jax.lax.map(lambda padding: run(w, *rows, padding)[0], paddings)

    def flat_sums(w, rows, paddings):
        sums = np.float64(sums_with_paddings(w, rows, paddings))
        return sums.reshape(len(paddings), -1)

    return flat_sums


@functools.cache
def each_sum_with_l2():
    """The same, compiled once for two tests."""
    return each_sum(with_l2, 1.0, ROWS)


def largest_change(left):
    """Return how far the sum of rows in one direction moves when one of them is left out."""
    w, *rows = near_the_weight(1, ROWS, left)
    without = np.eye(ROWS + 1, ROWS, dtype=bool)
    sums = each_sum_with_l2()(w, rows, without)
    return np.linalg.norm(sums[:-1] - sums[-1], axis=1).max()


@pytest.mark.parametrize("left", [1e-1, 1e-5])
def test_no_row_moves_a_sum_by_more_than_the_sensitivity(left):
    """Also where nearly nothing is left of the terms."""
    assert largest_change(left) <= 1.0


def least_ratio(run):
    """The norms of rows that cancel, in units of the norms of their terms."""
    w, a, s, c = (np.float64(array) for array in near_the_weight(3, ROWS, 1e-4))
    of_data = np.linalg.norm(a, axis=1) * np.linalg.norm(s, axis=1)
    of_weight = np.abs(c) * np.linalg.norm(w)
    narrow = [np.float32(array) for array in (w, a, s, c)]
    _, info = run(*narrow, np.zeros(ROWS, bool))
    return np.min(info.norms / (of_data + of_weight))


def test_terms_are_bounded_too():
    """256 rows may be added plainly, z = 130.5; four parts of 32 rows are, with x = 21.7 for one term."""
    np.testing.assert_allclose(least_ratio(measured(with_l2)), 21.71875 / 130.49609, rtol=1e-3)
    with mock.patch.object(RoundingBudget, "least_share", return_value=0.0):
        assert least_ratio(fast(summed(with_l2, 1.0, ROWS))) < 0.01


@pytest.mark.parametrize("plain_rows", [1, 2, 3, 4, 5, 8, 13, 63, 64, 128])
def test_the_budget_holds_what_adding_terms_up_costs(plain_rows):
    """The derivation in docs/theory/cancelling_terms.md, part by part."""
    budget = RoundingBudget(0.0, plain_rows, 0.0, 0.0, 2.0**-24, 1.0)
    assert (budget.most_shared_terms > 0) == (plain_rows >= 5)

    def mean_depth(count):
        """Return how many additions a number goes through in a running sum of so many, on average."""
        return sum(range(2, count + 1)) / count

    for terms in range(1, budget.most_shared_terms + 1):
        for is_table in (False, True):
            rows, parts = budget.rows_with_terms(is_table)
            assert rows * parts <= plain_rows
            cost = 2 + mean_depth(rows) + mean_depth(parts) + terms
            allowed = 2 + mean_depth(plain_rows)
            np.testing.assert_allclose(budget.least_share(terms, is_table), cost / allowed)
            assert budget.least_share(terms, is_table) < np.sqrt(0.5)


def alone(loss, w, rule, rows):
    """The norms of what each row contributes, all others left out."""
    num_rows = rows[0].shape[0]
    sums = each_sum(loss, rule, num_rows, w.dtype)(w, rows, ~np.eye(num_rows, dtype=bool))
    return np.linalg.norm(sums, axis=1)


RULES = [
    gdpjax.Flat(1.0),
    gdpjax.Normalize(1.0),
    gdpjax.AutoS(1.0),
    gdpjax.PerLeaf(1.0),
]


def search(dtype):
    """Rows over the whole range of the dtype, of which the terms cancel exactly, nearly and not at all."""
    w, a, s, c = (np.float64(array) for array in near_the_weight(2, 1, 0.0))
    sizes = [1e-4, 1.0, 1e4, float(jnp.finfo(dtype).max) / 1e4]
    left = [-1.0, 0.0, 1e-7, 1e-6, 1e-4, 1e-2, 0.5, 2.0, np.inf]
    factor, rest = np.array(list(itertools.product(sizes, left))).T
    rows = [
        np.broadcast_to(a, (len(factor), SHAPE[0])),
        s / 100 * factor[:, None],
        c / 100 * factor * (1 + rest),
    ]
    with np.errstate(over="ignore"):  # some of them are infinite in half precision
        return w.astype(dtype), [array.astype(dtype) for array in rows]


@pytest.mark.parametrize(("loss", "rule"), [(with_l2, gdpjax.Flat(1.0)), (with_columns, gdpjax.Normalize(1.0))])
def test_a_search_over_rows(loss, rule):
    """No row contributes more than the clip norm."""
    w, rows = search(jnp.float32)
    assert alone(loss, w, rule, rows).max() <= 1.0


@pytest.mark.parametrize(
    "rule",
    [gdpjax.Flat(1.0), pytest.param(gdpjax.Normalize(1.0), marks=pytest.mark.slow)],
)
def test_without_the_rounding_of_norms_the_search_would_find_a_row(rule):
    """The broken version of the test above, so that it is known to see the difference."""
    w, rows = search(jnp.float32)
    with (
        mock.patch.object(_shared_terms, "_lost", return_value=0.0),
        mock.patch.object(RoundingBudget, "least_share", return_value=0.0),
    ):
        assert alone(with_l2, w, rule, rows).max() > 2.0


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.float16])
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: type(rule).__name__)
@pytest.mark.parametrize("loss", [with_l2, with_columns])
def test_a_search_over_rows_rules_and_dtypes(rule, loss, dtype):
    """The same for every rule and dtype."""
    w, rows = search(dtype)
    assert alone(loss, w, rule, rows).max() <= 1.0
