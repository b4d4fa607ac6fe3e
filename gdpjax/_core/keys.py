"""PRNG keys: fresh ones, a check of those that are given, and draws that stay each configuration's own.

    key = as_key(key)
    words = bits(fold_in(key, step), (100,))

All random numbers of the package are drawn through this module, because `jax.random` has two properties that are
harmless elsewhere and fatal here.

*Keys under vmap.* With the "rbg" and "unsafe_rbg" implementations, `jax.vmap` draws the bits of all configurations from
the key of the first one. When the first has finished and its key stands still, all others repeat one noise and one
batch in every step. `one_key_at_a_time` draws for one configuration after the other instead, so that each gets the bits
that its key gives outside vmap. (Bits of threefry keys are each key's own under vmap: those are still drawn together.)

*Keys that are constants.* A key that a compiled loop only closes over is the same one in every iteration, and one that
a `jax.shard_map` closes over is the same on every device. `refuse_key_of_a_loop` and `refuse_constant_key` see both.
"""

import functools
import math
import os
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from gdpjax._core.checks import is_traced
from gdpjax._core.shown import shown
from gdpjax._core.threefry import FEWEST_ENTRIES, MOST_ENTRIES, threefry_words
from gdpjax._core.types import Array

P = ParamSpec("P")
R = TypeVar("R")

_THREEFRY = "threefry2x32"

_DERIVE_SOUNDLY = frozenset({_THREEFRY, "rbg"})
"""The implementations whose `jax.random.split` and `fold_in` are each key's own under vmap ("rbg" uses threefry)."""

_LOOPS = {"scan", "fori_loop", "while_loop", "while_body", "while_cond"}
"""What JAX calls the programs that run once an iteration; `jax.lax.map` is a scan."""


def fresh_key(impl: str | None = None) -> Array:
    """Return a typed PRNG key with every bit from the operating system's entropy source.

    A seed such as 0 is known to everybody who reads the code, and 32-bit seeds can be tried out: noise made from them
    protects nobody. The default (threefry) key holds 64 bits.

    Args:
      impl: a key implementation of jax, such as "rbg"; default: jax's own default. Sweeps by vmap are faster with the
        default: keys of other implementations are drawn from one configuration after the other.

    Raises:
      ValueError: called while a function is traced (in jit, scan, lax.map, ...), where the key would be drawn once and
        be a constant of the compiled program, the same in every call.

    >>> fresh_key().shape
    ()
    """
    if is_traced(jnp.zeros(())):
        raise ValueError(
            "fresh_key() was called while a function is traced (jax.jit, scan, lax.map, ...): the key would be a "
            "constant of the compiled program, and every call and iteration would repeat its noise. Call fresh_key() "
            "outside and pass the key as an argument"
        )
    shape = jax.random.key_data(jax.random.key(0, impl=impl)).shape
    words = np.frombuffer(os.urandom(4 * int(np.prod(shape))), np.uint32).reshape(shape)
    return jax.random.wrap_key_data(jnp.asarray(words), impl=impl)


def as_key(key: Any) -> Array:
    """``key`` as one typed key; ValueError unless it is one PRNG key (typed, or a legacy uint32 pair)."""
    if isinstance(key, jax.Array | np.ndarray):
        if jnp.issubdtype(key.dtype, jax.dtypes.prng_key) and key.shape == ():
            return key
        if key.dtype == jnp.uint32 and key.shape == (2,):
            return jax.random.wrap_key_data(jnp.asarray(key), impl=_THREEFRY)
    raise ValueError(
        f"key must be a PRNG key such as gdpjax.fresh_key(), and one PRNG key only, got {shown(key)}; of raw data of "
        "another implementation than threefry2x32 make one by jax.random.wrap_key_data(data, impl=...)"
    )


def check_key(key: Any) -> tuple[Array, str]:
    """The data and the implementation of one PRNG key (typed, or a legacy uint32 pair); ValueError otherwise."""
    key = as_key(key)
    data, impl = jax.random.key_data(key), str(jax.random.key_impl(key))
    # A host copy: a donated optimizer state must not delete the buffer of the user's key.
    return (data if is_traced(data) else np.asarray(data)), impl


def _traces_of(value: Any) -> list[Any]:
    """The traces that a value takes part in, from the inside out; empty for a concrete one."""
    traces = []
    # The tracers of vmap and of grad wrap the value of the program around them.
    while isinstance(value, Tracer):
        traces.append(getattr(value, "_trace", None))
        value = getattr(value, "val", getattr(value, "primal", None))
    return traces


