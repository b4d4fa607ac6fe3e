"""Gradients that are formed: an array of the shape of the weight.

This is the form of last resort. It takes the memory of a parameter for every example.
"""

import dataclasses
import functools
import operator
from collections.abc import Callable
from typing import Any, ClassVar, final

import jax
import jax.numpy as jnp

from gdpjax._core import xla
from gdpjax._core.types import Array
from gdpjax.clipping._forms._abstract import AbstractFactor
from gdpjax.clipping._forms._scaled import RowWeights, ScaledSquares, squared_norms, weighted, wide

_NUM_GROUPS = 8
"""Groups of rows that one pass of a weighted sum adds to each other."""


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
        """Return the weighted sum, on a CPU by a tree of additions that reads the rows once.

        A reduction over the rows takes a CPU 2 to 7 times as long. A TPU moves a quarter fewer bytes by it.
        """
        rows = wide(self.gradient)
        if xla.platform() != "cpu":
            return weights.multiplied(rows).sum(axis=0)
        power, rest = weights.factors(rows.dtype)

        def weighted_group(group: slice) -> Array:
            return weighted(rows[group], power[group], rest[group])

        # Eight groups of rows become one, until one row is left.
        total = _add_groups(weighted_group, rows.shape[0])
        while total.shape[0] > 1:
            total = _add_groups(total.__getitem__, total.shape[0])
        return total[0]


def _add_groups(rows_of: Callable[[slice], Array], num_rows: int) -> Array:
    """Add up eight groups of rows, entry by entry; rows beyond the last group stay as they are.

    Args:
      rows_of: a slice of the rows to the rows themselves.
      num_rows: how many there are.
    """
    num_groups = min(num_rows, _NUM_GROUPS)
    length = num_rows // num_groups
    grouped = num_groups * length

    groups = []
    for start in range(0, grouped, length):
        groups.append(rows_of(slice(start, start + length)))
    added = functools.reduce(operator.add, groups)

    if grouped == num_rows:
        return added
    left_over = rows_of(slice(grouped, num_rows))
    return jnp.concatenate([added, left_over])
