"""Bracket runs in which an example is hardly ever sampled, by the part of the run in which something telling happens.

With a tiny sampling probability the privacy loss of nearly every run is next to nothing, and delta is the probability
of the few runs with one telling outcome. On the line that suits those, the moments M are those of the silent many,
delta is far below the rounding of M, and a bracket relative to M says nothing. So this module takes the silent runs out
of M.

The outcomes of every step of the direction "remove" are cut at two levels of the loss, into *quiet*, *telling* and
*loud* ones (`OutcomeSplit`). delta(e) is then the sum of three parts:

* quiet runs, with quiet outcomes only, add at most a Chernoff bound, which is chosen to be negligible;
* loud runs, with a loud outcome, have a loss above e, and add P(loud) - e^e Q(loud) exactly (`LoudRuns`);
* all others are put on the contour. With the moments X_j of the quiet and Y_j of the telling outcomes of phase j,

      M_r = prod_j (X_j + Y_j)^{T_j} - prod_j X_j^{T_j} = prod_j X_j^{T_j} * expm1(sum_j T_j log1p(Y_j / X_j)).

docs/theory/telling_runs.md derives all of this, and the errors.
"""

from typing import NamedTuple

import numpy as np
import scipy

from gdpjax._composition import (
    _characteristic_function,
    _contour,
    _contour_choice,
    _inversion,
    _likelihood_ratio,
)
from gdpjax._composition._characteristic_function import Contour, EventsOnLine, RunOnLine
from gdpjax._composition._contour_choice import (
    CoarseRun,
    ContourPlan,
    Cumulants,
    OutcomeMasses,
    outcome_masses,
)
from gdpjax._composition._inversion import PlannedLine
from gdpjax._composition._likelihood_ratio import Steps
from gdpjax._composition._moments import UNIT_ROUNDOFF, Windows
from gdpjax._composition._run_description import (
    RunDescription,
    chance_of_leaking,
    is_alone,
    largest_loss,
    num_steps,
)
from gdpjax._core.roots import bisect_on_host
from gdpjax._core.types import Array, Bounds

_RARE_CHANCE = 0.3
"""The example is hardly ever sampled if the chance that it ever is lies below this."""

# Where the outcomes are cut.
_NUM_LEVELS = 16
_LEAST_SHARE = 0.9
"""Upper bounds hold from this share of the guessed epsilon on."""
_LOG_QUIET_SHARE = np.log(1e-5)
"""log of the share of delta that the quiet runs may add."""
_LOUD = 3.0
"""Outcomes with losses above this many epsilon are loud."""
_LEAST_DISTANCE = 0.25
"""The distance of a cut from both ends of the window."""
_NARROWEST = 0.05
"""The least distance between the two cuts."""
_LEAST_REST = 1e-4
"""The share of delta that the runs without a loud outcome are taken to add at least."""
_NUM_CUT_BISECTIONS = 50

# Rounding; the first three are in units of UNIT_ROUNDOFF.
_STEP_ROUNDING = 48.0
_PHASE_ROUNDING = 4.0
_LAST_ROUNDING = 64.0
_ROUNDING = 1e-12
_TINY = 2.3e-308  # what underflows to zero is positive
_SMALLEST = 1e-280
"""Below it what is relative to M_quiet underflows somewhere."""
_NOT_ZERO = 1e-150

_NUM_BISECTIONS = 40


class LoudRuns(NamedTuple):
    """The runs with a loud outcome: how likely they are under P and under Q, and a number that no loss is below."""

    p: Bounds
    q: Bounds
    least_loss: float

    def least_delta(self, epsilon: float) -> float:
        """Return a lower bound on what the loud runs add to delta(epsilon)."""
        added = self.p.lower - np.exp(epsilon) * self.q.upper
        return max(added, 0.0)

    def largest_delta(self, epsilon: float) -> float:
        """Return an upper bound on what they add to delta, from ``epsilon`` on."""
        known = min(epsilon, self.least_loss)
        added = self.p.upper - np.exp(known) * self.q.lower
        return max(added, 0.0)


