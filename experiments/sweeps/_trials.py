"""From a spec to trials: every one with its plan and what it will cost, before any of them runs.

A trial's noise multiplier is rounded *up* to float32, since that is what compiled code takes; the cost is certified for
the rounded number. A trial whose plan is refused (too little noise for its finite range, a target that no noise meets)
keeps the reason as its error, and the others run.
"""

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

import gdpjax
from experiments.config import PRESETS, RunConfig, TrainConfig
from experiments.errors import UserError
from experiments.plan import make_plan
from experiments.privacy import Cost, costs_of_plans
from experiments.sweeps._spec import HYPERPARAMETERS, MOST_TRIALS, WHOLE, Range, Spec


@dataclasses.dataclass(frozen=True)
class Trial:
    """One training. ``seed`` None: its keys come from the system's entropy."""

    number: int
    settings: dict[str, float]
    seed: int | None
    replicate: int
    config: TrainConfig
    plan: gdpjax.Plan | None = None
    cost: Cost | None = None
    error: str | None = None


def list_trials(spec: Spec) -> list[Trial]:
    """Every trial of a spec in a fixed order: each configuration once for each seed, none twice."""
    # Before anything takes memory: more trials than that are refused, also where some would turn out to be equal.
    num_seeds = len(spec.seeds) if isinstance(spec.seeds, tuple) else spec.seeds
    num_trials = num_seeds * _num_configurations(spec)
    if num_trials > MOST_TRIALS:
        raise UserError(f"{spec.path}: {num_trials} trials; at most {MOST_TRIALS} are run in one sweep")
    configurations = list(_grid(spec) if spec.search == "grid" else _random(spec))
    unique = list(dict.fromkeys(tuple(settings.items()) for settings in configurations))
    seeds = list(enumerate(spec.seeds if isinstance(spec.seeds, tuple) else [None] * spec.seeds))
    pairs = itertools.product(unique, seeds)
    return [
        Trial(number, dict(settings), seed, replicate, _config(spec, dict(settings), seed))
        for number, (settings, (replicate, seed)) in enumerate(pairs)
    ]


def _num_configurations(spec: Spec) -> int:
    """How many combinations or draws a spec asks for, repetitions included."""
    if spec.num_configurations is not None:
        return spec.num_configurations
    counts = [choice.count if isinstance(choice, Range) else len(choice) for choice in spec.choices.values()]
    return math.prod(count for count in counts if count is not None)


def _grid(spec: Spec) -> Iterator[dict[str, float]]:
    """All combinations, the first hyperparameter slowest."""
    names = [name for name in HYPERPARAMETERS if name in spec.choices]
    values = [_values(name, spec.choices[name]) for name in names]
    return (dict(zip(names, combination, strict=True)) for combination in itertools.product(*values))


def _values(name: str, choice: tuple[float, ...] | Range) -> Sequence[float]:
    if not isinstance(choice, Range):
        return choice
    assert choice.count is not None  # a range in a grid has one
    spaced = (np.geomspace if choice.log else np.linspace)(choice.low, choice.high, choice.count)
    return list(dict.fromkeys(_tidy(name, value) for value in spaced.tolist()))


def _random(spec: Spec) -> Iterator[dict[str, float]]:
    """Independent draws: uniform in a list, uniform (or uniform in the logarithm) in a range."""
    draw = np.random.default_rng(spec.search_seed)
    assert spec.num_configurations is not None  # a random search has it
    for _ in range(spec.num_configurations):
        yield {name: _drawn(draw, name, spec.choices[name]) for name in HYPERPARAMETERS if name in spec.choices}


def _drawn(draw: np.random.Generator, name: str, choice: tuple[float, ...] | Range) -> float:
    if not isinstance(choice, Range):
        return choice[int(draw.integers(len(choice)))]
    low, high = (math.log(choice.low), math.log(choice.high)) if choice.log else (choice.low, choice.high)
    value = float(draw.uniform(low, high))
    return _tidy(name, math.exp(value) if choice.log else value)


