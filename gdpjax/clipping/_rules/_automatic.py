"""Scale each gradient by a smooth function of its norm: automatic clipping."""

import dataclasses
from typing import ClassVar

import jax.numpy as jnp

from gdpjax._core.checks import Domain, check_scalar
from gdpjax._core.types import Array
from gdpjax.clipping._rules._abstract import AbstractClipRule

_GAMMA = Domain("a number >= 0, at most 1e30", lambda x: (x >= 0) & (x <= 1e30))


@dataclasses.dataclass(frozen=True, eq=False)
class AutoS(AbstractClipRule):
    """Automatic clipping: g C / (||g|| + gamma), of norm below C, so that no clip norm needs tuning.

    Args:
      l2_clip_norm: the bound C > 0 (1e-30 to 1e30), a number or a traced scalar; a learning rate absorbs it.
      gamma: stability constant >= 0 in the units of the gradient; 0 is `Normalize`.

    Raises:
      ValueError: the bound or gamma is not such a scalar.

    Reference: Bu, Wang, Zha and Karypis, arXiv:2206.07136, section 4 (AUTO-S; gamma = 0.01 there).

    >>> AutoS(1.0, gamma=0.01).l2_norm_bound
    1.0
    """

    _words: ClassVar[str] = "scaled automatically (AUTO-S) below l2 norm {bound}"
    l2_clip_norm: Array
    gamma: Array = 0.01

    def __post_init__(self) -> None:
        super().__post_init__()
        check_scalar("gamma", self.gamma, _GAMMA)

    def coefficient(self, norm: Array, bound: Array) -> Array:
        """Return bound / (norm + gamma)."""
        # A traced gamma that is out of range gives NaN.
        gamma = jnp.asarray(self.gamma, norm.dtype)
        gamma = jnp.where(_GAMMA.contains(gamma), gamma, jnp.nan)

        # With gamma = 0 a gradient that is zero has the denominator zero.
        denominator = norm + gamma
        return bound / jnp.where(denominator == 0, 1, denominator)
