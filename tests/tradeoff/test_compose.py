"""Composition: closed forms, certified polygons around oracles, limit theorems and their bands."""

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom

from gdpjax import accounting
from gdpjax.tradeoff import (
    ApproximateDP,
    Gaussian,
    Identity,
    Laplace,
    PiecewiseLinear,
    central_limit,
    compose,
    delta,
    epsilon,
    group,
    subsample,
    symmetrize,
)
from tests.refused import refusals
from tests.tradeoff.dominating import one_direction

ALPHA = np.array([1e-9, 1e-5, 1e-3, 0.02, 0.1, 0.3, 0.5, 0.8, 0.97, 0.9999])


def numeric(curve, times=1):
    """Compose by the numeric method also where there is a closed form: beside a curve that loses next to nothing."""
    return compose(curve, Laplace(1e-200), times=times)


def assert_around(bounds, exact, alpha=ALPHA, width=None):
    """Assert that the exact curve is between the bounds, and that these are close to each other."""
    lower = bounds.lower(alpha)
    upper = bounds.upper(alpha)
    assert np.all(lower <= exact * (1 + 1e-12) + 1e-15)
    assert np.all(upper >= exact * (1 - 1e-12) - 1e-15)
    if width is not None:
        np.testing.assert_allclose(upper, lower, rtol=width, atol=width * 1e-3)


def test_closed_forms():
    """Gaussians, identities and events of probability delta stay what they are."""
    assert compose(Gaussian(3.0), Identity(), Gaussian(4.0)).exact.mu == 5.0
    assert compose(Gaussian(0.5), times=16).exact.mu == 2.0
    assert isinstance(compose(Identity(), Identity(), times=3).exact, Identity)
    two_at_once = compose(Gaussian([0.3, 3.0]), Gaussian([0.4, 4.0]))
    np.testing.assert_allclose(two_at_once.exact.mu, [0.5, 5.0])
    one_step = compose(one_direction(Gaussian(1.0), 0.3))
    assert isinstance(one_step.exact, type(subsample(Gaussian(1.0), 0.3)))
    events = compose(ApproximateDP(0.0, 0.1), ApproximateDP(0.0, 0.2))
    assert events.exact.delta == pytest.approx(0.28, rel=1e-15)


@pytest.mark.parametrize(("e", "d", "n"), [(0.1, 0.0, 60), (1.0, 0.01, 5), (0.7, 0.2, 2), (0.01, 1e-4, 1000)])
def test_identical_pairs_against_the_binomial_formula(e, d, n):
    """The delta of n pairs is a sum over how many of the n coins show the likelier side."""
    pair = ApproximateDP(e, d)
    composed = compose(pair, times=n)
    epsilons = np.array([0.0, 0.5 * e, e, 2.5 * e, 0.9 * n * e])
    counts = np.arange(n + 1)
    probs = binom.pmf(counts, n, np.exp(e) / (1 + np.exp(e)))
    losses = (2 * counts - n) * e
    gains = np.maximum(0, -np.expm1(epsilons[:, None] - losses))
    delta_if_none_fails = np.sum(probs * gains, axis=1)
    exact = 1 - (1 - d) ** n * (1 - delta_if_none_fails)
    np.testing.assert_allclose(delta(composed, epsilons), exact, rtol=1e-9, atol=2e-15)

    curve = composed.exact
    assert curve.is_symmetric()
    assert_around(numeric(pair, times=n), curve(ALPHA), width=5e-3)


def test_pairs_with_a_tiny_delta_keep_it_and_no_epsilon_is_too_small():
    """The largest losses of a thousand coins have mass far below 1e-16."""
    events = compose(ApproximateDP(0.0, 1e-17), times=10_000)
    assert events.exact.delta == pytest.approx(1e-13, rel=1e-12)
    coins = compose(ApproximateDP(0.1), times=1000)
    deltas = np.array([1e-6, 1e-15, 1e-20, 0.0])
    exact = np.array([19.344671447993278, 29.354668980334964, 33.44120934085879, 100.0])
    epsilons = epsilon(coins, deltas)
    assert np.all(epsilons >= exact)
    assert epsilons[0] == pytest.approx(exact[0], rel=1e-9)


