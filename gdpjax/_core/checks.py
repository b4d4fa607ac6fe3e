"""Check real numbers against the domains of arguments.

    check("mu", mu, POSITIVE)       # ValueError: mu must be a finite number > 0, got -1.0

Each concrete argument must lie in its declared `Domain`; NaN never does. A violation is a ValueError that names the
argument, what was expected and what was got. Of a tracer only the type is known; `gdpjax._core.precision` turns its
results outside the domain into NaN.
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
    """A set of real numbers.

    Attributes:
      text: what it is called in messages.
      predicate: a predicate of arrays, written for NumPy and JAX alike.
      most: the largest number that can be told from its neighbours; said in messages about larger ones.
    """

    text: str
    predicate: Callable[[Any], Any]
    most: float = np.inf

    def contains(self, numbers: Any) -> Any:
        """Return for each number whether it lies in the domain."""
        # NumPy warns of inf // 1, and an infinite number is one that a predicate may be asked about.
        with np.errstate(invalid="ignore"):
            return self.predicate(numbers)


REAL = Domain("a number", lambda x: abs(x) < np.inf)
EXTENDED_NONNEGATIVE = Domain("a number >= 0 (inf allowed)", lambda x: x >= 0)
NONNEGATIVE = Domain("a finite number >= 0", lambda x: (x >= 0) & (x < np.inf))
POSITIVE = Domain("a finite number > 0", lambda x: (x > 0) & (x < np.inf))
_FLOAT32 = np.finfo(np.float32)
_RANGE = f"from {_FLOAT32.tiny:.2g} to {_FLOAT32.max:.2g}, the range of float32"
POSITIVE_FLOAT32 = Domain(
    f"a finite number > 0, {_RANGE}", lambda x: (x >= float(_FLOAT32.tiny)) & (x <= float(_FLOAT32.max))
)
"""A number of which noise in float32 is made: it neither vanishes there nor overflows."""
NONNEGATIVE_FLOAT32 = Domain(
    f"a finite number >= 0, being 0 or {_RANGE}", lambda x: (x == 0) | POSITIVE_FLOAT32.predicate(x)
)
UNIT = Domain("a number in [0, 1]", lambda x: (x >= 0) & (x <= 1))
OPEN_UNIT = Domain("a number strictly between 0 and 1", lambda x: (x > 0) & (x < 1))
HALF_OPEN_UNIT = Domain("a number in [0, 1)", lambda x: (x >= 0) & (x < 1))
_MOST_COUNT = 2.0**53 - 1
"""From 2^53 on float64 does not tell a whole number from the next one."""
COUNT = Domain("a whole number >= 1", lambda x: (x >= 1) & (x <= _MOST_COUNT) & (x == x // 1), _MOST_COUNT)
WHOLE = Domain("a whole number >= 0", lambda x: (x >= 0) & (x <= _MOST_COUNT) & (x == x // 1), _MOST_COUNT)
RUN: dict[str, Any] = {"noise_multiplier": POSITIVE, "sampling_prob": UNIT, "num_steps": COUNT}
"""The numbers of a run of subsampled Gaussian steps."""
CLIP_NORM = Domain("a number > 0, from 1e-30 to 1e30", lambda x: (x >= 1e-30) & (x <= 1e30))
"""Far from the ends of float32, so that neither a bound nor a noise in proportion to it vanishes or overflows."""
RENYI_ORDER = Domain("a Renyi order > 1", lambda x: (x > 1) & (x < np.inf))


def is_traced(value: Any) -> bool:
    """Return whether any leaf of ``value`` is a tracer, so that its numbers cannot be looked at."""
    if isinstance(value, Tracer):
        return True
    try:
        leaves = jax.tree.leaves(value)
    except Exception:
        # It is no pytree, such as a dict whose keys have no order.
        return False
    return any(isinstance(leaf, Tracer) for leaf in leaves)


def at_once() -> contextlib.AbstractContextManager[None]:
    """Return a context that computes with concrete numbers at once, also while an outer function is being compiled.

    Elsewhere it is empty, because programs that were compiled before are not found again inside it.
    """
    if is_traced(jnp.zeros(())):
        return jax.ensure_compile_time_eval()
    return contextlib.nullcontext()


NUMBER_KINDS = "iuf"
"""The letters of `number_kind` for whole and real numbers."""
_KINDS_OF_JAX = {"f": jnp.floating, "i": jnp.signedinteger, "u": jnp.unsignedinteger}


def number_kind(dtype: Any) -> str:
    """Return NumPy's letter for the numbers of a dtype ("b", "i", "u", "f" or "c"), JAX's own included; else "O"."""
    if dtype is None:
        return "O"
    try:
        kind = np.dtype(dtype).kind
    except TypeError:
        # The dtype of PRNG keys, or no dtype at all.
        return "O"
    if kind in "biufc":
        return kind

    # NumPy knows bfloat16, float8, int4 and the like as "V".
    if kind == "V":
        for letter, parent in _KINDS_OF_JAX.items():
            if jnp.issubdtype(dtype, parent):
                return letter
    return "O"


def _as_float64(name: str, value: Any, text: str) -> np.ndarray:
    """Return the real numbers in ``value``; ValueError for texts, None, truth values and complex numbers."""
    # NumPy would compute with the numbers under a mask.
    if np.ma.is_masked(value):
        raise ValueError(f"{name} must be {text}, got an array with masked elements")
    array = np.asarray(value)
    # Python integers beyond 64 bits are objects.
    is_real = number_kind(array.dtype) in NUMBER_KINDS or all(type(item) is int for item in array.flat)
    if is_real:
        # A whole number may be beyond all floats.
        with contextlib.suppress(OverflowError):
            return array.astype(np.float64)
    raise ValueError(f"{name} must be {text}, got {shown(value)}")


def check(name: str, value: Any, domain: Domain) -> None:
    """Raise ValueError unless every element of a concrete real ``value`` lies in ``domain``; tracers pass.

    Messages print the number that is outside, so ``value`` is to be public. Of a tracer only the type is looked at.
    """
    if is_traced(value):
        if hasattr(value, "dtype") and number_kind(value.dtype) not in NUMBER_KINDS:
            raise ValueError(f"{name} must be {domain.text}, got {shown(value)}")
        return
    numbers = _as_float64(name, value, domain.text)
    is_inside = np.asarray(domain.contains(numbers))
    if is_inside.all():
        return

    # Name the first number outside.
    index = tuple(int(i) for i in np.argwhere(~is_inside)[0])
    number = numbers[index]
    where = f" at index {index}" if numbers.ndim else ""
    expected = domain.text
    if number > domain.most:
        expected = f"{domain.text}, at most {domain.most:.0f}"
    raise ValueError(f"{name} must be {expected}, got {number!s}{where}")


def known(name: str, value: Any, domain: Domain) -> np.ndarray:
    """Return the numbers at which a certified curve is asked as float64; ValueError for others, and for traced ones."""
    if is_traced(value):
        raise ValueError(f"{name} must be known before compiling: this is computed outside compiled code")
    check(name, value, domain)
    return np.asarray(value, np.float64)


def check_scalar(name: str, value: Any, domain: Domain) -> None:
    """Check a number; ValueError also for arrays, and for floating types that would round a public number away."""
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
    """Return ``value`` after `check_scalar`; a tracer outside the domain becomes NaN, so that it shows.

    Python's whole numbers become floats: JAX takes them for int32.
    """
    check_scalar(name, value, domain)
    if is_traced(value):
        return jnp.where(domain.contains(value), value, jnp.nan)
    return float(value) if isinstance(value, int) else value
