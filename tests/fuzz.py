"""Call every public entry point with arguments that make no sense, and say what happens.

    python -m tests.fuzz --seed 5 --calls 30 [--only-bad] [--entry Event]

Each call is a valid one (`tests.fuzz_cases`) in which one argument, or one leaf of one, is replaced. It ends as

    fine      a result, and the argument might have been meant
    refused   a ValueError (or another error that the docs name) raised in gdpjax itself, so written for the caller
    obscure   any other exception, such as the TypeError of Python, NumPy or JAX, which is clear enough
    nonsense  a result in spite of an argument that nobody can have meant, or NaN out of finite numbers
    slow      more than a minute

What is asked for is no silent nonsense from values that a user might mean. Values that only this program passes
(times, masked arrays, objects that cannot be printed, truth values among numbers) may be taken for what NumPy takes
them for. Sizes stay small: a large number is so large that nothing can be allocated with it.
"""

import argparse
import collections
import contextlib
import enum
import functools
import inspect
import os
import random
import resource
import signal
import traceback
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import gdpjax
from gdpjax._core.shown import shown
from tests import fuzz_cases

LIMIT_S = 60
MEMORY = 6 << 30
# Compiled for many seconds whenever the shape or the sign of an argument changes: only arguments that are refused.
COSTLY = {
    "delta_bounds",
    "epsilon_bounds",
    "epsilon_bounds(ledger)",
    "mu_bounds",
    "tradeoff_bounds",
    "Plan.mu_bounds",
    "epsilon_curves",
    "tradeoff_curves",
    "calibrate_noise_multiplier",
    "calibrate_num_steps",
    "tuning_epsilon",
    "moments_accountant_epsilon",
    "compose",
    "RightGuesses.refutes",
    "audit_step",
    "private_training",
    "audit_one_run",
    "nnx.private_training",
    "nnx.clipped_grad",
    "train",
    "run_sweep",
}
DOCUMENTED = (ValueError, IndexError, OSError, gdpjax.sampling.BatchOverflowError, gdpjax.training.CheckpointError)


class Bad(NamedTuple):
    """A value to put in, and whether nobody can have meant it."""

    value: Any
    hopeless: bool


def _never() -> list[Any]:
    """Return values that are no number, choice, key, function, array or tree of arrays."""
    return [
        object(),
        np.array(["a", "b"]),
        np.array([None, 1.0]),
    ]


def _for_bool(key: Any) -> tuple[list[Any], list[Any]]:
    hopeless = ["yes", 2, 1.5, key, [True], np.ones(2, bool)]
    debatable = [np.True_, None]
    return hopeless, debatable


def _for_int(key: Any) -> tuple[list[Any], list[Any]]:
    hopeless = ["3", 1j, key, 1.5, -5, float("nan"), float("inf"), 2**63, None, [1, "2"]]
    debatable = [np.int8(3), 3.0, np.float32(2), 0, True]
    return hopeless, debatable


def _for_float(key: Any) -> tuple[list[Any], list[Any]]:
    hopeless = ["1.0", 1j, key, float("nan"), True, None, [1.0, "2"]]
    debatable = [
        float("inf"),
        -1.0,
        0,
        2**63,
        1e300,
        5e-324,
        np.float32(0.5),
        np.ones((2, 3)),
        np.ones(0),
        -0.0,
    ]
    return hopeless, debatable


def _for_text(key: Any) -> tuple[list[Any], list[Any]]:
    hopeless = [3, 1.5, True, key, ["poisson"], len, np.ones(2)]
    debatable = ["", "no such thing", None]
    return hopeless, debatable


def _for_choice(value: enum.Enum, key: Any) -> tuple[list[Any], list[Any]]:
    hopeless = [3, True, "no such relation", key, [value], np.ones(2)]
    debatable = [value.value, None]
    return hopeless, debatable


def _for_key(key: Any) -> tuple[list[Any], list[Any]]:
    numbers = [-5, 1.5, float("nan"), float("inf"), 2**63, -(2**63), 10**400, 1e300, 0, True, 5e-324]
    no_keys = [None, "key", np.zeros(2), np.zeros(3, np.uint32)]
    several_keys = [jax.random.split(key, 2), [key]]
    debatable = [np.zeros(2, np.uint32)]
    return [*numbers, *no_keys, *several_keys], debatable


def _for_array(shape: tuple[int, ...], key: Any) -> tuple[list[Any], list[Any]]:
    hopeless = ["x", key, [[1.0], [1.0, 2.0]], len]
    debatable = [
        None,
        1j,
        10**400,
        -5,
        float("nan"),
        1e300,
        np.ones(shape, complex),
        np.zeros(0),
        np.ones((7, 3)),
        np.full(shape, np.nan),
    ]
    return hopeless, debatable


