"""A whole run: phases of subsampled Gaussian steps, events of bounded loss, and events given by their outcomes."""

import dataclasses

import jax
import jax.numpy as jnp

from gdpjax._core.types import Array
from gdpjax.accounting._numeric import _atoms, _finite
from gdpjax.accounting._numeric._atoms import Atoms
from gdpjax.accounting._numeric._finite import Finite
from gdpjax.accounting._numeric._ratio import Step


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Run:
    """Steps per phase ([J]) in one direction, events of bounded loss ([F]) and of known outcomes ([A]), or None."""

    steps: Step
    finite: Finite | None = None
    atoms: Atoms | None = None

    def towards(self, sign: Array) -> "Run":
        """The run in the direction "remove" (+1) or "add" (-1)."""
        signs = jnp.broadcast_to(sign, jnp.shape(self.steps.num_steps))
        steps = dataclasses.replace(self.steps, sign=signs)
        if self.atoms is None:
            return dataclasses.replace(self, steps=steps)
        signs = jnp.broadcast_to(sign, jnp.shape(self.atoms.num_steps))
        return dataclasses.replace(self, steps=steps, atoms=dataclasses.replace(self.atoms, sign=signs))

    @property
    def signs(self) -> tuple[float, ...]:
        """The directions that differ; "remove" comes first, since it nearly always decides."""
        return (1.0,) if self.steps.symmetric else (1.0, -1.0)


def num_steps(run: Run) -> Array:
    """The number of all steps and events."""
    return sum((jnp.sum(part.num_steps) for part in _other_events(run)), jnp.sum(run.steps.num_steps))


def _other_events(run: Run) -> tuple[Finite | Atoms, ...]:
    """What there is besides the subsampled Gaussian steps."""
    return tuple(part for part in (run.finite, run.atoms) if part is not None)


def alone(run: Run) -> Array:
    """Whether nothing but subsampled Gaussian steps is run."""
    return jnp.asarray(sum((jnp.sum(part.num_steps) for part in _other_events(run)), jnp.zeros(())) == 0)


def largest_finite_loss(run: Run) -> Array:
    """The largest loss of the events of bounded loss."""
    return jnp.zeros(()) if run.finite is None else _finite.largest_loss(run.finite)


def largest_loss(run: Run) -> Array:
    """The largest finite loss: of events, and of steps in the direction "add", where r >= (1 - p)^k."""
    steps = run.steps
    subsampled = -jnp.sum(steps.num_steps * steps.group_size * jnp.log1p(-steps.sampling_prob)) * (1.0 + 1e-12)
    others = jnp.zeros(()) if run.atoms is None else _atoms.largest_loss(run.atoms)
    return subsampled + largest_finite_loss(run) + others


def chance_of_leaking(run: Run) -> Array:
    """A bound on every delta(e), e >= 0: the probability that one of the group is ever in a batch; 1 with other events.

    If none is, the outputs of neighbours are the same.
    """
    steps = run.steps
    missed = steps.num_steps * steps.group_size * jnp.log1p(-steps.sampling_prob)
    drawn = -jnp.expm1(jnp.sum(jnp.where(steps.num_steps > 0, missed, 0.0))) * (1.0 + 1e-12)
    return jnp.where(alone(run), jnp.minimum(drawn, 1.0), 1.0)


def gaussian_mu(run: Run) -> Array:
    """mu of the steps without sampling, sqrt(sum T (k / sigma)^2), and of events with outcomes: they reveal less."""
    steps = run.steps
    squared = jnp.sum(steps.num_steps * (steps.group_size / steps.noise_multiplier) ** 2)
    if run.atoms is not None:
        squared = squared + jnp.sum(run.atoms.num_steps * run.atoms.mu**2)
    return jnp.sqrt(squared)


def trivial_mu(run: Run) -> Array:
    """A mu that the whole run has, whatever the sampling."""
    mu = gaussian_mu(run) * (1.0 + 1e-12)
    return mu if run.finite is None else jnp.sqrt(mu**2 + _finite.squared_mu(run.finite)) * (1.0 + 1e-12)
