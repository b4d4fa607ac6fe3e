"""The columns of a sweep's results, and what follows from its rows: seeds averaged, the best, the price of choosing.

The numbers in a row are those of ONE training. Two things that are done with a sweep cost more, and `price` bounds
both through Renyi differential privacy: publishing every row (the sum over all trials), and publishing the best of a
*random* number of runs (Papernot and Steinke, arXiv:2110.03620), for the distribution whose mean is the number of
trials.
"""

import collections
import dataclasses
import math
import statistics
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np

from gdpjax._core.figures import is_percentage, rounded, shown_score
from gdpjax.accounting import gamma_for_mean_num_runs, rdp_epsilon, rdp_subsampled_gaussian, tuning_epsilon
from gdpjax.sweeps._plans import Cost
from gdpjax.sweeps._task import STANDARD

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
ORDERS = np.concatenate([np.arange(1.1, 11, 0.1), np.arange(11, 129)])
"""The Renyi orders over which the price of all trials is the smallest."""
Row = dict[str, Any]
"""The record of a trial that is over: settings, cost, scores, and the error, which is None where it succeeded."""


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

    def spread(self, configuration: "Configuration") -> str:
        """Return a mean score in the unit of its label, with the standard deviation over seeds if there is one."""
        text = f"{shown_score(self.score, configuration.mean):.4g}"
        if configuration.stdev is None:
            return text
        return f"{text} \u00b1 {shown_score(self.score, configuration.stdev):.2g}"


def label(name: str, units: bool = True) -> str:
    """Return what people read in place of the name of a column.

    A score that is called accuracy, or whose name ends with it, is shown in percent.

    >>> label("l2_clip_norm"), label("test_accuracy"), label("rmse")
    ('clip norm', 'test accuracy (%)', 'rmse')
    """
    words = LABELS.get(name) or name.replace("_", " ")
    return f"{words} (%)" if is_percentage(name) and units else words


class Configuration(NamedTuple):
    """The rows of all trainings of one configuration that did not fail, and their scores."""

    rows: list[Row]
    scores: list[float]

    @property
    def epsilon_upper(self) -> float:
        """The certified epsilon of one training."""
        return self.rows[0]["epsilon_upper"]

    @property
    def mean(self) -> float:
        """The mean score over seeds. Six digits: the seventh of a float32 would decide between equal means."""
        return float(f"{statistics.fmean(self.scores):.6g}")

    @property
    def stdev(self) -> float | None:
        """The standard deviation over seeds, if there are several."""
        return statistics.stdev(self.scores) if len(self.scores) > 1 else None


def succeeded(rows: Sequence[Row]) -> list[Row]:
    """Return the rows of trials that did not fail."""
    return [row for row in rows if row["error"] is None]


def configurations(rows: Sequence[Row], layout: Layout) -> list[Configuration]:
    """Return the trials of each configuration together, in order, without configurations of which one failed.

    The mean over the seeds that survived would flatter a configuration at the edge of diverging.
    """
    found: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        settings = tuple(row[name] for name in layout.hyperparameters)
        found.setdefault(settings, []).append(row)
    whole = [same for same in found.values() if len(succeeded(same)) == len(same)]
    return [Configuration(same, [row[layout.score] for row in same]) for same in whole]


def pareto_front(candidates: Sequence[Configuration], layout: Layout) -> list[Configuration]:
    """Return the configurations that none beats in mean score at the same or a smaller certified epsilon.

    The last of them within a budget is the best within it.
    """

    def cheapest_then_best(candidate: Configuration) -> tuple[float, float]:
        return candidate.epsilon_upper, -layout.better(candidate.mean)

    front: list[Configuration] = []
    for candidate in sorted(candidates, key=cheapest_then_best):
        if not front or layout.better(candidate.mean) > layout.better(front[-1].mean):
            front.append(candidate)
    return front


def best_within(
    candidates: Sequence[Configuration],
    layout: Layout,
    epsilon: float = math.inf,
) -> Configuration | None:
    """Return the configuration of the best mean score over its seeds within a certified ``epsilon``, if there is one.

    The page, the tables, the progress and `SweepResult.best` all name this one.
    """
    affordable = [candidate for candidate in candidates if candidate.epsilon_upper <= epsilon]
    front = pareto_front(affordable, layout)
    return front[-1] if front else None


def varied(rows: Sequence[Row], layout: Layout) -> list[str]:
    """Return the hyperparameters that were varied; of a target and its calibrated noise multiplier the target."""
    names = []
    for name in layout.hyperparameters:
        values = {row[name] for row in rows} - {None}
        if len(values) > 1:
            names.append(name)
    if "epsilon" in names and "noise_multiplier" in names:
        names.remove("noise_multiplier")
    return names


def count(number: int, what: str) -> str:
    """Return a number of things.

    >>> count(1, "shape"), count(2, "shape")
    ('1 shape', '2 shapes')
    """
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


class Price(NamedTuple):
    """Upper bounds on epsilon at ``delta`` by the moments accountant, for two things that are done with a sweep.

    Fields:
      num_trials: how many were charged.
      delta: of both epsilons.
      all_trials: for publishing every trial.
      best_of_random_number: for publishing the best of a random number of trials.
    """

    num_trials: int
    delta: float
    all_trials: float
    best_of_random_number: float


def price(rows: Sequence[Row]) -> Price | None:
    """Return what publishing all trials costs, and what the best of a random number would; None for one trial."""
    charged = [row for row in rows if row["num_steps"] is not None]
    num_trials = len(charged)
    if num_trials < 2:
        return None

    # Equal runs are computed once. The divergences are float64[runs, orders].
    runs = [(row["noise_multiplier"], row["sampling_prob"], row["num_steps"]) for row in charged]
    num_equal = collections.Counter(runs)
    noise_multiplier, sampling_prob, num_steps = np.array(list(num_equal), np.float64).T
    counts = np.array(list(num_equal.values()), np.float64)
    rdp_of_step = np.asarray(rdp_subsampled_gaussian(noise_multiplier, sampling_prob, ORDERS))
    rdp = rdp_of_step * num_steps[:, None]

    # Any of the trials may be stopped by a batch above its capacity.
    delta = charged[0]["delta"]
    remaining_delta = delta - float(num_trials) * max(row["overflow"] for row in charged)
    if remaining_delta <= 0:
        return Price(num_trials, delta, math.inf, math.inf)

    # All trials: a composition. The best of a random number: by the divergences of the most expensive trial.
    everything = rdp_epsilon(counts @ rdp, ORDERS, remaining_delta)
    gamma = gamma_for_mean_num_runs(float(num_trials), eta=0.0)
    tuned = tuning_epsilon(
        noise_multiplier,
        sampling_prob,
        num_steps,
        remaining_delta,
        eta=0.0,
        gamma=gamma,
        axis=0,
    )
    return Price(num_trials, delta, float(everything), float(tuned))
