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
    dataset = _one_of("dataset", get_args(DatasetName), source)
    preset = PRESETS[dataset]
    model = _one_of("model", get_args(ModelName), source, preset.model.model)
    optimizer = _one_of("optimizer", get_args(OptimizerName), source, preset.optimizer.optimizer)
    return make_task(dataset, model, optimizer)


def _one_of(field: str, known: tuple[str, ...], source: Source, default: str | None = None) -> str:
    """Return a field that is one of the ``known`` names."""
    name = source.content.get(field, default)
    if name not in known:
        source.fail(field, problem=f"{field} must be one of {', '.join(known)}, got {name!r}")
    return name
