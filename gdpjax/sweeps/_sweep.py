"""Run a sweep in a folder, resume it, report on it."""

import contextlib
import dataclasses
import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gdpjax._core.arguments import check_choice, check_count, check_number
from gdpjax._core.checks import POSITIVE
from gdpjax._core.figures import rounded
from gdpjax._core.keys import fresh_key
from gdpjax.sweeps import _folder as folders
from gdpjax.sweeps import _run
from gdpjax.sweeps._blueprint import Blueprint, check_task, digest_of_programs
from gdpjax.sweeps._errors import RunInterrupted, UserError
from gdpjax.sweeps._folder import Row
from gdpjax.sweeps._imports import ImportedTask
from gdpjax.sweeps._keys import SEED_NOTICE
from gdpjax.sweeps._layout import COSTS, Layout, layout_of
from gdpjax.sweeps._plans import plan_of
from gdpjax.sweeps._progress import PRIVATE_SCORES, SweepProgress, mean_and_spread, print_summary
from gdpjax.sweeps._spec import SECTION, GivenTask, Spec, read_spec, spec_of_mapping
from gdpjax.sweeps._summary import Configuration, best_within, configurations, count
from gdpjax.sweeps._task import Examples, Task, load_examples
from gdpjax.sweeps._trials import Trial, list_trials, plan_trials

if TYPE_CHECKING:
    from rich.console import Console

BackendFor = Callable[[Task, Examples, SweepProgress], "_run.Backend"]


@dataclasses.dataclass(frozen=True)
class SweepResult:
    """A sweep that is over.

    Attributes:
      folder: where it is kept.
      rows: one dictionary a trial, in the order of the trials: hyperparameters, scores, the bracket of its own epsilon,
        and ``error``, which is None where the training succeeded.
      report: the HTML page.
    """

    folder: Path
    rows: list[Row]
    report: Path
    layout: Layout

    @property
    def any_failed(self) -> bool:
        """Return whether a trial failed; its row says why."""
        return any(row["error"] is not None for row in self.rows)

    def best(self, epsilon: float | None = None) -> Row:
        """Return the configuration with the best mean score over its seeds, within a certified ``epsilon`` if given.

        Its dictionary has the hyperparameters and the costs of one training, the mean of each score under its name,
        the standard deviation of the score that decides as ``<score>_stdev`` (None for one seed), and the numbers of
        its trials as ``trial``. It is the one that the report names. Choosing it costs privacy beyond its own epsilon,
        on public evaluation data, too, since every model that is scored was trained on private data: see the report.
        """
        found = self._best(epsilon)
        trials = [row for row in self.rows if row["trial"] in found.trials]
        best: Row = {name: trials[0][name] for name in (*self.layout.hyperparameters, *COSTS)}
        best |= {name: statistics.fmean(row[name] for row in trials) for name in self.layout.scores}
        return best | {f"{self.layout.score}_stdev": found.stdev, "trial": found.trials}

    def best_in_words(self, epsilon: float | None = None) -> str:
        """Return one sentence about `best`, which ``gdpjax sweep-report --epsilon`` prints."""
        found = self._best(epsilon)
        within = "" if epsilon is None else f" within a certified epsilon of {epsilon:g}"
        score = f"{self.layout.label(self.layout.score)} {mean_and_spread(self.layout, found)}"
        given = {name: value for name, value in found.settings.items() if value is not None and name != "epsilon"}
        settings = [f"{self.layout.label(name)} {self.layout.text(name, value)}" for name, value in given.items()]
        upper = rounded(found.epsilon_upper, 4, "up")
        sentence = f"The best{within}: {score}, at epsilon {upper} for ONE training, with {', '.join(settings)}."
        return f"{sentence} {PRIVATE_SCORES}" if self.layout.private else sentence

    def _best(self, epsilon: float | None) -> Configuration:
        budget = math.inf if epsilon is None else check_number("epsilon", epsilon, POSITIVE)
        found = best_within(configurations(self.rows, self.layout), self.layout, budget)
        if found is None:
            raise UserError("no trial succeeded" + ("" if epsilon is None else f" within epsilon {epsilon:g}"))
        return found


