"""Small shared types: numbers with shapes, brackets, neighbouring relations; and the failure probability of mu."""

import decimal
import enum
import re
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from jaxtyping import Float, Integer, Real

from gdpjax._core.figures import decimals_of, rounded

Array = Any
"""Anything jax.numpy accepts: a Python number, a NumPy or JAX array, or a tracer; and lists, in public functions."""

PyTree = Any

if TYPE_CHECKING:
    Number = Any  # so that a result can be used as the array that it is
else:
    Number = float

Numbers = Real[Array, "*#settings"] | Number
"""Arguments that broadcast together."""

Floats = Float[Array, "*settings"] | Number
"""An answer of the shape of all `Numbers` together."""

Scalar = Real[Array, ""] | Number
"""One number, which may be traced."""

Whole = Integer[Array, ""] | int
"""One whole number, which may be traced."""

FAILURE = 1e-10
"""Failure probability of a statement about mu that is made without one."""


class Bounds(NamedTuple):
    """A certified bracket: the truth lies in [lower, upper], element by element.

    Texts are rounded outward, so that what is printed is true: `print` shows five digits, and a format such as
    ``.3f`` one bracket with that many decimals.

    >>> Bounds(0.9, 1.1).upper
    1.1
    >>> print(Bounds(2.67462, 2.67614))
    [2.6746, 2.6762]
    >>> f"{Bounds(3.2462, 16.5231):.2f}"
    '[3.24, 16.53]'
    """

    lower: Floats
    upper: Floats

    def __str__(self) -> str:
        """Write the brackets in five digits: the lower ends rounded down, the upper ones up."""
        try:
            lower, upper = np.broadcast_arrays(np.asarray(self.lower, float), np.asarray(self.upper, float))
        except (TypeError, ValueError):
            return repr(self)  # what is traced, or was mapped to something else
        texts = np.empty(lower.shape, object)
        for index in np.ndindex(lower.shape):
            texts[index] = f"[{rounded(float(lower[index]), 5, 'down')}, {rounded(float(upper[index]), 5, 'up')}]"
        return np.array2string(texts, separator=", ", formatter={"all": str})

    def __format__(self, format_spec: str) -> str:
        """Write one bracket such as ``f"{bounds:.3f}"``: the lower end rounded down, the upper one up."""
        if not format_spec:
            return str(self)
        match = re.fullmatch(r"\.(\d{1,3})f", format_spec)
        if match is None:
            raise ValueError(f"a bracket is written with a number of decimals, such as .3f, got {format_spec!r}")
        decimals = int(match[1])
        lower = decimals_of(float(self.lower), decimals, decimal.ROUND_FLOOR)
        upper = decimals_of(float(self.upper), decimals, decimal.ROUND_CEILING)
        return f"[{lower}, {upper}]"


class NeighboringRelation(enum.Enum):
    """The pairs of data sets that a privacy statement calls neighbours.

    * ``ADD_OR_REMOVE_ONE``: one data set has one example more; the number of examples is private.
    * ``REPLACE_ONE``: equal sizes, one example replaced by any other; the number of examples is public.
    * ``REPLACE_SPECIAL``: one example replaced by a "null" one that contributes zero; the number is public.

    >>> NeighboringRelation("replace_one")
    <NeighboringRelation.REPLACE_ONE: 'replace_one'>
    """

    ADD_OR_REMOVE_ONE = "add_or_remove_one"
    REPLACE_ONE = "replace_one"
    REPLACE_SPECIAL = "replace_special"

    @property
    def sensitivity_factor(self) -> int:
        """Largest change of a sum of vectors of norm at most one between neighbours: 1, or 2 for REPLACE_ONE."""
        return 2 if self is NeighboringRelation.REPLACE_ONE else 1
