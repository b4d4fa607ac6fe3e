"""The float64 policy of every accounting function: check, compute in float64, round on the way out.

Use it as a decorator. The body is a pure function of a few real arguments:

    @float64_function(rounding="up", mu=POSITIVE, epsilon=NONNEGATIVE)
    def delta(mu, epsilon): ...

1. *Static checks.* Each concrete argument must lie in its declared `Domain`, and shapes must broadcast.
2. *Traced checks.* A tracer cannot be inspected, so elements outside the domain give NaN, never a silent number.
3. *Precision.* The body computes in float64 whatever the global x64 flag is, and the flag is left alone
   (``jax.enable_x64`` is a context, also under outer traces). A TPU has no float64 but pairs of float32, with the range
   of float32, in which bounds do not hold: there a compiled program calls the CPU of its host back, once each time.
   Functions of Gaussian privacy and of the CLT answer on the TPU itself, in float32 (``has_float32``).
4. *Results.* Called eagerly the result is a NumPy float64 array: a JAX float64 array would be silently truncated by the
   first jax.numpy call made without x64. Under an outer trace without x64 the result is float32, rounded in the
   direction that keeps its standing: up for an upper bound, outward for a bracket, to nearest for an estimate.

There are two kinds of bodies. `float64_function` compiles a body that is written for arrays in jax.numpy. `batched`
lifts a body that is written for a list of configurations in NumPy. Large arrays are evaluated in pieces: `map_chunks`
for the compiled bodies, `AT_ONCE` for those of NumPy.
"""

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ParamSpec, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_derivatives import SymbolicZero

from gdpjax._core import xla
from gdpjax._core.checks import Domain, at_once, check, is_traced
from gdpjax._core.trees import rounded_to
from gdpjax._core.types import Array, Bounds

P = ParamSpec("P")
R = TypeVar("R")

CHUNK = 64
"""Configurations that `map_chunks` evaluates together."""
AT_ONCE = 512
"""Configurations that are given to the function of `batched` together."""


def _is_wide() -> bool:
    """Return whether the caller has enabled x64, so that results may stay float64 under a trace."""
    return jax.config.jax_enable_x64  # pyright: ignore[reportAttributeAccessIssue]


def _rounded_to_float32(xp: Any, value: Any, rounding: str) -> Any:
    """Return float64 numbers as float32, rounded "nearest", "up" or "down", by NumPy or jax.numpy.

    Results too small for a normal float32 are rounded to a normal number or zero, since devices flush the others.
    """
    nearest = value.astype(xp.float32)
    if rounding == "nearest":
        return nearest

    # Where the nearest number is on the wrong side, take its neighbour.
    nearest_as_float64 = rounded_to(value, jnp.float32) if xp is jnp else nearest.astype(np.float64)
    if rounding == "up":
        is_wrong = nearest_as_float64 < value
        neighbour = xp.nextafter(nearest, xp.float32(np.inf))
    else:
        is_wrong = nearest_as_float64 > value
        neighbour = xp.nextafter(nearest, xp.float32(-np.inf))
    single = xp.where(is_wrong, neighbour, nearest)

    # Below the smallest normal number.
    tiny = xp.float32(np.finfo(np.float32).tiny)
    zero = xp.float32(0.0)
    small_positive = tiny if rounding == "up" else zero
    small_negative = zero if rounding == "up" else -tiny
    single = xp.where((value > 0) & (single < tiny), small_positive, single)
    return xp.where((value < 0) & (single > -tiny), small_negative, single)


@functools.partial(jax.custom_jvp, nondiff_argnums=(1,))
def narrow(value: Any, rounding: str) -> Any:
    """Return `_rounded_to_float32` of a JAX array; call it with x64 enabled."""
    return _rounded_to_float32(jnp, value, rounding)


@narrow.defjvp
def _narrow_jvp(rounding: str, primals: Any, tangents: Any) -> Any:
    (value,) = primals
    (tangent,) = tangents
    return narrow(value, rounding), tangent.astype(jnp.float32)


def narrow_on_host(value: np.ndarray, rounding: str) -> np.ndarray:
    """Return `_rounded_to_float32` of a NumPy array."""
    with np.errstate(all="ignore"):
        single = _rounded_to_float32(np, np.asarray(value), rounding)
        return np.asarray(single)


def as_float64(value: Any, dtype: Any = jnp.float64) -> Any:
    """Return a checked argument as a JAX array of float64, or of float32 for a TPU."""
    # Python integers may be wider than those of JAX.
    if not is_traced(value):
        value = np.asarray(value).astype(np.float64)
    return jnp.asarray(value, dtype)