_NONE_LOUD = LoudRuns(Bounds(0.0, 0.0), Bounds(0.0, 0.0), np.inf)


class OutcomeSplit(NamedTuple):
    """The cuts of the outcomes of the steps, and what quiet runs (from an epsilon on) and loud runs add to delta."""

    quiet: Windows
    telling: Windows
    least_epsilon: float
    log_quiet_delta: float
    loud: LoudRuns


def applies(run: RunDescription) -> bool:
    """Return whether the run is one of Poisson steps alone, in the direction "remove"."""
    if run.replaces_one or not is_alone(run):
        return False
    return all(step.sampling_prob < 1.0 and step.sign > 0 for step in run.steps)


def is_rare(run: RunDescription) -> Array:
    """Return whether the run is one of Poisson steps alone, with the example hardly ever in a batch."""
    return np.logical_and(chance_of_leaking(run) < _RARE_CHANCE, not run.replaces_one)


# ---------------------------------------------------------------------------------------------------------------------
# The transform of the telling runs.


def transform(
    run: RunDescription,
    windows: Windows,
    split: OutcomeSplit,
    contour: Contour,
) -> RunOnLine:
    """Evaluate M_r along the line; it takes the place of `_characteristic_function.transform`.

    Args:
        run: Poisson steps in the direction "remove".
        windows: those of its steps.
        split: where the outcomes are cut.
        contour: where the line is.
    """
    frequency = _characteristic_function.frequencies(contour)
    steps = run.side_by_side
    quiet = _characteristic_function.step_lines(steps, split.quiet, contour, frequency)
    telling = _characteristic_function.step_lines(steps, split.telling, contour, frequency)
    num_phases = len(run.steps)
    product = _product(quiet, telling, num_phases)

    # M_r is scale * expm1(a + ib), with expm1(a + ib) = expm1(a) cos b - (1 - cos b) + i e^a sin b.
    a, b = np.real(product.growth), np.imag(product.growth)
    scale = np.exp(np.real(product.log_quiet))
    grown = np.expm1(a)
    turned = 2.0 * np.sin(0.5 * b) ** 2
    real_part = grown * np.cos(b) - turned
    imag_part = np.exp(a) * np.sin(b)
    at_theta = grown[0]
    modulus = scale * np.hypot(real_part, imag_part) / at_theta

    # The errors relative to M_r(theta), and of dividing by it.
    sizes = scale * (np.abs(grown) + turned + np.abs(imag_part))
    error = np.expm1(product.log_error_growth) + _LAST_ROUNDING * UNIT_ROUNDOFF * sizes / at_theta
    at_zero = error[0]
    error = (error + at_zero * (1.0 + error)) * (1.0 + 2.0 * at_zero)
    error = np.minimum(error, 1.0 + modulus)
    error = np.where(np.isnan(error), np.inf, error)

    # log M_r(theta), which is not trusted where the errors are large or something underflows.
    log_size = product.log_size + np.log(at_theta)
    log_size_terms = 1.0 + abs(log_size) + num_phases * abs(product.log_size)
    log_size_error = 2.0 * at_zero + 8.0 * UNIT_ROUNDOFF * log_size_terms
    largest_error = max(np.max(line.at_zero) for line in (*quiet, *telling))
    trusted = at_zero < 0.2 and largest_error < 0.2 and at_theta > _SMALLEST

    # Upper bounds on delta add what the windows lose and what the quiet runs add.
    quiet_delta = np.exp(min(split.log_quiet_delta, 0.0))
    lost = _characteristic_function.lost_mass(run, windows) + quiet_delta
    total_steps = np.sum(steps.num_steps)
    return RunOnLine(
        frequency=frequency,
        modulus=np.log(np.maximum(modulus, _NOT_ZERO)),
        angle=np.imag(product.log_quiet) + np.arctan2(imag_part, real_part),
        error=error,
        log_size=log_size,
        log_size_error=log_size_error if trusted else np.inf,
        log_below=_log_moment_above(steps, split, contour.below),
        log_above=_log_moment_above(steps, split, contour.above),
        lost=min(lost * (1.0 + 1e-9), 1.0),
        log_beyond=0.0,
        phase_rounding=np.pi * UNIT_ROUNDOFF * (8.0 + num_phases) * total_steps,
        least=split.least_epsilon,
    )


