"""List the trials of a spec, and refuse what cannot be trained before any of them runs.

A trial's noise multiplier is rounded *up* to float32, since that is what compiled code takes; the cost is certified for
the rounded number. Where a setting has no plan (too little noise for its finite range, a target that no noise meets)
the sweep is refused, and the first of these settings is named.
"""

import dataclasses
import hashlib
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gdpjax._core.shown import shown
from gdpjax._core.xla import program_digest
from gdpjax.sweeps._examples import Examples, failure_of
from gdpjax.sweeps._plans import Trial, cost_of_event, float32_above, plan_of
from gdpjax.sweeps._program import Blueprint, Numbers
from gdpjax.sweeps._spec import MOST_TRIALS, SECTION, Range, Spec
from gdpjax.sweeps._task import RESERVED
from gdpjax.sweeps.records import NOT_SCORES, UserError, named_arrays
from gdpjax.training import Data, Plan

_DECIDE_PRIVACY = ("epsilon", "noise_multiplier", "batch_size", "epochs")


def list_trials(spec: Spec) -> list[Trial]:
    """Return every trial of a spec in a fixed order: each configuration once for each seed, none twice."""
    seeds = spec.seeds if isinstance(spec.seeds, tuple) else [None] * spec.seeds
    lists = [choice for choice in spec.choices.values() if isinstance(choice, tuple)]
    num_configurations = spec.content.num_configurations or math.prod(map(len, lists))
    num_trials = num_configurations * len(seeds)
    # Before anything takes memory.
    if num_trials > MOST_TRIALS:
        raise UserError(f"{num_trials} trials; at most {MOST_TRIALS} are run in one sweep")

    # Each configuration once, in the order in which they first occur; in a grid the first hyperparameter is slowest.
    candidates: Iterable[Any] = itertools.product(*lists)
    if spec.content.search == "random":
        candidates = _drawn(spec)
    trials: list[Trial] = []
    for values in dict.fromkeys(candidates):
        settings = spec.fixed | dict(zip(spec.choices, values, strict=True))
        order = [name for name in spec.task.hyperparameters if name in settings]
        for replicate, seed in enumerate(seeds):
            own = {name: settings[name] for name in order}
            trial = Trial(len(trials), own, spec.delta, seed, replicate, spec.task.names)
            trials.append(trial)
    return trials


def only_trial(spec: Spec) -> Trial:
    """Return the trial of a spec that has one; UserError for one that has more."""
    trials = list_trials(spec)
    if len(trials) == 1:
        return trials[0]
    problem = f"train takes one value of each hyperparameter, got {len(trials)} trials: that is for sweep-trainings"
    spec.source.fail(SECTION, problem=problem)


def _drawn(spec: Spec) -> Iterator[tuple[float, ...]]:
    """Yield independent draws: uniform in a list, uniform (or uniform in the logarithm) in a range."""
    generator = np.random.default_rng(spec.content.search_seed)

    def draw(name: str) -> float:
        choice = spec.choices[name]
        if not isinstance(choice, Range):
            return choice[int(generator.integers(len(choice)))]
        if choice.log:
            exponent = generator.uniform(math.log(choice.min), math.log(choice.max))
            value = math.exp(exponent)
        else:
            value = float(generator.uniform(choice.min, choice.max))
        if spec.task.hyperparameters[name].whole:
            return round(value)
        # 6 digits are more than anybody means.
        return float(f"{value:.6g}")

    for _ in range(spec.content.num_configurations or 0):
        yield tuple(draw(name) for name in spec.choices)


def check_programs(
    spec: Spec,
    trials: Sequence[Trial],
    examples: Examples,
) -> tuple[tuple[str, ...], str]:
    """Trace the model of each program; returns the names of the scores, and a hash of what the programs compute.

    The number of steps and the noise decide nothing that can be refused, so that no noise is calibrated yet.
    """
    first_with: dict[Any, Trial] = {}
    for trial in trials:
        constants = spec.task.own(trial.settings, whole=True)
        key = (trial.settings["batch_size"], *constants.values())
        first_with.setdefault(key, trial)

    scores: tuple[str, ...] = ()
    digest = hashlib.sha256()
    for trial in first_with.values():
        settings = {name: value for name, value in trial.settings.items() if name != "epsilon"}
        settings["noise_multiplier"] = 1.0
        with spec.source.at(SECTION, "batch_size"):
            plan = plan_of(settings, trial.delta, examples.num_examples)
        blueprint = Blueprint(spec.task, examples, plan, settings)
        with spec.source.at("model"):
            scores = check_task(blueprint)
        digest.update(digest_of_program(blueprint).encode())

    score = spec.content.score
    if score is not None and score not in scores:
        spec.source.fail("score", problem=f"score must be one of {', '.join(scores)}, got {score!r}")
    return scores, digest.hexdigest()


