"""The promise about participation, kept while batches are used.

    for step, (indices, is_padding) in enumerate(check_batches(loader, MinSep(4, 100), num_steps=400)):
        ...

The sensitivity of a strategy is for the participations that were promised. A batch that breaks the promise has to stop
the run before it is used, so the batches go through this check on their way to the training step.
"""

from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

import numpy as np

from gdpjax._core.arguments import check_count
from gdpjax._core.shown import shown
from gdpjax.correlated._participation import AbstractParticipation, FixedEpochs, check_participation

Batch = TypeVar("Batch")


class ParticipationError(ValueError):
    """A batch has an example that may not take part in this step, by what was promised about participation.

    Do not use the batch. What was released before it stands.
    """


def check_batches(batches: Iterable[Batch], participation: AbstractParticipation, num_steps: int) -> Iterator[Batch]:
    """Yield the batches of a run, one a step, as long as they keep the promise.

    A run that was interrupted goes on with the batches after its last step, but they are checked together with those
    before: give *all* batches of the run, from its first step on, and skip those that were used.

    Args:
        batches: what a loader gives: for each step the numbers of its examples (of its users, if they are the unit),
            or ``(indices, is_padding)`` as the batches of `gdpjax.sampling`. The same number is the same example
            through the whole run.
        participation: the promise that the sensitivity is for.
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
    times: dict[int, int] = {}
    for step, batch in enumerate(batches):
        if step >= num_steps:
            raise ParticipationError(f"there is a batch after the {num_steps} steps that the sensitivity is for")
        examples = _examples_of(batch, step)
        for example in examples:
            before = last_step.get(example)
            if before is not None:
                distance = step - before
                is_early = distance % separation != 0 if is_fixed else distance < separation
                if is_early or times[example] >= most:
                    raise ParticipationError(
                        f"step {step} has example {example}, which takes part in step {before} already: with "
                        f"{times[example]} participations before this one it breaks the promise to take part "
                        f"{participation.describe()} (of {num_steps})"
                    )
            last_step[example] = step
            times[example] = times.get(example, 0) + 1
        yield batch


def _examples_of(batch: Any, step: int) -> list[int]:
    """Return the numbers of the examples of a batch, without padding; ValueError where one comes twice."""
    is_padded = isinstance(batch, tuple) and len(batch) == 2
    indices = np.asarray(batch[0] if is_padded else batch)
    if indices.ndim != 1 or (indices.size and indices.dtype.kind not in "iu"):
        raise ValueError(
            f"expected whole numbers, or (indices, is_padding), as the batch of step {step}; got {shown(batch)}"
        )
    if is_padded:
        indices = indices[~np.asarray(batch[1], bool)]
    examples = [int(index) for index in indices]
    if len(set(examples)) < len(examples):
        raise ParticipationError(f"step {step} has an example more than once")
    return examples