def test_nearly_symmetric_polygons_are_certified_in_both_orders():
    """The upper delta holds for both orders of the laws, where one has a mass of 1e-10 that the other lacks.

    The curve is symmetric as curves go, but 1e-6 is lost in one of the orders after 10,000 steps.
    """
    lost = 1e-10
    p = 1 / (1 + np.exp(-0.01))
    null = [lost, (1 - lost) * p, (1 - lost) * (1 - p)]
    alternative = [0.0, 1 - p, p]
    curve = PiecewiseLinear.from_probabilities(null, alternative)
    assert curve.is_symmetric()
    bounds = compose(curve, times=10_000, num_cells=1024)
    lost_in_all_steps = -np.expm1(10_000 * np.log(curve.alpha[-2]))
    assert bounds.delta(8.0).upper >= lost_in_all_steps


def test_a_steep_group_is_bracketed():
    """Five steps that each multiply an error by e^4 leave more of its rounding than 1e-12."""
    alpha = np.geomspace(1e-11, 2e-9, 200)
    errors = compose(group(ApproximateDP(4.0), 5)).tradeoff(alpha)
    exact = 1 - np.exp(20.0) * alpha
    assert np.all(errors.lower <= exact)
    assert np.all(exact <= errors.upper)


def test_extreme_spacings():
    """Losses of almost nothing change nothing, and cells may be wider than what e^x holds."""
    exact = Laplace(0.5)(ALPHA)
    for curve in (ApproximateDP(1e-20), Laplace(1e-200), one_direction(Gaussian(1.0), 1e-250)):
        assert_around(compose(curve, Laplace(0.5)), exact, width=1e-6)
    wide = compose(one_direction(Gaussian(24.0), 0.5), times=10_000, num_cells=64)
    assert wide.lower(0.5) <= wide.upper(0.5) < 1e-100


@pytest.mark.parametrize(
    ("mu", "times"), [(1.0, 1), (1.0, 4), (0.1, 100), (0.01, 10_000), (0.001, 1_000_000), (6.0, 2), (3.0, 30)]
)
def test_gaussians_numerically(mu, times):
    """The numeric method brackets the Gaussian that several are."""
    exact = Gaussian(mu * np.sqrt(times))(ALPHA)
    assert_around(numeric(Gaussian(mu), times=times), exact, width=2e-3)


def test_mixed_kinds_against_exact_products():
    """The bounds contain the product of polygons, which is a polygon too."""
    rng = np.random.default_rng(5)
    for _ in range(6):
        pairs_of_laws = []
        for _ in range(3):
            null_law = rng.dirichlet(np.ones(4))
            alternative_law = rng.dirichlet(np.ones(4))
            pairs_of_laws.append((null_law, alternative_law))
        # The last one has an outcome that is impossible under the null.
        pairs_of_laws.append((np.array([0.5, 0.5, 0.0]), np.array([0.2, 0.5, 0.3])))

        curves = []
        null = np.ones(1)
        alternative = np.ones(1)
        for null_law, alternative_law in pairs_of_laws:
            curves.append(PiecewiseLinear.from_probabilities(null_law, alternative_law))
            null = np.outer(null, null_law).ravel()
            alternative = np.outer(alternative, alternative_law).ravel()
        product = PiecewiseLinear.from_probabilities(null / null.sum(), alternative / alternative.sum())
        exact = symmetrize(product)

        bounds = compose(*curves)
        assert_around(bounds, exact(ALPHA), width=1e-3)
        assert bounds.lower.is_symmetric()
        assert bounds.upper.is_symmetric()


