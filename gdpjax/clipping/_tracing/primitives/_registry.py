"""The registry of primitives: which family knows about a primitive of this name.

    register_primitive("cumsum", CumulativeSum())     # a family of one's own
    family_of(eqn).is_site(eqn, operand)              # what the engine asks

The families of the library are entered at the end of this file.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

from gdpjax.clipping._tracing.primitives._abstract import AbstractPrimitive
from gdpjax.clipping._tracing.primitives._convolution import Convolution
from gdpjax.clipping._tracing.primitives._elementwise import Addition, Cast, Entrywise, Negation, Scaling
from gdpjax.clipping._tracing.primitives._lookup import DynamicSlice, Gather, ScatterAdd
from gdpjax.clipping._tracing.primitives._matmul import Matmul
from gdpjax.clipping._tracing.primitives._reductions import Reduction
from gdpjax.clipping._tracing.primitives._reshaping import (
    Broadcast,
    Concatenation,
    Padding,
    Reshape,
    Reversal,
    Slice,
    Transposition,
)


class UnknownPrimitive(AbstractPrimitive):
    """A primitive of which nothing is known."""


_UNKNOWN = UnknownPrimitive()

_FAMILIES: dict[str, AbstractPrimitive] = {}
"""The families by the names of their primitives."""

_ADDED: set[str] = set()
"""Names that a user registered."""


def register_primitive(name: str, family: AbstractPrimitive, *, replace: bool = False) -> None:
    """Tell the engine of `clipped_grad` how gradients go through a primitive of JAX.

    Register before any loss that uses the primitive is traced: what was compiled before stays as it is.

    Args:
      name: the name of the primitive (``eqn.primitive.name``).
      family: an instance of a subclass of `AbstractPrimitive`.
      replace: whether a family that is registered for this name may be replaced.

    Raises:
      ValueError: the family is no instance of `AbstractPrimitive`, or the name is taken.
    """
    if not isinstance(family, AbstractPrimitive):
        raise ValueError(f"family must be an instance of a subclass of AbstractPrimitive, got {family!r}")
    if not isinstance(name, str) or not name:
        raise ValueError(f"name must be the name of a primitive, got {name!r}")
    if name in _FAMILIES and not replace:
        raise ValueError(f"the primitive {name} is registered already; replace=True puts another family in its place")
    _FAMILIES[name] = family
    _ADDED.add(name)


@contextlib.contextmanager
def registered(name: str, family: AbstractPrimitive, *, replace: bool = False) -> Iterator[None]:
    """Register a primitive within a ``with`` statement, and put back afterwards what was there before."""
    before = _FAMILIES.get(name)
    was_added = name in _ADDED
    register_primitive(name, family, replace=replace)
    try:
        yield
    finally:
        if before is None:
            del _FAMILIES[name]
        else:
            _FAMILIES[name] = before
        if not was_added:
            _ADDED.discard(name)


def family_of(eqn: Any) -> AbstractPrimitive:
    """Return the family of an equation's primitive."""
    return _FAMILIES.get(eqn.primitive.name, _UNKNOWN)


def is_vouched_for(name: str) -> bool:
    """Return whether a user registered this primitive as one that acts on one example."""
    return name in _ADDED and _FAMILIES[name].acts_on_one_example


# The families of the library.

_FAMILIES["dot_general"] = Matmul()
_FAMILIES["conv_general_dilated"] = Convolution()

_FAMILIES["gather"] = Gather()
_FAMILIES["dynamic_slice"] = DynamicSlice()
_FAMILIES["scatter-add"] = ScatterAdd()

_FAMILIES["mul"] = Scaling()
_FAMILIES["div"] = Scaling()
_FAMILIES["neg"] = Negation()
_FAMILIES["sub"] = Addition(sign=-1)
for _name in ("add", "add_any"):
    _FAMILIES[_name] = Addition(sign=1)

for _name in ("convert_element_type", "copy", "copy_p"):
    _FAMILIES[_name] = Cast(is_exact=True)
for _name in ("reduce_precision", "sharding_constraint"):
    _FAMILIES[_name] = Cast(is_exact=False)

for _name in ("reshape", "squeeze", "expand_dims"):
    _FAMILIES[_name] = Reshape()
_FAMILIES["transpose"] = Transposition()
_FAMILIES["broadcast_in_dim"] = Broadcast()
_FAMILIES["slice"] = Slice()
_FAMILIES["concatenate"] = Concatenation()
_FAMILIES["rev"] = Reversal()
_FAMILIES["pad"] = Padding()

for _name in ("reduce_sum", "reduce_max", "reduce_min", "reduce_prod"):
    _FAMILIES[_name] = Reduction()

for _name in (
    "select_n",
    "clamp",
    "max",
    "min",
    "abs",
    "sign",
    "square",
    "integer_pow",
    "pow",
    "sqrt",
    "rsqrt",
    "cbrt",
):
    _FAMILIES[_name] = Entrywise()
for _name in ("exp", "exp2", "expm1", "log", "log1p", "tanh", "logistic", "erf", "sin", "cos"):
    _FAMILIES[_name] = Entrywise()