def run_sweep(
    task: Task | None,
    spec: Mapping[str, Any] | str | Path | Spec,
    out: str | Path,
    *,
    resume: bool = False,
    backend: str = "local",
    width: int = 32,
    memory_gb: float = 4.0,
    ray_address: str | None = None,
    console: "Console | None" = None,
) -> SweepResult:
    """Train every configuration of a spec, those of one shape in one compiled program, and report.

    Args:
      task: what is trained. None where the spec is a file that says it (``data``, ``model`` and ``optimizer``).
      spec: a dictionary, or the path of a TOML file, with what is searched and how.
      out: folder of the sweep.
      resume: continue the sweep in ``out``: no trial on record is run again, and one that was cut short is the same run
        with the same noise.
      backend: "local", or "ray" for a cluster.
      width: how many trials are side by side at most; a crash loses those.
      memory_gb: what the programs that run at a time may need, by the compiler's account; with Ray, each of them.
      ray_address: of the cluster's head; by default the cluster that this machine belongs to.
      console: a `rich.console.Console` for progress and the summary; by default nothing is printed.

    Returns:
      A `SweepResult`. Every epsilon in it is that of ONE training whose hyperparameters were fixed beforehand.

    Raises:
      UserError: the spec, the data, the model or the folder is not as it should be; nothing was run then.
      RunInterrupted: by Ctrl-C; what was finished is on record, and the message says whether anything was begun.
    """
    console = as_console(console)
    folder = Path(out)
    backend_for = backend_of(backend, width, memory_gb, ray_address, console)
    with interruptible(folder, resume):
        sweep_in(folder, as_spec(task, spec), resume, backend_for, console)
        result = _reported(folder, folders.finish)
    _print(console, result)
    if all(row["error"] for row in result.rows):
        errors = {row["error"] for row in result.rows}
        raise UserError(f"every trial failed, the first with: {min(errors)}; {result.report} has all of them")
    return result


@contextlib.contextmanager
def interruptible(folder: Path, resume: bool) -> Iterator[None]:
    """Turn Ctrl-C into a RunInterrupted that says whether the folder holds anything of this sweep."""
    holds_another = not resume and folders.has_sweep(folder)
    try:
        yield
    except KeyboardInterrupt:
        message = f"interrupted: finished trials are on record in {folder}; --resume (resume=True) continues"
        if holds_another or not folders.has_sweep(folder):
            message = f"interrupted before the first trial: nothing was begun in {folder}"
        raise RunInterrupted(message) from None


def as_spec(task: Task | None, spec: Mapping[str, Any] | str | Path | Spec) -> Spec:
    """Return a checked spec from what a caller may give."""
    if isinstance(spec, Spec):
        return spec
    if isinstance(spec, str | Path):
        return read_spec(Path(spec), ImportedTask() if task is None else GivenTask(task))
    if not isinstance(spec, Mapping) or not isinstance(task, Task):
        raise UserError("give a Task with a dictionary or a TOML file, or None with a TOML file that names the task")
    return spec_of_mapping(spec, task)


def sweep_in(folder: Path, spec: Spec, resume: bool, backend_for: BackendFor, console: "Console") -> None:
    """Run every trial that is not yet on record in ``folder``; refusals come before anything runs."""
    trials = list_trials(spec)
    if resume:
        folders.refuse_others(folder, spec)
    else:
        folders.refuse_used(folder)
    examples = load_examples(spec.task, spec.content.hold_out)
    scores, blueprints = check_programs(spec, trials, examples)
    digest = digest_of_programs(blueprints)
    layout = layout_of(spec, trials, scores)
    root = folders.resume(folder, spec, examples, digest) if resume else fresh_key()
    if isinstance(spec.seeds, tuple):
        console.print(f"[bold yellow]{SEED_NOTICE}")

    with SweepProgress(console, layout) as progress:
        drawn = spec.content.num_configurations
        progress.log(f"planning {count(len(trials), 'trial')}" + (f" of {drawn} that were drawn" if drawn else ""))
        planned = plan_trials(spec, trials, examples.num_examples, progress.on_plans)
        keys = _run.distinct_keys(planned, root)
        backend = backend_for(spec.task, examples, progress)
        try:
            with folders.only_here(folder, layout.private):
                if not resume:
                    folders.begin(folder, root, spec, examples, layout, len(trials), digest)
                on_record = folders.read_rows(folder, layout)
                _run.run_trials(_run.Sweep(folder, spec.task, layout, planned, keys), on_record, backend, progress)
        finally:
            backend.close()


