"""The batches of a plan, drawn on the host: the same as its compiled step draws."""

from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np

from gdpjax.sampling import BatchOverflowError
from gdpjax.training._data import check_count
from gdpjax.training._loop import State, draw, num_steps_done
from gdpjax.training._plan import Plan


def batches(plan: Plan, state: State, num_examples: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """The remaining batches of a run, for a loader that feeds ``training.step_on``.

    Args:
      plan: the run's plan.
      state: where the run is; the batches begin at its next step and use its sampling key.
      num_examples: number of real examples, at most the plan's maximum.

    Yields:
      ``(indices, is_padding)``, int32 and bool ``[plan.capacity]``: row numbers, and which of them to ignore.

    Raises:
      ValueError: a number of examples that the plan does not cover.
      BatchOverflowError: a batch above the capacity, which must not be trained on; its probability is in the Event.

    >>> from gdpjax.training import private_training, make_plan
    >>> import optax
    >>> plan = make_plan(clip=1.0, max_examples=100, expected_batch_size=10, num_steps=3, delta=1e-5,
    ...                  noise_multiplier=2.0)
    >>> training = private_training(plan, lambda w, x, y: (w @ x - y) ** 2, optax.sgd(0.1))
    >>> state, x, y = training.init(jnp.zeros(2), jax.random.key(0)), np.ones((90, 2)), np.zeros(90)
    >>> for indices, is_padding in batches(plan, state, 90):
    ...     state, _ = training.step_on(state, x[indices], y[indices], is_padding=is_padding)
    >>> int(num_steps_done(state))
    3
    """
    check_count(plan, num_examples)
    drawn = jax.jit(lambda key, step: draw(plan, key, step, jnp.asarray(num_examples, jnp.int32)))
    for step in range(int(num_steps_done(state)), plan.max_steps):
        indices, is_padding, fits = drawn(state.sampling_key, jnp.asarray(step, jnp.int32))
        if not bool(fits):
            raise BatchOverflowError(
                f"step {step}: the Poisson batch exceeds the planned capacity of {plan.capacity}; it must not be "
                "trained on, and the run ends here. Its probability is in the plan's event"
            )
        yield np.asarray(indices), np.asarray(is_padding)
