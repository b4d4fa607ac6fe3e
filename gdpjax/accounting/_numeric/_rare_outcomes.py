"""Runs in which an example is hardly ever sampled: the part of the run in which something telling happens.

With a tiny p the privacy loss of nearly every run is next to nothing, while delta is the probability of the few runs
with one telling outcome. On the line that suits those the moments M are those of the silent many, delta is far below
the rounding of M, and a bracket relative to M says nothing. So this module takes the silent runs out of M.

**Telling outcomes.** Cut the outcomes of every step of the direction "remove" at the same loss c: an outcome u is
telling if u > a_j, where log r_j(a_j) = c, and quiet otherwise. Let A_j = X_j + Y_j be a step's moments, X_j over its
quiet outcomes and Y_j over its telling ones. A run is quiet if all its outcomes are. P splits into two positive
measures, the one of the quiet runs and the one of all others, with the moments

    M_quiet(z) = prod_j X_j(z)^{T_j},    M_r(z) = prod_j (X_j + Y_j)(z)^{T_j} - prod_j X_j(z)^{T_j}.

delta(e) = E_P[(1 - e^{e - L})_+] splits in the same way. The part of the telling runs is bracketed on the contour: the
kernels, aliases and tails of `_contour` are those of any positive measure below P. It is a lower bound on delta(e) at
every e. The quiet runs add at most the Chernoff bound c(t) e^{K_quiet(t) - t e}, which falls with e: taken once, at a
`least` epsilon, it holds beyond, where it is added to what windows lose. With T c < e it can be made as small as one
likes, since quiet runs then have no loss above e; a larger c, as long as the bound is small, leaves fewer runs in M_r.

**Loud outcomes.** Losses far above epsilon would ask for a long period and many frequencies, and matter only by their
probability. So outcomes above a second cut a'_j, with losses of at least c', are loud, and taken out as well. No loss
of a step is below k log(1 - p), so a run with a loud outcome has a loss of at least c' - lambda, lambda = -k sum T
log(1 - p). At e <= c' - lambda these runs add exactly

    E_P[(1 - e^{e - L}); loud] = P(loud) - e^e Q(loud),   P(loud) = 1 - prod_j (1 - P_j(u > a'_j))^{T_j},

and likewise for Q. Beyond, what they add is smaller, and still at least that: the test "loud" bounds it from below.
"Telling" is meant without the loud from here on: Y_j are the moments over the outcomes between the two cuts.

**Without cancellation.** M_r = prod X^T * expm1(sum_j T_j log1p(Y_j / X_j)), whatever branch the complex logarithms
take, since T_j are whole.

**Errors.** M_r is a polynomial in the X_j and Y_j, homogeneous of degree T_j in the two of phase j, with nonnegative
coefficients. On the line |X_j(theta + it)| <= X_j(theta), and likewise for Y_j. If the computed X_j and Y_j are off by
at most u_j times X_j(theta) and Y_j(theta), the polynomial is therefore off by at most what it grows by if all its
arguments grow by 1 + u_j at theta, (prod_j (1 + u_j)^{T_j} - 1) M_r(theta). The rounding of the quotient h = Y / X,
of log1p(h) and of the products with T_j is that of slightly different X_j and Y_j:

* |h| <= 1/2: log1p(h) = log1p(2 Re h + |h|^2) / 2 + i arg is right to 12 ulp of |h|, as if Y had moved by 24 ulp;
* |h| > 1/2: log|1 + h| is right to 4 ulp of 1 + |log|1 + h||, and |1 + h| <= 3 |h|: as if Y had moved by 12 ulp of
  itself, times 1 + |log|1 + h||.

48 (1 + |log1p(h)| + |log X|) ulp for each step stand for both and for log X, with X relative to X(theta), which moves
the Y = h X that the quotient stands for as well. What is left is the rounding of the last expm1 and of its products, 64
ulp of the sum of the sizes of its terms, and that of the sum of the two angles.
"""

from typing import NamedTuple

import numpy as np
from scipy.special import expit, ndtr

