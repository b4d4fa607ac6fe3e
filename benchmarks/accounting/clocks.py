"""Wall-clock times, taken in turn, with a limit on each call; and a count of compilations."""

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
    """How many programs JAX has compiled since this module was imported."""
    return _compilations


class Outcome(NamedTuple):
    """What a call took and gave: a value, or an error."""

    seconds: float
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
    start = time.perf_counter()
    try:
        with limit(seconds), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            value, error = call(), None
    except Exception as failure:
        value, error = None, f"{type(failure).__name__}: {failure}"[:200]
    return Outcome(time.perf_counter() - start, value, error)


def in_turn(calls: dict[str, Callable[[], Any]], repetitions: int) -> dict[str, list[float]]:
    """Seconds of each call, A B C A B C ...; call each once before, so that nothing is compiled here."""
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(repetitions):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            seconds[name].append(time.perf_counter() - start)
    return seconds


def rates(size: int, seconds: Sequence[float]) -> dict[str, float]:
    """Elements per second: median, least and largest over repetitions of a call on ``size`` of them."""
    each = [size / value for value in seconds]
    return {"median": statistics.median(each), "min": min(each), "max": max(each), "repetitions": len(each)}
