"""A whole run: phases of subsampled Gaussian steps, events of bounded loss, and events given by their outcomes."""

import dataclasses
import math

import numpy as np

from gdpjax.accounting._numeric import _atoms, _bounded_losses
from gdpjax.accounting._numeric._atoms import Atoms
from gdpjax.accounting._numeric._bounded_losses import Finite
from gdpjax.accounting._numeric._likelihood_ratio import Step


@dataclasses.dataclass(frozen=True)
class Run:
    """Phases of steps, events of bounded loss, and events of known outcomes, in one direction. Each happens."""

    steps: tuple[Step, ...]
    finite: tuple[Finite, ...] = ()
    atoms: tuple[Atoms, ...] = ()

    def towards(self, sign: float) -> "Run":
        """The run in the direction "remove" (+1) or "add" (-1)."""
        steps = tuple(dataclasses.replace(step, sign=sign) for step in self.steps)
        atoms = tuple(dataclasses.replace(event, sign=sign) for event in self.atoms)
        return Run(steps, self.finite, atoms)

    @property
    def is_symmetric(self) -> bool:
        """Whether the steps are those of uniform sampling."""
        return any(step.symmetric for step in self.steps)

    @property
    def signs(self) -> tuple[float, ...]:
        """The directions that differ; "remove" comes first, since it nearly always decides."""
        return (1.0,) if self.is_symmetric else (1.0, -1.0)


def num_steps(run: Run) -> float:
    """The number of all steps and events."""
    return sum(part.num_steps for part in (*run.steps, *run.finite, *run.atoms))


def is_alone(run: Run) -> bool:
    """Whether nothing but subsampled Gaussian steps is run."""
    return not run.finite and not run.atoms


def largest_loss(run: Run) -> float:
    """The largest finite loss: of events, and of steps in the direction "add", where r >= (1 - p)^k."""
    subsampled = 0.0
    for step in run.steps:
        each = -np.log1p(-step.sampling_prob) if step.sampling_prob < 1 else np.inf
        subsampled += step.num_steps * step.group_size * each
    return subsampled * (1.0 + 1e-12) + _bounded_losses.largest_loss(run.finite) + _atoms.largest_loss(run.atoms)


def chance_of_leaking(run: Run) -> float:
    """A bound on every delta(e), e >= 0: the probability that one of the group is ever in a batch; 1 with other events.

    If none is, the outputs of neighbours are the same.
    """
    if not is_alone(run) or any(step.sampling_prob == 1.0 for step in run.steps):
        return 1.0
    missed = sum(step.num_steps * step.group_size * np.log1p(-step.sampling_prob) for step in run.steps)
    return min(-np.expm1(missed) * (1.0 + 1e-12), 1.0)


def gaussian_mu(run: Run) -> float:
    """mu of the steps without sampling, sqrt(sum T (k / sigma)^2), and of events with outcomes: they reveal less."""
    squares = [step.num_steps * (step.group_size / step.noise_multiplier) ** 2 for step in run.steps]
    squares += [event.num_steps * event.mu**2 for event in run.atoms]
    return np.sqrt(_sum(squares))


def _sum(terms: list[float]) -> float:
    """The sum of positive terms, rounded once."""
    return np.float64(math.fsum(terms)) if np.all(np.isfinite(terms)) else np.sum(terms)


def trivial_mu(run: Run) -> float:
    """A mu that the whole run has, whatever the sampling."""
    mu = gaussian_mu(run) * (1.0 + 1e-12)
    return np.sqrt(mu**2 + _bounded_losses.squared_mu(run.finite)) * (1.0 + 1e-12) if run.finite else mu
