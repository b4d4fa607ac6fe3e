"""The seven data sets, their networks and optimizers as tasks of `gdpjax.sweeps`."""

import functools
from typing import Any

import optax

from experiments import data, models
from experiments.config import PRESETS, TrainConfig
from experiments.models.scores import initial_params, scores_of
from gdpjax.sweeps import Model, Task

OPTIMIZERS: dict[str, Any] = {"sgd": optax.sgd, "adam": optax.adam}


def load(dataset: str) -> Any:
    """Training data and test data."""
    found = data.load(dataset)
    return (found.train_inputs, found.train_labels), (found.test_inputs, found.test_labels)


def build(dataset: str, model: str, example: Any) -> Model:
    """Return a network with the cross entropy of one example as its loss; how many classes there are is public."""
    facts, (inputs, _) = data.FACTS[dataset], example
    network = models.build(model, facts.num_classes)
    init = functools.partial(initial_params, network, inputs)
    return Model(init, models.example_loss(network), scores_of(network, facts.num_classes, facts.graded))


def make_task(dataset: str, model: str, optimizer: str) -> Task:
    """Return a task by its names. Hyperparameters that are left out are the data set's."""
    return Task(
        load=functools.partial(load, dataset),
        build=functools.partial(build, dataset, model),
        optimizer=OPTIMIZERS[optimizer],
        defaults=numbers_of(PRESETS[dataset]),
        names={"dataset": dataset, "model": model, "optimizer": optimizer},
    )


def numbers_of(config: TrainConfig) -> dict[str, float]:
    """Return the hyperparameters of a configuration, and delta."""
    privacy, optimizer = config.privacy, config.optimizer
    return {
        "learning_rate": optimizer.learning_rate,
        "l2_clip_norm": privacy.l2_clip_norm,
        "noise_multiplier": privacy.noise_multiplier,
        "batch_size": optimizer.batch_size,
        "epochs": optimizer.epochs,
        "delta": privacy.delta,
    }
