"""The experiments of arXiv:1911.11607 as configurations, with what was published of each.

Where a learning rate or clip norm was not published ("chosen"), it is that of the row above it with the next larger
noise. Runs are seeded, so that they can be repeated to the bit, and are therefore not private against anybody who knows
the seed.
"""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from experiments.config import PRESETS, RunConfig, TrainConfig

FIGURE4_EPSILON = {20: 1.34, 70: 8.68}
"""What the runs of figure 4 were said to cost, by the number of epochs."""

FIGURE4_ACCURACY = {
    20: {1.3: 0.949, 1.06: 0.960},
    70: {0.7: 0.972, 0.638: 0.9728},
}
"""Published accuracies of figure 4, of one run each, by the number of epochs and the noise multiplier."""

CERTIFIED_NOISE = {20: 1.0902, 70: 0.6556}
"""The smallest noise multipliers, rounded up, whose certified epsilon after those epochs is at most that."""

CHOSEN = "learning rate and clip norm chosen by us"


class Row(NamedTuple):
    """One line of a table: a configuration, what was published of it, and how many seeds it gets here."""

    name: str
    config: TrainConfig
    published: Mapping[str, float]
    seeds: int = 1
    chosen: str = ""

    def run(self, seed: int) -> TrainConfig:
        """Return the configuration of one seed."""
        return dataclasses.replace(self.config, run=RunConfig(seed=seed))


def _mnist_config(noise: float, learning_rate: float, clip: float, epochs: int) -> TrainConfig:
    """Return the preset of MNIST with other numbers."""
    base = PRESETS["mnist"]
    privacy = dataclasses.replace(base.privacy, noise_multiplier=noise, l2_clip_norm=clip)
    optimizer = dataclasses.replace(base.optimizer, learning_rate=learning_rate, epochs=epochs)
    return dataclasses.replace(base, privacy=privacy, optimizer=optimizer)


def _mnist_row(
    noise: float,
    learning_rate: float,
    clip: float,
    epochs: int,
    published: tuple[float, float, float, float],
    seeds: int = 1,
    chosen: str = "",
) -> Row:
    """Return a line of the paper's table; ``published`` is its accuracy, mu, and epsilon by both accountants."""
    accuracy, mu, epsilon_clt, epsilon_classic = published
    return Row(
        name=f"sigma{noise:g}",
        config=_mnist_config(noise, learning_rate, clip, epochs),
        published={
            "test_accuracy": accuracy,
            "mu_clt": mu,
            "epsilon_clt": epsilon_clt,
            "epsilon_classic": epsilon_classic,
        },
        seeds=seeds,
        chosen=chosen,
    )


def _figure4_rows() -> Iterator[Row]:
    """Yield the runs of figure 4: the noise that each of three accountants chooses for the same epsilon."""
    for epochs, accuracies in FIGURE4_ACCURACY.items():
        for noise in (*accuracies, CERTIFIED_NOISE[epochs]):
            published = {"test_accuracy": accuracies[noise]} if noise in accuracies else {}
            config = _mnist_config(noise, 0.15, 1.5, epochs)
            yield Row(f"sigma{noise:g}-epochs{epochs}", config, published)


EXPERIMENTS: dict[str, tuple[Row, ...]] = {
    "mnist": (
        _mnist_row(1.3, 0.25, 1.5, 15, (0.950, 0.23, 0.83, 1.19), seeds=8),
        _mnist_row(1.1, 0.15, 1.0, 60, (0.966, 0.57, 2.32, 3.01)),
        _mnist_row(0.7, 0.25, 1.5, 45, (0.970, 1.13, 5.07, 7.10)),
        _mnist_row(0.6, 0.25, 1.5, 62, (0.976, 2.00, 9.98, 13.27), chosen=CHOSEN),
        _mnist_row(0.55, 0.25, 1.5, 68, (0.978, 2.76, 14.98, 18.72), chosen=CHOSEN),
        _mnist_row(0.5, 0.25, 1.5, 100, (0.980, 4.78, 31.12, 32.40), chosen=CHOSEN),
    ),
    "adult": (Row("adult", PRESETS["adult"], {"mu_clt": 2.03}, seeds=3),),
    "imdb": (Row("imdb", PRESETS["imdb"], {"test_accuracy": 0.84, "mu_clt": 2.07}, seeds=8),),
    "movielens": (
        Row(
            "movielens",
            PRESETS["movielens"],
            {"test_rmse": 0.915, "mu_clt": 1.94, "epsilon_clt": 10.61, "epsilon_classic": 15.39},
            seeds=3,
        ),
    ),
    "figure4": tuple(_figure4_rows()),
}
"""By name, in the order in which ``all`` runs them."""