def _narrow_result(result: Any, rounding: str) -> Any:
    """Return a pytree of float64 results as float32, each rounded to the side that keeps its standing."""
    if isinstance(result, Bounds):
        lower = narrow(result.lower, "down")
        upper = narrow(result.upper, "up")
        return Bounds(lower, upper)
    return jax.tree.map(lambda leaf: narrow(leaf, rounding), result)


def _nan_outside(result: Any, argument: Any, domain: Domain, broadcast: bool) -> Any:
    """Return a pytree of results with NaN where a traced argument is outside its domain."""
    is_inside = domain.contains(argument)
    if not broadcast:
        is_inside = jnp.all(is_inside)
    return jax.tree.map(lambda leaf: jnp.where(is_inside, leaf, jnp.nan), result)


def float64_function(
    *,
    rounding: str = "nearest",
    broadcast: bool = True,
    by_element: bool = True,
    has_float32: bool = False,
    **domains: Domain,
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorate ``body`` with the checks and the precision policy of this module.

    ``domains`` maps each real array argument to its `Domain`; the body receives those as float64 JAX arrays. Other
    arguments are static. A body that ``has_float32`` takes float32 as well, to 1e-5, and is computed so on a TPU.
    ``broadcast=False`` skips the shape check for bodies with their own shape rules; ``by_element=False`` says that
    elements of a result depend on those in other places, which their derivatives must follow. The body
    is jitted once per set of static arguments and returns an array or a pytree of arrays (`Bounds` included).
    """

    def decorate(body: Callable[P, R]) -> Callable[P, R]:
        signature = inspect.signature(body)
        static_names = tuple(name for name in signature.parameters if name not in domains)
        compiled = xla.jit(body, static_argnames=static_names)

        @functools.wraps(body)
        def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
            # Check the numbers that are not traced.
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            numbers = {name: bound.arguments[name] for name in domains}
            for name, value in numbers.items():
                check(name, value, domains[name])

            def body_of(*arrays: Array, dtype: Any = jnp.float64) -> Any:
                wide = {name: as_float64(array, dtype) for name, array in zip(numbers, arrays, strict=True)}
                result = compiled(**{**bound.arguments, **wide})
                for name, domain in domains.items():
                    if is_traced(numbers[name]):
                        result = _nan_outside(result, wide[name], domain, broadcast)
                return result

            return in_float64(body_of, numbers.values(), rounding, broadcast and by_element, has_float32)

        return wrapper

    return decorate


def in_float64(
    body: Callable[..., Any], values: Iterable[Any], rounding: str, broadcast: bool, has_float32: bool = False
) -> Any:
    """Return body(*values), computed in float64 where the platform has it and else on the host, as results of 4. above.

    Args:
      body: a function of scalars or arrays, which are widened in it, to arrays.
      values: numbers, arrays or tracers.
      rounding: how its results become float32, as for `float64_function`.
      broadcast: whether the values broadcast against each other, and elements depend on those in their own place.
      has_float32: whether body(*values, dtype=jnp.float32) is its own answer for a TPU.
    """
    values = tuple(values)
    keeps_float64 = _is_wide()

    in_program = xla.in_program()

    def narrowed(*arrays: Any) -> Any:
        with jax.enable_x64(True):
            result = body(*arrays)
            stays = keeps_float64 or not (in_program or is_traced(result))
            return result if stays else _narrow_result(result, rounding)

    # What is known stays as it is: as an argument it would be rounded to float32.
    places = [i for i, value in enumerate(values) if is_traced(value)]
    if not (in_program and places):
        with at_once(), _on_cpu_without_float64():
            result = narrowed(*values)
        return result if is_traced(result) else jax.tree.map(lambda leaf: np.asarray(leaf)[()], result)

    def with_known(function: Callable[..., Any], *arrays: Array) -> Any:
        mixed = list(values)
        for place, array in zip(places, arrays, strict=False):
            mixed[place] = array
        return function(*mixed)

    of_traced = functools.partial(with_known, narrowed)

    # On a TPU in float32, unless more is asked for: by x64, or by a number out of the range of float32.
    known = [value for value in values if not is_traced(value)]
    on_tpu = None
    if has_float32 and not keeps_float64 and all(map(_fits_float32, known)):
        on_tpu = functools.partial(with_known, functools.partial(body, dtype=jnp.float32))

    arrays = [values[place] for place in places]
    shape = np.broadcast_shapes(*(np.shape(value) for value in values)) if broadcast else None
    return _by_platform(of_traced, shape, on_tpu)(*arrays)


def _fits_float32(value: Any) -> bool:
    """Return whether all elements are zero, infinite or normal numbers of float32."""
    magnitude = np.abs(np.asarray(value, np.float64))
    info = np.finfo(np.float32)
    is_normal = (magnitude >= info.tiny) & (magnitude <= info.max)
    return bool(np.all(is_normal | (magnitude == 0) | np.isinf(magnitude)))


def _on_cpu_without_float64() -> Any:
    """Return a context in which a TPU, whose float64 is a pair of float32, leaves computing to the CPU beside it."""
    if xla.platform() != "tpu":
        return contextlib.nullcontext()
    return jax.default_device(_cpu_of_host())


def _cpu_of_host() -> Any:
    """Return the CPU beside an accelerator; ValueError where JAX was told to leave it alone."""
    try:
        return jax.local_devices(backend="cpu")[0]
    except RuntimeError as error:
        raise ValueError(
            "accounting on a TPU needs the CPU of its host, got a JAX without it: leave JAX_PLATFORMS unset, or set it "
            "to tpu,cpu"
        ) from error


def _by_platform(
    function: Callable[..., Any], shape: tuple[int, ...] | None, on_tpu: Callable[..., Any] | None = None
) -> Callable[..., Any]:
    """Return ``function`` of arrays; lowered for a TPU it is ``on_tpu``, or computed by the CPU of the host.

    The derivatives are given here, by rates: JAX cannot differentiate a choice of platforms with float64 in it while
    x64 is off. Where the result has the ``shape`` to which the arrays broadcast, or longer axes in place of those of
    length 1, each of its elements has one rate for each array; else there is a rate for each two elements.
    """

    @jax.custom_jvp
    def value(*arrays: Array) -> Any:
        tpu = on_tpu or functools.partial(_from_host, function)
        return jax.lax.platform_dependent(*arrays, tpu=tpu, default=function)

    @functools.partial(value.defjvp, symbolic_zeros=True)
    def value_jvp(primals: tuple[Array, ...], tangents: tuple[Any, ...]) -> Any:
        result = value(*primals)
        by_element = _is_by_element(shape, result)

        def rates(of: Callable[..., Any], place: int, *arrays: Array) -> Any:
            def of_one(array: Array) -> Any:
                return of(*arrays[:place], array, *arrays[place + 1 :])

            first, *_ = jax.tree.leaves(jax.eval_shape(function, *arrays))
            if not by_element:
                jacobian = jax.jacrev if first.size < arrays[place].size else jax.jacfwd
                with jax.enable_x64(True):
                    return jacobian(of_one)(arrays[place])
            each = jnp.broadcast_to(arrays[place], first.shape)
            return jax.jvp(of_one, (each,), (jnp.ones_like(each),))[1]

        total = jax.tree.map(jnp.zeros_like, result)
        for place, tangent in enumerate(tangents):
            if isinstance(tangent, SymbolicZero):
                continue
            rates_on_tpu = functools.partial(rates, on_tpu, place) if on_tpu else None
            of_place = _by_platform(
                functools.partial(rates, function, place), shape if by_element else None, rates_on_tpu
            )
            rates_of_place = of_place(*primals)
            times = functools.partial(_times, tangent=tangent, by_element=by_element)
            total = jax.tree.map(jnp.add, total, jax.tree.map(times, rates_of_place))
        return result, total

    return value


def _is_by_element(shape: tuple[int, ...] | None, result: Any) -> bool:
    """Return whether arrays of this shape broadcast to all of a result without a new axis."""
    if shape is None:
        return False
    pairs = [zip(shape, leaf.shape, strict=True) for leaf in jax.tree.leaves(result) if leaf.ndim == len(shape)]
    return len(pairs) == len(jax.tree.leaves(result)) and all(n in (1, m) for pair in pairs for n, m in pair)


def _times(rate: Array, tangent: Array, by_element: bool) -> Array:
    return rate * tangent if by_element else jnp.tensordot(rate, tangent, tangent.ndim)


def _from_host(function: Callable[..., Any], *arguments: Array) -> Any:
    """Return function(*arguments) of arrays by a callback to the CPU of the host."""
    shapes = jax.eval_shape(function, *arguments)
    num_axes = arguments[0].ndim

    @functools.cache
    def compiled(num_batches: int) -> Callable[..., Any]:
        mapped = function
        for _ in range(num_batches):
            mapped = jax.vmap(mapped)
        return jax.jit(mapped)

    def answer(*arguments: Any) -> Any:
        # vmap puts its axes in front of those of each array.
        num_batches = np.ndim(arguments[0]) - num_axes
        with jax.enable_x64(True), jax.default_device(_cpu_of_host()):
            result = compiled(num_batches)(*map(np.asarray, arguments))
        return jax.tree.map(np.asarray, result)

    return jax.pure_callback(answer, shapes, *arguments, vmap_method="broadcast_all")


def map_chunks(kernel: Callable[..., Array], *arguments: Array) -> Array:
    """Return kernel(*arguments) for an elementwise kernel whose temporaries are much larger than its result."""
    arrays = jnp.broadcast_arrays(*arguments)
    shape = arrays[0].shape
    size = arrays[0].size
    if size <= CHUNK:
        return kernel(*arrays)

    # Rows of one length, filled up with the first elements again.
    num_rows = -(-size // CHUNK)
    padded = tuple(jnp.resize(array, (num_rows, CHUNK)) for array in arrays)
    results = jax.lax.map(lambda chunk: kernel(*chunk), padded)
    return results.ravel()[:size].reshape(shape)


def batched(
    core: Callable[[list[tuple[Any, ...]]], Sequence[Any]],
    *,
    bounds: bool = True,
    **domains: Domain,
) -> Callable[..., Any]:
    """Lift a function of configurations, each numbers in the order of ``domains``, to broadcasting arrays.

    ``core`` takes a list of up to `AT_ONCE` configurations and returns their `Bounds`, or numbers if not ``bounds``.
    Called eagerly the result is NumPy float64 and arguments are checked; under an outer trace it is float32 rounded
    outward unless x64 is on, and NaN where a traced argument is outside its domain.
    """

    def call(*values: Array) -> Any:
        for (name, domain), value in zip(domains.items(), values, strict=True):
            check(name, value, domain)
        if is_traced(values):
            answers = _call_back(answer, values, tuple(domains.values()), bounds)
        else:
            answers = [found[()] for found in answer([np.asarray(value, np.float64) for value in values])]
        return Bounds(*answers) if bounds else answers[0]

    def answer(values: list[np.ndarray], valid: Any = True) -> np.ndarray:
        """Return the answers of all configurations, float64[1 or 2, *shape]; NaN where they are not valid."""
        rows = np.broadcast_arrays(*values)
        shape = rows[0].shape
        answers = np.full((2 if bounds else 1, *shape), np.nan)
        valid = np.broadcast_to(valid, shape)
        indices = [index for index in np.ndindex(*shape) if valid[index]]
        with np.errstate(all="ignore"):
            for start in range(0, len(indices), AT_ONCE):
                some = indices[start : start + AT_ONCE]
                found = core([tuple(row[index] for row in rows) for index in some])
                for index, one in zip(some, found, strict=True):
                    answers[(slice(None), *index)] = one
        return answers

    return call


def _call_back(
    answer: Callable[..., np.ndarray], values: tuple[Array, ...], domains: tuple[Domain, ...], bounds: bool
) -> Sequence[Array]:
    """Return `answer` as computed on the host, at numbers that are known when the compiled program runs."""
    shape = np.broadcast_shapes(*map(np.shape, values))
    keeps_float64 = _is_wide()

    # Traced arguments get the full shape, so that axes that vmap puts in front are those of the answer.
    known: dict[int, np.ndarray] = {}
    traced: dict[int, Array] = {}
    for i, value in enumerate(values):
        if is_traced(value):
            traced[i] = jnp.broadcast_to(_not_differentiable(jnp.asarray(value)), shape)
        else:
            known[i] = np.asarray(value, np.float64)

    def host(*numbers: Array) -> Any:
        arrays = dict(known)
        valid: Any = True
        for i, number in zip(traced, numbers, strict=True):
            arrays[i] = np.asarray(number, np.float64)
            valid = valid & np.asarray(domains[i].contains(arrays[i]))
        answers = answer([arrays[i] for i in range(len(values))], valid)
        if keeps_float64:
            return tuple(answers)
        # A number of steps above 2^24 must not become a larger one; the other numbers are those of float32.
        return tuple(narrow_on_host(found, side) for found, side in zip(answers, ("down", "up"), strict=False))

    dtype = np.float64 if keeps_float64 else np.float32
    kinds = (jax.ShapeDtypeStruct(shape, dtype),) * (2 if bounds else 1)
    return jax.pure_callback(host, kinds, *traced.values(), vmap_method="broadcast_all")


@jax.custom_jvp
def _not_differentiable(value: Array) -> Array:
    return value


@_not_differentiable.defjvp
def _refuse(primals: Any, tangents: Any) -> Any:
    raise ValueError(
        "certified bounds have no derivative: their ends move with the search that found them. Differentiate "
        "clt_epsilon instead, or take differences of brackets with rtol=1e-5"
    )
