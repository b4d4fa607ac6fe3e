"""The private step beside the clipped gradient step that it contains.

The clipped step is what remains of a private one without its bookkeeping: the clipped sum of a batch of the plan's
capacity that is already there, and the optimizer's update with it. The private step draws the batch, gathers it, clips
and sums, adds the noise, updates the parameters, writes the ledger, and selects whether all that happens.
"""

from typing import Any

import jax
import optax

from benchmarks import turns
from benchmarks.training.cases import Case
from gdpjax import clipped_grad
from gdpjax.training import private_training

CLIPPED = "clipped step"
PRIVATE = "private step"


def measure(case: Case, repetitions: int) -> dict[str, Any]:
    """Return time, memory and flops of both steps, and their times over the clipped step's, round by round."""
    # The private training, its data on the device and its first state.
    plan = case.plan()
    optimizer = optax.sgd(case.learning_rate)
    training = private_training(plan, case.model.loss, optimizer)
    params = jax.device_put(case.params())
    data = training.place(*case.data())
    state = training.init(params, jax.random.key(0))

    # The clipped step, and a batch for it.
    grad_fn = clipped_grad(case.model.loss, case.clip_norm, batch_argnums=(1, 2))
    *batch, is_padding = plan.batches.sample(jax.random.key(1), 0).take(*data.arrays)

    def clipped_step(params: Any, opt_state: Any, batch: Any, is_padding: Any) -> Any:
        total = grad_fn(params, *batch, is_padding=is_padding)
        mean = jax.tree.map(lambda leaf: leaf / plan.expected_batch_size, total)
        updates, opt_state = optimizer.update(mean, opt_state, params)
        return optax.apply_updates(params, updates), opt_state

    clipped, _ = turns.compiled(CLIPPED, clipped_step, params, optimizer.init(params), batch, is_padding)
    private, _ = turns.compiled(PRIVATE, training.step, state, data)
    entries = [clipped, private]
    turns.take_turns(entries, repetitions)
    return {entry.name: {**entry.result(), "over": entry.over(clipped)} for entry in entries}