@pytest.mark.parametrize(
    ("sigma", "p", "steps"),
    [
        pytest.param(1.3, 0.01, 1000, marks=pytest.mark.slow),
        pytest.param(0.7, 0.004, 100, marks=pytest.mark.slow),
        (2.0, 0.2, 10),
        (1.0, 0.3, 1),
    ],
)
def test_subsampled_gaussians_against_the_certified_accountant(sigma, p, steps):
    """The brackets of composition and of the accountant overlap, and those of composition are narrow."""
    step = one_direction(Gaussian(1 / sigma), p)
    composed = numeric(step) if steps == 1 else compose(step, Identity(), times=steps)
    beta = composed.tradeoff(ALPHA)
    accountants_beta = accounting.tradeoff_bounds(sigma, p, steps, ALPHA)
    assert np.all(beta.lower <= accountants_beta.upper)
    assert np.all(accountants_beta.lower <= beta.upper)
    bounds = composed.epsilon(1e-5)
    accountants_bounds = accounting.epsilon_bounds(sigma, p, steps, 1e-5)
    assert bounds.lower <= accountants_bounds.upper
    assert accountants_bounds.lower <= bounds.upper < 1.005 * bounds.lower


def test_asymmetric_curves_are_composed_per_direction():
    """Trap 37: composing the symmetrised curve is valid but loose."""
    curve = one_direction(Gaussian(1 / 1.3), 0.01)
    tight = compose(curve, times=1000)
    loose = compose(symmetrize(curve), times=1000)
    assert np.all(loose.lower(ALPHA) <= tight.upper(ALPHA))
    assert loose.epsilon(1e-5).lower > 1.15 * tight.epsilon(1e-5).upper
    of_inverse = compose(curve.inverse(), times=1000)
    np.testing.assert_allclose(of_inverse.lower(ALPHA), tight.lower(ALPHA), rtol=2e-3)


@pytest.mark.parametrize(
    "curve",
    [
        symmetrize(PiecewiseLinear([0.0, 0.2, 1.0], [1.0, 0.64, 0.0])),
        subsample(Laplace(1.0), 0.2),
        Laplace(0.5),
    ],
    ids=["symmetrized", "subsampled_laplace", "laplace"],
)
def test_any_curve_between_its_polygons(curve):
    """One step is bracketed, the order of steps does not matter, and more of them are not more private."""
    assert_around(numeric(curve), curve(ALPHA), width=4e-3)
    four = compose(curve, times=4)
    twice_two = compose(curve, curve, times=2)
    five = compose(curve, times=5)
    np.testing.assert_allclose(four.lower(ALPHA), twice_two.lower(ALPHA), rtol=1e-12)
    assert np.all(four.lower(ALPHA) <= four.upper(ALPHA))
    assert np.all(five.lower(ALPHA) <= four.upper(ALPHA))


@settings(deadline=None, max_examples=6)
@given(st.floats(0.05, 2.0), st.floats(0.05, 2.0))
def test_laplace_and_gaussian_products_against_quadrature(theta, mu):
    """The delta of the product is a one-dimensional integral over the Gaussian's loss."""
    composed = compose(Laplace(theta), Gaussian(mu))
    x = np.linspace(-9.0, 9.0, 40_001)
    # The Gaussian's loss under the alternative, and its law.
    loss = mu * x + 0.5 * mu * mu
    spacing = x[1] - x[0]
    mass = spacing * np.exp(-0.5 * x * x) / np.sqrt(2 * np.pi)
    for e in (0.0, 0.5 * mu, 2 * mu):
        exact = np.sum(mass * _laplace_profile(theta, e - loss))
        bounds = composed.delta(e)
        assert bounds.lower - 1e-6 <= exact <= bounds.upper + 1e-6
        assert bounds.upper <= bounds.lower * 1.002 + 1e-9


