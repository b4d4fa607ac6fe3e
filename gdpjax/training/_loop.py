"""A private training loop as two pure functions, (init, step), that can only do what its plan says.

    training = private_training(plan, loss_fn, optax.adam(1e-3))
    data = training.place(x, y)
    state = training.init(params, gdpjax.fresh_key())
    state, info = training.run_steps(state, data, 100)

A step is

    params_{t+1} = params_t + optimizer((sum_{i in B_t} clip(g_i) + N(0, (s Delta)^2 I)) / expected batch size).

`private_training` builds clipping, sampling, noise and optimizer from ONE plan. The step draws its own batch (on the
device), counts itself in the ledger that lives in the optimizer's state, and compares that count with the planned
maximum, two integers: at the maximum the state no longer changes. A Poisson batch above the capacity is not trained
on: the run stops and says so, and the probability of that is in the Event. Under truncated Poisson sampling a random
part of it is left out, which the bound of that scheme covers.

A batch is padded to the plan's capacity. Chunks of rows that hold only padding are skipped, so a step takes about as
long as its batch is large, and the clock shows roughly how large that was; ``constant_work`` computes all of them.

Everything works under jit, scan and vmap. Under vmap over hyperparameters (``plan.replace(noise_multiplier=traced)``)
and keys, every configuration has its own key, or is refused.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Bool, Float, Int, PRNGKeyArray

from gdpjax._core.arguments import (
    check_array,
    check_count,
    check_flag,
    check_instance,
    check_rows,
    check_transformation,
    check_tree,
    keyword_checked,
)
from gdpjax._core.checks import is_traced
from gdpjax._core.keys import as_key, fold_in, refuse_constant_key, split
from gdpjax._core.statistics import refuse_statistics
from gdpjax._core.trees import broadcast_trainable, nodes_of
from gdpjax._core.types import Array, PyTree
from gdpjax.clipping import ClippedGrad, clipped_grad
from gdpjax.ledger import LedgerState, ledger_state_of
from gdpjax.sampling import BatchOverflowError
from gdpjax.training._data import Data, check_data, place
from gdpjax.training._in_place import steps_in_place
from gdpjax.training._plan import Plan
from gdpjax.training._processes import beside, one_key_for_all
from gdpjax.training._scale import Scale, factors_of, in_scaled_space, is_trained, origin, unscaled
from gdpjax.training._statement import with_scale
from gdpjax.transforms import private_transform

RUNNING, FINISHED, OVERFLOWED = 0, 1, 2
"""Values of ``State.status``."""

_LEDGER_ROWS = 1
"""Rows of the ledger. The steps of a plan are alike and need one."""


class State(NamedTuple):
    """Everything that a step changes.

    Attributes:
      params: the parameters.
      opt_state: of the private transform and the optimizer; it holds the noise key and the ledger.
      sampling_key: one typed PRNG key.
      status: int32, of a run that goes on, is `finished` or has `overflowed`.
    """

    params: PyTree
    opt_state: Any
    sampling_key: PRNGKeyArray
    status: Int[Array, ""]

    @property
    def num_steps_done(self) -> Int[Array, ""]:
        """Return how many steps the ledger in the state was charged for, int32; works in compiled code."""
        return ledger_state_of(self.opt_state).num_steps.sum(dtype=jnp.int32)

    @property
    def finished(self) -> Bool[Array, "..."]:
        """Return whether all steps of the plan are done, a bool for each state; works in compiled code."""
        return self.status == FINISHED

    @property
    def overflowed(self) -> Bool[Array, "..."]:
        """Return whether the run stopped at a batch above its capacity, a bool for each; works in compiled code."""
        return self.status == OVERFLOWED

    def check_status(self) -> None:
        """Raise BatchOverflowError if the run has `overflowed`; for the host, between chunks."""
        if bool(self.overflowed):
            raise BatchOverflowError(
                "a batch exceeded the planned capacity, so the run stopped before training on it. The plan's epsilon "
                "accounts for this event, and the parameters before it may be released; start a new run to go on. "
                + BatchOverflowError.unless_stated
            )


class Info(NamedTuple):
    """PRIVATE by-products of one step, outside epsilon, not for release: one entry per row of the padded batch.

    Attributes:
      losses: float[capacity], zero in padding rows.
      norms: float[capacity], of the gradients before clipping.
      is_padding: bool[capacity].
      is_dropped: bool[capacity], examples that add nothing, because their gradient holds a NaN or an infinity; their
        norm is zero.
    """

    losses: Float[Array, "*steps capacity"]
    norms: Float[Array, "*steps capacity"]
    is_padding: Bool[Array, "*steps capacity"]
    is_dropped: Bool[Array, "*steps capacity"]


class Training(NamedTuple):
    """The functions of one private training; see `private_training`.

    ``params_of`` makes the parameters of what ``init`` is given: of a module, with `gdpjax.nnx.private_training`.
    """

    plan: Plan
    init: Callable[[PyTree, PRNGKeyArray], State]
    step: Callable[[State, Data], tuple[State, Info]]
    step_on: Callable[..., tuple[State, Info]]
    run_steps: Callable[[State, Data, int], tuple[State, Info]]
    place: Callable[..., Data]
    grad_fn: ClippedGrad
    scale: Scale | None = None
    params_of: Callable[[Any], PyTree] = lambda params: params

    def statement(self, steps_made: int | None = None) -> str:
        """Return `Plan.statement`, with a sentence on the factors where the training has a ``scale``."""
        statement = self.plan.statement(steps_made)
        return statement if self.scale is None else with_scale(statement)


@keyword_checked()
def private_training(
    plan: Plan,
    loss_fn: Callable[..., Any],
    optimizer: optax.GradientTransformation,
    *,
    num_arrays: int = 2,
    example_key: bool = False,
    keep_batch_dim: bool = False,
    trainable: PyTree | None = None,
    strategy: str = "auto",
    microbatch_size: int | None = None,
    constant_work: bool = False,
    scale: Scale | None = None,
) -> Training:
    """Return the private training loop of a plan.

    Args:
      plan: what `make_plan` returned. ``plan.replace(noise_multiplier=...)`` with a traced number, and a traced clip
        norm, make a sweep: build the training inside the function that is vmapped.
      loss_fn: scalar loss of ONE example, ``loss_fn(params, *example)``, or ``loss_fn(params, *example, key)`` with
        ``example_key``. With a plan per user an example is a user's rows.
      optimizer: what turns the noisy mean into updates, such as ``optax.adam(1e-3)``; post-processing.
      num_arrays: how many arguments of the loss an example is, arrays or pytrees of arrays.
      example_key: the loss takes a PRNG key of its own for each example (dropout).
      keep_batch_dim, trainable, strategy, microbatch_size: as in `gdpjax.clipped_grad`. The optimizer keeps its moments
        of frozen leaves, too, unless it is ``optax.masked(optimizer, trainable)``.
      constant_work: compute the rows that are padding like all others. Otherwise chunks that hold only padding are
        skipped, and the time of a step tells, in units of a chunk, how many examples its private batch had. Set this
        where others can see how long single steps take.
      scale: a function from the optimizer's state before a step to positive factors, a tree (prefix) like the
        parameters whose leaves broadcast to them, such as `gdpjax.training.adam_scale`. Gradients are multiplied by
        them before they are clipped and noised, and the noisy mean is divided by them before it goes into the
        optimizer. Clip norm and noise are then those of the scaled gradients, and epsilon is the same. The function
        must use nothing private beside that state. Factors that are not finite and positive make the step NaN. Then
        ``training.statement()`` is what to publish, in place of the plan's.

    Returns:
      A `Training`:
        ``init(params, key)`` makes the `State`; ``key`` (use `gdpjax.fresh_key()`) gives sampling and noise their keys.
        ``step(state, data)`` draws a batch from ``data = place(x, y)`` and takes one step: ``(State, Info)``.
        ``step_on(state, *batch, is_padding=...)`` takes a batch of ``plan.capacity`` rows drawn elsewhere, with
        `gdpjax.training.batch_source` (the same batches as ``step`` draws).
        ``run_steps(state, data, num_steps)`` is that many steps in a loop that is compiled once for every number of
        them; its Info, of NumPy's arrays, has a leading axis. In compiled code of yours it is a scan of that length.
        ``place(*arrays, sharding=None)`` pads a data set to the plan's maximum. With a ``NamedSharding`` over a mesh
        the batch's rows are spread over its devices; the parameters may be replicated or sharded. The noise is a
        function of its key alone, drawn once, whatever the devices.
        ``statement()`` is the plan's statement, and says if there are factors.
        ``grad_fn`` is the clipped gradient; with ``scale`` it takes (phi, params, factors) in place of the parameters.

    Raises:
      ValueError: statistics among the parameters (BatchNorm), an optimizer that is private itself, a batch of another
        size than the plan's, data that the plan does not cover; as `gdpjax.clipped_grad`.

    Reference: Abadi et al., arXiv:1607.00133, algorithm 1.

    >>> from gdpjax.training import make_plan
    >>> plan = make_plan(clip=1.0, max_examples=100, expected_batch_size=10, num_steps=3, delta=1e-5,
    ...                  noise_multiplier=2.0)
    >>> training = private_training(plan, lambda w, x, y: (w @ x - y) ** 2, optax.sgd(0.1))
    >>> data = training.place(jnp.ones((90, 2)), jnp.zeros(90))
    >>> state, info = training.run_steps(training.init(jnp.zeros(2), jax.random.key(0)), data, 5)
    >>> bool(state.finished), int(state.num_steps_done)
    (True, 3)
    """
    check_instance("plan", plan, Plan, "made by gdpjax.make_plan")
    check_transformation("optimizer", optimizer, "optax.adam(1e-3)")
    num_arrays = check_count("num_arrays", num_arrays)
    example_key = check_flag("example_key", example_key)

    # The loss takes the parameters, an example's arrays, and the key of its dropout. With factors the gradient is that
    # with respect to phi at params + factors * phi, and params and factors are shared by all examples.
    if scale is None:
        loss_of_one = loss_fn
        first_array = 1
    else:
        loss_of_one = in_scaled_space(loss_fn, trainable)
        first_array = 3
    after_arrays = first_array + num_arrays

    grad_fn = clipped_grad(
        loss_of_one,
        plan.clip,
        batch_argnums=tuple(range(first_array, after_arrays)),
        key_argnums=after_arrays if example_key else (),
        shared_argnums=tuple(range(1, first_array)),
        keep_batch_dim=keep_batch_dim,
        trainable=trainable,
        strategy=strategy,
        microbatch_size=microbatch_size,
        return_info=True,
        constant_work=check_flag("constant_work", constant_work),
    ).drawn_from(plan.max_examples)

    # What a step adds and records is looked at once, not at each step.
    release = plan.release

    def private_mean(key: Array) -> optax.GradientTransformation:
        """Return the transformation that adds noise and keeps the ledger."""
        return private_transform(grad_fn, plan.noise_multiplier, release, key)

    def update(
        tx: optax.GradientTransformation,
        total: PyTree,
        factors: PyTree,
        state: State,
    ) -> tuple[PyTree, Any]:
        """Add noise and let the optimizer turn the mean into updates."""
        private_state, optimizer_state = state.opt_state
        mean, private_state = tx.update(total, private_state, state.params)
        # The mean is divided by the factors before the optimizer sees it.
        if scale is not None:
            mean = unscaled(mean, factors)
        updates, optimizer_state = optimizer.update(mean, optimizer_state, state.params)
        return updates, (private_state, optimizer_state)

    def init(params: PyTree, key: Array) -> State:
        check_tree("params", params)
        marks = broadcast_trainable(trainable, params)
        refuse_statistics(params, jax.tree.leaves(marks))

        # The key is looked at here: the keys that are made of it belong to the loop or the shard_map around.
        sensitivity = grad_fn.sensitivity(release.relation)
        refuse_constant_key(key, plan.noise_multiplier, plan.expected_batch_size, sensitivity)
        key = as_key(key)
        sampling_key, noise_key = split(one_key_for_all(key))

        _refuse_private(optimizer, params)
        private_state: Any = private_mean(noise_key).init(params)
        optimizer_state = optimizer.init(params)
        ledger = jax.tree.map(lambda leaf: leaf[:_LEDGER_ROWS] if leaf.ndim else leaf, private_state.ledger)
        opt_state = (private_state._replace(ledger=ledger), optimizer_state)

        # The shapes of the factors can be checked without computing them.
        if scale is not None:
            factors_of_state = functools.partial(factors_of, scale, trainable=trainable)
            jax.eval_shape(factors_of_state, optimizer_state, params)

        status = jnp.asarray(RUNNING, jnp.int32)
        state = beside(params, State(params, opt_state, sampling_key, status))
        # An array of NumPy could be changed by its owner between a chunk and its repetition.
        return jax.tree.map(own_copy, state)

    def take(
        state: State,
        batch: tuple[Array, ...],
        is_padding: Array,
        fits: Array,
    ) -> tuple[State, Info]:
        """Take one step on a batch; one that does not ``fits`` the capacity is charged for and trains nothing."""
        done = state.num_steps_done
        is_running = (state.status == RUNNING) & (done < plan.num_steps)

        # The key of this step's dropout.
        keys = ()
        if example_key:
            dropout_key = fold_in(state.sampling_key, _DROPOUT)
            keys = (fold_in(dropout_key, done),)

        # The factors are made of the optimizer's state alone: they must not depend on the noise key beside it.
        factors = None
        shared = (state.params,)
        if scale is not None:
            _, optimizer_state = state.opt_state
            factors = factors_of(scale, optimizer_state, state.params, trainable)
            shared = (origin(state.params, trainable), state.params, factors)

        # Clip and sum. A batch that does not fit is all padding, so that its sum is zero.
        total, info = grad_fn(*shared, *batch, *keys, is_padding=is_padding | ~fits)

        # Add noise and update. The state holds the noise key's data; here only the implementation of the key matters.
        impl = jax.random.key_impl(state.sampling_key)
        tx = private_mean(jax.random.key(0, impl=impl))
        updates, opt_state = update(tx, total, factors, state)

        # Whatever the optimizer does (weight decay), what is not trained stays as it is, and every number keeps its
        # type: moments of integers are zeros.
        moved = optax.apply_updates(state.params, updates)
        trained = is_trained(state.params, trainable)
        params = jax.tree.map(lambda is_new, new, old: new if is_new else old, trained, moved, state.params)
        opt_state = jax.tree.map(_as_before, opt_state, state.opt_state)

        # Keep what a run that is not running, or a batch that does not fit, must not change.
        has_finished = is_running & (done + 1 >= plan.num_steps)
        has_overflowed = is_running & ~fits
        status = jnp.where(has_finished, FINISHED, state.status)
        status = jnp.where(has_overflowed, OVERFLOWED, status)
        after = State(
            params=_where(is_running & fits, params, state.params),
            opt_state=_where(is_running, opt_state, state.opt_state),
            sampling_key=state.sampling_key,
            status=status.astype(jnp.int32),
        )
        return after, Info(info.values, info.norms, is_padding, info.is_dropped)

    def step(state: State, data: Data) -> tuple[State, Info]:
        _check_data(plan, data, num_arrays)
        done = state.num_steps_done
        batch = plan.batches.sample(state.sampling_key, done, num_valid=data.num_examples)
        *rows, is_padding = batch.take(*data.arrays)
        return take(state, tuple(rows), is_padding, batch.count <= plan.capacity)

    @jax.jit
    def compiled_step_on(state: State, batch: tuple[Any, ...], is_padding: Any) -> tuple[State, Info]:
        _check_batch(plan, batch, is_padding, num_arrays)
        return take(state, batch, jnp.asarray(is_padding, bool), jnp.asarray(True))

    def step_on(state: State, *batch: Any, is_padding: Any) -> tuple[State, Info]:
        arrays, _ = check_rows((*batch, check_array("is_padding", is_padding, kinds="biuf")))
        # The owner of an array of NumPy may write the next batch into it while this step is still computed.
        *own_batch, own_mask = jax.tree.map(own_copy, arrays)
        return compiled_step_on(state, tuple(own_batch), own_mask)

    compiled_step = _Compiled(step)

    def run_steps(state: State, data: Data, num_steps: int) -> tuple[State, Info]:
        num_steps = check_count("num_steps", num_steps)
        # Zeros that are made inside another program are traced, even if no argument is.
        if not is_traced((state, data, jnp.zeros(()))):
            return steps_in_place(compiled_step, state, data).in_a_loop(state, data, num_steps)

        def next_step(state: State, _: None) -> tuple[State, Info]:
            return step(state, data)

        return jax.lax.scan(next_step, state, None, length=num_steps)

    return Training(
        plan=plan,
        init=init,
        step=compiled_step,
        step_on=step_on,
        run_steps=run_steps,
        place=functools.partial(place, plan),
        grad_fn=grad_fn,
        scale=scale,
    )


def own_copy(leaf: Any) -> Any:
    """Return a leaf, or a copy of it on the device if it is an array of NumPy."""
    # NumPy copies now. `jnp.array` reads a large array later, when its owner may have written into it.
    return jnp.asarray(leaf.copy()) if isinstance(leaf, np.ndarray) else leaf


def _as_before(new: Array, old: Array) -> Array:
    """Return a new value in the type of the old one."""
    if new.dtype == old.dtype:
        return new
    return new.astype(old.dtype)


def _where(condition: Array, new: PyTree, old: PyTree) -> PyTree:
    """Return the tree ``new`` where the condition holds, else ``old``; a leaf that is in both stays what it is."""

    def choose(new_leaf: Array, old_leaf: Array) -> Array:
        if new_leaf is old_leaf:
            return old_leaf
        return jnp.where(condition, new_leaf, old_leaf)

    return jax.tree.map(choose, new, old)


class _Compiled:
    """A jitted step, beside what `gdpjax.training._in_place` has made of it: both go when the training goes."""

    def __init__(self, step: Callable[[State, Data], tuple[State, Info]]) -> None:
        self._compiled = jax.jit(step)
        self.in_place: dict[Any, Any] = {}

    def __call__(self, state: State, data: Data) -> tuple[State, Info]:
        return self._compiled(state, data)

    def __getattr__(self, name: str) -> Any:
        return getattr(object.__getattribute__(self, "_compiled"), name)


_DROPOUT = 0x64726F70
"""Sets the keys of examples apart from those of batches, which fold in step numbers below 2^31 once."""


def _check_data(plan: Plan, data: Any, num_arrays: int) -> None:
    """Raise ValueError unless the data were placed for this plan and this loss."""
    num_rows = check_data(data)
    if len(data.arrays) != num_arrays:
        raise ValueError(
            f"the loss takes num_arrays={num_arrays} arguments of an example, and the data have {len(data.arrays)}. A "
            "dict of arrays is one argument: private_training(..., num_arrays=1)"
        )
    if num_rows != plan.max_examples:
        raise ValueError(f"data of {num_rows} rows were placed for another plan than max_examples={plan.max_examples}")


def _check_batch(plan: Plan, batch: tuple[Any, ...], is_padding: Any, num_arrays: int) -> None:
    """Raise ValueError unless a batch drawn elsewhere has the arrays and the rows of this plan."""
    _, num_rows = check_rows((*batch, is_padding))
    if len(batch) != num_arrays or num_rows != plan.capacity:
        raise ValueError(
            f"expected {num_arrays} arrays and is_padding, all of the plan's capacity of {plan.capacity} rows, got "
            f"{len(batch)} arrays of {num_rows} rows: draw batches with gdpjax.training.batch_source"
        )


def _refuse_private(optimizer: optax.GradientTransformation, params: PyTree) -> None:
    """Raise ValueError for an optimizer that keeps a ledger, and so adds noise itself."""
    if nodes_of(jax.eval_shape(optimizer.init, params), LedgerState):
        raise ValueError(
            "the optimizer is private itself (dpsgd, dpadam, privatize), and private_training adds clipping and noise: "
            "give it the plain optimizer, such as optax.adam(1e-3)"
        )
