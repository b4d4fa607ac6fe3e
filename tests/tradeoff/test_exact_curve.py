"""Closed forms of `compose`: one kind of answer, certified against fifty digits."""

import functools

import jax
import mpmath
import numpy as np
import pytest
import scipy

from gdpjax.tradeoff import ApproximateDP, ExactCurve, Gaussian, Identity, Laplace, compose
from tests.tradeoff.dominating import dominating_mu

MUS = [0.1 * k for k in range(1, 30)]
ALPHA = np.array([0.0, 1e-200, 1e-30, 1e-9, 0.01, 0.2, 0.5, 0.77, 0.999999, 1.0])
DELTA = np.array([1e-250, 1e-20, 1e-9, 1e-5, 0.01, 0.3, 0.9])
EPSILON = np.array([0.0, 1e-12, 1e-3, 0.4, 1.0, 3.0, 20.0, 650.0])


class TrueGaussian:
    """The composition of Gaussian mechanisms."""

    def __init__(self, *mus):
        self.mu = mpmath.sqrt(sum(mpmath.mpf(mu) ** 2 for mu in mus))

    def delta(self, epsilon):
        x = epsilon / self.mu
        return mpmath.ncdf(self.mu / 2 - x) - mpmath.exp(epsilon) * mpmath.ncdf(-self.mu / 2 - x)

    def error(self, alpha):
        if alpha in (0, 1):
            return 1 - alpha
        # The quantile by Newton's method, from float64.
        x = mpmath.mpf(float(scipy.special.ndtri(float(alpha))))
        for _ in range(6):
            x -= (mpmath.ncdf(x) - alpha) / mpmath.npdf(x)
        return mpmath.ncdf(-x - self.mu)


class TrueLaplace:
    """The Laplace mechanism."""

    def __init__(self, theta):
        self.theta = mpmath.mpf(theta)

    def delta(self, epsilon):
        return -mpmath.expm1((epsilon - self.theta) / 2) if epsilon < self.theta else mpmath.mpf(0)

    def error(self, alpha):
        if alpha < mpmath.exp(-self.theta) / 2:
            return 1 - mpmath.exp(self.theta) * alpha
        if alpha <= 0.5:
            return mpmath.exp(-self.theta) / (4 * alpha)
        return mpmath.exp(-self.theta) * (1 - alpha)


class TruePairs:
    """n coins of log odds e, and the events of probability d that give everything away."""

    def __init__(self, e, ds):
        e, n = mpmath.mpf(e), len(ds)
        self.rest = mpmath.fprod(1 - mpmath.mpf(d) for d in ds)
        likely = 1 / (1 + mpmath.exp(-e))
        rare = 1 / (1 + mpmath.exp(e))
        # The laws of how many coins show the likely side, from the most telling outcome on.
        self.null = []
        self.alternative = []
        for count in range(n, -1, -1):
            ways = mpmath.binomial(n, count)
            self.null.append(ways * rare**count * likely ** (n - count))
            self.alternative.append(ways * likely**count * rare ** (n - count))

    def delta(self, epsilon):
        factor = mpmath.exp(epsilon)
        total = mpmath.mpf(0)
        for null, alternative in zip(self.null, self.alternative, strict=True):
            total += max(alternative - factor * null, 0)
        return 1 - self.rest + self.rest * total

    def error(self, alpha):
        left, beta = mpmath.mpf(alpha), self.rest
        if left >= self.rest:
            return mpmath.mpf(0)
        for null, alternative in zip(self.null, self.alternative, strict=True):
            share = min(mpmath.mpf(1), left / (self.rest * null))
            beta -= share * self.rest * alternative
            left -= share * self.rest * null
            if left <= 0:
                break
        return max(beta, mpmath.mpf(0))


def coins(e, d, times):
    """Return the certified curve of equal pairs, and what makes their true one."""
    return compose(ApproximateDP(e, d), times=times), functools.partial(TruePairs, e, [d] * times)


