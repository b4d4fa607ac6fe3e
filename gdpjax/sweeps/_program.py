"""One compiled program for all trials of a shape: `jax.vmap` over its real hyperparameters and keys.

What the length or the shapes of the program depend on is its shape: the number of steps, the batch size, and the whole
hyperparameters of the user's own. Everything else is an argument. Programs are compiled ahead of time, so that
none can be compiled again unnoticed, and counted.

A program takes ``steps_per_call`` steps in a scan, and steps beyond the planned maximum change nothing. XLA runs
convolutions inside a loop far slower on a CPU than outside one; there a call is one step, and the loop is Python's.

The number of trials side by side (the width) is guessed, the program compiled, and its memory read from the compiler;
if that is above the budget, the width shrinks in proportion and the program is compiled again.
"""

import dataclasses
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from gdpjax._core import xla
from gdpjax.sweeps._blueprint import Blueprint, Numbers
from gdpjax.sweeps._errors import UserError
from gdpjax.sweeps._keys import Keys
from gdpjax.training import Data, State

CALLS = 20
"""Calls of one program for a whole training, where it scans: often enough for a progress bar."""


@dataclasses.dataclass(frozen=True)
class Program:
    """The compiled functions of a shape, and what compiling them took."""

    width: int
    num_calls: int
    steps_per_call: int
    start: Callable[[Numbers, Keys], State]
    advance: Callable[[Numbers, State, Data], State]
    num_compiled: int
    memory_bytes: int
    compile_seconds: float

    def run(self, numbers: Numbers, keys: Keys, data: Data, on_steps: Callable[[int], None]) -> State:
        """Train ``width`` trials to the end of their plans."""
        state = self.start(numbers, keys)
        for call in range(self.num_calls):
            state = self.advance(numbers, state, data)
            jax.block_until_ready(state.status)
            on_steps((call + 1) * self.steps_per_call)
        return state


def lane(state: State, index: int) -> State:
    """Return one trial of a batched state."""
    return jax.tree.map(lambda leaf: leaf[index], state)


def make_program(
    blueprint: Blueprint, data: Data, *, width: int, memory_bytes: int, most_bytes: int | None = None
) -> Program:
    """Compile the program of a shape for at most ``width`` trials side by side within ``memory_bytes``.

    Raises:
      UserError: one trial alone needs more memory, or more than ``most_bytes``, if that is given.
    """
    if most_bytes is None:
        most_bytes = memory_bytes
    shared_bytes = sum(leaf.nbytes for leaf in data.arrays)
    num_compiled = 0
    begin = time.perf_counter()
    while True:
        program = _compile(blueprint, data, width)
        num_compiled += 1
        allowed_bytes = memory_bytes if width > 1 else most_bytes
        if program.memory_bytes <= allowed_bytes:
            seconds = time.perf_counter() - begin
            return dataclasses.replace(program, num_compiled=num_compiled, compile_seconds=seconds)
        if width == 1:
            raise UserError(
                f"one trial alone needs {program.memory_bytes / 1e9:.3g} GB for batches of {blueprint.plan.capacity} "
                f"rows, more than --memory-gb allows ({most_bytes / 1e9:.3g} GB); allow more, or take a smaller "
                "batch_size"
            )
        # As many trials as fit, if the bytes that they do not share grow with their number.
        bytes_of_trial = max(1.0, (program.memory_bytes - shared_bytes) / width)
        largest_width = math.floor((memory_bytes - shared_bytes) / bytes_of_trial)
        width = min(width - 1, max(1, largest_width))


def _compile(blueprint: Blueprint, data: Data, width: int) -> Program:
    """Compile the beginning and the steps of ``width`` trainings side by side."""
    max_steps = blueprint.plan.num_steps
    steps_per_call = math.ceil(max_steps / min(CALLS, max_steps))
    if _loops_outside(blueprint):
        steps_per_call = 1

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
    starting = jax.jit(jax.vmap(start)).lower(numbers, keys).compile()
    state = jax.eval_shape(jax.vmap(start), numbers, keys)
    advancing = jax.jit(jax.vmap(advance, in_axes=(0, 0, None))).lower(numbers, state, data).compile()
    return Program(
        width=width,
        num_calls=math.ceil(max_steps / steps_per_call),
        steps_per_call=steps_per_call,
        start=starting,
        advance=advancing,
        num_compiled=1,
        memory_bytes=_memory(advancing),
        compile_seconds=0.0,
    )


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
    settings: Sequence[Mapping[str, float]], keys: Sequence[Keys], names: Sequence[str], width: int
) -> tuple[Numbers, Keys]:
    """Return the arguments of a program for trials side by side.

    The settings of the last trial fill what is left of the width, with keys of their own: configurations that share a
    key are refused as a whole.
    """
    num_missing = width - len(settings)
    settings = [*settings, *[settings[-1]] * num_missing]
    unused = [Keys(*(jax.random.fold_in(key, lane) for key in keys[-1])) for lane in range(num_missing)]
    keys = [*keys, *unused]

    numbers = {}
    for name in names:
        values = [of_trial[name] for of_trial in settings]
        numbers[name] = jnp.asarray(values, jnp.float32)
    init_keys = jnp.stack([of_trial.init for of_trial in keys])
    training_keys = jnp.stack([of_trial.training for of_trial in keys])
    return numbers, Keys(init_keys, training_keys)
