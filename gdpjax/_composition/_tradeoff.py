"""Bracket the trade-off curve of a run at given alpha, and the smallest mu that a run has.

The curve is f = min(f_rem, f_add)**, the convex symmetric curve that both directions obey; f_add is f_rem inverted.
With D(e) = max of the two deltas, f is the supremum of the curves of all (e, D(e)):

    f(alpha) = sup_{e >= 0} max(1 - D(e) - e^e alpha, e^{-e} (1 - D(e) - alpha)).

*Lower bound*: any e, with an upper bound on D(e).

*Upper bound*: explicit tests. The test L + eta N > e of the direction "remove" (which never rejects on outcomes that
were cut) has the errors a(e) = Q(L + eta N > e) and b(e) = 1 - P(L + eta N > e). So f(a) <= b and, exchanging the
hypotheses, f(b) <= a; f is non-increasing and convex. An upper bound on a is its trapezoid sum as it stands, since
aliases are positive. An upper bound on b needs a lower bound on P(L + eta N > e), whose aliases are at most 1 and at
most e^{K(t) + eta^2 t^2 / 2 - t e}.

Three e are used (`_Place`): where the test's a is alpha, where its b is alpha (mirrored), and e = 0, between whose two
points (a, b), (b, a) the curve lies below the chord. Saddle-point formulas propose the first two, the test's own errors
correct them, and the lower bound is taken at the same e.

**The smallest mu** with f >= G_mu (x) f_{0, failure}: mu-GDP but for a failure probability d. The statement says that
delta(e) <= R_mu(e) := d + (1 - d) delta_mu(e) for all e >= 0. (Without d the answer is sqrt(T) / sigma whatever the
sampling: in the extreme tail subsampling buys nothing.)

Both ends come from brackets on delta at a grid 0 = e_0 < ... < e_n, where e_n has a certified delta(e_n) <= d
(`gdpjax._core.dominating`).
"""

import enum
from typing import NamedTuple

import numpy as np

from gdpjax._composition import _characteristic_function, _contour, _contour_choice, _directions
from gdpjax._composition._characteristic_function import Contour, RunOnLine
from gdpjax._composition._contour import TrapezoidSums
from gdpjax._composition._contour_choice import CoarseMeasure
from gdpjax._composition._run_description import RunDescription, trivial_mu
from gdpjax._core.dominating import mu_from_deltas
from gdpjax._core.roots import bisect_on_host
from gdpjax._core.types import Array, Bounds

_WIDTH = 2e-3
"""The relative width that brackets on delta aim at."""
_COARSE_LOG_DELTA = -60.0
"""The windows of the saddle-point formulas are made for this."""
_LOWEST_LOG_DELTA, _HIGHEST_LOG_DELTA = -600.0, -1e-9
_LARGEST_EXPONENT = 700.0
_TINY = 2.3e-308  # what underflows to zero is positive
_ROUNDING = 1e-12

_LOG_LEAST_S, _LOG_LARGEST_S = np.log(1e-7), np.log(1e10)
_NUM_GUESS_BISECTIONS = 24
_NUM_TEST_BISECTIONS = 30

_NUM_INTERVALS = 96
_SHARING = 6
"""How many neighbouring points of the grid share a contour."""
_MU_DELTA_WIDTH = 3e-3
"""The relative width that brackets on delta aim at."""


class _Place(enum.Enum):
    """The place of the threshold of a test."""

    A_IS_ALPHA = enum.auto()
    B_IS_ALPHA = enum.auto()
    ZERO = enum.auto()


def complement(alpha: Array) -> Bounds:
    """Return the curve 1 - alpha of a run that reveals nothing: one number where it is a float, else its neighbours."""
    value = 1.0 - np.asarray(alpha, np.float64)
    is_exact = 1.0 - value == alpha
    below = np.nextafter(value, 0.0)
    above = np.minimum(np.nextafter(value, 2.0), 1.0)
    lower = np.where(is_exact, value, below)
    upper = np.where(is_exact, value, above)
    return Bounds(lower[()], upper[()])


