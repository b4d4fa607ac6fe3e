"""Fixed-size batches without replacement, every subset equally likely up to a stated error.

Each row gets a word of 64 random bits and the batch is the batch_size rows with the smallest words. The words are
independent and identically distributed, so *given that the largest word taken differs from the smallest word left*, the
batch is a function of the words that treats all rows alike, and every subset of that size is exactly equally likely.
Otherwise more rows than that are marked, and the batch does not fit. The words are
floor(2^64 U_i) of independent uniform U_i; two that are neighbours in order are equal only if their U are closer than
2^-64, and a spacing of N uniforms is Beta(1, N), so

    P(tie at the boundary) <= 1 - (1 - 2^-64)^N <= N 2^-64,

a bound, too, on the total variation distance to the uniform subset. The tie does not depend on the data, so a run of T
such batches is, with the same probability 1 - eta for either of two neighbours, the run that is accounted for, and

    delta <= eta + (1 - eta) delta_ideal,  eta = T N 2^-64,

as for the overflow of a padded batch; it is added to delta in the same place. (32 bits would give T N 2^-32: 5% for
60,000 examples and 3,516 steps.) Bits are taken as ideal, as everywhere.

The boundary is found by bisection, bit by bit, first of the high and then of the low words: 64 counts, which cost a
fraction of a sort.
"""

import jax.numpy as jnp

from gdpjax._core.arguments import check_count
from gdpjax._core.keys import bits, fold_in
from gdpjax._core.types import Array, NeighboringRelation
from gdpjax.ledger import UniformEvent
from gdpjax.sampling._drawn import DrawnBatches, scheme
from gdpjax.sampling._ranks import order_statistic


@scheme
class WithoutReplacement(DrawnBatches):
    """Batches of exactly ``expected_batch_size`` different rows, any subset with the same probability.

    Args:
      num_examples: N >= 1, public: neighbours differ by replacing one example.
      expected_batch_size: the size of every batch, a whole number from 1 to num_examples.
      num_steps, epochs: as in `DrawnBatches`.

    Attributes:
      sampling_prob: expected_batch_size / num_examples.
      overflow: eta = num_steps num_examples 2^-64, upper bound.

    Raises:
      ValueError: as `DrawnBatches`, and for a size that is no whole number.

    >>> import jax
    >>> batches = WithoutReplacement(60_000, 256, 3516)
    >>> batches.overflow < 1.2e-11, jax.jit(batches.sample)(jax.random.key(0), 0).indices.shape
    (True, (256,))
    """

    relations = UniformEvent.relations

    def _check(self) -> None:
        check_count("expected_batch_size", self.expected_batch_size)

    def _check_length(self) -> None:
        size = int(self.expected_batch_size)
        if self.capacity not in (None, size):
            raise ValueError(f"every batch has {size} rows: leave capacity out, got {self.capacity}")

    def _largest_size(self) -> int:
        return int(self.expected_batch_size)

    @property
    def sampling_prob(self) -> float:
        """Return the share of the rows that is in a batch."""
        return self.expected_batch_size / self.num_examples

    @property
    def _not_uniform(self) -> float:
        # The last factor makes up for the rounding of the product.
        return float(self.num_examples) * float(self.num_steps) * 2.0**-64 * (1 + 1e-15)

    def _included(self, key: Array, step: Array) -> Array:
        high_words, low_words = bits(fold_in(key, step), (2, self.num_examples))

        # The boundary in the high words, and in the low words of the rows that tie there.
        everywhere = jnp.ones(self.num_examples, bool)
        high_boundary, num_below = order_statistic(high_words, everywhere, jnp.int32(self.capacity - 1))
        is_tied = high_words == high_boundary
        low_boundary, _ = order_statistic(low_words, is_tied, self.capacity - 1 - num_below)

        # Of rows that tie at the boundary all are marked, and the batch does not fit.
        return (high_words < high_boundary) | (is_tied & (low_words <= low_boundary))

    def step_event(self, neighboring_relation: NeighboringRelation | None = None) -> UniformEvent:
        """Return a step of the event, with noise multiplier 1."""
        return UniformEvent(1.0, self.sampling_prob, 1, neighboring_relation)

    def describe(self, unit: str, neighboring_relation: NeighboringRelation, *, is_correlated: bool) -> str:
        """Return the sentence of a statement."""
        return (
            f"Sampling: batches of {self.capacity} drawn uniformly without replacement, anew at each of "
            f"{self.num_steps} steps, fixed before training."
        )
