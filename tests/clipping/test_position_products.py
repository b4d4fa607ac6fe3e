"""Weights used at many positions: norms are never understated, and what is added for a row keeps to its norm."""

import fractions
import itertools
import re
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gdpjax
from gdpjax.clipping._clipped_sum import sum_of_rows
from gdpjax.clipping._gradients import (
    PositionProducts,
    RowWeights,
    TiedTable,
    _gram_norms,
    _position_products,
)
from gdpjax.clipping._gradients._gram_norms import gram_squared_norms
from gdpjax.clipping._rounding_budget import rounding_budget
from gdpjax.clipping._rules import Flat, Groups

MATRIX = (("l", 0), ("r", 0))


def fast(function):
    """Compile without optimisation, for tests that do not depend on it."""
    return jax.jit(function, compiler_options={"xla_backend_optimization_level": 0})


def narrowed(array):
    """Return an array without float64, as JAX takes it; on the host, where no program is compiled for that."""
    return array.astype(np.float32) if array.dtype == np.float64 else array


def products(left, right, axes=MATRIX):
    """Return position products of one block: left [N, T, d], right [N, T, p]."""
    left = narrowed(left)
    right = narrowed(right)
    shape = (left.shape[-1], right.shape[-1])
    return PositionProducts(left[:, :, None], right[:, :, None], axes, shape)


def weights_of(squares, bound=1.0):
    """Return the weights by which flat clipping multiplies the rows."""
    root = jnp.sqrt(squares.value)
    unclipped = jnp.ldexp(jnp.ones_like(root), squares.exponent)
    return RowWeights(
        squares.exponent,
        jnp.minimum(unclipped, bound / root),
        jnp.isfinite(squares.value),
    )


def clip(gradients, bound):
    """Return the norms that a rule sees, and what each row adds to the clipped sum."""
    squares = gradients.squared_norms(jnp.float32)
    return squares, gradients.weighted_rows(weights_of(squares, bound))


clip_compiled = fast(clip)


def clip_anew():
    """Return `clip` compiled again, for tests that change a constant of the module."""
    return fast(lambda gradients, bound: clip(gradients, bound))


@fast
def clipped_sum(gradients):
    """Return the sum of the rows, each clipped to norm one."""
    return gradients.weighted_sum(weights_of(gradients.squared_norms(jnp.float32)))


def seen_norms(gradients, run=clip_compiled):
    """Return the norms that a rule sees, in float64."""
    squares, _ = run(gradients, 1.0)
    roots = np.sqrt(np.float64(squares.value))
    return roots * 2.0 ** np.float64(squares.exponent)


def clipped_rows(gradients, bound=1.0, run=clip_compiled):
    """Return the part of the clipped sum that each row adds."""
    _, rows = run(gradients, bound)
    return rows


def exact_gradients(left, right):
    """Return the gradients in float64, where products of float32 are exact."""
    return np.einsum("ntd,ntp->ndp", np.float64(left), np.float64(right))


def norms_of(gradients):
    """Return the norms of rows, in float64."""
    gradients = np.float64(gradients)
    return np.linalg.norm(gradients.reshape(len(gradients), -1), axis=1)


def incoherent(rng, rows, positions, d=24, p=40):
    """Return positions that have nothing to do with each other."""
    left = rng.normal(size=(rows, positions, d))
    right = rng.normal(size=(rows, positions, p))
    return left, right


def cancelling(rng, rows, positions, d=24, p=40):
    """Return pairs of positions that cancel to one part in 2^24."""
    half = (positions + 1) // 2
    left = np.abs(rng.normal(size=(rows, half, d)))
    right = np.abs(rng.normal(size=(rows, half, p)))
    nearly = right * (1 + 2.0**-24 * rng.integers(0, 9, size=right.shape))
    left = np.concatenate([left, -left], axis=1)
    right = np.concatenate([right, nearly], axis=1)
    return left[:, :positions], right[:, :positions]


