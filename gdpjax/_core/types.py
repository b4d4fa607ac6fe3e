"""Small shared types: brackets and neighbouring relations; and the failure probability of mu."""

import enum
from typing import Any, NamedTuple

Array = Any
"""Anything jax.numpy accepts: a Python number, a NumPy or JAX array, or a tracer."""

PyTree = Any

FAILURE = 1e-10
"""Failure probability of a statement about mu that is made without one."""


class Bounds(NamedTuple):
    """A certified bracket: the truth lies in [lower, upper], element by element.

    >>> Bounds(0.9, 1.1).upper
    1.1
    """

    lower: Array
    upper: Array


class NeighboringRelation(enum.Enum):
    """Which pairs of data sets a privacy statement calls neighbours.

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
