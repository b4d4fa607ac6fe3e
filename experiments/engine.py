"""The model of a run, its private training, and how it is judged."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn

import gdpjax
from experiments import models
from experiments.config import TrainConfig
from experiments.datasets import Dataset
from gdpjax.training import Training, private_training

EVALUATION_CHUNK = 5000


@dataclasses.dataclass(frozen=True)
class Engine:
    """Training, initial parameters and ``scores(params)`` of one run."""

    training: Training
    params: Any
    scores: Callable[[Any], dict[str, float]]


def build_engine(config: TrainConfig, dataset: Dataset, plan: gdpjax.Plan, init_key: jax.Array) -> Engine:
    """Model, loss and optimizer of one run."""
    model = build_model(config, dataset)
    params = initial_params(model, dataset, init_key)
    training = build_training(config, model, plan, config.optimizer.learning_rate)
    return Engine(training, params, make_scores(model, dataset))


def build_model(config: TrainConfig, dataset: Dataset) -> nn.Module:
    """The network of a configuration, for the inputs of a data set."""
    return models.build(config.model.model, dataset.example, dataset.num_classes)


def initial_params(model: nn.Module, dataset: Dataset, key: jax.Array) -> Any:
    """Random weights; works in compiled code."""
    return model.init(key, jnp.zeros(dataset.example.shape, dataset.example.dtype))["params"]


def build_training(config: TrainConfig, model: nn.Module, plan: gdpjax.Plan, learning_rate: Any) -> Training:
    """The private training of a plan. The learning rate, and the plan's noise and clip norm, may be traced."""
    optimizer = {"sgd": optax.sgd, "adam": optax.adam}[config.optimizer.optimizer](learning_rate)
    return private_training(plan, models.example_loss(model), optimizer)


def make_scores(model: nn.Module, dataset: Dataset) -> Callable[[Any], dict[str, float]]:
    """``scores(params)`` on the test data: ``test_accuracy``, and ``test_rmse`` where labels are grades.

    The second is the root of the mean squared difference between a grade and the one that the model expects.
    """

    @jax.jit
    def totals(params: Any, inputs: jax.Array, labels: jax.Array) -> tuple[jax.Array, jax.Array]:
        logits = jnp.asarray(model.apply({"params": params}, inputs))
        expected = jax.nn.softmax(logits) @ jnp.arange(dataset.num_classes, dtype=logits.dtype)
        return jnp.sum(jnp.argmax(logits, axis=-1) == labels), jnp.sum((expected - labels) ** 2)

    def scores(params: Any) -> dict[str, float]:
        count = len(dataset.test_labels)
        chunks = (slice(start, start + EVALUATION_CHUNK) for start in range(0, count, EVALUATION_CHUNK))
        found = [totals(params, dataset.test_inputs[c], dataset.test_labels[c]) for c in chunks]
        correct, squares = (sum(map(float, column)) for column in zip(*found, strict=True))
        rmse = {"test_rmse": math.sqrt(squares / count)} if dataset.graded else {}
        return {"test_accuracy": correct / count} | rmse

    return scores
