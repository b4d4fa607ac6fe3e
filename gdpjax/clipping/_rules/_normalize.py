"""Rescale each gradient to one norm."""

import dataclasses
from typing import ClassVar

import jax.numpy as jnp

from gdpjax._core.types import Array
from gdpjax.clipping._rules._abstract import AbstractClipRule


@dataclasses.dataclass(frozen=True, eq=False)
class Normalize(AbstractClipRule):
    """Rescale each example's gradient to l2 norm exactly ``l2_clip_norm``: g C / ||g||, and 0 for g = 0.

    Args:
      l2_clip_norm: the norm C > 0 (1e-30 to 1e30), a number or a traced scalar.

    Raises:
      ValueError: the norm is not such a scalar.

    Reference: Das, Hashemi, Sanghavi and Dhillon, arXiv:2106.07830 (normalised instead of clipped gradients).

    >>> Normalize(1.5).l2_norm_bound
    1.5
    """

    _words: ClassVar[str] = "rescaled to l2 norm {bound}"
    l2_clip_norm: Array

    def coefficient(self, norm: Array, bound: Array) -> Array:
        """Return bound / norm."""
        return bound / jnp.where(norm > 0, norm, 1)
