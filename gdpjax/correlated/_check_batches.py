"""Check while batches are used that they keep to the participation schema.

    for step, (indices, is_padding) in enumerate(Promised(64, 400, MinSep(4, 100)).checked(loader)):
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

    Args:
        batches: of the loader, see `gdpjax.sampling.Promised.checked`.
        participation: the schema that the sensitivity is for.
        num_steps: n, the length of the run.

    Raises:
        ParticipationError: before a batch that leaves the schema.
        ValueError: wrong arguments, or batches that are not whole numbers.
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
