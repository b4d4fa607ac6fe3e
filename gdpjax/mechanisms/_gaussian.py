"""The Gaussian mechanism."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray

from gdpjax._core.checks import POSITIVE, check, checked_scalar, is_traced
from gdpjax._core.noise import standard_normals
from gdpjax._core.trees import leaf_keys
from gdpjax._core.types import Floats, NeighboringRelation, Numbers, Scalar, pytree_dataclass
from gdpjax.ledger import GaussianEvent
from gdpjax.mechanisms._abstract import ADDED, Additive, check_sensitivity, floating
from gdpjax.tradeoff import Curve, Gaussian


@pytree_dataclass
class GaussianMechanism(Additive):
    """Adds N(0, stddev^2) to every coordinate, stddev = noise_multiplier * sensitivity.

    It is exactly mu-GDP with mu = 1 / noise_multiplier, in any dimension: only the l2 distance of two values matters.

    Args:
        noise_multiplier: stddev / l2 sensitivity, finite and > 0.

    Returns:
        A mechanism whose curve is G_mu, exact in real arithmetic (see `_abstract` on floats).

    Raises:
        ValueError: noise_multiplier not a finite number > 0.

    Reference: Dong, Roth and Su, arXiv:1905.02383, Theorem 2.7.

    >>> print(GaussianMechanism(2.0).mu, f"{GaussianMechanism(2.0).epsilon(1e-5):.4f}")
    0.5 1.9931
    """

    noise_multiplier: Numbers

    def __post_init__(self) -> None:
        check("noise_multiplier", self.noise_multiplier, POSITIVE)

    @property
    def mu(self) -> Floats:
        """The Gaussian privacy parameter, 1 / noise_multiplier; exact."""
        if is_traced(self):
            return 1.0 / self.noise_multiplier
        noise_multiplier = np.asarray(self.noise_multiplier, np.float64)
        return 1.0 / noise_multiplier[()]

    def tradeoff(self) -> Curve:
        """Return G_mu with mu = 1 / noise_multiplier; exact."""
        return Gaussian(self.mu)

    def event(self, num_steps: int = 1, *, neighboring_relation: NeighboringRelation = ADDED) -> GaussianEvent:
        """Return the event of ``num_steps`` releases."""
        return GaussianEvent(self.noise_multiplier, num_steps, neighboring_relation)

    def sample(self, key: PRNGKeyArray, value: Any, sensitivity: Scalar) -> Any:
        """Return ``value`` with noise.

        Args:
            key: a PRNG key, used for nothing else.
            value: a scalar, an array or a pytree of arrays.
            sensitivity: the largest l2 distance of two neighbours' values, over all leaves together, >= 0.

        Returns:
            The same structure in float32 or wider; the noise is right in its tail to 9 standard deviations.

        Raises:
            ValueError: sensitivity negative, NaN or not one number; complex values.
        """
        noise_multiplier = checked_scalar("noise_multiplier", self.noise_multiplier, POSITIVE)
        stddev = noise_multiplier * check_sensitivity(sensitivity)

        leaves, structure = jax.tree.flatten(jax.tree.map(floating, value))
        keys = jax.tree.leaves(leaf_keys(key, value))
        noise = standard_normals(keys, [leaf.shape for leaf in leaves], [leaf.dtype for leaf in leaves])
        released = []
        for leaf, draw in zip(leaves, noise, strict=True):
            released.append(leaf + jnp.asarray(stddev).astype(leaf.dtype) * draw)
        return jax.tree.unflatten(structure, released)
