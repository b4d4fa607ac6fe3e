"""Many configurations: a loop over rows, whether called eagerly, under jit or under vmap.

Rows differ in cost by two orders of magnitude, because sizes are loop counts (see `_line`). So they run one after
another, each with its own counts, rather than side by side with the largest; memory is that of one row. Under vmap a
custom batching rule turns the batch into the same loop. Eagerly, rows go in chunks of a fixed shape with a count, so
that one compilation serves every batch size.
"""

import inspect
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gdpjax._core import xla
from gdpjax._core.checks import Domain, at_once, check, check_broadcast, float64_function, is_traced
from gdpjax._core.types import Array

CHUNK = 256


def batched(core: Callable[..., Any], *, phase_groups: tuple[int, ...] = (), **domains: Domain) -> Callable[..., Any]:
    """Lift a function of float64 scalars, given in the order of ``domains``, to broadcasting arrays.

    The first ``phase_groups[0]`` arguments of ``core`` are vectors [J] instead, the last axis of what is passed, the
    next ``phase_groups[1]`` vectors of another length, and so on. Implements the precision policy of
    `gdpjax._core.checks`: NumPy float64 eagerly, under an outer trace float32 rounded outward unless x64 is on;
    concrete arguments are checked, traced ones outside their domain give NaN.
    """
    sequential = jax.custom_batching.sequential_vmap(core)

    def mapped(*values: Array) -> Any:
        shape, rows = _rows(jnp, [_not_differentiable(value) for value in values], phase_groups)
        flat = jax.lax.map(lambda row: sequential(*row), tuple(rows))
        return jax.tree.map(lambda leaf: leaf.reshape((*shape, *leaf.shape[1:])), flat)

    named = _with_names(mapped, tuple(domains))
    traced = float64_function(broadcast=not phase_groups, **domains)(named)  # pyright: ignore[reportArgumentType]

    traced_once = jax.jit(core)  # the shapes and the loop share one trace of it

    @xla.jit
    def chunk(count: Array, *rows: Array) -> Any:
        shapes = jax.eval_shape(traced_once, *(row[0] for row in rows))
        out = jax.tree.map(lambda leaf: jnp.zeros((CHUNK, *leaf.shape), leaf.dtype), shapes)

        def body(i: Array, out: Any) -> Any:
            return jax.tree.map(lambda old, new: old.at[i].set(new), out, traced_once(*(row[i] for row in rows)))

        return jax.lax.fori_loop(np.int32(0), count, body, out)

    def call(*values: Array) -> Any:
        arguments = dict(zip(domains, values, strict=True))
        if is_traced(values):
            return traced(**arguments)
        for name, value in arguments.items():
            check(name, value, domains[name])
        if not phase_groups:
            check_broadcast(**arguments)
        shape, rows = _rows(np, [np.asarray(value, np.float64) for value in values], phase_groups)
        starts = range(0, max(math.prod(shape), 1), CHUNK)
        with at_once(), jax.enable_x64(True):
            parts = [_run_chunk(chunk, [row[i : i + CHUNK] for row in rows]) for i in starts]
        return jax.tree.map(lambda *leaves: _reshaped(np.concatenate(leaves), shape), *parts)

    return call


@jax.custom_jvp
def _not_differentiable(value: Array) -> Array:
    return value


@_not_differentiable.defjvp
def _refuse(primals: Any, tangents: Any) -> Any:
    raise ValueError(
        "certified bounds have no derivative: their ends move with the search that found them. Differentiate "
        "clt_epsilon or edgeworth_epsilon instead, or take differences of epsilon_estimate"
    )


def _rows(xp: Any, values: Any, phase_groups: tuple[int, ...]) -> tuple[tuple[int, ...], list[Array]]:
    """The broadcast shape, and the arguments as rows [n] or [n, J]."""
    vectors: list[Array] = []
    for size in phase_groups:
        vectors += xp.broadcast_arrays(*values[len(vectors) : len(vectors) + size])
    scalars = values[len(vectors) :]
    shape = np.broadcast_shapes(*(np.shape(v)[:-1] for v in vectors), *(np.shape(value) for value in scalars))
    rows = [xp.broadcast_to(v, (*shape, v.shape[-1])).reshape(-1, v.shape[-1]) for v in vectors]
    return shape, rows + [xp.broadcast_to(value, shape).reshape(-1) for value in scalars]


def _reshaped(rows: np.ndarray, shape: tuple[int, ...]) -> Any:
    """The rows of the batch in the shape that the arguments have together; a row may be a vector."""
    return rows.reshape((*shape, *rows.shape[1:]))[()]


def _run_chunk(chunk: Callable[..., Any], rows: list[np.ndarray]) -> Any:
    count = rows[0].shape[0]
    padding = [(0, CHUNK - count)]
    padded = [np.pad(row, padding + [(0, 0)] * (row.ndim - 1), mode="edge" if count else "constant") for row in rows]
    return jax.tree.map(lambda leaf: np.asarray(leaf)[:count], chunk(np.int32(count), *padded))


def _with_names(function: Callable[..., Any], names: tuple[str, ...]) -> Callable[..., Any]:
    """``function(*values)`` as a function with the given parameter names, which `float64_function` reads."""

    def named(*values: Array, **keywords: Array) -> Any:
        return function(*values, *(keywords[name] for name in names[len(values) :]))

    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    named.__signature__ = inspect.Signature([inspect.Parameter(name, kind) for name in names])  # pyright: ignore
    return named
