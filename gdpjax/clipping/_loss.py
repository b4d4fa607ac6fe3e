"""A loss of one example, and what must be true of it before anything is computed.

`LossSpec` says which arguments are parameters, which carry a batch axis and which are keys; `prepare` checks one call
against it, statically, by evaluating shapes only. Every refusal names the argument or the leaf and what to do.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from gdpjax._core.trees import broadcast_trainable, is_floating, leaf_name, num_elements
from gdpjax._core.types import Array, PyTree


def _as_tuple(value: int | tuple[int, ...]) -> tuple[int, ...]:
    return (value,) if isinstance(value, int) else tuple(value)


@dataclasses.dataclass(frozen=True, eq=False)
class LossSpec:
    """How to differentiate ``loss_fn`` for one example; the fields are those of `gdpjax.clipped_grad`."""

    loss_fn: Callable[..., Any]
    argnums: int | tuple[int, ...]
    batch_argnums: tuple[int, ...]
    key_argnums: tuple[int, ...]
    keep_batch_dim: bool
    has_aux: bool
    trainable: PyTree | None

    @classmethod
    def create(
        cls, loss_fn: Any, *, argnums: Any, batch_argnums: Any, key_argnums: Any, keep_batch_dim: bool,
        has_aux: bool, trainable: Any,
    ) -> "LossSpec":  # fmt: skip
        """Check the static arguments and normalise them."""
        if not callable(loss_fn):
            raise ValueError(f"loss_fn must be a function of one example, got {loss_fn!r}")
        roles = {"argnums": _as_tuple(argnums), "batch_argnums": _as_tuple(batch_argnums)}
        roles["key_argnums"] = _as_tuple(key_argnums)
        if not roles["argnums"] or not roles["batch_argnums"]:
            raise ValueError("argnums and batch_argnums must each name at least one argument")
        every = [number for numbers in roles.values() for number in numbers]
        if any(number < 0 for number in every) or len(set(every)) != len(every):
            raise ValueError(f"argument numbers must be distinct and not negative, got {roles}")
        return cls(
            loss_fn, argnums if isinstance(argnums, int) else roles["argnums"], roles["batch_argnums"],
            roles["key_argnums"], keep_batch_dim, has_aux, trainable,
        )  # fmt: skip

    def params(self, args: tuple[Any, ...]) -> PyTree:
        """The differentiated argument, or the tuple of them, as `jax.grad` would return its gradient."""
        return args[self.argnums] if isinstance(self.argnums, int) else tuple(args[i] for i in self.argnums)

    def with_params(self, args: tuple[Any, ...], params: PyTree) -> list[Any]:
        """``args`` with the differentiated arguments replaced."""
        replaced = list(args)
        numbers = _as_tuple(self.argnums)
        for number, value in zip(numbers, (params,) if isinstance(self.argnums, int) else params, strict=True):
            replaced[number] = value
        return replaced


class Call(NamedTuple):
    """One checked call: what the strategies need."""

    spec: LossSpec
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    which: tuple[bool, ...]  # for each parameter leaf, whether it is differentiated
    batch_size: int
    is_padding: Array | None

    @property
    def params(self) -> PyTree:
        return self.spec.params(self.args)

    @property
    def trained_leaves(self) -> list[Array]:
        return [leaf for leaf, mark in zip(jax.tree.leaves(self.params), self.which, strict=True) if mark]


def _trained_leaves(params: PyTree, trainable: PyTree | None) -> tuple[bool, ...]:
    marks = jax.tree.leaves(broadcast_trainable(trainable, params))
    which = []
    for (path, leaf), mark in zip(jax.tree_util.tree_flatten_with_path(params)[0], marks, strict=True):
        if isinstance(leaf, float):
            raise ValueError(f"parameter {leaf_name(path)} is a Python float; make it a jax.numpy array")
        if not hasattr(leaf, "dtype"):
            raise ValueError(
                f"parameter {leaf_name(path)} is not an array but {type(leaf).__name__}; differentiate the array part "
                "of the model only (flax.nnx.split, equinox.partition) and merge inside the loss"
            )
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            raise ValueError(
                f"parameter {leaf_name(path)} is a PRNG key; split it off the parameters and pass it by key_argnums"
            )
        if mark and is_floating(leaf) and leaf.dtype.itemsize < 2:
            raise ValueError(f"parameter {leaf_name(path)} is {leaf.dtype}; keep trained parameters in 16 bits or more")
        if mark and jnp.issubdtype(leaf.dtype, jnp.complexfloating):
            raise ValueError(f"parameter {leaf_name(path)} is complex; pass its real and imaginary parts instead")
        which.append(bool(mark) and is_floating(leaf) and num_elements(leaf) > 0)
    if not any(which):
        raise ValueError(
            "the parameters have no trainable floating-point leaf, so there is nothing to differentiate; check argnums "
            f"and trainable (got leaves of {[str(leaf.dtype) for leaf in jax.tree.leaves(params)]})"
        )
    return tuple(which)


def _batch_size(spec: LossSpec, args: tuple[Any, ...]) -> int:
    sizes: dict[str, int] = {}
    for number in spec.batch_argnums:
        for path, leaf in jax.tree_util.tree_flatten_with_path(args[number])[0]:
            name = f"argument {number}{jax.tree_util.keystr(path)}"
            if jnp.ndim(leaf) == 0:
                raise ValueError(f"{name} is batched but has no axis; give it a leading batch axis or leave it out")
            sizes[name] = jnp.shape(leaf)[0]
    if not sizes:
        raise ValueError(f"the batched arguments {spec.batch_argnums} hold no arrays")
    if len(set(sizes.values())) > 1:
        raise ValueError(f"batched arguments must have leading axes of equal length, got {sizes}")
    return next(iter(sizes.values()))


def example_args(call: Call, batch: list[Any], keys: list[Any], params: PyTree) -> list[Any]:
    """The arguments of ``loss_fn`` for one example, given its rows and keys."""
    args = call.spec.with_params(call.args, params)
    for number, value in zip(call.spec.batch_argnums, batch, strict=True):
        args[number] = jax.tree.map(lambda leaf: leaf[None], value) if call.spec.keep_batch_dim else value
    for number, key in zip(call.spec.key_argnums, keys, strict=True):
        args[number] = key
    return args


def split_loss(call: Call, result: Any) -> tuple[Any, Any]:
    """(value, aux) of what ``loss_fn`` returned."""
    if not call.spec.has_aux:
        return result, None
    if not (isinstance(result, tuple) and len(result) == 2):
        raise ValueError(f"with has_aux=True loss_fn must return (loss, aux), got {type(result).__name__}")
    return result


def example_loss(call: Call, trained: list[Any], rows: list[Any], index: Any) -> tuple[Any, Any]:
    """(loss, aux) of the example with these rows at position ``index`` of the batch."""
    leaves, structure = jax.tree.flatten(call.params)
    remaining = iter(trained)
    merged = [next(remaining) if mark else leaf for leaf, mark in zip(leaves, call.which, strict=True)]
    # The key depends on the example's position alone: not on strategy, chunk or sharding.
    keys = [jax.random.fold_in(call.args[number], index) for number in call.spec.key_argnums]
    args = example_args(call, rows, keys, jax.tree.unflatten(structure, merged))
    return split_loss(call, call.spec.loss_fn(*args, **call.kwargs))


def batch_rows(call: Call) -> list[Any]:
    """The batched arguments as arrays."""
    return [jax.tree.map(jnp.asarray, call.args[number]) for number in call.spec.batch_argnums]


class Traced(NamedTuple):
    """The jaxpr of the loss of one example: trained leaves, leaves of its rows, and its position, to loss and aux."""

    jaxpr: Any
    aux_structure: Any


def traced(call: Call) -> Traced:
    """Trace the loss of one example, and check what it is."""
    spec = lambda shape, leaf: jax.ShapeDtypeStruct(shape, jnp.result_type(leaf))  # noqa: E731
    rows = [
        jax.tree.map(lambda leaf: spec(jnp.shape(leaf)[1:], leaf), call.args[number])
        for number in call.spec.batch_argnums
    ]
    trained = [spec(leaf.shape, leaf) for leaf in call.trained_leaves]

    def flat(trained: list[Any], rows: list[Any], index: Any) -> tuple[Any, Any]:
        result = example_loss(call, trained, rows, index)
        _check_value(result[0])
        return result

    try:
        jaxpr, out = jax.make_jaxpr(flat, return_shape=True)(trained, rows, jax.ShapeDtypeStruct((), jnp.int32))
    except NameError as error:
        if "axis name" not in str(error):
            raise
        raise ValueError(
            f"loss_fn names an axis across examples ({error}); it sees one example only, and a statistic of the batch "
            "(such as BatchNorm's) would let one example reach every gradient: use GroupNorm or LayerNorm"
        ) from error
    except (TypeError, ValueError, IndexError) as error:  # whatever the loss makes of what it was not written for
        shapes = {n: jax.tree.map(jnp.shape, row) for n, row in zip(call.spec.batch_argnums, rows, strict=True)}
        error.add_note(
            f"gdpjax calls loss_fn with ONE example: by batch_argnums={call.spec.batch_argnums} these arguments come "
            f"without their batch axis, with shapes {shapes}, and all others come whole"
        )
        raise
    if jaxpr.effects:
        raise ValueError(
            f"loss_fn has side effects ({', '.join(sorted(str(e) for e in jaxpr.effects))}), which would show private "
            "examples and cannot be mapped over them; remove prints and callbacks, and return what you need as aux"
        )
    return Traced(jaxpr, jax.tree.structure(out[1]))


def _check_value(value: Any) -> None:
    if isinstance(value, tuple):
        raise ValueError("loss_fn returned a tuple; if it is (loss, aux), set has_aux=True and return_info=True")
    if not hasattr(value, "shape") or value.shape != ():
        shape = getattr(value, "shape", type(value).__name__)
        raise ValueError(
            f"loss_fn must return a scalar for ONE example, got shape {shape}; it receives no batch axis, so do not "
            "average over one (keep_batch_dim=True gives it an axis of length 1, to be reduced)"
        )
    if not jnp.issubdtype(value.dtype, jnp.floating):
        raise ValueError(f"loss_fn must return a real floating-point scalar, got {value.dtype}")


def _check_padding(is_padding: Any, batch_size: int) -> Array | None:
    if is_padding is None:
        return None
    if jnp.shape(is_padding) != (batch_size,) or jnp.result_type(is_padding) != jnp.bool_:
        raise ValueError(
            f"is_padding must be bool[{batch_size}], True for rows to ignore, got "
            f"{jnp.result_type(is_padding)}{list(jnp.shape(is_padding))}"
        )
    return jnp.asarray(is_padding)


def _key_data_ok(spec: LossSpec, args: tuple[Any, ...]) -> None:
    for number in spec.key_argnums:
        key = args[number]
        typed = hasattr(key, "dtype") and jnp.issubdtype(key.dtype, jax.dtypes.prng_key)
        if not typed or key.shape != ():
            raise ValueError(f"argument {number} must be one typed PRNG key (jax.random.key), got {key!r}")


def _varying_axes(leaf: Array) -> Any:
    kind = jax.typeof(leaf)
    return getattr(kind, "vma", None) or getattr(getattr(kind, "mat", None), "varying", ())


def _refuse_varying(args: tuple[Any, ...]) -> None:
    """Inside a checked shard_map JAX adds gradients of shared parameters up over the devices, before any clipping."""
    for number, arg in enumerate(args):
        for path, leaf in jax.tree_util.tree_flatten_with_path(arg)[0]:
            varying = _varying_axes(leaf) if isinstance(leaf, jax.Array) else ()
            if varying:
                raise ValueError(
                    f"argument {number}{jax.tree_util.keystr(path)} varies over the mesh axes "
                    f"{sorted(varying)} of a shard_map that checks this, where gradients are added up "
                    "over devices before they could be clipped; use jax.shard_map(..., check_vma=False), or no "
                    "shard_map: a batch on a mesh is spread over it anyway"
                )


def prepare(spec: LossSpec, args: tuple[Any, ...], kwargs: dict[str, Any], is_padding: Any) -> Call:
    """Check a call and describe it; raises ValueError for everything that can be seen without computing."""
    needed = max(_as_tuple(spec.argnums) + spec.batch_argnums + spec.key_argnums)
    if len(args) <= needed:
        raise ValueError(f"expected at least {needed + 1} positional arguments, got {len(args)}")
    _key_data_ok(spec, args)
    which = _trained_leaves(spec.params(args), spec.trainable)
    batch_size = _batch_size(spec, args)
    _refuse_varying(args)
    return Call(spec, args, kwargs, which, batch_size, _check_padding(is_padding, batch_size))


def flat_call(call: Call, positions: Array) -> tuple[list[Any], list[bool], Callable[[Any], Call]]:
    """The arrays of a call (``positions`` last), which of them have a batch axis, and how to make the call of them."""
    leaves, structure = jax.tree.flatten((call.args, call.kwargs, call.is_padding))
    batched = [
        jax.tree.map(lambda _, b=number in call.spec.batch_argnums: b, arg) for number, arg in enumerate(call.args)
    ]
    marks = jax.tree.leaves((tuple(batched), jax.tree.map(lambda _: False, call.kwargs), jax.tree.map(
        lambda _: True, call.is_padding)))  # fmt: skip
    dynamic = [mark or isinstance(leaf, (jax.Array, np.ndarray)) for leaf, mark in zip(leaves, marks, strict=True)]

    def rebuild(arrays: Any) -> Call:
        values = iter(arrays)
        merged = [next(values) if d else leaf for leaf, d in zip(leaves, dynamic, strict=True)]
        args, kwargs, is_padding = jax.tree.unflatten(structure, merged)
        return Call(call.spec, args, kwargs, call.which, _batch_size(call.spec, args), is_padding)

    arrays = [leaf for leaf, d in zip(leaves, dynamic, strict=True) if d]
    return [*arrays, positions], [*(m for m, d in zip(marks, dynamic, strict=True) if d), True], rebuild
