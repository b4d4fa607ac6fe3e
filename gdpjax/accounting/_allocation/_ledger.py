"""Any question about runs in which random allocation is composed with other events.

An epoch is two events given by their outcomes (`_numeric._atoms`), one a kind of block, in a pair that understates
and in one that overstates: `_bounds.events_of_scheme`. They go into one `Run` beside the other phases and the events of
bounded loss. Of the two runs, below and above, epsilon, delta and mu are asked: the lower end comes from the run below
and the upper end from the one above. For the trade-off curve, which falls where the others rise, it is the reverse.
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
from scipy.special import ndtr, ndtri

from gdpjax._core.checks import COUNT, NONNEGATIVE, OPEN_UNIT, POSITIVE, UNIT, WHOLE, Domain
from gdpjax._core.gdp import epsilon_kernel
from gdpjax._core.precision import batched
from gdpjax._core.types import Bounds
from gdpjax.accounting._allocation import _bounds
from gdpjax.accounting._allocation._bounds import Scheme
from gdpjax.accounting._numeric import _bounded_losses, _closed_forms, _directions, _dominating, _tradeoff
from gdpjax.accounting._numeric._atoms import Atoms
from gdpjax.accounting._numeric._bounded_losses import Finite
from gdpjax.accounting._numeric._likelihood_ratio import Step
from gdpjax.accounting._numeric._run_description import Run

_SLACK = 1e-9
_TINY = 2.3e-308
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


class _Parts(NamedTuple):
    """What a run consists of."""

    schemes: list[Scheme]
    steps: tuple[Step, ...]
    finite: tuple[Finite, ...]

    @property
    def mu(self) -> float:
        """The mu of all Gaussian steps if it were known in which of them an example takes part: the most it can be."""
        squared = sum(step.num_steps / step.noise_multiplier**2 for step in self.steps)
        return math.sqrt(squared + sum(scheme.squared_mu for scheme in self.schemes))

    @property
    def whole_mu(self) -> float:
        """A mu that the whole run has, with the events of bounded loss."""
        return math.sqrt(self.mu**2 + _bounded_losses.squared_mu(self.finite)) * (1.0 + _SLACK)

    @property
    def least_noise(self) -> float:
        """The smallest noise multiplier of all."""
        return min(part.noise_multiplier for part in (*self.schemes, *self.steps))


class _Bracket(NamedTuple):
    """The runs below and above; None where nothing is known from a pair."""

    below: Run | None
    above: Run | None


def _bracket(parts: _Parts, log_delta: float, num_cells: int | None = None) -> _Bracket:
    """The runs of ``parts`` for a question about a delta of e^log_delta."""
    log_tail = _bounds.log_tail_of(parts.schemes, log_delta)
    sides = [_bounds.events_of_scheme(scheme, log_tail, num_cells) for scheme in parts.schemes]

    def run(steps: tuple[Step, ...], events: list[tuple[Atoms, ...] | None]) -> Run | None:
        if any(one is None for one in events):
            return None
        return Run(steps, parts.finite, tuple(event for one in events for event in one or ()))

    # Phases of a tiny probability are computed with a larger one, and left out below.
    kept = tuple(step for step in parts.steps if step.sampling_prob >= _SMALLEST_PROB)
    raised = tuple(
        dataclasses.replace(step, sampling_prob=max(step.sampling_prob, _SMALLEST_PROB)) for step in parts.steps
    )
    return _Bracket(run(kept, [side.below for side in sides]), run(raised, [side.above for side in sides]))


def _at_least(number: float, run: Run | None, known: Callable[[Run], float]) -> float:
    """The larger of a number and of what is known from a run, if anything is."""
    return number if run is None else float(np.fmax(known(run), number))


def _at_most(number: float, run: Run | None, known: Callable[[Run], float]) -> float:
    """The smaller of the two."""
    return number if run is None else float(np.fmin(known(run), number))


def _epsilon(parts: _Parts, delta: float) -> Bounds:
    runs = _bracket(parts, math.log(delta))
    gaussian = float(epsilon_kernel(np, np.asarray(delta), np.asarray(1.0 - delta), np.asarray(parts.mu)))
    trivial = gaussian * (1.0 + _SLACK) + 1e-12 + _bounded_losses.largest_loss(parts.finite)
    return Bounds(
        _at_least(0.0, runs.below, lambda run: _directions.epsilon_of_run(run, math.log(delta)).lower),
        _at_most(trivial, runs.above, lambda run: _directions.epsilon_of_run(run, math.log(delta)).upper),
    )


def _delta(parts: _Parts, epsilon: float) -> Bounds:
    def coarse(log_delta: float) -> Run | None:
        return _bracket(parts, log_delta, _bounds.FEWEST_CELLS).above

    runs = _bracket(parts, _bounds.guess_log_delta(epsilon, coarse))
    # Events of bounded loss shift epsilon by their largest loss at most.
    rest = epsilon - _bounded_losses.largest_loss(parts.finite) * (1.0 + 1e-12)
    trivial = 1.0
    if rest >= 0:
        trivial = float(_closed_forms.gaussian_delta(rest, parts.mu).upper)
    lower = _at_least(
        0.0, runs.below, lambda run: np.exp(_directions.log_delta_of_run(run, epsilon).lower) * (1.0 - 1e-12)
    )
    upper = _at_most(
        trivial, runs.above, lambda run: np.exp(_directions.log_delta_of_run(run, epsilon).upper) * (1.0 + 1e-12)
    )
    return Bounds(max(lower - _TINY, 0.0), min(upper + _TINY, 1.0))


def _mu(parts: _Parts, failure: float) -> Bounds:
    whole = parts.whole_mu
    # As for other runs: at the smallest noises the search takes long and finds little.
    if parts.least_noise < _SMALLEST_NOISE_SEARCHED:
        return Bounds(0.0, whole)
    runs = _bracket(parts, math.log(failure))
    lower = _at_least(0.0, runs.below, lambda run: _dominating.mu_of_run(run, failure).lower)
    upper = _at_most(whole, runs.above, lambda run: _dominating.mu_of_run(run, failure).upper)
    return Bounds(min(lower, whole), upper)


def _curve(parts: _Parts, alpha: float) -> Bounds:
    if alpha in (0.0, 1.0):
        return Bounds(1.0 - alpha, 1.0 - alpha)
    at = min(max(alpha, _SMALLEST_ALPHA), 1.0 - 1e-16)
    trivial = float(ndtr(-ndtri(at) - parts.whole_mu)) * (1.0 - _SLACK) - 1e-15
    scale = min(at, 1.0 - at, max(trivial, _LEAST_BETA))
    runs = _bracket(parts, math.log(scale))
    lower = _at_least(max(trivial, 0.0), runs.above, lambda run: _tradeoff.tradeoff_of_run(run, at).lower)
    upper = _at_most(1.0 - at, runs.below, lambda run: _tradeoff.tradeoff_of_run(run, at).upper)
    # The curve falls, so below the smallest alpha only the lower bound at it holds.
    return Bounds(lower, 1.0 if alpha < _SMALLEST_ALPHA else upper)


_QUESTIONS: dict[str, tuple[Callable[[_Parts, float], Bounds], str, Domain]] = {
    "epsilon": (_epsilon, "delta", OPEN_UNIT),
    "delta": (_delta, "epsilon", NONNEGATIVE),
    "mu": (_mu, "failure", OPEN_UNIT),
    "tradeoff": (_curve, "alpha", UNIT),
}


def _rows(columns: Sequence[np.ndarray]) -> list[tuple[float, ...]]:
    """The numbers of each event, from the columns of all."""
    return [tuple(map(float, row)) for row in zip(*columns, strict=True)]


@functools.cache
def of_allocation(question: str, with_steps: bool, with_finite: bool) -> Callable[..., Any]:
    """The question about runs of allocation, which are the last axis of its five arguments, and other events.

    Called with (noise_multiplier, steps_per_epoch, num_epochs, num_selected, fixed), then the phases and the events of
    bounded loss as in `_numeric.of_phases` where there are any, then what it is asked at.
    """
    ask, name, domain = _QUESTIONS[question]

    def core(*values: Any) -> Bounds:
        *columns, at = values
        schemes = [_bounds.make_scheme(*row) for row in _rows(columns[:5])]
        phases = [Step(noise, prob, count) for noise, prob, count in _rows(columns[5:8] if with_steps else [])]
        events = [Finite(*row) for row in _rows(columns[-3:] if with_finite else [])]
        # What does nothing is left out.
        steps = tuple(phase for phase in phases if phase.sampling_prob > 0 and phase.num_steps > 0)
        finite = tuple(event for event in events if event.num_steps > 0 and event.bound > 0)
        return ask(_Parts(schemes, steps, finite), at)

    domains = {**_ALLOCATION, **(_PHASES if with_steps else {}), **(_FINITE if with_finite else {}), name: domain}
    groups = (5, *((3,) if with_steps else ()), *((3,) if with_finite else ()))
    return batched(core, phase_groups=groups, **domains)  # pyright: ignore
