"""One run, both directions, as many tries as it needs."""

from typing import NamedTuple

import numpy as np

from gdpjax._core.types import Array, Bounds
from gdpjax.accounting._numeric import (
    _atoms,
    _bounded_losses,
    _characteristic_function,
    _contour_choice,
    _inversion,
    _rare_outcomes,
)
from gdpjax.accounting._numeric._contour import log_peak
from gdpjax.accounting._numeric._contour_choice import CoarseRun
from gdpjax.accounting._numeric._moments import Window
from gdpjax.accounting._numeric._run_description import Run, gaussian_mu, is_alone, largest_loss

RELATIVE_WIDTH = 1e-3
ESTIMATE_WIDTH = 3e-2
TRIES = 5
_PROGRESS = 0.95
"""A try that leaves more than this share of a bracket is the last: what bounds it are the numbers of frequencies."""
TRIES_BEFORE_RARE = 2
RARE_TRIES = 5
RARE_WIDTH, RARE_DELTA_WIDTH = 2e-3, 1e-2
"""The relative widths of epsilon and of delta from which on `_rare_outcomes` is tried, where it applies."""
RARE_LAST_WIDTH = 0.02
"""The same for other runs, after all the ordinary tries."""
LEAST_RARE_EPSILON = 1e-6
"""Where an example is hardly ever sampled, the width of a bracket on epsilon is relative to this below it."""
_LOWEST_LOG_DELTA = -690.0
_CLEAR = 0.01
"""A rough Chernoff bound on log delta that is lower by this much is worth certifying."""
_FAR_BELOW = 3.0
"""To show that log delta is below another number it is enough to be right to this."""
_CHERNOFF_LINES = (1.0, 0.98, 0.95, 0.9, 0.8, 0.6)
"""Shares of the best exponent at which the Chernoff bound is tried."""
_CLEARLY_BELOW = 0.5
_CONFIRMED = 0.2
"""An estimate counts as confirmed if the certified upper end exceeds it by at most this share of that end, ..."""
_NEGLIGIBLE = 2e-5
"""... or by this much, since brackets next to epsilon 0 are that wide."""


class Answer(NamedTuple):
    """A certified bracket and an estimate inside it: numbers, or vectors."""

    lower: Array
    upper: Array
    estimate: Array


def _worse(first: Answer, second: Answer) -> Answer:
    return Answer(*(np.maximum(a, b) for a, b in zip(first, second, strict=True)))


def _within(first: Answer, second: Answer) -> Answer:
    """What both brackets leave, with the estimate of the first."""
    return _inside(Answer(np.maximum(first.lower, second.lower), np.minimum(first.upper, second.upper), first.estimate))


def _inside(answer: Answer) -> Answer:
    """The answer with its estimate moved into the bracket."""
    return answer._replace(estimate=np.clip(answer.estimate, answer.lower, answer.upper))


def epsilon_of_run(run: Run, log_delta: float, width: float = RELATIVE_WIDTH) -> Answer:
    """The bracket on epsilon, the larger of the two directions, of a run.

    "remove" comes first, since it nearly always decides. "add" then only has to be shown to be smaller, with a
    smoothing as coarse as the gap between the two allows.
    """
    best = Answer(0.0, 0.0, 0.0)
    for sign in run.signs:
        directed = run.towards(sign)
        if not (best.lower > 0 and _is_smaller(directed, log_delta, best.lower, width)):
            best = _worse(best, direction_epsilon(directed, log_delta, best.lower, width))
    return best


