"""Observers of sweeps and trainings, which are told what happens; the base classes do nothing."""

from collections.abc import Mapping, Sequence
from typing import Any, Self

from gdpjax.training import Plan


class Observer:
    """An observer of a sweep; use it as a context."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        pass

    def on_start(self, num_trials: int, on_record: Sequence[Mapping[str, Any]]) -> None:
        """The sweep begins; the rows of trials that were finished earlier are ``on_record``."""

    def on_plans(self, done: int) -> None:
        """Called when ``done`` plans are made, and their noise is calibrated."""

    def on_chunks(self, description: str) -> None:
        """Chunks of another shape are on their way."""

    def on_steps(self, done: int, total: int) -> None:
        """A running chunk has done that many of its steps."""

    def on_chunk(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """A chunk is over and on record."""


class TrainingObserver:
    """An observer of a training; every method is called on the host, between compiled steps."""

    def on_start(self, plan: Plan, step: int) -> None:
        """The loop begins after ``step`` steps already done."""

    def on_step(self, step: int) -> None:
        """``step`` steps are done."""

    def on_lost(self, num_steps: int) -> None:
        """The run continues from elsewhere than where it was interrupted, and that many steps were charged in vain."""

    def on_changed(self, names: tuple[str, ...], finished: bool) -> None:
        """Parts of the run of these names, such as ("program",), changed since it began; it may be ``finished``."""

    def on_epoch(self, record: dict[str, Any]) -> None:
        """An epoch is done and on record."""
