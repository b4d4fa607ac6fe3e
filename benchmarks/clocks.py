"""Wall-clock and processor times, with a limit on each call; and a count of compilations.

Wall-clock is what is reported. Processor time is kept beside it, since it says more on a machine that others use.
"""

import contextlib
import signal
import statistics
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax

_compilations = 0


def _on_event(event: str, duration_secs: float, **kwargs: str | int) -> None:
    global _compilations
    _compilations += event == "/jax/core/compile/backend_compile_duration"


jax.monitoring.register_event_duration_secs_listener(_on_event)


def compilations() -> int:
    """Return how many programs JAX has compiled since this module was imported."""
    return _compilations


class Times(NamedTuple):
    """Seconds by the clock, and of the processor."""

    wall: float
    cpu: float


class Stopwatch:
    """Started when made."""

    def __init__(self) -> None:
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    def read(self) -> Times:
        return Times(time.perf_counter() - self._wall, time.process_time() - self._cpu)


class Outcome(NamedTuple):
    """The time and the end of a call: a value, or an error."""

    times: Times
    value: Any
    error: str | None


@contextlib.contextmanager
def limit(seconds: float) -> Iterator[None]:
    """TimeoutError in the main thread once ``seconds`` are over."""

    def stop(*_: Any) -> None:
        raise TimeoutError(f"more than {seconds:g} s")

    previous = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)


def attempt(call: Callable[[], Any], seconds: float) -> Outcome:
    """Time one call of somebody else's code: any failure of it is a result, to be reported."""
    watch = Stopwatch()
    try:
        with limit(seconds), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            value, error = call(), None
    except Exception as failure:
        value, error = None, f"{type(failure).__name__}: {failure}"[:200]
    return Outcome(watch.read(), value, error)


def time_call(call: Callable[[], Any]) -> Times:
    watch = Stopwatch()
    call()
    return watch.read()


def rates(size: int, times: Sequence[Times]) -> dict[str, float]:
    """Elements per second: median, least and largest over repetitions of a call on ``size`` of them."""
    each = [size / one.wall for one in times]
    per_cpu_second = size / statistics.median(one.cpu for one in times)
    ends = {"min": min(each), "max": max(each)}
    return {"median": statistics.median(each), **ends, "repetitions": len(each), "per_cpu_second": per_cpu_second}
