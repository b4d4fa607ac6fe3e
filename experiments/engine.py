"""The compiled pieces of a run: draw a Poisson batch, take a private step, measure accuracy.

The loop around them is Python's: convolutions inside ``lax.scan`` are very slow on a CPU.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

import gdpjax
from experiments import models
from experiments.config import TrainConfig
from experiments.datasets import Dataset
from experiments.errors import CapacityExceededError
from experiments.keys import Keys
from experiments.plan import Plan
from gdpjax import sampling

EVALUATION_CHUNK = 1000


class State(NamedTuple):
    """Everything that a step changes. The optimizer state holds the noise key and the ledger."""

    params: Any
    opt_state: Any


class Diagnostics(NamedTuple):
    """Private by-products of one step, outside epsilon: one loss and gradient norm per row, padding included."""

    losses: jax.Array
    norms: jax.Array
    is_padding: np.ndarray


@dataclasses.dataclass(frozen=True)
class Engine:
    """``draw(key, step)``, ``step(state, indices, is_padding)`` and ``accuracy(params)`` for one run."""

    plan: Plan
    initial: State
    draw: Callable[[jax.Array, int], tuple[jax.Array, jax.Array]]
    step: Callable[[State, jax.Array, jax.Array], tuple[State, Diagnostics]]
    accuracy: Callable[[Any], float]


def build_engine(config: TrainConfig, dataset: Dataset, plan: Plan, keys: Keys) -> Engine:
    """Model, clipped gradient and private optimizer of one run."""
    model = models.build(config.model.model, dataset.train_images.shape[1:], dataset.num_classes)
    params = model.init(keys.init, jnp.zeros(dataset.train_images.shape[1:]))["params"]
    grad_fn = gdpjax.clipped_grad(
        models.example_loss(model),
        config.privacy.l2_clip_norm,
        batch_argnums=(1, 2),
        return_info=True,
    )
    make_optimizer = {"sgd": gdpjax.dpsgd, "adam": gdpjax.dpadam}[config.optimizer.optimizer]
    tx = make_optimizer(
        config.optimizer.learning_rate,
        clipped_by=grad_fn,
        noise_multiplier=config.privacy.noise_multiplier,
        sampling_prob=plan.sampling_prob,
        expected_batch_size=plan.expected_batch_size,
        overflow_per_step=plan.overflow_per_step,
        # The plan is made from the number of examples, so that number is public and neighbours have it in common.
        neighboring_relation=gdpjax.NeighboringRelation.REPLACE_SPECIAL,
        key=keys.noise,
    )
    return Engine(
        plan=plan,
        initial=State(params, tx.init(params)),
        draw=_make_draw(plan),
        step=_make_step(grad_fn, tx, dataset),
        accuracy=_make_accuracy(model, dataset),
    )


def _make_draw(plan: Plan) -> Callable[[jax.Array, int], tuple[jax.Array, jax.Array]]:
    """Poisson batches of one static size: a size that followed the private count could change every row's gradient."""

    @jax.jit
    def sample(key: jax.Array, step: jax.Array) -> Any:
        step_key = jax.random.fold_in(key, step)
        return sampling.poisson_sample(step_key, plan.num_examples, plan.sampling_prob, plan.capacity)

    def draw(key: jax.Array, step: int) -> tuple[jax.Array, jax.Array]:
        indices, is_padding, count = sample(key, jnp.uint32(step))
        if int(count) > plan.capacity:
            raise CapacityExceededError(
                f"step {step}: the Poisson batch exceeds the planned capacity of {plan.capacity} examples, so the run "
                f"stops. Its epsilon accounts for this event (probability {plan.overflow:.1g}); start a new run."
            )
        return indices, is_padding

    return draw


def _make_step(grad_fn: Any, tx: optax.GradientTransformation, dataset: Dataset) -> Any:
    """Clipped gradient, then noise and update."""
    images, labels = jnp.asarray(dataset.train_images), jnp.asarray(dataset.train_labels)

    @jax.jit
    def clipped(params: Any, images: jax.Array, labels: jax.Array, indices: jax.Array, is_padding: jax.Array) -> Any:
        return grad_fn(params, images[indices], labels[indices], is_padding=is_padding)

    @jax.jit
    def update(state: State, clipped_sum: Any) -> State:
        updates, opt_state = tx.update(clipped_sum, state.opt_state, state.params)
        return State(optax.apply_updates(state.params, updates), opt_state)

    def step(state: State, indices: jax.Array, is_padding: jax.Array) -> tuple[State, Diagnostics]:
        clipped_sum, info = clipped(state.params, images, labels, indices, is_padding)
        return update(state, clipped_sum), Diagnostics(info.values, info.norms, np.asarray(is_padding))

    return step


def _make_accuracy(model: Any, dataset: Dataset) -> Callable[[Any], float]:
    @jax.jit
    def correct(params: Any, images: jax.Array, labels: jax.Array) -> jax.Array:
        return jnp.sum(jnp.argmax(model.apply({"params": params}, images), axis=-1) == labels)

    def accuracy(params: Any) -> float:
        starts = range(0, len(dataset.test_labels), EVALUATION_CHUNK)
        chunks = (slice(start, start + EVALUATION_CHUNK) for start in starts)
        total = sum(int(correct(params, dataset.test_images[c], dataset.test_labels[c])) for c in chunks)
        return total / len(dataset.test_labels)

    return accuracy
