"""What `compose` returns in closed form: one kind of answer, certified against fifty digits."""

import jax
import mpmath
import numpy as np
import pytest
import scipy

from gdpjax import report, tradeoff
from gdpjax.plotting import tradeoff_curves
from gdpjax.tradeoff import (
    ApproximateDP,
    CertifiedCurve,
    CurveBounds,
    ExactCurve,
    Gaussian,
    Identity,
    Laplace,
    PiecewiseLinear,
    compose,
    mixture,
)

MUS = [0.1 * k for k in range(1, 30)]
ALPHA = np.array([0.0, 1e-200, 1e-30, 1e-9, 0.01, 0.2, 0.5, 0.77, 0.999999, 1.0])
DELTA = np.array([1e-250, 1e-20, 1e-9, 1e-5, 0.01, 0.3, 0.9])
EPSILON = np.array([0.0, 1e-12, 1e-3, 0.4, 1.0, 3.0, 20.0, 650.0])


class TrueGaussian:
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
        self.e, self.n = mpmath.mpf(e), len(ds)
        self.rest = mpmath.fprod(1 - mpmath.mpf(d) for d in ds)
        p, q = 1 / (1 + mpmath.exp(-self.e)), 1 / (1 + mpmath.exp(self.e))
        weights = [mpmath.binomial(self.n, j) for j in range(self.n + 1)]
        self.null = [w * q**j * p ** (self.n - j) for j, w in enumerate(weights)][::-1]
        self.alternative = [w * p**j * q ** (self.n - j) for j, w in enumerate(weights)][::-1]

    def delta(self, epsilon):
        gaps = [a - mpmath.exp(epsilon) * n for a, n in zip(self.alternative, self.null, strict=True)]
        return 1 - self.rest + self.rest * sum(gap for gap in gaps if gap > 0)

    def error(self, alpha):
        left, beta = mpmath.mpf(alpha), self.rest
        if left >= self.rest:
            return mpmath.mpf(0)
        for n, a in zip(self.null, self.alternative, strict=True):
            share = min(mpmath.mpf(1), left / (self.rest * n))
            beta -= share * self.rest * a
            left -= share * self.rest * n
            if left <= 0:
                break
        return max(beta, mpmath.mpf(0))


