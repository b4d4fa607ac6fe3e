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
    berry_esseen,
    biconjugate,
    central_limit,
    compose,
    delta,
    epsilon,
    from_probabilities,
    inverse,
    kappa2,
    kappa3,
    kappa3bar,
    kl,
    mixture,
    subsample,
    symmetrize,
)
from gdpjax.tradeoff._compose import _counted
from gdpjax.tradeoff._numeric import numerically

ALPHA = np.array([1e-9, 1e-5, 1e-3, 0.02, 0.1, 0.3, 0.5, 0.8, 0.97, 0.9999])


def numeric(*curves, times=1, num_cells=4096):
    """The numeric method also where there is a closed form."""
    return numerically(*_counted(list(curves), times), num_cells)


def assert_around(bounds, exact, alpha=ALPHA, width=None):
    lower, upper = bounds.lower(alpha), bounds.upper(alpha)
    assert np.all(lower <= exact * (1 + 1e-12) + 1e-15)
    assert np.all(upper >= exact * (1 - 1e-12) - 1e-15)
    if width is not None:
        np.testing.assert_allclose(upper, lower, rtol=width, atol=width * 1e-3)


def test_closed_forms():
    assert compose(Gaussian(3.0), Identity(), Gaussian(4.0)).exact.mu == 5.0
    assert compose(Gaussian(0.5), times=16).exact.mu == 2.0
    assert isinstance(compose(Identity(), Identity(), times=3).exact, Identity)
    np.testing.assert_allclose(compose(Gaussian([0.3, 3.0]), Gaussian([0.4, 4.0])).exact.mu, [0.5, 5.0])
    assert jax.jit(lambda mu: compose(Gaussian(mu), Gaussian(4.0)).exact.mu)(3.0) == 5.0
    assert jax.grad(lambda mu: compose(Gaussian(mu), Gaussian(mu)).exact.mu)(0.0) == 0
    assert isinstance(compose(mixture(Gaussian(1.0), 0.3)).exact, type(subsample(Gaussian(1.0), 0.3)))
    assert compose(ApproximateDP(0.0, 0.1), ApproximateDP(0.0, 0.2)).exact.delta == pytest.approx(0.28, rel=1e-15)


@pytest.mark.parametrize(("e", "d", "n"), [(0.1, 0.0, 60), (1.0, 0.01, 5), (0.7, 0.2, 2), (0.01, 1e-4, 1000)])
def test_identical_pairs_against_the_binomial_formula(e, d, n):
    curve = compose(ApproximateDP(e, d), times=n)
    j = np.arange(n + 1)
    for at in (0.0, 0.5 * e, e, 2.5 * e, 0.9 * n * e):
        weights = binom.pmf(j, n, np.exp(e) / (1 + np.exp(e)))
        inner = np.sum(weights * np.maximum(0, -np.expm1(at - (2 * j - n) * e)))
        assert delta(curve, at) == pytest.approx(1 - (1 - d) ** n * (1 - inner), rel=1e-9, abs=2e-15)
    assert curve.is_symmetric()
    assert_around(numeric(ApproximateDP(e, d), times=n), curve(ALPHA), width=5e-3)
    mixed = compose(*[ApproximateDP(e, d)] * (n - 1), ApproximateDP(e, 0.5))  # one epsilon, several deltas
    assert mixed(0.0) == pytest.approx((1 - d) ** (n - 1) * 0.5, rel=1e-12)


def test_pairs_with_a_tiny_delta_keep_it_and_no_epsilon_is_too_small():
    assert compose(ApproximateDP(0.0, 1e-17), times=10_000).exact.delta == pytest.approx(1e-13, rel=1e-12)
    curve = compose(ApproximateDP(0.1), times=1000)  # the largest losses have mass far below 1e-16
    for d, exact in ((1e-6, 19.344671447993278), (1e-15, 29.354668980334964), (1e-20, 33.44120934085879), (0.0, 100.0)):
        assert epsilon(curve, d) >= exact
    assert epsilon(curve, 1e-6) == pytest.approx(19.344671447993278, rel=1e-9)


