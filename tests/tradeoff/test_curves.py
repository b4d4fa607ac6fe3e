"""Trade-off curves by themselves: values against mpmath, axioms, pytrees, gradients, refusals."""

import jax
import mpmath as mp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gdpjax.tradeoff import (
    ApproximateDP,
    Gaussian,
    Identity,
    Laplace,
    PiecewiseLinear,
    delta,
    epsilon,
    group,
    subsample,
    symmetrize,
)
from tests.refused import refusals
from tests.tradeoff.dominating import one_direction

ALPHA = np.array([0.0, 1e-9, 1e-4, 0.03, 0.2, 0.37, 0.5, 0.8, 0.999, 1.0])
SKEW = PiecewiseLinear([0.0, 0.1, 0.5, 1.0], [0.95, 0.4, 0.1, 0.0])


MIXED_SKEW = type(one_direction(Gaussian(1.0), 0.4))(SKEW, 0.4)  # of a curve that is not symmetric
CURVES = {
    "gaussian": Gaussian(1.3),
    "laplace": Laplace(0.8),
    "approximate": ApproximateDP(0.7, 0.05),
    "identity": Identity(),
    "polygon": SKEW,
    "mixture": one_direction(Gaussian(1.5), 0.3),
    "inverse": one_direction(Laplace(1.5), 0.3).inverse(),
    "inverse_of_gaussian": one_direction(Gaussian(1.5), 0.3).inverse(),
    "subsampled": subsample(Gaussian(1.5), 0.3),
    "subsampled_laplace": subsample(Laplace(1.5), 0.3),
    "subsampled_pair": subsample(ApproximateDP(1.5, 0.1), 0.3),
    "group": group(ApproximateDP(0.5, 0.01), 3),
}

# Other kinds are made of the same parts: the inverse of a mixture is the mixture, and two kinds are subsampled.
SLOW = ("mixture", "inverse_of_gaussian", "subsampled_laplace", "subsampled_pair")
NAMES = [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in CURVES]


NUM_POINTS = 1024


def at(function, x):
    """Return ``function`` at points [n], so many at a time that it is compiled once for each kind of curve."""
    x = np.asarray(x, np.float64)
    num_missing = -x.size % NUM_POINTS
    rows = np.pad(x, (0, num_missing), mode="edge").reshape(-1, NUM_POINTS)
    values = [function(row) for row in rows]
    return np.concatenate(values)[: x.size]


def conjugate_at(curve, slopes):
    """Return the convex conjugate of a curve at slopes [n] <= 0: D(log(-slope)) - 1, and 0 at 0."""
    is_falling = slopes < 0
    epsilons = np.log(np.where(is_falling, -slopes, 1.0))
    profile = jax.jit(curve.profile)
    with jax.enable_x64(True):
        return np.where(is_falling, at(profile, epsilons) - 1, 0.0)


def supremum_of_lines(slopes, conjugate, x):
    """Return the largest of the lines slope * x - conjugate at each x."""
    return np.max(slopes * x[:, None] - conjugate, axis=1)


def phi_inverse(p):
    """Return the normal quantile of p with the digits that mpmath works with."""
    if p > 1e-5:
        return -mp.sqrt(2) * mp.erfinv(1 - 2 * mp.mpf(p))
    return mp.findroot(lambda x: mp.ncdf(x) - p, -6.0)


def test_gaussian_is_that_of_thirty_digits():
    """G_mu(alpha) is the normal distribution function at -Phi^-1(alpha) - mu."""
    inner = ALPHA[1:-1]
    values = at(Gaussian(1.3), inner)
    with mp.workdps(30):
        for alpha, value in zip(inner, values, strict=True):
            exact = mp.ncdf(-phi_inverse(mp.mpf(float(alpha))) - mp.mpf("1.3"))
            assert value == pytest.approx(float(exact), rel=1e-13)