def check_programs(spec: Spec, trials: Sequence[Trial], examples: Examples) -> tuple[tuple[str, ...], list[Blueprint]]:
    """Trace the model of each program; returns the names of the scores, and the blueprints.

    The number of steps and the noise decide nothing that can be refused, so that no noise is calibrated yet.
    """
    first_with: dict[Any, Trial] = {}
    for trial in trials:
        constants = spec.task.own(trial.settings, whole=True)
        first_with.setdefault((trial.settings["batch_size"], *constants.values()), trial)
    scores: tuple[str, ...] = ()
    blueprints = []
    for trial in first_with.values():
        settings = {name: value for name, value in trial.settings.items() if name != "epsilon"}
        try:
            plan = plan_of(settings | {"noise_multiplier": 1.0}, trial.delta, examples.num_examples)
        except UserError as error:
            spec.fail((SECTION, "batch_size"), str(error))
        blueprints.append(Blueprint(spec.task, examples, plan, settings))
        try:
            scores = check_task(blueprints[-1])
        except UserError as error:
            spec.fail(("model",), str(error))
    return scores, blueprints


def report_sweep(folder: str | Path, console: "Console | None" = None) -> SweepResult:
    """Write the report of what there is of a sweep, also while it runs."""
    console = as_console(console)
    result = _reported(Path(folder), folders.read_rows)
    _print(console, result)
    return result


def _reported(folder: Path, rows_of: Callable[[Path, Layout], list[Row]]) -> SweepResult:
    """Write the report of the rows of a sweep."""
    from gdpjax.sweeps._report import write_report

    layout = folders.described(folder).layout
    rows = rows_of(folder, layout)
    if not rows:
        raise UserError(f"no trial is finished in {folder}")
    return SweepResult(folder, rows, write_report(folder, rows), layout)


def _print(console: "Console", result: SweepResult) -> None:
    about = folders.described(result.folder)
    print_summary(console, result.rows, result.layout, folders.read_programs(result.folder), about.num_trials)
    console.print(f"Report: {result.report}", soft_wrap=True)


def as_console(console: "Console | None") -> "Console":
    """Return a console, a silent one for None; UserError unless the packages of the extra are installed."""
    try:
        import jinja2  # noqa: F401
        import matplotlib  # noqa: F401
        import pyarrow  # noqa: F401
        from rich.console import Console
    except ImportError as error:
        raise UserError(f"sweeps need the extra sweeps ({error}): in a clone, pip install '.[sweeps]'") from error
    return Console(quiet=True) if console is None else console


def backend_of(backend: str, width: int, memory_gb: float, ray_address: str | None, console: "Console") -> BackendFor:
    """Return what makes the place where trials run; what can be refused before data are loaded is refused here."""
    try:
        check_choice("backend", backend, ("local", "ray"))
        memory_bytes = int(check_number("memory_gb", memory_gb, POSITIVE) * 1e9)
        width = check_count("width", width)
    except ValueError as error:
        raise UserError(str(error)) from None
    if backend == "local":
        if ray_address is not None:
            raise UserError("--ray-address is for --backend ray; add that, or leave the address out")

        def here(task: Task, examples: Examples, progress: SweepProgress) -> _run.Backend:
            slots = min(_run.num_slots(), width)
            return _run.LocalBackend(task, examples, _run.Limits(width // slots, memory_bytes, slots), progress)

        return here

    from gdpjax.sweeps._ray import RayBackend, import_ray

    import_ray()

    def on_cluster(task: Task, examples: Examples, progress: SweepProgress) -> _run.Backend:
        made = RayBackend(task, examples, width, memory_bytes, ray_address)
        console.print(made.description)
        return made

    return on_cluster
