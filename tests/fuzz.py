"""Call every public entry point with arguments that make no sense, and say what happens.

    python -m tests.fuzz --seed 5 --calls 30 [--only-bad] [--entry Event]

Each call is a valid one (`tests.fuzz_cases`) in which one argument, or one leaf of one, is replaced. It ends as

    fine      a result, and the argument might have been meant
    refused   a ValueError (or another error that the docs name) raised in gdpjax itself, so written for the caller
    obscure   any other exception, such as a TypeError from the depths of a library
    nonsense  a result in spite of an argument that nobody can have meant, or NaN out of finite numbers
    slow      more than a minute

Sizes stay small: a large number is so large that nothing can be allocated with it.
"""

import argparse
import collections
import datetime
import decimal
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
    "allocation_delta_bounds", "allocation_epsilon_bounds",
    "clt_is_reliable", "delta_bounds", "epsilon_bounds", "epsilon_bounds(ledger)", "epsilon_estimate", "mu_bounds",
    "tradeoff_bounds", "Plan.mu_bounds", "epsilon_curves", "tradeoff_curves", "calibrate_noise_multiplier",
    "calibrate_num_steps", "calibrate_sampling_prob", "tuning_epsilon", "moments_accountant_epsilon", "compose",
    "one_run_refutes", "numeric().epsilon", "berry_esseen", "audit_step", "private_training", "audit_one_run",
    "nnx.private_training", "nnx.clipped_grad", "train", "run_sweep",
}  # fmt: skip
DOCUMENTED = (ValueError, IndexError, OSError, gdpjax.sampling.BatchOverflowError, gdpjax.training.CheckpointError)


class Broken:
    """An object that cannot even be printed."""

    def __repr__(self) -> str:
        raise RuntimeError("no words")


class Bad(NamedTuple):
    """A value to put in, and whether nobody can have meant it."""

    value: Any
    hopeless: bool


def _never() -> list[Any]:
    """What is neither a number, nor a choice, a key, a function, an array or a tree of arrays."""
    return [
        object(), Broken(), b"x", np.datetime64("2026-11-22"), np.timedelta64(3, "s"), datetime.date(2026, 11, 22),
        datetime.timedelta(1), {1: 1.0, "b": 2.0}, {"a"}, Ellipsis, decimal.Decimal("0.5"), np.array(["a", "b"]),
        np.array(["2026-11-22"], "datetime64[D]"), np.array([None, 1.0]), np.dtype("float32"), [object()],
    ]  # fmt: skip


def bad_values(value: Any) -> list[Bad]:
    """Replacements for a valid ``value``, by what it is."""
    key, never = jax.random.key(3), _never()
    numbers = [-5, 1.5, float("nan"), float("inf"), 2**63, -(2**63), 10**400, 1e300, 0, True, 5e-324]
    if isinstance(value, bool | np.bool_):
        hopeless, maybe = [*never, "yes", 2, 1.5, key, [True], np.ones(2, bool)], [np.True_, None]
    elif isinstance(value, int):
        hopeless = [*never, "3", 1j, key, 1.5, -5, float("nan"), float("inf"), 2**63, 10**400, True, None, [1, "2"]]
        maybe = [np.int8(3), 3.0, np.float32(2), 0]
    elif isinstance(value, float):
        hopeless = [*never, "1.0", 1j, key, float("nan"), True, 10**400, None, [1.0, "2"], np.array([True])]
        maybe = [float("inf"), -1.0, 0, 2**63, 1e300, 5e-324, np.float32(0.5), np.ones((2, 3)), np.ones(0), -0.0]
    elif isinstance(value, str):
        hopeless, maybe = [*never, 3, 1.5, True, key, ["poisson"], len, np.ones(2)], ["", "no such thing", None]
    elif isinstance(value, enum.Enum):
        hopeless, maybe = [*never, 3, True, "no such relation", key, [value], np.ones(2)], [value.value, None]
    elif isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
        hopeless = [*never, *numbers, None, "key", np.zeros(2), np.zeros(3, np.uint32), jax.random.split(key, 2), [key]]
        maybe = [np.zeros(2, np.uint32)]
    elif isinstance(value, np.ndarray | jax.Array):
        hopeless, maybe = [*never, "x", key, [[1.0], [1.0, 2.0]], len], [None, 1j, 10**400, -5, float("nan"), 1e300]
        maybe += [np.ones(np.shape(value), complex), np.zeros(0), np.ones((7, 3)), np.full(np.shape(value), np.nan)]
    elif isinstance(value, dict | tuple | list) and type(value) in (dict, tuple, list):
        hopeless, maybe = [*never, "x", key, len], [None, {}, (), [], 3, np.ones(2), value, [value], {"other": 1.0}]
    elif callable(value) and not hasattr(value, "sensitivity"):
        hopeless, maybe = [*(v for v in never if not callable(v)), 3, 1.5, "x", None, key, np.ones(2), {}], []
    else:  # a plan, a state, a curve, an event
        hopeless = [*never, "x", 3, 1.5, None, key, np.ones(2), {}, (1, 2), len, type(value), [value]]
        maybe = [v for v in vars(fuzz_cases).values() if isinstance(v, tuple | dict)][:2]
    return [*(Bad(v, True) for v in hopeless), *(Bad(v, False) for v in maybe)]


def places(case: fuzz_cases.Case) -> list[tuple[str, Any]]:
    """The arguments of a case, by position or name."""
    _, args, kwargs = case
    return [*((str(index), value) for index, value in enumerate(args)), *kwargs.items()]


