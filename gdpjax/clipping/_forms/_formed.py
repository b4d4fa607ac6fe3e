"""Gradients that are formed: an array of the shape of the weight.

This is the form of last resort. It takes the memory of a parameter for every example.
"""

import dataclasses
from typing import Any, ClassVar, final

import jax

from gdpjax._core.types import Array
from gdpjax.clipping._forms._abstract import AbstractFactor
from gdpjax.clipping._forms._scaled import RowWeights, ScaledSquares, squared_norms, wide


@final
@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Full(AbstractFactor):
    """The gradient itself.

    Attributes:
      gradient: an array like the weight.
    """

    gradient: Array
    method: ClassVar[str] = "formed"

    def fits(self, shape: tuple[int, ...]) -> bool:
        return self.gradient.shape == shape

    def formed(self, shape: tuple[int, ...]) -> Array:
        return self.gradient

    def compact(self, shape: tuple[int, ...]) -> "Full":
        return self

    def over_iterations(self) -> "Full":
        return Full(self.gradient.sum(axis=0))

    def squared_norm(self, dtype: Any) -> ScaledSquares:
        return squared_norms(wide(self.gradient).astype(dtype).reshape(-1))

    def weighted_sum(self, weights: RowWeights, shape: tuple[int, ...]) -> Array:
        return weights.multiplied(wide(self.gradient)).sum(axis=0)
