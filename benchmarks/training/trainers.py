"""Whole private trainings, ours and jax_privacy's, each as its own documentation writes the loop.

All start from the same parameters and take ``steps_per_turn`` steps with the same model, data, clip norm, noise
multiplier, optimizer and expected batch size. A turn starts from the first parameters. The data lie on the device, for
everybody, and what compiles has compiled before the first turn.
"""

import importlib
import math
from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from benchmarks.harness import Contender
from benchmarks.training.cases import Case
from benchmarks.training.trainer import NUM_LOSSES, Trainer, forever
from gdpjax.training import private_training


def mean_loss(case: Case, params: Any) -> float:
    """Return the mean loss of the first examples."""
    images, labels = case.data()
    losses = jax.vmap(case.model.loss, (None, 0, 0))
    of_examples = losses(params, jnp.asarray(images[:NUM_LOSSES]), jnp.asarray(labels[:NUM_LOSSES]))
    return float(of_examples.mean())


# ---- Ours ----


def gdpjax_scan(case: Case, size: int | None) -> Trainer:
    """Return a trainer that takes all steps of a turn in one compiled scan."""

    def advance(training: Any, state: Any, data: Any) -> Any:
        state, _ = training.run_steps(state, data, case.steps_per_turn)
        return state

    return _gdpjax(case, advance)


def gdpjax_step(case: Case, size: int | None) -> Trainer:
    """Return a trainer that takes compiled steps in a loop in Python."""

    def advance(training: Any, state: Any, data: Any) -> Any:
        for _ in range(case.steps_per_turn):
            state, _ = training.step(state, data)
        return state

    return _gdpjax(case, advance)


def _gdpjax(case: Case, advance: Callable[[Any, Any, Any], Any]) -> Trainer:
    """Return our trainer.

    Args:
      case: what is trained.
      advance: takes the training, its state and its data, and returns the state after the steps of a turn.
    """
    plan = case.plan()
    training = private_training(plan, case.model.loss, optax.sgd(case.learning_rate))
    data = training.place(*case.data())
    start = training.init(jax.device_put(case.params()), jax.random.key(0))

    def turn() -> Callable[[], float]:
        state = jax.block_until_ready(advance(training, start, data))
        state.check_status()
        return lambda: mean_loss(case, state.params)

    def epsilon() -> dict[str, Any]:
        bounds = plan.epsilon_bounds()
        return {
            "epsilon": float(bounds.upper),
            "lower": float(bounds.lower),
            "by": "certified bracket",
        }

    return Trainer(turn, epsilon, plan.sampling_prob)


# ---- jax_privacy ----

PADDING_MULTIPLE = 32
"""Its batches are padded to a multiple of so many rows."""


def jax_privacy(case: Case, size: int | None) -> Trainer:
    """Follow its execution plans: batches from the host, padded to a multiple of 32 rows, and a jitted step."""
    batch_selection = importlib.import_module("jax_privacy.batch_selection")
    execution_plan = importlib.import_module("jax_privacy.experimental.execution_plan")
    dp_accounting = importlib.import_module("dp_accounting")

    # The plan: independent noise is that of a single band.
    relation = dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE
    sampling_prob = case.expected_batch_size / case.num_examples
    plan = execution_plan.BandMFExecutionPlanConfig(
        iterations=case.plan().num_steps,
        strategy=np.ones(1),
        epsilon=None,
        delta=None,
        noise_multiplier=case.noise_multiplier,
        l2_clip_norm=case.clip_norm,
        rescale_to_unit_norm=False,
        normalize_by=float(case.expected_batch_size),
        sampling_prob=sampling_prob,
        partition_type=batch_selection.PartitionType.INDEPENDENT,
        accountant=dp_accounting.pld.PLDAccountant(relation),
        noise_seed=0,
    ).plan
    grad_fn = plan.clipped_grad(
        case.model.loss,
        batch_argnums=(1, 2),
        keep_batch_dim=False,
        microbatch_size=size,
    )
    noise = plan.noise_addition_transform
    optimizer = optax.sgd(case.learning_rate)
    data = jax.device_put(case.data())
    params = jax.device_put(case.params())

    @jax.jit
    def step(params: Any, opt_state: Any, noise_state: Any, data: Any, indices: Any) -> Any:
        # Padding has the number -1 and takes the first row, which is then left out.
        is_padding = indices == -1
        indices = jnp.where(is_padding, 0, indices)
        rows = [array[indices] for array in data]
        total = grad_fn(params, *rows, is_padding_example=is_padding)
        noisy, noise_state = noise.update(total, noise_state)
        updates, opt_state = optimizer.update(noisy, opt_state, params)
        return optax.apply_updates(params, updates), opt_state, noise_state

    start = (params, optimizer.init(params), noise.init(params))

    def batches_of_run() -> Iterable[Any]:
        return plan.batch_selection_strategy.batch_iterator(case.num_examples, rng=0)

    batches = forever(batches_of_run)

    # Compile the step for every size of a batch, with indices of the type that the batches have.
    dtype = np.min_scalar_type(-case.num_examples)
    for num_rows in _padded_sizes(case):
        only_padding = np.full(num_rows, -1, dtype)
        jax.block_until_ready(step(*start, data, only_padding))

    def turn() -> Callable[[], float]:
        state = start
        for _ in range(case.steps_per_turn):
            indices = batch_selection.pad_to_multiple_of(next(batches), PADDING_MULTIPLE)
            state = step(*state, data, indices)
        params, *_ = jax.block_until_ready(state)
        return lambda: mean_loss(case, params)

    def epsilon() -> dict[str, Any]:
        accountant = dp_accounting.pld.PLDAccountant(relation)
        accountant.compose(plan.dp_event)
        upper = accountant.get_epsilon(case.delta)
        return {"epsilon": float(upper), "by": "dp_accounting's PLDAccountant"}

    return Trainer(turn, epsilon, sampling_prob)


def _padded_sizes(case: Case) -> range:
    """Return every size that six standard deviations of the batch's size reach."""
    mean = case.expected_batch_size
    deviation = math.sqrt(mean * (1 - mean / case.num_examples))
    least = max(mean - 6 * deviation, 1)
    most = max(mean + 6 * deviation, 1)

    # Rounded up to what batches are padded to.
    least_padded = PADDING_MULTIPLE * math.ceil(least / PADDING_MULTIPLE)
    most_padded = PADDING_MULTIPLE * math.ceil(most / PADDING_MULTIPLE)
    return range(least_padded, most_padded + 1, PADDING_MULTIPLE)


# ---- All ----


def _opacus(mode: str) -> Callable[[Case, int | None], Trainer]:
    def build(case: Case, size: int | None) -> Trainer:
        torch_trainers = importlib.import_module("benchmarks.training.torch_trainers")
        return torch_trainers.opacus(case, mode)

    return build


TORCH = ("torch", "opacus")
SCAN = "gdpjax run_steps"
LOOP = "gdpjax step"
OWN = (SCAN, LOOP)
CONTENDERS = (
    Contender(SCAN, gdpjax_scan),
    Contender(LOOP, gdpjax_step),
    Contender("jax_privacy", jax_privacy, ("jax_privacy", "dp_accounting"), (None, 4, 16)),
    Contender("Opacus hooks", _opacus("hooks"), TORCH),
    Contender("Opacus ghost", _opacus("ghost"), TORCH),
)
