"""What the schemes of the package share: they draw batches from ``num_examples`` rows.

A compiled step needs a static batch size. A batch of more than ``capacity`` examples cannot be run as sampled, whatever
is done about it (truncated, redrawn, refused), and that event is itself observable; with probability at most
tau = T P(Bin(N, p) >= capacity) over T steps it must be paid for: delta <= tau + (1 - tau) delta_ideal. The comparison
is >= so that the one example by which neighbours differ always fits beside the others. `DrawnBatches` chooses the
smallest capacity, a multiple of 8, with which tau is at most 1e-12.
"""

import abc
import dataclasses
import typing
from typing import Any, Self, TypeVar

from jaxtyping import PRNGKeyArray

from gdpjax._core.arguments import check_count, check_expected_batch_size, keyword_checked
from gdpjax._core.keys import refuse_key_of_a_loop
from gdpjax._core.shown import shown
from gdpjax._core.types import Array, Whole
from gdpjax.sampling._abstract import AbstractBatches
from gdpjax.sampling._batch import Batch, padded, real_rows, whole_number
from gdpjax.sampling._probability import overflow_probability, padded_capacity, steps_of_epochs

T = TypeVar("T")


@typing.dataclass_transform(frozen_default=True)
def scheme(cls: type[T]) -> type[T]:
    """Make a class a frozen dataclass, whose wrong keywords are a ValueError with a guess."""
    made = dataclasses.dataclass(frozen=True)(cls)
    made.__init__ = keyword_checked()(made.__init__)
    return made


