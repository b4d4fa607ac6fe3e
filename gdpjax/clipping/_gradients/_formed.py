"""Gradients that are formed: one array of the parameter's shape for each example.

    gradients = FormedGradients(rows)
    gradients.squared_norms(dtype), gradients.weighted_sum(weights)

This is the form of last resort. It takes the memory of a parameter for every example.
"""

import dataclasses
import functools
import operator
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from gdpjax._core.types import Array
from gdpjax.clipping._gradients._abstract import AbstractRowGradients
from gdpjax.clipping._gradients._scaled import RowWeights, ScaledSquares, squared_norms, weighted, wide

_NUM_GROUPS = 8
"""Groups of rows that one pass of a weighted sum adds to each other."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class FormedGradients(AbstractRowGradients):
    """Formed gradients.

    Attributes:
      rows: [N, *shape].
    """

    rows: Array

    @property
    def shape(self) -> tuple[int, ...]:
        return self.rows.shape[1:]

    @property
    def method(self) -> str:
        return "formed"

    def squared_norms(self, dtype: Any) -> ScaledSquares:
        """Return the squared norm of each row."""
        flat = wide(self.rows).astype(dtype).reshape(self.rows.shape[0], -1)
        return squared_norms(flat)

    def formed(self) -> Array:
        """Return the gradients as they are."""
        return self.rows

    def weighted_rows(self, weights: RowWeights) -> Array:
        """Return the weighted rows."""
        return weights.multiplied(wide(self.rows))

    def weighted_sum(self, weights: RowWeights) -> Array:
        """Return the weighted sum, by a tree of additions that reads the rows once.

        A reduction over the rows would compute the weights again for every entry, and a product with the weights would
        first have to write down the rows that are kept.
        """
        rows = wide(self.rows)
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
