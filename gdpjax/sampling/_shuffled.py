"""Shuffled batches: in each epoch the rows are permuted at random and cut into t batches, so that each is used once.

The permutation of an epoch orders the rows by 128 random bits, a function of (key, epoch, row). The batch of a step is
the rows of the ranks that are its own; two ranks are found without a sort (`_ranks`), so no step depends on another
one's draw and nothing is kept from step to step. A run can be resumed anywhere. With N = q t + r rows the first r
batches of an epoch have q + 1 rows and the others q, whatever the data: no batch overflows.

All permutations are equally likely unless the bits of two rows of an epoch are equal, which has probability at most
N^2 2^-129 an epoch; rows that tie are in order. `shuffled_error` adds these up. They only matter where data sets may
also differ in the order of their rows: the bracket of `gdpjax.ledger.ShuffledEvent` holds for every permutation.
"""

import jax.numpy as jnp

from gdpjax._core.arguments import check_choice, check_count
from gdpjax._core.keys import bits, fold_in
from gdpjax._core.types import Array
from gdpjax.sampling._batch import Batch
from gdpjax.sampling._padding import checked_rows, checked_step, padded, real_rows
from gdpjax.sampling._ranks import lowest_rows_of

_NUM_WORDS = 4
_FIRST_WORD = 0
_OTHER_WORDS = 1


def shuffled_sample(
    key: Array,
    step: Array,
    num_examples: int,
    steps_per_epoch: int,
    *,
    bins: str = "fresh",
    num_valid: Array | None = None,
) -> Batch:
    """Draw the batch of one step of shuffled epochs on the device.

    The event of E epochs is ``ShuffledEvent(noise_multiplier, steps_per_epoch, E, overflow=shuffled_error(num_examples,
    E))``. Rows that are not real, from ``num_valid`` on, are shuffled with the others and come out as padding, as the
    null examples of ADD_OR_REMOVE_ONE and REPLACE_SPECIAL.

    Args:
      key: one PRNG key, the same for every step of the run.
      step: which step of the run, from 0, a number or a traced one.
      num_examples: N >= 1, static; the public maximum where the true number is private.
      steps_per_epoch: number t of batches in an epoch, from 1 to num_examples, static.
      bins: "fresh" if the rows are permuted anew in each epoch, "fixed" if once for all, so that every row comes back
        exactly t steps later (`gdpjax.correlated.FixedEpochs`).
      num_valid: how many of the rows are real, from 0 to num_examples, a number or a traced one; None: all of them.

    Returns:
      A `Batch` of ceil(N / t) slots, ascending; its ``count`` is the number of real rows, which always fit.

    Raises:
      ValueError: values out of range. Traced ones give a batch of padding and the largest ``count``.

    Reference: arXiv:2403.17673 (batches of a permutation, and what is known of their privacy).

    >>> import jax
    >>> draw = jax.jit(lambda step: shuffled_sample(jax.random.key(0), step, 10, 3))
    >>> [int(draw(step).count) for step in range(3)]
    [4, 3, 3]
    """
    num_examples = check_count("num_examples", num_examples)
    steps_per_epoch = check_count("steps_per_epoch", steps_per_epoch, most=num_examples)
    check_choice("bins", bins, ("fresh", "fixed"))
    rows = checked_rows(num_examples, num_valid)
    step, is_valid_step = checked_step(step)
    epoch = step // steps_per_epoch
    step_of_epoch = step % steps_per_epoch

    # The ranks of this step, from first_rank to end_rank - 1: the longer batches come first.
    short, num_longer = divmod(num_examples, steps_per_epoch)
    first_rank = step_of_epoch * short + jnp.minimum(step_of_epoch, num_longer)
    end_rank = first_rank + short + (step_of_epoch < num_longer)

    # The random bits that order the rows of this epoch.
    permutation = epoch if bins == "fresh" else jnp.zeros_like(epoch)
    permutation_key = fold_in(key, permutation)
    first_word = bits(fold_in(permutation_key, _FIRST_WORD), (num_examples,))

    # This key is checked here, outside of the branch that draws the other words.
    other_words_key = fold_in(permutation_key, _OTHER_WORDS)

    def draw_other_words() -> Array:
        return bits(other_words_key, (_NUM_WORDS - 1, num_examples))

    is_before_end = lowest_rows_of(first_word, draw_other_words, end_rank)
    is_before_first = lowest_rows_of(first_word, draw_other_words, first_rank)
    included = is_before_end & ~is_before_first
    included, is_valid_count = real_rows(included, num_valid, rows)

    capacity = -(-num_examples // steps_per_epoch)
    return padded(included, capacity, is_valid_step & is_valid_count)


def shuffled_error(num_examples: int, num_epochs: int) -> float:
    """Return the probability that a permutation of `shuffled_sample` is not uniform in some epoch; upper bound.

    It is num_epochs N^2 2^-129, at most 1, and adds to delta where neighbours may differ in the order of rows, too.

    >>> shuffled_error(60_000, 15) < 1e-27
    True
    """
    num_examples = check_count("num_examples", num_examples, most=2**53 - 1)
    num_epochs = check_count("num_epochs", num_epochs, most=2**53 - 1)
    # The last factor makes up for the rounding of the product.
    bound = float(num_epochs) * float(num_examples) ** 2 * 2.0**-129 * (1 + 1e-15)
    return min(1.0, bound)
