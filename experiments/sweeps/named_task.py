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
from gdpjax.sweeps import Source, Task

FIELDS = ("dataset", "model", "optimizer")


def named_task(source: Source) -> Task:
    """Return the task of the fields of a sweep file; a name that is not there is refused with its line."""
    if "dataset" not in source.content:
        source.fail(problem=f"dataset is missing: one of {', '.join(PRESETS)}")
    dataset = source.one_of("dataset", get_args(DatasetName))
    preset = PRESETS[dataset]
    model = source.one_of("model", get_args(ModelName), preset.model.model)
    optimizer = source.one_of("optimizer", get_args(OptimizerName), preset.optimizer.optimizer)
    return make_task(dataset, model, optimizer)
