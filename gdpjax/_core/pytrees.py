"""Frozen dataclasses that are pytrees: parameters as leaves, checked when made and never when rebuilt."""

import dataclasses
from collections.abc import Callable
from typing import Any, TypeVar, dataclass_transform

import jax

C = TypeVar("C", bound=type)


@dataclass_transform(frozen_default=True)
def pytree_dataclass(cls: C) -> C:
    """A frozen dataclass registered as a pytree; fields with metadata ``static=True`` are not leaves.

    A class may bring its own ``__init__``. Rebuilding from leaves calls neither it nor ``__post_init__``, because JAX
    puts all sorts of things there (tracers, axes, None).
    """
    cls = dataclasses.dataclass(frozen=True, eq=False, init="__init__" not in vars(cls))(cls)
    fields = dataclasses.fields(cls)
    static = tuple(field.name for field in fields if field.metadata.get("static"))
    leaves = tuple(field.name for field in fields if field.name not in static)

    def flatten(value: Any) -> tuple[tuple, tuple]:
        return tuple(getattr(value, name) for name in leaves), tuple(getattr(value, name) for name in static)

    jax.tree_util.register_pytree_node(cls, flatten, _unflattener(cls, leaves, static))
    return cls


def _unflattener(cls: type, leaves: tuple[str, ...], static: tuple[str, ...]) -> Callable[[tuple, Any], Any]:
    def unflatten(aux: tuple, children: Any) -> Any:
        value = object.__new__(cls)
        for name, part in zip((*leaves, *static), (*children, *aux), strict=True):
            object.__setattr__(value, name, part)
        return value

    return unflatten