from gdpjax._core.roots import bisect_on_host
from gdpjax._core.types import Array, Bounds
from gdpjax.accounting._numeric import (
    _characteristic_function,
    _contour,
    _contour_choice,
    _inversion,
    _likelihood_ratio,
)
from gdpjax.accounting._numeric._characteristic_function import MAX_FREQUENCIES, Contour, Transform
from gdpjax.accounting._numeric._contour_choice import Composition, Masses, Plan
from gdpjax.accounting._numeric._likelihood_ratio import Step
from gdpjax.accounting._numeric._moments import UNIT_ROUNDOFF, Window
from gdpjax.accounting._numeric._run_description import Run, chance_of_leaking, is_alone, largest_loss, num_steps

MOST_CHANCE = 0.3
_CUTS = 16
_LEAST_SHARE = 0.9
_LEAST_WIDTH = 0.25
_LOG_QUIET = np.log(1e-5)
_LINES = np.array([1.0, 0.99, 0.98, 0.97, 0.96, 0.94, 0.92, 0.9])
_CANCELLING = 5.0
_FEW = 0.9
_LOUD = 3.0
"""Outcomes with losses above this many epsilon are loud."""
_NARROWEST = 0.05
_LEAST_REST = 1e-4
_TINY = 2.3e-308  # what underflows to zero is positive
_BISECTIONS = 40
_ROUNDING = 1e-12
_SMALLEST = 1e-280
"""Below it what is relative to M_quiet underflows somewhere."""


class Loud(NamedTuple):
    """The runs with a loud outcome: how likely they are under P and under Q, and the epsilon that no loss is below."""

    p: Bounds
    q: Bounds
    most: float

    def least_delta(self, epsilon: float) -> float:
        """A lower bound on what the loud runs add to delta(epsilon)."""
        return max(self.p.lower - np.exp(epsilon) * self.q.upper, 0.0)

    def most_delta(self, epsilon: float) -> float:
        """An upper bound on that, from ``epsilon`` on."""
        return max(self.p.upper - np.exp(min(epsilon, self.most)) * self.q.lower, 0.0)


_NONE_LOUD = Loud(Bounds(0.0, 0.0), Bounds(0.0, 0.0), np.inf)


class Split(NamedTuple):
    """Where the outcomes of the steps are cut, what the quiet runs add to delta from an epsilon on, and the loud."""

    quiet: list[Window]
    telling: list[Window]
    least: float
    log_quiet_delta: float
    loud: Loud


def applies(run: Run) -> bool:
    """Whether the run is one of Poisson steps alone, towards "remove"."""
    sampled = is_alone(run) and all(step.sampling_prob < 1.0 for step in run.steps)
    return sampled and not run.is_symmetric and all(step.sign > 0 for step in run.steps)


def is_rare(run: Run) -> bool:
    """Whether the run is one of Poisson steps alone, with the example hardly ever in a batch."""
    return not run.is_symmetric and chance_of_leaking(run) < MOST_CHANCE


# ---------------------------------------------------------------------------------------------------------------------
# The transform of the telling runs.