def test_nearly_symmetric_polygons_are_certified_in_both_orders():
    """1e-10 that only the null has: symmetric as curves go, but 1e-6 of the other order after 10,000 steps."""
    lost, p = 1e-10, 1 / (1 + np.exp(-0.01))
    curve = from_probabilities([lost, (1 - lost) * p, (1 - lost) * (1 - p)], [0.0, 1 - p, p])
    assert curve.is_symmetric()
    bounds = compose(curve, times=10_000, num_cells=1024)
    assert delta(bounds.lower, 8.0) >= -np.expm1(10_000 * np.log(curve.alpha[-2]))


def test_extreme_spacings():
    for curve in (ApproximateDP(1e-20), Laplace(1e-200), mixture(Gaussian(1.0), 1e-250)):
        assert_around(compose(curve, Laplace(0.5)), Laplace(0.5)(ALPHA), width=1e-6)
    wide = compose(mixture(Gaussian(24.0), 0.5), times=10_000, num_cells=64)  # spacings above 709
    assert wide.lower(0.5) <= wide.upper(0.5) < 1e-100


@pytest.mark.parametrize(
    ("mu", "times"), [(1.0, 1), (1.0, 4), (0.1, 100), (0.01, 10_000), (0.001, 1_000_000), (6.0, 2), (3.0, 30)]
)
def test_gaussians_numerically(mu, times):
    exact = Gaussian(mu * np.sqrt(times))(ALPHA)
    assert_around(numeric(Gaussian(mu), times=times), exact, width=2e-3)


def test_mixed_kinds_against_exact_products():
    """A discrete approximation cannot be exact for smooth curves, but a product of polygons is a polygon."""
    rng = np.random.default_rng(5)
    for _ in range(6):
        laws = [(rng.dirichlet(np.ones(4)), rng.dirichlet(np.ones(4))) for _ in range(3)]
        laws.append((np.array([0.5, 0.5, 0.0]), np.array([0.2, 0.5, 0.3])))  # an outcome impossible under the null
        null, alternative = (np.einsum("a,b,c,d->abcd", *(law[i] for law in laws)).ravel() for i in (0, 1))
        exact = symmetrize(from_probabilities(null / null.sum(), alternative / alternative.sum()))
        bounds = compose(*(from_probabilities(*law) for law in laws))
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
    bounds = compose(mixture(Gaussian(1 / sigma), p), Identity(), times=steps)
    if steps == 1:
        bounds = numeric(mixture(Gaussian(1 / sigma), p))
        assert_around(bounds, subsample(Gaussian(1 / sigma), p)(ALPHA), width=1e-3)
    other = accounting.tradeoff_bounds(sigma, p, steps, ALPHA)
    assert np.all(bounds.lower(ALPHA) <= other.upper)
    assert np.all(other.lower <= bounds.upper(ALPHA))
    theirs = accounting.epsilon_bounds(sigma, p, steps, 1e-5)
    ours = epsilon(bounds.upper, 1e-5), epsilon(bounds.lower, 1e-5)
    assert ours[0] <= theirs.upper
    assert theirs.lower <= ours[1]
    assert ours[1] < 1.005 * ours[0]


def test_asymmetric_curves_are_composed_per_direction():
    """Trap 37: composing the symmetrised curve is valid but loose."""
    tight = compose(mixture(Gaussian(1 / 1.3), 0.01), times=1000)
    loose = compose(subsample(Gaussian(1 / 1.3), 0.01), times=1000)
    assert np.all(loose.lower(ALPHA) <= tight.upper(ALPHA))
    assert epsilon(loose.upper, 1e-5) > 1.15 * epsilon(tight.lower, 1e-5)
    back = compose(inverse(mixture(Gaussian(1 / 1.3), 0.01)), times=1000)
    np.testing.assert_allclose(back.lower(ALPHA), tight.lower(ALPHA), rtol=2e-3)