def _for_tree(value: Any, key: Any) -> tuple[list[Any], list[Any]]:
    hopeless = ["x", key, len]
    debatable = [None, {}, (), [], 3, np.ones(2), value, [value], {"other": 1.0}]
    return hopeless, debatable


def _for_object(value: Any, key: Any) -> tuple[list[Any], list[Any]]:
    """Return replacements for a plan, a state, a curve or an event."""
    hopeless = ["x", 3, 1.5, None, key, np.ones(2), {}, (1, 2), len, type(value), [value]]
    collections_of_cases = [each for each in vars(fuzz_cases).values() if isinstance(each, tuple | dict)]
    return hopeless, collections_of_cases[:2]


def bad_values(value: Any) -> list[Bad]:
    """Return replacements for a valid ``value``, by what it is: first those that nobody can have meant."""
    key = jax.random.key(3)
    never = _never()
    if isinstance(value, bool | np.bool_):
        hopeless, debatable = _for_bool(key)
    elif isinstance(value, int):
        hopeless, debatable = _for_int(key)
    elif isinstance(value, float):
        hopeless, debatable = _for_float(key)
    elif isinstance(value, str):
        hopeless, debatable = _for_text(key)
    elif isinstance(value, enum.Enum):
        hopeless, debatable = _for_choice(value, key)
    elif isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
        hopeless, debatable = _for_key(key)
    elif isinstance(value, np.ndarray | jax.Array):
        hopeless, debatable = _for_array(np.shape(value), key)
    elif type(value) in (dict, tuple, list):
        hopeless, debatable = _for_tree(value, key)
    elif callable(value) and not hasattr(value, "sensitivity"):
        # What cannot be called is refused by Python, where it is called.
        hopeless, debatable = [], [3, 1.5, "x", None, key, np.ones(2), {}]
        never = []
    else:
        hopeless, debatable = _for_object(value, key)

    result = [Bad(each, True) for each in [*never, *hopeless]]
    result.extend(Bad(each, False) for each in debatable)
    return result


def places(case: fuzz_cases.Case) -> list[tuple[str, Any]]:
    """Return the arguments of a case, with their positions or names."""
    _, args, kwargs = case
    by_position = [(str(index), value) for index, value in enumerate(args)]
    return [*by_position, *kwargs.items()]


def mutated(case: fuzz_cases.Case, place: str, value: Any) -> tuple[tuple, dict[str, Any]]:
    """Return the arguments of a case with one replaced."""
    _, args, kwargs = case
    if not place.isdigit():
        return args, kwargs | {place: value}
    replaced = list(args)
    replaced[int(place)] = value
    return tuple(replaced), dict(kwargs)


def _nested(value: Any, rng: random.Random) -> Bad:
    """Return ``value``, a tree, with one leaf replaced."""
    leaves, structure = jax.tree.flatten(value)
    number = rng.randrange(len(leaves))
    bad = rng.choice(bad_values(leaves[number]))
    leaves[number] = bad.value
    return Bad(jax.tree.unflatten(structure, leaves), bad.hopeless)


def _is_tree(value: Any) -> bool:
    try:
        return isinstance(value, dict | tuple | list) and bool(jax.tree.leaves(value))
    except Exception:
        return False


def _holds_nan(result: Any) -> bool:
    try:
        # All leaves are converted first: what cannot be an array holds no NaN.
        leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(result) if not callable(leaf)]
        floats = [leaf for leaf in leaves if leaf.dtype.kind == "f"]
        return any(np.isnan(leaf).any() for leaf in floats)
    except Exception:
        return False


class _Slow(BaseException):
    """A call took longer than its limit; no ``except Exception`` on the way catches this."""


def _raise_slow(*_: Any) -> None:
    raise _Slow


@contextlib.contextmanager
def _time_limit(seconds: int) -> Iterator[None]:
    """Raise `_Slow` in what takes longer than ``seconds``."""
    previous_handler = signal.signal(signal.SIGALRM, _raise_slow)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, previous_handler)


def _judge(result: Any, bad: Bad) -> tuple[str, str]:
    """Say whether a call that returned should have."""
    value_holds_nan = _holds_nan(bad.value)
    result_holds_nan = _holds_nan(result)
    if bad.hopeless and not (value_holds_nan and result_holds_nan):
        return "nonsense", f"accepted: {shown(result)}"
    if result_holds_nan and not value_holds_nan:
        return "nonsense", "NaN out of finite numbers"
    return "fine", ""