def transform(run: Run, windows: list[Window], split: Split, contour: Contour) -> Transform:
    """Evaluate M_r along the line; as `_characteristic_function.transform`, which it takes the place of."""
    frequency = _characteristic_function.frequencies(contour)
    counts = np.array([step.num_steps for step in run.steps])
    quiet = _characteristic_function.step_lines(run.steps, split.quiet, contour, frequency)
    telling = _characteristic_function.step_lines(run.steps, split.telling, contour, frequency)

    # Over the phases, relative to prod_j X_j(theta)^{T_j}: log prod X^T and sum T log1p(Y / X), both complex.
    log_quiet, growth = np.zeros((2, frequency.size), complex)
    log_growth_of_errors = np.zeros(frequency.size)
    log_size = 0.0
    for count, x, y in zip(counts, quiet, telling, strict=True):
        value = _away_from_zero(x.ratio)
        ratio = np.exp(y.log_a - x.log_a) * y.ratio / value
        log_one_more = complex_log1p(ratio)
        log_value = np.log(value)
        log_quiet += count * log_value
        growth += count * log_one_more
        size = 1.0 + np.abs(log_one_more) + np.abs(log_value)
        rounding = UNIT_ROUNDOFF * (48.0 + 4.0 * counts.size) * size
        log_growth_of_errors += count * np.log1p(np.maximum(_moved(x), _moved(y)) + rounding)
        log_size += count * x.log_a

    # expm1 with the sum of the sizes of its terms, both times prod X^T.
    a, b = np.real(growth), np.imag(growth)
    scale = np.exp(np.real(log_quiet))
    cos_part, sin_part = np.expm1(a) * np.cos(b) - 2.0 * np.sin(0.5 * b) ** 2, np.exp(a) * np.sin(b)
    terms = scale * (np.abs(np.expm1(a)) + 2.0 * np.sin(0.5 * b) ** 2 + np.abs(sin_part))
    at_theta = np.expm1(a[0])
    modulus = scale * np.hypot(cos_part, sin_part) / at_theta

    # The errors relative to M_r(theta), and of dividing by it.
    error = np.expm1(log_growth_of_errors) + 64.0 * UNIT_ROUNDOFF * terms / at_theta
    at_zero = error[0]
    error = np.minimum((error + at_zero * (1.0 + error)) * (1.0 + 2.0 * at_zero), 1.0 + modulus)
    log_moment = log_size + np.log(at_theta)
    size_error = 2.0 * at_zero + 8.0 * UNIT_ROUNDOFF * (1.0 + abs(log_moment) + counts.size * abs(log_size))
    trusted = at_zero < 0.2 and max(line.at_zero for line in (*quiet, *telling)) < 0.2 and at_theta > _SMALLEST

    points = (contour.below, contour.above)
    pairs = [
        [_characteristic_function.log_moments_above(run.steps, part, t) for t in points]
        for part in (split.quiet, split.telling)
    ]
    log_below, log_above = (_log_moment_bound(counts, x, y) for x, y in zip(*pairs, strict=True))
    lost = _characteristic_function.lost_mass(run, windows) + np.exp(min(split.log_quiet_delta, 0.0))
    return Transform(
        frequency=frequency,
        modulus=np.log(np.maximum(modulus, 1e-150)),
        angle=np.imag(log_quiet) + np.arctan2(sin_part, cos_part),
        error=np.where(np.isnan(error), np.inf, error),
        log_size=log_moment,
        log_size_error=size_error if trusted else np.inf,
        log_below=log_below,
        log_above=log_above,
        lost=min(lost * (1.0 + 1e-9), 1.0),
        phase_rounding=np.pi * UNIT_ROUNDOFF * (8.0 + counts.size) * np.sum(counts),
        least=split.least,
    )


def complex_log1p(h: Array) -> Array:
    """log(1 + h), to a few ulp of |h| where that is small, by some branch."""
    size = np.abs(h)
    near = np.where(size <= 0.5, h, 0.0)
    far = np.where(size <= 0.5, 0.0, h)
    real = np.where(
        size <= 0.5,
        0.5 * np.log1p(2.0 * np.real(near) + np.abs(near) ** 2),
        np.log(np.maximum(np.hypot(1.0 + np.real(far), np.imag(far)), 1e-150)),
    )
    return real + 1j * np.arctan2(np.imag(h), 1.0 + np.real(h))


def _away_from_zero(value: Array) -> Array:
    return np.where(np.abs(value) < 1e-150, 1e-150, value)


def _moved(line: _characteristic_function.Line) -> Array:
    """What a moment along the line is off by, relative to its exact value at theta."""
    rounding = 4.0 * UNIT_ROUNDOFF * (1.0 + abs(line.log_a))
    return (line.error + 2.0 * line.at_zero) * (1.0 + 4.0 * line.at_zero) + rounding