@pytest.mark.parametrize(
    "curve",
    [biconjugate(Gaussian(0.5), Laplace(0.6)), subsample(Laplace(1.0), 0.2), Laplace(0.5)],
    ids=["hull", "subsampled_laplace", "laplace"],
)
def test_any_curve_between_its_polygons(curve):
    assert_around(numeric(curve), curve(ALPHA), width=4e-3)
    twice, split = compose(curve, times=4), compose(curve, curve, times=2)
    np.testing.assert_allclose(twice.lower(ALPHA), split.lower(ALPHA), rtol=1e-12)
    assert np.all(twice.lower(ALPHA) <= twice.upper(ALPHA))
    assert np.all(compose(curve, times=5).lower(ALPHA) <= twice.upper(ALPHA))  # more is not more private


@settings(deadline=None, max_examples=6)
@given(st.floats(0.05, 2.0), st.floats(0.05, 2.0), st.integers(1, 6))
def test_laplace_and_gaussian_products_against_quadrature(theta, mu, times):
    """Laplace and Gaussian: D(e) of the product by one-dimensional quadrature over the Gaussian's loss."""
    if times > 1:
        lower, upper = compose(Laplace(theta), Gaussian(mu), times=times)
        coarse = compose(Laplace(theta), Gaussian(mu), times=times, num_cells=512)
        assert np.all(coarse.lower(ALPHA) <= upper(ALPHA) * (1 + 1e-12))
        assert np.all(lower(ALPHA) <= coarse.upper(ALPHA) * (1 + 1e-12))
        return
    bounds = compose(Laplace(theta), Gaussian(mu))
    x = np.linspace(-9.0, 9.0, 40_001)
    loss = mu * x + 0.5 * mu * mu  # the Gaussian's loss under the alternative
    density = (x[1] - x[0]) * np.exp(-0.5 * x * x) / np.sqrt(2 * np.pi)
    for e in (0.0, 0.5 * mu, 2 * mu):
        exact = np.sum(density * _laplace_profile(theta, e - loss))
        assert delta(bounds.upper, e) <= exact + 1e-6
        assert delta(bounds.lower, e) >= exact - 1e-6
        assert delta(bounds.lower, e) <= delta(bounds.upper, e) * 1.002 + 1e-9


def _laplace_profile(theta, e):
    right = -np.expm1(0.5 * (np.minimum(np.abs(e), theta) - theta))
    return np.where(e >= 0, right, 1 - np.exp(np.minimum(e, 0)) * (1 - right))


def test_functionals_against_quadrature_of_the_definition():
    curves = [
        Laplace(0.7),
        ApproximateDP(0.9),
        subsample(Gaussian(1.0), 0.3),
        subsample(Laplace(1.2), 0.2),
        Gaussian(2.0),
    ]
    for curve in curves:
        x = np.concatenate([np.geomspace(1e-13, 0.5, 60_001), 1 - np.geomspace(0.5, 1e-13, 60_001)[1:]])
        middle = 0.5 * (x[1:] + x[:-1])
        log = np.log(-curve.slope(middle))
        weight = np.diff(x)
        mean = -np.sum(weight * log)
        assert kl(curve) == pytest.approx(mean, rel=1e-3)
        assert kappa2(curve) == pytest.approx(np.sum(weight * log**2), rel=1e-3)
        assert kappa3(curve) == pytest.approx(np.sum(weight * np.abs(log) ** 3), rel=1e-3)
        assert kappa3bar(curve) == pytest.approx(np.sum(weight * np.abs(log + mean) ** 3), rel=1e-3)


