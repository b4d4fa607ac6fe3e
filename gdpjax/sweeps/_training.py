"""Train one model privately in a folder, with records and checkpoints, as `gdpjax train` does."""

import dataclasses
import json
import time
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gdpjax._core.figures import shown_score
from gdpjax.sweeps import _folder as folders
from gdpjax.sweeps import records
from gdpjax.sweeps._examples import Examples, load_examples
from gdpjax.sweeps._plans import SEED_NOTICE, Cost, Trial, cost_of, epoch_end, make_keys, plan_of
from gdpjax.sweeps._program import Blueprint, make_scores, not_finite
from gdpjax.sweeps._progress import TrainingProgress, as_console, say
from gdpjax.sweeps._results import label
from gdpjax.sweeps._spec import Spec, as_spec
from gdpjax.sweeps._task import Task
from gdpjax.sweeps._trials import check_programs, only_trial
from gdpjax.sweeps.records import RunInterrupted, UserError, interval
from gdpjax.training import CheckpointError, Info, Plan, Run, State, has_run, start_run

if TYPE_CHECKING:
    from rich.console import Console

NORM_QUANTILES = (0.1, 0.5, 0.9)
PUBLIC, HELD_OUT = "treated as public", "held-out training data, private"


@dataclasses.dataclass(frozen=True)
class TrainingResult:
    """A finished training.

    Attributes:
      out: its folder.
      plan: the plan of the training; publish ``plan.statement()``.
      state: the final `gdpjax.training.State`; the parameters may be released.
      history: the record of every epoch, public if ``scored_on`` is.
      cost: of the steps in the ledger.
      seeded: whether it can be repeated, and is not private against anybody who knows the seed.
      scores: of the final model, not of the best epoch.
      scored_on: the data that the scores are on, in words.
    """

    out: Path
    plan: Plan
    state: State
    history: list[dict[str, Any]]
    cost: Cost
    seeded: bool
    scores: dict[str, float]
    scored_on: str

    @property
    def params(self) -> Any:
        """The trained parameters."""
        return self.state.params

    @property
    def error(self) -> str | None:
        """What of the model is not finite, in words, as in a row of a sweep; None where the training succeeded."""
        return not_finite(self.params, self.scores)


def train(
    task: Task | None,
    spec: Mapping[str, Any] | str | Path | Spec,
    out: str | Path,
    *,
    resume: bool = False,
    diagnostics: bool = True,
    console: "Console | None" = None,
) -> TrainingResult:
    """Train one model privately in a folder, with checkpoints after every epoch.

    Args:
      task: what is trained. None where the spec is a file that says it.
      spec: as for `run_sweep`, with one value of each hyperparameter and one seed.
      out: folder of the run.
      resume: continue the run in ``out`` from its last checkpoint, bit for bit.
      diagnostics: write training losses and gradient norms to a file that is outside epsilon and not for release. A
        warning, for the owner of the data alone, says if most of them were not finite.
      console: a `rich.console.Console` for progress; by default nothing is printed.

    Returns:
      A `TrainingResult`.

    Raises:
      UserError: the spec, the data, the model or the folder is not as it should be.
      RunInterrupted: by Ctrl-C; the message says how many steps are kept.
    """
    shown_on = as_console(console)
    folder = Path(out)
    checked = as_spec(task, spec)
    trial = only_trial(checked)
    examples = load_examples(checked.task.load, checked.content.hold_out)
    check_programs(checked, [trial], examples)
    with TrainingProgress(shown_on) as progress:
        if trial.seed is not None:
            progress.warn(SEED_NOTICE)
        return Recorder(checked, trial, examples, folder, diagnostics).run(resume, progress)