def tradeoff_of_run(run: RunDescription, alpha: float) -> Bounds:
    """Return the bracket on f(alpha) of a run, 0 < alpha < 1."""
    run = run.towards(1.0)
    windows = _contour_choice.choose_windows(run, _COARSE_LOG_DELTA)
    coarse = _contour_choice.coarse_run(run, windows)
    lowest, highest = 0.0, 1.0
    for place in _Place:
        # A test near the threshold that the saddle-point formulas propose.
        start = 0.0
        if place != _Place.ZERO:
            start = max(_guess_threshold(coarse, alpha, place), 0.0)
        log_delta = _contour_choice.guess_log_delta(run, start)
        log_delta = min(max(log_delta, _LOWEST_LOG_DELTA), _HIGHEST_LOG_DELTA)
        upper, epsilon = _bound_by_test(run, start, log_delta, alpha, place)
        highest = np.fmin(highest, upper)

        # The slope of f at alpha is about -e^epsilon there.
        epsilon = max(epsilon, 0.0) if upper < 1.0 else start
        lowest = np.fmax(lowest, _bound_by_delta(run, epsilon, alpha))
    highest = highest * (1.0 + _ROUNDING) + _TINY
    upper = min(highest, complement(alpha).upper)
    return Bounds(max(lowest, 0.0), upper)


def _bound_by_delta(run: RunDescription, epsilon: float, alpha: float) -> float:
    """Return the lower bound on f(alpha) by an upper bound on delta(epsilon)."""
    delta = _directions.deltas_of_run(run, np.array([epsilon]), width=_WIDTH)
    rest = 1.0 - delta.upper[0]
    growth = np.exp(min(epsilon, _LARGEST_EXPONENT))
    line = rest - growth * alpha
    mirrored_line = (rest - alpha) / growth
    return max(line, mirrored_line) - 1e-15


# ---------------------------------------------------------------------------------------------------------------------
# The threshold, roughly.


class _Tail(NamedTuple):
    """A threshold e, and log of the tail probability beyond it."""

    threshold: float
    log_prob: float


def _guess_threshold(coarse: CoarseMeasure, alpha: float, place: _Place) -> float:
    """Return roughly the e with Q(L > e) = alpha or P(L <= e) = alpha, from the saddle-point formulas.

    The smaller tail is used, where the formula is accurate.
    """
    is_under_q = place == _Place.A_IS_ALPHA
    side = 1.0 if is_under_q == (alpha < 0.5) else -1.0
    goal = np.log(min(alpha, 1.0 - alpha))

    def is_too_likely(log_s: float) -> bool:
        tail = _tail(coarse, np.exp(log_s), side, is_under_q)
        return bool(tail.log_prob > goal)

    low, high = bisect_on_host(
        is_too_likely,
        holds=_LOG_LEAST_S,
        fails=_LOG_LARGEST_S,
        num_iterations=_NUM_GUESS_BISECTIONS,
    )
    log_s = float(0.5 * (low + high))
    return _tail(coarse, np.exp(log_s), side, is_under_q).threshold


def _tail(coarse: CoarseMeasure, s: float, side: float, is_under_q: bool) -> _Tail:
    """Return the tail of the loss whose saddle point is at s.

    A tail probability is e^{K(t) - side s e} / (s sqrt(2 pi (K'' + s^-2))) on the line K'(t) = e + side / s, s > 0.

    Args:
        coarse: the rough moments under P.
        s: where the line is.
        side: 1 for an upper tail and -1 for a lower one.
        is_under_q: whether the probability is that under Q, with t = side s - 1, or under P, with t = side s.
    """
    t = side * s - 1.0 if is_under_q else side * s
    log_moment, mean, variance = coarse.cumulants(t)
    threshold = mean - side / s
    spread = 2.0 * np.pi * (variance + s**-2)
    log_prob = log_moment - side * s * threshold - np.log(s) - 0.5 * np.log(spread)
    return _Tail(threshold, log_prob)


# ---------------------------------------------------------------------------------------------------------------------
# The test.


class _TestErrors(NamedTuple):
    """Upper bounds on the two errors of a test."""

    a: float
    b: float


