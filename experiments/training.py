"""The training loop, with everything a run leaves behind."""

import dataclasses
import time
from pathlib import Path
from typing import Any, Protocol

import jax
import numpy as np

from experiments import checkpoint, records
from experiments.config import TrainConfig, identity, resume_command
from experiments.datasets import Dataset
from experiments.engine import Diagnostics, Engine, State, build_engine
from experiments.errors import RunInterrupted, UserError
from experiments.keys import SEED_NOTICE, make_keys
from experiments.plan import Plan, make_plan
from experiments.privacy import Cost, cost_of

NORM_QUANTILES = (0.1, 0.5, 0.9)


class Observer(Protocol):
    """Whoever watches a run; every method is called on the host, between compiled steps."""

    def on_start(self, plan: Plan, step: int) -> None:
        """The loop begins after ``step`` steps already done."""
        ...

    def on_step(self, step: int) -> None:
        """``step`` steps are done."""
        ...

    def on_epoch(self, record: dict[str, Any]) -> None:
        """An epoch is done and on record."""
        ...


@dataclasses.dataclass(frozen=True)
class Result:
    """A finished run. ``history`` holds the public record of every epoch, ``cost`` what the ledger says it cost."""

    out: Path
    plan: Plan
    state: State
    history: list[dict[str, Any]]
    cost: Cost
    seeded: bool

    @property
    def test_accuracy(self) -> float:
        """Accuracy of the final model, not of the best epoch."""
        return self.history[-1]["test_accuracy"]


def train(config: TrainConfig, dataset: Dataset, out: Path, observer: Observer) -> Result:
    """Train in the folder ``out``, or continue the run there; Ctrl-C raises RunInterrupted."""
    plan = make_plan(config, dataset.num_examples)
    if checkpoint.exists(out) and not config.run.resume:
        raise UserError(f"{out} already holds a run: add --resume to continue it, or choose another --out")
    keys = make_keys(config.run.seed)  # a resumed run replaces them by its own
    engine = build_engine(config, dataset, plan, keys)
    run = _Run(config, dataset, engine, out)
    if config.run.resume:
        step, state, sampling_key, history = run.resume()
    else:
        step, state, sampling_key, history = run.begin(keys.sampling)
    observer.on_start(plan, step)
    try:
        while step < plan.num_steps:
            state, record = run.epoch(len(history) + 1, step, state, sampling_key, observer)
            checkpoint.save(out, record["step"], (state, sampling_key), run.identity)
            step = record["step"]
            history.append(record)
            observer.on_epoch(record)
    except KeyboardInterrupt:
        raise RunInterrupted(_farewell(config, out, step, plan)) from None
    return run.finish(state, history)


def _farewell(config: TrainConfig, out: Path, step: int, plan: Plan) -> str:
    return (
        f"interrupted: {step} of {plan.num_steps} steps are on record in {out}; "
        f"continue with\n  {resume_command(config, out)}"
    )


