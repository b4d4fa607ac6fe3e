"""List the trials of a spec, and refuse what cannot be trained before any of them runs.

A trial's noise multiplier is rounded *up* to float32, since that is what compiled code takes; the cost is certified for
the rounded number. Where a setting has no plan (too little noise for its finite range, a target that no noise meets)
the sweep is refused, and the first of these settings is named.
"""

import dataclasses
import functools
import hashlib
import itertools
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gdpjax._core.shown import shown
from gdpjax._core.xla import program_digest
from gdpjax.sweeps._examples import Examples, shapes_of
from gdpjax.sweeps._plans import Trial, cost_of_event, float32_above, plan_of
from gdpjax.sweeps._program import Blueprint, Numbers
from gdpjax.sweeps._spec import ALTERNATIVES, MOST_TRIALS, SECTION, Range, Spec
from gdpjax.sweeps._task import RESERVED, Task
from gdpjax.sweeps.records import NOT_SCORES, UserError, named_arrays
from gdpjax.training import Data, Plan, State

_DECIDE_PRIVACY = ("noise_multiplier", "epsilon", "batch_size", "epochs")


def list_trials(spec: Spec) -> list[Trial]:
    """Return every trial of a spec in a fixed order: each configuration once for each seed, none twice."""
    seeds = list(spec.seeds) if isinstance(spec.seeds, tuple) else [None] * spec.seeds
    lists = [choice for choice in spec.choices.values() if isinstance(choice, tuple)]
    num_trials = len(seeds) * (spec.content.num_configurations or math.prod(map(len, lists)))
    # Before anything takes memory.
    if num_trials > MOST_TRIALS:
        raise UserError(f"{num_trials} trials; at most {MOST_TRIALS} are run in one sweep")

    # Each configuration once, in the order in which they first occur; in a grid the first hyperparameter is slowest.
    grid: Iterable[Any] = itertools.product(*lists)
    candidates = _drawn(spec) if spec.content.search == "random" else grid
    trials: list[Trial] = []
    for values in dict.fromkeys(candidates):
        chosen = dict(zip(spec.choices, values, strict=True))
        # A target or a noise multiplier that is chosen takes the place of the other's default.
        settings = {name: value for name, value in spec.task.defaults.items() if ALTERNATIVES.get(name) not in chosen}
        settings |= chosen
        ordered = {name: settings[name] for name in spec.task.hyperparameters if name in settings}
        for replicate, seed in enumerate(seeds):
            trials.append(Trial(len(trials), dict(ordered), spec.delta, seed, replicate, spec.task.names))
    return trials


def only_trial(spec: Spec) -> Trial:
    """Return the trial of a spec that has one; UserError with the line for one that has more."""
    trials = list_trials(spec)
    if len(trials) == 1:
        return trials[0]
    several = [name for name, choice in spec.choices.items() if not isinstance(choice, tuple) or len(choice) > 1]
    name = (*several, "seeds")[0]
    problem = f"train takes one value of {name}; for several there is sweep-trainings"
    spec.source.fail(SECTION, name, problem=problem)


def _drawn(spec: Spec) -> Iterator[tuple[float, ...]]:
    """Yield independent draws: uniform in a list, uniform (or uniform in the logarithm) in a range."""
    generator = np.random.default_rng(spec.content.search_seed)

    def draw(name: str) -> float:
        choice = spec.choices[name]
        if not isinstance(choice, Range):
            return choice[int(generator.integers(len(choice)))]
        if choice.log:
            value = math.exp(generator.uniform(math.log(choice.min), math.log(choice.max)))
        else:
            value = float(generator.uniform(choice.min, choice.max))
        # 6 digits are more than anybody means.
        return round(value) if spec.task.hyperparameters[name].whole else float(f"{value:.6g}")

    for _ in range(spec.content.num_configurations or 0):
        yield tuple(draw(name) for name in spec.choices)


def check_programs(spec: Spec, trials: Sequence[Trial], examples: Examples) -> tuple[tuple[str, ...], str]:
    """Trace the model of each program; returns the names of the scores, and a hash of what the programs compute.

    The number of steps and the noise decide nothing that can be refused, so that no noise is calibrated yet.
    """
    first_with: dict[Any, Trial] = {}
    for trial in trials:
        constants = spec.task.own(trial.settings, whole=True)
        first_with.setdefault((trial.settings["batch_size"], *constants.values()), trial)
    scores: tuple[str, ...] = ()
    blueprints = []
    for trial in first_with.values():
        settings = {name: value for name, value in trial.settings.items() if name != "epsilon"}
        with spec.source.at(SECTION, "batch_size"):
            plan = plan_of(settings | {"noise_multiplier": 1.0}, trial.delta, examples.num_examples)
        blueprints.append(Blueprint(spec.task, examples, plan, settings))
        with spec.source.at("model"):
            scores = check_task(blueprints[-1])
    if spec.content.score is not None and spec.content.score not in scores:
        problem = f"score must be one of {', '.join(scores)}, got {spec.content.score!r}"
        spec.source.fail("score", problem=problem)
    return scores, digest_of_programs(blueprints)


