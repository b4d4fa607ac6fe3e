"""Refusals that go by the looks of a loss: of arrays that look like the data, and of statistics over the examples.

A loss of one example may use more than that example: arguments that are not batched, and arrays that it closes over.
If such an array has a row for each example (labels that were not named in ``batch_argnums``, say), then every example
sees all rows, and one row moves the gradients of all others. Nothing but its shape tells such an array from a table of
the model, so these are the rules:

* an argument as long as the batch must be named in ``shared_argnums`` (`refuse_unnamed_arguments`);
* an array that the loss closes over is refused if it is as long as the data, and either its rows are like those of the
  batch, or no other array of the model has an axis of this length (`refuse_closed_over_rows`).

A loss that normalises over the examples, as BatchNorm does, lets one example move the gradients of all others too. It
shows in the traced loss of one example, where the mean over a batch of one is subtracted from the value itself
(`refuse_mean_of_one_example`), and in the collections of variables that the model was given as parameters
(`gdpjax._core.statistics`).
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from gdpjax._core.checks import is_traced, number_kind
from gdpjax._core.shown import shown
from gdpjax.clipping._tracing import Frame, is_literal

_MOST_COEFFICIENTS = 16
"""NumPy vectors of up to this length may be coefficients in functions of JAX, such as those of a polynomial."""


class WholeArgument(NamedTuple):
    """An argument that every example sees whole, neither a parameter nor a key.

    Attributes:
      name: its name in messages.
      value: a tree.
      is_named: whether the user named it as shared.
      as_batched: how to say that it has a row for each example.
      as_shared: how to say that all examples share it.
    """

    name: str
    value: Any
    is_named: bool
    as_batched: str
    as_shared: str


def refuse_unnamed_arguments(arguments: Iterable[WholeArgument], batch_size: int) -> None:
    """Refuse an array as long as the batch that was named neither as batched nor as shared.

    Args:
      arguments: the arguments that every example sees whole.
      batch_size: the number of rows.

    Raises:
      ValueError: there is such an array, or a list of as many numbers.
    """

    def is_number(value: Any) -> bool:
        return isinstance(value, (int, float, complex)) or getattr(value, "shape", None) == ()

    def is_column(tree: Any) -> bool:
        return isinstance(tree, (list, tuple)) and len(tree) == batch_size and all(map(is_number, tree))

    for argument in arguments:
        if argument.is_named:
            continue
        for path, leaf in jax.tree_util.tree_flatten_with_path(argument.value, is_leaf=is_column)[0]:
            is_array = hasattr(leaf, "shape") and jnp.shape(leaf)[:1] == (batch_size,)
            if not is_array and not is_column(leaf):
                continue
            kind = shown(leaf) if is_array else f"a {type(leaf).__name__} of numbers"
            found = f"{argument.name}{jax.tree_util.keystr(path)} is {kind}, as long as the batch ({batch_size} rows)"

            # A vector of bools is most likely the padding, given by position.
            if is_array and leaf.dtype == bool and jnp.ndim(leaf) == 1:
                raise ValueError(
                    f"{found}: a mask of padding is given by name, is_padding=...; if it is data, {argument.as_batched}"
                )
            raise ValueError(
                f"{found}, but it is not in batch_argnums: every example would see all of it. If it has a row for each "
                f"example, {argument.as_batched}; if all examples share it, say {argument.as_shared}"
            )


def refuse_closed_over_rows(
    constants: Iterable[Any],
    shared: Iterable[Any],
    num_rows: int,
    rows: Iterable[Any],
) -> None:
    """Refuse an array that the loss closes over if it looks like the data.

    Such an array has the length of the data as its first axis, and either rows like those of a batched argument, or a
    length that no other axis of the model has. So the bias of a layer that happens to be as wide as the batch is not
    refused.

    Args:
      constants: the arrays that the traced loss holds.
      shared: the parameters and the whole arguments, which may be among the constants.
      num_rows: the length of the batch, or of the whole data set.
      rows: for each batched array, the shape and dtype of one row.

    Raises:
      ValueError: there is such an array.
    """
    if num_rows < 2:
        return
    shared, rows = list(shared), list(rows)
    arrays = _closed_over(constants, shared)

    # Collect the kinds of rows that the batch has, and the lengths of axes that the model has.
    row_kinds = set()
    lengths = set()
    for row in rows:
        if row.shape:
            row_kinds.add((tuple(row.shape), _dtype_kind(row.dtype)))
    for leaf in (*shared, *rows):
        lengths.update(jnp.shape(leaf))

    # Look for arrays as long as the data, except for positions (0, 1, 2, ...) and short vectors of coefficients.
    for array in arrays:
        shape = np.shape(array)
        if shape[0] != num_rows or _is_count(array):
            continue
        is_coefficients = len(shape) == 1 and num_rows <= _MOST_COEFFICIENTS and not isinstance(array, jax.Array)
        if is_coefficients:
            continue

        # The first axis of another one may be that of the data, too: the labels beside the inputs.
        other_lengths = set()
        for other in arrays:
            other_lengths.update(np.shape(other)[1:])
        is_known_length = num_rows in lengths or num_rows in other_lengths
        has_rows_of_the_batch = (shape[1:], _dtype_kind(array.dtype)) in row_kinds
        if has_rows_of_the_batch or not is_known_length:
            raise ValueError(
                f"loss_fn closes over {shown(array)} whose first axis is as long as the data "
                f"({num_rows}): every example would see all of it. If it has a row for each example, pass it as an "
                "argument and name that in batch_argnums; if all examples share it, pass it as an argument and name "
                "that in shared_argnums"
            )


def _closed_over(constants: Iterable[Any], shared: list[Any]) -> list[Any]:
    """Return the constants that have an axis and are neither parameters nor arguments, each once."""
    shared_ids = {id(leaf) for leaf in shared}
    # JAX copies NumPy arrays when it traces a function, so that only their shapes can be compared.
    copied_shapes = {np.shape(leaf) for leaf in shared if not isinstance(leaf, jax.Array)}

    arrays: dict[int, Any] = {}
    for constant in constants:
        is_shared = id(constant) in shared_ids or np.shape(constant) in copied_shapes
        if np.ndim(constant) and not is_shared:
            arrays[id(constant)] = constant
    return list(arrays.values())


def _dtype_kind(dtype: Any) -> str:
    """Return a letter for the kind of numbers, the same for whole numbers with and without a sign."""
    return number_kind(dtype).replace("u", "i")


def _is_count(array: Any) -> bool:
    """Whether an array is 0, 1, 2, ..., as positions are."""
    is_known = not is_traced(array) and getattr(array, "is_fully_addressable", True)
    if not is_known or np.ndim(array) != 1 or not jnp.issubdtype(array.dtype, jnp.integer):
        return False
    return np.array_equal(np.asarray(array), np.arange(len(array)))


class _Entries(NamedTuple):
    """The origin of the entries of a variable.

    Attributes:
      source: the earlier variable that has the same entries, perhaps in another shape or dtype.
      is_mean: whether a mean was taken on the way, over an axis of length one or over no axis.
    """

    source: Any
    is_mean: bool


_SAME_ENTRIES = frozenset(
    {"copy", "copy_p", "convert_element_type", "reshape", "squeeze", "expand_dims", "broadcast_in_dim"}
)
"""Primitives that leave the entries as they are, provided that their number stays the same."""


def refuse_mean_of_one_example(frame: Frame, keep_batch_dim: bool) -> None:
    """Refuse a loss that subtracts from a value its mean over the one example.

    A BatchNorm in training does this when it is given one example: it returns a constant, and all gradients before it
    are exactly zero. That is private, and useless.

    Args:
      frame: the traced loss of one example, or a body inside it, whose inputs are taken for new values.
      keep_batch_dim: whether the example has a batch axis of length one.

    Raises:
      ValueError: the loss subtracts such a mean.
    """
    known: dict[Any, _Entries] = {}

    def entries_of(atom: Any) -> _Entries:
        if is_literal(atom):
            return _Entries(object(), False)
        return known.get(atom, _Entries(atom, False))

    for eqn in frame.jaxpr.eqns:
        operands = [entries_of(atom) for atom in eqn.invars]
        if operands and _keeps_entries(eqn):
            known[eqn.outvars[0]] = operands[0]
        elif eqn.primitive.name == "reduce_sum" and _sums_one_entry(eqn, keep_batch_dim):
            known[eqn.outvars[0]] = _Entries(operands[0].source, True)
        elif eqn.primitive.name == "sub":
            left, right = operands
            if left.source is right.source and left.is_mean != right.is_mean:
                raise ValueError(
                    "loss_fn takes from a value its mean over the batch, which is the value itself, as it sees one "
                    "example: all gradients before that are exactly zero. This is a BatchNorm in training; use "
                    "GroupNorm or LayerNorm, or the statistics of a public data set (use_running_average=True)"
                )
    for bodies in frame.children.values():
        for body in bodies:
            refuse_mean_of_one_example(body, keep_batch_dim)


def _keeps_entries(eqn: Any) -> bool:
    """Whether the output of an equation has the entries of its first input."""
    name = eqn.primitive.name
    if name in ("div", "mul"):
        # A mean divides by its number of terms, which is one here.
        factor = eqn.invars[1]
        return is_literal(factor) and np.ndim(factor.val) == 0 and factor.val == 1
    if name in _SAME_ENTRIES:
        return np.prod(eqn.invars[0].aval.shape) == np.prod(eqn.outvars[0].aval.shape)
    return False


def _sums_one_entry(eqn: Any, keep_batch_dim: bool) -> bool:
    """Whether a sum is over no axis, or over the batch axis and others of length one."""
    axes = eqn.params["axes"]
    if not axes:
        return True
    shape = eqn.invars[0].aval.shape
    return keep_batch_dim and 0 in axes and all(shape[axis] == 1 for axis in axes)
