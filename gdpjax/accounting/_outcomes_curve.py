"""The curve of a run with events that are given by outcomes, such as random allocation: `OutcomesCurve`.

An epoch of random allocation is two events given by their outcomes (`_composition._atoms`), one a kind of block, in a
pair that understates and in one that overstates: `_bounds.events_of_scheme`. Others come from `_outcomes`. They go into
one `RunDescription` beside the other phases and the events of bounded loss. Of the two runs, below and above, epsilon,
delta and mu are asked: the lower end comes from the run below and the upper end from the one above. For the trade-off
curve, which falls where the others rise, it is the reverse. Epsilon and delta of one release are sums (`_one_run`);
those of several are composed by the contour. What the run below leaves out is never part of a test, so the errors of
its tests are those of tests of the true run.

Nothing is known from the pairs where their rounding is large or the noise is below the smallest that they are made for:
the ends are then those of the run in which it is known when an example takes part, and of a run of nothing.

Of an epoch whose last steps were not made, what was released is a part of what the whole epoch would have released: the
run is at most E epochs from above, and at least E - 1 from below.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import scipy

from gdpjax._composition import _atoms, _bounded_losses, _directions, _tradeoff, prepare
from gdpjax._composition._atoms import OutcomeEvents
from gdpjax._composition._questions import SMALLEST_PROB
from gdpjax._composition._run_description import RunDescription, gaussian_mu
from gdpjax._core.checks import NONNEGATIVE, OPEN_UNIT, UNIT, known
from gdpjax._core.dominating import gaussian_delta
from gdpjax._core.gdp import epsilon_kernel
from gdpjax._core.types import FAILURE, Bounds, Numbers
from gdpjax.accounting._allocation import _bounds, _one_run
from gdpjax.accounting._allocation._bounds import Scheme, Sides, make_scheme, within
from gdpjax.accounting._combinators import AccountedCurve, Between, Meet
from gdpjax.accounting._ledgers import Described, check_relations, describe, events_of
from gdpjax.accounting._outcomes import is_given_by_outcomes, sides_of
from gdpjax.accounting._overflow import Lost, with_failure
from gdpjax.ledger import (
    AllocationEvent,
    AnyEvent,
    LaplaceEvent,
    Ledger,
    OutcomesEvent,
    ShuffledEvent,
    TruncatedPoissonEvent,
)
from gdpjax.tradeoff import CertifiedCurve, Laplace, NoGuarantee, compose, each, subsample

_EPSILON_WIDTH = 3e-4
_SLACK = 1e-9
_TINY = 2.3e-308
_SMALLEST_ALPHA = 1e-300
_SMALLEST_NOISE_SEARCHED = 0.2
_LEAST_BETA = 1e-12
_FEW_RELEASES = 1000
"""Up to so many releases of sampled Laplace noise alone are composed as curves, too."""


class OutcomesCurve(AccountedCurve):
    """The certified curve of the events of a run of which some are given by outcomes, if nothing is lost.

    Args:
        schemes: the random allocations.
        rest: all other events but those with outcomes.
        outcomes: other events with outcomes, from both sides.
    """

    def __init__(
        self, schemes: Sequence[Scheme], rest: RunDescription, outcomes: Sequence[Sides[tuple[OutcomeEvents, ...]]] = ()
    ) -> None:
        self.schemes = schemes
        self.rest = rest
        self.outcomes = outcomes
        self.least_noise = min((part.noise_multiplier for part in (*schemes, *rest.steps)), default=math.inf)
        above = [event for side in outcomes for event in side.above or ()]
        # Nothing is hidden without noise, or by two laws without an outcome in common.
        self.hides_nothing = self.least_noise == 0 or any(event.log_ratio.size == 0 for event in above)
        if self.hides_nothing:
            return

        # The mu of all Gaussian steps if it were known in which an example takes part is the largest possible.
        squared_of_schemes = sum(scheme.squared_mu for scheme in schemes)
        self.gaussian_mu = math.sqrt(gaussian_mu(rest) ** 2 + squared_of_schemes)

        # The others have bounded losses, or losses without a bound.
        is_bounded = all(side.above for side in outcomes) and all(event.mu < math.inf for event in above)
        directions = [[dataclasses.replace(event, sign=sign) for event in above] for sign in (1.0, -1.0)]
        with np.errstate(all="ignore"):
            of_outcomes = max(_atoms.largest_loss(events) for events in directions)
            leaked = max(0.0, *(-math.expm1(_atoms.log_lost(events)) for events in directions))
        self.leaked = leaked * (1.0 - 4.0 * _SLACK)
        self.largest_loss = _bounded_losses.largest_loss(rest.finite) + (of_outcomes if is_bounded else math.inf)
        squared_of_others = _bounded_losses.squared_mu(rest.finite) + sum(
            event.num_steps * event.mu**2 for event in above
        )
        squared = self.gaussian_mu**2 + squared_of_others
        self.whole_mu = math.sqrt(squared) * (1.0 + _SLACK) if is_bounded else math.inf

    def epsilon(self, delta: Numbers) -> Bounds:
        """Bracket epsilon."""
        return self._each(self._epsilon, known("delta", delta, OPEN_UNIT), math.inf)

    def delta(self, epsilon: Numbers) -> Bounds:
        """Bracket delta."""
        return self._each(self._delta, known("epsilon", epsilon, NONNEGATIVE), 1.0)

    def mu(self, failure: Numbers = FAILURE) -> Bounds:
        """Bracket mu."""
        return self._each(self._mu, known("failure", failure, OPEN_UNIT), math.inf)

    def tradeoff(self, alpha: Numbers) -> Bounds:
        """Bracket the trade-off curve."""
        return self._each(self._error, known("alpha", alpha, UNIT), 0.0)

    def _each(self, ask: Callable[[float], Bounds], at: np.ndarray, if_not_hidden: float) -> Bounds:
        """Return the answers at every number of an array."""
        if self.hides_nothing:
            return each(lambda _: Bounds(if_not_hidden, if_not_hidden), at)
        with np.errstate(all="ignore"):
            return each(ask, at)

    @property
    def _is_gaussian(self) -> bool:
        """Return whether an example takes part in every step, so that mu is known."""
        is_alone = not self.outcomes and not self.rest.steps and not self.rest.finite
        return is_alone and all(scheme.is_gaussian for scheme in self.schemes)

    def _runs_around(self, log_delta: float, num_cells: int | None = None) -> Sides[RunDescription]:
        """Return the runs below and above for a question about a delta of e^log_delta."""
        sides = list(self.outcomes)
        if self.schemes:
            log_tail = _bounds.log_tail_of(self.schemes, log_delta)
            sides += [_bounds.events_of_scheme(scheme, log_tail, num_cells) for scheme in self.schemes]
        below = above = None
        if all(side.below is not None for side in sides):
            # The least probability stands for smaller ones, too, so such steps are left out below. The pair of Poisson
            # sampling bounds that of uniform sampling.
            steps = tuple(
                dataclasses.replace(step, symmetric=False)
                for step in self.rest.steps
                if step.sampling_prob > SMALLEST_PROB
            )
            below = RunDescription(steps, self.rest.finite, sum((side.below or () for side in sides), ()))
        if all(side.above is not None for side in sides):
            above = RunDescription(self.rest.steps, self.rest.finite, sum((side.above or () for side in sides), ()))
        return Sides(below, above)

    def _epsilon(self, delta: float) -> Bounds:
        if delta < self.leaked:
            return Bounds(math.inf, math.inf)

        # The epsilon of the whole run if it is known when an example takes part. Near zero delta fixes it absolutely.
        gaussian = float(epsilon_kernel(np, np.asarray(delta), np.asarray(1.0 - delta), np.asarray(self.gaussian_mu)))
        largest = gaussian * (1.0 + _SLACK) + 1e-12 + self.largest_loss
        if self._is_gaussian:
            return Bounds(max(gaussian * (1.0 - _SLACK) - 1e-12, 0.0), largest)

        def ask(run: RunDescription) -> Any:
            if _is_one_release(run):
                return _one_run.epsilon(_bounds.only_pair(run.atoms), delta)
            return _directions.epsilon_of_run(run, log_delta, _EPSILON_WIDTH)

        log_delta = math.log(delta)
        return within(Bounds(0.0, largest), self._runs_around(log_delta), ask)

    def _delta(self, epsilon: float) -> Bounds:
        # Events of bounded loss shift epsilon by their largest loss at most.
        largest = 1.0
        shifted_epsilon = epsilon - self.largest_loss * (1.0 + _bounds.EXP_ROUNDING)
        if shifted_epsilon >= 0:
            gaussian = gaussian_delta(shifted_epsilon, self.gaussian_mu)
            largest = float(gaussian.upper)
            if self._is_gaussian:
                return Bounds(float(gaussian.lower), largest)

        def ask(run: RunDescription) -> Bounds:
            if _is_one_release(run):
                return _one_run.delta(_bounds.only_pair(run.atoms), epsilon)
            lower, upper = _directions.deltas_of_run(run, np.array([epsilon]))
            return Bounds(lower[0], upper[0])

        def coarse(guess: float) -> RunDescription | None:
            return self._runs_around(guess, _bounds.FEWEST_CELLS).below

        log_delta = _bounds.guess_log_delta(epsilon, coarse) if self.schemes else 0.0
        delta = within(Bounds(0.0, largest), self._runs_around(log_delta), ask)
        return Bounds(max(delta.lower - _TINY, self.leaked, 0.0), min(delta.upper + _TINY, 1.0))

    def _mu(self, failure: float) -> Bounds:
        # As for other runs: at the smallest noises the search takes long and improves little.
        trivial = Bounds(0.0, self.whole_mu)
        if failure < self.leaked:
            return Bounds(math.inf, math.inf)
        if self.least_noise < _SMALLEST_NOISE_SEARCHED:
            return trivial
        sides = self._runs_around(math.log(failure))
        mu = within(trivial, sides, lambda run: _tradeoff.mu_of_run(run, failure))
        return Bounds(min(mu.lower, self.whole_mu), mu.upper)

    def _error(self, alpha: float) -> Bounds:
        """Bracket the trade-off curve; it falls, so the run above gives the lower end."""
        if alpha == 1.0 or (alpha == 0.0 and not self.leaked):
            return Bounds(1.0 - alpha, 1.0 - alpha)
        if alpha == 0.0:
            # The test that rejects only what leaks has no other error.
            lowest = 1.0 - self.leaked * (1.0 + 8.0 * _SLACK)
            return Bounds(max(np.nextafter(lowest, 0.0), 0.0), np.nextafter(1.0 - self.leaked, 1.0))
        inner_alpha = min(max(alpha, _SMALLEST_ALPHA), 1.0 - 1e-16)
        gaussian = float(scipy.special.ndtr(-scipy.special.ndtri(inner_alpha) - self.whole_mu))
        trivial = gaussian * (1.0 - _SLACK) - 1e-15
        scale = min(inner_alpha, 1.0 - inner_alpha, max(trivial, _LEAST_BETA))

        below, above = self._runs_around(math.log(scale))
        widest = Bounds(max(trivial, 0.0), 1.0 - inner_alpha)
        error = within(widest, Sides(above, below), lambda run: _tradeoff.tradeoff_of_run(run, inner_alpha))

        # The curve falls, so below the smallest alpha only the lower bound at it holds.
        return Bounds(error.lower, 1.0 if alpha < _SMALLEST_ALPHA else error.upper)


def _is_one_release(run: RunDescription) -> bool:
    """Return whether there is one event that is given by outcomes, once, and nothing to compose."""
    return len(run.atoms) == 1 and run.atoms[0].num_steps == 1 and not run.steps and not run.finite


def curve_of_outcomes(run: Ledger | AnyEvent) -> CertifiedCurve:
    """Return the curve of a run with random allocation or other events that are given by outcomes."""
    events = events_of(run)
    allocations = [event for event in events if isinstance(event, AllocationEvent)]
    given = [
        event for event in events if isinstance(event, LaplaceEvent | OutcomesEvent) and is_given_by_outcomes(event)
    ]
    others = [event for event in events if event not in allocations and event not in given]
    for event in others:
        if isinstance(event, TruncatedPoissonEvent | ShuffledEvent):
            first = type((*allocations, *given)[0]).__name__
            raise ValueError(f"no bound is known for a Ledger with both {type(event).__name__} and {first}")
    check_relations(events)
    described = describe(Ledger(others), 1)
    rest = prepare(described.family, described.columns).run

    # Epochs that were not finished are there from above only.
    outcomes = sides_of(given, alone=not allocations and not others)
    curve = _curve_of_epochs(allocations, rest, outcomes)
    finished = [whole for event in allocations for whole in _finished(event)]
    if finished != allocations:
        curve = Between(curve, _curve_of_epochs(finished, rest, outcomes))
    curve = with_failure(curve, lost_of(allocations, described))

    # The composition of the curves of few releases is known better where example after example is hardly ever sampled.
    laplace = [event for event in given if isinstance(event, LaplaceEvent)]
    if len(laplace) < len(events) or sum(event.num_steps for event in laplace) > _FEW_RELEASES:
        return curve
    steps = [subsample(Laplace(event.epsilon), event.sampling_prob).one_direction for event in laplace]
    return Meet(
        curve, compose(*(step for step, event in zip(steps, laplace, strict=True) for _ in range(event.num_steps)))
    )


def _curve_of_epochs(
    allocations: Sequence[AllocationEvent], rest: RunDescription, outcomes: Sequence[Sides]
) -> CertifiedCurve:
    """Return the curve of whole epochs and the rest, if nothing is lost."""
    if not allocations and not outcomes:
        # Without these events less is released, and only ends that say what nothing would say are needed.
        return NoGuarantee()
    schemes = []
    for event in allocations:
        numbers = (event.noise_multiplier, event.steps_per_epoch, event.num_epochs, event.num_selected)
        schemes.append(make_scheme(*numbers, event.bins == "fixed"))
    return OutcomesCurve(schemes, rest, outcomes)


def lost_of(allocations: Sequence[AllocationEvent], rest: Described) -> Lost:
    """Return the probabilities of failure and overflow of epochs of random allocation and the rest of a run."""
    silent = math.fsum(event.overflow for event in allocations if not event.announced)
    announced = math.fsum(event.overflow for event in allocations if event.announced)
    return rest.lost._replace(
        silent=min(rest.lost.silent + silent, 1.0),
        announced=min(rest.lost.announced + announced, 1.0),
        largest_loss=math.inf,
        is_symmetric=False,
    )


def _finished(event: AllocationEvent) -> list[AllocationEvent]:
    """Return the event without an epoch that was not finished."""
    if not event.missing_steps:
        return [event]
    if event.num_epochs == 1:
        return []
    return [dataclasses.replace(event, num_epochs=event.num_epochs - 1, missing_steps=0)]
