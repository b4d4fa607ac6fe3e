"""The training loop, with everything a run leaves behind."""

import dataclasses
import json
import time
from pathlib import Path
from typing import Any, Protocol

import jax
import numpy as np

import gdpjax
from experiments import records
from experiments.config import TrainConfig, identity, resume_command
from experiments.datasets import Dataset
from experiments.engine import Engine, build_engine
from experiments.errors import RunInterrupted, UserError
from experiments.keys import SEED_NOTICE, make_keys
from experiments.plan import epoch_end, make_plan
from experiments.privacy import Cost, cost_of
from gdpjax.training import CheckpointError, Info, Run, State, has_run, resume_run, start_run

NORM_QUANTILES = (0.1, 0.5, 0.9)


class Observer(Protocol):
    """Whoever watches a run; every method is called on the host, between compiled steps."""

    def on_start(self, plan: gdpjax.Plan, step: int) -> None:
        """The loop begins after ``step`` steps already done."""
        ...

    def on_step(self, step: int) -> None:
        """``step`` steps are done."""
        ...

    def on_lost(self, num_steps: int) -> None:
        """The run goes on elsewhere than where it was interrupted, and that many steps were charged in vain."""
        ...

    def on_epoch(self, record: dict[str, Any]) -> None:
        """An epoch is done and on record."""
        ...


@dataclasses.dataclass(frozen=True)
class Result:
    """A finished run. ``history`` holds the public record of every epoch, ``cost`` what the ledger says it cost."""

    out: Path
    plan: gdpjax.Plan
    epochs: int
    state: State
    history: list[dict[str, Any]]
    cost: Cost
    seeded: bool

    @property
    def scores(self) -> dict[str, float]:
        """Accuracy, and the error of a grade, of the final model, not of the best epoch."""
        return {name: value for name, value in self.history[-1].items() if name.startswith("test_")}


def train(config: TrainConfig, dataset: Dataset, out: Path, observer: Observer) -> Result:
    """Train in the folder ``out``, or continue the run there; Ctrl-C raises RunInterrupted."""
    plan = make_plan(config, dataset.num_examples)
    keys = make_keys(config.run.seed, identity(config))  # a resumed run goes on with its own
    engine = build_engine(config, dataset, plan, keys.init)
    recorder = _Recorder(config, dataset, engine, out)
    try:
        run, history = (recorder.resume if config.run.resume else recorder.begin)(keys.training)
        observer.on_start(plan, run.step)
        if run.num_lost:
            observer.on_lost(run.num_lost)
        while not run.finished:
            history.append(recorder.epoch(run, observer))
            observer.on_epoch(history[-1])
    except KeyboardInterrupt:
        raise RunInterrupted(_farewell(config, out, history[-1]["step"] if history else 0, plan)) from None
    except CheckpointError as error:
        raise UserError(str(error)) from error
    if not history:  # the budget went to steps whose outcome was lost
        history.append(recorder.record(run))
    return recorder.finish(run.state, history)


def _farewell(config: TrainConfig, out: Path, step: int, plan: gdpjax.Plan) -> str:
    return (
        f"interrupted: {step} of {plan.max_steps} steps are on record in {out}; "
        f"continue with\n  {resume_command(config, out)}"
    )


