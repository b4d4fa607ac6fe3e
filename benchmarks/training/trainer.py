"""What a whole private training is to the race: `Trainer`, which every library's loop becomes."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

NUM_LOSSES = 1000
"""Examples over which the loss is shown."""


class Trainer(NamedTuple):
    """``turn()`` takes the steps and gives the mean loss of some examples, as a function not yet called.

    ``epsilon()`` is what the library itself says of the whole planned run, and how it says it.
    """

    turn: Callable[[], Callable[[], float]]
    epsilon: Callable[[], dict[str, Any]]
    sampling_prob: float


def forever(batches: Callable[[], Iterable[Any]]) -> Iterator[Any]:
    """Yield one run's batches after another's."""
    while True:
        yield from batches()
