"""The experiments of arXiv:1911.11607, of `experiments.toml`, as configurations, with what was published of each.

Runs are seeded, so that they can be repeated to the bit, and are therefore not private against anybody who knows the
seed.
"""

import dataclasses
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from experiments.config import PRESETS, RunConfig, TrainConfig

FIGURE4_EPSILON = {20: 1.34, 70: 8.68}
"""What the runs of figure 4 were said to cost, by the number of epochs."""

CERTIFIED_NOISE = {20: 1.0902, 70: 0.6556}
"""The smallest noise multipliers, rounded up, whose certified epsilon after those epochs is at most that."""


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


def _row(preset: str, privacy: Mapping[str, Any] = {}, optimizer: Mapping[str, Any] = {}, **fields: Any) -> Row:
    """Return the row of a preset with other numbers."""
    base = PRESETS[preset]
    changed = {
        "privacy": dataclasses.replace(base.privacy, **privacy),
        "optimizer": dataclasses.replace(base.optimizer, **optimizer),
    }
    return Row(config=dataclasses.replace(base, **changed), **fields)


EXPERIMENTS: dict[str, tuple[Row, ...]] = {
    name: tuple(_row(**row) for row in rows)
    for name, rows in tomllib.loads(Path(__file__).with_name("experiments.toml").read_text()).items()
}
"""By name, in the order in which ``all`` runs them."""
