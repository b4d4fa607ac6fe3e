"""One batch on the device, made of the rows that a sampler marks, and the function that takes its rows from the data.

    *rows, is_padding = batches.sample(key, step).take(x, y)
    clipped_sum = grad_fn(params, *rows, is_padding=is_padding)

Every sampler marks the rows of its batch, bool[num_examples], and `padded` makes a `Batch` of them: indices and padding
in a static number of slots.

Batches are drawn from ``num_examples`` rows, a public number that the data may fall short of. JAX reads the last row in
place of one that does not exist, which would add this example many times: `take_rows` marks such rows as padding.
"""

import dataclasses
import functools
from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec
from jaxtyping import Bool, Int

from gdpjax._core.arguments import MOST_INDEX, check_count, check_rows
from gdpjax._core.checks import is_traced, number_kind
from gdpjax._core.shown import shown
from gdpjax._core.types import Array, PyTree

_WORD_BITS = 32


@final
@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["indices", "is_padding", "count"],
    meta_fields=["num_examples"],
)
@dataclasses.dataclass(frozen=True, eq=False)
class Batch:
    """One batch: which rows, which of them are padding, and how many examples were drawn (private).

    ``count > indices.shape[0]`` means that the batch did not fit. Then every row is padding, so that a step on it adds
    noise to nothing; that is the failure whose probability `overflow_probability` bounds and a ledger must hold.

    It can be unpacked and indexed as the tuple ``indices, is_padding, count``.

    Attributes:
      indices: int32[capacity], the rows of the batch, 0 in slots of padding.
      is_padding: bool[capacity].
      count: int32[], the number of examples that were drawn.
      num_examples: of how many rows they were drawn, a static number.
    """

    indices: Int[Array, "*steps capacity"]
    is_padding: Bool[Array, "*steps capacity"]
    count: Int[Array, "*steps"]
    num_examples: int

    def __getitem__(self, place: Any) -> Any:
        return (self.indices, self.is_padding, self.count)[place]

    def take(self, *data: PyTree) -> tuple[Any, ...]:
        """Return the rows of the batch, inside or outside jit: ``*rows, is_padding``.

        Rows of padding hold some row of the data, and ``is_padding`` marks them; also those that the data do not have.

        Args:
          data: arrays, or pytrees of arrays, with one row per example, at most ``num_examples`` of them.

        Returns:
          The rows of each argument ``[capacity, ...]``, then bool[capacity]: the mask for ``grad_fn(params, *rows,
          is_padding=is_padding)``.

        Raises:
          ValueError: unequal numbers of rows, none, or more than ``num_examples``.

        >>> batch = Batch(jnp.array([1, 4]), jnp.array([False, False]), jnp.int32(2), num_examples=5)
        >>> x, is_padding = batch.take(jnp.array([10.0, 11.0, 12.0]))
        >>> x[0].item(), is_padding.tolist()
        (11.0, [False, True])
        """
        return take_rows(self.indices, self.is_padding, self.num_examples, data)


def take_rows(indices: Any, is_padding: Any, num_examples: int, data: tuple[PyTree, ...]) -> tuple[Any, ...]:
    """Return the rows of each part of ``data``, and the mask of padding; see `Batch.take`.

    With indices of NumPy, arrays that are not of JAX are read on the host.
    """
    data, num_rows = check_rows(data)
    if not 1 <= num_rows <= num_examples:
        raise ValueError(
            f"the batches are drawn from num_examples={num_examples} rows, and the data have {num_rows}: num_examples "
            "is the public maximum, which no data set may exceed. A data set without examples is one row of zeros, "
            "sampled with num_valid=0"
        )

    # Rows that the data do not have are padding, and read row 0.
    if num_rows < num_examples:
        exists = indices < num_rows
        is_padding = is_padding | ~exists
        indices = indices * exists

    def rows_of(array: Any) -> Any:
        if isinstance(indices, np.ndarray) and not isinstance(array, jax.Array):
            return np.asarray(array)[indices]
        return _spread_rows(jnp.asarray(array), indices)

    return *jax.tree.map(rows_of, data), is_padding


def _spread_rows(array: Array, indices: Array) -> Array:
    """Return array[indices], spread over the devices of the mesh that the array is on."""
    sharding: Any = jax.typeof(array).sharding
    mesh = sharding.mesh
    # On an Auto mesh `clipped_grad` spreads the rows.
    if not mesh.explicit_axes:
        return array[indices]
    with jax.sharding.use_abstract_mesh(mesh):
        whole = jax.sharding.reshard(array, PartitionSpec())
        return jax.sharding.reshard(whole[indices], PartitionSpec(mesh.explicit_axes))


