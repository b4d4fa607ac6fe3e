"""Train one model privately in a folder, with records and checkpoints, as `gdpjax train` does."""

import contextlib
import dataclasses
import json
import time
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from gdpjax._core.arguments import check_flag, check_path, check_text
from gdpjax.sweeps import _folder as folders
from gdpjax.sweeps import records
from gdpjax.sweeps._errors import RunInterrupted, UserError
from gdpjax.sweeps._keys import SEED_NOTICE, make_keys
from gdpjax.sweeps._layout import check_score
from gdpjax.sweeps._observer import TrainingObserver
from gdpjax.sweeps._plans import epoch_end, plan_of
from gdpjax.sweeps._privacy import Cost, cost_of
from gdpjax.sweeps._program import blueprint_of, trace_step
from gdpjax.sweeps._spec import SECTION, Spec
from gdpjax.sweeps._sweep import as_spec, require_extra
from gdpjax.sweeps._task import Examples, Task, check_task, load_examples, with_place
from gdpjax.sweeps._trials import Trial, identity, list_trials, refuse_large_batches
from gdpjax.sweeps._worker import make_scores, not_finite
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
      epochs: as planned.
      state: the final `gdpjax.training.State`; the parameters may be released.
      history: the public record of every epoch.
      cost: of the steps in the ledger.
      seeded: whether it can be repeated, and is not private against anybody who knows the seed.
      scores: of the final model, not of the best epoch.
      scored_on: the data that the scores are on, in words.
      private_warning: for the owner of the data, where most losses or gradients were not finite; else None. It is
        private, and in no file but the diagnostics.
    """

    out: Path
    plan: Plan
    epochs: int
    state: State
    history: list[dict[str, Any]]
    cost: Cost
    seeded: bool
    scores: dict[str, float]
    scored_on: str
    private_warning: str | None = None

    @property
    def params(self) -> Any:
        """The trained parameters."""
        return self.state.params

    @property
    def error(self) -> str | None:
        """What of the model is not finite, in words, as in a row of a sweep; None where the training succeeded."""
        return not_finite(self.params, self.scores)


@dataclasses.dataclass(frozen=True)
class Job:
    """A training to be run: a task in memory, one trial of it, and how its folder is kept."""

    task: Task
    examples: Examples
    trial: Trial
    out: Path
    resume: bool = False
    diagnostics: bool = True
    scored_on: str = PUBLIC
    how_to_resume: str = ""
    spec: Spec | None = None

    @property
    def identity(self) -> dict[str, Any]:
        """The settings that decide what is computed."""
        return identity(self.trial, self.diagnostics)


def train(
    task: Task | None,
    spec: Mapping[str, Any] | str | Path | Spec,
    out: str | Path,
    *,
    resume: bool = False,
    diagnostics: bool = True,
    console: "Console | None" = None,
    how_to_resume: str = "the same again with --resume (resume=True)",
) -> TrainingResult:
    """Train one model privately in a folder, with checkpoints after every epoch.

    Args:
      task: what is trained. None where the spec is a file that says it.
      spec: as for `run_sweep`, with one value of each hyperparameter and one seed.
      out: folder of the run.
      resume: continue the run in ``out`` from its last checkpoint, bit for bit.
      diagnostics: write training losses and gradient norms to a file that is outside epsilon and not for release.
      console: a `rich.console.Console` for progress; by default nothing is printed. A ``private_warning`` of the result
        is a Python warning then.
      how_to_resume: the command that continues the run, for the message of an interruption.

    Returns:
      A `TrainingResult`.

    Raises:
      UserError: the spec, the data, the model or the folder is not as it should be.
      RunInterrupted: by Ctrl-C; the message says how many steps are on record.
    """
    folder = check_path("out", out)
    resume = check_flag("resume", resume)
    diagnostics = check_flag("diagnostics", diagnostics)
    check_text("how_to_resume", how_to_resume)
    checked = as_spec(task, spec)
    trial = only_trial(checked)
    examples = load_examples(checked.task, checked.hold_out)
    refuse_large_batches(checked, [trial], examples.num_examples)
    scored_on = PUBLIC if checked.hold_out is None else HELD_OUT
    job = Job(checked.task, examples, trial, folder, resume, diagnostics, scored_on, how_to_resume, checked)
    if console is None:
        result = run_job(job, TrainingObserver())
        if result.private_warning is not None:
            warnings.warn(result.private_warning, stacklevel=2)
        return result
    require_extra()
    from gdpjax.sweeps._training_progress import TrainingProgress

    if trial.seed is not None:
        console.print(f"[bold yellow]{SEED_NOTICE}")
    with TrainingProgress(console) as observer:
        return run_job(job, observer)


def only_trial(spec: Spec) -> Trial:
    """Return the trial of a spec that has one; UserError with the line for one that has more."""
    trials = list_trials(spec)
    if len(trials) == 1:
        return trials[0]
    for name, choice in spec.choices.items():
        if not isinstance(choice, tuple) or len(choice) > 1:
            spec.fail((SECTION, name), f"train takes one value of {name}; for several there is sweep-trainings")
    spec.fail((SECTION, "seeds"), f"train takes one seed, got {len(trials)}; for several there is sweep-trainings")


def run_job(job: Job, observer: TrainingObserver) -> TrainingResult:
    """Train, or continue the run in the folder; Ctrl-C raises RunInterrupted."""
    plan = plan_of(job.trial.settings, job.trial.delta, job.examples.num_examples)
    scores = check_task(job.task, job.examples, job.trial.settings)
    if job.spec is not None:
        check_score(job.spec, scores)
    settings = job.trial.settings | {"noise_multiplier": plan.noise_multiplier}
    job = dataclasses.replace(job, trial=dataclasses.replace(job.trial, settings=settings, plan=plan))
    # A resumed run goes on with its own keys.
    keys = make_keys(job.trial.seed, job.identity)
    history: list[dict[str, Any]] = []
    try:
        with naming_the_line("the training"):
            recorder = _Recorder(job, keys.init)
            run, history = recorder.enter(keys.training)
        observer.on_start(plan, run.step)
        if run.changes:
            observer.on_changed(run.changes, run.finished)
        if run.num_lost:
            observer.on_lost(run.num_lost)
        while not run.finished:
            history.append(recorder.epoch(run, observer))
            observer.on_epoch(history[-1])
    except KeyboardInterrupt:
        step = history[-1]["step"] if history else 0
        raise RunInterrupted(
            f"interrupted: {step} of {plan.num_steps} steps are on record in {job.out}; continue with\n"
            f"  {job.how_to_resume}"
        ) from None
    except CheckpointError as error:
        raise UserError(str(error)) from error
    # The whole budget may have gone to steps whose outcome was lost.
    if not history:
        history.append(recorder.record(run))
    return recorder.finish(run.state, history)


@contextlib.contextmanager
def naming_the_line(what: str) -> Iterator[None]:
    """Turn what a function of the user raises into a UserError with its line; other errors stay."""
    try:
        yield
    except Exception as error:
        named = with_place(what, error)
        if named is error:
            raise
        raise named from error


class _Recorder:
    """The records that a run writes beside its checkpoints, and everything that stays the same during it."""

    def __init__(self, job: Job, init_key: jax.Array) -> None:
        self.job = job
        self.out = job.out
        self.trial = job.trial
        self.plan = job.trial.plan
        settings = job.trial.settings
        num_examples = job.examples.num_examples
        blueprint = blueprint_of(job.task, job.examples, self.plan, settings)
        self.params = blueprint.model(settings).init(init_key)
        self.training = blueprint.training(settings)
        self.data = self.training.place(*job.examples.train)
        trace_step(self.training, self.params, init_key, self.data)
        self._scores = make_scores(blueprint)
        self.epochs = int(settings["epochs"])
        self.ends = [epoch_end(settings, num_examples, epoch) for epoch in range(1, self.epochs + 1)]
        self.hyperparameters = job.task.complete(settings)
        # Private: of the batches so far.
        self.num_rows = 0
        self.num_not_finite = 0
        self.logs = [records.METRICS]
        if job.diagnostics:
            self.logs.append(records.DIAGNOSTICS)

    def _begin(self) -> None:
        """Write the configuration; killed after that, the run is started by resuming it."""
        if (self.out / records.CONFIG).exists() or has_run(self.out):
            raise UserError(f"{self.out} already holds a run: add --resume to continue it, or choose another --out")
        try:
            self.out.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"cannot make the folder {self.out}: {error.strerror}; choose another --out") from error
        if self.job.spec is not None:
            folders.write_spec(self.out, self.job.spec)
        config = {
            "config": self.job.identity,
            "hyperparameters": self.hyperparameters,
            "fingerprint": records.fingerprint(),
        }
        config |= self._seed_notice()
        config["plan"] = json.loads(self.plan.to_json())
        records.write_json(self.out / records.CONFIG, config)

    def enter(self, key: jax.Array) -> tuple[Run, list[dict[str, Any]]]:
        """Begin, or go back to the last checkpoint; records after it are dropped and will be written again, the same.

        A run that was killed before it had a checkpoint has spent nothing: it is started with ``key``.
        """
        if self.job.resume:
            records.refuse_differences(self.out, self.job.identity)
        else:
            self._begin()

        # Once a folder holds a run, its logs are only added to.
        if not has_run(self.out):
            for name in self.logs:
                records.start_log(self.out, name)
        parts = (self.training, self.params, self.data)
        run = start_run(self.out, *parts, key=key, scan=False, resume=self.job.resume)
        kept_records = {name: records.rewind(self.out, name, run.step) for name in self.logs}
        history = kept_records[records.METRICS]
        for record in kept_records.get(records.DIAGNOSTICS, []):
            self.num_rows += record.get("batch_size", 0)
            self.num_not_finite += record.get("num_not_finite", 0)

        # There is a record of each epoch, in order. Only an epoch that a move to another machine has cost has none.
        recorded = [record["step"] for record in history]
        expected = [end for end in self.ends if end <= run.step]
        in_order = [end for end in expected if end in recorded]
        is_complete = recorded == expected
        if recorded != in_order or not (is_complete or run.num_lost):
            raise UserError(f"{self.out / records.METRICS} is damaged: its epochs do not lead up to step {run.step}")
        return run, history

    def epoch(self, run: Run, observer: TrainingObserver) -> dict[str, Any]:
        """Take the steps of one epoch; its records are written before its checkpoint."""
        begin = time.perf_counter()
        first = run.step
        record: dict[str, Any] = {}

        def write(infos: list[Info]) -> None:
            seconds = time.perf_counter() - begin
            record.update(self.record(run))
            record["steps_per_second"] = (run.step - first) / seconds
            records.append(self.out, records.METRICS, [record])
            for info in infos:
                self.num_rows += int((~np.asarray(info.is_padding)).sum())
                self.num_not_finite += num_not_finite(info)
            if self.job.diagnostics:
                clip_norm = self.trial.settings["l2_clip_norm"]
                rows = [summarize(info, step, clip_norm) for step, info in enumerate(infos, start=first + 1)]
                records.append(self.out, records.DIAGNOSTICS, rows)

        end = min(end for end in self.ends if end > first)
        run.advance(end - first, on_step=observer.on_step, before_checkpoint=write)
        return record

    def scores(self, state: State) -> dict[str, float]:
        """Return the scores of the model in a state."""
        return self._scores(self.trial, state.params)

    def record(self, run: Run) -> dict[str, Any]:
        """Return the public figures after the steps so far."""
        cost = dataclasses.asdict(self._cost(run.state))
        figures = {name: value for name, value in cost.items() if name.startswith(("mu_", "epsilon_"))}
        num_epochs = sum(end <= run.step for end in self.ends)
        return {"step": run.step, "epoch": num_epochs} | self.scores(run.state) | figures

    def finish(self, state: State, history: list[dict[str, Any]]) -> TrainingResult:
        """Write the model and the result."""
        result = TrainingResult(
            out=self.out,
            plan=self.plan,
            epochs=self.epochs,
            state=state,
            history=history,
            cost=self._cost(state),
            seeded=self.trial.seed is not None,
            scores=self.scores(state),
            scored_on=self.job.scored_on,
            private_warning=self._private_warning(),
        )
        records.save_model(self.out, state.params)
        privacy = dataclasses.asdict(result.cost)
        privacy["epsilon_clt_standing"] = "asymptotic estimate, may understate"
        summary = {
            **result.scores,
            "test_data": self.job.scored_on,
            "privacy": privacy,
            "seeded": result.seeded,
            "config": self.job.identity,
            "hyperparameters": self.hyperparameters,
            "fingerprint": records.fingerprint(),
        }
        summary |= self._seed_notice()
        records.write_json(self.out / records.RESULT, summary)
        return result

    def _private_warning(self) -> str | None:
        """Return a sentence for the owner where more than half of the losses or gradients were not finite."""
        if 2 * self.num_not_finite <= self.num_rows:
            return None
        return (
            f"PRIVATE: the losses or gradients of {self.num_not_finite} of {self.num_rows} examples were not "
            "finite, and such a gradient is dropped: the model and its scores are little more than noise. Look for NaN "
            "and infinities in the loss and the data. This number is itself private information, which epsilon does "
            "not cover: keep it to yourself"
        )

    def _seed_notice(self) -> dict[str, str]:
        """Return the notice for a file that holds the seed; nothing without a seed."""
        if self.trial.seed is None:
            return {}
        return {"notice": SEED_NOTICE}

    def _cost(self, state: State) -> Cost:
        return cost_of(state.opt_state, self.trial.delta)


def num_not_finite(info: Info) -> int:
    """Return how many examples of a batch had a loss or a gradient that is not finite."""
    is_broken = np.asarray(info.is_dropped) | ~np.isfinite(np.asarray(info.losses))
    return int(is_broken.sum())


def summarize(info: Info, step: int, l2_clip_norm: float) -> dict[str, Any]:
    """Return one line of private diagnostics."""
    # The rows of the batch that are examples.
    is_example = ~np.asarray(info.is_padding)
    losses = np.asarray(info.losses)[is_example]
    norms = np.asarray(info.norms)[is_example]
    row: dict[str, Any] = {"step": step, "batch_size": int(is_example.sum()), "num_not_finite": num_not_finite(info)}
    if not is_example.any():
        return row

    row["loss"] = float(losses.mean())
    row["fraction_clipped"] = float((norms > l2_clip_norm).mean())
    quantiles = np.quantile(norms, NORM_QUANTILES)
    row["norm_quantiles"] = {}
    for share, norm in zip(NORM_QUANTILES, quantiles, strict=True):
        row["norm_quantiles"][str(share)] = float(norm)
    return row
