"""What the trials of a sweep say together: seeds averaged, the best by target, the Pareto front, the price of choosing.

The numbers in a row are those of ONE training. Two things that are done with a sweep cost more, and `price` bounds
both through Renyi differential privacy: publishing every row (the sum over all trials), and publishing the best of a
*random* number of runs (Papernot and Steinke, arXiv:2110.03620), for the distribution whose mean is the number of
trials.
"""

import collections
import statistics
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from experiments.sweeps._results import Row
from experiments.tables import upper_digits
from gdpjax import accounting

CONFIGURATION = ("learning_rate", "l2_clip_norm", "noise_multiplier", "epsilon", "batch_size", "epochs")
BUDGETS = (0.1, 0.2, 0.5, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 10.0, 15.0, 20.0, 30.0, 50.0, 100.0)
MOST_TARGETS = 12
MOST_ERRORS = 3
ORDERS = np.concatenate([np.arange(1.1, 11, 0.1), np.arange(11, 129)])


class Configuration(NamedTuple):
    """All trainings of one configuration that did not fail."""

    settings: dict[str, Any]
    epsilon_upper: float
    accuracies: list[float]
    trials: list[int]

    @property
    def mean(self) -> float:
        """Mean test accuracy over seeds."""
        return statistics.fmean(self.accuracies)

    @property
    def stdev(self) -> float | None:
        """Standard deviation over seeds, if there are several."""
        return statistics.stdev(self.accuracies) if len(self.accuracies) > 1 else None


def configurations(rows: Sequence[Row]) -> list[Configuration]:
    """The trials of each configuration together, in order; those that failed left out."""
    found: dict[tuple[Any, ...], Configuration] = {}
    for row in rows:
        if row["error"] is None:
            settings = {name: row[name] for name in CONFIGURATION}
            one = found.setdefault(tuple(settings.values()), Configuration(settings, row["epsilon_upper"], [], []))
            one.accuracies.append(row["test_accuracy"])
            one.trials.append(row["trial"])
    return list(found.values())


def pareto_front(found: Sequence[Configuration]) -> list[Configuration]:
    """The configurations that none beats in mean accuracy at the same or a smaller certified epsilon."""
    front: list[Configuration] = []
    for one in sorted(found, key=lambda c: (c.epsilon_upper, -c.mean)):
        if not front or one.mean > front[-1].mean:
            front.append(one)
    return front


def best_by_target(found: Sequence[Configuration]) -> list[tuple[float, Configuration]]:
    """The configuration of the highest mean accuracy within each budget of certified epsilon."""
    best = []
    for target in _targets(found):
        within = [one for one in found if one.epsilon_upper <= target * (1 + 1e-9)]
        if within:
            best.append((target, max(within, key=lambda one: one.mean)))
    return best


def _targets(found: Sequence[Configuration]) -> list[float]:
    """Those that the sweep was given, else the epsilons that occur, if they are few, else round ones."""
    given = sorted({one.settings["epsilon"] for one in found if one.settings["epsilon"] is not None})
    epsilons = sorted({one.epsilon_upper for one in found})
    if given or len(epsilons) <= MOST_TARGETS:
        return given or epsilons
    return [budget for budget in BUDGETS if epsilons[0] <= budget < epsilons[-1]] + [epsilons[-1]]


def varied(rows: Sequence[Row]) -> list[str]:
    """The hyperparameters that were varied: for a calibrated noise multiplier its target stands, too."""
    return [name for name in CONFIGURATION if len({row[name] for row in rows} - {None}) > 1]


def count(number: int, what: str) -> str:
    """A number of things, in words.

    >>> count(1, "shape"), count(2, "shape")
    ('1 shape', '2 shapes')
    """
    return f"{number} {what}{'s' * (number != 1)}"


class Price(NamedTuple):
    """Epsilons at ``delta`` of what is done with a sweep; upper bounds by the moments accountant."""

    num_trials: int
    delta: float
    all_trials: float
    best_of_random_number: float


def price(rows: Sequence[Row]) -> Price | None:
    """What publishing all trials costs, and what the best of a random number of runs would; None for one trial."""
    charged = [row for row in rows if row["num_steps"] is not None]
    if len(charged) < 2:
        return None
    runs = collections.Counter((row["noise_multiplier"], row["sampling_prob"], row["num_steps"]) for row in charged)
    counts = np.array(list(runs.values()), np.float64)
    noise, prob, steps = np.array(list(runs), np.float64).T
    rdp = np.asarray(accounting.rdp_subsampled_gaussian(noise, prob, ORDERS)) * steps[:, None]
    tau, delta, mean = max(row["overflow"] for row in charged), charged[0]["delta"], float(len(charged))
    everything = accounting.rdp_epsilon(counts @ rdp, ORDERS, delta - mean * tau)
    gamma = accounting.gamma_for_mean_num_runs(mean, eta=0.0)
    tuned = accounting.tuning_rdp(rdp.max(axis=0), ORDERS, eta=0.0, gamma=gamma)
    return Price(
        len(charged), delta, float(everything), float(accounting.rdp_epsilon(tuned, ORDERS, delta - mean * tau))
    )


def print_summary(console: Console, rows: Sequence[Row], programs: Sequence[dict[str, Any]], num_trials: int) -> None:
    """The best by target, what failed, and how much was compiled."""
    delta = next((row["delta"] for row in rows), None)
    table = Table(title=f"Best by target (certified epsilon of ONE training, delta = {delta!r})")
    found = configurations(rows)
    names = [name for name in varied(rows) if name != "epsilon"]
    for name in ("epsilon <=", "certified", "accuracy", *names):
        table.add_column(name.replace("_", " "), justify="right")
    for target, one in best_by_target(found):
        spread = f" +- {100 * one.stdev:.1f}" if one.stdev is not None else ""
        cells = [f"{target!r}", upper_digits(one.epsilon_upper, 4), f"{100 * one.mean:.1f}{spread} %"]
        table.add_row(*cells, *(f"{one.settings[name]!r}" for name in names))
    console.print(table)
    errors = collections.Counter(row["error"] for row in rows if row["error"] is not None)
    compiled = sum(program["num_compiled"] for program in programs)
    shapes = len({(program["num_steps"], program["batch_size"]) for program in programs})
    console.print(
        f"{len(rows)} of {count(num_trials, 'trial')} are over, {errors.total()} failed; "
        f"{count(compiled, 'compilation')} for {count(shapes, 'shape')}."
    )
    for error, times in errors.most_common(MOST_ERRORS):
        console.print(f"[yellow]{count(times, 'trial')} failed:[/] {escape(error)}", soft_wrap=True)
    console.print("Choosing among trials costs privacy too: see the report, and what they were tested on.")