def check_task(blueprint: Blueprint) -> tuple[str, ...]:
    """Trace the user's functions and one private step, without computing; returns the names of the scores.

    Raises:
      UserError: one of them fails, or returns something else than it should; the message names the line.
    """
    examples = blueprint.examples
    rows = []
    for row in examples.example:
        shape = (examples.num_examples, *row.shape)
        rows.append(jax.ShapeDtypeStruct(shape, row.dtype))
    data = Data(tuple(rows), jax.ShapeDtypeStruct((), jnp.int32))

    def everything(numbers: Numbers, key: Any, example: Any, evaluation: Any, data: Data) -> Any:
        model = blueprint.model(numbers)
        params = model.init(key)
        try:
            model.loss(params, *example)
        except Exception as error:
            shapes = ", ".join(f"{part.dtype}{list(part.shape)}" for part in example)
            error.add_note(f"loss is called with ONE example, here {shapes}: its arrays have no batch axis")
            raise
        training = blueprint.training(numbers)
        training.step(training.init(params, key), data)
        return params, model.scores(params, *evaluation)

    try:
        params, scores = jax.eval_shape(everything, *blueprint.arguments, data)
    except (Exception, SystemExit) as error:
        raise failure_of("a training", error) from error
    named_arrays(params)
    if not isinstance(scores, Mapping) or not scores:
        raise UserError(f'scores must return numbers by name, such as {{"accuracy": ...}}, got {shown(scores)}')
    taken = {*blueprint.task.hyperparameters, *RESERVED, *NOT_SCORES}
    for name, value in scores.items():
        is_number = getattr(value, "shape", None) == ()
        if not is_number or jnp.issubdtype(value.dtype, jnp.complexfloating):
            raise UserError(f"scores must return real numbers, got {shown(value)} for {name!r}")
        is_word = str(name).isidentifier()
        if not is_word or name in taken or name.startswith(("epsilon_", "mu_")):
            raise UserError(f"a score needs a name of its own (letters, digits, _), got {name!r}")
    return tuple(scores)


def digest_of_program(blueprint: Blueprint) -> str:
    """Return a hash of what model and optimizer compute, of which another version of jax may give another one.

    It is a hash of the lowered program, in which every constant stands with its bits.
    """

    def everything(numbers: Numbers, key: Any, example: Any, evaluation: Any) -> Any:
        model = blueprint.model(numbers)
        params = model.init(key)
        optimizer = blueprint.optimizer(numbers)
        state = optimizer.init(params)
        updates, _ = optimizer.update(params, state, params)
        loss = model.loss(params, *example)
        return params, loss, model.scores(params, *evaluation), updates

    return program_digest(jax.jit(everything), *blueprint.arguments)


def plan_trials(spec: Spec, trials: Sequence[Trial], num_examples: int) -> list[Trial]:
    """Return the trials with plans and certified costs; UserError names a setting that has no plan."""
    plans: dict[tuple[object, ...], Plan] = {}
    planned = []
    for trial in trials:
        # The other hyperparameters change neither the noise multiplier nor the cost.
        given = {name: trial.settings[name] for name in _DECIDE_PRIVACY if name in trial.settings}
        key = tuple(given.items())
        if key not in plans:
            try:
                plans[key] = plan_of(trial.settings, trial.delta, num_examples, **spec.words)
            except UserError as error:
                name, *_ = given
                text = ", ".join(f"{name} {value}" for name, value in key)
                spec.source.fail(SECTION, name, problem=f"no plan for {text}: {error}")

        # Its own clip norm, and the noise that compiled code adds.
        noise_multiplier = float32_above(plans[key].noise_multiplier)
        settings = trial.settings | {"noise_multiplier": noise_multiplier}
        plan = plans[key].replace(noise_multiplier=noise_multiplier, clip=settings["l2_clip_norm"])
        cost = cost_of_event(plan.event, plan.delta)
        planned.append(dataclasses.replace(trial, settings=settings, plan=plan, cost=cost))
    return planned