def coherent(rng, rows, positions, d=24, p=40):
    """Return positions in one direction, of alternating sign."""
    left = rng.normal(size=(rows, 1, d))
    right = rng.normal(size=(rows, 1, p))
    signs = (-1.0) ** np.arange(positions)[:, None]
    sizes = 1 + 1e-6 * rng.normal(size=(rows, positions, 1))
    return left * signs * sizes, np.broadcast_to(right, (rows, positions, p))


def over_orders(rng, rows, positions, d=24, p=40):
    """Return entries over 30 orders of magnitude, and positions with one large factor and one small."""
    left, right = cancelling(rng, rows, positions, d, p)
    size = 10.0 ** rng.uniform(-15, 15, size=(rows, positions, 1))
    spread = 10.0 ** rng.uniform(-15, 0, size=left.shape)
    product = 10.0 ** rng.uniform(-4, 4, size=(rows, positions, 1))
    return left * size * spread, right * product / size


def float32_of(arrays):
    """Return arrays, such as the left and the right factors, as float32."""
    return [np.float32(array) for array in arrays]


KINDS = [incoherent, cancelling, coherent, over_orders]


SLOW = pytest.mark.slow
POSITIONS = [
    (17, jnp.float32),
    (1024, jnp.float32),
    (17, jnp.bfloat16),
    # Two positions that cancel are below.
    pytest.param(2, jnp.float32, marks=SLOW),
    pytest.param(2, jnp.bfloat16, marks=SLOW),
    pytest.param(1024, jnp.bfloat16, marks=SLOW),
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("positions", "dtype"), POSITIONS)
def test_no_norm_is_below_that_of_the_gradient_or_of_what_is_added(positions, kind, dtype):
    """Norms are at least those of the gradients, and hardly above them where positions do not cancel."""
    rng = np.random.default_rng(positions)
    left, right = (factor.astype(dtype) for factor in kind(rng, 6, positions))
    gradients = products(left, right)
    seen = seen_norms(gradients)
    exact = norms_of(exact_gradients(left, right))
    assert (seen >= exact).all()
    for bound in (1, 1e-3):
        norms = norms_of(clipped_rows(gradients, bound))
        assert (norms <= bound * (1 + 1e-6)).all()
    if kind is incoherent:
        assert (seen <= exact * 1.01).all()


@pytest.mark.parametrize(("d", "p"), [(3, 5000), (5000, 3), pytest.param(300, 700, marks=SLOW)])
def test_long_factors_are_taken_in_pieces(d, p):
    """The norms and rows of long factors are those of the definition, along whichever factor they are cut."""
    rng = np.random.default_rng(0)
    left, right = float32_of(incoherent(rng, 3, 5, d, p))
    gradients = products(left, right)
    exact = exact_gradients(left, right)
    exact_norms = norms_of(exact)
    with mock.patch.object(_position_products, "_PIECE", 2**14):
        run = clip_anew()
        added = clipped_rows(gradients, run=run)
        seen = seen_norms(gradients, run)
    np.testing.assert_allclose(seen, exact_norms, rtol=1e-3)
    np.testing.assert_allclose(added, exact / exact_norms[:, None, None], rtol=1e-3, atol=1e-6)