class _Recorder:
    """What a run writes beside its checkpoints, and what stays the same during it."""

    def __init__(self, config: TrainConfig, dataset: Dataset, engine: Engine, out: Path) -> None:
        self.config, self.engine, self.out = config, engine, out
        self.data = engine.training.place(dataset.train_inputs, dataset.train_labels)
        self.ends = [epoch_end(config, dataset.num_examples, e + 1) for e in range(config.optimizer.epochs)]
        self.logs = (records.METRICS, records.DIAGNOSTICS) if config.run.diagnostics else (records.METRICS,)

    def begin(self, key: jax.Array) -> tuple[Run, list[dict[str, Any]]]:
        """Write the configuration, then start the run; killed between them, ``resume`` starts it."""
        if (self.out / records.CONFIG).exists() or has_run(self.out):
            raise UserError(f"{self.out} already holds a run: add --resume to continue it, or choose another --out")
        try:
            self.out.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"cannot make the folder {self.out}: {error.strerror}; choose another --out") from error
        described = {"config": identity(self.config), "fingerprint": records.fingerprint()} | self._seed_notice()
        described["plan"] = json.loads(self.engine.training.plan.to_json())
        records.write_json(self.out / records.CONFIG, described)
        return self.start(key)

    def start(self, key: jax.Array) -> tuple[Run, list[dict[str, Any]]]:
        """Start the logs, then the run: once a folder holds one, its logs are only added to."""
        for name in self.logs:
            records.start_log(self.out, name)
        run = start_run(self.out, self.engine.training, self.engine.params, self.data, key=key, scan=False)
        return run, []

    def resume(self, key: jax.Array) -> tuple[Run, list[dict[str, Any]]]:
        """Back to the last checkpoint; records after it are dropped and will be written again, the same.

        A run that was killed before it had a checkpoint has spent nothing: it is started with ``key``.
        """
        records.refuse_differences(self.out, identity(self.config))
        if not has_run(self.out):
            return self.start(key)
        run = resume_run(self.out, self.engine.training, self.engine.params, self.data, scan=False)
        history, *_ = [records.rewind(self.out, name, run.step) for name in self.logs]
        kept = [record["step"] for record in history]
        # Where a move to another machine cost an epoch, that epoch has no record; else there is one for each.
        expected = [end for end in self.ends if end <= run.step]
        if kept != [end for end in expected if end in kept] or (kept != expected and not run.num_lost):
            raise UserError(f"{self.out / records.METRICS} is damaged: its epochs do not lead up to step {run.step}")
        return run, history

    def epoch(self, run: Run, observer: Observer) -> dict[str, Any]:
        """Take the steps of one epoch; its records are written before its checkpoint."""
        begun, first = time.perf_counter(), run.step
        made: list[dict[str, Any]] = []

        def write(infos: list[Info]) -> None:
            seconds = time.perf_counter() - begun
            made.append(self.record(run) | {"steps_per_second": (run.step - first) / seconds})
            records.append(self.out, records.METRICS, made)
            if self.config.run.diagnostics:
                rows = [summarize(d, first + i + 1, self.config.privacy.l2_clip_norm) for i, d in enumerate(infos)]
                records.append(self.out, records.DIAGNOSTICS, rows)

        end = next(end for end in self.ends if end > first)
        run.advance(end - first, on_step=observer.on_step, before_checkpoint=write)
        return made[0]

    def _seed_notice(self) -> dict[str, str]:
        """What a file that names the seed must say with it."""
        return {} if self.config.run.seed is None else {"notice": SEED_NOTICE}

    def _cost(self, state: State) -> Cost:
        return cost_of(state.opt_state, self.config.privacy.delta)

    def record(self, run: Run) -> dict[str, Any]:
        """The public figures after the steps so far."""
        cost = dataclasses.asdict(self._cost(run.state))
        figures = {name: cost[name] for name in cost if name.startswith(("mu_", "epsilon_"))}
        epoch = sum(end <= run.step for end in self.ends)
        return {"step": run.step, "epoch": epoch} | self.engine.scores(run.state.params) | figures

    def finish(self, state: State, history: list[dict[str, Any]]) -> Result:
        """Write the model and the result."""
        cost, seeded, plan = self._cost(state), self.config.run.seed is not None, self.engine.training.plan
        result = Result(self.out, plan, self.config.optimizer.epochs, state, history, cost, seeded)
        records.save_model(self.out, state.params)
        summary = {
            **result.scores,
            "test_data": "treated as public",
            "privacy": dataclasses.asdict(cost) | {"epsilon_clt_standing": "asymptotic estimate, may understate"},
            "seeded": result.seeded,
            "config": identity(self.config),
            "fingerprint": records.fingerprint(),
        } | self._seed_notice()
        records.write_json(self.out / records.RESULT, summary)
        return result


def summarize(diagnostics: Info, step: int, l2_clip_norm: float) -> dict[str, Any]:
    """One line of private diagnostics."""
    real = ~np.asarray(diagnostics.is_padding)
    losses, norms = np.asarray(diagnostics.losses)[real], np.asarray(diagnostics.norms)[real]
    row: dict[str, Any] = {"step": step, "batch_size": int(real.sum())}
    if real.any():
        row["loss"] = float(losses.mean())
        row["fraction_clipped"] = float((norms > l2_clip_norm).mean())
        quantiles = np.quantile(norms, NORM_QUANTILES)
        row["norm_quantiles"] = {str(q): float(value) for q, value in zip(NORM_QUANTILES, quantiles, strict=True)}
    return row
