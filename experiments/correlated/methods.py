"""The tasks, and for each method the plan that meets an epsilon.

All methods have the same data, model, clip norm, batch size and grid of epochs and learning rates, and plain SGD: what
it makes of the noise are sums, which the strategies are made for. A plan depends on public numbers alone.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

import gdpjax
from gdpjax.correlated import (
    AbstractNoiseStrategy,
    bisr,
    lambda_cgd,
    optimize_buffered_toeplitz,
)
from gdpjax.sampling import Shuffled
from gdpjax.training import choose_bands

DELTA = 1e-5


@dataclasses.dataclass(frozen=True)
class Task:
    """A task that is learnt, with the settings among which each method chooses."""

    dataset: str
    model: str
    clip: float
    batch_size: int
    epochs: tuple[int, ...]
    learning_rates: tuple[float, ...]
    epsilons: tuple[float, ...] = (0.5, 1.0, 2.0, 4.0, 8.0)
    hold_out: float = 0.1


TASKS: dict[str, Task] = {
    "adult": Task("adult", "linear", 1.0, 512, epochs=(4,), learning_rates=(1.0, 3.0, 10.0)),
    "mnist": Task("mnist", "paper_cnn", 1.5, 512, epochs=(5,), learning_rates=(0.3, 1.0, 3.0)),
}


def _poisson(common: dict[str, Any]) -> gdpjax.Plan:
    return gdpjax.make_plan(**common)


def _banded(common: dict[str, Any]) -> gdpjax.Plan:
    plan, _ = choose_bands(**common)
    return plan


def _bisr(common: dict[str, Any]) -> gdpjax.Plan:
    return _best_of([bisr(num_bands) for num_bands in (2, 4, 8, 16, 32)], common)


def _lambda_cgd(common: dict[str, Any]) -> gdpjax.Plan:
    return _best_of([lambda_cgd(1.0 - distance) for distance in np.geomspace(1e-3, 1.0, 61)], common)


def _buffered(common: dict[str, Any]) -> gdpjax.Plan:
    batches, others = _shuffled(common)
    strategy = optimize_buffered_toeplitz(batches.num_steps, batches.limits(), "mean")
    return gdpjax.make_plan(batches, **others, noise=strategy)


METHODS: Mapping[str, Callable[[dict[str, Any]], gdpjax.Plan]] = {
    "Poisson DP-SGD": _poisson,
    "cyclic BandMF": _banded,
    "BISR": _bisr,
    "lambda-CGD": _lambda_cgd,
    "BLT": _buffered,
}
"""By name, from the arguments of `make_plan` that all methods share. The last three have shuffled batches."""


def plan_of(method: str, task: Task, num_examples: int, epochs: int, epsilon: float) -> gdpjax.Plan:
    """Return the plan of a method; its certified epsilon is at most ``epsilon``."""
    common = {
        "clip": task.clip,
        "max_examples": num_examples,
        "expected_batch_size": min(task.batch_size, num_examples),
        "epochs": epochs,
        "delta": DELTA,
        "epsilon": epsilon,
        "neighboring_relation": gdpjax.NeighboringRelation.REPLACE_SPECIAL,
        "tuned": "learning rate and epochs on held-out training data, which is not part of epsilon",
    }
    return METHODS[method](common)


def rmse_of(plan: gdpjax.Plan) -> float:
    """Return the root mean square error of the sum of all steps until now, in units of the clip norm."""
    strategy = plan.release.strategy or gdpjax.correlated.BandedInverse([1.0])
    error = float(strategy.error(plan.num_steps, "mean"))
    return plan.noise_multiplier * float(plan.release.sensitivity) * error**0.5 / plan.expected_batch_size


def describe(plan: gdpjax.Plan) -> str:
    """Return a plan's strategy in a few words."""
    if plan.release.strategy is None:
        return "independent noise"
    size = {"num_bands": "bands", "num_buffers": "buffers"}
    for name, word in size.items():
        if hasattr(plan.noise, name):
            number = getattr(plan.noise, name)
            return f"{number} {word if number > 1 else word[:-1]}" + _of_lambda(plan.noise)
    return type(plan.noise).__name__


def _of_lambda(strategy: Any) -> str:
    """Return what distinguishes two draws with a free coefficient."""
    coefficients = getattr(strategy, "noising_coefficients", ())
    return f", {-coefficients[1]:.4g} taken back" if len(coefficients) == 2 else ""


def _shuffled(common: dict[str, Any]) -> tuple[Shuffled, dict[str, Any]]:
    """Return shuffled batches that come back in one order, and the other arguments of `make_plan`."""
    others = dict(common)
    sizes = {"expected_batch_size": others.pop("expected_batch_size"), "epochs": others.pop("epochs")}
    return Shuffled(others.pop("max_examples"), **sizes, order="fixed"), others


def _best_of(strategies: list[Any], common: dict[str, Any]) -> gdpjax.Plan:
    """Return the plan with the strategy whose prefix sums have the least error at the same privacy."""
    batches, others = _shuffled(common)
    num_steps = batches.num_steps

    def loss(strategy: AbstractNoiseStrategy) -> float:
        sensitivity = float(strategy.sensitivity(num_steps, batches.limits()))
        return sensitivity**2 * float(strategy.error(num_steps, "mean"))

    return gdpjax.make_plan(batches, **others, noise=min(strategies, key=loss))
