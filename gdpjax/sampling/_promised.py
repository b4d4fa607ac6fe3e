"""Batches of a loader of one's own, which promises how often and how far apart an example takes part."""

import dataclasses
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

from jaxtyping import PRNGKeyArray

from gdpjax._core.arguments import check_count, check_instance
from gdpjax._core.checks import POSITIVE, checked_scalar
from gdpjax._core.types import NeighboringRelation, Whole
from gdpjax.correlated import AbstractParticipation, check_batches
from gdpjax.ledger import StepEvent
from gdpjax.sampling._abstract import AbstractBatches
from gdpjax.sampling._batch import Batch
from gdpjax.sampling._shuffled import describe_in_run

T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class Promised(AbstractBatches):
    """Batches from anywhere, for correlated noise: nothing is assumed of them but their participation.

    The loader must keep the promise; `checked` looks at the batches of a run.

    Args:
      expected_batch_size: public divisor > 0 of the noisy sum.
      num_steps: the most steps that will be taken, a whole number >= 1; what a step beyond releases is NaN.
      participation: the promise, such as ``gdpjax.correlated.MinSep(max_participations=8, min_separation=250)``.

    Raises:
      ValueError: values out of range, no participation.

    >>> from gdpjax.correlated import MinSep
    >>> Promised(64, 2000, MinSep(8, 250)).limits().min_separation
    250
    """

    expected_batch_size: Any
    num_steps: int
    participation: AbstractParticipation
    capacity = None
    sampling_prob = 1.0

    def __post_init__(self) -> None:
        size = checked_scalar("expected_batch_size", self.expected_batch_size, POSITIVE)
        object.__setattr__(self, "expected_batch_size", size)
        object.__setattr__(self, "num_steps", check_count("num_steps", self.num_steps))
        hint = "such as gdpjax.correlated.MinSep(max_participations=8, min_separation=250)"
        check_instance("participation", self.participation, AbstractParticipation, hint)

    def sample(self, key: PRNGKeyArray, step: Whole, *, num_valid: Whole | None = None) -> Batch:
        """Raise ValueError: the batches are the loader's."""
        raise ValueError("batches that are Promised come from a loader of yours")

    def checked(self, loader: Iterable[T]) -> Iterator[T]:
        """Yield the batches of a loader, one a step, as long as they keep the promise.

        A run that was interrupted continues with the batches after its last step, but they are checked together with
        those before: give *all* batches of the run, from its first step on, and skip those that were used.

        Args:
            loader: gives for each step the numbers of its examples (of its users, if they are the unit), or
                ``(indices, is_padding)`` as in the other batches, whose slots of padding hold row 0. The same number is
                the same example through the whole run.

        Raises:
            gdpjax.correlated.ParticipationError: before a batch is given out in which an example takes part too often
                or too early, which has one example twice, or which comes after ``num_steps`` others.
            ValueError: batches that are not whole numbers.

        >>> from gdpjax.correlated import MinSep
        >>> checked = Promised(2, 4, MinSep(2, 2)).checked([[0, 1], [2, 3], [0, 1], [0, 2]])
        >>> [next(checked) for _ in range(3)]  # the next one has example 0 again, one step later
        [[0, 1], [2, 3], [0, 1]]
        """
        return check_batches(loader, self.participation, self.num_steps)

    def limits(self) -> AbstractParticipation:
        """Return the promise."""
        return self.participation

    def step_event(self, neighboring_relation: NeighboringRelation | None = None) -> StepEvent:
        """Raise ValueError: of batches from anywhere only correlated noise is accounted for."""
        raise ValueError(
            "of batches that are Promised only correlated noise is accounted for: give noise=, a strategy of "
            "gdpjax.correlated, or say how the batches are drawn, as gdpjax.sampling.Poisson does"
        )

    def describe(self, unit: str, neighboring_relation: NeighboringRelation, *, is_correlated: bool) -> str:
        """Return the sentence of a statement."""
        return (
            f"Participation: every {unit} takes part {describe_in_run(self.participation, self.num_steps)}, as the "
            "loader of the batches promises."
        )