def _log_moment_bound(counts: Array, x: Array, y: Array) -> float:
    """An upper bound on log M_r from bounds on each log X_j and log Y_j."""
    log_quiet = counts @ x
    growth = np.maximum(counts @ _softplus(y - x), _SMALLEST)
    slack = 1e-12 * (1.0 + growth) * (1.0 + np.max(np.abs(x)) + np.max(np.abs(y)))
    slack = slack + 8.0 * UNIT_ROUNDOFF * counts.size * (counts @ np.abs(x))
    return log_quiet + growth + np.log(-np.expm1(-growth)) + slack


def _softplus(x: Array) -> Array:
    """log(1 + e^x), right to a few ulp of itself."""
    return np.maximum(x, 0.0) + np.log1p(np.exp(-np.abs(x)))


# ---------------------------------------------------------------------------------------------------------------------
# Where to cut. Only the Chernoff bound of the quiet runs is certified.


def make_split(run: Run, windows: list[Window], coarse: Composition, epsilon: float, log_delta: float) -> Split:
    """The highest cut at which the quiet runs still add next to nothing to delta(epsilon)."""
    # A run with one outcome above this level has a loss above epsilon, whatever the others are. Where the windows do
    # not reach it, no outcome is called loud.
    level = _LOUD * epsilon + largest_loss(run)
    tops = [_cut(step, window, level) for step, window in zip(run.steps, windows, strict=True)]
    loud = _loud(run, tops)
    if not loud.most > epsilon:
        tops, loud = [window.upper for window in windows], _NONE_LOUD

    least = _LEAST_SHARE * epsilon
    goal = _log_rest(loud, epsilon, log_delta) + _LOG_QUIET
    steps = num_steps(run)
    ((counts, loss, log_weight),) = coarse.parts
    exponents = np.geomspace(1.0, 100.0 - 20.0 * log_delta, 24) / epsilon

    # From the highest of the losses down; the lowest one is below epsilon in total. The coarse bound leaves out what is
    # between two of its nodes, so the certified one decides.
    for level in least * np.geomspace(0.9, min(0.7 / steps, 0.8), _CUTS):
        quiet = Masses(counts, loss, np.where(loss <= level, log_weight, -np.inf))
        bounds = counts @ quiet.log_moments(exponents) + _contour.log_peak(exponents) - exponents * least
        if np.min(bounds) < goal:
            split = _split(run, windows, tops, level, exponents[np.argmin(bounds)], least, loud)
            if split.log_quiet_delta < goal + 1.0:
                return split
    return _split(run, windows, tops, level, exponents[np.argmin(bounds)], least, loud)


def _split(
    run: Run, windows: list[Window], tops: list[float], level: float, exponent: float, least: float, loud: Loud
) -> Split:
    """The cut at a level of the losses."""
    ends = [
        min(_cut(step, window, level), top - _NARROWEST)
        for step, window, top in zip(run.steps, windows, tops, strict=True)
    ]
    quiet = [Window(window.lower, end, 0.0) for window, end in zip(windows, ends, strict=True)]
    telling = [Window(end, top, 0.0) for end, top in zip(ends, tops, strict=True)]
    return Split(quiet, telling, least, _log_quiet_delta(run.steps, quiet, exponent, least), loud)


def _log_rest(loud: Loud, epsilon: float, log_delta: float) -> float:
    """About the log of what the runs that are not loud add to delta."""
    share = loud.most_delta(epsilon) * np.exp(-log_delta)
    return log_delta + np.log(max(1.0 - share, _LEAST_REST))


def _loud(run: Run, tops: list[float]) -> Loud:
    """The runs with an outcome above these."""
    missed_p = missed_q = 0.0
    most, slack = np.inf, 1e-11
    for step, top in zip(run.steps, tops, strict=True):
        centres = np.arange(step.group_size + 1.0) / step.noise_multiplier
        weights = np.exp(_likelihood_ratio.log_weights(step.sampling_prob, step.group_size))
        missed_p += step.num_steps * np.log1p(-np.dot(weights, ndtr(centres - top)))
        missed_q += step.num_steps * np.log1p(-ndtr(-top))

        # Both are right to some ulp of the square of the argument, and of what it is the difference of.
        slack += 16.0 * UNIT_ROUNDOFF * (40.0 + abs(top) + centres[-1]) ** 2
        at_top = np.array([top])
        loss = _likelihood_ratio.log_ratio(at_top, step)
        most = min(most, (loss - 1e-15 * _likelihood_ratio.log_ratio_error(at_top, step, loss))[0])
    p, q = (-np.expm1(missed) * np.array([1.0 - slack, 1.0 + slack]) for missed in (missed_p, missed_q))
    return Loud(Bounds(p[0], p[1] + _TINY * num_steps(run)), Bounds(*q), most - largest_loss(run))


