"""The questions about runs in which random allocation is composed with other events.

`of_allocation` gives each question as a function of arrays, which `_allocated` asks about a `Ledger`.

An epoch is two events given by their outcomes (`_numeric._atoms`), one a kind of block, in a pair that understates
and in one that overstates: `_bounds.events_of_scheme`. They go into one `RunDescription` beside the other phases and
the events of bounded loss. Of the two runs, below and above, epsilon, delta and mu are asked: the lower end comes from
the run below and the upper end from the one above. For the trade-off curve, which falls where the others rise, it is
the reverse.
What the run below leaves out is never part of a test, so the errors of its tests are those of tests of the true run.

Nothing is known from the pairs where their rounding is large or the noise is below the smallest that they are made for:
the ends are then those of the run in which it is known when an example takes part, and of a run of nothing.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import scipy

from gdpjax._core.checks import COUNT, NONNEGATIVE, OPEN_UNIT, POSITIVE, UNIT, WHOLE, Domain
from gdpjax._core.gdp import epsilon_kernel
from gdpjax._core.precision import batched
from gdpjax._core.types import Bounds
from gdpjax.accounting._allocation import _bounds
from gdpjax.accounting._allocation._bounds import Scheme
from gdpjax.accounting._numeric import _bounded_losses, _closed_forms, _directions, _dominating, _tradeoff
from gdpjax.accounting._numeric._atoms import OutcomeEvents
from gdpjax.accounting._numeric._bounded_losses import BoundedLossEvents
from gdpjax.accounting._numeric._likelihood_ratio import SubsampledGaussian
from gdpjax.accounting._numeric._run_description import RunDescription

_SLACK = 1e-9
_TINY = 2.3e-308
_EXP_ROUNDING = 1e-12
_SMALLEST_PROB = 1e-30
_SMALLEST_ALPHA = 1e-300
_SMALLEST_NOISE_SEARCHED = 0.2
_LEAST_BETA = 1e-12
_ALLOCATION = {
    "noise_multiplier": POSITIVE,
    "steps_per_epoch": COUNT,
    "num_epochs": COUNT,
    "num_selected": COUNT,
    "fixed": UNIT,
}
_PHASES = {"phase_noise": POSITIVE, "phase_prob": UNIT, "phase_steps": WHOLE}
_FINITE = {"count": WHOLE, "bound": NONNEGATIVE, "categories": NONNEGATIVE}


class _AllocationRun(NamedTuple):
    """The events of a run in which there is random allocation.

    Attributes:
        schemes: the random allocations.
        steps: the phases of Gaussian steps.
        finite: the events of bounded loss.
    """

    schemes: list[Scheme]
    steps: tuple[SubsampledGaussian, ...]
    finite: tuple[BoundedLossEvents, ...]

    @property
    def mu(self) -> float:
        """Return the mu of all Gaussian steps if it were known in which an example takes part: the largest possible."""
        squared_of_steps = sum(step.num_steps / step.noise_multiplier**2 for step in self.steps)
        squared_of_schemes = sum(scheme.squared_mu for scheme in self.schemes)
        return math.sqrt(squared_of_steps + squared_of_schemes)

    @property
    def whole_mu(self) -> float:
        """Return a mu that the whole run has, with the events of bounded loss."""
        squared = self.mu**2 + _bounded_losses.squared_mu(self.finite)
        return math.sqrt(squared) * (1.0 + _SLACK)

    @property
    def least_noise(self) -> float:
        """Return the smallest noise multiplier of all."""
        return min(part.noise_multiplier for part in (*self.schemes, *self.steps))


class _RunPair(NamedTuple):
    """A run that reveals at most as much and one that reveals at least as much; None where nothing is known."""

    below: RunDescription | None
    above: RunDescription | None


def _run_pair(
    run: _AllocationRun,
    log_delta: float,
    num_cells: int | None = None,
) -> _RunPair:
    """Return the runs below and above for a question about a delta of e^log_delta."""
    log_tail = _bounds.log_tail_of(run.schemes, log_delta)
    sides = [_bounds.events_of_scheme(scheme, log_tail, num_cells) for scheme in run.schemes]

    # Phases of a tiny probability are computed with a larger one, and left out below.
    steps_below = []
    steps_above = []
    for step in run.steps:
        if step.sampling_prob >= _SMALLEST_PROB:
            steps_below.append(step)
        larger_prob = max(step.sampling_prob, _SMALLEST_PROB)
        steps_above.append(dataclasses.replace(step, sampling_prob=larger_prob))
    below = _joined(steps_below, run.finite, [side.below for side in sides])
    above = _joined(steps_above, run.finite, [side.above for side in sides])
    return _RunPair(below, above)


def _joined(
    steps: list[SubsampledGaussian],
    finite: tuple[BoundedLossEvents, ...],
    events_of_schemes: list[tuple[OutcomeEvents, ...] | None],
) -> RunDescription | None:
    """Return the run of all these events; None where nothing is known of a scheme."""
    events = []
    for events_of_scheme in events_of_schemes:
        if events_of_scheme is None:
            return None
        events.extend(events_of_scheme)
    return RunDescription(tuple(steps), finite, tuple(events))


def _epsilon(run: _AllocationRun, delta: float) -> Bounds:
    """Bracket epsilon at delta."""
    log_delta = math.log(delta)
    below, above = _run_pair(run, log_delta)
    lower = 0.0
    if below is not None:
        bracket = _directions.epsilon_of_run(below, log_delta)
        lower = float(np.fmax(bracket.lower, lower))

    # The epsilon of the whole run if it is known when an example takes part.
    gaussian = float(
        epsilon_kernel(
            np,
            np.asarray(delta),
            np.asarray(1.0 - delta),
            np.asarray(run.mu),
        )
    )
    upper = gaussian * (1.0 + _SLACK) + 1e-12 + _bounded_losses.largest_loss(run.finite)
    if above is not None:
        bracket = _directions.epsilon_of_run(above, log_delta)
        upper = float(np.fmin(bracket.upper, upper))
    return Bounds(lower, upper)


def _delta(run: _AllocationRun, epsilon: float) -> Bounds:
    """Bracket delta at epsilon."""

    def coarse_run(log_delta: float) -> RunDescription | None:
        return _run_pair(run, log_delta, _bounds.FEWEST_CELLS).above

    log_delta = _bounds.guess_log_delta(epsilon, coarse_run)
    below, above = _run_pair(run, log_delta)
    lower = 0.0
    if below is not None:
        bracket = _directions.log_delta_of_run(below, epsilon)
        lower = float(np.fmax(np.exp(bracket.lower) * (1.0 - _EXP_ROUNDING), lower))

    # Events of bounded loss shift epsilon by their largest loss at most.
    upper = 1.0
    shifted_epsilon = epsilon - _bounded_losses.largest_loss(run.finite) * (1.0 + _EXP_ROUNDING)
    if shifted_epsilon >= 0:
        upper = float(_closed_forms.gaussian_delta(shifted_epsilon, run.mu).upper)
    if above is not None:
        bracket = _directions.log_delta_of_run(above, epsilon)
        upper = float(np.fmin(np.exp(bracket.upper) * (1.0 + _EXP_ROUNDING), upper))
    return Bounds(max(lower - _TINY, 0.0), min(upper + _TINY, 1.0))


def _mu(run: _AllocationRun, failure: float) -> Bounds:
    """Bracket mu at a failure probability."""
    # As for other runs: at the smallest noises the search takes long and improves little.
    whole_mu = run.whole_mu
    if run.least_noise < _SMALLEST_NOISE_SEARCHED:
        return Bounds(0.0, whole_mu)

    below, above = _run_pair(run, math.log(failure))
    lower = 0.0
    if below is not None:
        bracket = _dominating.mu_of_run(below, failure)
        lower = float(np.fmax(bracket.lower, lower))
    upper = whole_mu
    if above is not None:
        bracket = _dominating.mu_of_run(above, failure)
        upper = float(np.fmin(bracket.upper, upper))
    return Bounds(min(lower, whole_mu), upper)


def _tradeoff_at(run: _AllocationRun, alpha: float) -> Bounds:
    """Bracket the trade-off curve at alpha; it falls, so the run above gives the lower end."""
    if alpha in (0.0, 1.0):
        return Bounds(1.0 - alpha, 1.0 - alpha)
    inner_alpha = min(max(alpha, _SMALLEST_ALPHA), 1.0 - 1e-16)
    trivial = float(scipy.special.ndtr(-scipy.special.ndtri(inner_alpha) - run.whole_mu)) * (1.0 - _SLACK) - 1e-15
    scale = min(inner_alpha, 1.0 - inner_alpha, max(trivial, _LEAST_BETA))

    below, above = _run_pair(run, math.log(scale))
    lower = max(trivial, 0.0)
    if above is not None:
        bracket = _tradeoff.tradeoff_of_run(above, inner_alpha)
        lower = float(np.fmax(bracket.lower, lower))
    upper = 1.0 - inner_alpha
    if below is not None:
        bracket = _tradeoff.tradeoff_of_run(below, inner_alpha)
        upper = float(np.fmin(bracket.upper, upper))

    # The curve falls, so below the smallest alpha only the lower bound at it holds.
    if alpha < _SMALLEST_ALPHA:
        upper = 1.0
    return Bounds(lower, upper)


_QUESTIONS: dict[str, tuple[Callable[[_AllocationRun, float], Bounds], str, Domain]] = {
    "epsilon": (_epsilon, "delta", OPEN_UNIT),
    "delta": (_delta, "epsilon", NONNEGATIVE),
    "mu": (_mu, "failure", OPEN_UNIT),
    "tradeoff": (_tradeoff_at, "alpha", UNIT),
}


def _rows(columns: Sequence[np.ndarray]) -> list[tuple[float, ...]]:
    """Return the numbers of each event, from the columns of all."""
    return [tuple(map(float, row)) for row in zip(*columns, strict=True)]


def _make_run(
    scheme_columns: Sequence[np.ndarray],
    step_columns: Sequence[np.ndarray],
    finite_columns: Sequence[np.ndarray],
) -> _AllocationRun:
    """Return the run with these columns of numbers, without the events that do nothing."""
    schemes = [_bounds.make_scheme(*row) for row in _rows(scheme_columns)]
    steps = []
    for noise_multiplier, sampling_prob, num_steps in _rows(step_columns):
        step = SubsampledGaussian(noise_multiplier, sampling_prob, num_steps)
        if step.sampling_prob > 0 and step.num_steps > 0:
            steps.append(step)
    finite = []
    for row in _rows(finite_columns):
        event = BoundedLossEvents(*row)
        if event.num_steps > 0 and event.bound > 0:
            finite.append(event)
    return _AllocationRun(schemes, tuple(steps), tuple(finite))


@functools.cache
def of_allocation(
    question: str,
    with_steps: bool,
    with_finite: bool,
) -> Callable[..., Any]:
    """Return the question about runs of allocation, which are the last axis of its five arguments, and other events.

    Called with (noise_multiplier, steps_per_epoch, num_epochs, num_selected, fixed), then the phases and the events of
    bounded loss as in `_numeric.of_phases` where there are any, then the number that it is asked at.
    """
    ask, name, domain = _QUESTIONS[question]
    domains = dict(_ALLOCATION)
    groups = [len(_ALLOCATION)]
    if with_steps:
        domains.update(_PHASES)
        groups.append(len(_PHASES))
    if with_finite:
        domains.update(_FINITE)
        groups.append(len(_FINITE))
    domains[name] = domain

    def core(*values: Any) -> Bounds:
        *columns, query = values
        step_columns = columns[5:8] if with_steps else []
        finite_columns = columns[-3:] if with_finite else []
        run = _make_run(columns[:5], step_columns, finite_columns)
        return ask(run, query)

    return batched(core, phase_groups=tuple(groups), **domains)  # pyright: ignore