def _bound_by_test(
    run: RunDescription,
    epsilon: float,
    log_delta: float,
    alpha: float,
    place: _Place,
) -> tuple[float, float]:
    """Return an upper bound on f(alpha) from a test with a threshold near ``epsilon``, and that threshold.

    The bound is 1 where the test says nothing.
    """
    windows = _contour_choice.choose_windows(run, log_delta)
    coarse = _contour_choice.coarse_run(run, windows)
    plan = _contour_choice.make_plan(run, windows, coarse, epsilon, log_delta, _WIDTH, of_delta=True)
    data = _characteristic_function.transform(run, windows, plan.contour)
    sums = _contour.make_sums(("reject_q", "reject_p"), data, plan.contour, epsilon)

    shift = 0.0
    if place != _Place.ZERO:
        shift = _corrected_shift(data, plan.contour, sums, epsilon, alpha, place)
    a, b = _errors(data, plan.contour, sums, epsilon, shift)
    errors = _TestErrors(min(a + run.missed_below, 1.0), b)
    return _bound_by_errors(errors, alpha), epsilon + shift


def _corrected_shift(
    data: RunOnLine,
    contour: Contour,
    sums: TrapezoidSums,
    epsilon: float,
    alpha: float,
    place: _Place,
) -> float:
    """Return the shift of the threshold at which the certified a, or b, is just below alpha."""

    # The error a falls with the threshold, and b rises.
    def is_left(shift: float) -> bool:
        errors = _errors(data, contour, sums, epsilon, shift)
        if place == _Place.A_IS_ALPHA:
            return bool(errors.a > alpha)
        return bool(errors.b < alpha)

    reach = 0.3 * contour.period
    low, high = bisect_on_host(is_left, -reach, reach, num_iterations=_NUM_TEST_BISECTIONS)
    return float(high if place == _Place.A_IS_ALPHA else low)


def _bound_by_errors(errors: _TestErrors, alpha: float) -> float:
    """Return the best upper bound on f(alpha) by f(a) <= b, f(b) <= a, and the chord between the two."""
    a, b = errors
    bound = 1.0
    if a <= alpha:
        bound = min(bound, b)
    if b <= alpha:
        bound = min(bound, a)
    if a <= alpha <= b:
        bound = min(bound, a + (b - alpha))  # b - alpha is exact where it is small
    return bound


def _errors(
    data: RunOnLine,
    contour: Contour,
    sums: TrapezoidSums,
    epsilon: float,
    shift: float,
) -> _TestErrors:
    """Return certified upper bounds on the two errors of the test with the threshold epsilon + shift."""
    value, _ = _contour.evaluate(sums, shift)
    threshold = epsilon + shift

    # The sum under Q is e^e a and an upper bound as it stands.
    log_scale = _contour.log_scale(data, contour, threshold, 1.0)
    largest_sum = max(value[0], 0.0) + sums.error[0]
    a = np.exp(log_scale - threshold) * largest_sum

    # The sum under P is 1 - b and has aliases, of a probability that is at most e^{K(t) + eta^2 t^2 / 2 - t e}.
    log_scale = _contour.log_scale(data, contour, threshold, -1.0)
    least_sum = max(value[1] - sums.error[1], 0.0)
    alias = np.exp(_contour.log_alias(data, contour, threshold, lambda t: 0.5 * (contour.eta * t) ** 2))
    power = np.exp(log_scale) * least_sum - alias

    # A number that is not known says nothing.
    a = a * (1.0 + _ROUNDING)
    b = 1.0 - power * (1.0 - _ROUNDING)
    return _TestErrors(
        a=np.fmin(max(a, 0.0), 1.0),
        b=np.fmin(max(b, 0.0), 1.0),
    )


# ---------------------------------------------------------------------------------------------------------------------
# The smallest mu.


def mu_of_run(run: RunDescription, failure: float) -> Bounds:
    """Return the bracket on mu of a run.

    Args:
        run: the run.
        failure: the failure probability d, 0 < d < 1.
    """
    # Beyond the last point of the grid delta is at most the failure probability.
    last = _directions.epsilon_of_run(run, np.log(failure)).upper
    if last <= 0:
        return Bounds(0.0, 0.0)
    if not last < np.inf:
        return Bounds(0.0, np.inf)
    epsilon = last * (np.arange(_NUM_INTERVALS + 1) / _NUM_INTERVALS)
    delta = _directions.deltas_of_run(run, epsilon[:-1], _SHARING, _MU_DELTA_WIDTH)
    delta = Bounds(np.append(delta.lower, 0.0), np.append(delta.upper, failure))
    mu, _ = mu_from_deltas(epsilon, delta, failure, Bounds(0.0, trivial_mu(run)))
    return mu
