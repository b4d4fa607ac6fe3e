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
import pathlib
import typing
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ParamSpec, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from gdpjax._core.checks import NUMBER_KINDS, POSITIVE, REAL, Domain, check, is_traced, number_kind
from gdpjax._core.shown import shown
from gdpjax._core.types import NeighboringRelation

P = ParamSpec("P")
R = TypeVar("R")

MOST_INDEX = 2**31 - 1
"""The largest number of rows or steps: they are counted in int32."""


def check_number(name: str, value: Any, domain: Domain = REAL) -> float:
    """Return ``value`` as a float in ``domain``; ValueError for arrays and for what is traced."""
    check(name, value, domain)
    if is_traced(value) or np.ndim(value) != 0:
        raise ValueError(f"{name} must be one number, known before compiling, got {shown(value)}")
    return float(value)


def check_count(name: str, value: Any, *, least: int = 1, most: int = MOST_INDEX) -> int:
    """Return ``value`` as an int in [least, most], known before compiling; a float such as 10.0 is one, 1.5 is not."""

    def is_count(x: Any) -> Any:
        return (x >= least) & (x <= most) & (x == np.floor(x))

    counts = Domain(f"a whole number >= {least}", is_count, most)
    return int(check_number(name, value, counts))


def check_expected_batch_size(value: Any, num_examples: int) -> float:
    """Return the mean number of examples of a batch, from 1 to all of them; ValueError for a share of them."""
    size = check_number("expected_batch_size", value, POSITIVE)
    if not 1 <= size <= num_examples:
        batch = (
            f"; is that the sampling probability? Of {num_examples} examples it is a batch of {size * num_examples:g}"
        )
        raise ValueError(
            f"expected_batch_size must be at least 1 and at most num_examples={num_examples}, got {size:g}"
            f"{batch if size < 1 else ''}"
        )
    return size


def check_static_size(name: str, size: Any) -> None:
    """Raise ValueError unless ``size`` is None or a whole number in [1, MOST_INDEX], known before compiling."""
    if size is None or (isinstance(size, int | np.integer) and 1 <= size <= MOST_INDEX):
        return
    advice = ""
    if isinstance(size, jax.Array):
        advice = f"; it decides shapes and rounding, so under optax.inject_hyperparams list {name} in static_args"
    raise ValueError(f"{name} must be a whole number >= 1, at most {MOST_INDEX}, got {shown(size)}{advice}")


def check_positions(name: str, value: Any) -> tuple[int, ...]:
    """Return ``value``, an argument's number or several, as a tuple of ints >= 0."""
    numbers = value if isinstance(value, tuple | list | range) else (value,)
    if not all(isinstance(number, int | np.integer) and number >= 0 for number in numbers):
        raise ValueError(f"{name} must be argument numbers, a whole number >= 0 or a tuple of them, got {value!r}")
    return tuple(int(number) for number in numbers)


def check_flag(name: str, value: Any) -> bool:
    """Return ``value`` as a bool; ValueError for anything but True and False."""
    if not isinstance(value, bool | np.bool_):
        raise ValueError(f"{name} must be True or False, got {shown(value)}")
    return bool(value)


def check_choice(name: str, value: Any, choices: Iterable[Any]) -> Any:
    """Return ``value`` if it is one of ``choices`` (texts, or texts and None); ValueError with a guess otherwise."""
    choices = tuple(choices)
    can_be_choice = value is None or isinstance(value, str)
    if can_be_choice and value in choices:
        return value
    listing = ", ".join(str(choice) for choice in choices)
    guess = did_you_mean(value, choices)
    raise ValueError(f"{name} must be one of {listing}, got {shown(value)}{guess}")


def did_you_mean(value: Any, choices: Iterable[Any]) -> str:
    """Return a question for the end of a message, or nothing where no choice is close to ``value``."""
    if not isinstance(value, str):
        return ""
    texts = [choice for choice in choices if isinstance(choice, str)]
    closest = difflib.get_close_matches(value, texts, n=1)
    if not closest:
        return ""
    return f"; did you mean {closest[0]!r}?"


def check_relation(value: Any) -> NeighboringRelation:
    """Return ``value``, a relation or its name, as a relation."""
    if isinstance(value, NeighboringRelation):
        return value
    for relation in NeighboringRelation:
        if isinstance(value, str) and value in (relation.value, relation.name):
            return relation
    names = ", ".join(relation.name for relation in NeighboringRelation)
    raise ValueError(f"neighboring_relation must be one of {names}, got {shown(value)}")


def check_text(name: str, value: Any, what: str = "a text") -> str:
    """Return ``value`` if it is a text that is not empty."""
    if not isinstance(value, str) or not value:
        raise ValueError(f"{name} must be {what}, got {shown(value)}")
    return value


def check_target(path: pathlib.Path) -> None:
    """Raise ValueError unless a file can stand at ``path``: asked before the work whose results go there."""
    if path.is_dir() or not path.parent.is_dir():
        raise ValueError(f"{path} cannot be written; give the name of a file, in a folder that exists")


def check_callable(name: str, value: Any, what: str = "a function") -> Any:
    """Return ``value`` if it can be called."""
    if not callable(value):
        raise ValueError(f"{name} must be {what}, got {shown(value)}")
    return value


def check_transformation(name: str, value: Any, example: str) -> None:
    """Raise ValueError unless ``value`` has the two functions of an optax transformation."""
    if not callable(getattr(value, "init", None)) or not callable(getattr(value, "update", None)):
        raise ValueError(f"{name} must be an optax transformation such as {example}, got {shown(value)}")