class _Product(NamedTuple):
    """Sums over the phases, relative to prod_j X_j(theta)^{T_j}, along the line [n]."""

    log_quiet: Array
    """sum_j T_j log X_j, complex."""
    growth: Array
    """sum_j T_j log1p(Y_j / X_j), complex."""
    log_error_growth: Array
    """sum_j T_j log(1 + u_j), real."""
    log_size: float
    """sum_j T_j log X_j(theta)."""


def _product(quiet: list[EventsOnLine], telling: list[EventsOnLine], num_phases: int) -> _Product:
    """Add up the phases, of which the lines of X_j and of Y_j are given."""
    num_frequencies = quiet[0].ratio.shape[1]
    log_quiet, growth = np.zeros((2, num_frequencies), complex)
    log_error_growth = np.zeros(num_frequencies)
    log_size = 0.0
    for x, y in zip(quiet, telling, strict=True):
        count = x.num_steps
        relative_x = _away_from_zero(x.ratio)
        quotient = np.exp(y.log_a - x.log_a)[:, None] * y.ratio / relative_x
        log_one_more = complex_log1p(quotient)
        log_x = np.log(relative_x)
        log_quiet += count @ log_x
        growth += count @ log_one_more
        log_size += count @ x.log_a

        # What X_j and Y_j are off by, and what the rounding of these lines amounts to.
        size = 1.0 + np.abs(log_one_more) + np.abs(log_x)
        rounding = UNIT_ROUNDOFF * (_STEP_ROUNDING + _PHASE_ROUNDING * num_phases) * size
        off_by = np.maximum(_error_against_exact(x), _error_against_exact(y))
        log_error_growth += count @ np.log1p(off_by + rounding)
    return _Product(log_quiet, growth, log_error_growth, log_size)


def complex_log1p(h: Array) -> Array:
    """Return log(1 + h), to a few ulp of |h| where that is small, by some branch."""
    is_near = np.abs(h) <= 0.5
    near = np.where(is_near, h, 0.0)
    far = np.where(is_near, 0.0, h)
    near_excess = 2.0 * np.real(near) + np.abs(near) ** 2
    near_real = 0.5 * np.log1p(near_excess)
    far_modulus = np.hypot(1.0 + np.real(far), np.imag(far))
    far_real = np.log(np.maximum(far_modulus, _NOT_ZERO))
    angle = np.arctan2(np.imag(h), 1.0 + np.real(h))
    return np.where(is_near, near_real, far_real) + 1j * angle


def _away_from_zero(value: Array) -> Array:
    return np.where(np.abs(value) < _NOT_ZERO, _NOT_ZERO, value)


def _error_against_exact(line: EventsOnLine) -> Array:
    """Return what a moment along the line is off by, relative to its exact value at theta."""
    at_zero = line.at_zero[:, None]
    rounding = 4.0 * UNIT_ROUNDOFF * (1.0 + np.abs(line.log_a))
    error = line.error + 2.0 * at_zero
    return error * (1.0 + 4.0 * at_zero) + rounding[:, None]


