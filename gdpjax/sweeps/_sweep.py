"""Run a sweep in a folder, chunk by chunk, resume it, report on it; only this process writes the records.

A backend takes a chunk and promises its result. A chunk is on record, once, when its result has arrived here; other
chunks are run again by ``--resume``.
"""

import concurrent.futures
import contextlib
import dataclasses
import math
import os
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from gdpjax._core import xla
from gdpjax._core.arguments import check_choice, check_count, check_number
from gdpjax._core.checks import POSITIVE
from gdpjax._core.figures import rounded
from gdpjax._core.keys import fresh_key
from gdpjax.sweeps import _folder as folders
from gdpjax.sweeps import records
from gdpjax.sweeps._examples import Examples, load_examples
from gdpjax.sweeps._plans import SEED_NOTICE, Trial
from gdpjax.sweeps._progress import PRIVATE_SCORES, SweepProgress, as_console, print_summary, say
from gdpjax.sweeps._results import COSTS, Configuration, Layout, Row, best_within, configurations, count, succeeded
from gdpjax.sweeps._spec import Spec, as_spec
from gdpjax.sweeps._task import Task
from gdpjax.sweeps._trials import check_programs, list_trials, plan_trials
from gdpjax.sweeps._worker import Chunk, ChunkLost, Limits, LocalBackend, Shape, failures, shape_of
from gdpjax.sweeps.records import RunInterrupted, UserError

if TYPE_CHECKING:
    from rich.console import Console

MOST_SLOTS = 8
"""The other cores are for XLA's own threads, and each chunk keeps a good share of the memory."""
BackendFor = Callable[[Task, Examples, SweepProgress], Any]
"""Makes the place where chunks run, such as `LocalBackend`: ``limits``, ``submit``, ``result`` and ``close``."""


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
        return len(succeeded(self.rows)) < len(self.rows)

    def best(self, epsilon: float | None = None) -> Row:
        """Return the configuration with the best mean score over its seeds, within a certified ``epsilon`` if given.

        Its dictionary has the hyperparameters and the costs of one training, the mean of each score under its name,
        the standard deviation of the score that decides as ``<score>_stdev`` (None for one seed), and the numbers of
        its trials as ``trial``. It is the one that the report names. Choosing it costs privacy beyond its own epsilon,
        on public evaluation data, too, since every model that is scored was trained on private data: see the report.
        """
        found = self._best(epsilon)
        best: Row = {name: found.rows[0][name] for name in (*self.layout.hyperparameters, *COSTS)}
        for name in self.layout.scores:
            best[name] = statistics.fmean(row[name] for row in found.rows)
        best[f"{self.layout.score}_stdev"] = found.stdev
        best["trial"] = [row["trial"] for row in found.rows]
        return best

    def best_in_words(self, epsilon: float | None = None) -> str:
        """Return one sentence about `best`, which ``gdpjax sweep-report --epsilon`` prints."""
        layout, found = self.layout, self._best(epsilon)
        within = "" if epsilon is None else f" within a certified epsilon of {epsilon:g}"
        first = found.rows[0]
        names = [name for name in layout.hyperparameters if first[name] is not None and name != "epsilon"]
        seeds = f" over {len(found.scores)} seeds" if len(found.scores) > 1 else ""
        settings = ", ".join(f"{layout.label(name)} {layout.text(name, first[name])}" for name in names)
        sentence = (
            f"The best{within}: {layout.label(layout.score)} {layout.spread(found)}{seeds}, at epsilon "
            f"{rounded(found.epsilon_upper, 4, 'up')} and delta {rounded(first['delta'], 6, 'up')} for ONE training, "
            f"with {settings}."
        )
        return f"{sentence} {PRIVATE_SCORES}" if layout.private else sentence

    def _best(self, epsilon: float | None) -> Configuration:
        budget = math.inf if epsilon is None else check_number("epsilon", epsilon, POSITIVE)
        candidates = configurations(self.rows, self.layout)
        found = best_within(candidates, self.layout, budget)
        if found is None and candidates:
            least = rounded(min(candidate.epsilon_upper for candidate in candidates), 4, "up")
            raise UserError(f"no trial is within epsilon {epsilon:g}: the least that one has is {least}")
        if found is None:
            raise UserError("no configuration succeeded with all its seeds")
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
    backend_for = backend_of(backend, width, memory_gb, ray_address)
    try:
        sweep_in(folder, as_spec(task, spec), resume, backend_for, console)
        result = report_sweep(folder, console)
    except KeyboardInterrupt:
        message = f"interrupted: finished trials are on record in {folder}; --resume (resume=True) continues"
        if not folders.has_sweep(folder):
            message = f"interrupted before the first trial: nothing was begun in {folder}"
        raise RunInterrupted(message) from None
    if not succeeded(result.rows):
        errors = min(row["error"] for row in result.rows)
        raise UserError(f"every trial failed, the first with: {errors}; {result.report} has all of them")
    return result


