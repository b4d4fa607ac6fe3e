"""The cases that are measured: a model, a batch size, a clip norm, and what is aimed at. `cases.toml` lists them."""

import dataclasses
import pathlib
import tomllib
from typing import Any, NamedTuple

import numpy as np

from benchmarks.clipping import models

NO_PRIVACY = "no privacy"
AUTO = "gdpjax auto"
TORCH_NO_PRIVACY = "torch, no privacy"
OPACUS_GHOST = "Opacus ghost"


class Target(NamedTuple):
    """The figures that are aimed at on one model.

    Args:
        time: the largest step time, over the step without privacy.
        memory: the largest temporary memory, over the step without privacy.
        speedup: how many times faster than every peer.
    """

    time: float | None = None
    memory: float | None = None
    speedup: float = 1.0


class Case(NamedTuple):
    """One model on one batch.

    Args:
        name: what the command line calls it.
        title: what the tables call it.
        model: the sizes, the loss and the data.
        batch_size: the number of examples.
        clip_norm: about the median norm, so that half of the rows are clipped.
        target: what is aimed at.
        contenders: the names of those that are measured; all if empty.
    """

    name: str
    title: str
    model: models.Model
    batch_size: int
    clip_norm: float
    target: Target = Target()
    contenders: tuple[str, ...] = ()

    def data(self, seed: int = 0) -> tuple[Any, ...]:
        """Return (parameters, x, y) as NumPy arrays."""
        rng = np.random.default_rng(seed)
        return (self.model.init(rng), *self.model.batch(rng, self.batch_size))

    def measures(self, contender: str) -> bool:
        """Return whether this contender is measured on this case."""
        return not self.contenders or contender in self.contenders


_FILE = tomllib.loads(pathlib.Path(__file__).with_name("cases.toml").read_text())


def with_model(settings: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of a case with its model, and tuples for lists."""
    kind, sizes = settings["model"]["kind"], _tuples(settings["model"])
    del sizes["kind"]
    return _tuples(settings) | {"model": getattr(models, kind)(**sizes)}


def _tuples(settings: dict[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in settings.items()}


def tiny_model(model: Any) -> Any:
    """Return the same model in seconds: to try the code, not to measure anything."""
    sizes = _FILE["tiny"][type(model).__name__]
    return dataclasses.replace(model, **_tuples(sizes))


CPU = tuple(
    Case(**with_model(settings))._replace(target=Target(**settings.get("target", {}))) for settings in _FILE["cpu"]
)
PRESETS = {
    "cpu": CPU,
    "cpu-tiny": tuple(
        case._replace(model=tiny_model(case.model), title=f"{case.title} (tiny)", batch_size=8, clip_norm=1.0)
        for case in CPU
    ),
}