def _log_moment_above(steps: Steps, split: OutcomeSplit, theta: float) -> float:
    """Return an upper bound on log M_r(theta), from bounds on each log X_j and log Y_j."""
    counts = steps.num_steps
    log_x = _characteristic_function.log_moments_above(steps, split.quiet, theta)
    log_y = _characteristic_function.log_moments_above(steps, split.telling, theta)
    log_quiet = counts @ log_x
    growth = np.maximum(counts @ _softplus(log_y - log_x), _SMALLEST)

    # The rounding of the growth, and of the sum over the phases.
    size_x, size_y = np.abs(log_x), np.abs(log_y)
    slack = 1e-12 * (1.0 + growth) * (1.0 + np.max(size_x) + np.max(size_y))
    slack = slack + 8.0 * UNIT_ROUNDOFF * counts.size * (counts @ size_x)
    return log_quiet + growth + np.log(-np.expm1(-growth)) + slack


def _softplus(x: Array) -> Array:
    """Return log(1 + e^x), right to a few ulp of itself."""
    return np.maximum(x, 0.0) + np.log1p(np.exp(-np.abs(x)))


# ---------------------------------------------------------------------------------------------------------------------
# Where to cut. Only the Chernoff bound of the quiet runs and the numbers of the loud ones are certified.


def make_split(
    run: RunDescription,
    windows: Windows,
    coarse: CoarseRun,
    epsilon: float,
    log_delta: float,
) -> OutcomeSplit:
    """Return the highest cut at which the quiet runs still add next to nothing to delta(epsilon).

    Args:
        run: Poisson steps in the direction "remove".
        windows: those of its steps.
        coarse: the `coarse_run` of it.
        epsilon: a guess.
        log_delta: a guess of log delta there.
    """
    tops, loud = _cut_loud_outcomes(run, windows, epsilon)

    # Try levels from the highest of the losses down. At the lowest one all quiet runs have losses below epsilon.
    least_epsilon = _LEAST_SHARE * epsilon
    goal = _log_rest(loud, epsilon, log_delta) + _LOG_QUIET_SHARE
    lowest_share = min(0.7 / num_steps(run), 0.8)
    levels = least_epsilon * np.geomspace(0.9, lowest_share, _NUM_LEVELS)
    exponents = np.geomspace(1.0, 100.0 - 20.0 * log_delta, 24) / epsilon
    log_peaks = _contour.log_peak(exponents)

    # The coarse bound leaves out what is between two of its nodes, so the certified one decides.
    (part,) = coarse.parts
    counts, loss, log_weight = part.counts, part.loss, part.log_weight
    level = best_exponent = np.nan
    for level in levels:
        quiet_log_weight = np.where(loss <= level, log_weight, -np.inf)
        quiet = outcome_masses(counts, loss, quiet_log_weight)
        log_bounds = counts @ quiet.log_moments(exponents) + log_peaks - exponents * least_epsilon
        best = np.argmin(log_bounds)
        best_exponent = exponents[best]
        if log_bounds[best] < goal:
            split = _split_at(run, windows, tops, level, best_exponent, least_epsilon, loud)
            if split.log_quiet_delta < goal + 1.0:
                return split
    return _split_at(run, windows, tops, level, best_exponent, least_epsilon, loud)


def _split_at(
    run: RunDescription,
    windows: Windows,
    tops: Array,
    level: float,
    exponent: float,
    least_epsilon: float,
    loud: LoudRuns,
) -> OutcomeSplit:
    """Return the split with quiet outcomes up to a level of the losses and loud ones from the ``tops`` on."""
    steps = run.side_by_side
    ends = np.minimum(_cuts(steps, windows, level), tops - _NARROWEST)
    nothing = np.zeros(ends.shape)
    quiet = Windows(windows.lower, ends, nothing)
    telling = Windows(ends, tops, nothing)
    log_quiet_delta = _log_quiet_delta(steps, quiet, exponent, least_epsilon)
    return OutcomeSplit(quiet, telling, least_epsilon, log_quiet_delta, loud)


