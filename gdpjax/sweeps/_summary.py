"""What the trials of a sweep say together: seeds averaged, the best by target, the Pareto front, the price of choosing.

The numbers in a row are those of ONE training. Two things that are done with a sweep cost more, and `price` bounds
both through Renyi differential privacy: publishing every row (the sum over all trials), and publishing the best of a
*random* number of runs (Papernot and Steinke, arXiv:2110.03620), for the distribution whose mean is the number of
trials.
"""

import collections
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from gdpjax.accounting import gamma_for_mean_num_runs, rdp_epsilon, rdp_subsampled_gaussian, tuning_rdp
from gdpjax.sweeps._layout import Layout

BUDGETS = (0.1, 0.2, 0.5, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 10.0, 15.0, 20.0, 30.0, 50.0, 100.0)
MOST_TARGETS = 12
ORDERS = np.concatenate([np.arange(1.1, 11, 0.1), np.arange(11, 129)])
MEASURED = ("width", "steps_per_call", "num_compiled", "memory_bytes", "compile_seconds")
"""What is kept of a compilation beside the shape that it was for."""
Row = Mapping[str, Any]


class Configuration(NamedTuple):
    """All trainings of one configuration that did not fail, and their scores."""

    settings: dict[str, Any]
    epsilon_upper: float
    scores: list[float]
    trials: list[int]

    @property
    def mean(self) -> float:
        """Mean score over seeds."""
        return statistics.fmean(self.scores)

    @property
    def stdev(self) -> float | None:
        """Standard deviation over seeds, if there are several."""
        return statistics.stdev(self.scores) if len(self.scores) > 1 else None


def configurations(rows: Sequence[Row], layout: Layout) -> list[Configuration]:
    """Return the trials of each configuration together, in order; those that failed left out."""
    found: dict[tuple[Any, ...], Configuration] = {}
    for row in rows:
        if row["error"] is not None:
            continue
        settings = {name: row[name] for name in layout.hyperparameters}
        key = tuple(settings.values())
        one = found.setdefault(key, Configuration(settings, row["epsilon_upper"], [], []))
        one.scores.append(row[layout.score])
        one.trials.append(row["trial"])
    return list(found.values())


def pareto_front(found: Sequence[Configuration], layout: Layout) -> list[Configuration]:
    """Return the configurations that none beats in mean score at the same or a smaller certified epsilon."""
    front: list[Configuration] = []
    for one in sorted(found, key=lambda one: (one.epsilon_upper, -layout.better(one.mean))):
        if not front or layout.better(one.mean) > layout.better(front[-1].mean):
            front.append(one)
    return front


def best_by_target(found: Sequence[Configuration], layout: Layout) -> list[tuple[float, Configuration]]:
    """Return the configuration of the best mean score within each budget of certified epsilon."""
    best = []
    for target in _targets(found):
        within = [one for one in found if one.epsilon_upper <= target * (1 + 1e-9)]
        if within:
            best.append((target, max(within, key=lambda one: layout.better(one.mean))))
    return best


def _targets(found: Sequence[Configuration]) -> list[float]:
    """Those that the sweep was given, else the epsilons that occur, if they are few, else round ones."""
    given = sorted({one.settings["epsilon"] for one in found if one.settings["epsilon"] is not None})
    epsilons = sorted({one.epsilon_upper for one in found})
    if given or len(epsilons) <= MOST_TARGETS:
        return given or epsilons
    return [budget for budget in BUDGETS if epsilons[0] <= budget < epsilons[-1]] + [epsilons[-1]]


def varied(rows: Sequence[Row], layout: Layout) -> list[str]:
    """Return the hyperparameters that were varied: for a calibrated noise multiplier its target stands, too."""
    return [name for name in layout.hyperparameters if len({row[name] for row in rows} - {None}) > 1]


def count(number: int, what: str) -> str:
    """Return a number of things in words.

    >>> count(1, "shape"), count(2, "shape")
    ('1 shape', '2 shapes')
    """
    return f"{number} {what}{'s' * (number != 1)}"


def compilations(programs: Sequence[Mapping[str, Any]]) -> str:
    """Return how much was compiled, in words."""
    shapes = {str({name: program[name] for name in program if name not in MEASURED}) for program in programs}
    compiled = sum(program["num_compiled"] for program in programs)
    return f"{count(compiled, 'compilation')} for {count(len(shapes), 'shape')}"


class Price(NamedTuple):
    """Epsilons at ``delta`` of what is done with a sweep; upper bounds by the moments accountant."""

    num_trials: int
    delta: float
    all_trials: float
    best_of_random_number: float


def price(rows: Sequence[Row]) -> Price | None:
    """Return what publishing all trials costs, and what the best of a random number would; None for one trial."""
    charged = [row for row in rows if row["num_steps"] is not None]
    if len(charged) < 2:
        return None
    runs = collections.Counter((row["noise_multiplier"], row["sampling_prob"], row["num_steps"]) for row in charged)
    counts = np.array(list(runs.values()), np.float64)
    noise, prob, steps = np.array(list(runs), np.float64).T
    rdp = np.asarray(rdp_subsampled_gaussian(noise, prob, ORDERS)) * steps[:, None]

    # Any of the trials may be stopped by a batch above its capacity.
    mean, delta = float(len(charged)), charged[0]["delta"]
    left = delta - mean * max(row["overflow"] for row in charged)
    if left <= 0:
        return Price(len(charged), delta, math.inf, math.inf)
    everything = rdp_epsilon(counts @ rdp, ORDERS, left)
    gamma = gamma_for_mean_num_runs(mean, eta=0.0)
    tuned = rdp_epsilon(tuning_rdp(rdp.max(axis=0), ORDERS, eta=0.0, gamma=gamma), ORDERS, left)
    return Price(len(charged), delta, float(everything), float(tuned))
