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

from gdpjax._core.arguments import check_flag, check_positions
from gdpjax._core.keys import varying_axes
from gdpjax._core.shown import shown
from gdpjax._core.trees import broadcast_trainable, is_floating, leaf_name, num_elements
from gdpjax._core.types import Array, PyTree
from gdpjax.clipping._rowwise import described, read_program, refuse_own_mean, refuse_rows
from gdpjax.clipping._statistics import refuse_statistics


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
    shared_argnums: tuple[int, ...] = ()
    shared_argnames: tuple[str, ...] = ()
    num_examples: int | None = None  # of the data set, where batches are drawn from it by the library
    checked: set[Any] = dataclasses.field(default_factory=set)  # calls of which the derivative rules have been read

    @classmethod
    def create(
        cls, loss_fn: Any, *, argnums: Any, batch_argnums: Any, key_argnums: Any, keep_batch_dim: bool,
        has_aux: bool, trainable: Any, shared_argnums: Any = (), shared_argnames: Any = (),
    ) -> "LossSpec":  # fmt: skip
        """Check the static arguments and normalise them."""
        if not callable(loss_fn):
            raise ValueError(f"loss_fn must be a function of one example, got {shown(loss_fn)}")
        given = dict(
            argnums=argnums, batch_argnums=batch_argnums, key_argnums=key_argnums, shared_argnums=shared_argnums
        )
        roles = {name: check_positions(name, value, least=-(2**31)) for name, value in given.items()}
        keep_batch_dim = check_flag("keep_batch_dim", keep_batch_dim)
        has_aux = check_flag("has_aux", has_aux)
        listed = isinstance(shared_argnames, tuple | list | set | frozenset)
        names = tuple(shared_argnames) if listed else (shared_argnames,)
        if not all(isinstance(name, str) for name in names):
            raise ValueError(f"shared_argnames must be names of keyword arguments, got {shown(shared_argnames)}")
        if not roles["argnums"] or not roles["batch_argnums"]:
            raise ValueError("argnums and batch_argnums must each name at least one argument")
        every = [number for numbers in roles.values() for number in numbers]
        if any(number < 0 for number in every) or len(set(every)) != len(every):
            raise ValueError(f"argument numbers must be distinct and not negative, got {roles}")
        several = isinstance(argnums, tuple | list | range)
        return cls(
            loss_fn, roles["argnums"] if several else roles["argnums"][0], roles["batch_argnums"],
            roles["key_argnums"], keep_batch_dim, has_aux, trainable, roles["shared_argnums"], names,
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
    whole_batch: int  # rows of the batch on all devices

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
            raise ValueError(
                f"parameter {leaf_name(path)} is a Python float; make it a jax.numpy array, or split the arrays off "
                "the model (equinox.partition(model, equinox.is_inexact_array)) and combine them inside the loss"
            )
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
    refuse_statistics(params, which)
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

    specs = (trained, rows, jax.ShapeDtypeStruct((), jnp.int32))
    try:
        jaxpr, out = jax.make_jaxpr(flat, return_shape=True)(*specs)
    except Exception as error:  # whatever the loss makes of what it was not written for
        if isinstance(error, NameError) and "axis name" in str(error):
            raise ValueError(
                f"loss_fn names an axis across examples ({error}); it sees one example only, and a statistic of the "
                "batch (such as BatchNorm's) would let one example reach every gradient: use GroupNorm or LayerNorm"
            ) from error
        if "BatchStat" in str(error):
            raise ValueError(
                f"the model in loss_fn has a BatchNorm that updates its statistics ({error}); statistics of the batch "
                "would let one example reach every gradient: use GroupNorm or LayerNorm, or call model.eval() to use "
                "the frozen statistics of a public data set"
            ) from error
        shapes = {n: jax.tree.map(jnp.shape, row) for n, row in zip(call.spec.batch_argnums, rows, strict=True)}
        error.add_note(
            f"gdpjax calls loss_fn with ONE example: by batch_argnums={call.spec.batch_argnums} these arguments come "
            f"without their batch axis, with shapes {shapes}, and all others come whole"
        )
        raise
    _check_traced(call, jaxpr, specs, flat)
    return Traced(jaxpr, jax.tree.structure(out[1]))


def _check_traced(call: Call, jaxpr: Any, specs: Any, flat: Callable[..., Any]) -> None:
    """Refuse a loss in which one example could reach the gradient of another."""
    trained, rows, index = specs
    from_rows = [False] * len(trained) + [True] * len(jax.tree.leaves(rows)) + [False]
    program = read_program(jaxpr, from_rows)
    if jaxpr.effects:
        raise ValueError(
            f"loss_fn has side effects ({', '.join(sorted(str(e) for e in jaxpr.effects))}), which would show private "
            "examples and cannot be mapped over them; remove prints and callbacks, and return what you need as aux"
        )
    refuse_own_mean(jaxpr, call.spec.keep_batch_dim)
    _check_constants(call, program.constants, rows)
    kind = _kind_of(call, program.primitives)
    if program.has_rules and (kind is None or kind not in call.spec.checked):
        # What a derivative rule does shows only where it is used. Once for each kind of call, as it takes time.
        gradient = jax.make_jaxpr(jax.grad(flat, has_aux=True))(trained, rows, index)
        in_rules = read_program(gradient, from_rows, "a derivative rule that loss_fn uses")
        _check_constants(call, in_rules.constants, rows)
        if kind is not None:
            call.spec.checked.add(kind)


def _kind_of(call: Call, primitives: set[str]) -> Any:
    """What decides which program a loss is traced to: shapes and types of arrays, values of all else; None: unknown."""
    leaves, structure = jax.tree.flatten((call.args, call.kwargs))
    arrays = [(jnp.shape(x), str(x.dtype)) if hasattr(x, "dtype") else (type(x), repr(x)) for x in leaves]
    kind = (structure, tuple(arrays), call.whole_batch, frozenset(primitives))
    try:
        hash(kind)
    except TypeError:  # a model that holds an array where JAX expects something static
        return None
    return kind


def _check_constants(call: Call, constants: list[Any], rows: list[Any]) -> None:
    """Refuse a loss that closes over an array that looks like the data."""
    num_rows = call.whole_batch if call.spec.num_examples is None else call.spec.num_examples
    if num_rows < 2:
        return
    row_leaves = jax.tree.leaves(rows)
    # The batch itself is no constant of the program, unless the loss closes over it besides.
    shared = jax.tree.leaves((call.params, _shared(call.spec, call.args, call.kwargs)))
    lengths = {length for leaf in (*shared, *row_leaves) for length in jnp.shape(leaf)}
    refuse_rows(constants, shared, num_rows, row_leaves, lengths)


def _shared(spec: LossSpec, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments that every example sees whole, parameters and keys aside, by what a message calls them."""
    others = {*_as_tuple(spec.argnums), *spec.batch_argnums, *spec.key_argnums}
    by_number = {f"argument {n}": arg for n, arg in enumerate(args) if n not in others}
    return by_number | {f"keyword argument {name}": arg for name, arg in kwargs.items()}


def _all_numbers(values: Any) -> bool:
    return all(isinstance(value, (int, float, complex)) or getattr(value, "shape", None) == () for value in values)


def _refuse_unbatched(spec: LossSpec, args: tuple[Any, ...], kwargs: dict[str, Any], batch_size: int) -> None:
    """ValueError if an array that was not named as batched, nor as shared, has the batch's length."""
    named = {f"argument {n}" for n in spec.shared_argnums} | {f"keyword argument {n}" for n in spec.shared_argnames}
    is_column = lambda tree: isinstance(tree, (list, tuple)) and len(tree) == batch_size and _all_numbers(tree)  # noqa: E731
    for name, arg in _shared(spec, args, kwargs).items():
        for path, leaf in jax.tree_util.tree_flatten_with_path(arg, is_leaf=is_column)[0]:
            is_array = hasattr(leaf, "shape") and jnp.shape(leaf)[:1] == (batch_size,)
            if name in named or not (is_array or is_column(leaf)):
                continue
            kind = f"an array {described(leaf)}" if is_array else f"a {type(leaf).__name__} of numbers"
            last = name.split()[-1]
            if is_array and leaf.dtype == bool and jnp.ndim(leaf) == 1:
                raise ValueError(
                    f"{name}{jax.tree_util.keystr(path)} is {kind}, as long as the batch: a mask of padding is given "
                    f"by name, is_padding=...; if it is data, add its number to batch_argnums={spec.batch_argnums}"
                )
            if name.startswith("keyword"):
                batched, shared = "pass it by position and name that in batch_argnums", f"shared_argnames={shown(last)}"
            else:
                batched = f"say batch_argnums={(*spec.batch_argnums, int(last))}"
                shared = f"shared_argnums={last}"
            raise ValueError(
                f"{name}{jax.tree_util.keystr(path)} is {kind}, as long as the batch "
                f"({batch_size} rows), but it is not in batch_argnums={spec.batch_argnums}: every example would see "
                f"all of it. If it has a row for each example, {batched}; if all examples share it, say {shared}"
            )


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
            raise ValueError(f"argument {number} must be one typed PRNG key (jax.random.key), got {shown(key)}")


def _refuse_varying(args: tuple[Any, ...]) -> None:
    """Inside a checked shard_map JAX adds gradients of shared parameters up over the devices, before any clipping."""
    for number, arg in enumerate(args):
        for path, leaf in jax.tree_util.tree_flatten_with_path(arg)[0]:
            varying = varying_axes(leaf) if isinstance(leaf, jax.Array) else ()
            if varying:
                raise ValueError(
                    f"argument {number}{jax.tree_util.keystr(path)} varies over the mesh axes "
                    f"{sorted(varying)} of a shard_map that checks this, where gradients are added up "
                    "over devices before they could be clipped; use no shard_map, as a batch on a mesh is spread over "
                    "it anyway, or jax.shard_map(..., check_vma=False) for the sums alone, with the noise outside of it"
                )


def prepare(spec: LossSpec, args: tuple[Any, ...], kwargs: dict[str, Any], is_padding: Any) -> Call:
    """Check a call and describe it; raises ValueError for everything that can be seen without computing."""
    needed = max(_as_tuple(spec.argnums) + spec.batch_argnums + spec.key_argnums)
    if len(args) <= needed:
        by_name = f" and {', '.join(kwargs)} by name" if kwargs else ""
        raise ValueError(
            f"expected at least {needed + 1} positional arguments, got {len(args)}{by_name}: parameters, batches and "
            f"keys are given by position, as argnums={spec.argnums}, batch_argnums={spec.batch_argnums} and "
            f"key_argnums={spec.key_argnums} count them"
        )
    _key_data_ok(spec, args)
    which = _trained_leaves(spec.params(args), spec.trainable)
    batch_size = _batch_size(spec, args)
    _refuse_varying(args)
    if batch_size > 1:
        _refuse_unbatched(spec, args, kwargs, batch_size)
    return Call(spec, args, kwargs, which, batch_size, _check_padding(is_padding, batch_size), batch_size)


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
        rows = _batch_size(call.spec, args)
        return Call(call.spec, args, kwargs, call.which, rows, is_padding, call.whole_batch)

    arrays = [leaf for leaf, d in zip(leaves, dynamic, strict=True) if d]
    return [*arrays, positions], [*(m for m, d in zip(marks, dynamic, strict=True) if d), True], rebuild
