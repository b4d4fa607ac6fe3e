"""Domains of arguments: what a number may be, and a ValueError that says so where it is not.

Each concrete argument must lie in its declared `Domain`; NaN never does. A violation is a ValueError that names the
argument, what was expected and what was got. A tracer cannot be inspected, so it passes; what happens to it is the
business of `gdpjax._core.precision`.
"""

import contextlib
import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from gdpjax._core.shown import shown


@dataclasses.dataclass(frozen=True)
class Domain:
    """A set of real numbers: what it is called in messages, and a predicate written for NumPy and JAX alike."""

    text: str
    contains: Callable[[Any], Any]
    most: float = np.inf
    """The largest number that can be told from its neighbours; said in messages about larger ones."""


REAL = Domain("a number", lambda x: abs(x) < np.inf)
EXTENDED_NONNEGATIVE = Domain("a number >= 0 (inf allowed)", lambda x: x >= 0)
NONNEGATIVE = Domain("a finite number >= 0", lambda x: (x >= 0) & (x < np.inf))
POSITIVE = Domain("a finite number > 0", lambda x: (x > 0) & (x < np.inf))
UNIT = Domain("a number in [0, 1]", lambda x: (x >= 0) & (x <= 1))
OPEN_UNIT = Domain("a number strictly between 0 and 1", lambda x: (x > 0) & (x < 1))
HALF_OPEN_UNIT = Domain("a number in [0, 1)", lambda x: (x >= 0) & (x < 1))
# From 2^53 on float64 does not tell a whole number from the next one.
_MOST_COUNT = 2.0**53 - 1
COUNT = Domain("a whole number >= 1", lambda x: (x >= 1) & (x <= _MOST_COUNT) & (x == x // 1), _MOST_COUNT)
WHOLE = Domain("a whole number >= 0", lambda x: (x >= 0) & (x <= _MOST_COUNT) & (x == x // 1), _MOST_COUNT)
CLIP_NORM = Domain("a number > 0, from 1e-30 to 1e30", lambda x: (x >= 1e-30) & (x <= 1e30))
"""Far from the ends of float32, so that neither a bound nor a noise in proportion to it vanishes or overflows."""
RENYI_ORDER = Domain("a Renyi order > 1", lambda x: (x > 1) & (x < np.inf))


def is_traced(value: Any) -> bool:
    """Whether any leaf of ``value`` is a tracer, so that its numbers cannot be looked at."""
    if isinstance(value, Tracer):
        return True
    try:
        return any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(value))
    except Exception:  # no pytree, such as a dict whose keys have no order
        return False


def at_once() -> contextlib.AbstractContextManager[None]:
    """A context in which concrete numbers are computed with at once, also while an outer function is being compiled.

    It is empty elsewhere, because inside it what was compiled before is not found again.
    """
    return jax.ensure_compile_time_eval() if is_traced(jnp.zeros(())) else contextlib.nullcontext()


NUMBER_KINDS = "iuf"
"""What `number_kind` says of whole and real numbers."""


def number_kind(dtype: Any) -> str:
    """NumPy's letter for what a dtype holds ("b", "i", "u", "f" or "c"), JAX's own small floats included; else "O"."""
    if dtype is None:
        return "O"
    try:
        kind = np.dtype(dtype).kind
    except TypeError:  # the dtypes of PRNG keys, and what is no dtype
        return "O"
    if kind in "biufc":
        return kind
    parents = {"f": jnp.floating, "i": jnp.signedinteger, "u": jnp.unsignedinteger}
    own = kind == "V"  # bfloat16, float8, int4 and the like, to NumPy
    return next((letter for letter, parent in parents.items() if own and jnp.issubdtype(dtype, parent)), "O")


def _as_float64(name: str, value: Any, text: str) -> np.ndarray:
    """The real numbers in ``value``, which texts, times, truth values and complex numbers are not."""
    if np.ma.is_masked(value):  # NumPy would go on with what is under the mask
        raise ValueError(f"{name} must be {text}, got an array with masked elements: fill them, or leave them out")
    try:
        array = np.asarray(value)
        real = number_kind(array.dtype) in NUMBER_KINDS
        if array.dtype == object:  # Python integers beyond 64 bits
            real = all(type(item) in (int, float) for item in array.flat)
        if not real:
            raise TypeError(f"not real numbers: {array.dtype}")
        return array.astype(np.float64)
    except Exception as error:
        raise ValueError(f"{name} must be {text}, got {shown(value)}") from error


def check(name: str, value: Any, domain: Domain) -> None:
    """Raise ValueError unless every element of a concrete real ``value`` lies in ``domain``; tracers pass.

    A tracer's dtype must be that of real numbers all the same. Messages print the number that is outside, so ``value``
    is to be public.
    """
    if is_traced(value):
        dtypes = [getattr(leaf, "dtype", type(leaf)) for leaf in jax.tree.leaves(value)]
        if isinstance(value, dict) or any(number_kind(dtype) not in NUMBER_KINDS for dtype in dtypes):
            raise ValueError(f"{name} must be {domain.text}, got {shown(value)}")
        return
    numbers = _as_float64(name, value, domain.text)
    inside = np.asarray(domain.contains(numbers))
    if not inside.all():
        at = np.argwhere(~inside)[0]
        where = f" at index {tuple(int(i) for i in at)}" if numbers.ndim else ""
        text = f"{domain.text}, at most {domain.most:.0f}" if numbers[tuple(at)] > domain.most else domain.text
        raise ValueError(f"{name} must be {text}, got {numbers[tuple(at)]!s}{where}")


def check_scalar(name: str, value: Any, domain: Domain) -> None:
    """`check`, and ValueError for arrays and for floating types in which a public number would be rounded away."""
    check(name, value, domain)
    if np.ndim(value) != 0:
        raise ValueError(f"{name} must be one number, got {shown(value)}; map over configurations with jax.vmap")
    dtype = getattr(value, "dtype", np.dtype(np.float64))
    if jnp.issubdtype(dtype, jnp.floating) and jnp.finfo(dtype).bits < 32:
        raise ValueError(
            f"{name} must be float32 or wider, got {dtype}, which rounds it; under optax.inject_hyperparams give "
            "hyperparam_dtype=jnp.float32"
        )


def checked_scalar(name: str, value: Any, domain: Domain) -> Any:
    """``value`` after `check_scalar`; a tracer outside the domain becomes NaN, so that it shows."""
    check_scalar(name, value, domain)
    return jnp.where(domain.contains(value), value, jnp.nan) if is_traced(value) else value


def check_static(name: str, value: Any) -> None:
    """ValueError for what cannot decide which program is compiled: it must be hashable and known."""
    try:
        hash(value)
    except Exception as error:
        raise ValueError(f"{name} must be known before compiling, and hashable; got {shown(value)}") from error


def check_broadcast(**arrays: Any) -> None:
    """Raise ValueError unless the shapes of the named arrays broadcast together."""
    shapes = {name: np.shape(value) for name, value in arrays.items()}
    try:
        np.broadcast_shapes(*shapes.values())
    except ValueError as error:
        listing = ", ".join(f"{name} {shape}" for name, shape in shapes.items())
        raise ValueError(f"array arguments must broadcast together, got shapes: {listing}") from error
