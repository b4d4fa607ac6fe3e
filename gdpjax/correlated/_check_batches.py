"""Check while batches are used that they keep to the participation schema.

    for step, (indices, is_padding) in enumerate(check_batches(loader, MinSep(4, 100), num_steps=400)):
        ...

The sensitivity of a strategy is for one participation schema. A batch that leaves it has to stop the run before it is
used, so the batches go through this check on their way to the training step.
"""

from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

import numpy as np

from gdpjax._core.arguments import check_count
from gdpjax._core.shown import shown
from gdpjax.correlated._participation import (
    AbstractParticipation,
    FixedEpochs,
    check_participation,
)

Batch = TypeVar("Batch")


class ParticipationError(ValueError):
    """A batch has an example that the participation schema does not allow in this step.

    Do not use the batch. What was released before it stands.
    """


def check_batches(batches: Iterable[Batch], participation: AbstractParticipation, num_steps: int) -> Iterator[Batch]:
    """Yield the batches of a run, one a step, as long as they keep to the participation schema.

    A run that was interrupted goes on with the batches after its last step, but they are checked together with those
    before: give *all* batches of the run, from its first step on, and skip those that were used.

    Args:
        batches: what a loader gives: for each step the numbers of its examples (of its users, if they are the unit),
            or ``(indices, is_padding)`` as in the batches of `gdpjax.sampling`, whose slots of padding hold row 0. The
            same number is the same example through the whole run.
        participation: the schema that the sensitivity is for.
        num_steps: n, as in `gdpjax.privatize`.

    Yields:
        The batches, as they are.

    Raises:
        ParticipationError: before a batch is given out in which an example takes part too often or too early, which
            has one example twice, or which comes after ``num_steps`` others.
        ValueError: wrong arguments, or batches that are not whole numbers.

    >>> from gdpjax.correlated import MinSep
    >>> checked = check_batches([[0, 1], [2, 3], [0, 1], [0, 2]], MinSep(2, 2), num_steps=4)
    >>> [next(checked) for _ in range(3)]  # the next one has example 0 again, one step later
    [[0, 1], [2, 3], [0, 1]]
    """
    check_participation(participation)
    num_steps = check_count("num_steps", num_steps)
    return _checked(batches, participation, num_steps)


def _checked(batches: Iterable[Batch], participation: AbstractParticipation, num_steps: int) -> Iterator[Batch]:
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
    if indices.ndim != 1 or not is_whole or not is_mask or indices[is_padding].any():
        raise ValueError(
            f"the batch of step {step} must be whole numbers, or (indices, is_padding) with a mask of truth values and "
            f"row 0 in the slots of padding; got {shown(batch)}. Of a pair such as (ids, labels) give the ids alone"
        )
    examples = indices[~is_padding].tolist()
    if len(set(examples)) < len(examples):
        raise ParticipationError(f"step {step} has an example more than once")
    return examples
