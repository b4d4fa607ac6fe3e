"""A task that a sweep file names: a data set, and, where they are not its own, a model and an optimizer.

dataset = "adult"
model = "paper_mlp"      # left out, as in ``train --dataset adult``
optimizer = "sgd"

[hyperparameters]        # what is left out is as in ``train --dataset adult``
learning_rate = [0.1, 0.2]
"""

from typing import get_args

from experiments.config import PRESETS, DatasetName, ModelName, OptimizerName
from experiments.train.tasks import make_task
from gdpjax.sweeps import Reader, Task


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