def check_instance(name: str, value: Any, types: Any, hint: str = "") -> Any:
    """Return ``value`` if it is of one of the classes ``types``; ``hint`` tells where to get one."""
    if isinstance(value, types):
        return value
    classes = types if isinstance(types, tuple) else typing.get_args(types) or (types,)
    expected = " or ".join(_with_article(kind.__name__) for kind in classes)
    if hint:
        expected = f"{expected}, {hint}"
    raise ValueError(f"{name} must be {expected}; got {shown(value)}")


def check_names(names: Any, count: int) -> Sequence[str | None]:
    """Return the names of so many runs; None for each by default."""
    names = [None] * count if names is None else check_instance("names", names, (list, tuple))
    if len(names) != count:
        raise ValueError(f"expected a name for each run, got {len(names)} names for {count} runs")
    return names


def _with_article(noun: str) -> str:
    """Return "a" or "an" and the noun."""
    article = "an" if noun[0] in "AEIOU" else "a"
    return f"{article} {noun}"


def check_array(name: str, value: Any, *, ndim: int | None = None, kinds: str = NUMBER_KINDS) -> Any:
    """Return ``value`` if it is an array, a number or nested lists of them, of a `number_kind` among ``kinds``.

    JAX and NumPy arrays and tracers are returned as they are, other things as NumPy arrays.
    """
    expected = "an array of numbers"
    if ndim is not None:
        expected = f"an array of numbers with {ndim} axes"
    array = value
    if not hasattr(value, "dtype"):
        array = jnp.asarray(value) if is_traced(value) else np.asarray(value)
    # NumPy would compute with the numbers under a mask.
    if np.ma.is_masked(value) or number_kind(array.dtype) not in kinds or ndim not in (None, array.ndim):
        raise ValueError(f"{name} must be {expected}, got {shown(value)}")
    return array


def check_tree(name: str, tree: Any, *, kinds: str = "biufc") -> Any:
    """Return ``tree`` if every leaf is an array or a number; ValueError with the leaf's path otherwise."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        if number_kind(getattr(leaf, "dtype", None)) in kinds or _is_special(leaf):
            continue
        if isinstance(leaf, bool | int | float | complex):
            continue
        place = jax.tree_util.keystr(path)
        where = f" at {place}" if place else ""
        raise ValueError(f"{name} must be a pytree of arrays, got {shown(leaf)}{where}")
    return tree


def _is_special(leaf: Any) -> bool:
    """Return whether a leaf stands for an array, is a PRNG key, or the empty gradient of a whole number."""
    if isinstance(leaf, jax.ShapeDtypeStruct):
        return True
    if not isinstance(leaf, jax.Array | np.ndarray):
        return False
    return leaf.dtype == jax.dtypes.float0 or jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def check_rows(arguments: tuple[Any, ...]) -> tuple[tuple[Any, ...], int]:
    """Return data, pytrees with one row per example in each leaf, as trees of arrays, and the number of rows.

    ValueError where leaves are no arrays, or have unequal numbers of rows.
    """
    trees = []
    for index, argument in enumerate(arguments):
        name = f"array {index} of the data"
        arrays = []
        for path, leaf in jax.tree_util.tree_leaves_with_path(argument, _is_nested_numbers):
            arrays.append(check_array(f"{name}{jax.tree_util.keystr(path)}", leaf, kinds="biufc"))
        structure = jax.tree.structure(argument, is_leaf=_is_nested_numbers)
        trees.append(jax.tree.unflatten(structure, arrays))

    axes: list[Any] = [np.shape(array)[0] if np.ndim(array) else None for array in jax.tree.leaves(trees)]
    if len(set(axes)) != 1 or None in axes:
        raise ValueError(f"expected at least one array, and all with one row per example, got leading axes {axes}")
    return tuple(trees), axes[0]


def _is_nested_numbers(node: Any) -> bool:
    """Return whether a list or tuple holds numbers only: it is read as one array, not as a tree of numbers."""
    if not isinstance(node, list | tuple):
        return False
    return all(isinstance(leaf, bool | int | float | complex) for leaf in jax.tree.leaves(node))


_ELSEWHERE = {
    "batch_size": "expected_batch_size",
    "max_grad_norm": "clip",
    "sample_rate": "sampling_prob",
    "seed": "key",
    "sigma": "noise_multiplier",
}
"""What other libraries call an argument, and what it may be here."""


def check_keywords(title: str, given: Iterable[str], known: Iterable[str], **renamed: str) -> None:
    """ValueError with a guess where a keyword that is given is none of those that are known.

    ``renamed`` are names from elsewhere, each with what is meant, beside those of `_ELSEWHERE`.
    """
    known = tuple(known)
    for name in given:
        if name in known:
            continue
        meant = renamed.get(name) or _ELSEWHERE.get(name, name)
        advice = did_you_mean(meant, known) or f"; it takes {', '.join(known)}"
        raise ValueError(f"{title} has no argument {name!r}{advice}")


def keyword_checked(*also: str, **renamed: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorate a function so that a keyword it does not know is a ValueError with a guess.

    ``also`` are the keywords that a ``**`` parameter takes, ``renamed`` as in `check_keywords`. An ``__init__`` is
    called by the name of its class.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        signature = inspect.signature(function)
        named = (name for name, parameter in signature.parameters.items() if parameter.kind != parameter.VAR_KEYWORD)
        names = (*(name for name in named if name != "self"), *also)
        title = function.__qualname__.removesuffix(".__init__").rpartition(".")[2]

        @functools.wraps(function)
        def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
            check_keywords(title, kwargs, names, **renamed)
            return function(*args, **kwargs)

        return wrapper

    return decorate