def _is_smaller(run: Run, log_delta: float, epsilon: float, width: float) -> bool:
    """Whether the epsilon of one direction is certainly at most ``epsilon``: one try, as coarse as it may be.

    That is so if delta(epsilon) is at most e^log_delta. The smoothing takes half of the gap between the two, and there
    is no try where that is finer than a bracket of relative ``width`` needs.
    """
    if _is_beyond(run, epsilon):
        return _log_infinite(run) <= log_delta - 1e-13
    windows = _contour_choice.choose_windows(run, log_delta)
    coarse = _contour_choice.coarse_run(run, windows)
    theta = _contour_choice.saddle_line(coarse, epsilon)
    guess = _contour_choice.saddle_log_delta(coarse, theta) - theta * epsilon
    chernoff = coarse.cumulants(theta)[0] - theta * epsilon + log_peak(theta)
    likely = is_alone(run) and chernoff < log_delta - _CLEAR
    if likely and _inversion.log_chernoff_delta(run, windows, theta, epsilon) <= log_delta - 1e-13:
        return True
    if not guess > log_delta - _FAR_BELOW:  # the line need not be the best one for so small a delta
        theta, guess = _contour_choice.chernoff_line(coarse, log_delta), log_delta - _FAR_BELOW
    room = 0.5 * (log_delta - guess)
    if not room > width * theta * max(epsilon, _contour_choice.LEAST_EPSILON):
        return False
    contour = _contour_choice.choose_contour(coarse, theta, epsilon, guess, min(room, 1.0))
    plan = _contour_choice.ContourPlan(contour, windows, epsilon, guess)
    return (
        _inversion.log_upper_delta(_characteristic_function.transform(run, windows, contour), plan) <= log_delta - 1e-13
    )


def estimate_of_run(run: Run, log_delta: float) -> float:
    """An estimate of epsilon; a direction whose rough guess is far below that of another is left out.

    The search of a direction brackets what it estimates. Where the upper end stays far above, the estimate is inf.
    """
    largest_guess, best = -1.0, 0.0
    for sign in run.signs:
        directed = run.towards(sign)
        guess = _contour_choice.first_guess(
            _contour_choice.coarse_run(directed, _contour_choice.choose_windows(directed, log_delta)), log_delta
        ).epsilon
        if guess > _CLEARLY_BELOW * largest_guess:
            answer = direction_epsilon(directed, log_delta, best, ESTIMATE_WIDTH)
            narrow = answer.upper - answer.estimate <= _CONFIRMED * answer.upper + _NEGLIGIBLE
            best = max(best, answer.estimate if narrow or answer.upper <= best else np.inf)
        largest_guess = max(largest_guess, guess)
    return best


def direction_epsilon(run: Run, log_delta: float, against: float, target: float) -> Answer:
    """One direction; the bracket need not be tight once its upper end is below ``against``."""
    windows = _contour_choice.choose_windows(run, log_delta)
    coarse = _contour_choice.coarse_run(run, windows)
    estimate, theta = _contour_choice.first_guess(coarse, log_delta)
    nothing = Answer(0.0, _trivial_upper(run, log_delta), estimate)

    def ordinary(known: Answer, tries: range, least: float = _contour_choice.LEAST_EPSILON) -> Answer:
        lower, upper, estimate = known
        for i in tries:
            if not (upper - lower > target * max(estimate, least) and upper > against):
                break
            slack = 0.5 * (against / max(estimate, 1e-300) - 1.0)
            width = min(max(slack, target), 0.2) * 0.8**i
            plan = _contour_choice.make_plan(
                run, windows, coarse, estimate, log_delta, width, of_delta=False, start=theta, least=least
            )
            data = _characteristic_function.transform(run, windows, plan.contour)
            bounds, estimate = _inversion.epsilon_bracket(data, plan)
            before = upper - lower
            lower, upper = max(lower, bounds.lower), min(upper, bounds.upper)
            if i > tries[0] and lower > 0 and upper - lower > _PROGRESS * before:
                break
        return Answer(lower, upper, estimate)

    def wide(known: Answer, share: float) -> bool:
        lower, upper, estimate = known
        return upper > against and upper - lower > share * max(estimate, LEAST_RARE_EPSILON)

    if not _rare_outcomes.is_rare(run):
        answer = ordinary(nothing, range(TRIES))
        if _rare_outcomes.applies(run) and wide(answer, RARE_LAST_WIDTH):
            answer = _rare_epsilon(run, windows, coarse, answer, log_delta, target)
        if is_alone(run) and wide(answer, RARE_LAST_WIDTH):
            # The best exponent may be next to one from which on the moments explode.
            chernoff = [
                _inversion.chernoff_epsilon(run, windows, theta * share, log_delta) for share in _CHERNOFF_LINES
            ]
            answer = answer._replace(upper=np.fmin(answer.upper, np.fmin.reduce(chernoff)))
        return _inside(answer)

    # The telling runs, where the ordinary tries do not get far; then the ordinary tries that are left.
    answer = ordinary(nothing, range(TRIES_BEFORE_RARE))
    telling = answer
    if run.steps[0].sign > 0 and wide(answer, RARE_WIDTH):
        telling = _rare_epsilon(run, windows, coarse, answer, log_delta, target)
    if wide(telling, target):
        answer = ordinary(answer, range(TRIES_BEFORE_RARE, TRIES))
    answer = _within(telling, answer)
    if answer.estimate < _contour_choice.LEAST_EPSILON and wide(answer, target):
        answer = ordinary(answer, range(TRIES_BEFORE_RARE), LEAST_RARE_EPSILON)
    return _inside(answer)