def report_sweep(folder: str | Path, console: "Console | None" = None) -> SweepResult:
    """Write the report of what there is of a sweep, also while it runs, and print its summary on the ``console``."""
    console = as_console(console)
    from gdpjax.sweeps._report import write_report

    folder = Path(folder)
    about = folders.described(folder)
    rows = folders.read_rows(folder, about.layout)
    if not rows:
        raise UserError(f"no trial is finished in {folder}")
    result = SweepResult(folder, rows, write_report(folder, rows), about.layout)
    print_summary(console, rows, about.layout, about.num_trials)
    say(console, f"Report: {result.report}")
    return result


def backend_of(backend: str, width: int, memory_gb: float, ray_address: str | None) -> BackendFor:
    """Return what makes the place where trials run; what can be refused before data are loaded is refused here."""
    check_choice("backend", backend, ("local", "ray"))
    memory_bytes = int(check_number("memory_gb", memory_gb, POSITIVE) * 1e9)
    width = check_count("width", width)
    if backend == "ray":
        from gdpjax.sweeps._ray import RayBackend, import_ray

        import_ray()
        return lambda task, examples, progress: RayBackend(task, examples, width, memory_bytes, ray_address)
    if ray_address is not None:
        raise UserError("--ray-address is for --backend ray; add that, or leave the address out")
    slots = min(num_slots(), width)
    limits = Limits(width // slots, memory_bytes, slots)
    return lambda task, examples, progress: LocalBackend(task, examples, limits, progress.on_steps)


def num_slots() -> int:
    """Return how many threads train trials of their own: XLA does not use all cores of a CPU for a small model."""
    if xla.platform() != "cpu":
        return 1
    num_cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(num_cores, MOST_SLOTS)


def sweep_in(folder: Path, spec: Spec, resume: bool, backend_for: BackendFor, console: "Console") -> None:
    """Run every trial that is not yet on record in ``folder``; refusals come before anything runs."""
    if resume:
        records.refuse_changes(folder, folders.described(folder).sweep, spec.described())
    else:
        folders.refuse_used(folder)
    trials = list_trials(spec)
    examples = load_examples(spec.task.load, spec.content.hold_out)
    scores, digest = check_programs(spec, trials, examples)
    layout = layout_of(spec, trials, scores)
    root = folders.resume(folder, examples, digest) if resume else fresh_key()
    with SweepProgress(console, layout) as progress:
        if isinstance(spec.seeds, tuple):
            progress.warn(SEED_NOTICE)
        drawn = spec.content.num_configurations
        progress.log(f"planning {count(len(trials), 'trial')}" + (f" of {drawn} that were drawn" if drawn else ""))
        planned = plan_trials(spec, trials, examples.num_examples)
        keys = distinct_keys(planned, root)
        backend = backend_for(spec.task, examples, progress)
        with contextlib.closing(backend), folders.only_here(folder, layout.private):
            if not resume:
                names = dict(spec.task.names)
                about = folders.Described(spec.described(), names, layout, len(trials), digest)
                folders.begin(folder, root, spec, examples, about)
            run_trials(Sweep(folder, spec.task, layout, planned, keys), backend, progress)
            folders.finish(folder, layout)


def layout_of(spec: Spec, trials: Sequence[Trial], scores: Sequence[str]) -> Layout:
    """Return the columns of a sweep."""
    # A noise multiplier and its target have columns always, other hyperparameters if the trials have them.
    used = {"noise_multiplier", "epsilon", *trials[0].settings}
    kinds = {name: kind for name, kind in spec.task.hyperparameters.items() if name in used}
    columns = {name: "int64" if kind.whole else "double" for name, kind in kinds.items()}
    content = spec.content
    return Layout(
        columns,
        list(scores),
        content.score or scores[0],
        content.minimize,
        content.hold_out is not None,
    )


def distinct_keys(trials: Sequence[Trial], root: jax.Array) -> dict[int, np.ndarray]:
    """Return the data of the keys of each trial, uint32[2, ...], by its number.

    Raises:
      UserError: two trials share a key, so that the difference of their results has no noise. Targets so close that
        one noise multiplier meets both are one training, if it has a seed.
    """
    key_data = {}
    first_with: dict[bytes, Trial] = {}
    for trial in trials:
        own = [jax.random.key_data(key) for key in trial.keys(root)]
        key_data[trial.number] = np.asarray(own)
        for words in key_data[trial.number]:
            first = first_with.setdefault(words.tobytes(), trial)
            if first is not trial:
                raise UserError(
                    f"the trials {first.settings} and {trial.settings} with seed {trial.seed} are one and the same "
                    "training, with the same noise; leave one of them out, or move their targets apart"
                )
    return key_data


@dataclasses.dataclass(frozen=True)
class Sweep:
    """A sweep for `run_trials`: its folder, task and columns, its trials, and the data of the keys of each."""

    folder: Path
    task: Task
    layout: Layout
    trials: Sequence[Trial]
    key_data: Mapping[int, np.ndarray]


def run_trials(sweep: Sweep, backend: Any, progress: SweepProgress) -> None:
    """Run the trials that are not on record, and record each chunk as it ends: on disk first, then on screen."""
    on_record = folders.read_rows(sweep.folder, sweep.layout)
    progress.on_start(len(sweep.trials), on_record)
    done = {row["trial"] for row in on_record}
    shapes: dict[Shape, list[Trial]] = {}
    for trial in sweep.trials:
        if trial.number not in done:
            shapes.setdefault(shape_of(sweep.task, trial), []).append(trial)

    # Submit all chunks, and record each as it ends.
    chunk_of_future: dict[concurrent.futures.Future[list[Row]], Chunk] = {}
    for shape, trials in shapes.items():
        chunks = list(chunks_of(shape, trials, sweep.key_data, backend.limits))
        num_steps, batch_size, *constants = shape
        own = "".join(f", {name} {value}" for name, value in constants)
        progress.on_chunks(
            f"{count(len(trials), 'trial')} of {num_steps} steps with batches of {batch_size:g}{own}: "
            f"{count(len(chunks), 'chunk')} of up to {chunks[0].width} side by side"
        )
        chunk_of_future |= {backend.submit(chunk): chunk for chunk in chunks}
    for future in concurrent.futures.as_completed(chunk_of_future):
        try:
            rows = backend.result(future)
        except ChunkLost as error:
            rows = failures(chunk_of_future[future].trials, error)
        rows = [{name: row.get(name) for name in sweep.layout.columns} for row in rows]
        folders.write_part(sweep.folder, rows, sweep.layout)
        progress.on_chunk(rows)


def chunks_of(
    shape: Shape,
    trials: Sequence[Trial],
    key_data: Mapping[int, np.ndarray],
    limits: Limits,
) -> Iterator[Chunk]:
    """Yield chunks of equal size except the last; their number is a multiple of the slots, as far as trials go."""
    fewest_chunks = math.ceil(len(trials) / limits.width)
    num_rounds = math.ceil(fewest_chunks / limits.slots)
    width = math.ceil(len(trials) / (num_rounds * limits.slots))
    for first in range(0, len(trials), width):
        members = trials[first : first + width]
        keys = np.stack([key_data[trial.number] for trial in members])
        yield Chunk(tuple(members), keys, shape, width)
