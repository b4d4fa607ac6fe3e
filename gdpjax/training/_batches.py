"""The batches of a plan, drawn on the host: the same as its compiled step draws."""

from typing import Any

from gdpjax._core.arguments import check_instance
from gdpjax.sampling import (
    AllocationBatches,
    CyclicPoissonBatches,
    PoissonBatches,
    ShuffledBatches,
    TruncatedPoissonBatches,
    UniformBatches,
)
from gdpjax.training._data import check_count
from gdpjax.training._loop import State
from gdpjax.training._plan import Plan

_Source = (
    AllocationBatches
    | CyclicPoissonBatches
    | PoissonBatches
    | ShuffledBatches
    | TruncatedPoissonBatches
    | UniformBatches
)


def batch_source(plan: Plan, state: State, num_examples: int) -> _Source:
    """Return the batches of a run by step, for a loader that feeds ``training.step_on``.

    Random access (``len(source)``, ``source[t]``), picklable: what grain.MapDataset.source and torch's samplers take.
    Begin at step `num_steps_done`, and use every step once, in order.

    Args:
      plan: the run's plan.
      state: any state of the run, for its sampling key.
      num_examples: number of real examples, at most the plan's maximum.

    Returns:
      ``source[t]`` is ``(indices, is_padding)``, int32 and bool ``[plan.capacity]``: row numbers, and which to ignore.
      ``source.take(t, x, y)`` returns these rows of the arguments, and the mask.
      A batch above the capacity raises `gdpjax.sampling.BatchOverflowError`; its probability is in the Event.

    Raises:
      ValueError: a number of examples that the plan does not cover.

    >>> import jax, numpy as np, optax
    >>> from gdpjax.training import make_plan, num_steps_done, private_training
    >>> plan = make_plan(clip=1.0, max_examples=100, expected_batch_size=10, num_steps=3, delta=1e-5,
    ...                  noise_multiplier=2.0)
    >>> training = private_training(plan, lambda w, x, y: (w @ x - y) ** 2, optax.sgd(0.1))
    >>> state, x, y = training.init(np.zeros(2, np.float32), jax.random.key(0)), np.ones((90, 2)), np.zeros(90)
    >>> source = batch_source(plan, state, 90)
    >>> for t in range(int(num_steps_done(state)), len(source)):
    ...     *rows, is_padding = source.take(t, x, y)
    ...     state, _ = training.step_on(state, *rows, is_padding=is_padding)
    >>> int(num_steps_done(state))
    3
    """
    check_count(plan, num_examples)
    check_instance("state", state, State, "of the run")
    key = state.sampling_key
    num_rows = plan.max_examples
    if plan.sampling == "uniform":
        return UniformBatches(key, num_rows, plan.capacity, num_steps=plan.max_steps)
    if plan.sampling == "shuffled":
        return ShuffledBatches(
            key,
            num_rows,
            plan.steps_per_epoch,
            num_epochs=plan.num_epochs,
            bins=plan.order,
            num_valid=num_examples,
        )
    if plan.sampling == "allocation":
        return AllocationBatches(
            key,
            num_rows,
            plan.steps_per_epoch,
            num_epochs=plan.num_epochs,
            num_selected=plan.num_selected,
            bins=plan.bins,
            capacity=plan.capacity,
            num_valid=num_examples,
        )

    fields: dict[str, Any] = {"num_steps": plan.max_steps, "capacity": plan.capacity, "num_valid": num_examples}
    if plan.sampling == "cyclic_poisson":
        return CyclicPoissonBatches(key, num_rows, plan.sampling_prob, plan.num_groups, **fields)
    source = TruncatedPoissonBatches if plan.sampling == "truncated_poisson" else PoissonBatches
    return source(key, num_rows, plan.sampling_prob, **fields)
