"""Random allocation: in each epoch of t steps an example takes part in exactly k, one step of each of k blocks.

The t steps are cut into k blocks of ceil(t / k) (the first ones) and floor(t / k) steps, and every example has one step
of each, all of them equally likely, independently of other examples. With bins "fresh" it is drawn anew in each epoch,
with "fixed" (balls in bins) once for all. The place of row i in a block is 128 random bits, a function of (key, number
of the block, i), modulo the length m of the block: no step depends on another one's draw, so a run can be resumed
anywhere. The first places are likelier than the others by at most m 2^-128 of 1 / m, which `overflow` adds up;
it is added to delta in the place of an overflow. (The ratio of probabilities is within that of 1 on either side, so
that lower bounds move by no more.)

A batch has a random size, Bin(N, 1 / m), and is padded to a static capacity as in `_poisson`: the same probability of
overflow, and the same batch of padding where it does not fit.
"""

import dataclasses

import jax.numpy as jnp
import numpy as np

from gdpjax._core.arguments import check_choice, check_count
from gdpjax._core.keys import bits, fold_in
from gdpjax._core.types import Array, NeighboringRelation
from gdpjax.ledger import AllocationEvent
from gdpjax.sampling._drawn import BatchesInEpochs, scheme

_LONGEST_BLOCK = 2**16
_NUM_WORDS = 4


@scheme
class RandomAllocation(BatchesInEpochs):
    """Batches in which every example takes part in exactly ``num_selected`` steps of each epoch, at random.

    Args:
      num_examples, expected_batch_size, num_steps, epochs, capacity: as in `DrawnBatches`; whole epochs, each of
        round(num_examples num_selected / expected_batch_size) steps.
      num_selected: k, a whole number >= 1; a block of an epoch has at most 65536 steps.
      bins: "fresh" if the steps of an example are drawn anew in each epoch, "fixed" if once for all (balls in bins).

    Attributes:
      steps_per_epoch: t.
      sampling_prob: k / t.
      overflow: num_steps P(Bin(N, 1 / m) >= capacity) with m = floor(t / k), the shortest block, plus
        num_steps 2^-128 for draws that are not uniform.

    Raises:
      ValueError: as `DrawnBatches`; steps that are no whole epochs, a block that is too long.

    Reference: arXiv:2502.08202 (random allocation), arXiv:2410.06266 (balls in bins).

    >>> import jax
    >>> batches = RandomAllocation(100, 25, epochs=1, capacity=100)
    >>> draw = jax.jit(lambda step: batches.sample(jax.random.key(0), step))
    >>> sum(int(draw(step).count) for step in range(4)), batches.num_steps
    (100, 4)
    """

    _: dataclasses.KW_ONLY
    num_selected: int = 1
    bins: str = "fresh"
    relations = AllocationEvent.relations

    def _check(self) -> None:
        self._set("num_selected", check_count("num_selected", self.num_selected))
        check_choice("bins", self.bins, ("fresh", "fixed"))
        longest_block = -(-self.steps_per_epoch // self.num_selected)
        if longest_block > _LONGEST_BLOCK:
            raise ValueError(
                f"an epoch has at most {_LONGEST_BLOCK} steps times num_selected={self.num_selected}, and these "
                f"batches make {self.steps_per_epoch}: take larger batches"
            )

    @property
    def steps_per_epoch(self) -> int:
        """Return in how many steps each example takes part ``num_selected`` times."""
        return max(round(self.num_examples * self.num_selected / self.expected_batch_size), self.num_selected)

    @property
    def sampling_prob(self) -> float:
        """Return the share of the steps that an example takes part in."""
        return self.num_selected / self.steps_per_epoch

    def _law_of_sizes(self) -> tuple[int, float]:
        # An example is the most likely to be in a step of the shortest block; rounded up.
        shortest_block = self.steps_per_epoch // self.num_selected
        return self.num_examples, min(float(np.nextafter(1 / shortest_block, 2.0)), 1.0)

    @property
    def _not_uniform(self) -> float:
        return self.num_steps * 2.0**-128 * (1 + 1e-15)

    def _included(self, key: Array, step: Array) -> Array:
        epoch = step // self.steps_per_epoch
        step_of_epoch = step % self.steps_per_epoch

        # An epoch begins with its longer blocks: in which block is the step, where in it, and how long is that?
        short, num_longer = divmod(self.steps_per_epoch, self.num_selected)
        long = short + 1
        first_of_short = num_longer * long
        is_in_long = step_of_epoch < first_of_short
        step_of_short = step_of_epoch - first_of_short
        block = jnp.where(is_in_long, step_of_epoch // long, num_longer + step_of_short // short)
        place = jnp.where(is_in_long, step_of_epoch % long, step_of_short % short)
        length = jnp.where(is_in_long, long, short)

        # The rows whose place in this block is the one of the step.
        block_of_run = block if self.bins == "fixed" else epoch * self.num_selected + block
        words = bits(fold_in(key, block_of_run), (_NUM_WORDS, self.num_examples))
        place_of_row = _modulo(words, length.astype(jnp.uint32))
        return place_of_row == place.astype(jnp.uint32)

    def step_event(self, neighboring_relation: NeighboringRelation | None = None) -> AllocationEvent:
        """Return a step of the event, with noise multiplier 1."""
        return AllocationEvent(
            1.0,
            self.steps_per_epoch,
            num_selected=self.num_selected,
            bins=self.bins,
            neighboring_relation=neighboring_relation,
        )

    def describe(self, unit: str, neighboring_relation: NeighboringRelation, *, is_correlated: bool) -> str:
        """Return the sentence of a statement."""
        selected = "one step"
        if self.num_selected > 1:
            selected = f"{self.num_selected} steps, one in each of as many blocks,"
        drawn = "in each epoch anew" if self.bins == "fresh" else "once for all epochs"
        return (
            f"Sampling: random allocation: every {unit} takes part in exactly {selected} of the "
            f"{self.steps_per_epoch} steps of an epoch, drawn uniformly and independently of other {unit}s, {drawn}; "
            f"{self._planned()}"
        )


def _modulo(words: Array, length: Array) -> Array:
    """Return numbers modulo ``length`` <= 2^16, in 32 bits; they are given by their words [words, rows], highest first.

    By long division in base 2^16: a remainder and the next 16 bits together fit 32 bits.
    """
    remainder = jnp.zeros(words.shape[1:], jnp.uint32)
    for word in words:
        high_half = word >> 16
        low_half = word & jnp.uint32(0xFFFF)
        remainder = ((remainder << 16) | high_half) % length
        remainder = ((remainder << 16) | low_half) % length
    return remainder
