"""Shuffled batches: in each epoch the rows are permuted at random and cut into t batches, so that each is used once.

The permutation of an epoch orders the rows by 128 random bits, a function of (key, epoch, row). The batch of a step is
the rows of the ranks that are its own; two ranks are found without a sort (`_ranks`), so no step depends on another
one's draw and nothing is kept from step to step. A run can be resumed anywhere. With N = q t + r rows the first r
batches of an epoch have q + 1 rows and the others q, whatever the data: no batch overflows.

All permutations are equally likely unless the bits of two rows of an epoch are equal, which has probability at most
N^2 2^-129 an epoch; rows that tie are in order. ``overflow`` adds these up. They only matter where data sets may
also differ in the order of their rows: the bracket of `gdpjax.ledger.ShuffledEvent` holds for every permutation.
"""

import dataclasses

import jax.numpy as jnp

from gdpjax._core.arguments import check_choice
from gdpjax._core.keys import bits, fold_in
from gdpjax._core.types import Array, NeighboringRelation
from gdpjax.correlated import AbstractParticipation, FixedEpochs, MinSep
from gdpjax.ledger import ShuffledEvent
from gdpjax.sampling._drawn import BatchesInEpochs, scheme
from gdpjax.sampling._ranks import lowest_rows_of

_NUM_WORDS = 4
_FIRST_WORD = 0
_OTHER_WORDS = 1