def whole_number(name: str, value: Any, most: int = MOST_INDEX) -> tuple[Array, Array]:
    """Return a number from 0 to ``most`` as int32, and whether it is one; ValueError where that is known not to be so.

    One of a floating type may have been rounded, so that two steps would have one batch.
    """
    if not is_traced(value) and not hasattr(value, "dtype"):
        value = np.int64(check_count(name, value, least=0, most=most))
    if number_kind(value.dtype) not in "iu" or value.ndim:
        raise ValueError(f"{name} must be a whole number, got {shown(value)}")
    if not is_traced(value):
        check_count(name, value, least=0, most=most)
    # A small integer type may not have ``most``, which would be another number in it.
    is_valid = (value >= 0) & (value <= min(most, jnp.iinfo(value.dtype).max))
    return jnp.where(is_valid, value, 0).astype(jnp.int32), jnp.asarray(is_valid)


def real_rows(included: Array, num_valid: Any) -> tuple[Array, Array]:
    """Return the marked rows that are real, those before ``num_valid``, and whether there can be so many."""
    if num_valid is None:
        return included, jnp.asarray(True)
    num_rows = included.shape[0]
    num_real, is_valid = whole_number("num_valid", num_valid, num_rows)
    return included & (jnp.arange(num_rows) < num_real), is_valid


def padded(included: Array, capacity: int, valid: Array | bool = True) -> Batch:
    """Return the batch of the marked rows, bool[num_examples], ascending; it is all padding where they do not fit.

    Where ``valid`` is false, as of a traced number out of range, it is one that never fits.
    """
    count = included.sum(dtype=jnp.int32)

    # A batch that does not fit is padding throughout: the part that would fit is not the batch that is accounted for.
    is_padding = (jnp.arange(capacity) >= count) | (count > capacity)
    batch = Batch(first_positions(included, capacity), is_padding, count, included.shape[0])
    return where_valid(batch, valid)


def where_valid(batch: Batch, valid: Array) -> Batch:
    """Return a batch where ``valid`` is true, and one of padding, whose count never fits, where it is not."""
    is_padding = batch.is_padding | ~jnp.asarray(valid)
    return Batch(
        indices=jnp.where(is_padding, 0, batch.indices),
        is_padding=is_padding,
        count=jnp.where(valid, batch.count, jnp.iinfo(jnp.int32).max),
        num_examples=batch.num_examples,
    )


def first_positions(included: Array, size: int) -> Array:
    """Return int32[size]: where ``included``, bool[rows], is true, ascending; zeros where no more is.

    As ``jnp.nonzero(included, size=size, fill_value=0)``, which on a CPU takes fifteen times as long, more than all the
    rest of a small model's step: it counts and scatters row by row. Here only words of 32 rows are, and the place
    within a word is found by halving.
    """
    num_rows = included.shape[0]

    # Pack 32 rows into each word, the first in its lowest bit.
    num_words = -(-num_rows // _WORD_BITS)
    padded_rows = jnp.pad(included, (0, num_words * _WORD_BITS - num_rows))
    bits = padded_rows.reshape(num_words, _WORD_BITS).astype(jnp.uint32)
    words = (bits << jnp.arange(_WORD_BITS, dtype=jnp.uint32)).sum(axis=1, dtype=jnp.uint32)

    # The marked rows of word w fill the slots from starts[w] to ends[w] - 1.
    counts = jax.lax.population_count(words).astype(jnp.int32)
    ends = jnp.cumsum(counts)
    starts = ends - counts

    # The word of a slot is the last that starts at or before it; of those that start together only one is not empty.
    # The others have a slot of their own, the last: a GPU that is to be deterministic does not drop what is outside.
    slot_of_word = jnp.where(counts > 0, jnp.minimum(starts, size), size)
    numbers = jnp.arange(num_words, dtype=jnp.int32)
    word_of_slot = jnp.zeros(size + 1, jnp.int32).at[slot_of_word].set(numbers, mode="promise_in_bounds")
    word_of_slot = jax.lax.cummax(word_of_slot[:size])

    # Find the row within the word.
    slots = jnp.arange(size, dtype=jnp.int32)
    rank_in_word = slots - starts[word_of_slot]
    rows = word_of_slot * _WORD_BITS + _bit_of_rank(words[word_of_slot], rank_in_word)
    return jnp.where(slots < ends[-1], rows, 0)


def _bit_of_rank(words: Array, rank: Array) -> Array:
    """Return for each word which bit, from the lowest, is the one with ``rank`` set bits below it."""
    position = jnp.zeros_like(rank)
    for half in (16, 8, 4, 2, 1):
        # Count the set bits of the lower half, and go on in the half that has the bit.
        lower_half = words & jnp.uint32((1 << half) - 1)
        num_below = jax.lax.population_count(lower_half).astype(rank.dtype)
        is_above = rank >= num_below
        rank = jnp.where(is_above, rank - num_below, rank)
        position = jnp.where(is_above, position + half, position)
        words = jnp.where(is_above, words >> half, words)
    return position
