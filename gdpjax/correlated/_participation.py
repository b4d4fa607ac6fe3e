"""Participation schemas: the sets of steps in which one example may take part.

    MinSep(max_participations=8, min_separation=100)      at most 8 steps, each at least 100 after the one before

Each step with the example is one participation. The loader promises to keep to the schema, and the sensitivity of a
strategy is the largest change of the run over all sets of steps in it. A run whose batches leave the schema has no
guarantee.

    for step, (indices, is_padding) in enumerate(Promised(64, 400, MinSep(4, 100)).checked(loader)):
        ...

The sensitivity of a strategy is for one participation schema. A batch that leaves it has to stop the run before it is
used, so the batches go through this check on their way to the training step.
"""

import abc
import dataclasses
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

import numpy as np

from gdpjax._core.arguments import check_count, check_instance
from gdpjax._core.shown import shown


class AbstractParticipation(abc.ABC):
    """A participation schema: the sets of steps in which one example may take part."""

    @abc.abstractmethod
    def limits(self, num_steps: int) -> tuple[int, int]:
        """Return the largest number of participations in ``num_steps`` steps, and the least separation of two of them.

        The number is at most 1 + (num_steps - 1) // separation, the most that fit.
        """

    @abc.abstractmethod
    def describe(self) -> str:
        """Return the schema as a clause that completes "each example takes part ..."."""


@dataclasses.dataclass(frozen=True)
class SingleParticipation(AbstractParticipation):
    """Each example takes part in at most one step of the run, as in a stream or in a single epoch.

    >>> SingleParticipation().describe()
    'in at most one step'
    """

    def limits(self, num_steps: int) -> tuple[int, int]:
        """Return (1, num_steps)."""
        return 1, check_count("num_steps", num_steps)

    def describe(self) -> str:
        """Return the schema in words."""
        return "in at most one step"


@dataclasses.dataclass(frozen=True)
class MinSep(AbstractParticipation):
    """Each example takes part in at most k steps, and any two of them are at least b steps apart.

    Args:
        max_participations: k >= 1.
        min_separation: b >= 1; steps t and t + b may both have the example, t and t + b - 1 may not.

    Raises:
        ValueError: a number that is not whole, or below 1.

    Reference: Choquette-Choo et al., arXiv:2306.08153.

    >>> MinSep(max_participations=4, min_separation=100).limits(250)
    (3, 100)
    """

    max_participations: int
    min_separation: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "max_participations", check_count("max_participations", self.max_participations))
        object.__setattr__(self, "min_separation", check_count("min_separation", self.min_separation))

    def limits(self, num_steps: int) -> tuple[int, int]:
        """Return k, or the most participations that fit if those are fewer, and b."""
        num_steps = check_count("num_steps", num_steps)
        most_that_fit = 1 + (num_steps - 1) // self.min_separation
        return min(self.max_participations, most_that_fit), self.min_separation

    def describe(self) -> str:
        """Return the schema in words."""
        return f"in at most {self.max_participations} steps, at least {self.min_separation} apart"


@dataclasses.dataclass(frozen=True)
class FixedEpochs(AbstractParticipation):
    """Each example takes part once in each of ``num_epochs`` epochs, always at the same position.

    With n steps an epoch has b = n / num_epochs of them, and an example at position r takes part in steps r, r + b,
    r + 2 b, .... It may skip some of them; that never raises the sensitivity.

    Args:
        num_epochs: at least 1.

    Raises:
        ValueError: num_epochs that is not a whole number >= 1; later, a num_steps that it does not divide.

    Reference: Choquette-Choo et al., arXiv:2211.06530 ("(k, b)-participation").

    >>> FixedEpochs(4).limits(100)
    (4, 25)
    """

    num_epochs: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "num_epochs", check_count("num_epochs", self.num_epochs))

    def limits(self, num_steps: int) -> tuple[int, int]:
        """Return num_epochs and the number of steps in an epoch."""
        num_steps = check_count("num_steps", num_steps)
        if num_steps % self.num_epochs:
            raise ValueError(
                f"num_steps must be a multiple of num_epochs={self.num_epochs}, got {num_steps}; pass a whole number "
                "of epochs, or MinSep for a run that stops in the middle of one"
            )
        return self.num_epochs, num_steps // self.num_epochs

    def describe(self) -> str:
        """Return the schema in words."""
        return f"once in each of {self.num_epochs} epochs, always at the same position"