class Recorder:
    """A training, and the records that it writes beside its checkpoints."""

    def __init__(
        self,
        spec: Spec,
        trial: Trial,
        examples: Examples,
        out: Path,
        diagnostics: bool,
    ) -> None:
        self.spec = spec
        self.examples = examples
        self.out = out
        self.plan = plan_of(trial.settings, trial.delta, examples.num_examples, **spec.words)
        settings = trial.settings | {"noise_multiplier": self.plan.noise_multiplier}
        self.trial = dataclasses.replace(trial, settings=settings, plan=self.plan)
        self.identity = self.trial.identity(diagnostics)
        self.logs = [records.METRICS]
        if diagnostics:
            self.logs.append(records.DIAGNOSTICS)
        self.scored_on = PUBLIC if spec.content.hold_out is None else HELD_OUT
        epochs = range(1, int(settings["epochs"]) + 1)
        self.ends = [epoch_end(settings, examples.num_examples, epoch) for epoch in epochs]
        # For every file that describes the run.
        self.about: dict[str, Any] = {
            "config": self.identity,
            "hyperparameters": spec.task.complete(settings),
            "fingerprint": records.fingerprint(),
        }
        if trial.seed is not None:
            self.about["notice"] = SEED_NOTICE

    def run(self, resume: bool, progress: TrainingProgress) -> TrainingResult:
        """Train, or continue the run in the folder; Ctrl-C raises RunInterrupted."""
        history: list[dict[str, Any]] = []
        try:
            run, history = self._enter(resume)
            progress.on_start(self.plan, run.step)
            if run.changes:
                progress.on_changed(run.changes, run.finished)
            if run.num_lost:
                progress.on_lost(run.num_lost)
            while not run.finished:
                history.append(self._epoch(run, progress))
                progress.on_epoch(history[-1])
        except KeyboardInterrupt:
            step = history[-1]["step"] if history else 0
            raise RunInterrupted(
                f"interrupted: {step} of {self.plan.num_steps} steps are kept in {self.out}; the same again with "
                "--resume (resume=True) continues"
            ) from None
        except CheckpointError as error:
            raise UserError(str(error)) from error
        # The whole budget may have gone to steps whose outcome was lost.
        if not history:
            history.append(self._record(run))
        return self._finish(run.state, history)

    def _enter(self, resume: bool) -> tuple[Run, list[dict[str, Any]]]:
        """Begin, or go back to the last checkpoint; records after it are dropped and will be written again, the same.

        A run that was killed before it had a checkpoint has spent nothing: it is started with new keys.
        """
        keys = make_keys(self.trial.seed, self.identity)
        blueprint = Blueprint(self.spec.task, self.examples, self.plan, self.trial.settings)
        params = blueprint.model(self.trial.settings).init(keys.init)
        training = blueprint.training(self.trial.settings)
        data = training.place(*self.examples.train)
        self._scores = make_scores(blueprint)
        if resume:
            records.refuse_differences(self.out, self.identity)
        else:
            self._begin()

        # Once a folder holds a run, its logs are only added to.
        if not has_run(self.out):
            for name in self.logs:
                records.start_log(self.out, name)
        run = start_run(
            self.out,
            training,
            params,
            data,
            key=keys.training,
            scan=False,
            resume=resume,
        )
        history, *_ = [records.rewind(self.out, name, run.step) for name in self.logs]
        return run, history

    def _begin(self) -> None:
        """Write the configuration; killed after that, the run is started by resuming it."""
        if (self.out / records.CONFIG).exists() or has_run(self.out):
            raise UserError(f"{self.out} already holds a run: add --resume to continue it, or choose another --out")
        records.make_folder(self.out, private=self.scored_on != PUBLIC)
        folders.write_spec(self.out, self.spec)
        plan = json.loads(self.plan.to_json())
        records.write_json(self.out / records.CONFIG, self.about | {"plan": plan})

    def _epoch(self, run: Run, progress: TrainingProgress) -> dict[str, Any]:
        """Take the steps of one epoch; its records are written before its checkpoint."""
        begin = time.perf_counter()
        first = run.step
        record: dict[str, Any] = {}

        def write(infos: list[Info]) -> None:
            seconds = time.perf_counter() - begin
            record.update(self._record(run), steps_per_second=(run.step - first) / seconds)
            records.append(self.out, records.METRICS, [record])
            if records.DIAGNOSTICS in self.logs:
                clip_norm = self.trial.settings["l2_clip_norm"]
                steps = enumerate(infos, start=first + 1)
                rows = [summarize(info, step, clip_norm) for step, info in steps]
                records.append(self.out, records.DIAGNOSTICS, rows)

        end = min(end for end in self.ends if end > first)
        run.advance(end - first, on_step=progress.on_step, before_checkpoint=write)
        return record

    def _record(self, run: Run) -> dict[str, Any]:
        """Return the public figures after the steps so far."""
        cost = dataclasses.asdict(cost_of(run.state.opt_state, self.trial.delta))
        figures = {name: value for name, value in cost.items() if name.startswith(("mu_", "epsilon_"))}
        place = {"step": run.step, "epoch": sum(end <= run.step for end in self.ends)}
        return place | self._scores(self.trial.settings, run.state.params) | figures

    def _finish(self, state: State, history: list[dict[str, Any]]) -> TrainingResult:
        """Write the model and the result."""
        result = TrainingResult(
            out=self.out,
            plan=self.plan,
            state=state,
            history=history,
            cost=cost_of(state.opt_state, self.trial.delta),
            seeded=self.trial.seed is not None,
            scores=self._scores(self.trial.settings, state.params),
            scored_on=self.scored_on,
        )
        records.save_model(self.out, state.params)
        privacy = dataclasses.asdict(result.cost) | {"epsilon_clt_standing": "asymptotic estimate, may understate"}
        summary = {"test_data": self.scored_on, "privacy": privacy, "seeded": result.seeded}
        records.write_json(self.out / records.RESULT, result.scores | summary | self.about)
        if records.DIAGNOSTICS in self.logs:
            path = self.out / records.DIAGNOSTICS
            warn_if_most_were_dropped(records.read_lines(path, records.Line, header=1))
        return result