@scheme
class Shuffled(BatchesInEpochs):
    """Batches of rows that are permuted at random, so that every row takes part in exactly one step of each epoch.

    Rows that are not real, from ``num_valid`` on, are shuffled with the others and come out as padding, as the null
    examples of ADD_OR_REMOVE_ONE and REPLACE_SPECIAL.

    Args:
      num_examples, expected_batch_size, num_steps, epochs: as in `DrawnBatches`; whole epochs, each of
        round(num_examples / expected_batch_size) steps, from 1 to num_examples.
      order: "fresh" if the rows are permuted anew in each epoch, "fixed" if once for all, so that every row comes back
        exactly an epoch later, which keeps the steps of an example apart for correlated noise.

    Attributes:
      steps_per_epoch: t.
      sampling_prob: 1 / t.
      capacity: ceil(num_examples / t); batches have so many rows or one less.
      overflow: the probability that the bits of a permutation do not treat all rows alike; num_epochs N^2 2^-129.

    Raises:
      ValueError: as `DrawnBatches`; steps that are no whole epochs.

    Reference: arXiv:2403.17673 (batches of a permutation, and what is known of their privacy).

    >>> import jax
    >>> batches = Shuffled(10, 3, epochs=1)
    >>> draw = jax.jit(lambda step: batches.sample(jax.random.key(0), step))
    >>> [int(draw(step).count) for step in range(3)]
    [4, 3, 3]
    """

    _: dataclasses.KW_ONLY
    order: str = "fresh"
    relations = ShuffledEvent.relations

    def _check(self) -> None:
        check_choice("order", self.order, ("fresh", "fixed"))
        if self.capacity not in (None, self._largest_size()):
            raise ValueError(f"every batch has at most {self._largest_size()} rows: leave capacity out")

    def _largest_size(self) -> int:
        return -(-self.num_examples // self.steps_per_epoch)

    @property
    def steps_per_epoch(self) -> int:
        """Return the number of batches that the rows are cut into."""
        return max(round(self.num_examples / self.expected_batch_size), 1)

    @property
    def sampling_prob(self) -> float:
        """Return the share of the steps that an example takes part in."""
        return 1 / self.steps_per_epoch

    @property
    def lost_per_step(self) -> float:
        """Return 0: every batch fits."""
        return 0.0

    @property
    def _not_uniform(self) -> float:
        return permutation_error(self.num_examples, self.num_epochs)

    def _included(self, key: Array, step: Array) -> Array:
        permutation = step // self.steps_per_epoch
        if self.order == "fixed":
            permutation = jnp.zeros_like(permutation)
        return rows_of_part(key, permutation, step % self.steps_per_epoch, self.num_examples, self.steps_per_epoch)

    def limits(self) -> AbstractParticipation:
        """Return the promise: once an epoch, in the same step of each where all epochs have one order."""
        if self.order == "fixed":
            return FixedEpochs(self.num_epochs)
        return MinSep(self.num_epochs, 1)

    def step_event(self, neighboring_relation: NeighboringRelation | None = None) -> ShuffledEvent:
        """Return a step of the event, with noise multiplier 1."""
        return ShuffledEvent(1.0, self.steps_per_epoch, neighboring_relation=neighboring_relation)

    def describe(self, unit: str, neighboring_relation: NeighboringRelation, *, is_correlated: bool) -> str:
        """Return the sentences of a statement."""
        hides_number = neighboring_relation is NeighboringRelation.ADD_OR_REMOVE_ONE
        if is_correlated:
            back = "once and come back in that order in every epoch" if self.order == "fixed" else "anew in every epoch"
            assumed = "Nothing is assumed about the randomness of that order"
            if hides_number:
                # Removing a row moves those behind it; a random order of all places makes up for that.
                assumed = f"The order is a secret random one of {self.num_examples} places, empty ones among them"
            return (
                f"Participation: every {unit} takes part {describe_in_run(self.limits(), self.num_steps)}, which the "
                f"batches of this plan keep: the rows are shuffled {back}, {self.num_epochs} of "
                f"{self.steps_per_epoch} steps. {assumed}, and the whole run is one Gaussian release (the statement is "
                "for all its steps; stopping earlier does not make it smaller)."
            )
        sizes = sorted({self.num_examples // self.steps_per_epoch, self.capacity})
        rows = " or ".join(str(size) for size in sizes)
        null = f", null {unit}s among them," if hides_number else ""
        anew = "in each epoch anew" if self.order == "fresh" else "once for all epochs"
        return (
            f"Sampling: shuffled batches: the {self.num_examples} {unit}s{null} are permuted, {anew}, and "
            f"cut into {self.steps_per_epoch} batches of {rows}, so that every {unit} takes part in exactly one step "
            f"of an epoch; {self._planned()} Its upper bounds are those of the Gaussian mechanism without "
            "amplification by sampling, one release an epoch; no better ones are proved."
        )


def describe_in_run(participation: AbstractParticipation, num_steps: int) -> str:
    """Return the schema in words, with the number of steps of the run.

    >>> describe_in_run(FixedEpochs(20), 1000)
    'once in each of 20 epochs of 50 steps (1000 steps in all), always at the same position'
    >>> describe_in_run(MinSep(4, 100), 1000)
    'in at most 4 steps, at least 100 apart (1000 steps in all)'
    """
    if isinstance(participation, FixedEpochs):
        num_epochs, steps_per_epoch = participation.limits(num_steps)
        return (
            f"once in each of {num_epochs} epochs of {steps_per_epoch} steps ({num_steps} steps in all), always at the "
            "same position"
        )
    return f"{participation.describe()} ({num_steps} steps in all)"


def rows_of_part(key: Array, permutation: Array, part: Array, num_examples: int, num_parts: int) -> Array:
    """Return which rows are in one part of a permutation of the rows, bool[num_examples].

    Args:
      key: the key of the run.
      permutation: the number of the permutation.
      part: from 0 to num_parts - 1.
      num_examples, num_parts: N = q num_parts + r rows make r parts of q + 1 rows and then parts of q.
    """
    # The ranks of this part, from first_rank to end_rank - 1: the longer ones come first.
    short, num_longer = divmod(num_examples, num_parts)
    first_rank = part * short + jnp.minimum(part, num_longer)
    end_rank = first_rank + short + (part < num_longer)

    # The random bits that order the rows.
    permutation_key = fold_in(key, permutation)
    first_word = bits(fold_in(permutation_key, _FIRST_WORD), (num_examples,))

    # This key is checked here, outside of the branch that draws the other words.
    other_words_key = fold_in(permutation_key, _OTHER_WORDS)

    def draw_other_words() -> Array:
        return bits(other_words_key, (_NUM_WORDS - 1, num_examples))

    is_before_end = lowest_rows_of(first_word, draw_other_words, end_rank)
    is_before_first = lowest_rows_of(first_word, draw_other_words, first_rank)
    return is_before_end & ~is_before_first


def permutation_error(num_examples: int, num_permutations: int) -> float:
    """Return the probability that some permutation is not uniform, num_permutations N^2 2^-129, at most 1; upper bound.

    It adds to delta where neighbours may differ in the order of rows, too.
    """
    # The last factor makes up for the rounding of the product.
    bound = float(num_permutations) * float(num_examples) ** 2 * 2.0**-129 * (1 + 1e-15)
    return min(1.0, bound)