def _judge_error(error: Exception) -> tuple[str, str]:
    """Say whether an error was written for the caller."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    file = os.path.basename(frame.filename)
    kind = type(error).__name__
    if isinstance(error, DOCUMENTED):
        in_package = os.sep + "gdpjax" + os.sep in frame.filename
        is_refusal = in_package or isinstance(error, OSError)
        return ("refused" if is_refusal else "obscure"), f"{kind}: {error} ({file})"

    message = str(error)
    return "obscure", f"{kind}: {message} ({file}:{frame.lineno})"


def outcome(call: Callable[[], Any], bad: Bad) -> tuple[str, str]:
    """Return how one call ends, and what it said."""
    try:
        with _time_limit(LIMIT_S), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result = jax.block_until_ready(call())
            return _judge(result, bad)
    except _Slow:
        return "slow", ""
    except Exception as error:
        return _judge_error(error)


class Finding(NamedTuple):
    """One call and how it ended."""

    entry: str
    place: str
    value: str
    end: str
    said: str


def fuzzed(seed: int, calls: int, entries: list[str] | None = None, hopeless_only: bool = False) -> Iterator[Finding]:
    """Yield ``calls`` mutated calls of each entry point."""
    for name, case in fuzz_cases.cases().items():
        if entries and name not in entries:
            continue
        rng = random.Random(f"{seed} {name}")
        function = case[0]
        options = _replacements(case, hopeless_only or name in COSTLY)
        trees = [(place, value) for place, value in places(case) if _is_tree(value)]
        for _ in range(calls if options else 0):
            place, bad = rng.choice(options)

            # One call in five has a leaf of a tree replaced.
            if trees and not hopeless_only and rng.random() < 0.2:
                place, value = rng.choice(trees)
                bad = _nested(value, rng)
            if _allowed(name, place, bad.value):
                bad = Bad(bad.value, False)
            args, kwargs = mutated(case, place, bad.value)
            end, said = outcome(functools.partial(function, *args, **kwargs), bad)
            yield Finding(name, _parameter(function, place), shown(bad.value), end, said)


def _replacements(case: fuzz_cases.Case, hopeless_only: bool) -> list[tuple[str, Bad]]:
    """Return every replacement of every argument, or only those that nobody can have meant."""
    result = []
    for place, value in places(case):
        for bad in bad_values(value):
            if bad.hopeless or not hopeless_only:
                result.append((place, bad))
    return result


def _parameter(function: Any, place: str) -> str:
    try:
        names = list(inspect.signature(function).parameters)
        if place.isdigit():
            return names[int(place)]
        return place
    except (ValueError, TypeError, IndexError):
        return place


# (entry, argument) that may be anything: ... is a filter of nnx, and so is a text.
ANYTHING: set[tuple[str, str]] = {
    ("nnx.clipped_grad", "wrt"),
    ("nnx.explain", "wrt"),
    ("nnx.private_training", "wrt"),
}
# (entry, argument) that may be None, though the valid call gives a number.
OPTIONAL: set[tuple[str, str]] = set()


def _allowed(name: str, place: str, value: Any) -> bool:
    if name in ("ledger_of", "ledger_state_of", "clip_norm_of") and isinstance(value, list):
        # A state may be inside another one.
        return True
    if (name, place) in ANYTHING:
        return True
    may_be_none = (name, place) in OPTIONAL or not place.isdigit()
    return value is None and may_be_none


def main() -> None:
    """Print how the calls ended, and how many ended in each way."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--calls", type=int, default=30, help="of each entry point")
    parser.add_argument("--only-bad", action="store_true", help="print nonsense and slow calls only")
    parser.add_argument("--hopeless", action="store_true", help="only arguments that nobody can have meant; quicker")
    parser.add_argument("--entry", nargs="*", help="only these")
    arguments = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    if cache := os.environ.get("GDPJAX_TEST_CACHE"):
        jax.config.update("jax_compilation_cache_dir", cache)
    counts: collections.Counter[str] = collections.Counter()
    for finding in fuzzed(arguments.seed, arguments.calls, arguments.entry, arguments.hopeless):
        counts[finding.end] += 1
        is_bad = finding.end in ("nonsense", "slow")
        if is_bad or not arguments.only_bad:
            said = " ".join(finding.said.split())[:160]
            print(f"{finding.end:8} {finding.entry}({finding.place}={finding.value}): {said}", flush=True)
    total = max(sum(counts.values()), 1)
    shares = []
    for end, count in sorted(counts.items()):
        shares.append(f"{end} {count} ({100 * count / total:.2f} %)")
    print(", ".join(shares))


if __name__ == "__main__":
    main()