def _log_rest(loud: LoudRuns, epsilon: float, log_delta: float) -> float:
    """Return about the log of what the runs that are not loud add to delta."""
    loud_share = loud.largest_delta(epsilon) * np.exp(-log_delta)
    return log_delta + np.log(max(1.0 - loud_share, _LEAST_REST))


def _cut_loud_outcomes(
    run: RunDescription,
    windows: Windows,
    epsilon: float,
) -> tuple[Array, LoudRuns]:
    """Return the outcomes from which on they are loud [steps], and the runs that have one.

    A run with one outcome above the level has a loss above epsilon, whatever its other outcomes are. Where the windows
    do not reach the level, no outcome is called loud.
    """
    level = _LOUD * epsilon + largest_loss(run)
    tops = _cuts(run.side_by_side, windows, level)
    loud = _loud_runs(run, tops)
    if loud.least_loss > epsilon:
        return tops, loud
    return windows.upper, _NONE_LOUD


def _loud_runs(run: RunDescription, tops: Array) -> LoudRuns:
    """Return the runs with an outcome above these [steps]."""
    steps = run.side_by_side
    top = tops[:, None]

    # The chances that a step has a loud outcome, under the mixture and under N(0, 1), and that none has.
    centres = np.arange(steps.group_size + 1.0) / steps.noise_multiplier
    weights = np.exp(_likelihood_ratio.log_weights(steps))
    step_chance_p = np.sum(weights * scipy.special.ndtr(centres - top), axis=1)
    step_chance_q = scipy.special.ndtr(-tops)
    log_missed_p = steps.num_steps @ np.log1p(-step_chance_p)
    log_missed_q = steps.num_steps @ np.log1p(-step_chance_q)

    # Both are right to some ulp of the square of the argument, and of what it is the difference of.
    sizes = 40.0 + np.abs(tops) + centres[:, -1]
    slack = 1e-11 + 16.0 * UNIT_ROUNDOFF * np.sum(sizes**2)

    # The loss of a loud outcome is at least the one at the cut.
    loss = _likelihood_ratio.log_ratio(top, steps)
    loss_error = 1e-15 * _likelihood_ratio.log_ratio_error(top, steps, loss)
    least_loss = np.min(loss - loss_error)

    chance_p, chance_q = -np.expm1(log_missed_p), -np.expm1(log_missed_q)
    least, largest = 1.0 - slack, 1.0 + slack
    underflow = _TINY * num_steps(run)
    return LoudRuns(
        p=Bounds(chance_p * least, chance_p * largest + underflow),
        q=Bounds(chance_q * least, chance_q * largest),
        least_loss=least_loss - largest_loss(run),
    )


def _cuts(steps: Steps, windows: Windows, level: float) -> Array:
    """Return about the outcomes at which log r is ``level`` [steps], with some room to both ends of the windows."""

    def is_below(outcome: Array) -> Array:
        return ~(_likelihood_ratio.log_ratio(outcome[:, None], steps)[:, 0] > level)

    low = windows.lower + _LEAST_DISTANCE
    high = windows.upper - _LEAST_DISTANCE
    cuts, _ = bisect_on_host(is_below, low, high, num_iterations=_NUM_CUT_BISECTIONS)
    return cuts


def _log_quiet_delta(steps: Steps, windows: Windows, exponent: float, least_epsilon: float) -> float:
    """Return log of the Chernoff bound c(t) e^{K(t) - t e} on what the quiet runs add to delta."""
    counts = steps.num_steps
    log_moments = _characteristic_function.log_moments_above(steps, windows, exponent)
    tilt = exponent * least_epsilon
    bound = counts @ log_moments + _contour.log_peak(exponent) - tilt
    size = counts.size * (counts @ np.abs(log_moments)) + tilt
    return bound + 1e-13 * (1.0 + size)


# ---------------------------------------------------------------------------------------------------------------------
# Where the line goes.


