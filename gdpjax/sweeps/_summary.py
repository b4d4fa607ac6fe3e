"""Summarize the trials of a sweep: seeds averaged, the best by target, the Pareto front, the price of choosing.

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

from gdpjax.accounting import gamma_for_mean_num_runs, rdp_epsilon, rdp_subsampled_gaussian, tuning_epsilon
from gdpjax.sweeps._layout import Layout

BUDGETS = (0.1, 0.2, 0.5, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 10.0, 15.0, 20.0, 30.0, 50.0, 100.0)
MOST_TARGETS = 12
ORDERS = np.concatenate([np.arange(1.1, 11, 0.1), np.arange(11, 129)])
"""The Renyi orders over which the price of all trials is the smallest."""
Row = Mapping[str, Any]


class Configuration(NamedTuple):
    """All trainings of one configuration that did not fail.

    Fields:
      settings: its hyperparameters.
      epsilon_upper: the certified epsilon of one training.
      scores: of the trainings, in order.
      trials: their numbers.
    """

    settings: dict[str, Any]
    epsilon_upper: float
    scores: list[float]
    trials: list[int]

    @property
    def mean(self) -> float:
        """The mean score over seeds."""
        return statistics.fmean(self.scores)

    @property
    def stdev(self) -> float | None:
        """The standard deviation over seeds, if there are several."""
        return statistics.stdev(self.scores) if len(self.scores) > 1 else None


def configurations(rows: Sequence[Row], layout: Layout) -> list[Configuration]:
    """Return the trials of each configuration together, in order; those that failed left out."""
    by_settings: dict[tuple[Any, ...], Configuration] = {}
    for row in rows:
        if row["error"] is not None:
            continue
        settings = {name: row[name] for name in layout.hyperparameters}
        key = tuple(settings.values())
        if key not in by_settings:
            by_settings[key] = Configuration(settings, row["epsilon_upper"], scores=[], trials=[])
        by_settings[key].scores.append(row[layout.score])
        by_settings[key].trials.append(row["trial"])
    return list(by_settings.values())


def pareto_front(candidates: Sequence[Configuration], layout: Layout) -> list[Configuration]:
    """Return the configurations that none beats in mean score at the same or a smaller certified epsilon."""

    def cheapest_then_best(candidate: Configuration) -> tuple[float, float]:
        return candidate.epsilon_upper, -layout.better(candidate.mean)

    front: list[Configuration] = []
    for candidate in sorted(candidates, key=cheapest_then_best):
        if not front or layout.better(candidate.mean) > layout.better(front[-1].mean):
            front.append(candidate)
    return front


def best_within(candidates: Sequence[Configuration], layout: Layout, epsilon: float = math.inf) -> Configuration | None:
    """Return the configuration of the best mean score over its seeds within a certified ``epsilon``, if there is one.

    The page, the tables, the progress and `SweepResult.best` all name this one.
    """
    affordable = [candidate for candidate in candidates if candidate.epsilon_upper <= epsilon * (1 + 1e-9)]
    return max(affordable, key=lambda candidate: layout.better(candidate.mean), default=None)


def best_by_target(candidates: Sequence[Configuration], layout: Layout) -> list[tuple[float, Configuration]]:
    """Return the best configuration within each budget of certified epsilon, once, at the smallest it wins.

    The budgets are the targets that the sweep was given, else the epsilons that occur, if they are few, else round.
    """
    epsilons = sorted({candidate.epsilon_upper for candidate in candidates})
    targets = sorted({candidate.settings["epsilon"] for candidate in candidates} - {None}) or epsilons
    if len(targets) > MOST_TARGETS:
        targets = [budget for budget in BUDGETS if epsilons[0] <= budget < epsilons[-1]] + epsilons[-1:]
    best: list[tuple[float, Configuration]] = []
    for target in targets:
        found = best_within(candidates, layout, target)
        if found is not None and (not best or best[-1][1] is not found):
            best.append((target, found))
    return best


def varied(rows: Sequence[Row], layout: Layout) -> list[str]:
    """Return the hyperparameters that were varied: a calibrated noise multiplier and its target are both among them."""
    return [name for name in layout.hyperparameters if len({row[name] for row in rows} - {None}) > 1]


def count(number: int, what: str) -> str:
    """Return a number of things in words.

    >>> count(1, "shape"), count(2, "shape")
    ('1 shape', '2 shapes')
    """
    ending = "" if number == 1 else "s"
    return f"{number} {what}{ending}"


def how_many_finished(num_finished: int, num_trials: int) -> str:
    """Return in words how much of a sweep is done.

    >>> how_many_finished(1, 24)
    '1 of 24 trials finished'
    """
    return f"{num_finished} of {count(num_trials, 'trial')} finished"


def compilations(programs: Sequence[Mapping[str, Any]]) -> str:
    """Return how much was compiled, in words."""
    num_compiled = sum(program["num_compiled"] for program in programs)
    shapes = {str([program.get(name) for name in ("num_steps", "batch_size", "constants")]) for program in programs}
    return f"{count(num_compiled, 'compilation')} for {count(len(shapes), 'shape')}"


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
    num_equal: collections.Counter[tuple[float, ...]] = collections.Counter()
    for row in charged:
        num_equal[row["noise_multiplier"], row["sampling_prob"], row["num_steps"]] += 1
    noise_multiplier, sampling_prob, num_steps = np.array(list(num_equal), np.float64).T
    counts = np.array(list(num_equal.values()), np.float64)
    rdp_of_step = np.asarray(rdp_subsampled_gaussian(noise_multiplier, sampling_prob, ORDERS))
    rdp = rdp_of_step * num_steps[:, None]

    # Any of the trials may be stopped by a batch above its capacity.
    delta = charged[0]["delta"]
    largest_overflow = max(row["overflow"] for row in charged)
    remaining_delta = delta - float(num_trials) * largest_overflow
    if remaining_delta <= 0:
        return Price(num_trials, delta, math.inf, math.inf)

    # All trials: a composition. The best of a random number: by the divergences of the most expensive trial.
    everything = rdp_epsilon(counts @ rdp, ORDERS, remaining_delta)
    gamma = gamma_for_mean_num_runs(float(num_trials), eta=0.0)
    runs = noise_multiplier, sampling_prob, num_steps
    tuned = tuning_epsilon(*runs, remaining_delta, eta=0.0, gamma=gamma, axis=0)
    return Price(num_trials, delta, float(everything), float(tuned))