def _cut(step: Step, window: Window, level: float) -> float:
    """About where log r is ``level``, with some room to both ends of the window."""
    low, high = window.lower + _LEAST_WIDTH, window.upper - _LEAST_WIDTH
    for _ in range(50):
        middle = 0.5 * (low + high)
        if _likelihood_ratio.log_ratio(np.array([middle]), step)[0] > level:
            high = middle
        else:
            low = middle
    return low


def _log_quiet_delta(steps: tuple[Step, ...], windows: list[Window], exponent: float, least: float) -> float:
    """log of the Chernoff bound c(t) e^{K(t) - t e} on what the quiet runs add to delta."""
    counts = np.array([step.num_steps for step in steps])
    log_moments = _characteristic_function.log_moments_above(steps, windows, exponent)
    bound = counts @ log_moments + _contour.log_peak(exponent) - exponent * least
    size = counts.size * (counts @ np.abs(log_moments)) + exponent * least
    return bound + 1e-13 * (1.0 + size)


def make_plan(
    run: Run,
    windows: list[Window],
    coarse: Composition,
    epsilon: float,
    log_delta: float,
    width: float,
    *,
    of_delta: bool,
) -> tuple[Plan, Split]:
    """The plan for the telling runs about a guess of (epsilon, log delta), as `_contour_choice.make_plan`, and the cut."""
    split = make_split(run, windows, coarse, epsilon, log_delta)
    ((quiet,), (telling,)) = (_contour_choice.masses(run, part).parts for part in (split.quiet, split.telling))
    pieces = Telling(quiet, telling)
    log_delta = _log_rest(split.loud, epsilon, log_delta)
    saddle = _contour_choice.saddle_line(pieces, epsilon, 1.0 / epsilon)

    # Beyond some exponent runs with thousands of telling outcomes take over, and next to it the period is too long. To
    # the left of it are better lines, until the terms of the sum cancel.
    contours = []
    for theta in saddle * _LINES:
        scale = 1.0 if of_delta else theta * epsilon
        # The tail of single outcomes bends on the scale of epsilon, which smoothing feels even where 1/theta is larger.
        scale = scale * min(theta * (theta + 1.0) * epsilon**2, 1.0)
        contours.append(_contour_choice.choose_contour(pieces, theta, epsilon, log_delta, width * scale))
        cancels = contours[-1].log_error < contours[0].log_error - _CANCELLING
        if _num_frequencies(contours[0]) < _FEW * MAX_FREQUENCIES or cancels:
            break
    contour = min(contours, key=lambda each: each.period / each.eta)
    return Plan(contour, windows, epsilon, log_delta), split


def _num_frequencies(contour: Contour) -> float:
    return contour.cutoff * contour.period / (2.0 * np.pi)