def _programs() -> list[tuple[Any, str]]:
    """The programs being traced, each by its trace and its name, innermost first: "jit", "scan", "shard_map", ...

    JAX has no public way to ask, so this reads attributes of its tracers. Where a version of JAX has other ones, the
    list is empty and nothing is refused; ``tests/transforms/test_keys.py`` shows it.
    """
    trace, programs = getattr(jnp.zeros(()), "_trace", None), []
    while trace is not None:
        debug_info = getattr(getattr(trace, "frame", None), "debug_info", None)
        name = "shard_map" if hasattr(trace, "mesh") else str(getattr(debug_info, "traced_for", ""))
        programs.append((trace, name))
        trace = getattr(trace, "parent_trace", None)
    return programs


def programs_around(value: Any) -> list[str]:
    """The names of the programs being traced in which ``value`` is a constant, innermost first."""
    own, names = _traces_of(value), []
    for trace, name in _programs():
        if any(trace is other for other in own):
            break
        names.append(name)
    return names


def program_around() -> Any:
    """The trace of the outermost compiled program around the caller, with all that is in it; None for none."""
    programs = [trace for trace, name in _programs() if name]
    return programs[-1] if programs else None


def varying_axes(value: Any) -> frozenset[str]:
    """The mesh axes of a `jax.shard_map` over which ``value`` differs; empty where the shard_map does not check it."""
    kind = jax.typeof(value)
    # JAX 0.10 has both spellings or one of them, according to its minor version.
    return frozenset(getattr(kind, "vma", None) or getattr(getattr(kind, "mat", None), "varying", ()))


def refuse_key_of_a_loop(key: Any, *folded: Any) -> None:
    """ValueError if ``key`` (or its data) is a constant of a compiled loop, and so the same in every iteration.

    With ``folded``, the numbers that it will be folded with, they must be constants of that loop as well.
    It must be the key as it was given: `as_key` of a legacy one is made in the loop.
    """
    # The programs in which all of them are constants: those of the one that the fewest have as a constant.
    programs = min((programs_around(value) for value in (key, *folded)), key=len)
    found = _LOOPS.intersection(programs)
    if found:
        raise ValueError(
            f"the key is a constant of a compiled loop ({', '.join(sorted(found))}; jax.lax.map is a scan), so that "
            "all iterations would share one noise or one batch; subtracting their results would cancel the noise. Loop "
            "over keys as well (jax.random.split(key, n)), fold in the iteration's number, or carry the optimizer's "
            "state through the loop"
        )


def refuse_constant_key(key: Any, *hyperparameters: Any) -> None:
    """`refuse_key_of_a_loop`, and ValueError for a constant of a `jax.shard_map` over ``hyperparameters``."""
    refuse_key_of_a_loop(key)
    if "shard_map" not in programs_around(key):
        return
    traced = [leaf for leaf in jax.tree.leaves(hyperparameters) if is_traced(leaf)]
    if any("shard_map" not in programs_around(leaf) for leaf in traced):
        raise ValueError(
            "the key is a constant of a jax.shard_map (or jax.pmap) whose arguments are hyperparameters, so that all "
            "devices would share one noise key; subtracting their results would cancel the noise. Pass an array of "
            "keys over the same axes as the hyperparameters"
        )


@jax.custom_batching.custom_vmap
def _witnessed(key_data: Array, witnesses: list[Array]) -> tuple[Array, Array]:
    """Return ``key_data``, and 1, or NaN where vmap shows that several configurations share it."""
    del witnesses
    return key_data, jnp.ones((), jnp.float32)


@_witnessed.def_vmap
def _refuse_shared_key(axis_size: int, in_batched: Any, key_data: Array, witnesses: list[Array]) -> Any:
    """Return `_witnessed` under vmap, and which of its results are batched; ValueError for a key that is not."""
    key_is_batched, batched_witnesses = in_batched
    differs = any(jax.tree.leaves(batched_witnesses))
    if not key_is_batched and differs:
        raise ValueError(
            f"{axis_size} configurations under vmap share one noise key; subtracting their results would cancel the "
            "noise. Give each its own: jax.random.split(key, n) mapped over, or fold in the configuration's index"
        )
    if not key_is_batched:
        return _witnessed(key_data, witnesses), (False, False)

    # A cond with a batched predicate broadcasts its operands, a shared key among them: compare the values.
    rows = key_data.reshape(-1, key_data.shape[-1])
    ordered = rows[jnp.lexsort(rows.T)]
    is_equal = jnp.all(ordered[1:] == ordered[:-1], axis=1)
    is_shared = jnp.any(is_equal) & differs

    keys, valid = _witnessed(key_data, witnesses)
    valid = jnp.where(is_shared, jnp.nan, valid)
    return (keys, jnp.broadcast_to(valid, (axis_size,))), (True, True)