class _Run:
    """What stays the same during a run: its folder, its engine and its identity."""

    def __init__(self, config: TrainConfig, dataset: Dataset, engine: Engine, out: Path) -> None:
        self.config, self.engine, self.out = config, engine, out
        self.fingerprint = records.fingerprint()
        # the digest is a function of private data; it is only ever kept with the checkpoints
        self.identity = identity(config) | self.fingerprint | {"data_sha256": dataset.digest()}
        self.logs = (records.METRICS, records.DIAGNOSTICS) if config.run.diagnostics else (records.METRICS,)

    def begin(self, sampling_key: jax.Array) -> tuple[int, State, jax.Array, list[dict[str, Any]]]:
        """Start the records; the checkpoint comes last, since a folder with a checkpoint holds a run."""
        try:
            self.out.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"cannot make the folder {self.out}: {error.strerror}; choose another --out") from error
        for name in self.logs:
            records.start_log(self.out, name)
        described = {"config": identity(self.config), "fingerprint": self.fingerprint} | self._seed_notice()
        records.write_json(self.out / records.CONFIG, described | {"plan": dataclasses.asdict(self.engine.plan)})
        checkpoint.save(self.out, 0, (self.engine.initial, sampling_key), self.identity)
        return 0, self.engine.initial, sampling_key, []

    def resume(self) -> tuple[int, State, jax.Array, list[dict[str, Any]]]:
        """Back to the last checkpoint; records after it are dropped and will be written again, the same."""
        template = (self.engine.initial, make_keys(0).sampling)
        step, (state, sampling_key) = checkpoint.restore(self.out, template, self.identity)
        history, *_ = [records.rewind(self.out, name, step) for name in self.logs]
        expected = [self.engine.plan.epoch_end(epoch + 1) for epoch in range(len(history))]
        if [record["step"] for record in history] != expected or (expected or [0])[-1] != step:
            raise UserError(f"{self.out / records.METRICS} is damaged: its epochs do not lead up to step {step}")
        return step, state, sampling_key, history

    def epoch(
        self, epoch: int, step: int, state: State, sampling_key: jax.Array, observer: Observer
    ) -> tuple[State, dict[str, Any]]:
        """Take the steps of one epoch and put them on record."""
        begun, first = time.perf_counter(), step
        diagnostics = []
        for step in range(first, self.engine.plan.epoch_end(epoch)):
            state, step_diagnostics = self.engine.step(state, *self.engine.draw(sampling_key, step))
            diagnostics.append(step_diagnostics)
            observer.on_step(step + 1)
        jax.block_until_ready(state)
        seconds = time.perf_counter() - begun
        record = self._record(epoch, step + 1, state) | {"steps_per_second": (step + 1 - first) / seconds}
        records.append(self.out, records.METRICS, [record])
        if self.config.run.diagnostics:
            rows = [summarize(d, first + i + 1, self.config.privacy.l2_clip_norm) for i, d in enumerate(diagnostics)]
            records.append(self.out, records.DIAGNOSTICS, rows)
        return state, record

    def _seed_notice(self) -> dict[str, str]:
        """What a file that names the seed must say with it."""
        return {} if self.config.run.seed is None else {"notice": SEED_NOTICE}

    def _cost(self, state: State) -> Cost:
        return cost_of(state.opt_state, self.config.privacy.delta)

    def _record(self, epoch: int, step: int, state: State) -> dict[str, Any]:
        cost = dataclasses.asdict(self._cost(state))
        figures = {name: cost[name] for name in cost if name.startswith(("mu_", "epsilon_"))}
        return {"step": step, "epoch": epoch, "test_accuracy": self.engine.accuracy(state.params)} | figures

    def finish(self, state: State, history: list[dict[str, Any]]) -> Result:
        """Write the model and the result."""
        cost = self._cost(state)
        result = Result(self.out, self.engine.plan, state, history, cost, self.config.run.seed is not None)
        records.save_model(self.out, state.params)
        summary = {
            "test_accuracy": result.test_accuracy,
            "test_data": "treated as public",
            "privacy": dataclasses.asdict(cost) | {"epsilon_clt_standing": "asymptotic estimate, may understate"},
            "seeded": result.seeded,
            "config": identity(self.config),
            "fingerprint": self.fingerprint,
        } | self._seed_notice()
        records.write_json(self.out / records.RESULT, summary)
        return result


def summarize(diagnostics: Diagnostics, step: int, l2_clip_norm: float) -> dict[str, Any]:
    """One line of private diagnostics."""
    real = ~diagnostics.is_padding
    losses, norms = np.asarray(diagnostics.losses)[real], np.asarray(diagnostics.norms)[real]
    row: dict[str, Any] = {"step": step, "batch_size": int(real.sum())}
    if real.any():
        row["loss"] = float(losses.mean())
        row["fraction_clipped"] = float((norms > l2_clip_norm).mean())
        quantiles = np.quantile(norms, NORM_QUANTILES)
        row["norm_quantiles"] = {str(q): float(value) for q, value in zip(NORM_QUANTILES, quantiles, strict=True)}
    return row
