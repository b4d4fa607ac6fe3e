"""Show sweeps and trainings: a live bar for people, lines for logs, and a table at the end; public figures only."""

import collections
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Self

from gdpjax._core.figures import rounded, shown_score
from gdpjax.sweeps._results import (
    Layout,
    Row,
    best_within,
    configurations,
    count,
    label,
    pareto_front,
    succeeded,
    varied,
)
from gdpjax.sweeps.records import NOT_SCORES, UserError, upper
from gdpjax.training import Plan

if TYPE_CHECKING:
    from rich.console import Console

MOST_ERRORS = 3
PRIVATE_SCORES = "Scores are private: they are on held-out training data, without noise."


def as_console(console: "Console | None", quiet: bool = True) -> "Console":
    """Return a console, for None a new one, silent if ``quiet``; UserError without the packages of the extra."""
    try:
        import jinja2  # noqa: F401
        import matplotlib  # noqa: F401
        import pyarrow  # noqa: F401
        from rich.console import Console
    except ImportError as error:
        raise UserError(f"sweeps need the extra sweeps ({error}): in a clone, pip install '.[sweeps]'") from error
    return Console(quiet=quiet) if console is None else console


def say(console: "Console", text: str, style: str | None = None) -> None:
    """Print a line as it is: a folder may be called [lr=0.1], which rich would take for a style."""
    console.print(text, style=style, markup=False, soft_wrap=True)


class _Bars:
    """Bars on a console; use it as a context. Without a terminal there are lines in their place."""

    def __init__(self, console: "Console", *names: str) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        self.console = console
        name, note = TextColumn("{task.description}"), TextColumn("{task.fields[note]}")
        columns = (name, BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), note)
        self._bars = Progress(*columns, console=console, disable=not console.is_terminal)
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
        if not self.console.is_terminal:
            say(self.console, text)

    def warn(self, text: str) -> None:
        """Print a line that nobody should miss."""
        say(self.console, text, "bold yellow")


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
        num_failed = len(self._rows) - len(succeeded(self._rows))
        note = f", {num_failed} failed" if num_failed else ""
        found = best_within(configurations(self._rows, self._layout), self._layout)
        if found is not None:
            note += f": best {label(self._layout.score)} so far {self._layout.spread(found)}"
        self.show("trials", completed=len(self._rows), note=note.lstrip(",: "))
        self.log(f"{len(self._rows)} of {count(self._num_trials, 'trial')} done{note}")


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
        self.warn(
            f"resumed with other data, code, versions or devices: {num_steps} steps are charged although their outcome "
            "is lost, and the noise has a new key"
        )

    def on_changed(self, names: tuple[str, ...], finished: bool) -> None:
        """Parts of the run of these names, such as ("program",), changed since it began; it may be ``finished``."""
        changed = ", ".join(names)
        if finished:
            self.warn(
                f"this run is finished, and was made with other {changed}: its parameters and its epsilon stay, and "
                "its scores are computed anew; to train again choose another --out"
            )
        else:
            self.warn(f"this run continues with other {changed} than before, and with a new key for its noise")

    def on_epoch(self, record: dict[str, Any]) -> None:
        """An epoch is done and on record."""
        scores = []
        for name, value in record.items():
            if name not in NOT_SCORES and not name.startswith(("mu_", "epsilon_")):
                scores.append(f"{label(name)} {shown_score(name, value):.4g}")
        note = f"{', '.join(scores)}, eps <= {upper(record['epsilon_upper'], 2)} certified"
        self.show("training", note=note)
        speed = f"{record['steps_per_second']:.1f} steps/s"
        self.log(f"epoch {record['epoch']:>3}  step {record['step']:>6}  {speed}  {note}")


def print_summary(console: "Console", rows: Sequence[Row], layout: Layout, num_trials: int) -> None:
    """Print the best for each epsilon, and what failed."""
    from rich.table import Table

    table = Table(title=f"Best for each certified epsilon of ONE training, at delta = {rows[0]['delta']!r}")
    names = varied(rows, layout)
    for heading in ("certified", label(layout.score), *map(layout.label, names)):
        table.add_column(heading, justify="right")
    for best in pareto_front(configurations(rows, layout), layout):
        settings = [layout.text(name, best.rows[0][name]) for name in names]
        table.add_row(rounded(best.epsilon_upper, 4, "up"), layout.spread(best), *settings)
    console.print(table)

    errors = collections.Counter(row["error"] for row in rows if row["error"] is not None)
    say(console, f"{len(rows)} of {count(num_trials, 'trial')} finished, {errors.total()} failed.")
    for error, times in errors.most_common(MOST_ERRORS):
        say(console, f"{count(times, 'trial')} failed: {error}", "yellow")
    say(console, "Choosing among trials costs privacy beyond the epsilon of one training: the report has how much.")
    if layout.private:
        say(console, PRIVATE_SCORES)
