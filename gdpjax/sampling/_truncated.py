"""Truncated Poisson batches: of more drawn examples than fit, a uniformly random part is kept.

Each example is drawn independently with probability p, by the same bits as in `_poisson`. Where more than ``capacity``
were drawn, every drawn row gets a word of 128 random bits, from another key, and the rows with the smallest words are
kept. As in `_without_replacement` every subset of the drawn rows is equally likely unless two words at the boundary are
equal, which has probability at most N 2^-128 a step. The accountant pays for that (`gdpjax.accounting._truncated`), so
that nothing has to be added to the event by hand.

Nothing is announced and no batch is refused: what is accounted for is that one example can push out another.
"""

import jax
import jax.numpy as jnp

from gdpjax._core.keys import bits, coins, fold_in
from gdpjax._core.types import Array, NeighboringRelation
from gdpjax.ledger import TruncatedPoissonEvent
from gdpjax.sampling._batch import Batch, padded
from gdpjax.sampling._drawn import DrawnBatches, scheme
from gdpjax.sampling._probability import dyadic_probability, overflow_probability
from gdpjax.sampling._ranks import lowest_rows

_NUM_WORDS = 4
_SUBSETS = 0xFFFF_FF54
"""A number that keeps the key of the subsets apart from others: larger than any number of rows or steps."""


@scheme
class TruncatedPoisson(DrawnBatches):
    """Poisson batches that keep a random ``capacity`` of their examples where they have more.

    Args:
      num_examples, expected_batch_size, num_steps, epochs: as in `DrawnBatches`.
      capacity: the most rows that a batch keeps, a whole number >= 1; it has no default.

    Attributes:
      sampling_prob: the `dyadic_probability` of expected_batch_size / num_examples.

    Raises:
      ValueError: as `DrawnBatches`, and without a capacity.

    Reference: arXiv:2508.15089.

    >>> batches = TruncatedPoisson(1000, 100, 50, capacity=80)
    >>> sample = jax.jit(batches.sample)(jax.random.key(0), 0)
    >>> int((~sample.is_padding).sum()), int(sample.count), batches.overflow  # the count is of the rows that are kept
    (80, 80, 0.0)
    """

    relations = TruncatedPoissonEvent.relations

    def _largest_size(self) -> None:
        return None

    @property
    def sampling_prob(self) -> float:
        """Return p, what is drawn with and accounted for."""
        return dyadic_probability(self.expected_batch_size / self.num_examples)

    @property
    def displacing_prob(self) -> float:
        """Return the probability that a batch is full, so that one more example takes the place of another."""
        return overflow_probability(self.num_examples, self.sampling_prob, 1, self.capacity)

    def _included(self, key: Array, step: Array) -> Array:
        return coins(fold_in(key, step), (self.num_examples,), self.sampling_prob)

    def _batch_of(self, included: Array, key: Array, step: Array, is_valid: Array) -> Batch:
        # Keys are checked outside of the branches, where a loop's constant key still shows as one.
        subset_key = fold_in(fold_in(key, step), _SUBSETS)

        def keep_random_subset() -> Array:
            words = bits(subset_key, (_NUM_WORDS, self.num_examples))
            return lowest_rows(words, included, jnp.int32(self.capacity))

        def keep_all() -> Array:
            return included

        is_full = included.sum(dtype=jnp.int32) > self.capacity
        return padded(jax.lax.cond(is_full, keep_random_subset, keep_all), self.capacity, is_valid)

    def step_event(self, neighboring_relation: NeighboringRelation | None = None) -> TruncatedPoissonEvent:
        """Return a step of the event, with noise multiplier 1."""
        sizes = (self.num_examples, self.capacity)
        return TruncatedPoissonEvent(1.0, self.sampling_prob, 1, *sizes, neighboring_relation)

    def describe(self, unit: str, neighboring_relation: NeighboringRelation, *, is_correlated: bool) -> str:
        """Return the sentence of a statement."""
        return (
            f"Sampling: truncated Poisson batches: every {unit} is drawn for each batch independently with "
            f"probability {self.sampling_prob:.8g}, and of more than {self.capacity} drawn {unit}s a uniformly random "
            f"{self.capacity} are kept; {self._planned()}"
        )
