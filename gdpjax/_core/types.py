"""Small shared types: numbers with shapes, brackets, neighbouring relations, and dataclasses that are pytrees."""

import dataclasses
import decimal
import enum
import functools
import re
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, dataclass_transform

import jax
import numpy as np
from jaxtyping import Float, Integer, Real

from gdpjax._core.figures import decimals_of, rounded

Array = Any
"""Anything jax.numpy accepts: a Python number, a NumPy or JAX array, or a tracer; and lists, in public functions."""

PyTree = Any

C = TypeVar("C", bound=type)

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


def neighbours_differ(relation: NeighboringRelation, unit: str) -> str:
    """Return how neighbouring data sets differ, as the end of a sentence about them.

    >>> neighbours_differ(NeighboringRelation.REPLACE_ONE, "patient")
    'differ by replacing one patient by any other (REPLACE_ONE)'
    """
    changes = {
        NeighboringRelation.ADD_OR_REMOVE_ONE: f"by adding or removing one {unit}",
        NeighboringRelation.REPLACE_ONE: f"by replacing one {unit} by any other",
        NeighboringRelation.REPLACE_SPECIAL: f"by replacing one {unit} by a null one that contributes nothing",
    }
    return f"differ {changes[relation]} ({relation.name})"


@functools.singledispatch
def certified_epsilon(ledger: Any, delta: float) -> Bounds:
    """Return the certified bracket on epsilon of what was run.

    The statement of a ledger asks for it, and the accountants, which stand above ledgers, define it.
    """
    raise NotImplementedError(f"no accountant for {type(ledger).__name__}")


@dataclass_transform(frozen_default=True)
def pytree_dataclass(cls: C) -> C:
    """Make ``cls`` a frozen dataclass that is a pytree; fields with metadata ``static=True`` are not leaves.

    A class may bring its own ``__init__``. Rebuilding from leaves calls neither it nor ``__post_init__``, because JAX
    puts all sorts of things there (tracers, axes, None).
    """
    has_own_init = "__init__" in vars(cls)
    make = dataclasses.dataclass(frozen=True, eq=False, init=not has_own_init)
    cls = make(cls)

    static_names = []
    leaf_names = []
    for field in dataclasses.fields(cls):
        names = static_names if field.metadata.get("static") else leaf_names
        names.append(field.name)

    def flatten(value: Any) -> tuple[tuple, tuple]:
        return _fields_of(value, leaf_names), _fields_of(value, static_names)

    def unflatten(static: tuple, leaves: Any) -> Any:
        value = object.__new__(cls)
        for name, part in zip(leaf_names, leaves, strict=True):
            object.__setattr__(value, name, part)
        for name, part in zip(static_names, static, strict=True):
            object.__setattr__(value, name, part)
        return value

    jax.tree_util.register_pytree_node(cls, flatten, unflatten)
    return cls


def _fields_of(value: Any, names: list[str]) -> tuple:
    return tuple(getattr(value, name) for name in names)
