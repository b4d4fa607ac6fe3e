"""The trade-off curve of a run, bracketed at given alpha.

The curve is f = min(f_rem, f_add)**, the convex symmetric curve that both directions obey; f_add is f_rem inverted.
With D(e) = max of the two deltas, f is the supremum of the curves of all (e, D(e)):

    f(alpha) = sup_{e >= 0} max(1 - D(e) - e^e alpha, e^{-e} (1 - D(e) - alpha)).

*Lower bound*: any e, with an upper bound on D(e).  *Upper bound*: explicit tests. The test L + eta N > e of the
direction "remove" (which never rejects on outcomes that were cut) has errors a(e) = Q(L + eta N > e) and
b(e) = 1 - P(L + eta N > e). So f(a) <= b and, exchanging the hypotheses, f(b) <= a; f is non-increasing and convex. An
upper bound on a is its trapezoid sum as it stands, since aliases are positive; an upper bound on b needs a lower bound
on P(L + eta N > e), whose aliases are at most 1 and at most e^{K(t) + eta^2 t^2 / 2 - t e}.

Three e are used: where the test's a is alpha, where its b is alpha (mirrored), and e = 0, between whose two points (a,
b), (b, a) the curve lies below the chord. Saddle-point formulas propose the first two, the test's own errors correct
them, and the lower bound is taken at the same e.
"""

import numpy as np

from gdpjax._core.types import Array, Bounds
from gdpjax.accounting._numeric import _characteristic_function, _contour, _contour_choice, _directions
from gdpjax.accounting._numeric._characteristic_function import Contour, Transform
from gdpjax.accounting._numeric._contour import Sums
from gdpjax.accounting._numeric._contour_choice import CoarseMeasure
from gdpjax.accounting._numeric._run_description import Run

_WIDTH = 2e-3
_TINY = 2.3e-308  # what underflows to zero is positive
_LOG_S = (np.log(1e-7), np.log(1e10))
_WHERE_A, _WHERE_B, _AT_ZERO = range(3)


def complement(alpha: Array) -> Bounds:
    """The curve 1 - alpha of a run that reveals nothing: one number where it is a float, else the two around it."""
    value = 1.0 - np.asarray(alpha, np.float64)
    is_exact = 1.0 - value == alpha
    lower = np.where(is_exact, value, np.nextafter(value, 0.0))
    upper = np.where(is_exact, value, np.minimum(np.nextafter(value, 2.0), 1.0))
    return Bounds(lower[()], upper[()])


def tradeoff_of_run(run: Run, alpha: float) -> Bounds:
    """The bracket on f(alpha), 0 < alpha < 1, of a run."""
    run = run.towards(1.0)
    coarse = _contour_choice.coarse_run(run, _contour_choice.choose_windows(run, -60.0))
    highest, lowest = 1.0, 0.0
    for kind in (_WHERE_A, _WHERE_B, _AT_ZERO):
        start = 0.0 if kind == _AT_ZERO else max(_threshold(coarse, alpha, kind), 0.0)
        log_delta = min(max(_contour_choice.guess_log_delta(run, start), -600.0), -1e-9)
        upper, epsilon = _test(run, start, log_delta, alpha, kind)
        highest = np.fmin(highest, upper)
        # The slope of f at alpha is about -e^epsilon there.
        epsilon = max(epsilon, 0.0) if upper < 1.0 else start
        delta = np.exp(_directions.log_delta_of_run(run, epsilon, _WIDTH).upper)
        rest = 1.0 - delta * (1.0 + 1e-12)
        growth = np.exp(min(epsilon, 700.0))
        lowest = np.fmax(lowest, max(rest - growth * alpha, (rest - alpha) / growth) - 1e-15)
    return Bounds(max(lowest, 0.0), min(highest * (1.0 + 1e-12) + _TINY, complement(alpha).upper))