def _tidy(name: str, value: float) -> float:
    # 6 digits are more than anybody means, and read better
    return round(value) if name in WHOLE else float(f"{value:.6g}")


def _config(spec: Spec, settings: dict[str, float], seed: int | None) -> TrainConfig:
    """What ``train`` would be told; a target epsilon is resolved by `plan_trials`."""
    preset = PRESETS[spec.dataset]
    privacy: dict[str, Any] = {n: settings[n] for n in ("noise_multiplier", "l2_clip_norm") if n in settings}
    optimizer: dict[str, Any] = {n: settings[n] for n in ("learning_rate", "batch_size", "epochs") if n in settings}
    return TrainConfig(
        data=dataclasses.replace(preset.data, dataset=spec.dataset),
        model=dataclasses.replace(preset.model, model=spec.model),
        privacy=dataclasses.replace(preset.privacy, delta=spec.delta, **privacy),
        optimizer=dataclasses.replace(preset.optimizer, optimizer=spec.optimizer, **optimizer),
        run=RunConfig(seed=seed),
    )


def plan_trials(
    spec: Spec, trials: Sequence[Trial], num_examples: int, on_plan: Callable[[], None] = lambda: None
) -> list[Trial]:
    """The trials with plans and certified costs, or with the error that keeps them from having one."""
    plans: dict[tuple[object, ...], gdpjax.Plan | str] = {}
    planned = []
    for trial in trials:
        batch_size = trial.config.optimizer.batch_size
        if batch_size > num_examples:
            problem = f"batch_size must be at most the number of examples, {num_examples}, got {batch_size}"
            spec.fail(("hyperparameters", "batch_size"), problem)
        # The clip norm and the learning rate change neither the noise multiplier nor the cost.
        key = tuple(trial.settings.get(name) for name in ("noise_multiplier", "epsilon", "batch_size", "epochs"))
        if key not in plans:
            plans[key] = _plan_or_reason(trial, num_examples)
            on_plan()
        planned.append(_with_plan(trial, plans[key]))
    return _with_costs(planned)


def _plan_or_reason(trial: Trial, num_examples: int) -> gdpjax.Plan | str:
    target = trial.settings.get("epsilon")
    try:
        plan = make_plan(trial.config, num_examples, target)
        plan = plan.replace(noise_multiplier=float32_above(plan.noise_multiplier))
        while target is not None and plan.epsilon_bounds().upper > target:  # the verified noise was a little more
            plan = plan.replace(noise_multiplier=float32_above(plan.noise_multiplier * (1 + 1e-6)))
        return plan
    except ValueError as error:  # UserError is one
        return str(error)


def _with_plan(trial: Trial, plan: gdpjax.Plan | str) -> Trial:
    if isinstance(plan, str):
        return dataclasses.replace(trial, error=f"refused: {plan}")
    privacy = dataclasses.replace(trial.config.privacy, noise_multiplier=plan.noise_multiplier)
    own = plan.replace(clip=trial.config.privacy.l2_clip_norm)
    return dataclasses.replace(trial, config=dataclasses.replace(trial.config, privacy=privacy), plan=own)


def _with_costs(trials: list[Trial]) -> list[Trial]:
    """One batched call of each accountant for all of them."""
    able = [trial for trial in trials if trial.plan is not None]
    costs = dict(zip((t.number for t in able), costs_of_plans([t.plan for t in able if t.plan]), strict=True))
    return [dataclasses.replace(trial, cost=costs.get(trial.number)) for trial in trials]


def float32_above(value: float) -> float:
    """The least float32 number that is at least ``value``.

    >>> float32_above(0.55) >= 0.55, float32_above(0.5)
    (True, 0.5)
    """
    nearest = np.float32(value)
    # NumPy would round a Python float to float32 before it compares.
    return float(nearest if float(nearest) >= value else np.nextafter(nearest, np.float32(np.inf)))
