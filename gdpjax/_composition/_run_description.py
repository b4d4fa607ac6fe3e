"""The description of a whole run, and what can be said about it without computing its moments.

A run has phases of subsampled Gaussian steps, events of bounded loss, and events given by their outcomes:

    >>> steps = SubsampledGaussian(noise_multiplier=2.0, sampling_prob=0.01, num_steps=100.0)
    >>> run = RunDescription(steps=(steps,), finite=(BoundedLossEvents(num_steps=1.0, bound=0.5, categories=2.0),))
    >>> num_steps(run), is_alone(run)
    (101.0, False)
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy

from gdpjax._composition import _atoms, _bounded_losses
from gdpjax._composition._atoms import OutcomeEvents
from gdpjax._composition._bounded_losses import BoundedLossEvents
from gdpjax._composition._likelihood_ratio import Steps, SubsampledGaussian, side_by_side
from gdpjax._core.types import Array


@dataclasses.dataclass(frozen=True)
class RunDescription:
    """A run in one direction.

    Attributes:
        steps: Phases of subsampled Gaussian steps.
        finite: Events of bounded loss.
        atoms: Events given by their outcomes.
        lines: A number for each of the steps, where each is a run of its own, side by side with the others, and there
            are no other events. What is one number of a run is then an array [runs]. Runs of one number are the same,
            asked about at deltas close to each other: one line serves them all.
    """

    steps: tuple[SubsampledGaussian, ...]
    finite: tuple[BoundedLossEvents, ...] = ()
    atoms: tuple[OutcomeEvents, ...] = ()
    lines: Array | None = dataclasses.field(default=None, compare=False)

    @property
    def apart(self) -> bool:
        """Whether each of the steps is a run of its own."""
        return self.lines is not None

    @functools.cached_property
    def side_by_side(self) -> Steps:
        """Return the phases of subsampled Gaussian steps, of which there are some, side by side."""
        return side_by_side(self.steps)

    @property
    def first_and_line(self) -> tuple[Array, Array]:
        """Return the first of the runs side by side on each line, and the line of each run, counted from 0."""
        _, first, line = np.unique(np.asarray(self.lines), return_index=True, return_inverse=True)
        return first, line

    def towards(self, sign: float) -> "RunDescription":
        """Return the run in the direction "remove" (+1) or "add" (-1), one of its `signs`."""
        steps = []
        for step in self.steps:
            is_kept = step.replaced or step.sign == sign
            steps.append(step if is_kept else dataclasses.replace(step, sign=sign))
        atoms = tuple(dataclasses.replace(event, sign=sign) for event in self.atoms)
        return RunDescription(tuple(steps), self.finite, atoms, self.lines)

    def taken(self, rows: Array) -> "RunDescription":
        """Return some of the runs side by side."""
        some = RunDescription(tuple(self.steps[row] for row in rows), lines=np.asarray(self.lines)[rows])
        some.__dict__["side_by_side"] = self.side_by_side.taken(rows)
        return some

    def add_up(self, num_steps: Array, values: Array) -> Array:
        """Return `add_up` of the run, or of each of the runs side by side."""
        return add_up(num_steps, values, self.apart)

    @property
    def missed_below(self) -> float:
        """Return what is missing of Q, at most: of the mixture, in the direction "add".

        With less of Q delta is larger. Upper ends hold as they are, and lower ends do not.
        """
        if not self.steps or self.replaces_one or self.steps[0].sign > 0:
            return 0.0
        return float(self.side_by_side.num_steps @ self.side_by_side.missed) * (1.0 + 1e-12)

    @property
    def replaces_one(self) -> bool:
        """Whether one row is replaced, so that both directions are the same."""
        return any(step.symmetric or step.replaced for step in self.steps)

    @property
    def signs(self) -> tuple[float, ...]:
        """The directions that differ. "remove" comes first, since it nearly always decides."""
        if self.replaces_one and not self.atoms:
            return (1.0,)
        return 1.0, -1.0


def add_up(num_steps: Array, values: Array, apart: bool) -> Array:
    """Return the sum over all steps of what one of each kind has [kinds, ...]; if ``apart``, each kind by itself."""
    if apart:
        return (values.T * num_steps).T
    return num_steps @ values


def taken(record: Any, rows: Array) -> Any:
    """Return a record of runs side by side with some of the rows of each array; numbers stay as they are."""
    if isinstance(record, RunDescription):
        return record.taken(rows)
    if isinstance(record, tuple):
        parts = [taken(part, rows) for part in record]
        return type(record)(*parts) if hasattr(record, "_fields") else tuple(parts)
    return record[rows] if isinstance(record, np.ndarray) and record.ndim else record


def per_line(run: RunDescription, ask: Callable[..., Any], *known: Any) -> Any:
    """Return ask(run, *known), where of runs side by side only the first of each line is asked about."""
    if not run.apart:
        return ask(run, *known)
    first, line = run.first_and_line
    return taken(ask(*taken((run, *known), first)), line)


def num_steps(run: RunDescription) -> Array:
    """Return the number of all steps and events."""
    if run.apart:
        return run.side_by_side.num_steps
    parts = (*run.steps, *run.finite, *run.atoms)
    return sum(part.num_steps for part in parts)


def is_alone(run: RunDescription) -> bool:
    """Return whether nothing but subsampled Gaussian steps is run."""
    return not run.finite and not run.atoms


def largest_loss(run: RunDescription) -> Array:
    """Return the largest finite loss: of events, and of steps in the direction "add", where r >= (1 - p)^k."""
    subsampled = 0.0
    if run.steps:
        steps = run.side_by_side
        loss_of_one_row = -scipy.special.log1p(-steps.sampling_prob[:, 0])
        subsampled = run.add_up(steps.num_steps, steps.num_rows * loss_of_one_row)
    of_finite = _bounded_losses.largest_loss(run.finite)
    of_atoms = _atoms.largest_loss(run.atoms)
    return subsampled * (1.0 + 1e-12) + of_finite + of_atoms


def chance_of_leaking(run: RunDescription) -> Array:
    """Bound every delta(e), e >= 0, by the probability that one of the group is ever in a batch.

    If none is, the outputs of neighbours are the same. With other events the bound is 1.
    """
    if not is_alone(run):
        return 1.0
    log_missed = []
    for step in run.steps:
        log_missed_once = math.log1p(-step.sampling_prob) if step.sampling_prob < 1.0 else -np.inf
        log_missed.append(step.num_steps * step.num_rows * log_missed_once)
    if not run.apart:
        log_missed = sum(log_missed)
    return np.minimum(-np.expm1(log_missed) * (1.0 + 1e-12), 1.0)


def gaussian_mu(run: RunDescription) -> Array:
    """Return mu of the steps without sampling, sqrt(sum T mu^2), and of events with outcomes.

    With sampling the steps reveal less.
    """
    squares = []
    if run.steps:
        steps = run.side_by_side
        squares.extend(steps.num_steps * steps.mu**2)
    if run.apart:
        return np.sqrt(squares)
    for event in run.atoms:
        squares.append(event.num_steps * event.mu**2)
    return np.sqrt(_sum(squares))


def _sum(terms: list[float]) -> float:
    """Return the sum of positive terms, rounded once."""
    if np.all(np.isfinite(terms)):
        return np.float64(math.fsum(terms))
    return np.sum(terms)


def trivial_mu(run: RunDescription) -> float:
    """Return a mu that the whole run has, whatever the sampling."""
    mu = gaussian_mu(run) * (1.0 + 1e-12)
    if not run.finite:
        return mu
    squared_mu = mu**2 + _bounded_losses.squared_mu(run.finite)
    return np.sqrt(squared_mu) * (1.0 + 1e-12)
