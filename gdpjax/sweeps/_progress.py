"""Show a sweep: a live bar, or one line per chunk in a log, and a table at the end.

Only public figures are shown.
"""

import collections
from collections.abc import Mapping, Sequence
from typing import Any, Self

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from gdpjax._core.figures import rounded, shown_score
from gdpjax.sweeps._layout import Layout, label
from gdpjax.sweeps._observer import Observer
from gdpjax.sweeps._summary import (
    Row,
    best_by_target,
    best_within,
    compilations,
    configurations,
    count,
    how_many_are_over,
    varied,
)

MOST_ERRORS = 3


class ProgressObserver(Observer):
    """Show a sweep on a console; use it as a context."""

    def __init__(self, console: Console, layout: Layout) -> None:
        self._console = console
        self._layout = layout
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}"),
            console=console,
            disable=not console.is_terminal,
        )
        self._trials = self._progress.add_task("trials", total=None, note="")
        self._steps = self._progress.add_task("steps", total=None, note="")
        self._num_trials = 0
        # Of all trials so far, those of earlier processes included.
        self._rows: list[Row] = []

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._progress.stop()

    def on_start(self, num_trials: int, on_record: Sequence[Row]) -> None:
        """Set the length, and begin with the rows that are on record."""
        self._num_trials = num_trials
        self._rows = list(on_record)
        self._progress.reset(self._trials, total=num_trials, completed=len(on_record))

    def on_plans(self, done: int) -> None:
        """Show how many plans are made, and their noise calibrated."""
        self._progress.update(self._trials, note=f"{done} plans")

    def on_chunks(self, description: str) -> None:
        """Describe what is to run: its program is compiled first."""
        self._progress.update(self._steps, note=f"compiling: {description}")
        if not self._console.is_terminal:
            self._console.print(description, soft_wrap=True)

    def on_steps(self, done: int, total: int) -> None:
        """Advance within a chunk; where several run, within the one that reported last."""
        self._progress.update(self._steps, completed=done, total=total, note="of a chunk")

    def on_chunk(self, rows: Sequence[Row]) -> None:
        """Advance, and describe how the sweep went so far."""
        self._rows.extend(rows)
        num_failed = sum(row["error"] is not None for row in self._rows)
        failed = f"{num_failed} failed" if num_failed else ""
        best = ""
        found = best_within(configurations(self._rows, self._layout), self._layout)
        if found is not None:
            score = mean_and_spread(self._layout, found.mean, found.stdev)
            best = f"best {label(self._layout.score)} so far {score}"

        note = ", ".join(part for part in (failed, best) if part)
        self._progress.update(self._trials, completed=len(self._rows), note=note)
        if not self._console.is_terminal:
            text = f"{len(self._rows)} of {count(self._num_trials, 'trial')} done"
            if failed:
                text += f", {failed}"
            if best:
                text += f": {best}"
            self._console.print(text, soft_wrap=True)


def print_summary(
    console: Console, rows: Sequence[Row], layout: Layout, programs: Sequence[Mapping[str, Any]], num_trials: int
) -> None:
    """Print the best by target, what failed, and how much was compiled."""
    delta = rows[0]["delta"] if rows else None
    table = Table(title=f"Best by target (certified epsilon of ONE training, delta = {delta!r})")
    names = [name for name in varied(rows, layout) if name != "epsilon"]
    headings = ["epsilon <=", "certified", label(layout.score)]
    headings += [layout.label(name) for name in names]
    for heading in headings:
        table.add_column(heading, justify="right")
    for target, best in best_by_target(configurations(rows, layout), layout):
        certified = rounded(best.epsilon_upper, 4, "up")
        score = mean_and_spread(layout, best.mean, best.stdev)
        settings = [f"{best.settings[name]:.5g}" for name in names]
        table.add_row(f"{target!r}", certified, score, *settings)
    console.print(table)

    errors = collections.Counter(row["error"] for row in rows if row["error"] is not None)
    console.print(f"{how_many_are_over(len(rows), num_trials)}, {errors.total()} failed; {compilations(programs)}.")
    for error, times in errors.most_common(MOST_ERRORS):
        console.print(f"[yellow]{count(times, 'trial')} failed:[/] {escape(error)}", soft_wrap=True)
    console.print("Choosing among trials costs privacy too: see the report, and what they were tested on.")


def mean_and_spread(layout: Layout, mean: float, stdev: float | None) -> str:
    """Return a mean score in the unit of its label, with the standard deviation over seeds if there is one."""
    text = f"{shown_score(layout.score, mean):.4g}"
    if stdev is None:
        return text
    return f"{text} \u00b1 {shown_score(layout.score, stdev):.2g}"
