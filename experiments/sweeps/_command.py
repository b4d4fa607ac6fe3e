"""``sweep`` and ``sweep-report``."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import jax
from rich.console import Console

from experiments import datasets
from experiments.config import SweepConfig, SweepReportConfig
from experiments.engine import build_model
from experiments.errors import RunInterrupted, UserError
from experiments.keys import SEED_NOTICE
from experiments.sweeps import _folder as folders
from experiments.sweeps._progress import ProgressObserver
from experiments.sweeps._ray import RayBackend, import_ray
from experiments.sweeps._report import write_report
from experiments.sweeps._results import finish, read_rows
from experiments.sweeps._run import Backend, Limits, LocalBackend, Observer, run_trials
from experiments.sweeps._spec import Spec, read_spec
from experiments.sweeps._summary import print_summary
from experiments.sweeps._trials import Trial, list_trials, plan_trials

BackendFor = Callable[[datasets.Dataset, Observer], Backend]
MOST_SLOTS = 8
"""Beyond these XLA's own threads are to use the cores, and each chunk keeps a good share of the memory."""


def run(config: SweepConfig) -> None:
    """Run or resume a sweep, then report. Everything that can be refused is refused before anything runs."""
    console = Console()
    backend_for = backend_of(config, console)
    spec = read_spec(config.spec)
    out = config.out or Path("runs") / f"sweep-{config.spec.stem}"
    run_sweep(spec, dataset_of(spec), out, config.resume, backend_for, console)
    rows = finish(out)
    page = write_report(out, rows)
    print_summary(console, rows, folders.read_programs(out), len(rows))
    console.print(f"Report: {page}", soft_wrap=True)
    if all(row["error"] for row in rows):
        raise UserError("every trial failed; the errors are above, and with their trials in the report")


def dataset_of(spec: Spec) -> datasets.Dataset:
    """What a sweep trains and tests on."""
    dataset = datasets.load(spec.dataset)
    return dataset if spec.hold_out is None else dataset.hold_out(spec.hold_out)


def run_sweep(
    spec: Spec, dataset: datasets.Dataset, out: Path, resume: bool, backend_for: BackendFor, console: Console
) -> None:
    """Every trial that is not yet on record in ``out``."""
    trials = list_trials(spec)
    if not resume:
        folders.refuse_used(out)
    if isinstance(spec.seeds, tuple):
        console.print(f"[bold yellow]{SEED_NOTICE}")
    known = folders.resume(out, spec, dataset) if resume else None
    _refuse_unfit(spec, trials, dataset)
    done = {row["trial"] for row in read_rows(out)} if resume else set()
    with ProgressObserver(console) as observer:
        observer.on_start(len(trials), len(done))
        made: list[None] = []
        on_plan = lambda: (made.append(None), observer.on_plans(len(made)))[-1]  # noqa: E731
        trials = plan_trials(spec, trials, dataset.num_examples, on_plan)
        backend = backend_for(dataset, observer)
        try:
            key = folders.begin(out, spec, dataset, len(trials)) if known is None else known
            run_trials(out, trials, done, key, backend, observer)
        except KeyboardInterrupt:
            command = f"python -m experiments sweep {spec.path} --out {out} --resume"
            raise RunInterrupted(f"interrupted: finished trials are on record; continue with\n  {command}") from None
        finally:
            backend.close()


def _refuse_unfit(spec: Spec, trials: Sequence[Trial], dataset: datasets.Dataset) -> None:
    try:
        build_model(trials[0].config, dataset)
    except UserError as error:
        spec.fail(("model",), str(error))


def report(config: SweepReportConfig) -> None:
    """The report of what there is, also while the sweep runs."""
    console = Console()
    if not (config.folder / folders.SWEEP).is_file():
        raise UserError(f"there is no sweep in {config.folder}")
    rows = read_rows(config.folder)
    if not rows:
        raise UserError(f"no trial is finished in {config.folder}")
    page = write_report(config.folder, rows)
    num_trials = folders.described(config.folder)["num_trials"]
    print_summary(console, rows, folders.read_programs(config.folder), num_trials)
    console.print(f"Report: {page}", soft_wrap=True)


def backend_of(config: SweepConfig, console: Console) -> BackendFor:
    """Where the trials of a sweep are to run; what can be refused before the data are loaded is refused here."""
    if not 0 < config.memory_gb < float("inf"):
        raise UserError(f"memory_gb must be a finite number > 0, got {config.memory_gb}")
    if config.width < 1:
        raise UserError(f"width must be a whole number >= 1, got {config.width}")
    memory_bytes = int(config.memory_gb * 1e9)
    if config.backend == "local":
        if config.ray_address is not None:
            raise UserError("--ray-address is for --backend ray; add that, or leave the address out")
        slots = min(num_slots(), config.width)
        limits = Limits(config.width // slots, memory_bytes, slots)
        return lambda dataset, observer: LocalBackend(dataset, limits, observer)
    import_ray()

    def on_cluster(dataset: datasets.Dataset, observer: Observer) -> Backend:
        backend = RayBackend(dataset, config.width, memory_bytes, config.ray_address)
        console.print(backend.description)
        return backend

    return on_cluster


def num_slots() -> int:
    """Threads that train trials of their own: XLA does not use all cores of a CPU for a small model."""
    if jax.default_backend() != "cpu":
        return 1
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cores, MOST_SLOTS)