CASES = {
    "Gaussian": (lambda: compose(Gaussian(1.0)), lambda: TrueGaussian(1.0)),
    "Gaussians": (lambda: compose(*[Gaussian(mu) for mu in MUS]), lambda: TrueGaussian(*MUS)),
    "little": (lambda: compose(Gaussian(1e-6), times=9), lambda: TrueGaussian(*[1e-6] * 9)),
    "much": (lambda: compose(Gaussian(30.0), Gaussian(40.0)), lambda: TrueGaussian(30.0, 40.0)),
    "Laplace": (lambda: compose(Laplace(1.3)), lambda: TrueLaplace(1.3)),
    "much Laplace": (lambda: compose(Laplace(705.0)), lambda: TrueLaplace(705.0)),
    "pair": (lambda: compose(ApproximateDP(0.8, 1e-5)), lambda: TruePairs(0.8, [1e-5])),
    "coin": (lambda: compose(ApproximateDP(15.0)), lambda: TruePairs(15.0, [0.0])),
    "events": (
        lambda: compose(ApproximateDP(0.0, 1e-6), ApproximateDP(0.0, 0.01)),
        lambda: TruePairs(0.0, [1e-6, 0.01]),
    ),
    "coins": (lambda: compose(ApproximateDP(0.3), times=40), lambda: TruePairs(0.3, [0.0] * 40)),
    "many coins": (lambda: compose(ApproximateDP(0.02, 1e-8), times=600), lambda: TruePairs(0.02, [1e-8] * 600)),
    "pairs": (
        lambda: compose(ApproximateDP(0.3, 0.01), ApproximateDP(0.3, 1e-6), ApproximateDP(0.3)),
        lambda: TruePairs(0.3, [0.01, 1e-6, 0.0]),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_every_answer_holds_the_truth_of_fifty_digits(name):
    make, make_truth = CASES[name]
    curve = make()
    assert isinstance(curve, ExactCurve)
    with mpmath.workdps(400):
        truth = make_truth()
        for lower, upper, at in zip(*curve.delta(EPSILON), EPSILON, strict=True):
            true = truth.delta(mpmath.mpf(at))
            assert mpmath.mpf(lower) <= true <= mpmath.mpf(upper)
            assert upper - lower <= 1e-9 * upper + 3e-15
        for lower, upper, at in zip(*curve.tradeoff(ALPHA), ALPHA, strict=True):
            true = truth.error(mpmath.mpf(at))
            assert mpmath.mpf(lower) <= true <= mpmath.mpf(upper)
            assert upper - lower <= 1e-8 * upper + 3e-15
        for lower, upper, at in zip(*curve.epsilon(DELTA), DELTA, strict=True):
            assert lower == 0 or truth.delta(min(mpmath.mpf(lower), 10**6)) > at
            assert upper == np.inf or truth.delta(mpmath.mpf(upper)) <= at
            if at >= 1e-9 and np.isfinite(upper):
                assert upper - lower <= (1e-4 if upper < 700 else 2e-2) * upper + 1e-9


def test_mu_is_that_of_gaussians_and_otherwise_holds_the_statement():
    lower, upper = compose(Gaussian(3.0), Gaussian(4.0)).mu()
    assert 5 * (1 - 1e-4) < lower <= 5 <= upper < 5 * (1 + 1e-13)
    assert tuple(compose(Gaussian(1.0)).mu(0.0)) == (1.0, 1.0)
    for curve in (compose(Laplace(1.3)), compose(ApproximateDP(0.8, 1e-12)), compose(ApproximateDP(0.3), times=40)):
        lower, upper = curve.mu()
        best = tradeoff.dominating_mu(curve, 1e-10)
        assert lower <= best * (1 + 1e-6)
        assert best * (1 - 1e-5) <= upper <= best * (1 + 1e-6)
    assert compose(ApproximateDP(0.8, 1e-5)).mu().upper == np.inf
    assert tuple(compose(Identity()).mu()) == (0.0, 0.0)


def test_single_curves_of_other_kinds():
    curve = compose(mixture(Gaussian(1.0), 0.3))
    for bounds, exact in (
        (curve.epsilon(1e-5), tradeoff.epsilon(curve, 1e-5)),
        (curve.delta(0.5), tradeoff.delta(curve, 0.5)),
        (curve.tradeoff(0.1), curve(0.1)),
    ):
        assert bounds.lower <= exact <= bounds.upper < bounds.lower * (1 + 1e-3)
    points = PiecewiseLinear([0.0, 0.3, 1.0], [1.0, 0.3, 0.0])
    lower, upper = compose(points).tradeoff(0.1)
    assert lower <= points(0.1) <= upper < lower + 1e-12


def test_one_kind_of_thing():
    """Closed or not: it unpacks into two curves, it answers, and report and plots take it."""
    for curve in (compose(Gaussian(1.0), Gaussian(2.0)), compose(Laplace(0.5), times=8)):
        assert isinstance(curve, CertifiedCurve)
        lower, upper = curve
        assert lower(0.1) <= upper(0.1)
        assert curve.lower is lower
        assert isinstance(curve, ExactCurve | CurveBounds)
        card = report(curve, deltas=[1e-5])
        assert card.figure("epsilon_at_delta_1e-05") == tuple(curve.epsilon(1e-5))
        assert tradeoff_curves(curve, delta=1e-5).epsilon == tuple(curve.epsilon(1e-5))
    assert curve.regret().upper < 0.05


def test_an_exact_curve_stands_where_a_curve_does():
    curve = compose(Gaussian(3.0), Gaussian(4.0))
    assert compose(curve, Gaussian(12.0)).exact.mu == 13.0
    assert tradeoff.group(curve, 2).mu == 10.0
    assert tradeoff.symmetrize(curve).mu == tradeoff.parallel(curve, Gaussian(1.0)).mu == 5.0
    assert tradeoff.epsilon(curve, 1e-5) == tradeoff.epsilon(Gaussian(5.0), 1e-5)
    assert tradeoff.kl(curve) == pytest.approx(12.5)
    assert curve.slope(0.5) == Gaussian(5.0).slope(0.5)
    assert tradeoff.dominating_mu(curve) == 5.0


def test_traced_and_many():
    inside = jax.jit(lambda mu: compose(Gaussian(mu), Gaussian(4.0)))(3.0)
    assert float(inside.exact.mu) == 5.0
    with pytest.raises(ValueError, match="outside compiled code"):
        jax.jit(lambda mu: compose(Gaussian(mu)).delta(1.0).upper)(3.0)
    many = compose(Gaussian([0.3, 3.0]), Gaussian([0.4, 4.0]))
    lower, upper = many.epsilon(1e-5)
    for k, mu in enumerate((0.5, 5.0)):
        assert lower[k] <= tradeoff.epsilon(Gaussian(mu), 1e-5) <= upper[k]
    for ask in (many.mu, many.regret):
        with pytest.raises(ValueError, match=r"one curve|one mechanism|these are many"):
            ask()
