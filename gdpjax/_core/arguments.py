"""Checks of what a caller passes, apart from real numbers (`checks`) and PRNG keys (`keys`).

Every public function begins with these, so that a wrong argument ends in one ValueError that names it, says what was
expected and what was got (by `shown`, which prints no data), and not in an exception from the depths of a library.

    steps = check_count("num_steps", num_steps)              # an int, known before compiling
    check_choice("sampling", sampling, ("poisson", "uniform"))
    check_callable("loss_fn", loss_fn)
    check_instance("plan", plan, Plan, "made by gdpjax.make_plan")
    check_tree("params", params)                             # every leaf an array or a number
"""

import difflib
import functools
import inspect
import os
import pathlib
from collections.abc import Callable, Iterable
from typing import Any, ParamSpec, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from gdpjax._core.checks import NUMBER_KINDS, REAL, Domain, check, is_traced, number_kind
from gdpjax._core.shown import shown
from gdpjax._core.types import NeighboringRelation

P = ParamSpec("P")
R = TypeVar("R")

MOST_INDEX = 2**31 - 1
"""The largest number of rows or steps: they are counted in int32."""


def check_number(name: str, value: Any, domain: Domain = REAL) -> float:
    """``value`` as a float in ``domain``; ValueError for arrays and for what is traced."""
    if is_traced(value):
        raise ValueError(f"{name} must be a number known before compiling, got {shown(value)}")
    check(name, value, domain)
    if np.ndim(value) != 0:
        raise ValueError(f"{name} must be one number, got {shown(value)}")
    return float(value)


def check_count(name: str, value: Any, *, least: int = 1, most: int = MOST_INDEX) -> int:
    """``value`` as an int in [least, most], known before compiling; a float such as 10.0 is one, 1.5 is not."""
    inside = lambda x: (x >= least) & (x <= most) & (x == np.floor(x))  # noqa: E731
    return int(check_number(name, value, Domain(f"a whole number >= {least}", inside, most)))


def check_static_size(name: str, size: Any) -> None:
    """ValueError unless ``size`` is None or a whole number >= 1 that is known before compiling."""
    if size is None or (_is_whole(size) and size >= 1):
        return
    advice = ""
    if isinstance(size, jax.Array):
        advice = f"; it decides shapes and rounding, so under optax.inject_hyperparams list {name} in static_args"
    raise ValueError(f"{name} must be a whole number >= 1, got {shown(size)}{advice}")


def check_positions(name: str, value: Any, least: int = 0) -> tuple[int, ...]:
    """``value``, an argument's number or several, as a tuple of ints."""
    numbers = value if isinstance(value, tuple | list | range) else (value,)
    if not all(map(_is_whole, numbers)):
        raise ValueError(f"{name} must be argument numbers, a whole number or a tuple of them, got {shown(value)}")
    if any(number < least for number in numbers):
        raise ValueError(f"{name} must be argument numbers >= {least}, got {', '.join(map(str, numbers[:8]))}")
    return tuple(int(number) for number in numbers)


