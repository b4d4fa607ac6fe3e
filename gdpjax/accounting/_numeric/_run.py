"""A whole run: phases of subsampled Gaussian steps, and events of bounded loss."""

import dataclasses

import jax
import jax.numpy as jnp

from gdpjax._core.types import Array
from gdpjax.accounting._numeric import _finite
from gdpjax.accounting._numeric._finite import Finite
from gdpjax.accounting._numeric._ratio import Step


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Run:
    """Steps per phase ([J]) in one direction, and other events ([F]) or None."""

    steps: Step
    finite: Finite | None = None

    def towards(self, sign: Array) -> "Run":
        """The run in the direction "remove" (+1) or "add" (-1)."""
        signs = jnp.broadcast_to(sign, jnp.shape(self.steps.num_steps))
        return dataclasses.replace(self, steps=dataclasses.replace(self.steps, sign=signs))

    @property
    def signs(self) -> tuple[float, ...]:
        """The directions that differ; "remove" comes first, since it nearly always decides."""
        return (1.0,) if self.steps.symmetric else (1.0, -1.0)


def num_steps(run: Run) -> Array:
    """The number of all steps and events."""
    steps = jnp.sum(run.steps.num_steps)
    return steps if run.finite is None else steps + jnp.sum(run.finite.num_steps)


def largest_finite_loss(run: Run) -> Array:
    """The largest loss of the events of bounded loss."""
    return jnp.zeros(()) if run.finite is None else _finite.largest_loss(run.finite)


def largest_loss(run: Run) -> Array:
    """The largest loss in the direction "add", where r >= (1 - p)^k."""
    steps = run.steps
    subsampled = -jnp.sum(steps.num_steps * steps.group_size * jnp.log1p(-steps.sampling_prob)) * (1.0 + 1e-12)
    return subsampled + largest_finite_loss(run)


def chance_of_leaking(run: Run) -> Array:
    """A bound on every delta(e), e >= 0: the probability that one of the group is ever in a batch; 1 with other events.

    If none is, the outputs of neighbours are the same.
    """
    steps = run.steps
    missed = steps.num_steps * steps.group_size * jnp.log1p(-steps.sampling_prob)
    drawn = -jnp.expm1(jnp.sum(jnp.where(steps.num_steps > 0, missed, 0.0))) * (1.0 + 1e-12)
    alone = True if run.finite is None else jnp.sum(run.finite.num_steps) == 0
    return jnp.where(alone, jnp.minimum(drawn, 1.0), 1.0)


def gaussian_mu(run: Run) -> Array:
    """mu of the steps without sampling, sqrt(sum T (k / sigma)^2): with sampling they reveal less."""
    steps = run.steps
    return jnp.sqrt(jnp.sum(steps.num_steps * (steps.group_size / steps.noise_multiplier) ** 2))


def trivial_mu(run: Run) -> Array:
    """A mu that the whole run has, whatever the sampling."""
    mu = gaussian_mu(run) * (1.0 + 1e-12)
    return mu if run.finite is None else jnp.sqrt(mu**2 + _finite.squared_mu(run.finite)) * (1.0 + 1e-12)
