"""Many configurations: a loop over rows, whether called eagerly, under jit or under vmap.

Rows differ in cost by two orders of magnitude, because sizes are loop counts (see `_line`). So they run one after
another, each with its own counts, rather than side by side with the largest; memory is that of one row. Under vmap a
custom batching rule turns the batch into the same loop. Eagerly, rows go in chunks of a fixed shape with a count, so
that one compilation serves every batch size.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gdpjax._core.checks import Domain, check, check_broadcast, float64_function, is_traced
from gdpjax._core.types import Array, Bounds

CHUNK = 256


def batched(core: Callable[..., Any], *, rounding: str = "nearest", **domains: Domain) -> Callable[..., Any]:
    """Lift a function of float64 scalars, given in the order of ``domains``, to broadcasting arrays.

    Implements the precision policy of `gdpjax._core.checks`: NumPy float64 eagerly, under an outer trace float32
    rounded outward unless x64 is on; concrete arguments are checked, traced ones outside their domain give NaN.
    """
    sequential = jax.custom_batching.sequential_vmap(core)

    def mapped(*rows: Array) -> Any:
        rows = jnp.broadcast_arrays(*rows)
        flat = jax.lax.map(lambda row: sequential(*row), tuple(row.reshape(-1) for row in rows))
        return jax.tree.map(lambda leaf: leaf.reshape(rows[0].shape), flat)

    traced = float64_function(rounding=rounding, **domains)(_named(mapped, tuple(domains)))

    @jax.jit
    def chunk(count: Array, *rows: Array) -> Any:
        shapes = jax.eval_shape(core, *(row[0] for row in rows))
        out = jax.tree.map(lambda leaf: jnp.zeros(CHUNK, leaf.dtype), shapes)

        def body(i: Array, out: Any) -> Any:
            return jax.tree.map(lambda old, new: old.at[i].set(new), out, core(*(row[i] for row in rows)))

        return jax.lax.fori_loop(0, count, body, out)

    def call(*values: Array) -> Any:
        arguments = dict(zip(domains, values, strict=True))
        if is_traced(values):
            return traced(**arguments)
        for name, value in arguments.items():
            check(name, value, domains[name])
        check_broadcast(**arguments)
        rows = np.broadcast_arrays(*(np.asarray(value, np.float64) for value in values))
        shape, rows = rows[0].shape, [row.reshape(-1) for row in rows]
        with jax.enable_x64(True):
            parts = [_run_chunk(chunk, [row[i : i + CHUNK] for row in rows]) for i in range(0, rows[0].size, CHUNK)]
        if not parts:
            return Bounds(np.zeros(shape), np.zeros(shape)) if rounding == "nearest" else np.zeros(shape)
        return jax.tree.map(lambda *leaves: np.concatenate(leaves).reshape(shape)[()], *parts)

    return call


def _run_chunk(chunk: Callable[..., Any], rows: list[np.ndarray]) -> Any:
    count = rows[0].size
    padded = [np.pad(row, (0, CHUNK - count), mode="edge") for row in rows]
    return jax.tree.map(lambda leaf: np.asarray(leaf)[:count], chunk(count, *padded))


def _named(function: Callable[..., Any], names: tuple[str, ...]) -> Callable[..., Any]:
    """``function(*values)`` as a function with the given parameter names, which `float64_function` reads."""
    import inspect

    @functools.wraps(function)
    def named(*values: Array, **keywords: Array) -> Any:
        return function(*values, *(keywords[name] for name in names[len(values) :]))

    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    named.__signature__ = inspect.Signature([inspect.Parameter(name, kind) for name in names])
    return named