def check_participation(value: object) -> AbstractParticipation:
    """Return ``value`` if it is a participation schema; ValueError with the choices otherwise."""
    hint = "one of SingleParticipation(), MinSep(max_participations, min_separation), FixedEpochs(num_epochs)"
    return check_instance("participation", value, AbstractParticipation, hint)


Batch = TypeVar("Batch")


class ParticipationError(ValueError):
    """A batch has an example that the participation schema does not allow in this step.

    Do not use the batch. What was released before it stands.
    """


def check_batches(batches: Iterable[Batch], participation: AbstractParticipation, num_steps: int) -> Iterator[Batch]:
    """Yield the batches of a run, one a step, as long as they keep to the participation schema.

    Args:
        batches: of the loader, see `gdpjax.sampling.Promised.checked`.
        participation: the schema that the sensitivity is for.
        num_steps: n, the length of the run.

    Raises:
        ParticipationError: before a batch that leaves the schema.
        ValueError: batches that are not whole numbers.
    """
    most, separation = participation.limits(num_steps)
    is_fixed = isinstance(participation, FixedEpochs)
    last_step: dict[int, int] = {}
    num_participations: dict[int, int] = {}
    for step, batch in enumerate(batches):
        if step >= num_steps:
            raise ParticipationError(f"there is a batch after the {num_steps} steps that the sensitivity is for")
        examples = _examples_of(batch, step)
        for example in examples:
            before = last_step.get(example)
            if before is not None:
                distance = step - before
                again = f"step {step} has example {example} again, {distance} steps after step {before}"
                if num_participations[example] >= most:
                    raise ParticipationError(
                        f"{again}; the promise is at most {most} participations of an example in {num_steps} steps"
                    )
                is_early = distance % separation != 0 if is_fixed else distance < separation
                if is_early:
                    promise = f"at least {separation} steps between participations of an example"
                    if is_fixed:
                        promise = f"the same position of each epoch of {separation} steps"
                    raise ParticipationError(
                        f"{again}; the promise is {promise}. Did the loader reshuffle? Fix the order, or promise "
                        f"MinSep({most}, 1), which needs more noise"
                    )
            last_step[example] = step
            num_participations[example] = num_participations.get(example, 0) + 1
        yield batch


def _examples_of(batch: Any, step: int) -> list[int]:
    """Return the numbers of the examples of a batch, without padding; ValueError where one comes twice."""
    is_padded = hasattr(batch, "is_padding") or (isinstance(batch, tuple) and len(batch) == 2)
    indices, is_padding = batch[:2] if is_padded else (batch, np.zeros(np.shape(batch), bool))
    indices, is_padding = np.asarray(indices), np.asarray(is_padding)
    is_whole = indices.dtype.kind in "iu" or not indices.size
    is_mask = is_padding.dtype == bool and is_padding.shape == indices.shape
    if indices.ndim != 1 or not is_whole or not is_mask or indices[is_padding].any() or (indices < 0).any():
        raise ValueError(
            f"the batch of step {step} must be whole numbers >= 0, or (indices, is_padding) with a mask of truth "
            f"values and row 0 in the slots of padding; got {shown(batch)}. Of a pair such as (ids, labels) give the "
            "ids alone"
        )
    examples = indices[~is_padding].tolist()
    if len(set(examples)) < len(examples):
        raise ParticipationError(f"step {step} has an example more than once")
    return examples
