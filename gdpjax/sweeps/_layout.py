"""The columns of a sweep's results, and the labels that people read in their place."""

from collections.abc import Mapping
from typing import Any

import msgspec

from gdpjax._core.figures import is_percentage
from gdpjax.sweeps._hyperparameters import STANDARD
from gdpjax.sweeps._spec import Spec
from gdpjax.sweeps._trials import Trial

COSTS = {
    "num_steps": "int64",
    "sampling_prob": "double",
    "delta": "double",
    "overflow": "double",
    "neighboring_relation": "string",
    "mu_clt": "double",
    "epsilon_clt": "double",
    "epsilon_moments_accountant": "double",
    "epsilon_lower": "double",
    "epsilon_upper": "double",
}
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
}
"""The names of columns for people, beside those of `STANDARD`; other names are written with spaces."""
PROGRAM_LABELS = {
    "num_steps": "steps",
    "batch_size": "expected batch size (examples)",
    "width": "trials side by side",
    "steps_per_call": "steps in one call",
    "num_compiled": "compilations",
    "memory_bytes": "memory (MB)",
    "compile_seconds": "time to compile (s)",
    "constants": "own whole hyperparameters",
}
"""The names of the figures of compiled programs for people: a user's own hyperparameter may be called width, too."""


class Layout(msgspec.Struct, frozen=True):
    """The columns of a sweep that are its own, and the score that the report goes by.

    Fields:
      hyperparameters: Arrow types by name.
      scores: names, in the order in which the user gave them.
      score: the one that decides.
      minimize: whether the smallest is the best.
    """

    hyperparameters: dict[str, str]
    scores: list[str]
    score: str
    minimize: bool

    @property
    def columns(self) -> dict[str, str]:
        """Arrow types of all columns, in their order."""
        first = {"trial": "int64", **self.hyperparameters, "seed": "int64", "replicate": "int64"}
        scores = dict.fromkeys(self.scores, "double")
        return {**first, **COSTS, **scores, "error": "string", "seconds": "double"}

    def label(self, name: str) -> str:
        """Return what people read in place of the name of a column: only a score can be in percent."""
        return label(name, units=name in self.scores)

    def better(self, score: float) -> float:
        """Return a number that is larger the better the score is."""
        return -score if self.minimize else score


def check_score(spec: Spec, scores: tuple[str, ...]) -> None:
    """Raise UserError where the spec goes by a score that there is not."""
    if spec.score is not None and spec.score not in scores:
        spec.fail(("score",), f"score must be one of {', '.join(scores)}, got {spec.score!r}")


def layout_of(spec: Spec, trials: list[Trial], scores: tuple[str, ...]) -> Layout:
    """Return the layout of a sweep; UserError where the spec goes by a score that there is not."""
    check_score(spec, scores)
    # A noise multiplier and its target have columns always, other hyperparameters if a trial has them.
    used = {"noise_multiplier", "epsilon"}
    for trial in trials:
        used.update(trial.settings)
    columns = {name: kind.column for name, kind in spec.task.hyperparameters.items() if name in used}
    return Layout(columns, list(scores), spec.score or scores[0], spec.minimize)


def label(name: str, units: bool = True) -> str:
    """Return what people read in place of the name of a column.

    A score that is called accuracy, or whose name ends with it, is shown in percent.

    >>> label("l2_clip_norm"), label("test_accuracy"), label("rmse")
    ('clip norm', 'test accuracy (%)', 'rmse')
    """
    words = LABELS.get(name)
    if name in STANDARD:
        words = STANDARD[name].label
    if words is None:
        words = name.replace("_", " ")
    if is_percentage(name) and units:
        return f"{words} (%)"
    return words


def shown_program(program: Mapping[str, Any]) -> dict[str, str]:
    """Return the record of a compilation as texts by their labels.

    >>> shown_program({"width": 32, "memory_bytes": 1.5e6, "constants": {"width": 16}})
    {'trials side by side': '32', 'memory (MB)': '1.5', 'own whole hyperparameters': 'width 16'}
    """
    shown = {}
    for name, value in program.items():
        text = str(value)
        if name == "memory_bytes":
            text = str(round(value / 1e6, 1))
        if name == "constants":
            text = ", ".join(f"{own} {number}" for own, number in value.items())
        if text:
            shown[PROGRAM_LABELS.get(name, name)] = text
    return shown
