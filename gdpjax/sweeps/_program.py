"""The functions of a task with its real hyperparameters as arguments, and one compiled program for many trainings.

A program is `jax.vmap` of a training over its real hyperparameters and keys. What its length or its shapes depend on is
its shape: the number of steps, the batch size, and the whole hyperparameters of the user's own. Programs are compiled
ahead of time, so that none can be compiled again unnoticed.

A program takes ``steps_per_call`` steps in a scan, and steps beyond the planned maximum change nothing. XLA runs
convolutions inside a loop far slower on a CPU than outside one; there a call is one step, and the loop is Python's.

The number of trials side by side (the width) is guessed, the program compiled, and its memory read from the compiler;
if that is above the budget, the width is halved and the program is compiled again.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from gdpjax._core import xla
from gdpjax.sweeps._examples import Examples
from gdpjax.sweeps._plans import Keys
from gdpjax.sweeps._task import Model, Settings, Task
from gdpjax.sweeps.records import UserError
from gdpjax.training import Data, Plan, State, Training, private_training

CALLS = 20
"""Calls of one program for a whole training, where it scans: often enough for a progress bar."""
OF_THE_PLAN = ("l2_clip_norm", "noise_multiplier")
"""The real hyperparameters that go into the plan."""
Numbers = Mapping[str, Any]
"""The real hyperparameters of a trial by name, each ``float32[]``, or ``float32[width]`` of trials side by side."""


@dataclasses.dataclass(frozen=True)
class Blueprint:
    """The description of the trainings that share a program.

    Attributes:
      task: what is trained.
      examples: its data.
      plan: of the trainings; clip norm and noise multiplier are arguments.
      settings: of one of them, of which the whole hyperparameters count.
    """

    task: Task
    examples: Examples
    plan: Plan
    settings: Settings

    @functools.cached_property
    def constants(self) -> dict[str, int]:
        """The user's own whole hyperparameters."""
        return self.task.own(self.settings, whole=True)

    @functools.cached_property
    def real(self) -> tuple[str, ...]:
        """The names of the hyperparameters that are arguments of the program."""
        return (*OF_THE_PLAN, *self.task.own(self.settings, whole=False))

    def shapes(self, *width: int) -> tuple[dict[str, Any], Any]:
        """Return the shapes of the numbers and of a key, for one trial or for ``width`` of them."""
        number = jax.ShapeDtypeStruct(width, jnp.float32)
        keys = jax.eval_shape(lambda: jax.random.split(jax.random.key(0), width))
        return dict.fromkeys(self.real, number), keys

    @property
    def arguments(self) -> tuple[Any, ...]:
        """The shapes of what the functions of the task take: numbers, a key, one example, the evaluation data."""
        return *self.shapes(), self.examples.example, self.examples.evaluation_shapes

    def model(self, numbers: Numbers) -> Model:
        """Return the model; the numbers may be traced."""
        return self.task.model(self.examples.example, {**self.constants, **numbers})

    def optimizer(self, numbers: Numbers) -> optax.GradientTransformation:
        """Return the optimizer; the numbers may be traced."""
        return self.task.make_optimizer({**self.constants, **numbers}, self.plan.num_steps)

    def training(self, numbers: Numbers) -> Training:
        """Return the private training of the plan; the numbers may be traced."""
        plan = self.plan.replace(
            noise_multiplier=numbers["noise_multiplier"],
            clip=numbers["l2_clip_norm"],
        )
        return private_training(
            plan,
            self.model(numbers).loss,
            self.optimizer(numbers),
            num_arrays=len(self.examples.train),
        )

    def loss(self, numbers: Numbers, key: Any, example: Any) -> Any:
        """Return the loss of one example by an untrained model."""
        model = self.model(numbers)
        return model.loss(model.init(key), *example)


def make_scores(blueprint: Blueprint) -> Callable[[Settings, Any], dict[str, float]]:
    """Return ``scores(settings, params)`` on the evaluation data: compiled once for all trials of a shape."""

    @jax.jit
    def compiled(numbers: Numbers, params: Any, evaluation: Any) -> Mapping[str, Any]:
        return blueprint.model(numbers).scores(params, *evaluation)

    evaluation = tuple(jnp.asarray(array) for array in blueprint.examples.evaluation)

    def scores(settings: Settings, params: Any) -> dict[str, float]:
        numbers = {name: jnp.float32(settings[name]) for name in blueprint.real}
        values = compiled(numbers, params, evaluation)
        return {name: python_number(value) for name, value in values.items()}

    return scores


def python_number(value: Any) -> float:
    """Return the shortest decimal number that is ``value`` in its own precision.

    >>> python_number(jnp.float32(0.836)), float(jnp.float32(0.836))
    (0.836, 0.8360000252723694)
    """
    if not jnp.issubdtype(value.dtype, jnp.inexact):
        return float(value)
    return float(str(np.asarray(value)[()]))


