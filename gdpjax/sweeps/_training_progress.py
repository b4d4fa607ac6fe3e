"""Show a training: a progress bar for people and one line per epoch for logs, with public figures only."""

from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.table import Column
from rich.text import Text

from gdpjax._core.figures import shown_score
from gdpjax.sweeps._layout import label
from gdpjax.sweeps._observer import TrainingObserver
from gdpjax.sweeps.records import NOT_SCORES
from gdpjax.sweeps.rounding import interval, upper
from gdpjax.training import Plan


class SpeedColumn(ProgressColumn):
    """A column with the steps per second."""

    def render(self, task: Task) -> Text:
        """Return the recent speed, or nothing at first."""
        speed = task.finished_speed or task.speed
        text = f"{speed:.1f} steps/s" if speed else ""
        return Text(text, style="progress.data.speed")


def scores_of(record: dict[str, Any]) -> str:
    """Return the scores on the evaluation data, in words."""
    parts = []
    for name, value in record.items():
        if name not in NOT_SCORES and not name.startswith(("mu_", "epsilon_")):
            parts.append(f"{label(name)} {shown_score(name, value):.4g}")
    return ", ".join(parts)


def describe(record: dict[str, Any]) -> str:
    """Return the scores and the epsilons so far, each with its standing."""
    text = f"{scores_of(record)}  eps <= {upper(record['epsilon_moments_accountant'], 2)} (MA)"
    return f"{text}, certified {interval(record)}"


class TrainingProgress(TrainingObserver):
    """Show a run on a console; use it as a context."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            SpeedColumn(Column(no_wrap=True)),
            TimeRemainingColumn(),
            TextColumn("{task.fields[figures]}"),
            console=console,
            disable=not console.is_terminal,
        )
        self._task = self._progress.add_task("training", total=None, figures="first epoch")

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._progress.stop()

    def on_start(self, plan: Plan, step: int) -> None:
        """Set the length."""
        self._progress.reset(self._task, total=plan.num_steps, completed=step)

    def on_step(self, step: int) -> None:
        """Advance."""
        self._progress.update(self._task, completed=step)

    def on_lost(self, num_steps: int) -> None:
        """Tell how many steps the move cost."""
        self._console.print(
            f"[bold yellow]interrupted, and resumed with other data, code, versions or devices: {num_steps} steps are "
            "charged although their outcome is lost, and the noise has a new key"
        )

    def on_changed(self, names: tuple[str, ...], finished: bool) -> None:
        """Tell what is not as it was when the run was begun."""
        if finished:
            what = (
                f"this run is finished, and was made with other {', '.join(names)}: its parameters and its epsilon "
                "stay, its scores are computed anew; for a training with what is here now choose another --out"
            )
        else:
            what = f"this run goes on with other {', '.join(names)} than before, and with a new key for its noise"
        self._console.print(f"[bold yellow]{what}", soft_wrap=True)

    def on_epoch(self, record: dict[str, Any]) -> None:
        """Show the figures of the epoch."""
        # Beside the bar, on a line of 80 characters.
        brief = f"{scores_of(record)}, eps <= {upper(record['epsilon_upper'], 2)} certified"
        self._progress.update(self._task, figures=brief)
        if not self._console.is_terminal:
            speed = f"{record['steps_per_second']:.1f} steps/s"
            self._console.print(
                f"epoch {record['epoch']:>3}  step {record['step']:>6}  {speed}  {describe(record)}", soft_wrap=True
            )
