"""The float64 policy of every accounting function: check, compute in float64, round on the way out.

Use it as a decorator. The body is a pure function of a few real arguments:

    @float64_function(rounding="up", mu=POSITIVE, epsilon=NONNEGATIVE)
    def delta(mu, epsilon): ...

1. *Static checks.* Each concrete argument must lie in its declared `Domain`, and shapes must broadcast.
2. *Traced checks.* A tracer cannot be inspected, so elements outside the domain give NaN, never a silent number.
3. *Precision.* The body computes in float64 whatever the global x64 flag is, and the flag is left alone
   (``jax.enable_x64`` is a context, also under outer traces).
4. *Results.* Called eagerly the result is a NumPy float64 array: a JAX float64 array would be silently truncated by the
   first jax.numpy call made without x64. Under an outer trace without x64 the result is float32, rounded in the
   direction that keeps its standing: up for an upper bound, outward for a bracket, to nearest for an estimate.

There are two kinds of bodies. `float64_function` compiles a body that is written for arrays in jax.numpy. `batched`
lifts a body that is written for one configuration in NumPy. Large arrays are evaluated in pieces: `map_chunks` for the
compiled bodies, one configuration after another for those of NumPy.
"""

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, ParamSpec, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from gdpjax._core import xla
from gdpjax._core.checks import Domain, check, check_broadcast, check_static, is_traced
from gdpjax._core.types import Array, Bounds

P = ParamSpec("P")
R = TypeVar("R")

CHUNK = 64
"""Configurations that `map_chunks` evaluates together."""


def _check_arguments(arguments: Mapping[str, Any], domains: Mapping[str, Domain], broadcast: bool) -> None:
    """Raise ValueError for a concrete argument outside its domain, or shapes that do not broadcast."""
    for name, value in arguments.items():
        check(name, value, domains[name])
    if broadcast:
        check_broadcast(**arguments)


def _is_wide() -> bool:
    """Return whether the caller has enabled x64, so that results may stay float64 under a trace."""
    return jax.config.jax_enable_x64  # pyright: ignore[reportAttributeAccessIssue]


def _rounded_to_float32(xp: Any, value: Any, rounding: str) -> Any:
    """float64 to float32, rounded "nearest", "up" or "down", by NumPy or jax.numpy.

    Results too small for a normal float32 are rounded to a normal number or zero, since devices flush the others.
    """
    single = value.astype(xp.float32)
    if rounding == "nearest":
        return single
    up = rounding == "up"
    wide = single.astype(xp.float64)
    wrong = wide < value if up else wide > value
    bumped = xp.where(wrong, xp.nextafter(single, xp.float32(np.inf if up else -np.inf)), single)
    tiny, zero = xp.float32(np.finfo(np.float32).tiny), xp.float32(0.0)
    positive, negative = (tiny, zero) if up else (zero, -tiny)
    bumped = xp.where((value > 0) & (bumped < tiny), positive, bumped)
    return xp.where((value < 0) & (bumped > -tiny), negative, bumped)


@functools.partial(jax.custom_jvp, nondiff_argnums=(1,))
def narrow(value: Any, rounding: str) -> Any:
    """`_rounded_to_float32` of JAX arrays; call it with x64 enabled."""
    return _rounded_to_float32(jnp, value, rounding)


@narrow.defjvp
def _narrow_jvp(rounding: str, primals: Any, tangents: Any) -> Any:
    return narrow(primals[0], rounding), tangents[0].astype(jnp.float32)


def narrow_on_host(value: np.ndarray, rounding: str) -> np.ndarray:
    """`_rounded_to_float32` of NumPy arrays."""
    with np.errstate(all="ignore"):
        return np.asarray(_rounded_to_float32(np, np.asarray(value), rounding))


def _wide(value: Any) -> Any:
    """A checked argument as a float64 JAX array; Python integers may be wider than JAX's."""
    return jnp.asarray(value if is_traced(value) else np.asarray(value).astype(np.float64), jnp.float64)


def _narrow_result(result: Any, rounding: str) -> Any:
    if isinstance(result, Bounds):
        return Bounds(narrow(result.lower, "down"), narrow(result.upper, "up"))
    return jax.tree.map(lambda leaf: narrow(leaf, rounding), result)


def float64_function(
    *, rounding: str = "nearest", broadcast: bool = True, **domains: Domain
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorate ``body`` with the checks and the precision policy of this module.

    ``domains`` maps each real array argument to its `Domain`; the body receives those as float64 JAX arrays. Other
    arguments are static. ``broadcast=False`` skips the shape check for bodies with their own shape rules. The body
    is jitted once per set of static arguments and returns an array or a pytree of arrays (`Bounds` included).
    """

    def decorate(body: Callable[P, R]) -> Callable[P, R]:
        signature = inspect.signature(body)
        statics = tuple(name for name in signature.parameters if name not in domains)
        compiled = xla.jit(body, static_argnames=statics)

        @functools.wraps(body)
        def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            for name in statics:
                check_static(name, bound.arguments[name])
            numbers = {name: bound.arguments[name] for name in domains}
            _check_arguments(numbers, domains, broadcast)
            wide_outside = _is_wide()
            with jax.enable_x64(True):
                wide = {name: _wide(value) for name, value in numbers.items()}
                result = compiled(**{**bound.arguments, **wide})
                if not is_traced(result):
                    return jax.tree.map(lambda leaf: np.asarray(leaf)[()], result)
                for name, domain in domains.items():
                    if is_traced(numbers[name]):
                        inside = domain.contains(wide[name])
                        inside = inside if broadcast else jnp.all(inside)
                        result = jax.tree.map(lambda leaf, ok=inside: jnp.where(ok, leaf, jnp.nan), result)
                return result if wide_outside else _narrow_result(result, rounding)

        return wrapper

    return decorate


def map_chunks(kernel: Callable[..., Array], *arguments: Array) -> Array:
    """kernel(*arguments) for an elementwise kernel whose temporaries are much larger than its result."""
    arrays = jnp.broadcast_arrays(*arguments)
    shape, size = arrays[0].shape, arrays[0].size
    if size <= CHUNK:
        return kernel(*arrays)
    rows = -(-size // CHUNK)
    padded = tuple(jnp.resize(array, (rows, CHUNK)) for array in arrays)
    return jax.lax.map(lambda chunk: kernel(*chunk), padded).ravel()[:size].reshape(shape)


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
        _check_arguments(arguments, domains, broadcast=not phase_groups)
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
    wide = _is_wide()

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
