"""The loss of one example: the roles of its arguments, and its trace.

    spec = LossSpec(loss_fn, argnums=0, batch_argnums=(1, 2), ...)          # once
    call = prepare(spec, args, kwargs, is_padding)                          # for each batch: checks, by shapes alone
    trace = trace_loss(call)                                                # the program of one example, checked too
    loss, aux = example_loss(call, trained_leaves, rows, position)          # what that program computes

A private gradient is defined by the loss of ONE example, so everything here is about one: its rows come without their
batch axis, its keys are made from the given ones and its position, and all other arguments come whole. `prepare` and
`trace_loss` refuse everything through which one example could reach the gradient of another.
"""

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from gdpjax._core.arguments import check_flag, check_positions
from gdpjax._core.types import Array, PyTree
from gdpjax.clipping._guesses import (
    WholeArgument,
    refuse_closed_over_rows,
    refuse_mean_of_one_example,
    refuse_unnamed_arguments,
)
from gdpjax.clipping._loss_checks import (
    check_batch_size,
    check_keys,
    check_loss_value,
    check_padding,
    check_parameters,
    refuse_batch_norm_error,
    refuse_varying_arguments,
    split_aux,
)
from gdpjax.clipping._row_independence import CONVOLUTION, read_program
from gdpjax.clipping._tracing import CUSTOM, Frame, frame_of


@dataclasses.dataclass(frozen=True, eq=False)
class LossSpec:
    """A loss of one example and the roles of its arguments, as given to `gdpjax.clipped_grad`: checked and normalised.

    Attributes:
      loss_fn: the loss.
      argnums: the argument that holds the parameters, an int, or a tuple of them.
      batch_argnums: the arguments with a leading batch axis, a tuple of ints like the other roles.
      key_argnums: the arguments that are one PRNG key each.
      keep_batch_dim: whether the loss is given rows with a batch axis of length one.
      has_aux: whether the loss returns (loss, aux).
      trainable: a pytree (prefix) of bools over the parameters, or None.
      shared_argnums: the arguments that all examples share although they are as long as the batch.
      shared_argnames: the same, of keyword arguments.
      num_examples: the length of the data set where the library draws the batches from it, or None.

    Raises:
      ValueError: one of them is not what it should be, or two roles overlap.
    """

    loss_fn: Callable[..., Any]
    argnums: Any
    batch_argnums: Any
    key_argnums: Any
    keep_batch_dim: bool
    has_aux: bool
    trainable: PyTree | None
    shared_argnums: Any
    shared_argnames: Any
    num_examples: int | None = None

    def __post_init__(self) -> None:
        names = ("argnums", "batch_argnums", "key_argnums", "shared_argnums")
        roles = {name: check_positions(name, getattr(self, name)) for name in names}

        # Every argument has one role.
        numbers = [number for role in roles.values() for number in role]
        if not roles["argnums"] or not roles["batch_argnums"] or len(set(numbers)) != len(numbers):
            raise ValueError(f"argnums and batch_argnums must name arguments, and each have one role, got {roles}")

        # As with `jax.grad`, one number gives one tree and a tuple gives a tuple of trees.
        is_tuple = isinstance(self.argnums, tuple | list | range)
        checked: dict[str, Any] = {**roles, "argnums": roles["argnums"] if is_tuple else roles["argnums"][0]}
        is_one = not isinstance(self.shared_argnames, tuple | list | set | frozenset)
        checked["shared_argnames"] = (self.shared_argnames,) if is_one else tuple(self.shared_argnames)
        for name in ("keep_batch_dim", "has_aux"):
            checked[name] = check_flag(name, getattr(self, name))
        for name, value in checked.items():
            object.__setattr__(self, name, value)

    @property
    def param_argnums(self) -> tuple[int, ...]:
        """The arguments that hold the parameters, as a tuple."""
        if isinstance(self.argnums, int):
            return (self.argnums,)
        return self.argnums

    def params(self, args: Sequence[Any]) -> PyTree:
        """Return the differentiated argument, or the tuple of them, as `jax.grad` would return its gradient."""
        if isinstance(self.argnums, int):
            return args[self.argnums]
        return tuple(args[number] for number in self.argnums)

    def with_params(self, args: Sequence[Any], params: PyTree) -> list[Any]:
        """Return ``args`` with the differentiated arguments replaced."""
        values = (params,) if isinstance(self.argnums, int) else params
        replaced = list(args)
        for number, value in zip(self.param_argnums, values, strict=True):
            replaced[number] = value
        return replaced

    def whole_arguments(self, args: Sequence[Any], kwargs: dict[str, Any]) -> list[WholeArgument]:
        """Return the arguments that every example sees whole, apart from parameters and keys."""
        other_roles = {*self.param_argnums, *self.batch_argnums, *self.key_argnums}
        arguments = []
        for number, value in enumerate(args):
            if number not in other_roles:
                is_named = number in self.shared_argnums
                as_batched = f"say batch_argnums={(*self.batch_argnums, number)}"
                name = f"argument {number}"
                arguments.append(WholeArgument(name, value, is_named, as_batched, f"shared_argnums={number}"))
        as_batched = "pass it by position and name that in batch_argnums"
        for keyword, value in kwargs.items():
            is_named = keyword in self.shared_argnames
            name, as_shared = f"keyword argument {keyword}", f"shared_argnames={keyword!r}"
            arguments.append(WholeArgument(name, value, is_named, as_batched, as_shared))
        return arguments