def not_finite(params: Any, scores: Mapping[str, float]) -> str | None:
    """Return a sentence about what of a trained model is not finite; None where everything is.

    NaN would win or lose every comparison by accident.
    """
    for leaf in jax.tree.leaves(params):
        if jnp.issubdtype(leaf.dtype, jnp.inexact) and not jnp.isfinite(leaf).all():
            return "diverged: the trained parameters are not finite; take a smaller learning_rate"
    for name, value in scores.items():
        if not math.isfinite(value):
            return f"the score {name} is {value}"
    return None


@dataclasses.dataclass(frozen=True)
class Program:
    """The compiled functions of a shape."""

    width: int
    num_calls: int
    steps_per_call: int
    start: Callable[[Numbers, Keys], State]
    advance: Callable[[Numbers, State, Data], State]
    memory_bytes: int

    def run(
        self,
        numbers: Numbers,
        keys: Keys,
        data: Data,
        on_steps: Callable[[int], None],
    ) -> State:
        """Train ``width`` trials to the end of their plans."""
        state = self.start(numbers, keys)
        for call in range(self.num_calls):
            state = self.advance(numbers, state, data)
            jax.block_until_ready(state.status)
            on_steps((call + 1) * self.steps_per_call)
        return state


def make_program(
    blueprint: Blueprint,
    data: Data,
    *,
    width: int,
    memory_bytes: int,
    slots: int = 1,
) -> Program:
    """Compile the program of a shape for at most ``width`` trials side by side.

    They fit into their share of ``memory_bytes``, where ``slots`` programs run at a time; one trial may have all of it.

    Raises:
      UserError: one trial alone needs more memory.
    """
    share_bytes = memory_bytes // slots
    while True:
        program = _compile(blueprint, data, width)
        if program.memory_bytes <= (share_bytes if width > 1 else memory_bytes):
            return program
        if width == 1:
            raise UserError(
                f"one trial alone needs {program.memory_bytes / 1e9:.3g} GB, more than --memory-gb allows "
                f"({memory_bytes / 1e9:.3g} GB); allow more, or take a smaller batch_size"
            )
        width //= 2


def _compile(blueprint: Blueprint, data: Data, width: int) -> Program:
    """Compile the beginning and the steps of ``width`` trainings side by side."""
    max_steps = blueprint.plan.num_steps
    steps_per_call = 1
    if not _loops_outside(blueprint):
        steps_per_call = math.ceil(max_steps / min(CALLS, max_steps))

    def start(numbers: Numbers, keys: Keys) -> State:
        params = blueprint.model(numbers).init(keys.init)
        return blueprint.training(numbers).init(params, keys.training)

    def advance(numbers: Numbers, state: State, data: Data) -> State:
        training = blueprint.training(numbers)

        def step(state: State, _: None) -> tuple[State, None]:
            state, _info = training.step(state, data)
            return state, None

        if steps_per_call == 1:
            state, _ = step(state, None)
        else:
            state, _ = jax.lax.scan(step, state, None, length=steps_per_call)
        return state

    numbers, key = blueprint.shapes(width)
    keys = Keys(key, key)
    start_all = jax.jit(jax.vmap(start))
    advance_all = jax.jit(jax.vmap(advance, in_axes=(0, 0, None)))
    starting = start_all.lower(numbers, keys).compile()
    state = jax.eval_shape(start_all, numbers, keys)
    advancing = advance_all.lower(numbers, state, data).compile()
    num_calls = math.ceil(max_steps / steps_per_call)
    return Program(width, num_calls, steps_per_call, starting, advancing, _memory(advancing))


def _memory(compiled: Any) -> int:
    """Return the bytes that a program holds while it runs, arguments included; 0 if the backend does not tell."""
    analysis = compiled.memory_analysis()
    if analysis is None:
        return 0
    return int(analysis.temp_size_in_bytes + analysis.argument_size_in_bytes + analysis.output_size_in_bytes)


def _loops_outside(blueprint: Blueprint) -> bool:
    """Return whether the loop over steps should be Python's: a convolution, on a CPU."""
    if xla.platform() != "cpu":
        return False
    jaxpr = jax.make_jaxpr(blueprint.loss)(*blueprint.shapes(), blueprint.examples.example)
    return "conv_general_dilated" in str(jaxpr)


def arguments_of(
    settings: Sequence[Mapping[str, float]],
    keys: Sequence[Keys],
    names: Sequence[str],
    width: int,
) -> tuple[Numbers, Keys]:
    """Return the arguments of a program for trials side by side.

    The settings of the last trial fill what is left of the width, with keys of their own: configurations that share a
    key are refused as a whole.
    """
    settings, keys = list(settings), list(keys)
    while len(settings) < width:
        settings.append(settings[-1])
        unused = jax.random.fold_in(keys[-1].training, 0)
        keys.append(keys[-1]._replace(training=unused))
    numbers = {}
    for name in names:
        values = [each[name] for each in settings]
        numbers[name] = jnp.asarray(values, jnp.float32)
    return numbers, jax.tree.map(lambda *each: jnp.stack(each), *keys)
