"""Run a sweep in a folder, resume it, report on it."""

import contextlib
import dataclasses
import json
import math
import os
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gdpjax._core import xla
from gdpjax._core.arguments import (
    check_choice,
    check_count,
    check_flag,
    check_instance,
    check_number,
    check_path,
    check_text,
)
from gdpjax._core.checks import POSITIVE
from gdpjax.sweeps import _folder as folders
from gdpjax.sweeps._errors import RunInterrupted, UserError
from gdpjax.sweeps._imports import ImportedTask
from gdpjax.sweeps._keys import SEED_NOTICE
from gdpjax.sweeps._layout import COSTS, Layout, layout_of
from gdpjax.sweeps._observer import Observer
from gdpjax.sweeps._program import blueprint_of, trace_step_of
from gdpjax.sweeps._spec import GivenTask, Spec, read_spec, spec_of_mapping
from gdpjax.sweeps._summary import best_within, configurations, count
from gdpjax.sweeps._task import Examples, Task, check_task, digest_of_programs, load_examples
from gdpjax.sweeps._trials import Trial, identity, list_trials, plan_trials
from gdpjax.sweeps._worker import shape_of

if TYPE_CHECKING:
    from rich.console import Console

    from gdpjax.sweeps._run import Backend

EXTRA = "the extra sweeps: in a clone, pip install '.[sweeps]'"
MOST_SLOTS = 8
"""The other cores are for XLA's own threads, and each chunk keeps a good share of the memory."""
BackendFor = Callable[[Task, Examples, Observer], "Backend"]
Row = dict[str, Any]


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
        unless the evaluation data are public and nothing else of the sweep is used: see the report.
        """
        budget = math.inf if epsilon is None else check_number("epsilon", epsilon, POSITIVE)
        found = best_within(configurations(self.rows, self.layout), self.layout, budget)
        if found is None:
            within = "" if epsilon is None else f" within epsilon {epsilon}"
            raise UserError(f"no trial succeeded{within}")
        trials = [row for row in self.rows if row["trial"] in found.trials]
        best: Row = {name: trials[0][name] for name in (*self.layout.hyperparameters, *COSTS)}
        best |= {name: statistics.fmean(row[name] for row in trials) for name in self.layout.scores}
        return best | {f"{self.layout.score}_stdev": found.stdev, "trial": found.trials}


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
    require_extra()
    folder = check_path("out", out)
    resume = check_flag("resume", resume)
    backend_for = backend_of(backend, width, memory_gb, ray_address, console)
    with interruptible(folder, resume):
        checked = as_spec(task, spec)
        sweep_in(folder, checked, resume, backend_for, console)
        result = finished_sweep(folder)
    if console is not None:
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
        if holds_another or not folders.has_sweep(folder):
            message = f"interrupted before the first trial: nothing was begun in {folder}"
        else:
            message = (
                f"interrupted: finished trials are on record in {folder}; the same again with --resume (resume=True) "
                "goes on"
            )
        raise RunInterrupted(message) from None


def as_spec(task: Task | None, spec: Mapping[str, Any] | str | Path | Spec) -> Spec:
    """Return a checked spec from what a caller may give."""
    if isinstance(spec, Spec):
        return spec
    if task is None:
        path = check_instance("spec", spec, (str, Path), "of a file that says what the task is")
        return read_spec(Path(path), ImportedTask())
    check_instance("task", task, Task)
    if isinstance(spec, str | Path):
        return read_spec(Path(spec), GivenTask(task))
    return spec_of_mapping(check_instance("spec", spec, Mapping, "or the path of a TOML file"), task)


def sweep_in(folder: Path, spec: Spec, resume: bool, backend_for: BackendFor, console: "Console | None") -> None:
    """Run every trial that is not yet on record in ``folder``; refusals come before anything runs."""
    from gdpjax.sweeps._results import read_rows
    from gdpjax.sweeps._run import Sweep, run_trials

    trials = list_trials(spec)
    if resume:
        folders.refuse_others(folder, spec)
    else:
        folders.refuse_used(folder)
    examples = load_examples(spec.task, spec.hold_out)
    scores = check_each_program(spec, examples)
    layout = layout_of(spec, trials, scores)
    digest = digest_of_programs(spec.task, examples, settings_of_programs(spec))
    root = None
    on_record: list[Row] = []
    if resume:
        root = folders.resume(folder, spec, examples, digest)
        on_record = read_rows(folder, layout)
    if console is not None and isinstance(spec.seeds, tuple):
        console.print(f"[bold yellow]{SEED_NOTICE}")
    if console is not None and not console.is_terminal:
        console.print(f"planning {count(len(trials), 'trial')}")

    with watch(console, layout) as observer:
        observer.on_start(len(trials), on_record)
        planned = plan_trials(spec, trials, examples.num_examples, observer.on_plans)
        refuse_equal_trials(spec, planned)
        done = {row["trial"] for row in on_record}
        check_each_step(spec, examples, [trial for trial in planned if trial.number not in done])
        backend = backend_for(spec.task, examples, observer)
        try:
            with folders.only_here(folder):
                if root is None:
                    root = folders.begin(folder, spec, examples, layout, len(trials), digest)
                else:
                    # Another process may have gone on with it until the folder was ours.
                    on_record = read_rows(folder, layout)
                run_trials(Sweep(folder, spec.task, layout, planned, root), on_record, backend, observer)
        finally:
            backend.close()


def check_each_program(spec: Spec, examples: Examples) -> tuple[str, ...]:
    """Trace the model with every combination of whole hyperparameters; returns the names of the scores."""
    names: tuple[str, ...] = ()
    for settings in settings_of_programs(spec):
        try:
            names = check_task(spec.task, examples, settings)
        except UserError as error:
            spec.fail(("model",), str(error))
    return names


def check_each_step(spec: Spec, examples: Examples, trials: Sequence[Trial]) -> None:
    """Trace one private step of each batch size and combination of whole hyperparameters; UserError if one is refused.

    In a program it would be refused as well, but as the failure of its trials.
    """
    first_with: dict[Any, Trial] = {}
    for trial in trials:
        # Without the number of steps.
        first_with.setdefault(shape_of(spec.task, trial)[1:], trial)
    for trial in first_with.values():
        try:
            trace_step_of(blueprint_of(spec.task, examples, trial.plan, trial.settings))
        except UserError as error:
            spec.fail(("model",), str(error))


def settings_of_programs(spec: Spec) -> list[Mapping[str, float]]:
    """Return the settings of the first trial with each combination of whole hyperparameters."""
    settings_of: dict[Any, Mapping[str, float]] = {}
    for trial in list_trials(spec):
        constants = spec.task.constants(trial.settings)
        combination = tuple(sorted(constants.items()))
        settings_of.setdefault(combination, trial.settings)
    return list(settings_of.values())


def refuse_equal_trials(spec: Spec, trials: Sequence[Trial]) -> None:
    """Refuse trials that are one training, with the same keys: targets so close that the same noise meets both."""
    first_with: dict[str, Trial] = {}
    for trial in trials:
        if trial.seed is None:
            continue
        settings = json.dumps(identity(trial), sort_keys=True, default=str)
        first = first_with.setdefault(settings, trial)
        if first is not trial:
            raise UserError(
                f"{spec.source.name}: the trials {first.settings} and {trial.settings} with seed {trial.seed} are one "
                "and the same training, since both get the same noise multiplier; leave one of them out, or move their "
                "targets apart"
            )


def watch(console: "Console | None", layout: Layout) -> Observer:
    """Return an observer as a context: one that draws on the console, or one that does nothing."""
    if console is None:
        return Observer()
    from gdpjax.sweeps._progress import ProgressObserver

    return ProgressObserver(console, layout)


def finished_sweep(folder: Path) -> SweepResult:
    """Join the parts of a sweep into one file, and write its report."""
    from gdpjax.sweeps._report import write_report
    from gdpjax.sweeps._results import finish

    layout = folders.described(folder).layout
    rows = finish(folder, layout)
    return SweepResult(folder, rows, write_report(folder, rows), layout)


def report_sweep(folder: str | Path, console: "Console | None" = None) -> SweepResult:
    """Write the report of what there is of a sweep, also while it runs."""
    require_extra()
    from gdpjax.sweeps._report import write_report
    from gdpjax.sweeps._results import read_rows

    folder = check_path("folder", folder)
    layout = folders.described(folder).layout
    rows = read_rows(folder, layout)
    if not rows:
        raise UserError(f"no trial is finished in {folder}")
    result = SweepResult(folder, rows, write_report(folder, rows), layout)
    if console is not None:
        _print(console, result)
    return result


def _print(console: "Console", result: SweepResult) -> None:
    from gdpjax.sweeps._progress import print_summary

    about = folders.described(result.folder)
    programs = folders.read_programs(result.folder)
    print_summary(console, result.rows, result.layout, programs, about.num_trials)
    console.print(f"Report: {result.report}", soft_wrap=True)


def require_extra() -> None:
    """Raise UserError unless the packages of the extra are installed."""
    try:
        import jinja2  # noqa: F401
        import matplotlib  # noqa: F401
        import pyarrow  # noqa: F401
        import rich  # noqa: F401
    except ImportError as error:
        raise UserError(f"sweeps need a package that is not installed ({error}), {EXTRA}") from error


def backend_of(
    backend: str, width: int, memory_gb: float, ray_address: str | None, console: "Console | None" = None
) -> BackendFor:
    """Return what makes the place where trials run; what can be refused before data are loaded is refused here."""
    try:
        check_choice("backend", backend, ("local", "ray"))
        memory_gb = check_number("memory_gb", memory_gb, POSITIVE)
        width = check_count("width", width)
        if ray_address is not None:
            check_text("ray_address", ray_address)
    except ValueError as error:
        raise UserError(str(error)) from None
    memory_bytes = int(memory_gb * 1e9)
    if backend == "local":
        if ray_address is not None:
            raise UserError("--ray-address is for --backend ray; add that, or leave the address out")
        return _local_backend(width, memory_bytes)

    from gdpjax.sweeps._ray import RayBackend, import_ray

    import_ray()

    def on_cluster(task: Task, examples: Examples, observer: Observer) -> "Backend":
        made = RayBackend(task, examples, width, memory_bytes, ray_address)
        if console is not None:
            console.print(made.description)
        return made

    return on_cluster


def _local_backend(width: int, memory_bytes: int) -> BackendFor:
    def here(task: Task, examples: Examples, observer: Observer) -> "Backend":
        from gdpjax.sweeps._run import Limits, LocalBackend

        slots = min(num_slots(), width)
        return LocalBackend(task, examples, Limits(width // slots, memory_bytes, slots), observer)

    return here


def num_slots() -> int:
    """Return how many threads train trials of their own: XLA does not use all cores of a CPU for a small model."""
    if xla.platform() != "cpu":
        return 1
    num_cores = os.cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):
        num_cores = len(os.sched_getaffinity(0))
    return min(num_cores, MOST_SLOTS)