def unshared(key_data: Array, *values: Any) -> tuple[Array, Array]:
    """Return ``key_data`` and a factor for the noise; refuse a key that configurations under vmap share.

    A key is shared if it is the same for configurations that differ in any of ``values``. The factor is 1, or NaN where
    the sharing shows only in the values of the keys.
    """
    refuse_key_of_a_loop(key_data)
    leaves = jax.tree.leaves(values)

    # In a shard_map the key must vary over all axes that anything else varies over.
    axes = set()
    for leaf in leaves:
        axes |= varying_axes(leaf)
    shared_axes = axes - varying_axes(key_data)
    if shared_axes:
        raise ValueError(
            f"what varies over the mesh axes {sorted(shared_axes)} of a shard_map would share one noise key; "
            "subtracting the results of two devices would cancel the noise. Add gradients up over the devices before "
            "(jax.lax.psum), or give each configuration its own key: pass an array of keys over the same axes"
        )

    # Under vmap the rule of `_witnessed` looks at what is batched.
    witnesses = [jax.lax.stop_gradient(jnp.asarray(leaf)) for leaf in leaves]
    return _witnessed(jnp.asarray(key_data), witnesses)


def is_threefry(key: Array) -> bool:
    """Whether a typed key is of JAX's default implementation, whose bits are each key's own under vmap."""
    return str(jax.random.key_impl(key)) == _THREEFRY


def one_key_at_a_time(draw: Callable[P, R], *, sound: frozenset[str] = frozenset({_THREEFRY})) -> Callable[P, R]:
    """``draw(key, ...)`` whose result under vmap is, configuration by configuration, the one outside vmap.

    Args:
      draw: a function of one typed key and of arrays, all by position, which closes over nothing that is traced.
      sound: the implementations whose keys JAX may draw from together under vmap.
    """
    in_turn = jax.custom_batching.sequential_vmap(draw)

    @functools.wraps(draw)
    def drawn(*args: P.args, **kwargs: P.kwargs) -> R:
        key: Any = args[0]
        together = str(jax.random.key_impl(key)) in sound
        return draw(*args, **kwargs) if together else in_turn(*args, **kwargs)

    return drawn


def bits(key: Any, shape: tuple[int, ...]) -> Array:
    """Random words, uint32 of this shape; ValueError for what is no key, or a key that a loop uses again and again."""
    refuse_key_of_a_loop(key)
    key = as_key(key)
    if is_threefry(key) and FEWEST_ENTRIES <= math.prod(shape) <= MOST_ENTRIES:
        return threefry_words(jax.random.key_data(key), shape)
    return one_key_at_a_time(lambda key: jax.random.bits(key, shape, jnp.uint32))(key)


def coins(key: Any, shape: tuple[int, ...], probability: Any) -> Array:
    """Truth values that hold with probability floor(2^32 p) / 2^32, exactly (for uniform bits)."""
    # A float32 uniform compared with p would be below it with a larger probability. Floating-point numbers hold p 2^32
    # as exactly as p; p = 1 does not fit 32 bits. A probability that is NaN, since it is out of range, is taken for 0.
    xp = jnp if is_traced(probability) else np
    wide = xp.asarray(probability, float)
    threshold = xp.floor(xp.clip(xp.nan_to_num(wide), 0.0, 1.0) * 2.0**32)
    is_certain = threshold >= 2.0**32
    threshold = xp.where(is_certain, 0.0, threshold).astype(np.uint32)
    return is_certain | (bits(key, shape) < threshold)


def split(key: Any, num: int = 2) -> Array:
    """`jax.random.split` of one key into an array of ``num`` keys; ValueError as for `bits`."""
    refuse_key_of_a_loop(key)
    key = as_key(key)
    return one_key_at_a_time(lambda key: jax.random.split(key, num), sound=_DERIVE_SOUNDLY)(key)


def fold_in(key: Any, data: Any) -> Array:
    """`jax.random.fold_in` of one key and a whole number below 2^32, traced or not."""
    data = data if isinstance(data, jax.Array) else np.uint32(data)
    return one_key_at_a_time(jax.random.fold_in, sound=_DERIVE_SOUNDLY)(as_key(key), data)
