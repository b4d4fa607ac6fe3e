"""List the trials of a spec, each with its plan and its certified cost, before any of them runs.

A trial's noise multiplier is rounded *up* to float32, since that is what compiled code takes; the cost is certified for
the rounded number. Where a setting has no plan (too little noise for its finite range, a target that no noise meets)
the sweep is refused, and the first of these settings are listed.
"""

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from gdpjax.sweeps._errors import UserError
from gdpjax.sweeps._hyperparameters import Hyperparameter
from gdpjax.sweeps._keys import Keys, make_keys, split_keys, with_settings
from gdpjax.sweeps._plans import Cost, cost_of_event, float32_above, plan_of
from gdpjax.sweeps._spec import ALTERNATIVES, MOST_TRIALS, SECTION, Choice, Range, Spec
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
    seeds = list(spec.seeds) if isinstance(spec.seeds, tuple) else [None] * spec.seeds
    sizes = [choice.count if isinstance(choice, Range) else len(choice) for choice in spec.choices.values()]
    num_configurations = spec.content.num_configurations or math.prod(size or 1 for size in sizes)
    # Before anything takes memory.
    if len(seeds) * num_configurations > MOST_TRIALS:
        raise UserError(f"{len(seeds) * num_configurations} trials; at most {MOST_TRIALS} are run in one sweep")

    # Each configuration once, in the order in which they first occur.
    candidates = _grid(spec) if spec.content.search == "grid" else _random(spec)
    configurations = dict.fromkeys(tuple(candidate.items()) for candidate in candidates)
    trials: list[Trial] = []
    for configuration in configurations:
        chosen = dict(configuration)
        # A target or a noise multiplier that is chosen takes the place of the other's default.
        settings = {name: value for name, value in spec.task.defaults.items() if ALTERNATIVES.get(name) not in chosen}
        settings |= chosen
        ordered = {name: settings[name] for name in spec.task.hyperparameters if name in settings}
        for replicate, seed in enumerate(seeds):
            trials.append(Trial(len(trials), dict(ordered), spec.delta, seed, replicate, spec.task.names))
    return trials


def _grid(spec: Spec) -> Iterator[dict[str, float]]:
    """Yield all combinations, the first hyperparameter slowest."""
    values = [_grid_values(spec.task.hyperparameters[name], choice) for name, choice in spec.choices.items()]
    for combination in itertools.product(*values):
        yield dict(zip(spec.choices, combination, strict=True))


def _grid_values(kind: Hyperparameter, choice: Choice) -> Sequence[float]:
    """Return the values of a hyperparameter in a grid."""
    if not isinstance(choice, Range):
        return choice
    # A range in a grid has a count.
    assert choice.count is not None
    space = np.geomspace if choice.log else np.linspace
    return [_tidy(kind, value) for value in space(choice.min, choice.max, choice.count).tolist()]


def _random(spec: Spec) -> Iterator[dict[str, float]]:
    """Yield independent draws: uniform in a list, uniform (or uniform in the logarithm) in a range."""
    generator = np.random.default_rng(spec.content.search_seed)

    def draw(kind: Hyperparameter, choice: Choice) -> float:
        if not isinstance(choice, Range):
            return choice[int(generator.integers(len(choice)))]
        if choice.log:
            return _tidy(kind, math.exp(generator.uniform(math.log(choice.min), math.log(choice.max))))
        return _tidy(kind, float(generator.uniform(choice.min, choice.max)))

    for _ in range(spec.content.num_configurations or 0):
        yield {name: draw(spec.task.hyperparameters[name], choice) for name, choice in spec.choices.items()}


def _tidy(kind: Hyperparameter, value: float) -> float:
    """Return a value in 6 digits, which are more than anybody means, or a whole number."""
    return round(value) if kind.whole else float(f"{value:.6g}")


def plan_trials(
    spec: Spec, trials: Sequence[Trial], num_examples: int, on_plan: Callable[[int], None] = lambda num_plans: None
) -> list[Trial]:
    """Return the trials with plans and certified costs; UserError names settings that have no plan.

    ``on_plan`` is called with the number of plans that are made.
    """
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
    if not refused:
        return planned

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
    """Return the trial with the plan and its own clip norm, with the noise that compiled code adds, and its cost."""
    noise_multiplier = float32_above(plan.noise_multiplier)
    settings = trial.settings | {"noise_multiplier": noise_multiplier}
    plan = plan.replace(noise_multiplier=noise_multiplier, clip=trial.settings["l2_clip_norm"])
    cost = cost_of_event(plan.event, plan.delta)
    return dataclasses.replace(trial, settings=settings, plan=plan, cost=cost)


def identity(trial: Trial, diagnostics: bool = True) -> dict[str, Any]:
    """Return the flat settings that decide what a training computes, its seed included, but nothing of its folder."""
    # A target has done its part when the noise multiplier is known.
    settings = {name: value for name, value in trial.settings.items() if name != "epsilon"}
    return {**trial.names, **settings, "delta": trial.delta, "seed": trial.seed, "diagnostics": diagnostics}


def keys_of(trial: Trial, root: jax.Array) -> Keys:
    """Return a trial's own keys: those of `train` with its row where it has a seed, else of the sweep's key and number.

    A trial that is run again with other settings has other noise: with the same, the difference would have none.
    """
    if trial.seed is not None:
        return make_keys(trial.seed, identity(trial))
    return split_keys(with_settings(jax.random.fold_in(root, trial.number), identity(trial)))
