"""Refusal of arrays that every example sees whole, and that look like the data.

A loss of one example may use more than that example: arguments that are not batched, and arrays that it closes over.
If such an array has a row for each example (labels that were not named in ``batch_argnums``, say), then every example
sees all rows, and one row moves the gradients of all others. Nothing but its shape tells such an array from a table of
the model, so these are the rules:

* an argument as long as the batch must be named in ``shared_argnums`` (`refuse_unnamed_arguments`);
* an array that the loss closes over is refused if it is as long as the data, and either its rows are like those of the
  batch, or no other array of the model has an axis of this length (`refuse_closed_over_rows`).
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from gdpjax._core.checks import is_traced
from gdpjax._core.shown import shown

_MOST_COEFFICIENTS = 16
"""NumPy vectors of up to this length may be coefficients in functions of JAX, such as those of a polynomial."""


class WholeArgument(NamedTuple):
    """An argument that every example sees whole, neither a parameter nor a key.

    Attributes:
      position: its number, or None for a keyword argument.
      keyword: its keyword, or None for a positional argument.
      value: a tree.
      is_named: whether the user named it as shared.
    """

    position: int | None
    keyword: str | None
    value: Any
    is_named: bool

    @property
    def name(self) -> str:
        """The name in messages."""
        if self.keyword is None:
            return f"argument {self.position}"
        return f"keyword argument {self.keyword}"


def refuse_unnamed_arguments(
    arguments: Iterable[WholeArgument],
    batch_size: int,
    batch_argnums: tuple[int, ...],
) -> None:
    """Refuse an array as long as the batch that was named neither as batched nor as shared.

    Args:
      arguments: the arguments that every example sees whole.
      batch_size: the number of rows.
      batch_argnums: the batched arguments, for the message.

    Raises:
      ValueError: there is such an array, or a list of as many numbers.
    """

    def is_column(tree: Any) -> bool:
        return isinstance(tree, (list, tuple)) and len(tree) == batch_size and _holds_only_numbers(tree)

    for argument in arguments:
        if argument.is_named:
            continue
        for path, leaf in jax.tree_util.tree_flatten_with_path(argument.value, is_leaf=is_column)[0]:
            is_array = hasattr(leaf, "shape") and jnp.shape(leaf)[:1] == (batch_size,)
            if is_array or is_column(leaf):
                where = f"{argument.name}{jax.tree_util.keystr(path)}"
                raise ValueError(_unnamed_message(argument, where, leaf, is_array, batch_size, batch_argnums))


def _holds_only_numbers(values: Iterable[Any]) -> bool:
    for value in values:
        if not isinstance(value, (int, float, complex)) and getattr(value, "shape", None) != ():
            return False
    return True


def _unnamed_message(
    argument: WholeArgument,
    where: str,
    leaf: Any,
    is_array: bool,
    batch_size: int,
    batch_argnums: tuple[int, ...],
) -> str:
    kind = f"an array {described(leaf)}" if is_array else f"a {type(leaf).__name__} of numbers"

    # A vector of bools is most likely the padding, given by position.
    if is_array and leaf.dtype == bool and jnp.ndim(leaf) == 1:
        return (
            f"{where} is {kind}, as long as the batch: a mask of padding is given "
            f"by name, is_padding=...; if it is data, add its number to batch_argnums={batch_argnums}"
        )

    if argument.position is None:
        say_batched = "pass it by position and name that in batch_argnums"
        say_shared = f"shared_argnames={shown(argument.keyword)}"
    else:
        say_batched = f"say batch_argnums={(*batch_argnums, argument.position)}"
        say_shared = f"shared_argnums={argument.position}"
    return (
        f"{where} is {kind}, as long as the batch "
        f"({batch_size} rows), but it is not in batch_argnums={batch_argnums}: every example would see "
        f"all of it. If it has a row for each example, {say_batched}; if all examples share it, say {say_shared}"
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
                f"loss_fn closes over an array {described(array)} whose first axis is as long as the data "
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


def described(array: Any) -> str:
    """Return the dtype and shape of an array as text, never its values."""
    dtype = getattr(array, "dtype", None) or jnp.result_type(array)
    return f"{dtype}{list(jnp.shape(array))}"


def _dtype_kind(dtype: Any) -> str:
    for kind in (jnp.integer, jnp.floating, jnp.complexfloating):
        if jnp.issubdtype(dtype, kind):
            return kind.__name__
    return str(dtype)


def _is_count(array: Any) -> bool:
    """Whether an array is 0, 1, 2, ..., as positions are."""
    is_known = not is_traced(array) and getattr(array, "is_fully_addressable", True)
    if not is_known or np.ndim(array) != 1 or not jnp.issubdtype(array.dtype, jnp.integer):
        return False
    return np.array_equal(np.asarray(array), np.arange(len(array)))
