"""The cases that are trained: a model on made-up images of a data set's shape, with all that a private run fixes."""

import functools
import pathlib
import tomllib
from typing import Any, NamedTuple

import numpy as np

from benchmarks.clipping.cases import tiny_model, with_model
from benchmarks.clipping.models import Model
from gdpjax.training import Plan, make_plan


class Case(NamedTuple):
    """One private training: a model, a data set's shape, and every constant of the plan; `cases.toml` lists them.

    Args:
        steps_per_turn: how many steps are timed together.
        parts: whether a private step is timed beside the clipped step in it, too.
        overhead_target: the largest time of a private step, over that of the clipped step in it.
    """

    name: str
    title: str
    model: Model
    image_shape: tuple[int, ...]
    num_examples: int
    expected_batch_size: int
    epochs: float
    noise_multiplier: float
    clip_norm: float
    learning_rate: float
    steps_per_turn: int
    parts: bool = False
    overhead_target: float | None = None
    delta: float = 1e-5

    def plan(self) -> Plan:
        """Return the plan that gdpjax trains by."""
        return make_plan(
            clip=self.clip_norm,
            max_examples=self.num_examples,
            expected_batch_size=self.expected_batch_size,
            epochs=self.epochs,
            delta=self.delta,
            noise_multiplier=self.noise_multiplier,
        )

    def params(self) -> Any:
        """Return the first parameters, NumPy arrays."""
        return self.model.init(np.random.default_rng(0))

    def data(self) -> tuple[np.ndarray, np.ndarray]:
        """(images, labels): a random picture for each of ten classes, under as much noise."""
        return _data(self.num_examples, self.image_shape)


@functools.cache
def _data(num_examples: int, image_shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(1)
    y = rng.integers(10, size=num_examples, dtype=np.int32)
    x = rng.standard_normal((num_examples, *image_shape), np.float32)
    x += rng.standard_normal((10, *image_shape), np.float32)[y]
    return x, y


def _tiny(case: Case) -> Case:
    """Return the same case made small enough for seconds: to try the code, not to measure anything."""
    model: Any = tiny_model(case.model)
    shape = model.widths[:1] if len(case.image_shape) == 1 else case.image_shape
    return case._replace(
        model=model,
        image_shape=shape,
        num_examples=200,
        expected_batch_size=20,
        epochs=1,
        noise_multiplier=4.0,
        steps_per_turn=3,
        title=f"{case.title} (tiny)",
    )


_FILE = tomllib.loads(pathlib.Path(__file__).with_name("cases.toml").read_text())
CPU = tuple(Case(**with_model(settings)) for settings in _FILE["cpu"])
PRESETS = {"cpu": CPU, "cpu-tiny": tuple(map(_tiny, CPU))}
