"""The cases that are trained: a model on made-up images of a data set's shape, with all that a private run fixes."""

import dataclasses
import functools
from typing import Any, NamedTuple

import numpy as np

from benchmarks.clipping.models import CNN, MLP, Model
from gdpjax.training import Plan, make_plan

LARGEST_OVERHEAD, LARGEST_NOISE_RATIO = 1.05, 1.5


class Case(NamedTuple):
    """One private training: a model, a data set's shape, and every constant of the plan.

    Args:
        steps_per_turn: how many steps are timed together.
        parts: whether the parts of a step are measured by themselves, too.
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


def _mnist_cnn(expected_batch_size: int, steps_per_turn: int) -> Case:
    return Case(
        name=f"mnist_cnn_{expected_batch_size}",
        title=f"MNIST CNN of the paper, 60,000 images, expected batch {expected_batch_size:,}",
        model=CNN(),
        image_shape=(28, 28, 1),
        num_examples=60_000,
        expected_batch_size=expected_batch_size,
        epochs=15,
        noise_multiplier=1.3,
        clip_norm=1.5,
        learning_rate=0.25,
        steps_per_turn=steps_per_turn,
    )


def _digits_mlp(num_examples: int, expected_batch_size: int, steps_per_turn: int) -> Case:
    """Opacus samples with one over a whole number of batches, so the number of examples is a multiple of the batch."""
    return Case(
        name=f"digits_mlp_{expected_batch_size}",
        title=f"MLP 64-64-10 of the digits, {num_examples:,} images, expected batch {expected_batch_size:,}",
        model=MLP((64, 64, 10)),
        image_shape=(64,),
        num_examples=num_examples,
        expected_batch_size=expected_batch_size,
        epochs=30,
        noise_multiplier=4.0,
        clip_norm=1.0,
        learning_rate=1.0,
        steps_per_turn=steps_per_turn,
    )


CPU = (
    _mnist_cnn(256, steps_per_turn=20)._replace(name="mnist_cnn", parts=True, overhead_target=LARGEST_OVERHEAD),
    _mnist_cnn(64, steps_per_turn=60),
    _mnist_cnn(1024, steps_per_turn=6),
    _digits_mlp(1792, 256, steps_per_turn=100)._replace(name="digits_mlp", parts=True),
    _digits_mlp(1792, 64, steps_per_turn=200),
    _digits_mlp(2048, 1024, steps_per_turn=40),
)


def tiny(case: Case) -> Case:
    """Return the same case made small enough for seconds: to try the code, not to measure anything."""
    model = case.model
    sizes: dict[str, Any] = dict(channels=(2, 4)) if isinstance(model, CNN) else dict(widths=(64, 8, 10))
    return case._replace(
        model=dataclasses.replace(model, **sizes),
        num_examples=200,
        expected_batch_size=20,
        epochs=1,
        noise_multiplier=4.0,
        steps_per_turn=3,
        title=f"{case.title} (tiny)",
    )


PRESETS = {"cpu": CPU, "cpu-tiny": tuple(tiny(case) for case in CPU)}
NUM_COORDINATES = {"cpu": 2_000_000, "cpu-tiny": 20_000}