def make_plan(
    run: RunDescription,
    windows: Windows,
    coarse: CoarseRun,
    epsilon: float,
    log_delta: float,
    width: float,
    *,
    of_delta: bool,
) -> tuple[ContourPlan, OutcomeSplit]:
    """Return the plan for the telling runs about a guess of (epsilon, log delta), and where the outcomes are cut.

    The arguments are those of `_contour_choice.make_plan`.
    """
    split = make_split(run, windows, coarse, epsilon, log_delta)
    (quiet,) = _contour_choice.coarse_run(run, split.quiet).parts
    (telling,) = _contour_choice.coarse_run(run, split.telling).parts
    measure = TellingMeasure(quiet, telling)
    log_delta = _log_rest(split.loud, epsilon, log_delta)
    theta = _contour_choice.saddle_line(measure, epsilon, 1.0 / epsilon)

    # The tail of single outcomes bends on the scale of epsilon, which smoothing feels even where 1/theta is larger.
    scale = 1.0 if of_delta else theta * epsilon
    scale = scale * min(theta * (theta + 1.0) * epsilon**2, 1.0)
    contour = _contour_choice.choose_contour(measure, theta, epsilon, log_delta, width * scale)
    return ContourPlan(contour, windows, epsilon, log_delta), split


class TellingMeasure(NamedTuple):
    """The telling runs for planning: log M_r = K_quiet + log(e^g - 1), g = sum_j T_j log(1 + Y_j / X_j)."""

    quiet: OutcomeMasses
    telling: OutcomeMasses

    def cumulants(self, theta: float) -> Cumulants:
        """Return log M_r and its two derivatives at theta."""
        counts = self.quiet.counts
        quiet = self.quiet.cumulants(theta)
        telling = self.telling.cumulants(theta)

        # log(Y_j / X_j) and its derivatives [phases].
        h = telling.log_moment - quiet.log_moment
        h1 = telling.mean - quiet.mean
        h2 = telling.variance - quiet.variance

        # g and its derivatives.
        share = scipy.special.expit(h)
        g = counts @ _softplus(h)
        g1 = counts @ (share * h1)
        g2 = counts @ (share * h2 + share * (1.0 - share) * h1**2)

        # The slope of log(e^g - 1) in g is 1 / (1 - e^-g), of which the slope is rise (1 - rise).
        rise = -1.0 / np.expm1(-g)
        log_moment = counts @ quiet.log_moment + g - np.log(rise)
        mean = counts @ quiet.mean + rise * g1
        variance = counts @ quiet.variance + rise * g2 + rise * (1.0 - rise) * g1**2
        return Cumulants(log_moment, mean, variance)

    def log_moments(self, theta: Array) -> Array:
        """Return log M_r at each theta [points]."""
        quiet = self.quiet.log_moments(theta)
        telling = self.telling.log_moments(theta)
        growth = self.quiet.counts @ _softplus(telling - quiet)
        return self.quiet.counts @ quiet + growth + np.log(-np.expm1(-growth))

    def log_frequency(self, theta: float, log_moment: float, nats: float) -> float:
        """Return inf, since no frequency is known from which on the moments have fallen."""
        return np.inf


def first_guess(coarse: CoarseRun, log_delta: float) -> float:
    """Return the epsilon at which single outcomes, of any of the steps, make up delta; next to 0 if they do not."""

    def is_below(log_epsilon: float) -> bool:
        return bool(_log_delta_of_single_outcomes(coarse, np.exp(log_epsilon)) > log_delta)

    (part,) = coarse.parts
    loss = part.loss
    largest = max(np.max(loss), 1e-11)
    low, high = np.log(1e-12), np.log(largest)
    log_epsilon, _ = bisect_on_host(is_below, low, high, num_iterations=_NUM_CUT_BISECTIONS)
    return np.exp(float(log_epsilon))


def guess_log_delta(run: RunDescription, epsilon: float) -> float:
    """Return what single outcomes make up of log delta at epsilon."""
    windows = _contour_choice.choose_windows(run, _contour_choice.LOG_ANY_DELTA)
    return _log_delta_of_single_outcomes(_contour_choice.coarse_run(run, windows), epsilon)


