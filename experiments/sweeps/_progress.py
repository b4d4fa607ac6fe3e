"""A live bar for people, one line per chunk for logs. Only public figures."""

from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from experiments.sweeps._results import Row


class ProgressObserver:
    """Shows a sweep on a console; use it as a context."""

    def __init__(self, console: Console) -> None:
        self._console = console
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        more = (TimeRemainingColumn(), TextColumn("{task.fields[note]}"))
        self._progress = Progress(*columns, *more, console=console, disable=not console.is_terminal)
        self._trials = self._progress.add_task("trials", total=None, note="")
        self._steps = self._progress.add_task("steps", total=None, note="")

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._progress.stop()

    def on_start(self, num_trials: int, num_done: int) -> None:
        """Set the length."""
        self._progress.reset(self._trials, total=num_trials, completed=num_done)

    def on_plans(self, done: int) -> None:
        """Plans are being made, and noise calibrated."""
        self._progress.update(self._trials, note=f"{done} plans")

    def on_chunks(self, description: str) -> None:
        """Say what is to run: its program is compiled first."""
        self._progress.update(self._steps, note=f"compiling: {description}")
        if not self._console.is_terminal:
            self._console.print(description, soft_wrap=True)

    def on_steps(self, done: int, total: int) -> None:
        """Advance within a chunk; where several run, whichever was last."""
        self._progress.update(self._steps, completed=done, total=total, note="of a chunk")

    def on_chunk(self, rows: list[Row]) -> None:
        """Advance, and say how the chunk went."""
        accuracies = [row["test_accuracy"] for row in rows if row["error"] is None]
        best = f"best test accuracy {max(accuracies):.3f}" if accuracies else ""
        failed = f"{len(rows) - len(accuracies)} failed" if len(accuracies) < len(rows) else ""
        note = ", ".join(text for text in (best, failed) if text)
        self._progress.update(self._trials, advance=len(rows), note=note)
        if not self._console.is_terminal:
            self._console.print(f"{len(rows)} trials done: {note}")