def check_task(blueprint: Blueprint) -> tuple[str, ...]:
    """Trace the user's functions and one private step, without computing; returns the names of the scores.

    Raises:
      UserError: one of them fails, or returns something else than it should; the message names the line.
    """
    examples = blueprint.examples
    numbers, key = blueprint.shapes()

    def init(numbers: Numbers, key: Any) -> Any:
        return blueprint.model(numbers).init(key)

    def loss(numbers: Numbers, key: Any, example: Any) -> Any:
        try:
            return blueprint.loss(numbers, key, example)
        except Exception as error:
            shapes = ", ".join(f"{part.dtype}{list(part.shape)}" for part in example)
            error.add_note(f"loss is called with ONE example, here {shapes}: its arrays have no batch axis")
            raise

    def step(numbers: Numbers, params: Any, key: Any, data: Data) -> State:
        training = blueprint.training(numbers)
        return training.step(training.init(params, key), data)[0]

    # What a program would refuse later, as the failure of its trials.
    params = shapes_of("build and init", init, numbers, key)
    named_arrays(params)
    shapes_of("loss", loss, numbers, key, examples.example)
    rows = [jax.ShapeDtypeStruct((examples.num_examples, *row.shape), row.dtype) for row in examples.example]
    data = Data(tuple(rows), jax.ShapeDtypeStruct((), jnp.int32))
    shapes_of("a private step", step, numbers, params, key, data)

    scores = shapes_of("scores", blueprint.scores, numbers, params, examples.evaluation_shapes)
    if not isinstance(scores, Mapping) or not scores:
        raise UserError(f'scores must return numbers by name, such as {{"accuracy": ...}}, got {shown(scores)}')
    for name, value in scores.items():
        kinds = (jnp.bool_, jnp.integer, jnp.floating)
        if getattr(value, "shape", None) != () or not any(jnp.issubdtype(value.dtype, kind) for kind in kinds):
            raise UserError(f"scores must return real numbers, got {shown(value)} for {name!r}")
        if not _can_name_score(blueprint.task, name):
            raise UserError(f"a score needs a name of its own (letters, digits, _), got {name!r}")
    return tuple(scores)


def _can_name_score(task: Task, name: Any) -> bool:
    """Return whether a name is a word that means nothing else in the results of a sweep or the records of a run."""
    if not isinstance(name, str) or re.fullmatch(r"[A-Za-z]\w*", name) is None:
        return False
    is_taken = name in {*task.hyperparameters, *RESERVED, *NOT_SCORES}
    return not is_taken and not name.startswith(("epsilon_", "mu_"))


def digest_of_programs(blueprints: Iterable[Blueprint]) -> str:
    """Return a hash of what model and optimizer compute, of which another version of jax may give another one.

    It is a hash of the lowered programs, in which every constant stands with its bits.
    """
    digest = hashlib.sha256()
    for blueprint in blueprints:

        def everything(blueprint: Blueprint, numbers: Numbers, key: Any, example: Any, evaluation: Any) -> Any:
            model = blueprint.model(numbers)
            params = model.init(key)
            optimizer = blueprint.optimizer(numbers)
            updates = optimizer.update(params, optimizer.init(params), params)[0]
            return params, model.loss(params, *example), model.scores(params, *evaluation), updates

        shapes = (*blueprint.shapes(), blueprint.examples.example, blueprint.examples.evaluation_shapes)
        digest.update(program_digest(jax.jit(functools.partial(everything, blueprint)), *shapes).encode())
    return digest.hexdigest()


def plan_trials(
    spec: Spec, trials: Sequence[Trial], num_examples: int, on_plan: Callable[[int], None] = lambda num_plans: None
) -> list[Trial]:
    """Return the trials with plans and certified costs; UserError names settings that have no plan.

    ``on_plan`` is called with the number of plans that are made.
    """
    plans: dict[tuple[object, ...], Plan | UserError] = {}
    planned = []
    for trial in trials:
        # The other hyperparameters change neither the noise multiplier nor the cost.
        key = tuple(trial.settings.get(name) for name in _DECIDE_PRIVACY)
        if key not in plans:
            try:
                plans[key] = plan_of(trial.settings, trial.delta, num_examples, spec.content.tuned)
            except UserError as error:
                plans[key] = error
            on_plan(len(plans))
        plan = plans[key]
        if isinstance(plan, Plan):
            planned.append(_with_plan(trial, plan))
    refused = {key: error for key, error in plans.items() if isinstance(error, UserError)}
    if refused:
        key, error = next(iter(refused.items()))
        given = [f"{name} {value}" for name, value in zip(_DECIDE_PRIVACY, key, strict=True) if value is not None]
        others = f" and {len(refused) - 1} other settings" if len(refused) > 1 else ""
        name = "epsilon" if "epsilon" in spec.choices else "noise_multiplier"
        spec.source.fail(SECTION, name, problem=f"no plan for {', '.join(given)}{others}: {error}")
    return planned


def _with_plan(trial: Trial, plan: Plan) -> Trial:
    """Return the trial with the plan and its own clip norm, with the noise that compiled code adds, and its cost."""
    noise_multiplier = float32_above(plan.noise_multiplier)
    settings = trial.settings | {"noise_multiplier": noise_multiplier}
    plan = plan.replace(noise_multiplier=noise_multiplier, clip=trial.settings["l2_clip_norm"])
    return dataclasses.replace(trial, settings=settings, plan=plan, cost=cost_of_event(plan.event, plan.delta))