def mutated(case: fuzz_cases.Case, place: str, value: Any) -> tuple[tuple, dict[str, Any]]:
    """The arguments of a case with one replaced."""
    _, args, kwargs = case
    if place.isdigit():
        return (*args[: int(place)], value, *args[int(place) + 1 :]), dict(kwargs)
    return args, kwargs | {place: value}


def _nested(value: Any, rng: random.Random) -> Bad:
    """``value``, a tree, with one leaf replaced."""
    leaves, structure = jax.tree.flatten(value)
    at = rng.randrange(len(leaves))
    bad = rng.choice(bad_values(leaves[at]))
    leaves[at] = bad.value
    return Bad(jax.tree.unflatten(structure, leaves), bad.hopeless)


def _is_tree(value: Any) -> bool:
    try:
        return isinstance(value, dict | tuple | list) and bool(jax.tree.leaves(value))
    except Exception:
        return False


def _holds_nan(result: Any) -> bool:
    try:
        leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(result) if not callable(leaf)]
        return any(leaf.dtype.kind == "f" and bool(np.isnan(leaf).any()) for leaf in leaves)
    except Exception:
        return False


class _Slow(BaseException):
    pass


def _late(*_: Any) -> None:
    raise _Slow


def outcome(call: Callable[[], Any], bad: Bad) -> tuple[str, str]:
    """How one call ends, and what it said."""
    before = signal.signal(signal.SIGALRM, _late)
    signal.alarm(LIMIT_S)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result = jax.block_until_ready(call())
            if bad.hopeless and not (_holds_nan(bad.value) and _holds_nan(result)):
                return "nonsense", f"accepted: {shown(result)}"
            if _holds_nan(result) and not _holds_nan(bad.value):
                return "nonsense", "NaN out of finite numbers"
            return "fine", ""
    except _Slow:
        return "slow", ""
    except DOCUMENTED as error:
        where = traceback.extract_tb(error.__traceback__)[-1].filename
        message = f"{type(error).__name__}: {error}"
        ours = os.sep + "gdpjax" + os.sep in where or isinstance(error, OSError)
        return ("refused" if ours else "obscure"), f"{message} ({os.path.basename(where)})"
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        text = str(error) if not isinstance(error, RuntimeError) or "no words" not in str(error) else "repr of a value"
        return "obscure", f"{type(error).__name__}: {text} ({os.path.basename(place.filename)}:{place.lineno})"
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


class Finding(NamedTuple):
    """One call and its end."""

    entry: str
    place: str
    value: str
    end: str
    said: str


def fuzzed(seed: int, calls: int, entries: list[str] | None = None, hopeless_only: bool = False) -> Iterator[Finding]:
    """``calls`` mutated calls of each entry point."""
    for name, case in fuzz_cases.cases().items():
        if entries and name not in entries:
            continue
        rng = random.Random(f"{seed} {name}")
        options = [(place, bad) for place, value in places(case) for bad in bad_values(value)]
        if hopeless_only or name in COSTLY:
            options = [(place, bad) for place, bad in options if bad.hopeless]
        trees = [(place, value) for place, value in places(case) if _is_tree(value)]
        for _ in range(calls):
            place, bad = rng.choice(options)
            if trees and not hopeless_only and rng.random() < 0.2:
                place, value = rng.choice(trees)
                bad = _nested(value, rng)
            if _allowed(name, place, bad.value):
                bad = Bad(bad.value, False)
            args, kwargs = mutated(case, place, bad.value)
            end, said = outcome(functools.partial(case[0], *args, **kwargs), bad)
            yield Finding(name, _parameter(case[0], place), shown(bad.value), end, said)


def _parameter(function: Any, place: str) -> str:
    try:
        names = list(inspect.signature(function).parameters)
        return names[int(place)] if place.isdigit() else place
    except (ValueError, TypeError, IndexError):
        return place


# (entry, argument): what may be anything, or None, though the valid call gives a number.
ANYTHING: set[tuple[str, str]] = {  # ... is a filter of nnx, and so is a text
    (entry, "wrt") for entry in ("nnx.clipped_grad", "nnx.explain", "nnx.private_training")
}
OPTIONAL: set[tuple[str, str]] = set()


def _allowed(name: str, place: str, value: Any) -> bool:
    if name in ("ledger_of", "ledger_state_of", "clip_norm_of") and isinstance(value, list):
        return True  # a state inside another one
    return (name, place) in ANYTHING or (value is None and ((name, place) in OPTIONAL or not place.isdigit()))


def main() -> None:
    """Print what was found, the worst last."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--calls", type=int, default=30, help="of each entry point")
    parser.add_argument("--only-bad", action="store_true", help="print obscure and nonsense calls only")
    parser.add_argument("--hopeless", action="store_true", help="only arguments that nobody can have meant; quicker")
    parser.add_argument("--entry", nargs="*", help="only these")
    arguments = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    if cache := os.environ.get("GDPJAX_TEST_CACHE"):
        jax.config.update("jax_compilation_cache_dir", cache)
    counts: collections.Counter[str] = collections.Counter()
    for finding in fuzzed(arguments.seed, arguments.calls, arguments.entry, arguments.hopeless):
        counts[finding.end] += 1
        if not arguments.only_bad or finding.end in ("obscure", "nonsense", "slow"):
            said = " ".join(finding.said.split())[:160]
            print(f"{finding.end:8} {finding.entry}({finding.place}={finding.value}): {said}", flush=True)
    total = max(sum(counts.values()), 1)
    print(", ".join(f"{end} {count} ({100 * count / total:.2f} %)" for end, count in sorted(counts.items())))


if __name__ == "__main__":
    main()