class Call(NamedTuple):
    """One call of the function that `clipped_grad` returns, with its arguments checked.

    Attributes:
      spec: the loss and the roles of its arguments.
      args: the positional arguments.
      kwargs: the keyword arguments, which every example sees whole.
      is_trained: for each parameter leaf, whether it is differentiated.
      batch_size: the rows of this call; on a mesh, those of one device.
      is_padding: bool [batch_size], or None.
      num_rows: the rows of the batch on all devices.
    """

    spec: LossSpec
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    is_trained: tuple[bool, ...]
    batch_size: int
    is_padding: Array | None
    num_rows: int

    @property
    def params(self) -> PyTree:
        """The parameters, those that are not trained included."""
        return self.spec.params(self.args)

    @property
    def trained_leaves(self) -> list[Array]:
        """The leaves of the parameters that are differentiated."""
        return list(itertools.compress(jax.tree.leaves(self.params), self.is_trained))

    @property
    def data_length(self) -> int:
        """The length of an array with a row for each example: that of the data set, or else of the batch."""
        if self.spec.num_examples is None:
            return self.num_rows
        return self.spec.num_examples


def prepare(spec: LossSpec, args: tuple[Any, ...], kwargs: dict[str, Any], is_padding: Any) -> Call:
    """Check the arguments of one call.

    Args:
      spec: the roles of the arguments.
      args: the positional arguments.
      kwargs: the keyword arguments.
      is_padding: bool [batch_size], or None.

    Raises:
      ValueError: an argument is wrong in a way that its shape, dtype or type shows.
    """
    last = max(spec.param_argnums + spec.batch_argnums + spec.key_argnums)
    if len(args) <= last:
        by_name = f" and {', '.join(kwargs)} by name" if kwargs else ""
        raise ValueError(
            f"expected at least {last + 1} positional arguments, got {len(args)}{by_name}: parameters, batches and "
            f"keys are given by position, as argnums={spec.argnums}, batch_argnums={spec.batch_argnums} and "
            f"key_argnums={spec.key_argnums} count them (and under optax.inject_hyperparams it is a static argument)"
        )
    check_keys(args, spec.key_argnums)
    is_trained = check_parameters(spec.params(args), spec.trainable)
    batch_size = check_batch_size(args, spec.batch_argnums)
    refuse_varying_arguments(args)
    if batch_size > 1:
        refuse_unnamed_arguments(spec.whole_arguments(args, kwargs), batch_size)
    return Call(spec, args, kwargs, is_trained, batch_size, check_padding(is_padding, batch_size), batch_size)


