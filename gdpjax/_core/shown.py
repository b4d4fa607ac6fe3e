"""How a value is shown in an error message.

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
    """Describe ``value`` in a few words for an error message; never raises.

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
    if kind is int:
        return repr(value) if value.bit_length() <= 64 else f"a whole number of {value.bit_length()} bits"
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
    if (array := _array_type(value)) is not None:
        return f"{'a traced' if isinstance(value, Tracer) else 'an'} array of {array}"
    if isinstance(value, tuple | list | dict):
        return _container(value, 0)
    return f"an object of class {_class_name(value)}"


def _shortened(text: str) -> str:
    return text if len(text) <= _LONGEST_TEXT else text[: _LONGEST_TEXT - 3] + "..."


def _array_type(value: Any) -> str | None:
    """Something like ``float32[2,3]`` for an array, None for anything else."""
    try:
        dtype, shape = value.dtype, tuple(value.shape)
        return _shortened(f"{dtype}[{','.join(str(int(size)) for size in shape)}]")
    except Exception:
        return None


def _container(value: Any, depth: int) -> str:
    items = list(value.items() if isinstance(value, dict) else value)
    parts = []
    for item in items[:_MOST_ITEMS]:
        if isinstance(value, dict):
            name = _shortened(repr(item[0])) if type(item[0]) in (str, int) else _class_name(item[0])
            parts.append(f"{name}: {_item(item[1], depth)}")
        else:
            parts.append(_item(item, depth))
    if len(items) > _MOST_ITEMS:
        parts.append(f"and {len(items) - _MOST_ITEMS} more")
    inside = ", ".join(parts)
    if isinstance(value, dict):
        return f"{{{inside}}}"
    if isinstance(value, list):
        return f"[{inside}]"
    name = "" if type(value) is tuple else _class_name(value)
    return f"{name}({inside})"


def _item(value: Any, depth: int) -> str:
    """The type of an item of a container: its value may be one of the data."""
    if (array := _array_type(value)) is not None:
        return array
    if isinstance(value, tuple | list | dict) and depth < _DEEPEST:
        return _container(value, depth + 1)
    return "None" if value is None else _class_name(value)