def test_laplace_is_that_of_thirty_digits():
    """The curve is F(F^-1(1 - alpha) - theta) for the Laplace law F."""
    inner = ALPHA[1:-1]
    values = at(Laplace(0.8), inner)
    with mp.workdps(30):
        for alpha, value in zip(inner, values, strict=True):
            x = mp.mpf(float(alpha))
            quantile = -mp.log(2 * x) if x < 0.5 else mp.log(2 * (1 - x))
            moved = quantile - mp.mpf(0.8)
            exact = mp.exp(moved) / 2 if moved < 0 else 1 - mp.exp(-moved) / 2
            assert value == pytest.approx(float(exact), rel=1e-13)


def test_approximate_dp_by_hand():
    """For epsilon = log 2 and delta = 0.1 the curve is max(0, 0.9 - 2 a, (0.9 - a) / 2), with a kink at 0.3."""
    alpha = np.array([0.0, 0.1, 0.2, 0.5, 0.95, 1.0])
    np.testing.assert_allclose(ApproximateDP(np.log(2), 0.1)(alpha), [0.9, 0.7, 0.5, 0.2, 0.0, 0.0], atol=1e-15)
    assert ApproximateDP(np.inf, 0.1)(alpha).tolist() == [0.9, 0, 0, 0, 0, 0]


@pytest.mark.parametrize("name", NAMES)
def test_axioms(name):
    """A trade-off curve is non-increasing, convex, below 1 - alpha, and 0 at the end."""
    curve = CURVES[name]
    near_zero = np.geomspace(1e-8, 0.5, 150)
    near_one = 1.0 - near_zero[::-1][1:]
    x = np.concatenate([[0.0], near_zero, near_one, [1.0]])
    y = at(curve, x)
    assert np.all(y >= 0)
    assert np.all(y <= 1 - x)
    assert y[-1] == 0
    assert np.all(np.diff(y) <= 1e-15)
    slopes = np.diff(y) / np.diff(x)
    assert np.all(np.diff(slopes) >= -1e-7 * (1 + np.abs(slopes[1:])))


@pytest.mark.parametrize("name", NAMES)
def test_slope_is_the_derivative(name):
    """The slope is a difference quotient of the values."""
    curve = CURVES[name]
    x = np.array([0.011, 0.123, 0.291, 0.413, 0.61, 0.77, 0.9])
    step = 1e-6
    finite = (at(curve, x + step) - at(curve, x - step)) / (2 * step)
    np.testing.assert_allclose(curve.slope(x), finite, rtol=2e-6, atol=1e-8)


@pytest.mark.parametrize("name", NAMES)
def test_inverse_and_symmetry(name):
    """A curve undoes its inverse, and is symmetric if and only if it is its own inverse."""
    curve = CURVES[name]
    back = curve.inverse()
    x = np.linspace(0.02, 0.9, 23)
    inner = x[x < at(curve, [0.0])]
    np.testing.assert_allclose(at(curve, at(back, inner)), inner, atol=1e-12)

    assert curve.is_symmetric() == (back is curve)
    difference = np.abs(at(back, x) - at(curve, x))
    if curve.is_symmetric():
        assert np.max(difference) == 0
    else:
        assert np.max(difference) > 1e-3


@pytest.mark.parametrize("name", NAMES)
def test_conjugate_is_its_definition(name):
    """f* is the supremum of y x - f(x)."""
    curve = CURVES[name]
    near_zero = np.geomspace(1e-12, 0.5, 2047)
    near_one = 1 - near_zero[::-1]
    x = np.concatenate([[0.0], near_zero, near_one, [1.0]])
    slopes = -np.exp(np.linspace(-4, 4, 33))
    brute_force = supremum_of_lines(x, at(curve, x), slopes)

    conjugate = conjugate_at(curve, slopes)
    assert np.all(conjugate >= brute_force - 1e-13)
    # The brute force misses the kinks.
    np.testing.assert_allclose(conjugate, brute_force, atol=2e-3)