def test_functionals_in_closed_form():
    t = 0.7
    assert kl(Laplace(t)) == pytest.approx(t + np.exp(-t) - 1, rel=1e-13)
    assert kappa2(Laplace(t)) == pytest.approx(t * t - 2 * t + 4 - (2 * t + 4) * np.exp(-t), rel=1e-13)
    assert kl(ApproximateDP(t)) == pytest.approx(t * np.tanh(t / 2), rel=1e-13)
    assert kappa2(ApproximateDP(t)) == pytest.approx(t * t, rel=1e-13)
    for mu in (1e-3, 0.3, 2.0, 20.0):
        assert kl(Gaussian(mu)) == pytest.approx(mu**2 / 2, rel=1e-12)
        assert kappa2(Gaussian(mu)) == pytest.approx(mu**2 + mu**4 / 4, rel=1e-12)
        assert kappa3bar(Gaussian(mu)) == pytest.approx(2 * np.sqrt(2 / np.pi) * mu**3, rel=1e-7)
    assert kl(ApproximateDP(1.0, 0.1)) == np.inf
    assert kappa3bar(Identity()) == 0


@pytest.mark.parametrize(
    "curve", [Laplace(0.1), ApproximateDP(0.2), subsample(Gaussian(1.0), 0.1)], ids=["laplace", "pair", "subsampled"]
)
def test_berry_esseen_band_holds_the_truth_and_closes(curve):
    alpha = np.linspace(0, 1, 101)
    last = 1.0
    for times in (100, 400, 1600):
        if isinstance(curve, Laplace | ApproximateDP):  # more and smaller losses
            scaled = type(curve)(10 * curve.epsilon / np.sqrt(times))
        else:
            scaled = curve
        limit = berry_esseen(scaled, times=times)
        truth = compose(scaled, times=times)
        lower, upper = (truth, truth) if isinstance(truth, PiecewiseLinear) else truth
        band = limit.bounds(alpha)
        assert np.all(band.lower <= upper(alpha))
        assert np.all(lower(alpha) <= band.upper)
        distance = np.max(np.abs(lower(alpha) - limit.curve(alpha)))
        assert distance <= limit.gamma
        assert limit.gamma < 0.6 * last
        last = limit.gamma
    assert central_limit(scaled, times=times).curve.mu == pytest.approx(limit.curve.mu, rel=0.02)
    assert central_limit(scaled, times=times).gamma == limit.gamma


def test_limit_of_many_small_pairs():
    """n-fold randomized response with epsilon = mu / sqrt(n) tends to G_mu (CLT)."""
    limit = central_limit(ApproximateDP(1.0 / 100), times=10_000)
    assert limit.curve.mu == pytest.approx(1.0, rel=1e-4)
    alpha = np.linspace(0.05, 0.95, 19)
    np.testing.assert_allclose(compose(ApproximateDP(0.01), times=10_000)(alpha), Gaussian(1.0)(alpha), atol=0.005)
    trivial = berry_esseen(Laplace(1.0), times=2)
    assert trivial.gamma > 0.5
    np.testing.assert_array_equal(trivial.bounds(alpha).lower, 0)
    np.testing.assert_allclose(trivial.bounds(alpha).upper, 1 - alpha)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: compose(), "at least one curve"),
        (lambda: compose(Laplace(1.0), times=1.5), "times must be a whole number >= 1"),
        (lambda: compose(Laplace(1.0), times=2, num_cells=10), "num_cells must be"),
        (lambda: compose(1.0), "curve 0 must be a trade-off curve"),
        (lambda: compose(Laplace([1.0, 2.0]), times=2), "one curve at a time"),
        (lambda: jax.jit(lambda e: compose(Laplace(e), times=2).lower(0.1))(1.0), "numeric and runs on the host"),
        (lambda: berry_esseen(mixture(Gaussian(1.0), 0.1), times=9), "a limit theorem needs a symmetric curve"),
        (lambda: berry_esseen(ApproximateDP(1.0, 0.1), times=9), "infinite moments"),
        (lambda: berry_esseen(Identity(), times=9), "no curve has any privacy loss"),
        (lambda: berry_esseen(biconjugate(Gaussian(1.0), Laplace(1.2)), times=9), "not known precisely enough"),
        (lambda: jax.jit(lambda e: kl(Laplace(e)))(1.0), "computed on the host"),
        (lambda: kl(Laplace([1.0, 2.0])), "takes one curve"),
    ],
)  # fmt: skip
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call()