# The certified curves, and what makes the true ones with the digits that mpmath then works with.
CASES = {
    "Gaussian": (compose(Gaussian(1.0)), functools.partial(TrueGaussian, 1.0)),
    "Gaussians": (compose(*[Gaussian(mu) for mu in MUS]), functools.partial(TrueGaussian, *MUS)),
    "little": (compose(Gaussian(1e-6), times=9), functools.partial(TrueGaussian, *[1e-6] * 9)),
    "much": (compose(Gaussian(30.0), Gaussian(40.0)), functools.partial(TrueGaussian, 30.0, 40.0)),
    "Laplace": (compose(Laplace(1.3)), functools.partial(TrueLaplace, 1.3)),
    "much Laplace": (compose(Laplace(705.0)), functools.partial(TrueLaplace, 705.0)),
    "pair": coins(0.8, 1e-5, 1),
    "coin": coins(15.0, 0.0, 1),
    "events": (
        compose(ApproximateDP(0.0, 1e-6), ApproximateDP(0.0, 0.01)),
        functools.partial(TruePairs, 0.0, [1e-6, 0.01]),
    ),
    "coins": coins(0.3, 0.0, 40),
    "many coins": coins(0.02, 1e-8, 300),
    "pairs": (
        compose(ApproximateDP(0.3, 0.01), ApproximateDP(0.3, 1e-6), ApproximateDP(0.3)),
        functools.partial(TruePairs, 0.3, [0.01, 1e-6, 0.0]),
    ),
}


def assert_around(bounds, points, true_value, relative, absolute=3e-15):
    """Assert that narrow brackets, one for each point, hold the true values."""
    for lower, upper, point in zip(*bounds, points, strict=True):
        true = true_value(mpmath.mpf(point))
        assert mpmath.mpf(lower) <= true <= mpmath.mpf(upper)
        assert upper - lower <= relative * upper + absolute


@pytest.mark.parametrize("name", CASES)
def test_every_answer_holds_the_truth_of_fifty_digits(name):
    """delta, beta and epsilon are bracketed, and the brackets are narrow."""
    curve, make_truth = CASES[name]
    assert isinstance(curve, ExactCurve)
    with mpmath.workdps(400):
        truth = make_truth()
        assert_around(curve.delta(EPSILON), EPSILON, truth.delta, 1e-9)
        assert_around(curve.tradeoff(ALPHA), ALPHA, truth.error, 1e-8)
        for lower, upper, delta in zip(*curve.epsilon(DELTA), DELTA, strict=True):
            # delta falls with epsilon: it is still above the target at the lower end, and no longer at the upper one.
            assert lower == 0 or truth.delta(min(mpmath.mpf(lower), 10**6)) > delta
            assert upper == np.inf or truth.delta(mpmath.mpf(upper)) <= delta
            if delta >= 1e-9 and np.isfinite(upper):
                relative = 1e-4 if upper < 700 else 2e-2
                assert upper - lower <= relative * upper + 1e-9


def test_mu_is_that_of_gaussians():
    """It is known to the last digits, and exactly without a failure probability."""
    lower, upper = compose(Gaussian(3.0), Gaussian(4.0)).mu()
    assert 5 * (1 - 1e-4) < lower <= 5 <= upper < 5 * (1 + 1e-13)
    assert tuple(compose(Gaussian(1.0)).mu(0.0)) == (1.0, 1.0)
    assert tuple(compose(Identity()).mu()) == (0.0, 0.0)


@pytest.mark.parametrize(
    "curve",
    [compose(Laplace(1.3)), compose(ApproximateDP(0.8, 1e-12)), compose(ApproximateDP(0.3), times=40)],
    ids=["laplace", "pair", "coins"],
)
def test_mu_of_other_kinds_holds_the_statement(curve):
    """The bracket is next to the mu that dominates the curve."""
    lower, upper = curve.mu()
    best = dominating_mu(curve, 1e-10)
    assert lower <= best * (1 + 1e-6)
    assert best * (1 - 1e-5) <= upper <= best * (1 + 1e-6)


def test_inside_compiled_code_there_is_no_bracket():
    """The exact curve may be traced, but not its certified answers."""
    inside = jax.jit(lambda mu: compose(Gaussian(mu), Gaussian(4.0)))(3.0)
    assert float(inside.exact.mu) == 5.0
    with pytest.raises(ValueError, match="outside compiled code"):
        jax.jit(lambda mu: compose(Gaussian(mu)).delta(1.0).upper)(3.0)
