"""From a spec to trials: every one with its plan and what it will cost, before any of them runs.

A trial's noise multiplier is rounded *up* to float32, since that is what compiled code takes; the cost is certified for
the rounded number. A trial whose plan is refused (too little noise for its finite range, a target that no noise meets)
keeps the reason as its error, and the others run.
"""

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from gdpjax.sweeps._errors import UserError
from gdpjax.sweeps._hyperparameters import Hyperparameter
from gdpjax.sweeps._plans import for_compiled_code, plan_of
from gdpjax.sweeps._privacy import Cost, costs_of_plans
from gdpjax.sweeps._spec import MOST_TRIALS, SECTION, Choice, Range, Spec
from gdpjax.training import Plan


@dataclasses.dataclass(frozen=True)
class Trial:
    """One training. ``settings`` has all its hyperparameters; with ``seed`` None its keys come from the system."""

    number: int
    settings: dict[str, float]
    delta: float
    seed: int | None
    replicate: int
    names: Mapping[str, str]
    plan: Plan | None = None
    cost: Cost | None = None
    error: str | None = None


def list_trials(spec: Spec) -> list[Trial]:
    """Return every trial of a spec in a fixed order: each configuration once for each seed, none twice."""
    # Before anything takes memory: more trials than that are refused, also where some would turn out to be equal.
    num_seeds = len(spec.seeds) if isinstance(spec.seeds, tuple) else spec.seeds
    num_trials = num_seeds * _num_configurations(spec)
    if num_trials > MOST_TRIALS:
        raise UserError(f"{spec.source.name}: {num_trials} trials; at most {MOST_TRIALS} are run in one sweep")

    drawn = _grid(spec) if spec.search == "grid" else _random(spec)
    configurations = list(dict.fromkeys(tuple(settings.items()) for settings in drawn))
    seeds = spec.seeds if isinstance(spec.seeds, tuple) else [None] * spec.seeds
    trials = []
    for configuration, (replicate, seed) in itertools.product(configurations, enumerate(seeds)):
        settings = _with_defaults(spec, dict(configuration))
        trials.append(Trial(len(trials), settings, spec.delta, seed, replicate, spec.task.names))
    return trials


def _with_defaults(spec: Spec, chosen: dict[str, float]) -> dict[str, float]:
    """Return the hyperparameters of a trial in the order of the task's, those that were left out included."""
    given = {name: value for name, value in spec.task.defaults.items() if name != "delta"}
    for name, other in (("epsilon", "noise_multiplier"), ("noise_multiplier", "epsilon")):
        if name in chosen:
            given.pop(other, None)
    given |= chosen
    return {name: given[name] for name in spec.task.hyperparameters if name in given}


def _num_configurations(spec: Spec) -> int:
    """How many combinations or draws a spec asks for, repetitions included."""
    if spec.num_configurations is not None:
        return spec.num_configurations
    counts = [choice.count if isinstance(choice, Range) else len(choice) for choice in spec.choices.values()]
    return math.prod(count for count in counts if count is not None)


def _grid(spec: Spec) -> Iterator[dict[str, float]]:
    """All combinations, the first hyperparameter slowest."""
    known = spec.task.hyperparameters
    values = [_values(known[name], choice) for name, choice in spec.choices.items()]
    for combination in itertools.product(*values):
        yield dict(zip(spec.choices, combination, strict=True))


def _values(kind: Hyperparameter, choice: Choice) -> Sequence[float]:
    if not isinstance(choice, Range):
        return choice
    assert choice.count is not None  # a range in a grid has one
    space = np.geomspace if choice.log else np.linspace
    spaced = space(choice.low, choice.high, choice.count).tolist()
    return list(dict.fromkeys(_tidy(kind, value) for value in spaced))


def _random(spec: Spec) -> Iterator[dict[str, float]]:
    """Independent draws: uniform in a list, uniform (or uniform in the logarithm) in a range."""
    draw = np.random.default_rng(spec.search_seed)
    known = spec.task.hyperparameters
    assert spec.num_configurations is not None  # a random search has it
    for _ in range(spec.num_configurations):
        yield {name: _drawn(draw, known[name], choice) for name, choice in spec.choices.items()}


def _drawn(draw: np.random.Generator, kind: Hyperparameter, choice: Choice) -> float:
    if not isinstance(choice, Range):
        return choice[int(draw.integers(len(choice)))]
    if choice.log:
        return _tidy(kind, math.exp(draw.uniform(math.log(choice.low), math.log(choice.high))))
    return _tidy(kind, float(draw.uniform(choice.low, choice.high)))


def _tidy(kind: Hyperparameter, value: float) -> float:
    # 6 digits are more than anybody means, and read better
    return round(value) if kind.whole else float(f"{value:.6g}")


def plan_trials(
    spec: Spec, trials: Sequence[Trial], num_examples: int, on_plan: Callable[[int], None] = lambda done: None
) -> list[Trial]:
    """Return the trials with plans and certified costs, or with the error that keeps them from having one.

    ``on_plan`` is called with the number of plans that are made.
    """
    plans: dict[tuple[object, ...], Plan | str] = {}
    planned = []
    refuse_large_batches(spec, trials, num_examples)
    for trial in trials:
        # The other hyperparameters change neither the noise multiplier nor the cost.
        key = tuple(trial.settings.get(name) for name in ("noise_multiplier", "epsilon", "batch_size", "epochs"))
        if key not in plans:
            plans[key] = _plan_or_reason(trial, num_examples)
            on_plan(len(plans))
        planned.append(_with_plan(trial, plans[key]))
    return _with_costs(planned)


def refuse_large_batches(spec: Spec, trials: Sequence[Trial], num_examples: int) -> None:
    """UserError with the line of the batch size where a trial has one above the number of examples."""
    for trial in trials:
        batch_size = trial.settings["batch_size"]
        if batch_size > num_examples:
            problem = f"batch_size must be at most the number of examples, {num_examples}, got {batch_size}"
            spec.fail((SECTION, "batch_size"), problem)


def _plan_or_reason(trial: Trial, num_examples: int) -> Plan | str:
    try:
        plan = plan_of(trial.settings, trial.delta, num_examples)
        return for_compiled_code(plan, trial.settings.get("epsilon"))
    except ValueError as error:  # UserError is one
        return str(error)


def _with_plan(trial: Trial, plan: Plan | str) -> Trial:
    if isinstance(plan, str):
        return dataclasses.replace(trial, error=f"refused: {plan}")
    settings = trial.settings | {"noise_multiplier": plan.noise_multiplier}
    own = plan.replace(clip=trial.settings["l2_clip_norm"])
    return dataclasses.replace(trial, settings=settings, plan=own)


def _with_costs(trials: list[Trial]) -> list[Trial]:
    """One batched call of each accountant for all of them."""
    able = [trial for trial in trials if trial.plan is not None]
    costs = costs_of_plans([trial.plan for trial in able if trial.plan is not None])
    cost_of = {trial.number: cost for trial, cost in zip(able, costs, strict=True)}
    return [dataclasses.replace(trial, cost=cost_of.get(trial.number)) for trial in trials]


def identity(trial: Trial, diagnostics: bool = True) -> dict[str, Any]:
    """Return the flat settings that decide what a training computes, its seed included, but nothing of its folder."""
    decided = {name: value for name, value in trial.settings.items() if name != "epsilon"}
    return {**trial.names, **decided, "delta": trial.delta, "seed": trial.seed, "diagnostics": diagnostics}