def batch_rows(call: Call) -> list[Any]:
    """Return the batched arguments as trees of arrays."""
    return [jax.tree.map(jnp.asarray, call.args[number]) for number in call.spec.batch_argnums]


def example_loss(call: Call, trained: list[Any], rows: list[Any], position: Any) -> tuple[Any, Any]:
    """Evaluate the loss of one example.

    Args:
      call: all that the examples share.
      trained: the trained leaves of the parameters.
      rows: for each batched argument, the example's row.
      position: the example's place in the batch, which decides its keys.

    Returns:
      (loss, aux); aux is None without ``has_aux``.
    """
    spec = call.spec

    # The trained leaves take their places among the parameters.
    leaves, structure = jax.tree.flatten(call.params)
    remaining = iter(trained)
    merged = [next(remaining) if mark else leaf for leaf, mark in zip(leaves, call.is_trained, strict=True)]
    args = spec.with_params(call.args, jax.tree.unflatten(structure, merged))

    # The batched arguments become rows.
    for number, row in zip(spec.batch_argnums, rows, strict=True):
        args[number] = jax.tree.map(lambda leaf: leaf[None], row) if spec.keep_batch_dim else row

    # A key depends on the example's position alone, whatever the strategy, chunk or mesh.
    for number in spec.key_argnums:
        args[number] = jax.random.fold_in(call.args[number], position)

    return split_aux(spec.loss_fn(*args, **call.kwargs), spec.has_aux)


class TracedLoss(NamedTuple):
    """The program of one example.

    Attributes:
      frame: its inputs are the trained leaves, the leaves of the example's rows, and its position. Its outputs are the
        loss and the leaves of aux.
      aux_structure: the tree structure of aux.
      has_convolution: whether there are convolutions in it, or in its gradient.
    """

    frame: Frame
    aux_structure: Any
    has_convolution: bool


def trace_loss(call: Call, is_sequential: bool = False) -> TracedLoss:
    """Trace the loss of one example, and refuse it if one example could reach the gradient of another.

    Args:
      call: the call.
      is_sequential: whether rows are computed one by one, without `jax.vmap`.

    Raises:
      ValueError: the loss is refused; other errors of the loss are raised as they are, with a note.
    """
    # Shapes are all that tracing needs, of the trained leaves and of one row.
    trained = [jax.ShapeDtypeStruct(leaf.shape, jnp.result_type(leaf)) for leaf in call.trained_leaves]
    batch = [call.args[number] for number in call.spec.batch_argnums]
    rows = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(jnp.shape(leaf)[1:], jnp.result_type(leaf)), batch)
    position = jax.ShapeDtypeStruct((), jnp.int32)

    def loss_and_aux(trained: list[Any], rows: list[Any], position: Any) -> tuple[Any, Any]:
        value, aux = example_loss(call, trained, rows, position)
        check_loss_value(value)
        return value, aux

    try:
        jaxpr, outputs = jax.make_jaxpr(loss_and_aux, return_shape=True)(trained, rows, position)
    except Exception as error:  # the loss may raise anything when it is given one example
        refuse_batch_norm_error(error)
        shapes = {n: jax.tree.map(jnp.shape, row) for n, row in zip(call.spec.batch_argnums, rows, strict=True)}
        error.add_note(
            f"gdpjax calls loss_fn with ONE example: by batch_argnums={call.spec.batch_argnums} these arguments come "
            f"without their batch axis, with shapes {shapes}, and all others come whole. If loss_fn takes a batch "
            "(x.shape[0] is its length), say keep_batch_dim=True: rows then have a batch axis of length 1"
        )
        raise

    def trace_gradient() -> Any:
        return jax.make_jaxpr(jax.grad(loss_and_aux, has_aux=True))(trained, rows, position)

    primitives = _check_program(call, jaxpr, trained, rows, trace_gradient, is_sequential)
    frame = frame_of(jaxpr)
    refuse_mean_of_one_example(frame, call.spec.keep_batch_dim)
    _, aux = outputs
    return TracedLoss(frame, jax.tree.structure(aux), CONVOLUTION in primitives)


