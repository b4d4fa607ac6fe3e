"""Trainings, those of one shape in one compiled program, each on record once it is done."""

import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import msgspec
import numpy as np
import optax

import gdpjax
from experiments import models
from experiments.correlated.methods import Task
from experiments.data import Dataset
from experiments.models.scores import initial_params, make_scores
from gdpjax.sweeps import UserError, records
from gdpjax.training import Data, private_training

TRIALS = "trials.jsonl"
WIDTH = 32
"""Trainings that are one program, at most; a crash loses those."""


class Trial(NamedTuple):
    """One training. ``stage`` is "search", judged by held-out training data, or "final", by the test data."""

    stage: str
    method: str
    epsilon: float
    epochs: int
    learning_rate: float
    seed: int


class Line(msgspec.Struct):
    """The parts of a line of the record that are read."""

    trial: Trial
    accuracy: float


def recorded(folder: Path) -> dict[Trial, float]:
    """Return the accuracy of each training on record, without a last line that a crash cut off."""
    path = folder / TRIALS
    if not path.is_file():
        return {}
    whole = path.read_bytes()
    whole = whole[: whole.rfind(b"\n") + 1]
    records.write_atomically(path, whole)
    lines = msgspec.json.Decoder(Line).decode_lines(whole)
    return {line.trial: line.accuracy for line in lines}


def train_missing(
    trials: Sequence[Trial],
    plans: dict[Trial, gdpjax.Plan],
    task: Task,
    dataset: Dataset,
    folder: Path,
    done: Callable[[int], None],
) -> dict[Trial, float]:
    """Train what is not on record, and return the accuracies of all.

    Trainings whose plans differ in the noise multiplier alone, in number at most `WIDTH`, are one program.
    """
    before = recorded(folder)

    # What one program can train is a group.
    groups: dict[str, list[Trial]] = {}
    for trial in trials:
        if trial in before:
            done(1)
            continue
        shape = _shape_of(plans[trial])
        groups.setdefault(shape, []).append(trial)

    # Each chunk of a group is on record as soon as it is trained.
    for group in groups.values():
        program = _program(plans[group[0]], task, dataset)
        for start in range(0, len(group), WIDTH):
            chunk = group[start : start + WIDTH]
            accuracies = program(chunk, [plans[trial].noise_multiplier for trial in chunk])
            pairs = zip(chunk, accuracies, strict=True)
            records.append(folder, TRIALS, [{"trial": list(trial), "accuracy": value} for trial, value in pairs])
            done(len(chunk))
    after = recorded(folder)
    return {trial: after[trial] for trial in trials}


def _shape_of(plan: gdpjax.Plan) -> str:
    """Return what plans have in common that one program can train."""
    document = json.loads(plan.replace(noise_multiplier=1.0).to_json())
    return json.dumps(document, sort_keys=True)


def _program(
    plan: gdpjax.Plan,
    task: Task,
    dataset: Dataset,
) -> Callable[[Sequence[Trial], Sequence[float]], list[float]]:
    """Return the function from trainings and their noise multipliers to their accuracies."""
    model = models.build(task.model, dataset.num_classes)
    loss = models.example_loss(model)
    any_training = private_training(plan, loss, optax.sgd(1.0))
    data = any_training.place(dataset.train_inputs, dataset.train_labels)
    scores = make_scores(model, dataset)

    def one(noise_multiplier: Any, learning_rate: Any, key: Any, data: Data) -> tuple[Any, Any]:
        traced = plan.replace(noise_multiplier=noise_multiplier)
        training = private_training(traced, loss, optax.sgd(learning_rate))
        init_key, run_key = jax.random.split(key)
        params = initial_params(model, dataset.example, init_key)
        state = training.init(params, run_key)
        state, _ = training.run_steps(state, data, plan.num_steps)
        return state.params, state.finished

    together = jax.jit(jax.vmap(one, in_axes=(0, 0, 0, None)))

    def train(trials: Sequence[Trial], noise: Sequence[float]) -> list[float]:
        noise_multipliers = jnp.asarray(noise, jnp.float32)
        rates = jnp.asarray([trial.learning_rate for trial in trials])
        keys = jnp.stack([_key_of(trial) for trial in trials])
        params, finished = together(noise_multipliers, rates, keys, data)
        if not np.all(np.asarray(finished)):
            raise UserError("a batch was above the capacity of its plan; run again with another number of seeds")

        # One model after the other on the test data.
        accuracies = []
        for number in range(len(trials)):
            of_model = jax.tree.map(lambda leaf, number=number: leaf[number], params)
            accuracies.append(scores(of_model)["test_accuracy"])
        return accuracies

    return train


def _key_of(trial: Trial) -> jax.Array:
    """Return the key of a training. It is seeded, so not private against anybody who knows the seed."""
    digest = hashlib.sha256(json.dumps(list(trial)).encode()).digest()
    return jax.random.key(int.from_bytes(digest[:4], "little"))
