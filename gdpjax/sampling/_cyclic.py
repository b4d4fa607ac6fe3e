"""Cyclic Poisson sampling: the rows are in b groups, and step t draws a Poisson batch from group t mod b.

The groups are drawn once, as a random permutation of all rows, those that are not real among them, cut into b parts. An
example keeps its group and is drawn at most once in b steps. With at most num_groups bands the columns of C that one
example can touch do not overlap, so for that example the run of n steps is ceil(n / b) independent Poisson steps
(`gdpjax.ledger.CyclicPoissonEvent`): correlated noise and amplification by sampling go together.

**Why the groups are random.** Groups by the number of a row would do where neighbours differ by a null example, which
leaves all others where they are. But whoever removes an example closes the gap: the rows behind it move up by one, and
all of them would change their group. Let the N places have uniformly random groups that nobody knows. Removing row i
moves the places of rows i + 1, i + 2, ..., and the last place becomes empty: a permutation of the places. A uniform
permutation composed with a fixed one is uniform, so the groups of all remaining examples have, together, the same law
as if they had kept their places and place i were the empty one. So the two runs are mixtures, with the same weights, of
pairs of runs in which everybody else keeps the group, and joint convexity of trade-off curves gives the mixture the
bound of the pairs. The permutation is uniform but with probability `permutation_error`.

Reference: Choquette-Choo et al., arXiv:2306.08153, algorithm 2 and theorem 4.
"""

import dataclasses

import jax.numpy as jnp

from gdpjax._core.arguments import check_count
from gdpjax._core.keys import fold_in
from gdpjax._core.shown import shown
from gdpjax._core.types import Array, NeighboringRelation
from gdpjax.correlated import AbstractNoiseStrategy, AbstractParticipation, BandedToeplitz, SingleParticipation
from gdpjax.ledger import CyclicPoissonEvent
from gdpjax.sampling._batch import Batch, padded, where_valid
from gdpjax.sampling._drawn import DrawnBatches, scheme
from gdpjax.sampling._poisson import poisson_sample
from gdpjax.sampling._probability import dyadic_probability
from gdpjax.sampling._shuffled import permutation_error, rows_of_part

_GROUPS = 2**32 - 1
"""A number that keeps the key of the groups apart from those of steps, which are below 2^31."""


@scheme
class CyclicPoisson(DrawnBatches):
    """Poisson batches of one group of the rows after the other, for banded noise that is amplified by sampling.

    A random permutation of the rows, a function of the key, makes groups of ceil(N / num_groups) rows or one less. Each
    row of group ``step`` mod num_groups is drawn independently. Rows that are not real are dealt into the groups too.

    Args:
      num_examples, num_steps, epochs, capacity: as in `DrawnBatches`.
      expected_batch_size: as in `DrawnBatches`, and at most the rows of a group.
      num_groups: b, from 1 to num_examples; at least the bands of the noise.

    Attributes:
      sampling_prob: the `dyadic_probability` of expected_batch_size / ceil(N / num_groups), within a group.
      overflow: the probability that some batch does not fit, or that the permutation is not uniform.

    Raises:
      ValueError: as `DrawnBatches`.

    Reference: Choquette-Choo et al., arXiv:2306.08153, algorithm 2.

    >>> import jax
    >>> batches = CyclicPoisson(100, 25, 8, num_groups=4)
    >>> int(jax.jit(batches.sample)(jax.random.key(0), 5).count)
    25
    """

    _: dataclasses.KW_ONLY
    num_groups: int
    relations = CyclicPoissonEvent.relations
    draws_together = True

    def _check(self) -> None:
        self._set("num_groups", check_count("num_groups", self.num_groups, most=self.num_examples))
        if self.expected_batch_size > self._longest_group:
            raise ValueError(
                f"a batch comes from one group of at most {self._longest_group} rows, got expected_batch_size="
                f"{self.expected_batch_size}"
            )

    @property
    def _longest_group(self) -> int:
        return -(-self.num_examples // self.num_groups)

    @property
    def sampling_prob(self) -> float:
        """Return p, what is sampled with and accounted for."""
        return dyadic_probability(self.expected_batch_size / self._longest_group)

    def _law_of_sizes(self) -> tuple[int, float]:
        return self._longest_group, self.sampling_prob

    @property
    def _not_uniform(self) -> float:
        return permutation_error(self.num_examples, 1)

    def _included(self, key: Array, step: Array) -> Array:
        # The members of the group: one part of a permutation that is drawn once for all.
        group = step % self.num_groups
        return rows_of_part(fold_in(key, _GROUPS), jnp.zeros_like(group), group, self.num_examples, self.num_groups)

    def _batch_of(self, included: Array, key: Array, step: Array, is_valid: Array) -> Batch:
        members = padded(included, self._longest_group)
        sizes = (self._longest_group, self.sampling_prob, self.capacity)
        drawn = poisson_sample(fold_in(key, step), *sizes, num_valid=members.count)
        batch = Batch(members.indices[drawn.indices], drawn.is_padding, drawn.count, self.num_examples)
        return where_valid(batch, is_valid)

    def step_event(self, neighboring_relation: NeighboringRelation | None = None) -> CyclicPoissonEvent:
        """Return a step of the event, with noise multiplier 1."""
        return CyclicPoissonEvent(1.0, self.sampling_prob, 1, self.num_groups, neighboring_relation)

    def correlated_event(
        self,
        strategy: AbstractNoiseStrategy,
        neighboring_relation: NeighboringRelation | None = None,
    ) -> tuple[AbstractParticipation, CyclicPoissonEvent]:
        """Return one participation, and a step with noise multiplier 1; for a strategy of at most num_groups bands."""
        if not isinstance(strategy, BandedToeplitz) or strategy.num_bands > self.num_groups:
            got = f"one of {strategy.num_bands}" if isinstance(strategy, BandedToeplitz) else shown(strategy)
            raise ValueError(
                "cyclic Poisson sampling needs columns that do not overlap num_groups steps apart: give a "
                f"gdpjax.correlated.BandedToeplitz of at most {self.num_groups} bands, got {got}"
            )
        return SingleParticipation(), self.step_event(neighboring_relation)

    def describe(self, unit: str, neighboring_relation: NeighboringRelation, *, is_correlated: bool) -> str:
        """Return the sentence of a statement."""
        return (
            f"Sampling: cyclic Poisson batches: the {unit}s are dealt at random into {self.num_groups} groups, once "
            f"for the run, and every {unit} of group t mod {self.num_groups} joins the batch of step t independently "
            f"with probability {self.sampling_prob:.8g}; {self._planned()}"
        )