@dataclasses.dataclass(frozen=True)
class DrawnBatches(AbstractBatches):
    """The batches of a scheme of the package, which draws them from ``num_examples`` rows.

    Args:
      num_examples: N >= 1; the public maximum where the true number is private.
      expected_batch_size: public number >= 1, at most num_examples: the divisor of the noisy sum, as it is given.
      num_steps: length of the run, a whole number >= 1; or
      epochs: how often the run passes over the data, a number > 0: halves of a step are rounded up. Schemes
        of whole epochs take whole ones.
      capacity: slots of a batch, a whole number >= 1; by default the smallest multiple of 8 with which some batch of
        the run does not fit with probability at most 1e-12.

    Raises:
      ValueError: values out of range, traced ones, both or neither of num_steps and epochs, a batch above num_examples,
        a capacity whose overflow may be 1.
    """

    num_examples: int
    expected_batch_size: float
    num_steps: int = None  # type: ignore[assignment]
    _: dataclasses.KW_ONLY
    epochs: dataclasses.InitVar[float | None] = None
    capacity: int = None  # type: ignore[assignment]

    def __post_init__(self, epochs: float | None) -> None:
        self._set("num_examples", check_count("num_examples", self.num_examples))
        size = check_expected_batch_size(self.expected_batch_size, self.num_examples)
        self._set("expected_batch_size", size)
        self._check()

        # The length of the run.
        if (self.num_steps is None) == (epochs is None):
            raise ValueError(
                f"give exactly one of num_steps and epochs, got num_steps={shown(self.num_steps)}, "
                f"epochs={shown(epochs)}"
            )
        num_steps = check_count("num_steps", self.num_steps) if epochs is None else self._steps_of(epochs)
        self._set("num_steps", num_steps)
        self._check_length()

        # The size of a batch.
        capacity = self._largest_size() if self.capacity is None else self.capacity
        self._set("capacity", check_count("capacity", capacity))
        if self.overflow >= 1:
            raise ValueError(
                f"capacity={self.capacity} is too small for batches of {size} expected rows: one of {num_steps} may be "
                "larger with probability 1, and no epsilon would hold. Leave capacity out, and it is chosen"
            )

    def _set(self, name: str, value: Any) -> None:
        """Set a field of a value that is being made; the class is frozen."""
        object.__setattr__(self, name, value)

    def _check(self) -> None:
        """Check the fields of the subclass, before the number of steps is known."""

    def _check_length(self) -> None:
        """Check the number of steps."""

    def _steps_of(self, epochs: float) -> int:
        """Return the number of steps of so many epochs."""
        return steps_of_epochs(epochs, self.num_examples, self.expected_batch_size)

    def replace(self, **changes: Any) -> Self:
        """Return the same batches but for ``changes``, ``epochs`` among them; a capacity that was chosen is so anew."""
        unless_given: dict[str, Any] = {}
        if self.capacity == self._largest_size():
            unless_given["capacity"] = None
        if "epochs" in changes:
            unless_given["num_steps"] = None
        return dataclasses.replace(self, **unless_given | changes)

    def _law_of_sizes(self) -> tuple[int, float] | None:
        """Return n and p where the number of rows of a batch is at most Bin(n, p); None where every batch fits."""
        return None

    def _largest_size(self) -> int | None:
        """Return the capacity of a scheme that was given none; None where it has to be given."""
        law = self._law_of_sizes()
        assert law is not None
        return padded_capacity(*law, self.num_steps)

    @property
    def _not_uniform(self) -> float:
        """Return the probability that some draw of the run does not treat all rows alike."""
        return 0.0

    @property
    def overflow(self) -> float:
        """Return the probability that a batch of the run does not fit, or that a draw is not uniform; upper bound."""
        law = self._law_of_sizes()
        too_large = 0.0 if law is None else overflow_probability(*law, self.num_steps, self.capacity)
        return min(1.0, too_large + self._not_uniform)

    @property
    def overflow_per_step(self) -> float:
        """Return the share of one step in ``overflow``, rounded up."""
        return self.overflow / self.num_steps * (1 + 1e-15)

    def sample(self, key: PRNGKeyArray, step: Whole, *, num_valid: Whole | None = None) -> Batch:
        """Draw the batch of one step on the device, as `AbstractBatches.sample` says."""
        refuse_key_of_a_loop(key, step)
        step, is_valid_step = whole_number("step", step)
        included, is_valid_count = real_rows(self._included(key, step), num_valid)
        return self._batch_of(included, key, step, is_valid_step & is_valid_count)

    @abc.abstractmethod
    def _included(self, key: Array, step: Array) -> Array:
        """Return which rows are drawn in a step, bool[num_examples]."""

    def _batch_of(self, included: Array, key: Array, step: Array, is_valid: Array) -> Batch:
        """Return the batch of the real rows that are drawn; one that never fits where ``is_valid`` is false."""
        return padded(included, self.capacity, is_valid)

    def _planned(self) -> str:
        """Return the words on the number of steps with which the sentence of a statement ends."""
        return (
            f"{self.num_steps} steps, fixed before training (the statement holds for this maximum, however many were "
            "run)."
        )


@dataclasses.dataclass(frozen=True)
class BatchesInEpochs(DrawnBatches):
    """The batches of a scheme whose runs are whole epochs of ``steps_per_epoch`` steps."""

    draws_together = True

    @property
    @abc.abstractmethod
    def steps_per_epoch(self) -> int:
        """Return the number of steps of an epoch."""

    @property
    def num_epochs(self) -> int:
        """Return the number of epochs."""
        return self.num_steps // self.steps_per_epoch

    def _steps_of(self, epochs: float) -> int:
        return check_count("epochs", epochs) * self.steps_per_epoch

    def _check_length(self) -> None:
        if self.num_steps % self.steps_per_epoch:
            raise ValueError(
                f"{type(self).__name__} takes whole epochs, of {self.steps_per_epoch} steps each with this batch size, "
                f"got {self.num_steps} steps: give a multiple of that, or epochs as a whole number"
            )

    def _planned(self) -> str:
        return (
            f"{self.num_steps} steps in {self.num_epochs} epochs, fixed before training (the statement holds for this "
            "maximum, however many were run)."
        )
