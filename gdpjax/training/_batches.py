"""The batches of a plan, drawn on the host: the same as its compiled step draws."""

from gdpjax._core.arguments import check_instance
from gdpjax.sampling import HostBatches
from gdpjax.training._data import check_count
from gdpjax.training._loop import State
from gdpjax.training._plan import Plan


def batch_source(plan: Plan, state: State, num_examples: int) -> HostBatches:
    """Return the batches of a run by step, for a loader that feeds ``training.step_on``.

    Random access (``len(source)``, ``source[t]``), picklable: what grain.MapDataset.source and torch's samplers take.
    Begin at step ``state.num_steps_done``, and use every step once, in order.

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
    >>> from gdpjax.training import make_plan, private_training
    >>> plan = make_plan(clip=1.0, max_examples=100, expected_batch_size=10, num_steps=3, delta=1e-5,
    ...                  noise_multiplier=2.0)
    >>> training = private_training(plan, lambda w, x, y: (w @ x - y) ** 2, optax.sgd(0.1))
    >>> state, x, y = training.init(np.zeros(2, np.float32), jax.random.key(0)), np.ones((90, 2)), np.zeros(90)
    >>> source = batch_source(plan, state, 90)
    >>> for t in range(int(state.num_steps_done), len(source)):
    ...     *rows, is_padding = source.take(t, x, y)
    ...     state, _ = training.step_on(state, *rows, is_padding=is_padding)
    >>> int(state.num_steps_done)
    3
    """
    check_count(plan, num_examples)
    check_instance("state", state, State, "of the run")
    return plan.batches.on_host(state.sampling_key, num_valid=num_examples)
