"""Bracket the epsilon or the delta of one run: both directions, with as many tries as it needs.

The answer for a run is the larger one of its two directions. In each direction the tries come in this order, each only
while the bracket is wider than asked for (`direction_epsilon`, `direction_log_deltas`):

1. *Ordinary tries*: a contour about the best guess so far, each a little finer than the one before.
2. *Telling runs*: the contour of `_rare_outcomes`, after the first two ordinary tries. For epsilon it comes last where
   an example is not hardly ever sampled.
3. For epsilon, where an example is hardly ever sampled and epsilon is tiny: two ordinary tries relative to it.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from gdpjax._composition import (
    _atoms,
    _bounded_losses,
    _characteristic_function,
    _contour_choice,
    _inversion,
    _rare_outcomes,
)
from gdpjax._composition._contour import log_peak
from gdpjax._composition._contour_choice import CoarseRun, ContourPlan
from gdpjax._composition._inversion import PlannedLine
from gdpjax._composition._likelihood_ratio import SubsampledGaussian
from gdpjax._composition._moments import Windows
from gdpjax._composition._run_description import RunDescription, gaussian_mu, is_alone, largest_loss, per_line, taken
from gdpjax._core.types import Array, Bounds

RELATIVE_WIDTH = 1e-3

# How many tries there are.
TRIES = 5
TRIES_BEFORE_RARE = 2
RARE_TRIES = 5
_PROGRESS = 0.95
"""A try that leaves more than this share of a bracket is the last: what bounds it are the numbers of frequencies."""

# When the telling runs are tried, where `_rare_outcomes` applies.
RARE_WIDTH = 2e-3
"""The relative width of epsilon from which on they are tried in runs that hardly ever sample an example."""
RARE_DELTA_WIDTH = 1e-2
"""The same for delta."""
RARE_LAST_WIDTH = 0.02
"""The same for other runs, after all the ordinary tries."""
LEAST_RARE_EPSILON = 1e-6
"""Where an example is hardly ever sampled, the width of a bracket on epsilon is relative to this below it."""

_COARSEST_WIDTH = 0.2
"""The width relative to epsilon of the first contour of a direction that hardly matters."""
_LOWEST_LOG_DELTA = -690.0
_LOG_DELTA_ROUNDING = 1e-13
_EXP_ROUNDING = 1e-12
_LEAST_MISSING = 1e-12
"""A guess of log delta is at least this far below 0."""

_CLEAR = 0.01
"""A rough Chernoff bound on log delta that is lower by this much is worth certifying."""

_SHARED_NATS = 3.0
"""Questions about one run share a line if their log deltas are no further apart."""


class EstimatedBounds(NamedTuple):
    """A certified bracket and an estimate inside it: numbers, or vectors."""

    lower: Array
    upper: Array
    estimate: Array


def _larger(first: EstimatedBounds, second: EstimatedBounds) -> EstimatedBounds:
    """Return the bracket on the larger one of two numbers."""
    return EstimatedBounds(
        np.maximum(first.lower, second.lower),
        np.maximum(first.upper, second.upper),
        np.maximum(first.estimate, second.estimate),
    )


def _in_both(first: EstimatedBounds, second: EstimatedBounds) -> EstimatedBounds:
    """Return what both brackets leave, with the estimate of the first."""
    lower = np.maximum(first.lower, second.lower)
    upper = np.minimum(first.upper, second.upper)
    return _with_estimate_inside(EstimatedBounds(lower, upper, first.estimate))


def _with_estimate_inside(bracket: EstimatedBounds) -> EstimatedBounds:
    """Return the bracket with its estimate moved into it."""
    return bracket._replace(estimate=np.clip(bracket.estimate, bracket.lower, bracket.upper))


# ---------------------------------------------------------------------------------------------------------------------
# Epsilon of a run.


def epsilon_of_run(run: RunDescription, log_delta: Array, width: float = RELATIVE_WIDTH) -> EstimatedBounds:
    """Return the bracket on epsilon, the larger of the two directions.

    "remove" comes first, since it nearly always decides. "add" then only has to be shown to be smaller, with a contour
    as coarse as the gap between the two allows.
    """

    def is_smaller(some: RunDescription, _: Array, log_delta: Array, epsilon: Array) -> Array:
        return _is_smaller(some, log_delta, epsilon)

    def larger(some: RunDescription, known: EstimatedBounds, log_delta: Array) -> EstimatedBounds:
        return _larger(known, direction_epsilon(some, log_delta, known.lower, width))

    nothing = np.zeros(np.shape(log_delta))
    best = EstimatedBounds(nothing, nothing, nothing)
    for sign in run.signs:
        directed = run.towards(sign)
        is_done = where_asked(best.lower > 0, is_smaller, directed, nothing > 0, log_delta, best.lower)
        best = where_asked(~is_done, larger, directed, best, log_delta)
    return best


def epsilons_of_runs(runs: Sequence[RunDescription], log_delta: Array, width: float) -> EstimatedBounds:
    """Return the brackets on epsilon of several runs, each at its log delta [runs]; those alike side by side."""
    brackets = np.zeros((3, len(runs)))
    for rows in _alike(runs):
        if rows.size == 1:
            brackets[:, rows[0]] = epsilon_of_run(runs[rows[0]], log_delta[rows[0]], width)
            continue
        # The smallest delta of a line comes first: the line is made for it.
        rows = rows[np.argsort(log_delta[rows], kind="stable")]
        steps = tuple(runs[row].steps[0] for row in rows)
        together = RunDescription(steps, lines=_lines(steps, log_delta[rows]))
        brackets[:, rows] = epsilon_of_run(together, log_delta[rows], width)
    return EstimatedBounds(*brackets)


def _alike(runs: Sequence[RunDescription]) -> list[Array]:
    """Return the places of runs that can be looked at side by side: of steps of one kind alone."""
    places: dict[Any, list[int]] = {}
    for place, run in enumerate(runs):
        kind: Any = (place,)
        if is_alone(run) and len(run.steps) == 1 and not run.steps[0].missed:
            step = run.steps[0]
            kind = step.group_size, step.num_rows, step.symmetric, step.replaced
        places.setdefault(kind, []).append(place)
    return [np.array(rows) for rows in places.values()]


def _lines(steps: Sequence[SubsampledGaussian], log_delta: Array) -> Array:
    """Return the `RunDescription.lines` of runs of these steps, asked about at deltas that rise [runs]."""
    lines: list[int] = []
    newest: dict[SubsampledGaussian, int] = {}
    for row, step in enumerate(steps):
        first = newest.get(step, row)
        if log_delta[row] - log_delta[first] > _SHARED_NATS:
            first = row
        newest[step] = first
        lines.append(first)
    return np.array(lines)


def where_asked(is_asked: Array, ask: Callable[..., Any], run: Any, known: Any, *others: Any) -> Any:
    """Return ask(run, known, *others) if it is asked, otherwise what is ``known``.

    Runs side by side are asked about row by row; ``run`` is a description of them or a search, and what is known is an
    array or a bracket.
    """
    if not np.any(is_asked):
        return known
    if not np.ndim(is_asked):
        return ask(run, known, *others)
    rows = np.flatnonzero(is_asked)
    answer = np.array(known)
    answer[..., rows] = ask(*taken((run, known, *others), rows))
    return EstimatedBounds(*answer) if isinstance(known, EstimatedBounds) else answer


def on_lines(run: RunDescription, plan: ContourPlan, ask: Callable[..., Any], *known: Array) -> Any:
    """Return ask(line, *known), numbers or arrays [runs], for the lines of the plan.

    Of runs side by side as many lines at a time as stay in the cache, in the order of their numbers of frequencies.
    """
    if not run.apart:
        return ask(_evaluated(run, plan), *known)
    first, line = run.first_and_line
    counts = _characteristic_function.num_frequencies(taken(plan.contour, first))
    order = np.argsort(-counts)
    answers, places = [], []
    start = 0
    while start < order.size:
        at_once = _characteristic_function.num_at_once(int(counts[order[start]]))
        some = np.sort(order[start : start + at_once])
        start += at_once
        lines = _evaluated(*taken((run, plan), first[some]))

        # The runs that share these lines.
        rows = np.flatnonzero(np.isin(line, some))
        line_of_each = taken(lines, np.searchsorted(some, line[rows]))
        answers.append(np.asarray(ask(line_of_each, *taken(known, rows))))
        places.append(rows)
    answer = np.concatenate(answers, axis=-1)
    return answer[..., np.argsort(np.concatenate(places))]


def _evaluated(run: RunDescription, plan: ContourPlan) -> PlannedLine:
    """Return the planned line with the sums along it."""
    return _inversion.make_line(_characteristic_function.transform(run, plan.windows, plan.contour), plan)


def _is_smaller(run: RunDescription, log_delta: Array, epsilon: Array) -> Array:
    """Return whether the epsilon of one direction is certainly at most this one, by what costs little.

    That is so if delta(epsilon) is at most e^log_delta.
    """
    goal = log_delta - _LOG_DELTA_ROUNDING
    is_beyond = _is_beyond(run, epsilon)
    is_smaller = is_beyond & (_log_infinite(run) <= goal)
    if np.all(is_beyond) or not is_alone(run):
        return is_smaller

    # A Chernoff bound is certified where a rough one is clearly below.
    windows, theta, log_moment = per_line(run, _line_beyond, log_delta, epsilon)
    rough_chernoff = log_moment - theta * epsilon + log_peak(theta)
    is_likely = ~is_beyond & (rough_chernoff < log_delta - _CLEAR)

    def is_below(some: RunDescription, _: Array, windows: Windows, theta: Array, epsilon: Array, goal: Array) -> Array:
        return _inversion.log_chernoff_delta(some, windows, theta, epsilon) <= goal

    return where_asked(is_likely, is_below, run, is_smaller, windows, theta, epsilon, goal)


def _line_beyond(run: RunDescription, log_delta: Array, epsilon: Array) -> tuple[Windows, Array, Array]:
    """Return the windows, the line for delta(epsilon), and about K there."""
    windows = _contour_choice.choose_windows(run, log_delta)
    coarse = _contour_choice.coarse_run(run, windows)
    theta = _contour_choice.saddle_line(coarse, epsilon)
    return windows, theta, coarse.cumulants(theta).log_moment


# ---------------------------------------------------------------------------------------------------------------------
# Epsilon of one direction.


class EpsilonSearch(NamedTuple):
    """The data that all tries at the epsilon of one direction share."""

    run: RunDescription
    log_delta: Array
    run_lower: Array
    """What the epsilon of the whole run is known to exceed: an upper end below it need not be improved."""
    target_width: float
    """The relative width at which a bracket is narrow enough."""
    windows: Windows
    coarse: CoarseRun
    theta: Array
    """Where to start the search for the line."""

    def is_wide(self, bracket: EstimatedBounds, width: float, least: float = LEAST_RARE_EPSILON) -> Array:
        """Return whether a bracket matters, and is wider than this relative to its estimate."""
        gap = bracket.upper - bracket.lower
        return (gap > width * np.maximum(bracket.estimate, least)) & (bracket.upper > self.run_lower)


def direction_epsilon(run: RunDescription, log_delta: Array, run_lower: Array, target_width: float) -> EstimatedBounds:
    """Bracket the epsilon of one direction.

    Args:
        run: the run in one direction.
        log_delta: log of the delta that is asked about.
        run_lower: the bracket need not be tight once its upper end is below this.
        target_width: the relative width at which the search stops.
    """
    search, first_guess = begin_epsilon_search(run, log_delta, run_lower, target_width)
    trivial = _trivial_upper(run, log_delta)
    bracket = EstimatedBounds(np.zeros_like(trivial), trivial, first_guess)
    bracket = _ordinary_epsilon(search, bracket, range(TRIES_BEFORE_RARE))

    # The telling runs, where an example is rare and the ordinary tries do not get far.
    is_rare = _rare_outcomes.is_rare(run)
    is_tried = is_rare & search.is_wide(bracket, RARE_WIDTH) & _rare_outcomes.applies(run)
    telling = where_asked(is_tried, _one_by_one(telling_epsilon), search, bracket)

    # The ordinary tries that are left.
    is_wide = search.is_wide(telling, target_width)
    bracket = where_asked(is_wide, _ordinary_epsilon, search, bracket, range(TRIES_BEFORE_RARE, TRIES))
    bracket = _in_both(telling, bracket)

    # The width was relative to `LEAST_EPSILON` so far. Next to zero try again relative to a smaller one.
    is_tiny = is_rare & (bracket.estimate < _contour_choice.LEAST_EPSILON) & search.is_wide(bracket, target_width)
    bracket = where_asked(is_tiny, _ordinary_epsilon, search, bracket, range(TRIES_BEFORE_RARE), LEAST_RARE_EPSILON)

    # The telling runs elsewhere.
    is_wide = ~is_rare & search.is_wide(bracket, RARE_LAST_WIDTH) & _rare_outcomes.applies(run)
    bracket = where_asked(is_wide, _one_by_one(telling_epsilon), search, bracket)
    if run.missed_below:
        bracket = bracket._replace(lower=0.0)
    return _with_estimate_inside(bracket)


def begin_epsilon_search(
    run: RunDescription, log_delta: Array, run_lower: Array, target_width: float
) -> tuple[EpsilonSearch, Array]:
    """Return what the tries share, and a first guess of epsilon."""

    def begin(some: RunDescription, log_delta: Array) -> tuple[Any, ...]:
        windows = _contour_choice.choose_windows(some, log_delta)
        coarse = _contour_choice.coarse_run(some, windows)
        return windows, coarse, _contour_choice.first_guess(coarse, log_delta), log_delta

    windows, coarse, guess, guessed_at = per_line(run, begin, log_delta)
    search = EpsilonSearch(run, log_delta, run_lower, target_width, windows, coarse, guess.theta)
    # log delta falls with the slope -theta.
    return search, np.maximum(guess.epsilon + (guessed_at - log_delta) / guess.theta, 0.0)


def _one_by_one(
    improve: Callable[[EpsilonSearch, EstimatedBounds], EstimatedBounds],
) -> Callable[[EpsilonSearch, EstimatedBounds], EstimatedBounds]:
    """Return the function that improves a bracket as one that improves those of runs side by side, one by one."""

    def improve_each(search: EpsilonSearch, known: EstimatedBounds) -> EstimatedBounds:
        if not search.run.apart:
            return improve(search, known)
        ends = np.array(known)
        for row, step in enumerate(search.run.steps):
            one = RunDescription((step,))
            asked = search.log_delta[row], search.run_lower[row], search.target_width
            search_of_one, _ = begin_epsilon_search(one, *asked)
            ends[:, row] = improve(search_of_one, EstimatedBounds(*ends[:, row]))
        return EstimatedBounds(*ends)

    return improve_each


def _ordinary_epsilon(
    search: EpsilonSearch,
    known: EstimatedBounds,
    tries: range,
    least: float = _contour_choice.LEAST_EPSILON,
) -> EstimatedBounds:
    """Improve a bracket by contours for the whole run, until it is narrow or a try brings little.

    Args:
        search: what is asked.
        known: what is known so far.
        tries: numbers of the tries; each contour is finer than the one before.
        least: below it the width of a bracket is relative to this.
    """
    bracket = known
    is_open = np.True_
    for i in tries:
        is_open = is_open & search.is_wide(bracket, search.target_width, least)
        if not np.any(is_open):
            break
        before = bracket
        bracket = where_asked(is_open, _ordinary_try, search, before, i, least)
        if i > tries[0]:
            is_open = is_open & ~_is_stuck(before, bracket)
    return bracket


def _ordinary_try(search: EpsilonSearch, bracket: EstimatedBounds, i: int, least: float) -> EstimatedBounds:
    """Improve a bracket by the ordinary try of this number."""
    plan = per_line(search.run, _plan_of_try, search, bracket, i, least)
    known = bracket.estimate, search.log_delta
    lower, upper, estimate = on_lines(search.run, plan, _inversion.epsilon_bracket, *known)
    return _narrowed(bracket, Bounds(lower, upper), estimate)


def _plan_of_try(
    _: RunDescription, search: EpsilonSearch, bracket: EstimatedBounds, i: int, least: float
) -> ContourPlan:
    """Return the plan of the ordinary try of this number."""
    # The gap to an epsilon that is known to be larger allows for a coarse contour.
    slack = 0.5 * (search.run_lower / np.maximum(bracket.estimate, 1e-300) - 1.0)
    width = np.minimum(np.maximum(slack, search.target_width), _COARSEST_WIDTH) * 0.8**i
    return _contour_choice.make_plan(
        search.run,
        search.windows,
        search.coarse,
        bracket.estimate,
        search.log_delta,
        width,
        of_delta=False,
        start=search.theta,
        least=least,
    )


def telling_epsilon(search: EpsilonSearch, known: EstimatedBounds) -> EstimatedBounds:
    """Improve a bracket by the telling runs of `_rare_outcomes` alone."""
    bracket = known
    if not known.lower > 0:  # otherwise the estimate is good
        guess = _rare_outcomes.first_guess(search.coarse, search.log_delta)
        bracket = known._replace(estimate=min(guess, known.upper))
    for i in range(RARE_TRIES):
        gap = bracket.upper - bracket.lower
        is_wide = gap > search.target_width * max(bracket.upper, LEAST_RARE_EPSILON)
        if not (is_wide and bracket.estimate > 0):
            break
        plan, split = _rare_outcomes.make_plan(
            search.run,
            search.windows,
            search.coarse,
            bracket.estimate,
            search.log_delta,
            search.target_width * 0.8**i,
            of_delta=False,
        )
        data = _rare_outcomes.transform(search.run, search.windows, split, plan.contour)
        inside = Bounds(bracket.lower, bracket.upper)
        bounds, estimate = _rare_outcomes.epsilon_bracket(data, plan, split.loud, inside, search.log_delta)
        before = bracket
        bracket = _narrowed(before, bounds, estimate)
        if i > 0 and _is_stuck(before, bracket):
            break

    # A guess next to an upper end alone is no estimate.
    if not bracket.lower > known.lower:
        bracket = bracket._replace(estimate=known.estimate)
    return _with_estimate_inside(bracket)


def _narrowed(bracket: EstimatedBounds, bounds: Bounds, estimate: Array) -> EstimatedBounds:
    """Return what a bracket and new bounds leave, with a new estimate. A number that is not known says nothing."""
    lower = np.fmax(bracket.lower, bounds.lower)
    upper = np.fmin(bracket.upper, bounds.upper)
    return EstimatedBounds(lower, upper, estimate)


def _is_stuck(before: EstimatedBounds, after: EstimatedBounds) -> Array:
    """Return whether a try found a lower end and left nearly all of the bracket."""
    return (after.lower > 0) & (after.upper - after.lower > _PROGRESS * (before.upper - before.lower))


# ---------------------------------------------------------------------------------------------------------------------
# Bounds that need no search.


def _trivial_upper(run: RunDescription, log_delta: Array) -> Array:
    """Return an upper bound on epsilon that ignores the sampling.

    Without sampling the steps are mu-GDP, delta <= Phi(mu/2 - e/mu) <= e^{-x^2/2}; other losses are bounded.
    """
    mu = gaussian_mu(run)
    gaussian = mu * (np.sqrt(-2.0 * log_delta) + 0.5 * mu) * (1.0 + 1e-12)
    return gaussian + _bounded_losses.largest_loss(run.finite)


def _is_beyond(run: RunDescription, epsilon: Array) -> Array:
    """Return where epsilon exceeds all losses of a direction but the infinite ones of atoms: delta is their mass."""
    is_bounded = not run.replaces_one and all(step.sign < 0 for step in run.steps)
    if not is_bounded:
        return np.zeros(np.shape(epsilon), bool)
    return epsilon > largest_loss(run)


def _log_infinite(run: RunDescription) -> float:
    """Return log of the mass of the infinite losses."""
    return np.log(-np.expm1(_atoms.log_lost(run.atoms)))


# ---------------------------------------------------------------------------------------------------------------------
# Log delta of a run.


def log_deltas_of_run(run: RunDescription, epsilon: Array, width: float = RELATIVE_WIDTH) -> EstimatedBounds:
    """Return the brackets on log delta, the larger of the two directions, at epsilons [n] that share a contour."""
    nothing = np.full(epsilon.shape, -np.inf)
    best = EstimatedBounds(nothing, nothing, nothing)
    for sign in run.signs:
        best = _larger(best, direction_log_deltas(run.towards(sign), epsilon, best.lower, width))
    return best


def deltas_of_run(run: RunDescription, epsilon: Array, num_sharing: int = 1, width: float = RELATIVE_WIDTH) -> Bounds:
    """Return brackets on delta at many epsilon [n], of which some neighbours each share a contour.

    Args:
        run: the run.
        epsilon: the points [n].
        num_sharing: how many neighbours share a contour.
        width: the relative width that the brackets aim at.
    """
    lower, upper = [], []
    for start in range(0, epsilon.size, num_sharing):
        neighbours = epsilon[start : start + num_sharing]
        log_delta = log_deltas_of_run(run, neighbours, width)
        lower.append(log_delta.lower)
        upper.append(log_delta.upper)
    return exp_outward(np.concatenate(lower), np.concatenate(upper))


def exp_outward(log_lower: Array, log_upper: Array) -> Bounds:
    """Return a bracket from the logarithms of its ends, with room for the rounding of exp."""
    return Bounds(
        np.exp(log_lower) * (1.0 - _EXP_ROUNDING),
        np.exp(log_upper) * (1.0 + _EXP_ROUNDING),
    )


# ---------------------------------------------------------------------------------------------------------------------
# Log delta of one direction.


class DeltaSearch(NamedTuple):
    """The data that all tries at the deltas of one direction share."""

    run: RunDescription
    epsilon: Array
    """The points [n] that share a contour."""
    run_lower: Array
    """What log delta of the whole run is known to exceed [n]: an upper end below it need not be improved."""
    target_width: float
    """The width of log delta at which a bracket is narrow enough."""

    def is_wide(self, bracket: EstimatedBounds, width: float) -> Array:
        """Return where a bracket matters, and is wider than this [n]."""
        matters = bracket.upper > np.maximum(self.run_lower, _LOWEST_LOG_DELTA)
        return (bracket.upper - bracket.lower > width) & matters


def direction_log_deltas(
    run: RunDescription, epsilon: Array, run_lower: Array, target_width: float = RELATIVE_WIDTH
) -> EstimatedBounds:
    """Bracket log delta of one direction at several epsilon.

    Args:
        run: the run in one direction.
        epsilon: the points [n], close enough to share a contour.
        run_lower: a bracket need not be tight once its upper end is below this [n].
        target_width: the width of log delta at which the search stops.
    """
    search = DeltaSearch(run, epsilon, run_lower, target_width)
    guess = _contour_choice.guess_log_delta(run, epsilon[epsilon.size // 2])
    nothing = EstimatedBounds(
        lower=np.full(epsilon.shape, -np.inf),
        upper=np.where(_is_beyond(run, epsilon), _log_infinite(run), 0.0),
        estimate=np.full(epsilon.shape, guess),
    )
    # Two further tries for each further point.
    first_tries = TRIES_BEFORE_RARE + 2 * (epsilon.size - 1)
    all_tries = TRIES + 2 * (epsilon.size - 1)
    bracket = _ordinary_log_deltas(search, nothing, range(first_tries))

    # The telling runs, where the ordinary tries do not get far, and the ordinary tries that are left.
    telling = _telling_log_deltas(search, bracket) if _rare_outcomes.applies(run) else bracket
    if np.any(search.is_wide(telling, target_width)):
        bracket = _ordinary_log_deltas(search, bracket, range(first_tries, all_tries))
    bracket = _in_both(telling, bracket)
    if run.missed_below:
        bracket = bracket._replace(lower=nothing.lower)
    return bracket


def _ordinary_log_deltas(search: DeltaSearch, known: EstimatedBounds, tries: range) -> EstimatedBounds:
    """Improve brackets by contours for the whole run, until they are narrow or a try brings little.

    The first contour is made for the middle of the points, others for the one with the widest bracket.

    Args:
        search: what is asked.
        known: what is known so far [n].
        tries: numbers of the tries.
    """
    run, epsilon = search.run, search.epsilon
    bracket, theta = known, 1.0
    for i in tries:
        is_wide = search.is_wide(bracket, search.target_width)
        if not is_wide.any():
            break
        is_first = i == 0
        at = epsilon.size // 2 if is_first else _widest(bracket, is_wide)

        # The gap to a delta that is known to be larger allows for a coarse contour.
        guess = np.clip(bracket.estimate, _LOWEST_LOG_DELTA, -_LEAST_MISSING)
        slack = 0.3 * (search.run_lower[at] - guess[at])
        width = min(max(slack, search.target_width), 1.0)

        # Once for all points, later for the one at hand: a window for a much smaller delta does harm.
        window_log_delta = np.min(guess) if is_first else guess[at]
        windows = _contour_choice.choose_windows(run, window_log_delta)
        coarse = _contour_choice.coarse_run(run, windows)
        plan = _contour_choice.make_plan(
            run,
            windows,
            coarse,
            epsilon[at],
            guess[at],
            width,
            of_delta=True,
            start=theta,
        )
        theta = plan.contour.theta
        data = _characteristic_function.transform(run, windows, plan.contour)
        bounds, estimate = _inversion.log_delta_bracket(data, plan, epsilon)

        # No lower bound: the window may have been too narrow for a delta this small.
        estimate = np.where(bounds.lower > -np.inf, estimate, np.fmin(estimate, 1.6 * guess))

        # Estimates of narrower brackets are better, and the one at hand has just been looked at.
        is_narrower = bounds.upper - bounds.lower < bracket.upper - bracket.lower
        is_better = is_narrower | (np.arange(epsilon.size) == at)
        before = bracket
        bracket = EstimatedBounds(
            lower=np.maximum(before.lower, bounds.lower),
            upper=np.minimum(before.upper, bounds.upper),
            estimate=np.where(is_better, estimate, before.estimate),
        )
        if i > tries[0] and _are_stuck(before, bracket):
            break
    return bracket


def _widest(bracket: EstimatedBounds, is_wide: Array) -> int:
    """Return the place of the widest bracket among those that are too wide."""
    gap = np.where(is_wide, bracket.upper - bracket.lower, -1.0)
    return int(np.argmax(gap))


def _are_stuck(before: EstimatedBounds, after: EstimatedBounds) -> bool:
    """Return whether all brackets have a lower end, and a try left nearly all of each."""
    has_lower = after.lower > -np.inf
    is_stuck = after.upper - after.lower > _PROGRESS * (before.upper - before.lower)
    return bool(np.all(has_lower & is_stuck))


def _telling_log_deltas(search: DeltaSearch, known: EstimatedBounds) -> EstimatedBounds:
    """Improve brackets by the telling runs of `_rare_outcomes` alone, each with its own contour."""
    lower, upper = np.array(known.lower), np.array(known.upper)
    for at in range(search.epsilon.size):
        inside = Bounds(lower[at], upper[at])
        lower[at], upper[at] = _telling_log_delta(search, inside, search.epsilon[at], search.run_lower[at])
    estimate = np.minimum(np.maximum(known.estimate, lower), upper)
    return EstimatedBounds(lower, upper, estimate)


def _telling_log_delta(search: DeltaSearch, known: Bounds, epsilon: float, run_lower: float) -> Bounds:
    """Improve the bracket at one epsilon by the telling runs."""
    if not epsilon > 0:
        return known
    lower, upper = known
    guess = _rare_outcomes.guess_log_delta(search.run, epsilon)
    for i in range(RARE_TRIES):
        is_wide = upper - lower > max(search.target_width, RARE_DELTA_WIDTH)
        matters = upper > max(run_lower, _LOWEST_LOG_DELTA)
        if not (is_wide and matters and guess > _LOWEST_LOG_DELTA):
            break
        guess = min(max(guess, lower), upper, -_LEAST_MISSING)
        windows = _contour_choice.choose_windows(search.run, guess)
        coarse = _contour_choice.coarse_run(search.run, windows)
        plan, split = _rare_outcomes.make_plan(
            search.run,
            windows,
            coarse,
            epsilon,
            guess,
            search.target_width * 0.5**i,
            of_delta=True,
        )
        data = _rare_outcomes.transform(search.run, windows, split, plan.contour)
        bounds, guess = _rare_outcomes.log_delta_bracket(data, plan, split.loud, epsilon)
        lower, upper = max(lower, bounds.lower), min(upper, bounds.upper)
    return Bounds(lower, upper)
