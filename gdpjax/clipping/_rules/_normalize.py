"""Rescale each gradient to one norm."""

import dataclasses

import jax.numpy as jnp

from gdpjax._core.checks import CLIP_NORM, check_scalar
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

    l2_clip_norm: Array

    def __post_init__(self) -> None:
        check_scalar("l2_clip_norm", self.l2_clip_norm, CLIP_NORM)

    @property
    def l2_norm_bound(self) -> Array:
        """The l2 norm that every example contributes: C."""
        return self.l2_clip_norm

    def coefficient(self, norm: Array, unit: Array, bound: Array) -> Array:
        """Return bound / ||g|| whatever the norm, in the units of `AbstractClipRule.coefficient`."""
        return bound / jnp.where(norm > 0, norm, 1)

    def describe(self) -> str:
        """Return "rescaled to l2 norm C"."""
        return f"rescaled to l2 norm {float(self.l2_norm_bound):.6g}"
