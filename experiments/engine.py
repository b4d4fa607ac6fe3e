"""The model of a run, its private training, and how its accuracy is measured."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

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
    model = models.build(config.model.model, dataset.train_images.shape[1:], dataset.num_classes)
    params = model.init(init_key, jnp.zeros(dataset.train_images.shape[1:]))["params"]
    optimizer = {"sgd": optax.sgd, "adam": optax.adam}[config.optimizer.optimizer](config.optimizer.learning_rate)
    training = private_training(plan, models.example_loss(model), optimizer)
    return Engine(training, params, _make_accuracy(model, dataset))


def _make_accuracy(model: Any, dataset: Dataset) -> Callable[[Any], float]:
    @jax.jit
    def correct(params: Any, images: jax.Array, labels: jax.Array) -> jax.Array:
        return jnp.sum(jnp.argmax(model.apply({"params": params}, images), axis=-1) == labels)

    def accuracy(params: Any) -> float:
        starts = range(0, len(dataset.test_labels), EVALUATION_CHUNK)
        chunks = (slice(start, start + EVALUATION_CHUNK) for start in starts)
        total = sum(int(correct(params, dataset.test_images[c], dataset.test_labels[c])) for c in chunks)
        return total / len(dataset.test_labels)

    return accuracy
