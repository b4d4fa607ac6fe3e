"""Independent pieces of work spread over all local devices, results in order."""

import concurrent.futures
import queue
from collections.abc import Callable, Generator, Iterable
from typing import Any, TypeVar

import jax

Piece = TypeVar("Piece")
Result = TypeVar("Result")


def map_over_devices(function: Callable[[Piece], Result], pieces: Iterable[Piece]) -> Generator[Result]:
    """Return function(piece) for every piece, in order; one thread a device takes the next piece when it is free.

    Rows of an accounting grid differ in cost by two orders of magnitude, so that a fixed division would leave devices
    idle. Every device runs the program that one device would run, so the numbers do not depend on how many there are.
    Closing the iterator drops what has not been started.
    """
    devices = jax.local_devices()
    free: queue.SimpleQueue[Any] = queue.SimpleQueue()
    for device in devices:
        free.put(device)

    def work(piece: Piece) -> Result:
        device = free.get()
        try:
            with jax.default_device(device):
                return function(piece)
        finally:
            free.put(device)

    pool = concurrent.futures.ThreadPoolExecutor(len(devices))
    try:
        futures = [pool.submit(work, piece) for piece in pieces]
        for future in futures:
            yield future.result()
    finally:
        pool.shutdown(cancel_futures=True)