def _rare_epsilon(
    run: Run, windows: list[Window], coarse: CoarseRun, known: Answer, log_delta: float, target: float
) -> Answer:
    """The bracket by the telling runs of `_rare_outcomes` alone, within what is known already."""
    lower, upper, estimate = known
    if not lower > 0:  # otherwise the estimate is good
        estimate = min(_rare_outcomes.first_guess(coarse, log_delta), upper)
    for i in range(RARE_TRIES):
        if not (upper - lower > target * max(upper, LEAST_RARE_EPSILON) and estimate > 0):
            break
        width = target * 0.8**i
        plan, split = _rare_outcomes.make_plan(run, windows, coarse, estimate, log_delta, width, of_delta=False)
        data = _rare_outcomes.transform(run, windows, split, plan.contour)
        bounds, estimate = _rare_outcomes.epsilon_bracket(data, plan, split.loud, Bounds(lower, upper), log_delta)
        before = upper - lower
        lower, upper = max(lower, bounds.lower), min(upper, bounds.upper)
        if i > 0 and lower > 0 and upper - lower > _PROGRESS * before:
            break
    # A guess next to an upper end alone is no estimate.
    return _inside(Answer(lower, upper, estimate if lower > known.lower else known.estimate))


def _trivial_upper(run: Run, log_delta: float) -> float:
    """Without sampling the steps are mu-GDP, delta <= Phi(mu/2 - e/mu) <= e^{-x^2/2}; other losses are bounded."""
    mu = gaussian_mu(run)
    return mu * (np.sqrt(-2.0 * log_delta) + 0.5 * mu) * (1.0 + 1e-12) + _bounded_losses.largest_loss(run.finite)


def _is_beyond(run: Run, epsilon: Array) -> Array:
    """Where epsilon exceeds all losses of one direction but the infinite ones of atoms, so that delta is their mass."""
    is_bounded = not run.is_symmetric and all(step.sign < 0 for step in run.steps)
    return epsilon > largest_loss(run) if is_bounded else np.zeros(np.shape(epsilon), bool)


def _log_infinite(run: Run) -> float:
    """log of the mass of the infinite losses."""
    return np.log(-np.expm1(_atoms.log_lost(run.atoms)))


def log_delta_of_run(run: Run, epsilon: float, width: float = RELATIVE_WIDTH) -> Answer:
    """The bracket on log delta, the larger of the two directions, of a run."""
    return Answer(*(leaf[0] for leaf in log_deltas_of_run(run, np.array([epsilon]), width)))


def log_deltas_of_run(run: Run, epsilon: Array, width: float = RELATIVE_WIDTH) -> Answer:
    """The same at several epsilon [n] that are close enough to share a contour."""
    nothing = np.full(epsilon.shape, -np.inf)
    best = Answer(nothing, nothing, nothing)
    for sign in run.signs:
        best = _worse(best, direction_log_deltas(run.towards(sign), epsilon, best.lower, width))
    return best


