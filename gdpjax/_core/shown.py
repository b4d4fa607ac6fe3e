"""Describe values in error messages.

    raise ValueError(f"expected a plan, got {shown(value)}")

A message must never raise in turn, fill the screen, or print private data. `shown` therefore writes scalars and short
texts as they are, arrays by their dtype and shape, the items of containers by their types, and any other object by the
name of its class.
"""

import types
from typing import Any

import numpy as np
from jax.core import Tracer

_LONGEST_TEXT = 60
_MOST_ITEMS = 4


def shown(value: Any) -> str:
    """Describe ``value`` in a few words for an error message, without ever raising.

    >>> shown(1.5), shown(np.zeros((2, 3), np.float32)), shown({"w": [1.0, 2.0]})
    ('1.5', 'an array of float32[2,3]', "{'w': [float, float]}")
    """
    try:
        return _described(value)
    except Exception:
        return f"an object of class {type(value).__name__}"


def _described(value: Any) -> str:
    if isinstance(value, np.generic) and value.dtype.kind in "biufcmM":
        return f"{value!s} ({value.dtype})"
    if value is None or isinstance(value, bool | int | float | complex | str | range | slice):
        return _shortened(repr(value))
    if isinstance(value, type):
        return f"the class {value.__name__}"
    if isinstance(value, types.ModuleType | types.FunctionType | types.BuiltinFunctionType | types.MethodType):
        return f"the {type(value).__name__} {value.__name__}"
    array_type = _array_type(value)
    if array_type:
        article = "a traced" if isinstance(value, Tracer) else "an"
        return f"{article} array of {array_type}"
    if isinstance(value, tuple | list | dict):
        return _item(value)
    return f"an object of class {type(value).__name__}"


def _shortened(text: str) -> str:
    if len(text) <= _LONGEST_TEXT:
        return text
    return text[: _LONGEST_TEXT - 3] + "..."


def _array_type(value: Any) -> str:
    """Return a text like ``float32[2,3]`` for an array, and nothing for anything else."""
    if not hasattr(value, "shape") or not hasattr(value, "dtype"):
        return ""
    sizes = ",".join(str(size) for size in value.shape)
    return _shortened(f"{value.dtype}[{sizes}]")


def _item(value: Any, depth: int = 3) -> str:
    """Return the type of an item of a container, whose value may be one of the data; those of the first of its own."""
    if not depth or not isinstance(value, tuple | list | dict):
        return _array_type(value) or ("None" if value is None else type(value).__name__)
    first = list(value)[:_MOST_ITEMS]
    parts = [_item(value[key] if isinstance(value, dict) else key, depth - 1) for key in first]
    if isinstance(value, dict):
        names = [_shortened(repr(key)) if type(key) in (str, int) else type(key).__name__ for key in first]
        parts = [f"{name}: {part}" for name, part in zip(names, parts, strict=True)]
    if len(value) > _MOST_ITEMS:
        parts.append(f"and {len(value) - _MOST_ITEMS} more")

    inside = ", ".join(parts)
    if isinstance(value, dict):
        return f"{{{inside}}}"
    if isinstance(value, list):
        return f"[{inside}]"
    name = "" if type(value) is tuple else type(value).__name__
    return f"{name}({inside})"
