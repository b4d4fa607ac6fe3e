"""A step of everybody: clipped or not, with the same rows, noise multiplier and optimizer, in chunks of units.

Ours is `experiments.language.finetuning`, as the command trains. A batch is there already, and none of its rows is
padding, so that everybody computes the same rows.
"""

import functools
import importlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import gdpjax
from benchmarks.harness import Contender
from benchmarks.language.cases import Case
from experiments.language.finetuning import ADAPTERS, BASE, Finetuning
from experiments.language.lora import frozen, init_adapters, joined
from experiments.language.model import init_params, sequence_loss
from gdpjax.sampling import TruncatedPoisson

NO_PRIVACY = "no privacy"
AUTO = "gdpjax auto"
MICROBATCH = "gdpjax microbatch"
PEER = "jax_privacy"

CLIP_NORM = 1.0
NOISE_MULTIPLIER = 1.0
LEARNING_RATE = 1e-4

Call = tuple[Callable[..., Any], tuple[Any, ...]]
"""A function and its arguments, which are arrays on the device."""


class Task:
    """The arrays of a case, which all contenders share."""

    def __init__(self, case: Case) -> None:
        self.case = case
        config = case.config

        # What is trained: all parameters, or adapters beside a base that stays as it is.
        params = init_params(config, jax.random.key(0))
        if case.lora is None:
            self.trained = params
            self.base = None
        else:
            self.trained = init_adapters(params, case.lora, jax.random.key(1))
            self.base = frozen(params)

        # Random tokens, one text a sequence, no padding.
        shape = (case.num_units, case.num_sequences, case.length)
        draw = np.random.default_rng(2)
        tokens = draw.integers(config.vocab_size, size=shape, dtype=np.int32)
        self.rows = (jnp.asarray(tokens), jnp.ones(shape, jnp.int32))

    @functools.cached_property
    def optimizer_state(self) -> Any:
        """Adam's, of those who do not keep it together with a ledger."""
        return _optimizer().init(self.trained)

    @functools.cached_property
    def private_state(self) -> Any:
        """The state of our training, which is the same for all strategies."""
        params = self.trained
        if self.base is not None:
            params = {ADAPTERS: self.trained, BASE: self.base}
        training = self.finetuning("auto", None).training()
        return training.init(params, jax.random.key(3))

    @property
    def expected_batch_size(self) -> int:
        """Half of the units: the capacity of a batch is twice its expected size."""
        return max(1, self.case.num_units // 2)

    def finetuning(self, strategy: str, size: int | None) -> Finetuning:
        """Return our training."""
        case = self.case
        plan = gdpjax.make_plan(
            TruncatedPoisson(
                1_000 * case.num_units, self.expected_batch_size, num_steps=1_000, capacity=case.num_units
            ),
            clip=CLIP_NORM,
            delta=1e-5,
            noise_multiplier=NOISE_MULTIPLIER,
        )
        return Finetuning(case.config, plan, LEARNING_RATE, case.lora, size, strategy)

    def loss(self, trained: Any, tokens: jax.Array, segment_ids: jax.Array, base: Any) -> jax.Array:
        """Return the loss of ONE unit."""
        params = trained
        if base is not None:
            params = joined(trained, base)
        return sequence_loss(self.case.config, params, tokens, segment_ids, lora=self.case.lora)


def _optimizer() -> optax.GradientTransformation:
    return optax.adam(LEARNING_RATE)


def _no_privacy(task: Task, size: int) -> Call:
    """Update by the gradient of the mean loss, accumulated over chunks."""
    optimizer = _optimizer()
    num_chunks = task.case.num_units // size

    def mean_loss(trained: Any, chunk: Any, base: Any) -> jax.Array:
        tokens, segment_ids = chunk
        losses = jax.vmap(task.loss, (None, 0, 0, None))(trained, tokens, segment_ids, base)
        return losses.mean()

    def step(trained: Any, opt_state: Any, base: Any, *rows: jax.Array) -> Any:
        # Add up the gradients of all chunks, one chunk after the other.
        def add_chunk(total: Any, chunk: Any) -> tuple[Any, None]:
            gradient = jax.grad(mean_loss)(trained, chunk, base)
            return jax.tree.map(jnp.add, total, gradient), None

        chunks = tuple(array.reshape(num_chunks, size, *array.shape[1:]) for array in rows)
        zero = jax.tree.map(jnp.zeros_like, trained)
        total, _ = jax.lax.scan(add_chunk, zero, chunks)

        mean = jax.tree.map(lambda leaf: leaf / num_chunks, total)
        updates, opt_state = optimizer.update(mean, opt_state, trained)
        return optax.apply_updates(trained, updates), opt_state

    return step, (task.trained, task.optimizer_state, task.base, *task.rows)


def _gdpjax(strategy: str) -> Callable[[Task, int], Call]:
    """Return what builds our private step, with a strategy of clipping."""

    def build(task: Task, size: int) -> Call:
        training = task.finetuning(strategy, size).training()

        def step(state: Any, is_padding: jax.Array, *rows: jax.Array) -> Any:
            return training.step_on(state, *rows, is_padding=is_padding)

        nothing_padded = jnp.zeros(task.case.num_units, bool)
        return step, (task.private_state, nothing_padded, *task.rows)

    return build


def _jax_privacy(task: Task, size: int) -> Call:
    """Update by its clipped sum, by microbatches, with its independent noise and the same optimizer."""
    clipping = importlib.import_module("jax_privacy.clipping")
    noise_addition = importlib.import_module("jax_privacy.noise_addition")
    expected = task.expected_batch_size
    grad_fn = clipping.clipped_grad(
        task.loss,
        l2_clip_norm=CLIP_NORM,
        normalize_by=float(expected),
        batch_argnums=(1, 2),
        keep_batch_dim=False,
        microbatch_size=size,
    )
    noise = noise_addition.gaussian_privatizer(
        stddev=NOISE_MULTIPLIER * CLIP_NORM / expected,
        prng_key=4,
    )
    optimizer = _optimizer()

    def step(trained: Any, opt_state: Any, noise_state: Any, base: Any, *rows: jax.Array) -> Any:
        mean = grad_fn(trained, *rows, base)
        noisy, noise_state = noise.update(mean, noise_state)
        updates, opt_state = optimizer.update(noisy, opt_state, trained)
        return optax.apply_updates(trained, updates), opt_state, noise_state

    noise_state = noise.init(task.trained)
    return step, (task.trained, task.optimizer_state, noise_state, task.base, *task.rows)


CONTENDERS = (
    Contender(NO_PRIVACY, _no_privacy),
    Contender(AUTO, _gdpjax("auto")),
    Contender(MICROBATCH, _gdpjax("microbatch")),
    Contender(PEER, _jax_privacy, ("jax_privacy",)),
)
