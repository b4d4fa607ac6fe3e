"""Events given as a finite pair of measures: a list of outcomes, with log R = log dP/dQ, P-mass and Q-mass of each.

    remove: L = log R,   A(z) = sum_k p_k e^{z L_k},          add: L = -log R,   A(z) = sum_k q_k e^{z L_k}.

The outcomes are the nodes of the moments, without any quadrature error. What is lost (P-mass where R is infinite,
Q-mass where it is zero) is treated as what a window cuts off. If masses are right to a relative error of `rounding` and
log R to an absolute one of `displacement`, a weighted node is right to both, the second times the exponent of R.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import logsumexp

from gdpjax._core.types import Array

_MERGED = 8


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Atoms:
    """A events of n outcomes each in one direction; the leading axis is that of the events."""

    num_steps: Array
    mu: Array
    """A mu such that each event is mu-GDP."""
    log_ratio: Array
    log_p: Array
    log_q: Array
    lost_p: Array
    lost_q: Array
    rounding: Array
    displacement: Array
    sign: Array

    @property
    def loss(self) -> Array:
        """The privacy losses."""
        return self.sign[..., None] * self.log_ratio

    @property
    def log_weight(self) -> Array:
        """The logarithms of the masses under P."""
        return jnp.where(self.sign[..., None] > 0, self.log_p, self.log_q)

    @property
    def lost(self) -> Array:
        """The mass of infinite loss."""
        return jnp.where(self.sign > 0, self.lost_p, self.lost_q)


def distribution(atoms: Atoms) -> tuple[Array, Array]:
    """(losses, log weights) of a coarser pair: for planning only."""
    losses = jnp.mean(atoms.loss.reshape(-1, _MERGED), axis=1)
    weights = logsumexp(atoms.log_weight.reshape(-1, _MERGED), axis=1)
    return losses, weights


def log_moment(atoms: Atoms, theta: Array) -> Array:
    """log A(theta) of one event at each theta [points]."""
    return logsumexp(atoms.log_weight + theta[:, None] * atoms.loss, axis=1)


def largest_loss(atoms: Atoms) -> Array:
    """The largest finite loss of all the events together."""
    each = jnp.max(jnp.where(atoms.log_weight > -jnp.inf, atoms.loss, -jnp.inf), axis=-1)
    return jnp.sum(atoms.num_steps * (each + atoms.displacement + 1e-12 * jnp.abs(each)))


def log_lost(atoms: Atoms | None) -> Array:
    """log of the probability that nothing is lost in any event."""
    if atoms is None:
        return jnp.zeros(())
    return jnp.sum(atoms.num_steps * jnp.log1p(-jnp.minimum(atoms.lost, 0.5)))


def rounding_terms(atoms: Atoms, exponent: Array) -> tuple[Array, Array]:
    """Per node: the relative error c0 of its weight e^exponent, and the absolute one c1 of its loss.

    40 ulp stand for the tables and the three rotations, as in `_moments`.
    """
    unit = np.finfo(np.float64).eps
    fixed = atoms.rounding + unit * (40.0 + 2.0 * jnp.where(exponent > -jnp.inf, jnp.abs(exponent), 0.0))
    return fixed, atoms.displacement + 6.0 * unit * jnp.abs(atoms.loss)
