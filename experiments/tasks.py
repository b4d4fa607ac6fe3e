"""The seven data sets, their networks and optimizers as tasks of `gdpjax.sweeps`, and how a sweep file names them.

dataset = "adult"
model = "paper_mlp"      # left out, as in ``train --dataset adult``
optimizer = "sgd"

[hyperparameters]        # what is left out is as in ``train --dataset adult``
learning_rate = [0.1, 0.2]
"""

import functools
from typing import Any, get_args

import optax

from experiments import datasets, models
from experiments.config import PRESETS, DatasetName, ModelName, OptimizerName, TrainConfig
from experiments.engine import initial_params, scores_of
from gdpjax.sweeps import Model, Reader, Task


def sgd(learning_rate: float) -> optax.GradientTransformation:
    """DP-SGD."""
    return optax.sgd(learning_rate)


def adam(learning_rate: float) -> optax.GradientTransformation:
    """DP-Adam."""
    return optax.adam(learning_rate)


OPTIMIZERS = {"sgd": sgd, "adam": adam}


def load(dataset: str) -> Any:
    """Training data and test data."""
    found = datasets.load(dataset)
    return (found.train_inputs, found.train_labels), (found.test_inputs, found.test_labels)


def build(dataset: str, model: str, example: Any) -> Model:
    """A network with the cross entropy of one example as its loss; how many classes there are is public."""
    facts, (inputs, _) = datasets.FACTS[dataset], example
    network = models.build(model, inputs, facts.num_classes)
    init = functools.partial(initial_params, network, inputs)
    return Model(init, models.example_loss(network), scores_of(network, facts.num_classes, facts.graded))


def make_task(dataset: str, model: str, optimizer: str) -> Task:
    """A task by its names. Hyperparameters that are left out are the data set's."""
    return Task(
        load=functools.partial(load, dataset),
        build=functools.partial(build, dataset, model),
        optimizer=OPTIMIZERS[optimizer],
        defaults=numbers_of(PRESETS[dataset]),
        names={"dataset": dataset, "model": model, "optimizer": optimizer},
    )


def numbers_of(config: TrainConfig) -> dict[str, float]:
    """The hyperparameters of a configuration, and delta."""
    privacy, optimizer = config.privacy, config.optimizer
    return {
        "learning_rate": optimizer.learning_rate,
        "l2_clip_norm": privacy.l2_clip_norm,
        "noise_multiplier": privacy.noise_multiplier,
        "batch_size": optimizer.batch_size,
        "epochs": optimizer.epochs,
        "delta": privacy.delta,
    }


class NamedTask:
    """The fields ``dataset``, ``model`` and ``optimizer`` of a sweep file."""

    fields: tuple[str, ...] = ("dataset", "model", "optimizer")

    def task(self, reader: Reader) -> Task:
        """Look the names up; what is not there is refused with its line."""
        if "dataset" not in reader.content:
            reader.fail((), f"dataset is missing: one of {', '.join(PRESETS)}")
        dataset = reader.one_of("dataset", get_args(DatasetName))
        preset = PRESETS[dataset]
        model = reader.one_of("model", get_args(ModelName), preset.model.model)
        optimizer = reader.one_of("optimizer", get_args(OptimizerName), preset.optimizer.optimizer)
        return make_task(dataset, model, optimizer)
