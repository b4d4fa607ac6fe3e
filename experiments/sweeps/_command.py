"""``sweep`` and ``sweep-report``."""

from pathlib import Path

from rich.console import Console

from experiments import datasets
from experiments.config import SweepConfig, SweepReportConfig
from experiments.errors import RunInterrupted, UserError
from experiments.keys import SEED_NOTICE
from experiments.sweeps import _folder as folders
from experiments.sweeps._progress import ProgressObserver
from experiments.sweeps._report import write_report
from experiments.sweeps._results import finish, read_rows
from experiments.sweeps._run import Limits, run_trials
from experiments.sweeps._spec import Spec, read_spec
from experiments.sweeps._summary import print_summary
from experiments.sweeps._trials import list_trials, plan_trials


def run(config: SweepConfig) -> None:
    """Run or resume a sweep, then report. Everything that can be refused is refused before anything runs."""
    console = Console()
    limits = _limits(config)
    spec = read_spec(config.spec)
    out = config.out or Path("runs") / f"sweep-{config.spec.stem}"
    run_sweep(spec, dataset_of(spec), out, config.resume, limits, console)
    rows = finish(out)
    page = write_report(out, rows)
    print_summary(console, rows, folders.read_programs(out))
    console.print(f"Report: {page}", soft_wrap=True)


def dataset_of(spec: Spec) -> datasets.Dataset:
    """What a sweep trains and tests on."""
    dataset = datasets.load(spec.dataset)
    return dataset if spec.hold_out is None else dataset.hold_out(spec.hold_out)


def run_sweep(spec: Spec, dataset: datasets.Dataset, out: Path, resume: bool, limits: Limits, console: Console) -> None:
    """Every trial that is not yet on record in ``out``."""
    trials = list_trials(spec)
    if not resume and (out / folders.SWEEP).exists():
        raise UserError(f"{out} already holds a sweep: add --resume to continue it, or choose another --out")
    if isinstance(spec.seeds, tuple):
        console.print(f"[bold yellow]{SEED_NOTICE}")
    known = folders.resume(out, spec, dataset) if resume else None
    done = {row["trial"] for row in read_rows(out)} if resume else set()
    with ProgressObserver(console) as observer:
        observer.on_start(len(trials), len(done))
        made: list[None] = []
        on_plan = lambda: (made.append(None), observer.on_plans(len(made)))[-1]  # noqa: E731
        trials = plan_trials(spec, trials, dataset.num_examples, on_plan)
        key = folders.begin(out, spec, dataset, len(trials)) if known is None else known
        try:
            run_trials(out, trials, done, dataset, key, limits, observer)
        except KeyboardInterrupt:
            command = f"python -m experiments sweep {spec.path} --out {out} --resume"
            raise RunInterrupted(f"interrupted: finished trials are on record; continue with\n  {command}") from None


def report(config: SweepReportConfig) -> None:
    """The report of what there is, also while the sweep runs."""
    console = Console()
    if not (config.folder / folders.SWEEP).is_file():
        raise UserError(f"there is no sweep in {config.folder}")
    rows = read_rows(config.folder)
    if not rows:
        raise UserError(f"no trial is finished in {config.folder}")
    page = write_report(config.folder, rows)
    print_summary(console, rows, folders.read_programs(config.folder))
    console.print(f"Report: {page}", soft_wrap=True)


def _limits(config: SweepConfig) -> Limits:
    if not 0 < config.memory_gb < float("inf"):
        raise UserError(f"memory_gb must be a finite number > 0, got {config.memory_gb}")
    if config.width < 1:
        raise UserError(f"width must be a whole number >= 1, got {config.width}")
    return Limits(config.width, int(config.memory_gb * 1e9))
