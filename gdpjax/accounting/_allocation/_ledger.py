"""The questions about runs with random allocation, alone or beside other events.

`bracket` answers them, of the run that `_allocated` makes of a `Ledger`. Epsilon and delta of one event of random
allocation alone are those of `_bounds`, in a narrower bracket.

An epoch is two events given by their outcomes (`_numeric._atoms`), one a kind of block, in a pair that understates
and in one that overstates: `_bounds.events_of_scheme`. They go into one `RunDescription` beside the other phases and
the events of bounded loss. Of the two runs, below and above, epsilon, delta and mu are asked: the lower end comes from
the run below and the upper end from the one above. For the trade-off curve, which falls where the others rise, it is
the reverse.
What the run below leaves out is never part of a test, so the errors of its tests are those of tests of the true run.

Nothing is known from the pairs where their rounding is large or the noise is below the smallest that they are made for:
the ends are then those of the run in which it is known when an example takes part, and of a run of nothing.
"""

import math
from typing import NamedTuple

import numpy as np
import scipy

from gdpjax._core.gdp import epsilon_kernel
from gdpjax._core.types import Bounds
from gdpjax.accounting._allocation import _bounds
from gdpjax.accounting._allocation._bounds import Scheme
from gdpjax.accounting._numeric import _bounded_losses, _closed_forms, _directions, _dominating, _tradeoff
from gdpjax.accounting._numeric._atoms import OutcomeEvents
from gdpjax.accounting._numeric._bounded_losses import BoundedLossEvents
from gdpjax.accounting._numeric._likelihood_ratio import SubsampledGaussian
from gdpjax.accounting._numeric._questions import SMALLEST_PROB
from gdpjax.accounting._numeric._run_description import RunDescription

_SLACK = 1e-9
_TINY = 2.3e-308
_EXP_ROUNDING = 1e-12
_SMALLEST_ALPHA = 1e-300
_SMALLEST_NOISE_SEARCHED = 0.2
_LEAST_BETA = 1e-12


class AllocationRun(NamedTuple):
    """The events of a run in which there is random allocation.

    Attributes:
        schemes: the random allocations.
        rest: all other events.
    """

    schemes: list[Scheme]
    rest: RunDescription

    @property
    def is_one_scheme(self) -> bool:
        """Return whether there is one event of random allocation, and nothing else."""
        return len(self.schemes) == 1 and not self.rest.steps and not self.rest.finite

    @property
    def mu(self) -> float:
        """Return the mu of all Gaussian steps if it were known in which an example takes part: the largest possible."""
        squared_of_steps = sum(step.num_steps / step.noise_multiplier**2 for step in self.rest.steps)
        squared_of_schemes = sum(scheme.squared_mu for scheme in self.schemes)
        return math.sqrt(squared_of_steps + squared_of_schemes)

    @property
    def whole_mu(self) -> float:
        """Return a mu that the whole run has, with the events of bounded loss."""
        squared = self.mu**2 + _bounded_losses.squared_mu(self.rest.finite)
        return math.sqrt(squared) * (1.0 + _SLACK)

    @property
    def least_noise(self) -> float:
        """Return the smallest noise multiplier of all."""
        return min(part.noise_multiplier for part in (*self.schemes, *self.rest.steps))


class _RunPair(NamedTuple):
    """A run that reveals at most as much and one that reveals at least as much; None where nothing is known."""

    below: RunDescription | None
    above: RunDescription | None


def _run_pair(
    run: AllocationRun,
    log_delta: float,
    num_cells: int | None = None,
) -> _RunPair:
    """Return the runs below and above for a question about a delta of e^log_delta."""
    log_tail = _bounds.log_tail_of(run.schemes, log_delta)
    sides = [_bounds.events_of_scheme(scheme, log_tail, num_cells) for scheme in run.schemes]

    # The least probability stands for smaller ones, too, so such steps are left out below.
    steps_below = tuple(step for step in run.rest.steps if step.sampling_prob > SMALLEST_PROB)
    below = _joined(steps_below, run.rest.finite, [side.below for side in sides])
    above = _joined(run.rest.steps, run.rest.finite, [side.above for side in sides])
    return _RunPair(below, above)


def _joined(
    steps: tuple[SubsampledGaussian, ...],
    finite: tuple[BoundedLossEvents, ...],
    events_of_schemes: list[tuple[OutcomeEvents, ...] | None],
) -> RunDescription | None:
    """Return the run of all these events; None where nothing is known of a scheme."""
    events = []
    for events_of_scheme in events_of_schemes:
        if events_of_scheme is None:
            return None
        events.extend(events_of_scheme)
    return RunDescription(steps, finite, tuple(events))


def _epsilon(run: AllocationRun, delta: float) -> Bounds:
    """Bracket epsilon at delta."""
    if run.is_one_scheme:
        return _bounds.epsilon_of_scheme(run.schemes[0], delta)
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
    upper = gaussian * (1.0 + _SLACK) + 1e-12 + _bounded_losses.largest_loss(run.rest.finite)
    if above is not None:
        bracket = _directions.epsilon_of_run(above, log_delta)
        upper = float(np.fmin(bracket.upper, upper))
    return Bounds(lower, upper)


def _delta(run: AllocationRun, epsilon: float) -> Bounds:
    """Bracket delta at epsilon."""
    if run.is_one_scheme:
        return _bounds.delta_of_scheme(run.schemes[0], epsilon)

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
    shifted_epsilon = epsilon - _bounded_losses.largest_loss(run.rest.finite) * (1.0 + _EXP_ROUNDING)
    if shifted_epsilon >= 0:
        upper = float(_closed_forms.gaussian_delta(shifted_epsilon, run.mu).upper)
    if above is not None:
        bracket = _directions.log_delta_of_run(above, epsilon)
        upper = float(np.fmin(np.exp(bracket.upper) * (1.0 + _EXP_ROUNDING), upper))
    return Bounds(max(lower - _TINY, 0.0), min(upper + _TINY, 1.0))


def _mu(run: AllocationRun, failure: float) -> Bounds:
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


def _tradeoff_at(run: AllocationRun, alpha: float) -> Bounds:
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


_QUESTIONS = {"epsilon": _epsilon, "delta": _delta, "mu": _mu, "tradeoff": _tradeoff_at}


def bracket(question: str, run: AllocationRun, at: np.ndarray) -> Bounds:
    """Bracket the answer to "epsilon", "delta", "mu" or "tradeoff" at every number of an array."""
    ask = _QUESTIONS[question]
    answers = np.zeros((2, at.size))
    with np.errstate(all="ignore"):
        for i, number in enumerate(at.ravel()):
            answers[:, i] = ask(run, number)
    lower, upper = answers.reshape(2, *at.shape)
    return Bounds(lower[()], upper[()])