def _threshold(coarse: CoarseMeasure, alpha: float, kind: int) -> float:
    """Roughly the e with Q(L > e) = alpha (kind 0) or P(L <= e) = alpha (kind 1), from the saddle-point formulas.

    A tail probability is e^{K(t) - side s e} / (s sqrt(2 pi (K'' + s^-2))) on the line K'(t) = e + side / s, s > 0;
    side is 1 for an upper tail and -1 for a lower one, and t = side s under P, side s - 1 under Q. The smaller tail
    is used, where the formula is accurate.
    """
    side = 1.0 if (kind == _WHERE_A) == (alpha < 0.5) else -1.0
    goal = np.log(min(alpha, 1.0 - alpha))

    def point(s: float) -> tuple[float, float]:
        k, k1, k2 = coarse.cumulants(side * s - 1.0 if kind == _WHERE_A else side * s)
        e = k1 - side / s
        return e, k - side * s * e - np.log(s) - 0.5 * np.log(2.0 * np.pi * (k2 + s**-2))

    low, high = _LOG_S
    for _ in range(24):
        middle = 0.5 * (low + high)
        if point(np.exp(middle))[1] > goal:
            low = middle
        else:
            high = middle
    return point(np.exp(0.5 * (low + high)))[0]


def _test(run: Run, epsilon: float, log_delta: float, alpha: float, kind: int) -> tuple[float, float]:
    """An upper bound on f(alpha) from the test at a threshold near ``epsilon`` (1 if none is found), and that."""
    windows = _contour_choice.choose_windows(run, log_delta)
    plan = _contour_choice.make_plan(
        run, windows, _contour_choice.coarse_run(run, windows), epsilon, log_delta, _WIDTH, of_delta=True
    )
    data = _characteristic_function.transform(run, windows, plan.contour)
    sums = _contour.make_sums(("reject_q", "reject_p"), data, plan.contour, epsilon)

    shift = 0.0
    if kind != _AT_ZERO:
        high = 0.3 * plan.contour.period
        low = -high
        for _ in range(30):
            middle = 0.5 * (low + high)
            a, b = _errors(data, plan.contour, sums, epsilon, middle)
            if a > alpha if kind == _WHERE_A else b < alpha:  # a falls and b rises with the threshold
                low = middle
            else:
                high = middle
        shift = high if kind == _WHERE_A else low

    a, b = _errors(data, plan.contour, sums, epsilon, shift)
    best = 1.0
    if a <= alpha:
        best = min(best, b)
    if b <= alpha:
        best = min(best, a)
    if a <= alpha <= b:
        best = min(best, a + (b - alpha))  # b - alpha is exact where it is small
    return best, epsilon + shift


def _errors(data: Transform, contour: Contour, sums: Sums, epsilon: float, shift: float) -> tuple[float, float]:
    """Certified upper bounds on the two errors of the test at threshold epsilon + shift."""
    value, _ = _contour.evaluate(sums, shift)
    e = epsilon + shift
    above = _contour.log_scale(data, contour, e, 1.0)
    below = _contour.log_scale(data, contour, e, -1.0)
    a = np.exp(above - e) * (max(value[0], 0.0) + sums.error[0])
    power = np.exp(below) * max(value[1] - sums.error[1], 0.0) - np.exp(_log_alias(data, contour, e))
    a, b = a * (1.0 + 1e-12), 1.0 - power * (1.0 - 1e-12)
    # What is not known says nothing.
    return np.fmin(max(a, 0.0), 1.0), np.fmin(max(b, 0.0), 1.0)


def _log_alias(data: Transform, contour: Contour, e: float) -> float:
    """As `_contour.log_alias`, for P(L + eta N > .), which is at most 1 and at most e^{K + eta^2 t^2 / 2 - t e}."""
    theta, period = contour.theta, contour.period

    def side(t: float, log_k: float) -> float:
        return log_k + 0.5 * (contour.eta * t) ** 2 - t * e + _contour.log_geometric(abs(theta - t) * period)

    left = min(_contour.log_geometric(theta * period), side(contour.below, data.log_below))
    return np.logaddexp(left, side(contour.above, data.log_above)) + 1e-9
