"""Gradients that are formed: one array of the parameter's shape for each example."""

import dataclasses
import functools
import operator
from typing import Any

import jax
import jax.numpy as jnp

from gdpjax._core.types import Array
from gdpjax.clipping._gradients._abstract import AbstractRowGradients
from gdpjax.clipping._gradients._scaled import RowWeights, ScaledSquares, squared_norms, weighted, wide

_ROWS_AT_ONCE = 8


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

        total = _add_groups(weighted_group, rows.shape[0])
        while total.shape[0] > 1:
            parts = total
            total = _add_groups(lambda group: parts[group], parts.shape[0])  # noqa: B023
        return total[0]


def _add_groups(rows_of: Any, num_rows: int) -> Array:
    """Add up eight groups of rows, entry by entry; rows beyond the last group stay as they are."""
    num_groups = min(num_rows, _ROWS_AT_ONCE)
    length = num_rows // num_groups
    groups = [rows_of(slice(i * length, (i + 1) * length)) for i in range(num_groups)]
    added = functools.reduce(operator.add, groups)
    if num_rows == num_groups * length:
        return added
    return jnp.concatenate([added, rows_of(slice(num_groups * length, num_rows))])