def direction_log_deltas(run: Run, epsilon: Array, against: Array, target: float = RELATIVE_WIDTH) -> Answer:
    """One direction; a bracket need not be tight once its upper end is below ``against``.

    The contour is made for the middle of the points, then for the one with the widest bracket.
    """
    lower, upper = np.full(epsilon.shape, -np.inf), np.where(_is_beyond(run, epsilon), _log_infinite(run), 0.0)

    middle, sharing = epsilon.size // 2, 2 * (epsilon.size - 1)
    estimate = np.full(epsilon.shape, _contour_choice.guess_log_delta(run, epsilon[middle]))
    nothing = Answer(lower, upper, estimate)

    def is_wide(known: Answer, share: float) -> Array:
        return (known.upper - known.lower > share) & (known.upper > np.maximum(against, _LOWEST_LOG_DELTA))

    def ordinary(known: Answer, theta: float, tries: range) -> tuple[Answer, float]:
        lower, upper, estimate = known
        for i in tries:
            too_wide = is_wide(Answer(lower, upper, estimate), target)
            if not too_wide.any():
                break
            at = middle if i == 0 else int(np.argmax(np.where(too_wide, upper - lower, -1.0)))
            guess = np.clip(estimate, _LOWEST_LOG_DELTA, -1e-12)
            width = min(max(0.3 * (against[at] - guess[at]), target), 1.0)
            # Once for all points, later for the one at hand: a window for a much smaller delta does harm.
            windows = _contour_choice.choose_windows(run, (np.min(guess) if i == 0 else guess[at]))
            coarse = _contour_choice.coarse_run(run, windows)
            plan = _contour_choice.make_plan(
                run, windows, coarse, epsilon[at], guess[at], width, of_delta=True, start=theta
            )
            theta = plan.contour.theta
            data = _characteristic_function.transform(run, windows, plan.contour)
            new, found = _inversion.log_delta_bracket(data, plan, epsilon)
            # No lower bound: the window may have been too narrow for a delta this small.
            found = np.where(new.lower > -np.inf, found, np.fmin(found, 1.6 * guess))
            better = (new.upper - new.lower < upper - lower) | (np.arange(epsilon.size) == at)
            estimate = np.where(better, found, estimate)
            before = upper - lower
            lower, upper = np.maximum(lower, new.lower), np.minimum(upper, new.upper)
            if i > tries[0] and np.all(lower > -np.inf) and np.all(upper - lower > _PROGRESS * before):
                break
        return Answer(lower, upper, estimate), theta

    if not _rare_outcomes.applies(run):
        return _inside(ordinary(nothing, 1.0, range(TRIES + sharing))[0])
    if not _rare_outcomes.is_rare(run):
        answer, _ = ordinary(nothing, 1.0, range(TRIES + sharing))
        if np.any(is_wide(answer, RARE_LAST_WIDTH)):
            answer = _rare_log_deltas(run, epsilon, answer, against, target)
        return _inside(answer)

    # The telling runs, where the ordinary tries do not get far; then the ordinary tries that are left.
    before_rare = TRIES_BEFORE_RARE + sharing
    answer, theta = ordinary(nothing, 1.0, range(before_rare))
    telling = _rare_log_deltas(run, epsilon, answer, against, target)
    if np.any(is_wide(telling, target)):
        answer, _ = ordinary(answer, theta, range(before_rare, TRIES + sharing))
    return _within(telling, answer)


def _rare_log_deltas(run: Run, epsilon: Array, known: Answer, against: Array, target: float) -> Answer:
    """The brackets by the telling runs of `_rare_outcomes` alone, within what is known already; each with its own contour."""
    lower, upper, estimate = (np.array(leaf) for leaf in known)
    for at in range(epsilon.size):
        guess = _rare_outcomes.guess_log_delta(run, epsilon[at]) if epsilon[at] > 0 else -np.inf
        for i in range(RARE_TRIES):
            too_wide = upper[at] - lower[at] > max(target, RARE_DELTA_WIDTH)
            if not too_wide or not upper[at] > max(against[at], _LOWEST_LOG_DELTA) or not guess > _LOWEST_LOG_DELTA:
                break
            guess = min(max(guess, lower[at]), upper[at], -1e-12)
            windows = _contour_choice.choose_windows(run, guess)
            coarse = _contour_choice.coarse_run(run, windows)
            plan, split = _rare_outcomes.make_plan(
                run, windows, coarse, epsilon[at], guess, target * 0.5**i, of_delta=True
            )
            data = _rare_outcomes.transform(run, windows, split, plan.contour)
            new, guess = _rare_outcomes.log_delta_bracket(data, plan, split.loud, epsilon[at])
            lower[at], upper[at] = max(lower[at], new.lower), min(upper[at], new.upper)
        estimate[at] = min(max(estimate[at], lower[at]), upper[at])
    return Answer(lower, upper, estimate)