def test_blocks_and_axes():
    """Gradients of three blocks, with axes in another order than those of the factors, are those of the definition."""
    rng = np.random.default_rng(1)
    left = rng.normal(size=(4, 6, 3, 5))
    right = rng.normal(size=(4, 6, 3, 8))
    axes = (("r", 0), ("b", 0), ("l", 0), ("r", 1))
    gradients = PositionProducts(*float32_of([left, right]), axes, (2, 3, 5, 4))
    exact = np.einsum("ntbl,ntbrq->nrblq", left, right.reshape(4, 6, 3, 2, 4))
    np.testing.assert_allclose(seen_norms(gradients), norms_of(exact), rtol=1e-4)
    formed, part = fast(lambda rows: (rows.formed(), rows[1:3].formed()))(gradients)
    np.testing.assert_allclose(formed, exact, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(part, exact[1:3], rtol=1e-4, atol=1e-4)


def test_whole_numbers_in_rational_arithmetic():
    """No squared norm is below that of exact arithmetic where positions cancel to a few units."""
    rng = np.random.default_rng(2)
    left = rng.integers(-9, 10, size=(50, 4, 3))
    right = rng.integers(-(2**20), 2**20, size=(50, 4, 2))
    left[:, 2:] = -left[:, :2]
    right[:, 2:] = right[:, :2] + rng.integers(-1, 2, size=(50, 2, 2))
    factors = [factor[:, :, None] for factor in float32_of([left, right])]
    squares = fast(gram_squared_norms)(*factors)
    values = np.asarray(squares.value)
    exponents = np.asarray(squares.exponent)

    # Sums of products of these numbers fit 64 bits, and so do their squares.
    gradients = np.einsum("ntd,ntp->ndp", left, right)
    exact = np.sum(gradients**2, axis=(1, 2))
    for row in range(50):
        power = fractions.Fraction(4) ** int(exponents[row])
        squared_norm = fractions.Fraction(float(values[row])) * power
        assert squared_norm >= int(exact[row])


def test_zero_rows_are_zero_and_rows_that_are_not_finite_are_dropped():
    """Zeros give norm 0 and numbers that are not finite drop the row, whichever factor they are in."""
    left, right = float32_of(incoherent(np.random.default_rng(3), 6, 17))
    left[0] = 0
    right[1] = 0
    left[2, 1, 3] = np.nan
    right[3, 0, 0] = np.inf
    left[4, 2, 2] = -np.inf
    gradients = products(left, right)
    norms = seen_norms(gradients)
    assert (norms[:2] == 0).all()
    assert np.isnan(norms[2:5]).all()
    assert norms[5] > 0
    added = np.asarray(clipped_rows(gradients))
    assert not added[:5].any()
    np.testing.assert_array_equal(clipped_sum(gradients), added[5])


def test_weights_pass_where_factors_are_far_from_one():
    """Rows below the clip norm stay as they are where one factor is tiny and the other huge, or zero."""
    left, right = float32_of(incoherent(np.random.default_rng(4), 6, 17))
    left[0] *= 1e-30
    right[0] *= 1e28
    left[1, 0] *= 1e30
    right[1, 0] = 0
    exact = exact_gradients(left, right)
    np.testing.assert_allclose(clipped_rows(products(left, right), 1e6), exact, rtol=1e-3, atol=1e-6)


# The norms that other libraries use fail these tests.


def least_ratio(run=clip_compiled):
    """Return the least ratio of the norms that a rule sees to those of the gradients, where positions cancel."""
    left, right = float32_of(cancelling(np.random.default_rng(5), 200, 2, 3, 4))
    exact = norms_of(exact_gradients(left, right))
    seen = seen_norms(products(left, right), run)
    is_positive = exact > 0
    return (seen[is_positive] / exact[is_positive]).min()


def test_without_the_allowance_norms_would_be_understated():
    """Norms without the allowance are understated, and with it they are not."""
    with mock.patch.object(_gram_norms, "allowance", return_value=0.0):
        assert least_ratio(clip_anew()) < 0.1
    assert least_ratio() >= 1


@fast
def sums_with_paddings(gradients, paddings):
    """Return the clipped sums of the same rows with each of the paddings."""
    leaf = jnp.zeros(gradients.shape)
    budget = rounding_budget([leaf], gradients.num_rows)._replace(plain_rows=17)
    groups = Groups((0,), (1.0,))

    def sum_with_padding(padding):
        sums, _ = sum_of_rows([gradients], [leaf], Flat(1.0), groups, budget, padding)
        return sums[0]

    return jax.lax.map(sum_with_padding, paddings)


def largest_change(gradients):
    """Return how far the clipped sum moves when one of the rows is left out."""
    without = np.eye(gradients.num_rows + 1, gradients.num_rows, dtype=bool)
    sums = np.float64(sums_with_paddings(gradients, without))
    return norms_of(sums[:-1] - sums[-1]).max()


@pytest.mark.parametrize("kind", [cancelling, coherent])
def test_no_row_moves_a_sum_by_more_than_the_sensitivity(kind):
    """Each of many rows that agree, with positions that nearly cancel, moves the sum by at most 1."""
    left, right = float32_of(kind(np.random.default_rng(6), 1, 64, 36, 30))
    size = 2.0 ** np.random.default_rng(7).uniform(-3, 3, size=(96, 1, 1))
    is_last = np.arange(64)[:, None] == 63
    right = np.broadcast_to(right, (96, 64, 30)) * (1 + 0.6 * is_last)
    left, right = float32_of([left * size * 100, right])
    assert 0.9 <= largest_change(products(left, right)) <= 1.0


def test_a_row_adds_the_same_whatever_is_beside_it():
    """The bits that a row adds are the same in another order of the rows, and in their sum."""
    left, right = float32_of(incoherent(np.random.default_rng(7), 5, 9, 40, 60))

    @jax.jit
    def added_and_sum(gradients):
        weights = weights_of(gradients.squared_norms(jnp.float32))
        return gradients.weighted_rows(weights), gradients.weighted_sum(weights)

    forward, total = added_and_sum(products(left, right))
    backward, _ = added_and_sum(products(left[::-1], right[::-1]))
    forward = np.asarray(forward)
    np.testing.assert_array_equal(forward, np.asarray(backward)[::-1])
    sum_in_order = np.zeros_like(forward[0])
    for row in forward:
        sum_in_order = sum_in_order + row
    np.testing.assert_array_equal(total, sum_in_order)


def test_half_precision_is_contracted_in_float32_and_no_product_is_merged_with_the_sum():
    """The compiled program has no product in bfloat16, and none fused with an addition, which rounds once for both."""
    factors = incoherent(np.random.default_rng(8), 3, 32, 64, 600)
    left, right = (factor.astype(jnp.bfloat16) for factor in factors)
    run = jax.jit(lambda rows: rows.weighted_sum(weights_of(rows.squared_norms(jnp.float32))))
    program = run.lower(products(left, right)).compile().as_text()
    contractions = re.findall(r"= (\w+)\[.*? (?:dot|custom-call)\(", program)
    assert contractions
    assert "bf16" not in contractions
    for computation in program.split("\n\n"):
        if "fused_computation" in computation[:60]:
            assert not (" dot(" in computation and " add(" in computation)


def test_slopes_are_those_of_the_definition():
    """The slopes with respect to the factors are those of the definition, for a clipped row and one that is not."""
    left, right = float32_of(incoherent(np.random.default_rng(9), 2, 3, 4, 5))

    def by_products(scale):
        rows = products(scale * left, right)
        return rows.weighted_sum(weights_of(rows.squared_norms(jnp.float32)))[0, 0]

    def formed(scale):
        rows = jnp.einsum("ntd,ntp->ndp", scale * left, right)
        norms = jnp.sqrt(jnp.sum(jnp.square(rows), axis=(1, 2)))
        return jnp.einsum("n,ndp->dp", jnp.minimum(1, 1 / norms), rows)[0, 0]

    @fast
    def both_slopes(scale):
        return jax.grad(by_products)(scale), jax.grad(formed)(scale)

    scale = np.array([[[0.5]], [[0.01]]], np.float32)
    slopes, expected = both_slopes(scale)
    np.testing.assert_allclose(slopes, expected, rtol=1e-3, atol=1e-5)


def tied(rng, rows, positions, lookups, words=30, p=8):
    """Return a tied embedding whose looked-up rows cancel what the head does to the first word."""
    left = rng.normal(size=(rows, positions, words))
    right = rng.normal(size=(rows, positions, p))
    left[:, :, 1:] *= 1e-6 * (rng.random((rows, 1, 1)) < 0.5)

    # Half of the look-ups are of the first word, some of the others out of range.
    half = lookups // 2
    index = np.zeros((rows, lookups), np.int32)
    index[:, half:] = rng.integers(-2, words + 2, size=(rows, lookups - half))
    values = 1e-6 * rng.normal(size=(rows, lookups, p))
    values[:, 0] = -np.einsum("nt,ntp->np", left[:, :, 0], right)
    left, right, values = float32_of([left, right, values])
    return TiedTable(left, right, index, values, (words, p))


def exact_tied(gradients):
    """Return the gradients of a tied table, in float64."""
    exact = exact_gradients(gradients.left, gradients.right)
    index = np.asarray(gradients.index)
    values = np.float64(gradients.values)
    for row, lookup in np.ndindex(*index.shape):
        word = index[row, lookup]
        if 0 <= word < exact.shape[1]:
            exact[row, word] += values[row, lookup]
    return exact


@pytest.mark.parametrize("pieces", [pytest.param(2**19, marks=SLOW), 64])
def test_a_tied_embedding_is_clipped_by_the_norm_of_both_parts(pieces):
    """No norm is below that of both together, and without the allowance one would be."""
    gradients = tied(np.random.default_rng(10), 20, 7, 5)
    exact = exact_tied(gradients)
    assert (seen_norms(gradients) >= norms_of(exact)).all()
    with mock.patch.object(_position_products, "_PIECE", pieces):
        formed, (_, added) = fast(lambda rows: (rows.formed(), clip(rows, 1e-6)))(gradients)
    np.testing.assert_allclose(formed, exact, atol=1e-5)
    assert (norms_of(added) <= 1e-6 * (1 + 1e-6)).all()
    with mock.patch.object(_gram_norms, "allowance", return_value=0.0):
        assert (seen_norms(gradients, clip_anew()) < norms_of(exact)).any()


@pytest.mark.parametrize("bound", [1.0, 2.5, 3.0])
def test_a_word_that_is_looked_up_twice_adds_to_one_row_of_a_tied_table(bound):
    """Two look-ups of a word have the norm of their sum; as different rows they would be too short by sqrt(2)."""
    left = np.zeros((2, 1, 5), np.float32)
    right = np.zeros((2, 1, 2), np.float32)
    values = np.ones((2, 2, 2), np.float32)
    index = np.array([[3, 3], [3, 4]], np.int32)
    gradients = TiedTable(left, right, index, values, (5, 2))
    exact = norms_of(exact_tied(gradients))
    np.testing.assert_allclose(exact, [8**0.5, 2.0])
    np.testing.assert_allclose(seen_norms(gradients), exact, rtol=1e-4)
    clipped_norms = norms_of(clipped_rows(gradients, bound))
    np.testing.assert_allclose(clipped_norms, np.minimum(exact, bound), rtol=1e-4)


def test_a_tied_embedding_of_ordinary_size_is_hardly_overstated():
    """Norms are within a thousandth of those of the gradients, and a row that is not a number is dropped alone."""
    rng = np.random.default_rng(11)
    left, right = float32_of(incoherent(rng, 4, 16))
    values = rng.normal(size=(4, 9, 40)).astype(np.float32)
    values[0, 0] = np.nan
    index = rng.integers(0, 24, size=(4, 9)).astype(np.int32)
    gradients = TiedTable(left, right, index, values, (24, 5, 8))
    exact = exact_tied(gradients)
    seen = seen_norms(gradients)
    assert np.isnan(seen[0])
    np.testing.assert_allclose(seen[1:], norms_of(exact[1:]), rtol=1e-3)
    formed = np.asarray(fast(lambda rows: rows.formed())(gradients))
    np.testing.assert_allclose(formed.reshape(exact.shape)[1:], exact[1:], atol=1e-4)


def nearly_cancelling(rng, left, right):
    """Return the same factors with a second half of positions that takes back the first but for a part of any size."""
    left = np.array(left)
    right = np.array(right)
    rows, positions, _ = left.shape
    half = positions // 2
    kept = 2.0 ** -rng.integers(0, 30, size=(rows, 1, 1))  # from all of the sum to nothing
    share = np.where(rng.random((rows, 1, 1)) < 0.8, 1, 0.7)
    left[:, half : 2 * half] = -left[:, :half] * share
    first = right[:, :half]
    right[:, half : 2 * half] = first * (1 + kept * rng.normal(size=first.shape))
    return left, right


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_no_norm_of_100_000_adversarial_rows_is_understated(dtype):
    """No norm over many sizes and kinds is understated, and the bound is not a loose one everywhere."""
    rng = np.random.default_rng(12)
    shapes = [
        (2, 3, 4),
        (2, 1, 1),
        (3, 2, 7),
        (5, 4, 4),
        (8, 3, 3),
        (16, 5, 2),
        (17, 8, 8),
        (33, 2, 2),
    ]
    rows = 100_000 // (len(shapes) * len(KINDS)) + 1
    least = np.inf
    for (positions, d, p), kind in itertools.product(shapes, KINDS):
        factors = nearly_cancelling(rng, *kind(rng, rows, positions, d, p))
        left, right = (jnp.asarray(factor, dtype) for factor in factors)
        gradients = products(left, right)
        seen = seen_norms(gradients)
        exact = norms_of(exact_gradients(left, right))
        assert (seen >= exact).all(), (positions, d, p, kind.__name__)
        added = norms_of(clipped_rows(gradients, 1e-2))
        assert (added <= 1e-2 * (1 + 4e-6)).all(), (positions, d, p, kind.__name__)
        least = min(least, (seen / np.maximum(exact, 1e-300)).min())
    assert least < 1.001


# From the loss to the sum.


def head_loss(params, tokens):
    """Return the loss of a language model with a head of its own."""
    hidden = jnp.tanh(params["table"][tokens] @ params["mix"])
    logits = hidden @ params["head"]
    return -jnp.sum(jax.nn.log_softmax(logits)[jnp.arange(len(tokens)), tokens])


def tied_loss(params, tokens):
    """Return the loss of a language model whose head is its table."""
    hidden = jnp.tanh(params["table"][tokens] @ params["mix"])
    logits = hidden @ params["table"].T
    return -jnp.sum(jax.nn.log_softmax(logits)[jnp.arange(len(tokens)), tokens])


@pytest.mark.parametrize(("loss", "name"), [(head_loss, "head"), (tied_loss, "table")])
@pytest.mark.parametrize("strategy", ["auto", pytest.param("ghost", marks=SLOW)])
def test_a_large_head_is_kept_as_products_at_positions(loss, name, strategy):
    """The form that `explain` states is products, the sum is that of the definition, and a small head is formed."""
    rng = np.random.default_rng(13)
    shapes = {"table": (90, 40), "mix": (40, 40), "head": (40, 90)}
    if loss is tied_loss:
        del shapes["head"]
    params = {key: np.float32(rng.normal(size=shape) / 6) for key, shape in shapes.items()}
    tokens = rng.integers(0, 90, size=(6, 3))

    with mock.patch.object(_position_products, "_LEAST_ENTRIES", 2000):
        explanation = gdpjax.explain(loss, params, tokens, strategy=strategy)
        methods = {leaf.name: leaf.method for leaf in explanation.leaves}
        grad_fn = gdpjax.clipped_grad(loss, 0.5, strategy=strategy, microbatch_size=4)
        total = fast(grad_fn)(params, tokens)
    assert methods[f"['{name}']"].startswith("outer products at 3 positions")
    assert methods["['mix']"] == "formed"

    rows = fast(jax.vmap(jax.grad(loss), (None, 0)))(params, tokens)
    norms = np.sqrt(sum(norms_of(leaf) ** 2 for leaf in rows.values()))
    factors = np.minimum(1, 0.5 / norms)
    for key in params:
        expected = np.tensordot(factors, np.float64(rows[key]), 1)
        np.testing.assert_allclose(total[key], expected, rtol=2e-3, atol=1e-5)
    of_small_weights = gdpjax.explain(loss, params, tokens).leaves[0]
    assert of_small_weights.method != methods[f"['{name}']"]
