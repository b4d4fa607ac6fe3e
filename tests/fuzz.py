"""Call every public entry point with values that a user might pass by mistake, and look for silent nonsense.

    python -m tests.fuzz [--entry Event]

Each call is a valid one (`tests.fuzz_cases`) in which one argument is replaced: a number by NaN, by one of the wrong
sign or by a text, a choice by a word that is none, a key by a seed. An error of any kind is a good end. What is looked
for is a result out of an argument that nobody can have meant, or NaN out of finite numbers.
"""

import argparse
import enum
import random
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from tests import fuzz_cases

REFUSED = object()


class Bad(NamedTuple):
    """A value to put in, and whether nobody can have meant it."""

    value: Any
    hopeless: bool


class Finding(NamedTuple):
    """A call that returned what it should not have."""

    entry: str
    place: str
    value: Any
    result: Any


def _hopeless(value: Any) -> list[Any]:
    """Return what nobody can have meant in the place of a valid ``value``."""
    key = jax.random.key(3)
    if isinstance(value, bool | np.bool_):
        return []  # what is true stands for True
    if isinstance(value, int):
        return ["3", 1.5, -5, float("nan"), float("inf"), key]
    if isinstance(value, float):
        return ["1.0", float("nan"), 1j, key]
    if isinstance(value, str):
        return [3, 1.5, ["poisson"], key]
    if isinstance(value, enum.Enum):
        return [3, "no such relation", key]
    if isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
        return [0, -5, 1.5, "key", np.zeros(2), jax.random.split(key, 2)]
    if isinstance(value, np.ndarray | jax.Array | dict | tuple | list):
        return ["x", len]
    if callable(value) and not hasattr(value, "sensitivity"):
        return []  # what cannot be called fails where it is called
    return ["x", 3, key, np.ones(2), type(value)]


def _debatable(value: Any) -> list[Any]:
    """Return values that may have been meant, but must not become NaN."""
    if isinstance(value, bool | str | enum.Enum):
        return []
    if isinstance(value, int):
        return [0, 3.0, np.int8(3)]
    if isinstance(value, float):
        return [0.0, -1.0, float("inf"), 1e300, 5e-324, np.ones((2, 3)), np.ones(0)]
    if isinstance(value, np.ndarray | jax.Array) and not jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
        return [-5, 1e300, np.zeros(0), np.ones((7, 3))]
    return []


# Compiled for many seconds whenever a shape or a sign changes: only what is refused at once.
COSTLY = ("bounds", "calibrate", "tuning", "moments", "compose", "audit", "nnx", "train", "run_sweep")


def replacements(name: str, value: Any) -> list[Bad]:
    """Return what a valid argument is replaced by."""
    result = [Bad(each, True) for each in _hopeless(value)]
    if not any(part in name for part in COSTLY):
        result.extend(Bad(each, False) for each in _debatable(value))
    return result


# (entry, argument) that may be anything: a text is a filter of nnx, and what is printed is not looked at.
ANYTHING = {
    ("nnx.clipped_grad", "wrt"),
    ("nnx.explain", "wrt"),
    ("nnx.private_training", "wrt"),
    ("report", "unit"),
}


def _holds_nan(result: Any) -> bool:
    """Return whether any number of a tree is NaN."""
    for leaf in jax.tree.leaves(result):
        is_float = isinstance(leaf, float) or getattr(getattr(leaf, "dtype", None), "kind", "") == "f"
        if is_float and np.isnan(np.asarray(leaf)).any():
            return True
    return False


def is_nonsense(bad: Bad, result: Any) -> bool:
    """Return whether a call with this value should not have returned this."""
    is_nan_passed_on = _holds_nan(bad.value) and _holds_nan(result)
    return (bad.hopeless and not is_nan_passed_on) or (_holds_nan(result) and not _holds_nan(bad.value))


def nonsense(entry: str, case: fuzz_cases.Case, seed: int, calls: int) -> Iterator[Finding]:
    """Yield the calls of an entry point, out of ``calls`` mutated ones, that returned nonsense."""
    function, args, kwargs = case
    arguments: dict[Any, Any] = dict(enumerate(args)) | kwargs
    options = [(place, bad) for place, value in arguments.items() for bad in replacements(entry, value)]
    draw = random.Random(f"{seed} {entry}")
    for place, bad in draw.sample(options, min(calls, len(options))):
        if (entry, place) in ANYTHING:
            continue
        changed = arguments | {place: bad.value}
        positional = [changed.pop(index) for index in range(len(args))]
        result = _result(function, positional, changed)
        if result is not REFUSED and is_nonsense(bad, result):
            yield Finding(entry, str(place), bad.value, result)


def _result(function: Callable[..., Any], args: list[Any], kwargs: dict[str, Any]) -> Any:
    """Return what a call returns, or `REFUSED` for an error."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return jax.block_until_ready(function(*args, **kwargs))
        except Exception:
            return REFUSED


def main() -> None:
    """Print the nonsense of many calls."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--calls", type=int, default=100, help="of each entry point")
    parser.add_argument("--entry", nargs="*", help="only these")
    arguments = parser.parse_args()
    for entry, case in fuzz_cases.cases().items():
        if arguments.entry is None or entry in arguments.entry:
            for finding in nonsense(entry, case, arguments.seed, arguments.calls):
                print(f"{finding.entry}({finding.place}={finding.value!r}) returned {finding.result!r}", flush=True)


if __name__ == "__main__":
    main()