def _is_whole(value: Any) -> bool:
    """Whether ``value`` is a whole number of Python or NumPy; NumPy's durations are of the class of its integers."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool | np.timedelta64)


def check_flag(name: str, value: Any) -> bool:
    """``value`` as a bool; ValueError for anything but True and False."""
    if not isinstance(value, bool | np.bool_):
        raise ValueError(f"{name} must be True or False, got {shown(value)}")
    return bool(value)


def check_choice(name: str, value: Any, choices: Iterable[Any]) -> Any:
    """``value`` if it is one of ``choices`` (texts, or texts and None); ValueError with a guess otherwise."""
    choices = tuple(choices)
    if (value is None or isinstance(value, str)) and value in choices:
        return value
    listing = ", ".join(str(choice) for choice in choices)
    raise ValueError(f"{name} must be one of {listing}, got {shown(value)}{did_you_mean(value, choices)}")


def did_you_mean(value: Any, choices: Iterable[Any]) -> str:
    """A question for the end of a message, or nothing where no choice is close."""
    texts = [choice for choice in choices if isinstance(choice, str)]
    close = difflib.get_close_matches(value, texts, n=1) if isinstance(value, str) else []
    return f"; did you mean {close[0]!r}?" if close else ""


def check_relation(value: Any) -> NeighboringRelation:
    """``value``, a relation or its name, as a relation."""
    if isinstance(value, NeighboringRelation):
        return value
    for relation in NeighboringRelation:
        if isinstance(value, str) and value in (relation.value, relation.name):
            return relation
    names = ", ".join(relation.name for relation in NeighboringRelation)
    raise ValueError(f"neighboring_relation must be one of {names}, got {shown(value)}")


def check_text(name: str, value: Any, what: str = "a text") -> str:
    """``value`` if it is a text that is not empty."""
    if not isinstance(value, str) or not value:
        raise ValueError(f"{name} must be {what}, got {shown(value)}")
    return value


def check_path(name: str, value: Any) -> pathlib.Path:
    """``value``, a path or its text, as a path."""
    try:
        text = os.fspath(value)
    except Exception:
        text = None
    if not isinstance(text, str) or not text or "\0" in text:
        raise ValueError(f"{name} must be a path or its text, got {shown(value)}")
    return pathlib.Path(text)


def check_callable(name: str, value: Any, what: str = "a function") -> Any:
    """``value`` if it can be called."""
    if not callable(value):
        raise ValueError(f"{name} must be {what}, got {shown(value)}")
    return value


def check_instance(name: str, value: Any, types: Any, hint: str = "") -> Any:
    """``value`` if it is one of ``types``; ``hint`` says where to get one."""
    if not isinstance(value, types):
        classes = types if isinstance(types, tuple) else (types,)
        wanted = " or ".join(_with_article(kind.__name__) for kind in classes)
        raise ValueError(f"{name} must be {wanted}{', ' + hint if hint else ''}; got {shown(value)}")
    return value


def _with_article(noun: str) -> str:
    """Return "a" or "an" and the noun."""
    article = "an" if noun[0] in "AEIOU" else "a"
    return f"{article} {noun}"


def check_array(name: str, value: Any, *, ndim: int | None = None, kinds: str = NUMBER_KINDS) -> Any:
    """``value`` if it is an array, a number or nested lists of them, of a dtype that `number_kind` finds in ``kinds``.

    JAX and NumPy arrays and tracers are returned as they are, other things as NumPy arrays.
    """
    wanted = "an array of numbers" if ndim is None else f"an array of numbers with {ndim} axes"
    array = value
    if not hasattr(value, "dtype") or not hasattr(value, "shape"):
        try:
            array = jnp.asarray(value) if is_traced(value) else np.asarray(value)
        except Exception as error:
            raise ValueError(f"{name} must be {wanted}, got {shown(value)}") from error
    kind = number_kind(array.dtype)
    if kind not in kinds or (ndim is not None and len(array.shape) != ndim):
        raise ValueError(f"{name} must be {wanted}, got {shown(value)}")
    return array


def check_tree(name: str, tree: Any, *, kinds: str = "biufc") -> Any:
    """``tree`` if JAX can walk it and every leaf is an array or a number; ValueError with the leaf's path otherwise."""
    for path, leaf in leaves_of(name, tree):
        if number_kind(getattr(leaf, "dtype", None)) in kinds or _is_special(leaf):
            continue
        if isinstance(leaf, bool | int | float | complex) and _is_small(leaf):
            continue
        where = jax.tree_util.keystr(path)
        raise ValueError(f"{name} must be a pytree of arrays, got {shown(leaf)}{' at ' + where if where else ''}")
    return tree


def _is_small(number: Any) -> bool:
    """Whether a Python number is one that an array can hold."""
    return number_kind(np.asarray(number).dtype) != "O"


def _is_special(leaf: Any) -> bool:
    """Whether a leaf stands for an array, is a PRNG key, or the empty gradient of a whole number."""
    if isinstance(leaf, jax.ShapeDtypeStruct):
        return True
    dtype = getattr(leaf, "dtype", None) if isinstance(leaf, jax.Array | np.ndarray) else None
    return dtype is not None and (dtype == jax.dtypes.float0 or jnp.issubdtype(dtype, jax.dtypes.prng_key))


def leaves_of(name: str, tree: Any) -> list[tuple[Any, Any]]:
    """The leaves of ``tree`` with their paths; ValueError where JAX cannot walk it (keys that cannot be sorted)."""
    try:
        return jax.tree_util.tree_flatten_with_path(tree)[0]
    except Exception as error:
        raise ValueError(f"{name} must be a pytree that JAX can flatten, got {shown(tree)}: {error}") from error


def check_keywords(title: str, given: Iterable[str], known: Iterable[str], **renamed: str) -> None:
    """ValueError with a guess where a keyword that is given is none of those that are known.

    ``renamed`` are names from elsewhere, each with what is meant, for which no spelling is close.
    """
    known = tuple(known)
    for name in given:
        if name not in known:
            meant = renamed.get(name)
            guess = f"; did you mean {meant!r}?" if meant else did_you_mean(name, known)
            raise ValueError(f"{title} has no argument {name!r}{guess or '; it takes ' + ', '.join(known)}")


def keyword_checked(**renamed: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorate a function so that a keyword it does not know, or one that is missing, is a ValueError with a guess.

    ``renamed`` are names from elsewhere, each with the one that is meant, for which no spelling is close.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        signature = inspect.signature(function)
        names, title = tuple(signature.parameters), getattr(function, "__name__", "the function")

        @functools.wraps(function)
        def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
            check_keywords(title, kwargs, names, **renamed)
            try:
                signature.bind(*args, **kwargs)
            except TypeError as error:
                if args and all(p.kind is inspect.Parameter.KEYWORD_ONLY for p in signature.parameters.values()):
                    raise ValueError(f"{title} takes its arguments by name: {', '.join(names)}") from error
                raise ValueError(f"{title}: {error}") from error
            return function(*args, **kwargs)

        return wrapper

    return decorate