def _check_program(
    call: Call,
    jaxpr: Any,
    trained: list[Any],
    rows: list[Any],
    trace_gradient: Callable[[], Any],
    is_sequential: bool,
) -> set[str]:
    """Refuse a loss in which one example could reach the gradient of another; return the names of its primitives.

    Args:
      call: the call.
      jaxpr: the traced loss of one example.
      trained: the shapes of its trained leaves.
      rows: the shapes of its rows.
      trace_gradient: traces the gradient program, which has the same inputs.
      is_sequential: whether rows are computed one by one.

    Returns:
      The primitives of the loss, and those of its gradient where a derivative rule was written by hand.
    """
    row_leaves = jax.tree.leaves(rows)
    whole = [argument.value for argument in call.spec.whole_arguments(call.args, call.kwargs)]
    shared = jax.tree.leaves((call.params, whole))

    # The inputs are the trained leaves, the rows, and the position.
    depends_on_rows = [False] * len(trained) + [True] * len(row_leaves) + [False]
    program = read_program(jaxpr, depends_on_rows, is_sequential=is_sequential)
    if jaxpr.effects:
        raise ValueError(
            f"loss_fn has side effects ({', '.join(sorted(str(e) for e in jaxpr.effects))}), which would show private "
            "examples and cannot be mapped over them; remove prints and callbacks, and return what you need as aux"
        )
    refuse_closed_over_rows(program.constants, shared, call.data_length, row_leaves)

    # The equations of a derivative rule that was written by hand are only in the gradient program.
    if program.primitives.isdisjoint(CUSTOM):
        return program.primitives
    where = "a derivative rule that loss_fn uses"
    gradient = read_program(trace_gradient(), depends_on_rows, where, is_sequential)
    refuse_closed_over_rows(gradient.constants, shared, call.data_length, row_leaves)
    return program.primitives | gradient.primitives


class FlatCall(NamedTuple):
    """The arrays of a call, to be passed through `jax.shard_map`.

    Attributes:
      arrays: the arrays; the last one holds the positions of the rows in the batch.
      is_batched: for each array, whether it has a leading batch axis.
      rebuild: a function from such arrays, whose batch axes may be shorter, to (call, positions).
    """

    arrays: list[Any]
    is_batched: list[bool]
    rebuild: Callable[[Sequence[Any]], tuple[Call, Array]]


def flatten_call(call: Call, positions: Array) -> FlatCall:
    """Return the arrays of a call, and how to put others in their place.

    Args:
      call: the call.
      positions: int32 [batch_size], the places of the rows in the batch.
    """

    def marks_of(tree: PyTree, mark: bool) -> PyTree:
        return jax.tree.map(lambda _: mark, tree)

    batched_args = tuple(marks_of(arg, number in call.spec.batch_argnums) for number, arg in enumerate(call.args))
    batched = jax.tree.leaves((batched_args, marks_of(call.kwargs, False), marks_of(call.is_padding, True)))
    leaves, structure = jax.tree.flatten((call.args, call.kwargs, call.is_padding))

    # Python numbers among the shared arguments stay as they are: the loss may want them static.
    arrays, is_batched, is_array = [], [], []
    for leaf, mark in zip(leaves, batched, strict=True):
        is_array.append(mark or isinstance(leaf, (jax.Array, np.ndarray, jax.ShapeDtypeStruct)))
        if is_array[-1]:
            arrays.append(leaf)
            is_batched.append(mark)

    def rebuild(values: Sequence[Any]) -> tuple[Call, Array]:
        *values, local_positions = values
        remaining = iter(values)
        merged = [next(remaining) if array else leaf for leaf, array in zip(leaves, is_array, strict=True)]
        args, kwargs, is_padding = jax.tree.unflatten(structure, merged)
        num_local = local_positions.shape[0]
        return call._replace(args=args, kwargs=kwargs, batch_size=num_local, is_padding=is_padding), local_positions

    return FlatCall([*arrays, positions], [*is_batched, True], rebuild)