def _laplace_profile(theta, e):
    """Return the privacy profile of the Laplace mechanism at any epsilon."""
    right = -np.expm1(0.5 * (np.minimum(np.abs(e), theta) - theta))
    return np.where(e >= 0, right, 1 - np.exp(-np.abs(e)) * (1 - right))


@pytest.mark.parametrize(
    "curve",
    [
        Laplace(0.7),
        ApproximateDP(0.9),
        subsample(Laplace(1.2), 0.2),
        Gaussian(2.0),
        pytest.param(subsample(Gaussian(1.0), 0.3), marks=pytest.mark.slow),
    ],
    ids=["laplace", "pair", "subsampled_laplace", "gaussian", "subsampled_gaussian"],
)
def test_the_limit_has_the_moments_of_its_definition(curve):
    """Its numbers are made of moments of the logarithm of the slope, here by quadrature."""
    lower_half = np.geomspace(1e-13, 0.5, 60_001)
    upper_half = 1 - lower_half[::-1]
    alpha = np.concatenate([lower_half, upper_half[1:]])
    middle = 0.5 * (alpha[1:] + alpha[:-1])
    loss = np.log(-curve.slope(middle))
    weight = np.diff(alpha)
    mean = -np.sum(weight * loss)
    kappa2 = np.sum(weight * loss**2)
    kappa3bar = np.sum(weight * np.abs(loss + mean) ** 3)
    limit = central_limit(curve)
    assert limit.curve.mu == pytest.approx(2 * mean / np.sqrt(kappa2), rel=1e-3)
    assert limit.band_mu == pytest.approx(2 * mean / np.sqrt(kappa2 - mean**2), rel=1e-3)
    assert limit.gamma == pytest.approx(0.56 * kappa3bar / (kappa2 - mean**2) ** 1.5, rel=2e-3)


def smaller_losses(curve, times):
    """Return a curve whose losses shrink as there are more steps, where the kind allows for it."""
    if isinstance(curve, Laplace | ApproximateDP):
        return type(curve)(10 * curve.epsilon / np.sqrt(times))
    return curve


@pytest.mark.parametrize(
    "curve", [Laplace(0.1), ApproximateDP(0.2), subsample(Gaussian(1.0), 0.1)], ids=["laplace", "pair", "subsampled"]
)
def test_the_band_of_the_limit_holds_the_truth_and_closes(curve):
    """The truth is in the band around the limit, and the band is narrower with more steps."""
    alpha = np.linspace(0, 1, 101)
    last_gamma = 1.0
    for times in (100, 400, 1600):
        scaled = smaller_losses(curve, times)
        limit = central_limit(scaled, times=times)
        lower, upper = compose(scaled, times=times)
        band = limit.bounds(alpha)
        assert np.all(band.lower <= upper(alpha))
        assert np.all(lower(alpha) <= band.upper)
        distance = np.abs(lower(alpha) - Gaussian(limit.band_mu)(alpha))
        assert np.max(distance) <= limit.gamma
        assert limit.gamma < 0.6 * last_gamma
        last_gamma = limit.gamma
    assert limit.curve.mu == pytest.approx(limit.band_mu, rel=0.02)


test_bad_input = refusals(
    (lambda: compose(Laplace([1.0, 2.0]), times=2), "one curve at a time"),
    (lambda: jax.jit(lambda e: compose(Laplace(e), times=2).lower(0.1))(1.0), "is numeric: give one curve"),
    (lambda: central_limit(one_direction(Gaussian(1.0), 0.1), times=9), "a limit theorem needs a symmetric curve"),
    (lambda: central_limit(ApproximateDP(1.0, 0.1), times=9), "infinite moments"),
    (lambda: central_limit(Identity(), times=9), "no curve has any privacy loss"),
    (lambda: central_limit(group(ApproximateDP(0.5), 2), times=9), "not known precisely enough"),
    (lambda: jax.jit(lambda e: central_limit(Laplace(e)).gamma)(1.0), "takes one curve at a time"),
)