def _log_delta_of_single_outcomes(coarse: CoarseRun, epsilon: float) -> float:
    """Return log of the sum over all steps of their own delta(epsilon)."""
    (part,) = coarse.parts
    excess = -np.expm1(np.minimum(epsilon - part.loss, 0.0))
    weight = np.exp(part.log_weight + np.log(part.counts)[:, None])
    return np.log(np.sum(weight * excess))


# ---------------------------------------------------------------------------------------------------------------------
# Brackets.


class _SumOfParts(NamedTuple):
    """The telling runs along a line and the loud runs, and a delta that is asked about."""

    line: PlannedLine
    loud: LoudRuns
    log_delta: float

    def is_above(self, epsilon: float) -> bool:
        """Return whether the epsilon at delta is certainly at most this."""
        telling = np.exp(self.line.log_upper_delta(epsilon))
        delta = telling + self.loud.largest_delta(epsilon)
        return delta * (1.0 + _ROUNDING) <= np.exp(self.log_delta)

    def is_below(self, epsilon: float) -> bool:
        """Return whether the epsilon at delta is certainly at least this."""
        telling = np.exp(self.line.log_lower_delta(epsilon))
        delta = telling + self.loud.least_delta(epsilon)
        return delta * (1.0 - _ROUNDING) >= np.exp(self.log_delta)


def epsilon_bracket(
    data: RunOnLine, plan: ContourPlan, loud: LoudRuns, known: Bounds, log_delta: float
) -> tuple[Bounds, float]:
    """Return the bracket on epsilon within a ``known`` one, and where to look next.

    Args:
        data: the transform of the telling runs along the plan's contour.
        plan: made for an epsilon in the known bracket.
        loud: the loud runs.
        known: a bracket on epsilon.
        log_delta: log of the delta that is asked about.
    """
    line = _inversion.make_line(data, plan)
    parts = _SumOfParts(line, loud, log_delta)

    # Two bisections by certified bounds. The last point that a bisection keeps may be the end it was given, of which
    # nothing is known.
    first = max(data.least, known.lower)
    last = min(loud.least_loss, known.upper)
    highest, _ = bisect_on_host(parts.is_above, last, first, num_iterations=_NUM_BISECTIONS)
    lowest, _ = bisect_on_host(parts.is_below, known.lower, last, num_iterations=_NUM_BISECTIONS)
    lower, upper = known
    if parts.is_above(float(highest)):
        upper = min(upper, float(highest))
    if parts.is_below(float(lowest)):
        lower = max(lower, float(lowest))

    # Look next to the end that was improved, or in between. If no point was shown to be below, look clearly lower.
    if lower > known.lower:
        guess = min(0.5 * (lower + upper), 1.02 * lower)
    elif upper > 1.001 * first:
        guess = 0.98 * upper
    else:
        guess = 0.4 * upper
    return Bounds(lower, upper), guess


def log_delta_bracket(
    data: RunOnLine,
    plan: ContourPlan,
    loud: LoudRuns,
    epsilon: float,
) -> tuple[Bounds, float]:
    """Return the bracket on log delta at epsilon, and an estimate, as `_inversion.log_delta_bracket`."""
    telling, telling_estimate = _inversion.log_delta_bracket(data, plan, np.array([epsilon]))
    log_least = np.log(loud.least_delta(epsilon))
    log_largest = np.log(loud.largest_delta(epsilon))
    lower = np.logaddexp(telling.lower[0], log_least)
    upper = np.logaddexp(telling.upper[0], log_largest)
    estimate = np.logaddexp(telling_estimate[0], log_least)

    lower = lower - 1e-13 * (1.0 + abs(lower))
    upper = upper + 1e-13 * (1.0 + abs(upper))
    return Bounds(lower, min(upper, 0.0)), estimate
