"""All that the engine knows about the primitives of JAX: families of them, and one registry.

    register_primitive("cumsum", CumulativeSum())     # add a family of your own
    family_of(eqn).is_site(eqn, operand)              # ask the family of an equation's primitive

`_abstract` says which questions a family answers. The families of the library are registered at the end of this file.
"""

from typing import Any

from gdpjax.clipping._tracing.primitives._abstract import AbstractPrimitive
from gdpjax.clipping._tracing.primitives._fast_convolution import isolated_convolution
from gdpjax.clipping._tracing.primitives._linear import (
    Cast,
    Concatenation,
    Convolution,
    DynamicSlice,
    Gather,
    Matmul,
    Transposition,
)

__all__ = ["AbstractPrimitive", "family_of", "is_vouched_for", "isolated_convolution", "register_primitive"]


_UNKNOWN = AbstractPrimitive()
"""The family of every primitive that is not registered: its answers are the defaults."""

_FAMILIES: dict[str, AbstractPrimitive] = {}
"""The families by the names of their primitives."""


def register_primitive(name: str, family: AbstractPrimitive, *, replace: bool = False) -> None:
    """Tell the engine of `clipped_grad` how gradients go through a primitive of JAX.

    You vouch that `jax.vmap` applies the primitive to every row by itself: a rule for vmap that mixes the rows of a
    batch makes every privacy statement wrong. Register a primitive before you trace a loss that uses it: programs that
    are compiled already do not change.

    Args:
      name: the name of the primitive (``eqn.primitive.name``).
      family: an instance of a subclass of `AbstractPrimitive`.
      replace: whether this family may replace one that is registered for the same name.

    Raises:
      ValueError: the name is taken.
    """
    if name in _FAMILIES and not replace:
        raise ValueError(f"the primitive {name} is registered already; replace=True puts another family in its place")
    _FAMILIES[name] = family


def family_of(eqn: Any) -> AbstractPrimitive:
    """Return the family of an equation's primitive."""
    return _FAMILIES.get(eqn.primitive.name, _UNKNOWN)


def is_vouched_for(name: str) -> bool:
    """Return whether this primitive was registered: who did so vouches that it acts on one example alone."""
    return name in _FAMILIES


# The families of the library. First those at which a weight meets data: products and look-ups.

_FAMILIES["dot_general"] = Matmul()
_FAMILIES["conv_general_dilated"] = Convolution()

_FAMILIES["gather"] = Gather()
_FAMILIES["dynamic_slice"] = DynamicSlice()

# Linear maps through which a weight may go before that.

for _name in ("convert_element_type", "copy", "copy_p", "reduce_precision", "sharding_constraint"):
    _FAMILIES[_name] = Cast()

_FAMILIES["transpose"] = Transposition()
_FAMILIES["concatenate"] = Concatenation()