@pytest.mark.parametrize("name", NAMES)
def test_delta_and_epsilon_are_inverse_to_each_other(name):
    """epsilon(delta(e)) = e where delta falls, and the statements hold for both orders of the two laws."""
    curve = CURVES[name]
    grid = np.array([0.0, 0.05, 0.3, 0.45])
    deltas = delta(curve, grid)
    assert np.all(np.diff(deltas) <= 0)
    is_falling = (grid > 0) & (deltas > delta(curve, grid + 1e-3))
    found = epsilon(curve, np.minimum(deltas, 0.99))
    np.testing.assert_allclose(found[is_falling], grid[is_falling], rtol=1e-9)

    # Both orders: f and f^-1 are above f_{epsilon, delta}.
    x = np.linspace(0, 1, 101)
    weaker = np.minimum(at(curve, x), at(curve.inverse(), x))
    for e, d in zip(grid, deltas, strict=True):
        steep = 1 - d - np.exp(e) * x
        flat = np.exp(-e) * (1 - d - x)
        weakest = np.maximum(0, np.maximum(steep, flat))
        assert np.all(weaker >= weakest - 1e-12)


@pytest.mark.parametrize(
    "curve",
    [SKEW, one_direction(Gaussian(1.5), 0.3), one_direction(Laplace(1.0), 0.5).inverse()],
    ids=["polygon", "mixture", "inverse"],
)
def test_symmetrize_is_the_largest_symmetric_curve_below(curve):
    """It is the lower hull of the pointwise minimum of the curve and its inverse."""
    symmetric = symmetrize(curve)
    assert symmetric.is_symmetric()
    x = np.linspace(0, 1, 401)
    values = at(symmetric, x)
    minimum = np.minimum(at(curve, x), at(curve.inverse(), x))
    assert np.all(values <= minimum + 1e-12)

    # The hull by brute force.
    slopes = -np.exp(np.linspace(-8, 8, 4001))
    conjugate = supremum_of_lines(x, minimum, slopes)
    hull = supremum_of_lines(slopes, conjugate, x)
    np.testing.assert_allclose(values, hull, atol=5e-4)


@pytest.mark.parametrize(
    "curve",
    [Gaussian(1.5), Laplace(1.5), ApproximateDP(1.0, 0.05)],
    ids=["gaussian", "laplace", "approximate"],
)
def test_subsampling_has_its_straight_middle_piece(curve):
    """C_p(f) is f_p, a straight piece of slope -1, and the inverse of f_p."""
    p = 0.3

    def mixed(alpha):
        return p * at(curve, alpha) + (1 - p) * (1 - alpha)

    # The fixed point of f, to 5e-4.
    x = np.linspace(0, 1, 2001)
    start = x[np.argmin(np.abs(at(curve, x) - x))]
    (end,) = mixed(np.array([start]))

    subsampled = subsample(curve, p)
    values = at(subsampled, x)
    left = x < start - 1e-3
    middle = (x > start + 1e-3) & (x < end - 1e-3)
    right = (x > end + 1e-3) & (values > 0)
    assert middle.sum() > 100
    np.testing.assert_allclose(values[left], mixed(x)[left], rtol=1e-14)
    np.testing.assert_allclose(values[middle] + x[middle], start + end, atol=2e-6)
    np.testing.assert_allclose(mixed(values[right]), x[right], rtol=1e-13)
    np.testing.assert_allclose(subsampled.slope(x[middle][:7]), -1.0)


def test_groups_of_pairs():
    """A pair's group is strictly better than the pair of twice the epsilon, and a group of one is the pair."""
    x = np.append(np.linspace(0, 1, 101), 0.3)
    gap = at(group(ApproximateDP(0.5), 2), x) - at(ApproximateDP(1.0), x)
    assert np.all(gap >= -1e-15)
    assert gap[-1] > 1e-3
    pair = ApproximateDP(0.5, 0.01)
    np.testing.assert_allclose(at(group(pair, 1), x), at(pair, x))