def warn_if_most_were_dropped(diagnostics: list[dict[str, Any]]) -> None:
    """Warn the owner of the data where most losses or gradients were not finite, and trained nothing."""
    num_rows = sum(row.get("batch_size", 0) for row in diagnostics)
    num_dropped = sum(row.get("num_not_finite", 0) for row in diagnostics)
    if 2 * num_dropped > num_rows:
        warnings.warn(
            f"PRIVATE: the losses or gradients of {num_dropped} of {num_rows} examples were not finite and were "
            "dropped: look for NaN and infinities in the loss and the data. Epsilon does not cover this number: keep "
            "it to yourself",
            stacklevel=2,
        )


def summarize(info: Info, step: int, l2_clip_norm: float) -> dict[str, Any]:
    """Return one line of private diagnostics."""
    # The rows of the batch that are examples.
    is_example = ~np.asarray(info.is_padding)
    losses = np.asarray(info.losses)
    norms = np.asarray(info.norms)[is_example]
    is_broken = np.asarray(info.is_dropped) | ~np.isfinite(losses)
    row = {
        "step": step,
        "batch_size": int(is_example.sum()),
        "num_not_finite": int(is_broken.sum()),
    }
    if not is_example.any():
        return row
    quantiles = zip(NORM_QUANTILES, np.quantile(norms, NORM_QUANTILES), strict=True)
    return row | {
        "loss": float(losses[is_example].mean()),
        "fraction_clipped": float((norms > l2_clip_norm).mean()),
        "norm_quantiles": {str(share): float(norm) for share, norm in quantiles},
    }


def print_training(console: "Console", result: TrainingResult) -> None:
    """Print what a training ends with: its scores, its certified epsilon, and where its files are."""
    scores = [f"{label(name)} {shown_score(name, value):.4g}" for name, value in result.scores.items()]
    say(console, f"{', '.join(scores)} (evaluation data: {result.scored_on})")
    say(console, f"epsilon, certified: {interval(vars(result.cost), 4)} at delta = {result.cost.delta!r}")
    if result.seeded:
        say(console, SEED_NOTICE)
    say(console, f"All its figures: gdpjax report {result.out}")
    say(console, "Its files named NOT_FOR_RELEASE are outside epsilon: keep them private.")
