"""What is trained: a model on made-up images of a data set's shape, with everything that a private run fixes."""

import dataclasses
import functools
from typing import Any, NamedTuple

import numpy as np

from benchmarks.clipping.models import CNN, MLP, Model
from gdpjax.training import Plan, make_plan

LARGEST_OVERHEAD, LARGEST_NOISE_RATIO = 1.05, 1.5


class Case(NamedTuple):
    """One private training, and how many of its steps make one turn; with ``overhead_target`` or without."""

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
    overhead_target: float | None = None
    delta: float = 1e-5

    def plan(self) -> Plan:
        return make_plan(
            clip=self.clip_norm, max_examples=self.num_examples, expected_batch_size=self.expected_batch_size,
            epochs=self.epochs, delta=self.delta, noise_multiplier=self.noise_multiplier,
        )  # fmt: skip

    def params(self) -> Any:
        """The first parameters, NumPy arrays."""
        return self.model.init(np.random.default_rng(0))[0]

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


CPU = (
    Case(
        "mnist_cnn", "MNIST CNN of the paper, 60,000 images, expected batch 256", CNN(), (28, 28, 1), 60_000, 256, 15,
        noise_multiplier=1.3, clip_norm=1.5, learning_rate=0.25, steps_per_turn=20, overhead_target=LARGEST_OVERHEAD,
    ),
    Case(
        "digits_mlp", "MLP 64-64-10 of the digits, 1,792 images (seven batches), expected batch 256",
        MLP((64, 64, 10)), (64,), 1792, 256, 30, noise_multiplier=4.0, clip_norm=1.0, learning_rate=1.0,
        steps_per_turn=100,
    ),
)  # fmt: skip


def tiny(case: Case) -> Case:
    """The same in seconds: to try the code, not to measure anything."""
    model = case.model
    sizes: dict[str, Any] = dict(channels=(2, 4)) if isinstance(model, CNN) else dict(widths=(64, 8, 10))
    return case._replace(
        model=dataclasses.replace(model, **sizes), num_examples=200, expected_batch_size=20, epochs=1,
        noise_multiplier=4.0, steps_per_turn=3, title=f"{case.title} (tiny)",
    )  # fmt: skip


PRESETS = {"cpu": CPU, "cpu-tiny": tuple(tiny(case) for case in CPU)}
NUM_COORDINATES = {"cpu": 2_000_000, "cpu-tiny": 20_000}