def random_laws(rng):
    """Return two random laws on two to six outcomes."""
    num_outcomes = int(rng.integers(2, 7))
    concentration = np.full(num_outcomes, 0.5)
    return rng.dirichlet(concentration), rng.dirichlet(concentration)


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 10**6))
def test_a_discrete_pair_by_brute_force(seed):
    """No deterministic test is better than the curve, and every vertex of the curve is a test."""
    null, alternative = random_laws(np.random.default_rng(seed))
    curve = PiecewiseLinear.from_probabilities(null, alternative)

    # The errors of all deterministic tests: each rejects on a subset of the outcomes.
    num_outcomes = null.size
    subsets = (np.arange(2**num_outcomes)[:, None] >> np.arange(num_outcomes)) & 1
    alpha = np.clip(subsets @ null, 0.0, 1.0)
    beta = 1 - subsets @ alternative
    assert np.all(curve(alpha) <= beta + 1e-12)
    for vertex_alpha, vertex_beta in zip(curve.alpha, curve.beta, strict=True):
        distances = np.abs(alpha - vertex_alpha) + np.abs(beta - vertex_beta)
        assert np.min(distances) < 1e-9


def subsampled_laplace(epsilon, sampling_prob):
    return subsample(Laplace(epsilon), sampling_prob)


def subsampled_gaussian(mu, sampling_prob):
    return subsample(Gaussian(mu), sampling_prob)


def inverse_of_mixture(mu, sampling_prob):
    return one_direction(Gaussian(mu), sampling_prob).inverse()


MAKERS = {
    "gaussian": (Gaussian, (1.3,)),
    "laplace": (Laplace, (0.8,)),
    "approximate": (ApproximateDP, (0.7, 0.05)),
    "subsampled": (subsampled_laplace, (1.5, 0.3)),
    "subsampled_gaussian": (subsampled_gaussian, (1.5, 0.3)),
    "other_direction": (inverse_of_mixture, (1.5, 0.3)),
}


def answers_of(make):
    """Return the function of a curve's parameters and alpha that gives beta and delta(0.2)."""

    def answers(*arguments):
        *parameters, alpha = arguments
        curve = make(*parameters)
        return curve(alpha), delta(curve, 0.2)

    return answers


SLOW_MAKERS = ("subsampled_gaussian", "other_direction")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW_MAKERS)) for name in MAKERS]
)
def test_vmap_is_loop_jit_is_eager_gradient_is_finite_difference(name):
    """One compiled program maps values and derivatives over curves: the values are those of eager calls."""
    make, parameters = MAKERS[name]
    answers = answers_of(make)
    point = np.array([*parameters, 0.23])
    factors = np.array([1.0, 1.1, 1.2])

    def with_aux(*arguments):
        values = answers(*arguments)
        return values, values

    arguments = range(len(point))
    slopes = jax.jacobian(with_aux, argnums=tuple(arguments), has_aux=True)
    with jax.enable_x64(True):
        gradients, mapped = jax.jit(jax.vmap(slopes))(*(point[:, None] * factors))
    loop = [answers(*(point * factor)) for factor in factors]
    np.testing.assert_allclose(np.transpose(mapped), loop, rtol=1e-11)

    # The derivatives at the first point, by parameter.
    for index in arguments:
        step = np.where(np.arange(len(point)) == index, 1e-6, 0.0)
        up = np.array(answers(*(point + step)))
        down = np.array(answers(*(point - step)))
        at_first = [float(gradient[index][0]) for gradient in gradients]
        np.testing.assert_allclose(at_first, (up - down) / 2e-6, rtol=1e-5, atol=1e-8)


