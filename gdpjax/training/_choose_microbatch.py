"""The choice of the number of rows to take at a time, by the compiler's own account of a step's memory.

More rows at a time keep a device busier, and hold more activations and gradients. What a step needs is known before it
runs: XLA lays out all of its buffers when it compiles. So a few sizes are compiled, for shapes alone, and the largest
that fits is taken. The sums, and so privacy, are the same whatever the size, up to the stated rounding.
"""

import bisect
from collections.abc import Callable

import jax

from gdpjax._core import xla
from gdpjax._core.arguments import check_instance, check_number, check_tree
from gdpjax._core.checks import POSITIVE
from gdpjax._core.types import PyTree
from gdpjax.training._data import Data
from gdpjax.training._in_place import steps_in_place
from gdpjax.training._loop import Training


def choose_microbatch(
    build: Callable[[int], Training],
    params: PyTree,
    data: Data,
    *,
    memory_bytes: float,
) -> tuple[int, dict[int, int]]:
    """Choose the number of rows to take at a time, so that a private step fits a memory.

    Candidates are 1, 2, 4, ... and the plan's capacity, and are bisected; what is returned was compiled and fits.
    Nothing is run, and no parameters are made. The account is that of one device, for the steps of a `Run`: the state
    that a lost chunk would be repeated from is in it, and a frozen base counts once. A loop of your own over
    ``training.step`` needs about as much, and a copy of what is frozen. The account is of a single step: a loop of
    steps (``scan=True``) held up to 3 % more where we measured it, which the tenth below leaves room for.

    Args:
      build: from a number of rows to a training, such as ``lambda rows: private_training(plan, loss_fn, optimizer,
        strategy="microbatch", microbatch_size=rows)``.
      params: the parameters, or `jax.ShapeDtypeStruct` in their place.
      data: of `Training.place`; or a `Data` of shapes.
      memory_bytes: what data, states and temporary buffers of a step may take together; for a device that nothing
        else is on, a tenth less than it has.

    Returns:
      (rows, bytes): the chosen size, and the bytes that each size that was compiled needs, by the compiler's account.

    Raises:
      ValueError: a single row does not fit, or the compiler of this platform gives no account.

    >>> import jax.numpy as jnp
    >>> import optax
    >>> from gdpjax.training import make_plan, private_training
    >>> plan = make_plan(clip=1.0, max_examples=8, expected_batch_size=4, num_steps=5, delta=1e-5,
    ...                  noise_multiplier=1.0)
    >>> def build(rows):
    ...     loss = lambda w, x: jnp.sum(jnp.tanh(x @ w))
    ...     return private_training(plan, loss, optax.sgd(0.1), num_arrays=1, strategy="microbatch",
    ...                             microbatch_size=rows)
    >>> data = build(1).place(jnp.ones((8, 50)))
    >>> rows, needs = choose_microbatch(build, jnp.zeros((50, 50)), data, memory_bytes=10**9)
    >>> rows == plan.capacity
    True
    """
    check_instance("data", data, Data, "made by training.place")
    memory_bytes = check_number("memory_bytes", memory_bytes, POSITIVE)

    # Shapes are enough to compile for.
    smallest = build(1)
    params = check_tree("params", smallest.params_of(params))
    shapes = jax.eval_shape(lambda tree: tree, (params, data))
    capacity = smallest.plan.capacity
    needs: dict[int, int] = {}

    def need(rows: int) -> int:
        if rows not in needs:
            needs[rows] = _step_bytes(build(rows), *shapes)
        return needs[rows]

    if need(1) > memory_bytes:
        raise ValueError(
            f"a step that takes one row at a time needs {needs[1]:,} bytes by the compiler's account, more than "
            f"memory_bytes={memory_bytes:,.0f}: take a smaller model, shorter rows, adapters, or more devices"
        )

    # The need does not shrink with the rows.
    candidates = [2**power for power in range((capacity - 1).bit_length())]
    candidates.append(capacity)
    num_fitting = bisect.bisect(candidates, memory_bytes, key=need)
    return candidates[num_fitting - 1], needs


def _step_bytes(training: Training, params: PyTree, data: Data) -> int:
    """Return the bytes that a compiled step of a `Run` holds at its peak, states and data included."""
    key = jax.eval_shape(lambda: jax.random.key(0))
    state = jax.eval_shape(training.init, params, key)
    num_bytes = steps_in_place(training.step, state, data).held_bytes(state, data)
    if num_bytes is None:
        raise ValueError(f"the compiler of {xla.platform()} gives no account of memory; choose microbatch_size by hand")
    return num_bytes
