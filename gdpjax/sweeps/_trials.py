"""List the trials of a spec, each with its plan and its certified cost, before any of them runs.

A trial's noise multiplier is rounded *up* to float32, since that is what compiled code takes; the cost is certified for
the rounded number. Where a setting has no plan (too little noise for its finite range, a target that no noise meets)
the sweep is refused, and the first of these settings are listed.
"""

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

import numpy as np

from gdpjax.sweeps._errors import UserError
from gdpjax.sweeps._hyperparameters import Hyperparameter
from gdpjax.sweeps._plans import float32_above, plan_of
from gdpjax.sweeps._privacy import Cost, costs_of_plans
from gdpjax.sweeps._spec import MOST_TRIALS, SECTION, Choice, Range, Spec
from gdpjax.training import Plan

_DECIDE_PRIVACY = ("noise_multiplier", "epsilon", "batch_size", "epochs")
_MOST_LISTED = 8


@dataclasses.dataclass(frozen=True)
class Trial:
    """One training.

    Attributes:
      number: its place in the sweep.
      settings: all its hyperparameters.
      delta: of its epsilon.
      seed: None for keys from the system's entropy.
      replicate: which of the seeds it has.
      names: of data, model and optimizer.
      plan: not there before `plan_trials`.
      cost: certified, of the plan.
    """

    number: int
    settings: dict[str, float]
    delta: float
    seed: int | None
    replicate: int
    names: Mapping[str, str]
    plan: Plan = None  # pyright: ignore[reportAssignmentType]
    cost: Cost = None  # pyright: ignore[reportAssignmentType]


def list_trials(spec: Spec) -> list[Trial]:
    """Return every trial of a spec in a fixed order: each configuration once for each seed, none twice."""
    # Before anything takes memory: more trials than that are refused, also where some would turn out to be equal.
    seeds = list(spec.seeds) if isinstance(spec.seeds, tuple) else [None] * spec.seeds
    num_trials = len(seeds) * _num_configurations(spec)
    if num_trials > MOST_TRIALS:
        raise UserError(f"{spec.source.name}: {num_trials} trials; at most {MOST_TRIALS} are run in one sweep")

    # Each configuration once, in the order in which they first occur.
    candidates = _grid(spec) if spec.search == "grid" else _random(spec)
    configurations = dict.fromkeys(tuple(candidate.items()) for candidate in candidates)

    trials: list[Trial] = []
    for configuration in configurations:
        settings = _with_defaults(spec, dict(configuration))
        for replicate, seed in enumerate(seeds):
            trials.append(Trial(len(trials), dict(settings), spec.delta, seed, replicate, spec.task.names))
    return trials


def _with_defaults(spec: Spec, chosen: dict[str, float]) -> dict[str, float]:
    """Return the hyperparameters of a trial in the order of the task's, those that were left out included."""
    settings = dict(spec.task.defaults)
    settings.pop("delta", None)
    # A target and a noise multiplier are alternatives: the one that is chosen takes the place of the other's default.
    if "epsilon" in chosen:
        settings.pop("noise_multiplier", None)
    if "noise_multiplier" in chosen:
        settings.pop("epsilon", None)
    settings |= chosen
    return {name: settings[name] for name in spec.task.hyperparameters if name in settings}


def _num_configurations(spec: Spec) -> int:
    """Return how many combinations or draws a spec asks for, repetitions included."""
    if spec.num_configurations is not None:
        return spec.num_configurations
    num_combinations = 1
    for choice in spec.choices.values():
        num_values = choice.count if isinstance(choice, Range) else len(choice)
        if num_values is not None:
            num_combinations *= num_values
    return num_combinations


def _grid(spec: Spec) -> Iterator[dict[str, float]]:
    """Yield all combinations, the first hyperparameter slowest."""
    known = spec.task.hyperparameters
    values = [_grid_values(known[name], choice) for name, choice in spec.choices.items()]
    for combination in itertools.product(*values):
        yield dict(zip(spec.choices, combination, strict=True))


def _grid_values(kind: Hyperparameter, choice: Choice) -> Sequence[float]:
    """Return the values of a hyperparameter in a grid, each once."""
    if not isinstance(choice, Range):
        return choice
    # A range in a grid has a count.
    assert choice.count is not None
    space = np.geomspace if choice.log else np.linspace
    values = space(choice.low, choice.high, choice.count).tolist()
    tidy_values = [_tidy(kind, value) for value in values]
    return list(dict.fromkeys(tidy_values))