def test_curves_are_mapped_over():
    """vmap over curves is a loop, and arrays of parameters are arrays of curves."""

    def beta(curve):
        return curve(0.2)

    mus = np.array([0.5, 1.0])
    exact = [Gaussian(mu)(0.2) for mu in mus]
    np.testing.assert_allclose(jax.jit(jax.vmap(beta))(Gaussian(mus)), exact, rtol=1e-6)
    np.testing.assert_allclose(Gaussian([0.5, 1.0])(0.2), exact)
    polygons = PiecewiseLinear(np.tile(SKEW.alpha, (2, 1)), np.tile(SKEW.beta, (2, 1)))
    np.testing.assert_allclose(jax.jit(jax.vmap(beta))(polygons), SKEW(0.2), rtol=1e-6)


def test_bounds_are_rounded_to_their_side_in_float32():
    """A lower bound stays below the curve and an upper bound above it."""
    lower = PiecewiseLinear(SKEW.alpha, SKEW.beta, "down")
    upper = PiecewiseLinear(SKEW.alpha, SKEW.beta, "up")
    x = np.linspace(0, 1, 300).astype(np.float32)
    exact = SKEW(x)
    low, high = jax.jit(lambda alpha: (lower(alpha), upper(alpha)))(x)
    assert low.dtype == high.dtype == np.float32
    assert np.all(np.float64(low) <= exact)
    assert np.all(np.float64(high) >= exact)


@pytest.mark.parametrize(
    ("alpha", "beta", "message"),
    [
        ([0, 0.5, 1], [1, 0.5, np.nan], r"beta must be a number in \[0, 1\], got nan at index \(2,\)"),
        ([0, 0.2, 0.5, 1], [1, 0.7, 0.5, 0], r"convex; .* alpha = 0.5, beta = 0.5, at index \(2,\)"),
        ([0, 0.2, 0.5, 1], [1, 0.3, 0.4, 0], r"non-increasing; .* alpha = 0.5, beta = 0.4, at index \(2,\)"),
        ([0, 0.2, 0.5, 1], [1, 0.9, 0.4, 0], r"at most 1 - alpha; .* alpha = 0.2, beta = 0.9, at index \(1,\)"),
        ([0, 0.5, 0.5, 1], [1, 0.3, 0.2, 0], r"strictly increasing alpha; .* at index \(2,\)"),
        ([0.1, 0.5, 1], [0.8, 0.3, 0], r"from alpha = 0 to alpha = 1; .* at index \(0,\)"),
    ],
)
def test_what_is_no_tradeoff_curve_is_refused_with_the_first_offending_point(alpha, beta, message):
    with pytest.raises(ValueError, match=message):
        PiecewiseLinear(alpha, beta)


test_bad_input = refusals(
    (lambda: Gaussian(np.nan), "mu must be .* got nan"),
    (lambda: subsample(SKEW, 0.5), "subsampling needs a symmetric curve, got PiecewiseLinear; use symmetrize"),
    (lambda: group(one_direction(Gaussian(1.0), 0.5), 2), "group privacy needs a symmetric curve"),
    (lambda: group(Gaussian(1.0), 1.5), "k must be a whole number >= 1"),
    (lambda: delta(Gaussian(1.0), -0.5), "epsilon must be a finite number >= 0"),
    (lambda: PiecewiseLinear.from_probabilities([0.5, 0.4], [0.5, 0.5]), "sum to 1"),
    (lambda: PiecewiseLinear([0, 1], [1, 0], "sideways"), "rounding must be"),
)


def test_traced_parameters_out_of_range_give_nan():
    """A traced parameter out of range cannot be inspected, so it gives NaN and never a number."""

    @jax.jit
    def betas(mu, sampling_prob, alpha):
        return (
            Laplace(mu)(0.2),
            subsample(Laplace(1.0), sampling_prob)(0.2),
            Laplace(1.0)(alpha),
        )

    assert np.isnan(betas(-1.0, 1.5, 1.5)).all()
    assert np.isfinite(betas(1.0, 0.5, 0.5)).all()
    assert np.isnan(jax.jit(lambda mu: Gaussian(mu)(0.2))(-1.0))
