"""Show sweeps and trainings: a live bar for people, lines for logs, and a table at the end; public figures only."""

import collections
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

from gdpjax._core.figures import rounded, shown_score
from gdpjax.sweeps._layout import Layout, label
from gdpjax.sweeps._summary import (
    Configuration,
    Row,
    best_by_target,
    best_within,
    compilations,
    configurations,
    count,
    how_many_finished,
    varied,
)
from gdpjax.sweeps.records import NOT_SCORES
from gdpjax.sweeps.rounding import interval, upper
from gdpjax.training import Plan

if TYPE_CHECKING:
    from rich.console import Console

MOST_ERRORS = 3
PRIVATE_SCORES = "Scores are private: they are on held-out training data, without noise."


class _Bars:
    """Bars on a console; use it as a context. Without a terminal there are lines in their place."""

    def __init__(self, console: "Console", *names: str) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        self.console = console
        self.is_log = not console.is_terminal
        self._bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}"),
            console=console,
            disable=self.is_log,
        )
        self._numbers = {name: self._bars.add_task(name, total=None, note="") for name in names}

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._bars.stop()

    def show(self, name: str, **changes: Any) -> None:
        """Change a bar: completed, total, note."""
        self._bars.update(self._numbers[name], **changes)

    def log(self, text: str) -> None:
        """Print a line where there are no bars."""
        if self.is_log:
            self.console.print(text, soft_wrap=True)


class SweepProgress(_Bars):
    """The bars of a sweep."""

    def __init__(self, console: "Console", layout: Layout) -> None:
        super().__init__(console, "trials", "steps")
        self._layout = layout
        self._num_trials = 0
        # Of all trials so far, those of earlier processes included.
        self._rows: list[Row] = []

    def on_start(self, num_trials: int, on_record: Sequence[Row]) -> None:
        """The sweep begins; the rows of trials that were finished earlier are ``on_record``."""
        self._num_trials = num_trials
        self._rows = list(on_record)
        self.show("trials", total=num_trials, completed=len(on_record))

    def on_plans(self, done: int) -> None:
        """Called when ``done`` plans are made, and their noise is calibrated."""
        self.show("trials", note=f"{done} plans")

    def on_chunks(self, description: str) -> None:
        """Chunks of another shape are on their way: their program is compiled first."""
        self.show("steps", note=f"compiling: {description}")
        self.log(description)

    def on_steps(self, done: int, total: int) -> None:
        """A running chunk, the one that reported last, has done that many of its steps."""
        self.show("steps", completed=done, total=total, note="of a chunk")

    def on_chunk(self, rows: Sequence[Row]) -> None:
        """A chunk is over and on record."""
        self._rows.extend(rows)
        num_failed = sum(row["error"] is not None for row in self._rows)
        failed = f", {num_failed} failed" if num_failed else ""
        found = best_within(configurations(self._rows, self._layout), self._layout)
        best = ""
        if found is not None:
            best = f": best {label(self._layout.score)} so far {mean_and_spread(self._layout, found)}"
        self.show("trials", completed=len(self._rows), note=f"{failed}{best}".lstrip(",: "))
        self.log(f"{len(self._rows)} of {count(self._num_trials, 'trial')} done{failed}{best}")


class TrainingProgress(_Bars):
    """The bar of a training; every method is called on the host, between compiled steps."""

    def __init__(self, console: "Console") -> None:
        super().__init__(console, "training")
        self.show("training", note="first epoch")

    def on_start(self, plan: Plan, step: int) -> None:
        """The loop begins after ``step`` steps already done."""
        self.show("training", total=plan.num_steps, completed=step)

    def on_step(self, step: int) -> None:
        """``step`` steps are done."""
        self.show("training", completed=step)

    def on_lost(self, num_steps: int) -> None:
        """The run continues from elsewhere than where it was interrupted, and that many steps were charged in vain."""
        self.console.print(
            f"[bold yellow]interrupted, and resumed with other data, code, versions or devices: {num_steps} steps are "
            "charged although their outcome is lost, and the noise has a new key",
            soft_wrap=True,
        )

    def on_changed(self, names: tuple[str, ...], finished: bool) -> None:
        """Parts of the run of these names, such as ("program",), changed since it began; it may be ``finished``."""
        changed = ", ".join(names)
        text = f"this run continues with other {changed} than before, and with a new key for its noise"
        if finished:
            text = (
                f"this run is finished, and was made with other {changed}: its parameters and its epsilon stay, its "
                "scores are computed anew; for a training with what is here now choose another --out"
            )
        self.console.print(f"[bold yellow]{text}", soft_wrap=True)

    def on_epoch(self, record: dict[str, Any]) -> None:
        """An epoch is done and on record."""
        scores = []
        for name, value in record.items():
            if name not in NOT_SCORES and not name.startswith(("mu_", "epsilon_")):
                scores.append(f"{label(name)} {shown_score(name, value):.4g}")
        shown = ", ".join(scores)
        self.show("training", note=f"{shown}, eps <= {upper(record['epsilon_upper'], 2)} certified")
        moments = upper(record["epsilon_moments_accountant"], 2)
        self.log(
            f"epoch {record['epoch']:>3}  step {record['step']:>6}  {record['steps_per_second']:.1f} steps/s  {shown}  "
            f"eps <= {moments} (MA), certified {interval(record)}"
        )


def print_summary(
    console: "Console", rows: Sequence[Row], layout: Layout, programs: Sequence[Mapping[str, Any]], num_trials: int
) -> None:
    """Print the best by target, what failed, and how much was compiled."""
    from rich.markup import escape
    from rich.table import Table

    delta = rows[0]["delta"] if rows else None
    table = Table(title=f"Best by target (certified epsilon of ONE training, delta = {delta!r})")
    # The noise of a target is told by the target.
    names = varied(rows, layout)
    if "epsilon" in names:
        names = [name for name in names if name not in ("epsilon", "noise_multiplier")]
    for heading in ("epsilon at most", "certified", label(layout.score), *map(layout.label, names)):
        table.add_column(heading, justify="right")
    for target, best in best_by_target(configurations(rows, layout), layout):
        figures = [rounded(target, 4, "up"), rounded(best.epsilon_upper, 4, "up"), mean_and_spread(layout, best)]
        table.add_row(*figures, *(layout.text(name, best.settings[name]) for name in names))
    console.print(table)

    errors = collections.Counter(row["error"] for row in rows if row["error"] is not None)
    console.print(f"{how_many_finished(len(rows), num_trials)}, {errors.total()} failed; {compilations(programs)}.")
    for error, times in errors.most_common(MOST_ERRORS):
        console.print(f"[yellow]{count(times, 'trial')} failed:[/] {escape(error)}", soft_wrap=True)
    console.print("Choosing among trials costs privacy beyond the epsilon of one training: the report has how much.")
    if layout.private:
        console.print(PRIVATE_SCORES)


def mean_and_spread(layout: Layout, configuration: Configuration) -> str:
    """Return a mean score in the unit of its label, with the standard deviation over seeds if there is one."""
    text = f"{shown_score(layout.score, configuration.mean):.4g}"
    if configuration.stdev is None:
        return text
    return f"{text} \u00b1 {shown_score(layout.score, configuration.stdev):.2g}"
