"""One compiled program for all trials of a shape: `jax.vmap` over learning rate, clip norm, noise multiplier and keys.

What the length or the shapes of the program depend on is its shape: the number of steps and the batch size (data set,
model and optimizer are a sweep's own). Everything else is an argument. Programs are compiled ahead of time, so that
none can be compiled again unnoticed, and counted.

A program takes ``steps_per_call`` steps in a scan, and steps beyond the planned maximum change nothing. XLA runs
convolutions inside a loop far slower on a CPU than outside one; there a call is one step, and the loop is Python's.

The number of trials side by side (the width) is guessed, the program compiled, and its memory read from the compiler;
if that is above the budget, the width shrinks in proportion and the program is compiled again.
"""

import dataclasses
import math
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn

import gdpjax
from experiments import models
from experiments.config import TrainConfig
from experiments.datasets import Dataset
from experiments.engine import build_training, initial_params
from experiments.errors import UserError
from gdpjax.training import Data, State

CALLS = 20
"""Calls of one program for a whole training, where it scans: often enough for a progress bar."""


class Hyperparameters(NamedTuple):
    """What is traced, each ``float32[width]``."""

    learning_rate: Any
    l2_clip_norm: Any
    noise_multiplier: Any


class Keys(NamedTuple):
    """One key of each kind for every trial: initial weights; sampling and noise."""

    init: Any
    training: Any


@dataclasses.dataclass(frozen=True)
class Program:
    """The compiled functions of a shape, and what compiling them took."""

    width: int
    num_calls: int
    steps_per_call: int
    start: Callable[[Hyperparameters, Keys], State]
    advance: Callable[[Hyperparameters, State, Data], State]
    num_compiled: int
    memory_bytes: int
    compile_seconds: float

    def run(self, hyperparameters: Hyperparameters, keys: Keys, data: Data, on_steps: Callable[[int], None]) -> State:
        """Train ``width`` trials to the end of their plans."""
        state = self.start(hyperparameters, keys)
        for call in range(self.num_calls):
            state = self.advance(hyperparameters, state, data)
            jax.block_until_ready(state.status)
            on_steps((call + 1) * self.steps_per_call)
        return state


def lane(state: State, index: int) -> State:
    """One trial of a batched state."""
    return jax.tree.map(lambda leaf: leaf[index], state)


def make_program(
    config: TrainConfig, plan: gdpjax.Plan, model: nn.Module, dataset: Dataset, data: Data, *, width: int,
    memory_bytes: int, most_bytes: int | None = None,
) -> Program:  # fmt: skip
    """Compile the program of a plan's shape for at most ``width`` trials side by side within ``memory_bytes``.

    Raises:
      UserError: one trial alone needs more memory, or more than ``most_bytes``, if that is given.
    """
    most_bytes = memory_bytes if most_bytes is None else most_bytes
    num_compiled, begun = 0, time.perf_counter()
    while True:
        program = _compile(config, plan, model, dataset, data, width)
        num_compiled += 1
        if program.memory_bytes <= (memory_bytes if width > 1 else most_bytes):
            return dataclasses.replace(program, num_compiled=num_compiled, compile_seconds=time.perf_counter() - begun)
        if width == 1:
            raise UserError(
                f"one trial alone needs {program.memory_bytes / 1e9:.3g} GB for batches of {plan.capacity} rows, more "
                f"than --memory-gb allows ({most_bytes / 1e9:.3g} GB); allow more, or take a smaller batch_size"
            )
        width = _narrower(width, program.memory_bytes, memory_bytes, sum(leaf.nbytes for leaf in data.arrays))


def _narrower(width: int, needed: int, allowed: int, shared: int) -> int:
    """The width whose memory fits, if what trials do not share grows in proportion; less than ``width``."""
    each = max(1.0, (needed - shared) / width)
    return min(width - 1, max(1, math.floor((allowed - shared) / each)))


def _compile(
    config: TrainConfig, plan: gdpjax.Plan, model: nn.Module, dataset: Dataset, data: Data, width: int
) -> Program:
    calls, outside = min(CALLS, plan.max_steps), _loops_outside(model, dataset)
    steps = 1 if outside else math.ceil(plan.max_steps / calls)

    def training(hyper: Hyperparameters) -> Any:
        own = plan.replace(noise_multiplier=hyper.noise_multiplier, clip=hyper.l2_clip_norm)
        return build_training(config, model, own, hyper.learning_rate)

    def start(hyper: Hyperparameters, keys: Keys) -> State:
        return training(hyper).init(initial_params(model, dataset, keys.init), keys.training)

    def advance(hyper: Hyperparameters, state: State, data: Data) -> State:
        step = training(hyper).step
        if steps == 1:
            return step(state, data)[0]
        return jax.lax.scan(lambda carry, _: (step(carry, data)[0], None), state, None, length=steps)[0]

    numbers = jax.ShapeDtypeStruct((width,), jnp.float32)
    hyper = Hyperparameters(numbers, numbers, numbers)
    key = jax.eval_shape(lambda: jax.random.split(jax.random.key(0), width))
    starting = jax.jit(jax.vmap(start)).lower(hyper, Keys(key, key))
    state = jax.eval_shape(jax.vmap(start), hyper, Keys(key, key))
    advancing = jax.jit(jax.vmap(advance, in_axes=(0, 0, None))).lower(hyper, state, data).compile()
    return Program(
        width, math.ceil(plan.max_steps / steps), steps, starting.compile(), advancing, 1, _memory(advancing), 0.0
    )


def _memory(compiled: Any) -> int:
    """Bytes that a compiled program holds while it runs, its arguments included; 0 where the backend does not say."""
    analysis = compiled.memory_analysis()
    if analysis is None:
        return 0
    return int(analysis.temp_size_in_bytes + analysis.argument_size_in_bytes + analysis.output_size_in_bytes)


def _loops_outside(model: nn.Module, dataset: Dataset) -> bool:
    """Whether the loop over steps should be Python's: a convolution, on a CPU."""
    if jax.default_backend() != "cpu":
        return False
    params = jax.eval_shape(lambda: initial_params(model, dataset, jax.random.key(0)))
    example = (jnp.asarray(dataset.train_inputs[0]), jnp.asarray(dataset.train_labels[0]))
    return "conv_general_dilated" in str(jax.make_jaxpr(models.example_loss(model))(params, *example))


def stack(trials_keys: Sequence[Keys], settings: Sequence[Hyperparameters], width: int) -> tuple[Hyperparameters, Keys]:
    """Arguments of a program; the last trial fills what is left of the width, the same run with the same keys again."""
    missing = width - len(settings)
    rows = [*settings, *[settings[-1]] * missing]
    keys = [*trials_keys, *[trials_keys[-1]] * missing]
    hyper = Hyperparameters(*(jnp.asarray(column, jnp.float32) for column in zip(*rows, strict=True)))
    return hyper, Keys(*(jnp.stack(column) for column in zip(*keys, strict=True)))
