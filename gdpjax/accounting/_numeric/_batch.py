"""Many runs: a loop over rows on the host, whether called eagerly, under jit or under vmap.

Rows differ in cost by two orders of magnitude, because the numbers of nodes and of frequencies do (see `_characteristic_function`). So
they run one after another, each with its own sizes; memory is that of one row.

Everything is computed by NumPy in float64. In traced code the same loop is a call back to the host, one for a whole
batch: it works on every device, nothing is compiled for it, and the numbers are those of an eager call.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gdpjax._core.checks import Domain, check, check_broadcast, is_traced, narrow_on_host
from gdpjax._core.types import Array, Bounds


def batched(
    core: Callable[..., Any], *, phase_groups: tuple[int, ...] = (), bounds: bool = True, **domains: Domain
) -> Callable[..., Any]:
    """Lift a function of numbers, given in the order of ``domains``, to broadcasting arrays.

    The first ``phase_groups[0]`` arguments of ``core`` are vectors [J] instead, the last axis of what is passed, the
    next ``phase_groups[1]`` vectors of another length, and so on. ``core`` returns `Bounds`, or one number if not
    ``bounds``. Called eagerly the result is NumPy float64 and arguments are checked; under an outer trace it is
    float32 rounded outward unless x64 is on, and NaN where a traced argument is outside its domain.
    """

    def call(*values: Array) -> Any:
        arguments = dict(zip(domains, values, strict=True))
        for name, value in arguments.items():
            check(name, value, domains[name])
        if not phase_groups:
            check_broadcast(**arguments)
        if is_traced(values):
            return _call_back(answer, values, phase_groups, tuple(domains.values()), bounds)
        shape = _shape(values, phase_groups)
        return _result(answer(shape, [np.asarray(value, np.float64) for value in values]), bounds)

    def answer(shape: tuple[int, ...], values: list[np.ndarray], valid: Any = True) -> np.ndarray:
        """The answers [1 or 2, ...] of all rows; NaN where they are not valid."""
        rows = _rows(values, shape, phase_groups)
        found = np.full((2 if bounds else 1, *shape), np.nan)
        valid = np.broadcast_to(valid, shape)
        with np.errstate(all="ignore"):
            for place in np.ndindex(*shape):
                if valid[place]:
                    found[(slice(None), *place)] = core(*(row[place] for row in rows))
        return found

    return call


def _shape(values: Any, phase_groups: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of the answer: all arguments broadcast together, without the last axis of the vectors."""
    vectors = sum(phase_groups)
    shapes = [np.shape(value)[:-1] if i < vectors else np.shape(value) for i, value in enumerate(values)]
    return np.broadcast_shapes(*shapes)


def _rows(values: list[np.ndarray], shape: tuple[int, ...], phase_groups: tuple[int, ...]) -> list[np.ndarray]:
    """The arguments with a row for each element of the answer; the vectors of a group get one length."""
    rows, start = [], 0
    for size in phase_groups:
        group = values[start : start + size]
        length = np.broadcast_shapes(*(np.shape(value)[-1:] for value in group))
        rows += [np.broadcast_to(value, (*shape, *length)) for value in group]
        start += size
    return rows + [np.broadcast_to(value, shape) for value in values[start:]]


def _result(found: np.ndarray, bounds: bool) -> Any:
    return Bounds(found[0][()], found[1][()]) if bounds else found[0][()]


def _call_back(
    answer: Callable[..., np.ndarray],
    values: tuple[Array, ...],
    phase_groups: tuple[int, ...],
    domains: tuple[Domain, ...],
    bounds: bool,
) -> Any:
    """`answer` on the host, at numbers that are known when the compiled program runs."""
    shape = _shape(values, phase_groups)
    vectors = sum(phase_groups)
    traced = [i for i, value in enumerate(values) if is_traced(value)]
    known = {i: np.asarray(value, np.float64) for i, value in enumerate(values) if i not in traced}

    # All that is traced gets the full shape, so that axes that vmap puts in front are those of the answer.
    full = []
    for i in traced:
        own = np.shape(values[i])[-1:] if i < vectors else ()
        full.append(jnp.broadcast_to(_not_differentiable(jnp.asarray(values[i])), (*shape, *own)))
    wide = jax.config.jax_enable_x64  # pyright: ignore[reportAttributeAccessIssue]

    def host(*numbers: Array) -> Any:
        arrays = dict(known)
        valid: Any = True
        for i, number in zip(traced, numbers, strict=True):
            arrays[i] = np.asarray(number, np.float64)
            inside = np.asarray(domains[i].contains(arrays[i]))
            valid = valid & (np.all(inside, axis=-1) if i < vectors else inside)
        ordered = [arrays[i] for i in range(len(values))]
        found = answer(_shape(ordered, phase_groups), ordered, valid)
        if wide:
            return tuple(found)
        directions = ("down", "up") if bounds else ("nearest",)
        return tuple(narrow_on_host(part, way) for part, way in zip(found, directions, strict=True))

    kind = jax.ShapeDtypeStruct(shape, np.float64 if wide else np.float32)
    result = jax.pure_callback(host, (kind,) * (2 if bounds else 1), *full, vmap_method="broadcast_all")
    return Bounds(*result) if bounds else result[0]


@jax.custom_jvp
def _not_differentiable(value: Array) -> Array:
    return value


@_not_differentiable.defjvp
def _refuse(primals: Any, tangents: Any) -> Any:
    raise ValueError(
        "certified bounds have no derivative: their ends move with the search that found them. Differentiate "
        "clt_epsilon or edgeworth_epsilon instead, or take differences of epsilon_estimate"
    )