def _random(spec: Spec) -> Iterator[dict[str, float]]:
    """Yield independent draws: uniform in a list, uniform (or uniform in the logarithm) in a range."""
    generator = np.random.default_rng(spec.search_seed)
    known = spec.task.hyperparameters
    # A random search has a number of configurations.
    assert spec.num_configurations is not None
    for _ in range(spec.num_configurations):
        yield {name: _random_value(generator, known[name], choice) for name, choice in spec.choices.items()}


def _random_value(generator: np.random.Generator, kind: Hyperparameter, choice: Choice) -> float:
    """Return one draw of a hyperparameter."""
    if not isinstance(choice, Range):
        index = int(generator.integers(len(choice)))
        return choice[index]
    if choice.log:
        log_value = generator.uniform(math.log(choice.low), math.log(choice.high))
        return _tidy(kind, math.exp(log_value))
    return _tidy(kind, float(generator.uniform(choice.low, choice.high)))


def _tidy(kind: Hyperparameter, value: float) -> float:
    """Return a value in 6 digits, which are more than anybody means, or a whole number."""
    if kind.whole:
        return round(value)
    return float(f"{value:.6g}")


def _ignore(num_plans: int) -> None:
    pass


def plan_trials(
    spec: Spec,
    trials: Sequence[Trial],
    num_examples: int,
    on_plan: Callable[[int], None] = _ignore,
) -> list[Trial]:
    """Return the trials with plans and certified costs; UserError names settings that have no plan.

    ``on_plan`` is called with the number of plans that are made.
    """
    refuse_large_batches(spec, trials, num_examples)
    plans: dict[tuple[object, ...], Plan] = {}
    refused: dict[tuple[object, ...], str] = {}
    planned = []
    for trial in trials:
        # The other hyperparameters change neither the noise multiplier nor the cost.
        key = tuple(trial.settings.get(name) for name in _DECIDE_PRIVACY)
        if key not in plans and key not in refused:
            try:
                plans[key] = plan_of(trial.settings, trial.delta, num_examples)
            except UserError as error:
                refused[key] = str(error)
            on_plan(len(plans) + len(refused))
        if key in plans:
            planned.append(_with_plan(trial, plans[key]))
    if refused:
        _fail_for(spec, refused)

    # The costs; equal events are computed once.
    costs = costs_of_plans([trial.plan for trial in planned])
    return [dataclasses.replace(trial, cost=cost) for trial, cost in zip(planned, costs, strict=True)]


def refuse_large_batches(spec: Spec, trials: Sequence[Trial], num_examples: int) -> None:
    """Raise UserError with the line of the batch size where a trial has one above the number of examples."""
    for trial in trials:
        batch_size = trial.settings["batch_size"]
        if batch_size > num_examples:
            problem = f"batch_size must be at most the number of examples, {num_examples}, got {batch_size}"
            spec.fail((SECTION, "batch_size"), problem)


def _fail_for(spec: Spec, refused: Mapping[tuple[object, ...], str]) -> NoReturn:
    """Raise UserError with the settings that have no plan, the reason of the first, and the line of what to change."""
    settings = []
    for key in refused:
        given = [f"{name} {value}" for name, value in zip(_DECIDE_PRIVACY, key, strict=True) if value is not None]
        settings.append(", ".join(given))
    listed = "; ".join(settings[:_MOST_LISTED])
    if len(settings) > _MOST_LISTED:
        listed += f"; and {len(settings) - _MOST_LISTED} more"
    name = "epsilon" if "epsilon" in spec.choices else "noise_multiplier"
    spec.fail((SECTION, name), f"no plan for {listed}. The first: {next(iter(refused.values()))}")


def _with_plan(trial: Trial, plan: Plan) -> Trial:
    """Return the trial with the plan and its own clip norm, and with the noise that compiled code adds."""
    noise_multiplier = float32_above(plan.noise_multiplier)
    settings = trial.settings | {"noise_multiplier": noise_multiplier}
    plan = plan.replace(noise_multiplier=noise_multiplier, clip=trial.settings["l2_clip_norm"])
    return dataclasses.replace(trial, settings=settings, plan=plan)


def identity(trial: Trial, diagnostics: bool = True) -> dict[str, Any]:
    """Return the flat settings that decide what a training computes, its seed included, but nothing of its folder."""
    # A target has done its part when the noise multiplier is known.
    settings = {name: value for name, value in trial.settings.items() if name != "epsilon"}
    return {**trial.names, **settings, "delta": trial.delta, "seed": trial.seed, "diagnostics": diagnostics}
