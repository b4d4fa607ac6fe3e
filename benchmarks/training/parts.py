"""The private step beside the clipped gradient step that it contains, its parts by themselves, and the noise alone.

The clipped step is what remains of a private one without its bookkeeping: the clipped sum of a batch of the plan's
capacity that is already there, and the optimizer's update with it. The private step draws the batch, gathers it, clips
and sums, adds the noise, updates the parameters, writes the ledger, and selects whether all that happens.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from benchmarks import turns
from benchmarks.training.cases import Case
from gdpjax import add_gaussian_noise, clipped_grad
from gdpjax.ledger import ledger_state_of, record_step
from gdpjax.sampling import poisson_sample
from gdpjax.training import private_training

CLIPPED = "clipped step"
PRIVATE = "private step"
NOISE = "gdpjax.add_gaussian_noise"
JAX_NORMAL = "jax.random.normal"

Call = tuple[Callable[..., Any], tuple[Any, ...]]
"""A function and its arguments."""


def measure(case: Case, repetitions: int) -> dict[str, Any]:
    """Return time, memory and flops of each part, and its time over the clipped step's, round by round."""
    return _race(_steps(case), repetitions, CLIPPED)


def measure_noise(num_coordinates: int, repetitions: int) -> dict[str, Any]:
    """Measure float32 noise added to an array of zeros, beside jax.random.normal alone, and added too."""
    zeros = jnp.zeros(num_coordinates)
    key = jax.random.key(0)
    noise = add_gaussian_noise(1.0, key)

    def normal(key: jax.Array) -> jax.Array:
        return jax.random.normal(key, zeros.shape)

    def normal_added(array: jax.Array, key: jax.Array) -> jax.Array:
        return array + jax.random.normal(key, array.shape)

    def bits(key: jax.Array) -> jax.Array:
        return jax.random.bits(key, zeros.shape)

    calls: dict[str, Call] = {
        JAX_NORMAL: (normal, (key,)),
        NOISE: (noise.update, (zeros, noise.init(zeros))),
        "jax.random.normal, added": (normal_added, (zeros, key)),
        "jax.random.bits": (bits, (key,)),
    }
    return _race(calls, repetitions, JAX_NORMAL)


def _steps(case: Case) -> dict[str, Call]:
    """Return the clipped step, the private one, and what that does beside it."""
    # The private training, its data on the device and its first state.
    plan = case.plan()
    optimizer = optax.sgd(case.learning_rate)
    training = private_training(plan, case.model.loss, optimizer)
    params = jax.device_put(case.params())
    data = training.place(*case.data())
    state = training.init(params, jax.random.key(0))
    opt_state = optimizer.init(params)

    # Its parts: clipping, noise, and the sampling of a batch.
    grad_fn = clipped_grad(case.model.loss, case.clip_norm, batch_argnums=(1, 2))
    noise = add_gaussian_noise(1.0, jax.random.key(1))
    draw = functools.partial(
        poisson_sample,
        num_examples=plan.max_examples,
        sampling_prob=plan.sampling_prob,
        capacity=plan.capacity,
    )

    # A batch that was drawn, and the one of the expected size that is its beginning.
    sample = draw(state.sampling_key, num_valid=data.num_examples)
    batch = tuple(array[sample.indices] for array in data.arrays)
    expected = case.expected_batch_size
    unpadded = tuple(array[:expected] for array in batch)
    nothing_padded = jnp.zeros(expected, bool)

    def clipped_step(params: Any, opt_state: Any, batch: Any, is_padding: Any) -> Any:
        total = grad_fn(params, *batch, is_padding=is_padding)
        mean = jax.tree.map(lambda leaf: leaf / plan.expected_batch_size, total)
        updates, opt_state = optimizer.update(mean, opt_state, params)
        return optax.apply_updates(params, updates), opt_state

    def gather(arrays: Any, indices: Any) -> Any:
        return tuple(array[indices] for array in arrays)

    def ledger(state: Any) -> Any:
        return record_step(state, plan.noise_multiplier, plan.sampling_prob, plan.release.overflow_per_step)

    def sampling(key: Any, num_valid: Any) -> Any:
        return draw(key, num_valid=num_valid)

    return {
        CLIPPED: (clipped_step, (params, opt_state, batch, sample.is_padding)),
        PRIVATE: (training.step, (state, data)),
        f"clipped step, {expected} rows": (clipped_step, (params, opt_state, unpadded, nothing_padded)),
        f"sampling from {plan.max_examples:,}": (sampling, (state.sampling_key, data.num_examples)),
        f"gathering {plan.capacity} rows": (gather, (data.arrays, sample.indices)),
        "noise of the parameters": (noise.update, (params, noise.init(params))),
        "ledger": (ledger, (ledger_state_of(state.opt_state),)),
    }


def _race(calls: dict[str, Call], repetitions: int, base: str) -> dict[str, Any]:
    """Compile all calls, time them in turns, and compare each with the one named ``base``."""
    entries = {}
    for name, (function, arguments) in calls.items():
        entries[name], _ = turns.compiled(name, function, *arguments)
    turns.take_turns(list(entries.values()), repetitions)
    return {name: {**entry.result(), "over": entry.over(entries[base])} for name, entry in entries.items()}