def epsilon_bracket(data: Transform, plan: Plan, loud: Loud, known: Bounds, log_delta: float) -> tuple[Bounds, float]:
    """The bracket on epsilon within a ``known`` one, and where to look next: two bisections by certified bounds."""
    contour, origin = plan.contour, plan.epsilon
    sums = _contour.make_sums(("upper", "lower"), data, contour, origin)

    def is_above(e: float) -> bool:
        rest = np.exp(_contour.log_upper_delta(data, contour, sums, origin, e))
        return (rest + loud.most_delta(e)) * (1.0 + _ROUNDING) <= np.exp(log_delta)

    def is_below(e: float) -> bool:
        rest = np.exp(_contour.log_lower_delta(data, contour, sums, origin, e))
        return (rest + loud.least_delta(e)) * (1.0 - _ROUNDING) >= np.exp(log_delta)

    # The last point that a bisection keeps may be the end it was given, of which nothing is known.
    first, last = max(data.least, known.lower), min(loud.most, known.upper)
    highest = float(bisect_on_host(is_above, last, first, num_iterations=_BISECTIONS)[0])
    lowest = float(bisect_on_host(is_below, known.lower, last, num_iterations=_BISECTIONS)[0])
    upper = min(known.upper, highest) if is_above(highest) else known.upper
    lower = max(known.lower, lowest) if is_below(lowest) else known.lower

    # Next to the end that was found, or in between; if all of them are above, clearly below.
    if lower > known.lower:
        guess = min(0.5 * (lower + upper), 1.02 * lower)
    else:
        guess = 0.98 * upper if upper > 1.001 * first else 0.4 * upper
    return Bounds(lower, upper), guess


def log_delta_bracket(data: Transform, plan: Plan, loud: Loud, epsilon: float) -> tuple[Bounds, float]:
    """The bracket on log delta at epsilon, and an estimate, as `_inversion.log_delta_bracket`."""
    bounds, guess = _inversion.log_delta_bracket(data, plan, np.array([epsilon]))
    added = np.log([loud.least_delta(epsilon), loud.most_delta(epsilon), loud.least_delta(epsilon)])
    lower, upper, estimate = np.logaddexp([bounds.lower[0], bounds.upper[0], guess[0]], added)
    return Bounds(lower - 1e-13 * (1.0 + abs(lower)), min(upper + 1e-13 * (1.0 + abs(upper)), 0.0)), estimate


class Telling(NamedTuple):
    """The telling runs for planning: log M_r = K_quiet + log(e^g - 1), g = sum_j T_j log(1 + Y_j / X_j)."""

    quiet: Masses
    telling: Masses

    def cumulants(self, theta: float) -> tuple[float, float, float]:
        """log M_r and its two derivatives at theta."""
        counts = self.quiet.counts
        quiet, telling = self.quiet.cumulants(theta), self.telling.cumulants(theta)
        h, h1, h2 = (y - x for x, y in zip(quiet, telling, strict=True))
        share = expit(h)
        g, g1, g2 = (counts @ part for part in (_softplus(h), share * h1, share * h2 + share * (1.0 - share) * h1**2))
        rise = -1.0 / np.expm1(-g)
        k, k1, k2 = (counts @ part for part in quiet)
        return k + g - np.log(rise), k1 + rise * g1, k2 + rise * g2 + rise * (1.0 - rise) * g1**2

    def log_moments(self, theta: Array) -> Array:
        """log M_r at each theta [points]."""
        quiet, telling = self.quiet.log_moments(theta), self.telling.log_moments(theta)
        growth = self.quiet.counts @ _softplus(telling - quiet)
        return self.quiet.counts @ quiet + growth + np.log(-np.expm1(-growth))


def first_guess(coarse: Composition, log_delta: float) -> float:
    """The epsilon at which single outcomes, of any of the steps, make up delta; next to 0 if they do not."""
    ((_, loss, _),) = coarse.parts
    low, high = np.log(1e-12), np.log(max(np.max(loss), 1e-11))
    for _ in range(50):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if _single(coarse, np.exp(middle)) > log_delta else (low, middle)
    return np.exp(low)


def guess_log_delta(run: Run, epsilon: float) -> float:
    """What single outcomes make up of log delta at epsilon."""
    return _single(_contour_choice.masses(run, _contour_choice.windows(run, -650.0)), epsilon)


def _single(coarse: Composition, epsilon: float) -> float:
    """log of the sum over all steps of their own delta(epsilon)."""
    ((counts, loss, log_weight),) = coarse.parts
    lost = -np.expm1(np.minimum(epsilon - loss, 0.0))
    return np.log(np.sum(np.exp(log_weight + np.log(counts)[:, None]) * lost))
