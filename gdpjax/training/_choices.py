"""Two choices before a run: how many bands its noise has, and how many rows a step takes at a time.

More bands take back more of the noise of earlier steps, and leave less to amplification: with b bands an example is
drawn from one group of b, with b times the probability, in one of b steps. The best number of bands meets the target
with the least error, and 1 is Poisson sampling with independent noise.

More rows at a time keep a device busier, and hold more activations and gradients. What a step needs is known before it
runs: XLA lays out all of its buffers when it compiles. So a few sizes are compiled, for shapes alone, and the largest
that fits is taken. The sums, and so privacy, are the same whatever the size, up to the stated rounding.
"""

import bisect
import inspect
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax

from gdpjax._core import xla
from gdpjax._core.arguments import check_choice, check_count, check_instance, check_keywords, check_number, check_tree
from gdpjax._core.checks import POSITIVE
from gdpjax._core.types import PyTree
from gdpjax.correlated import optimize_banded_toeplitz
from gdpjax.sampling import CyclicPoisson
from gdpjax.training._data import Data
from gdpjax.training._in_place import steps_in_place
from gdpjax.training._loop import Training
from gdpjax.training._make_plan import make_plan
from gdpjax.training._plan import Plan

_FOLLOWING = {"batches", "noise"}
"""The arguments of `make_plan` that follow from the number of bands."""
_SIZES = {"max_examples", "expected_batch_size", "num_steps", "epochs"}
"""Its short form, which says how large the batches are."""


def choose_bands(
    *,
    num_bands: Sequence[int] | None = None,
    error: str = "mean",
    **arguments: Any,
) -> tuple[Plan, dict[int, float]]:
    """Choose the number of bands of cyclic Poisson sampling that meets a privacy target with the least error.

    Formula: the error of b bands is s_b |c| sqrt(L_b) / expected_batch_size, for the noise multiplier s_b that meets
    the target, the column norm |c| of `optimize_banded_toeplitz`, and its mean or largest squared error L_b of the
    prefix sums: the root mean square error of the sum of all steps until now, in units of the clip norm.

    Args:
        num_bands: the candidates; 1, 2, 4, ... as long as a batch fits its group if None.
        error: "mean" or "max" over the steps.
        **arguments: of `make_plan`, with a target epsilon or mu, and without what follows from the number of bands
            (batches and noise); the batches are those of ``max_examples``, ``expected_batch_size`` and the length.

    Returns:
        (plan, errors): the best plan, and the error of each number of bands that can meet the target.

    Raises:
        ValueError: as `make_plan`, or candidates none of which can meet the target.

    Reference: Choquette-Choo et al., arXiv:2306.08153, section 5.

    >>> plan, errors = choose_bands(clip=1.0, max_examples=10_000, expected_batch_size=100, epochs=2, delta=1e-5,
    ...                             epsilon=8.0, num_bands=[1, 8])
    >>> plan.batches.num_groups, errors[8] < errors[1]
    (8, True)
    """
    check_choice("error", error, ("mean", "max"))
    known = _SIZES.union(inspect.signature(make_plan).parameters) - _FOLLOWING
    check_keywords("choose_bands", arguments, known)

    # Plan for each number of bands, and keep why some have no plan.
    plans: dict[int, Plan] = {}
    errors: dict[int, float] = {}
    reasons = []
    for bands in _candidates(num_bands, arguments):
        try:
            plan = _banded_plan(bands, error, arguments)
        except ValueError as reason:
            reasons.append(f"{bands}: {reason}")
            continue
        plans[bands] = plan
        errors[bands] = _error_of(plan, error)
    if not plans:
        listing = "; ".join(reasons)
        raise ValueError(f"no number of bands gives a plan; {listing}")

    # Of equal errors the first is the one with the fewest bands.
    best = min(errors, key=errors.__getitem__)
    return plans[best], errors


def _candidates(num_bands: Sequence[int] | None, arguments: dict[str, Any]) -> list[int]:
    """Return the numbers of bands to try, ascending."""
    if num_bands is not None:
        return sorted({check_count("num_bands", bands) for bands in num_bands})
    # The powers of two, as long as a batch fits its group.
    most = arguments.get("max_examples", 0) // max(1, arguments.get("expected_batch_size", math.inf))
    return [2**power for power in range(max(1, int(most).bit_length()))]


def _banded_plan(bands: int, error: str, arguments: dict[str, Any]) -> Plan:
    """Return the plan that meets the target with so many bands."""
    sizes = {name: value for name, value in arguments.items() if name in _SIZES}
    others = {name: value for name, value in arguments.items() if name not in _SIZES}
    batches = CyclicPoisson(num_examples=sizes.pop("max_examples", None), **sizes, num_groups=bands)

    # The best strategy for that many steps.
    num_steps = batches.num_steps
    strategy = optimize_banded_toeplitz(num_steps, min(bands, num_steps), error)
    return make_plan(batches, noise=strategy, **others)


def _error_of(plan: Plan, error: str) -> float:
    """Return the root mean square error of the prefix sums, in units of the clip norm."""
    strategy = plan.release.strategy
    assert strategy is not None
    squared = float(strategy.error(plan.num_steps, error))
    return plan.noise_multiplier * float(plan.release.sensitivity) * math.sqrt(squared) / plan.expected_batch_size


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
