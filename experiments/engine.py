"""The model of a run, its private training, and how its accuracy is measured."""

import dataclasses
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

EVALUATION_CHUNK = 1000


@dataclasses.dataclass(frozen=True)
class Engine:
    """Training, initial parameters and ``accuracy(params)`` of one run."""

    training: Training
    params: Any
    accuracy: Callable[[Any], float]


def build_engine(config: TrainConfig, dataset: Dataset, plan: gdpjax.Plan, init_key: jax.Array) -> Engine:
    """Model, loss and optimizer of one run."""
    model = build_model(config, dataset)
    params = initial_params(model, dataset, init_key)
    training = build_training(config, model, plan, config.optimizer.learning_rate)
    return Engine(training, params, make_accuracy(model, dataset))


def build_model(config: TrainConfig, dataset: Dataset) -> nn.Module:
    """The network of a configuration, for the inputs of a data set."""
    return models.build(config.model.model, dataset.train_inputs.shape[1:], dataset.num_classes)


def initial_params(model: nn.Module, dataset: Dataset, key: jax.Array) -> Any:
    """Random weights; works in compiled code."""
    return model.init(key, jnp.zeros(dataset.train_inputs.shape[1:]))["params"]


def build_training(config: TrainConfig, model: nn.Module, plan: gdpjax.Plan, learning_rate: Any) -> Training:
    """The private training of a plan. The learning rate, and the plan's noise and clip norm, may be traced."""
    optimizer = {"sgd": optax.sgd, "adam": optax.adam}[config.optimizer.optimizer](learning_rate)
    return private_training(plan, models.example_loss(model), optimizer)


def make_accuracy(model: nn.Module, dataset: Dataset) -> Callable[[Any], float]:
    """``accuracy(params)`` on the test data."""

    @jax.jit
    def correct(params: Any, inputs: jax.Array, labels: jax.Array) -> jax.Array:
        logits = jnp.asarray(model.apply({"params": params}, inputs))
        return jnp.sum(jnp.argmax(logits, axis=-1) == labels)

    def accuracy(params: Any) -> float:
        starts = range(0, len(dataset.test_labels), EVALUATION_CHUNK)
        chunks = (slice(start, start + EVALUATION_CHUNK) for start in starts)
        total = sum(int(correct(params, dataset.test_inputs[c], dataset.test_labels[c])) for c in chunks)
        return total / len(dataset.test_labels)

    return accuracy
