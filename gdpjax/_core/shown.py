"""Describe values in error messages.

    raise ValueError(f"expected a plan, got {shown(value)}")

A message must never raise in turn, fill the screen, or print private data. `shown` therefore writes scalars and short
texts as they are, arrays by their dtype and shape, the items of containers by their types, and any other object by the
name of its class; no ``__repr__`` but those of Python's and NumPy's own scalars is called.
"""

import enum
import types
from typing import Any

import numpy as np
from jax.core import Tracer

_LONGEST_TEXT = 60
_MOST_ITEMS = 4
_DEEPEST = 3
_PLAIN = (bool, float, complex, type(None), type(Ellipsis), type(NotImplemented), range, slice)


def shown(value: Any) -> str:
    """Describe ``value`` in a few words for an error message, without ever raising.

    >>> shown(1.5), shown(np.zeros((2, 3), np.float32)), shown({"w": [1.0, 2.0]})
    ('1.5', 'an array of float32[2,3]', "{'w': [float, float]}")
    """
    try:
        return _described(value)
    except Exception:
        return f"an object of class {_class_name(value)}"


def _class_name(value: Any) -> str:
    return type.__dict__["__name__"].__get__(type(value))


def _described(value: Any) -> str:
    kind = type(value)
    if kind is int and value.bit_length() > 64:
        return f"a whole number of {value.bit_length()} bits"
    if kind is int:
        return repr(value)
    if kind in _PLAIN:
        return _shortened(repr(value))
    if isinstance(value, str):
        return _shortened(repr(str.__str__(value[: 2 * _LONGEST_TEXT])))
    if isinstance(value, bytes):
        return f"{len(value)} bytes"
    if isinstance(value, enum.Enum):
        return f"{_class_name(value)}.{value.name}"
    if isinstance(value, np.generic) and value.dtype.kind in "biufcmM":
        return f"{value!s} ({value.dtype})"
    if isinstance(value, type):
        return f"the class {value.__name__}"
    if isinstance(value, types.ModuleType | types.FunctionType | types.BuiltinFunctionType | types.MethodType):
        return f"the {_class_name(value)} {value.__name__}"
    array_type = _array_type(value)
    if array_type is not None:
        article = "a traced" if isinstance(value, Tracer) else "an"
        return f"{article} array of {array_type}"
    if isinstance(value, tuple | list | dict):
        return _container(value, 0)
    return f"an object of class {_class_name(value)}"


def _shortened(text: str) -> str:
    if len(text) <= _LONGEST_TEXT:
        return text
    return text[: _LONGEST_TEXT - 3] + "..."


def _array_type(value: Any) -> str | None:
    """Return a text like ``float32[2,3]`` for an array, None for anything else."""
    try:
        sizes = ",".join(str(int(size)) for size in value.shape)
        return _shortened(f"{value.dtype}[{sizes}]")
    except Exception:
        return None


def _container(value: Any, depth: int) -> str:
    """Return the types of the first items of a container, in brackets of its kind."""
    if isinstance(value, dict):
        parts = [f"{_dict_key(key)}: {_item(item, depth)}" for key, item in list(value.items())[:_MOST_ITEMS]]
    else:
        parts = [_item(item, depth) for item in list(value)[:_MOST_ITEMS]]
    num_more = len(value) - _MOST_ITEMS
    if num_more > 0:
        parts.append(f"and {num_more} more")

    inside = ", ".join(parts)
    if isinstance(value, dict):
        return f"{{{inside}}}"
    if isinstance(value, list):
        return f"[{inside}]"
    name = "" if type(value) is tuple else _class_name(value)
    return f"{name}({inside})"


def _dict_key(key: Any) -> str:
    """Return a key of a dict if it is a text or a whole number, else its type."""
    if type(key) in (str, int):
        return _shortened(repr(key))
    return _class_name(key)


def _item(value: Any, depth: int) -> str:
    """Return the type of an item of a container: its value may be one of the data."""
    array_type = _array_type(value)
    if array_type is not None:
        return array_type
    if isinstance(value, tuple | list | dict) and depth < _DEEPEST:
        return _container(value, depth + 1)
    if value is None:
        return "None"
    return _class_name(value)
