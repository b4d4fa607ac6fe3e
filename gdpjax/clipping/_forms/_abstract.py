"""The abstract class of one example's gradient of one weight, and `Full`, the gradient as an array.

A dense layer y = x W has the gradient x^T s, where s is the cotangent of y. It is kept as its two factors:

    factor = Outer(x[None], s[None], left_axes=(0,), right_axes=(1,))    # axis 0 of W is that of x, axis 1 that of s
    factor.formed(W.shape)                                               # the gradient as an array

Each form of a gradient has a class:

* `Outer` keeps the factors of a sum of outer products, sum_t left_t right_t^T.
* `Sparse` is the gradient of a table: the rows that were looked up, and what each of them gets.
* `Full` is the gradient itself, as an array.

The classes describe one example, without a batch axis. The engine maps them over the examples by `jax.vmap`, so that
their arrays get a leading axis, and `RowGradients` clips and adds up those of a batch. `compact` decides in which form
a gradient is kept until then.

Clipping needs two things of an example's gradient g: its norm, and its part in the weighted sum. Two promises bind
every class, and the sensitivity rests on them.

* Row by row. What is computed for an example is a function of that example alone. Its norm is at least the norm of what
  is added for it, up to the roundings that `_rounding_budget` counts.
* Roundings. In ``weighted_sum`` each w_i g_i is rounded at most twice. The examples are then added plainly, in any
  order. The budget limits how many may be added in this way.
"""

import abc
import dataclasses
import functools
import operator
from collections.abc import Callable
from typing import Any, ClassVar, final

import jax
import jax.numpy as jnp

from gdpjax._core import xla
from gdpjax._core.types import Array
from gdpjax.clipping._forms._scaled import RowWeights, ScaledSquares, squared_norms, weighted, wide

_NUM_GROUPS = 8
"""Groups of rows that one pass of a weighted sum adds to each other."""


class AbstractFactor(abc.ABC):
    """One example's gradient of one weight, in some form.

    Attributes:
      method: the name of the form in `gdpjax.explain`.
    """

    method: ClassVar[str]

    @abc.abstractmethod
    def formed(self, shape: tuple[int, ...]) -> Array:
        """Return the gradient as an array of the shape of the weight, in float32 or wider unless it is `Full`."""

    @abc.abstractmethod
    def compact(self, shape: tuple[int, ...]) -> "AbstractFactor":
        """Return the gradient in the form in which it is kept until it is clipped."""

    @abc.abstractmethod
    def over_iterations(self) -> "AbstractFactor":
        """Return the sum of the gradients in the iterations of a scan, of which the arrays have a leading axis."""

    @abc.abstractmethod
    def fits(self, shape: tuple[int, ...]) -> bool:
        """Return whether the arrays are those of a gradient of a weight of this shape."""

    # What is kept until it is clipped.

    @abc.abstractmethod
    def squared_norm(self, dtype: Any) -> ScaledSquares:
        """Return the squared norm, at least that of what is added for a weight of one."""

    @abc.abstractmethod
    def weighted_sum(self, weights: RowWeights, shape: tuple[int, ...]) -> Array:
        """Return sum_i w_i g_i, added plainly; the arrays of this factor have a leading axis of examples i."""


@final
@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Full(AbstractFactor):
    """The gradient itself: the form of last resort, which takes the memory of a parameter for every example.

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
