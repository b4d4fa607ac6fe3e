"""The columns of a sweep's results, and what people read in place of their names."""

import dataclasses
import math
from typing import Any

import msgspec
import numpy as np

from gdpjax._core.figures import is_percentage, rounded, shown_score
from gdpjax.sweeps._hyperparameters import STANDARD
from gdpjax.sweeps._plans import Cost
from gdpjax.sweeps._spec import Spec
from gdpjax.sweeps._trials import Trial

_ARROW = {float: "double", int: "int64", str: "string"}
COSTS = {field.name: _ARROW[field.type] for field in dataclasses.fields(Cost) if field.name != "noise_multiplier"}
"""Arrow types. ``epsilon`` is the target, if there was one; the certified bracket is lower and upper."""
LABELS = {
    "replicate": "repetition",
    "num_steps": "steps",
    "sampling_prob": "sampling probability",
    "overflow": "probability of an overflow",
    "neighboring_relation": "neighbouring data sets",
    "mu_clt": "mu (CLT, estimate)",
    "epsilon_clt": "epsilon (CLT, may understate)",
    "epsilon_moments_accountant": "epsilon (moments accountant, upper bound)",
    "epsilon_lower": "epsilon (certified, lower end)",
    "epsilon_upper": "epsilon (certified, upper end)",
    "seconds": "time (s)",
    "error": "what went wrong",
} | {name: kind.label for name, kind in STANDARD.items() if kind.label is not None}
"""The names of columns for people; other names are written with spaces."""


class Layout(msgspec.Struct, frozen=True):
    """The columns of a sweep that are its own, and the score that the report goes by.

    Fields:
      hyperparameters: Arrow types by name.
      scores: names, in the order in which the user gave them.
      score: the one that decides.
      minimize: whether the smallest is the best.
      private: whether scores are on held-out training data, without noise.
    """

    hyperparameters: dict[str, str]
    scores: list[str]
    score: str
    minimize: bool
    private: bool = False

    @property
    def columns(self) -> dict[str, str]:
        """Arrow types of all columns, in their order."""
        first = {"trial": "int64", **self.hyperparameters, "seed": "int64", "replicate": "int64"}
        scores = dict.fromkeys(self.scores, "double")
        return {**first, **COSTS, **scores, "error": "string", "seconds": "double"}

    def label(self, name: str) -> str:
        """Return what people read in place of the name of a column: only a score can be in percent."""
        return label(name, units=name in self.scores)

    def text(self, name: str, value: Any) -> str:
        """Return a cell of a column: costs of privacy, and noise, are rounded up, other settings are in full."""
        if value is None:
            return ""
        if not isinstance(value, float):
            return str(value)
        if name == "noise_multiplier":
            # A number of float32, which is above the one that was given: in its own digits first.
            return rounded(float(str(np.float32(value))), 5, "up")
        if name in self.hyperparameters or name == "delta" or not math.isfinite(value):
            return repr(value)
        if name in COSTS:
            return rounded(value, 5, "down" if name == "epsilon_lower" else "up")
        return f"{shown_score(name, value):.5g}"

    def better(self, score: float) -> float:
        """Return a number that is larger the better the score is."""
        return -score if self.minimize else score


def check_score(spec: Spec, scores: tuple[str, ...]) -> None:
    """Raise UserError where the spec goes by a score that there is not."""
    score = spec.content.score
    if score is not None and score not in scores:
        spec.fail(("score",), f"score must be one of {', '.join(scores)}, got {score!r}")


def layout_of(spec: Spec, trials: list[Trial], scores: tuple[str, ...]) -> Layout:
    """Return the layout of a sweep; UserError where the spec goes by a score that there is not."""
    check_score(spec, scores)
    # A noise multiplier and its target have columns always, other hyperparameters if a trial has them.
    used = {"noise_multiplier", "epsilon"}.union(*(trial.settings for trial in trials))
    held_out = spec.content.hold_out is not None
    columns = {name: kind.column for name, kind in spec.task.hyperparameters.items() if name in used}
    return Layout(columns, list(scores), spec.content.score or scores[0], spec.content.minimize, held_out)


def label(name: str, units: bool = True) -> str:
    """Return what people read in place of the name of a column.

    A score that is called accuracy, or whose name ends with it, is shown in percent.

    >>> label("l2_clip_norm"), label("test_accuracy"), label("rmse")
    ('clip norm', 'test accuracy (%)', 'rmse')
    """
    words = LABELS.get(name) or name.replace("_", " ")
    return f"{words} (%)" if is_percentage(name) and units else words
