"""Frozen dataclasses that are pytrees: parameters as leaves, checked when made and never when rebuilt."""

import dataclasses
from typing import Any, TypeVar, dataclass_transform

import jax

C = TypeVar("C", bound=type)


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
