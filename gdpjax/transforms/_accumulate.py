"""Gradient accumulation: add up the clipped sums of microbatches, and take the private step once.

    tx = accumulate_clipped(gdpjax.dpsgd(0.1, grad_fn, ...), num_microbatches=4)
    for rows in microbatches:                                        # 4 of them make a logical batch
        updates, state = tx.update(grad_fn(params, rows), state, params)   # zeros, zeros, zeros, the private update

A logical batch of K microbatches is one release. Its clipped sum is the sum of the microbatches' clipped sums, whatever
examples are in which, so one example changes it by what it changes the sum of one big batch by. Noise, division by the
expected size and the ledger's event all belong to the *logical* batch. (Noise for each microbatch would be K events; a
mean over microbatches, as optax.MultiSteps takes, would divide a sum that is to be divided once.)

What remains is rounding. It is not enough that each sum's own sensitivity covers its rounding. Where an added example
moves the others up one slot, as in a batch that `poisson_sample` draws, every later microbatch passes one example on to
the next, and all K sums are of other rows than before and rounded differently. So all their errors count, and that of
adding them up. They are added in float32 or wider, as an unevaluated sum hi + lo in which the error of each addition is
kept, and rounded once at the end. The logical sum can then move further than a microbatch's by a factor of 1 or more:
1.00001 for 4 microbatches of 8 rows in a small model. `gdpjax.clipping.accumulation_charge` computes what each sum
contributes to it from static arguments, the state adds the contributions up, and `privatize` multiplies its noise by
the factor. A factor above 1.01 is refused.

With ``max_batch_size`` of the logical batch's rows given to what clips, the clip's slack holds nearly all of the
factor, and the result is that of one big batch up to rounding and 2.1 u per row. A `Sensitivity` stated by hand is
taken as that of the accumulated sum, rounding included.

The rows of a microbatch are told by ``microbatch_rows``. Without it they are those of the very sum, where the clip is
called under the same `jax.jit` as ``update``; a sum from elsewhere is taken to have ``max_batch_size`` rows, the most
that it can have, and refused without that.

Between releases the state holds a clipped sum without noise. It is private: release no checkpoint of it but one taken
after a whole logical batch. An unfinished batch at the end of a run is never released, and never recorded.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Float, Int

from gdpjax._core.arguments import check_instance, check_number, check_static_size, check_transformation
from gdpjax._core.checks import Domain
from gdpjax._core.trees import compensated_add, is_floating, leaf_name, two_sum, zeros_like_sum
from gdpjax._core.types import Array, PyTree
from gdpjax.clipping import AccumulationCharge
from gdpjax.ledger import round_toward
from gdpjax.transforms._noise import Accumulation, check_leaves

_MICROBATCHES = Domain("a whole number from 1 to 65536", lambda n: (n >= 1) & (n <= 2**16) & (n == n // 1))
"""So many sums can be added up as exactly as was derived."""


class AccumulateState(NamedTuple):
    """State of `accumulate_clipped`.

    Attributes:
      microstep: int32, the sums added since the last release.
      total: the clipped sum so far, without noise: private.
      error: what the additions lost, so that ``total + error`` is exact; private too.
      row: the largest norm of a row of the last sum, in clip norms.
      rounding: what all roundings since the last release can move the total by, in clip norms.
      inner_state: the state of the private transformation.
    """

    microstep: Int[Array, ""]
    total: PyTree
    error: PyTree
    row: Float[Array, ""]
    rounding: Float[Array, ""]
    inner_state: PyTree


def accumulate_clipped(
    tx: optax.GradientTransformation,
    num_microbatches: int,
    *,
    microbatch_rows: int | None = None,
) -> optax.GradientTransformationExtraArgs:
    """Add up the clipped sums of microbatches and call ``tx`` once for each logical batch.

    update_1, ..., update_(K-1) = 0,  update_K = tx(sum_1 + ... + sum_K)

    Args:
      tx: a chain that begins with `privatize` (`gdpjax.dpsgd` of a `clipped_grad` function is one), with batches that
        are the LOGICAL ones.
      num_microbatches: K, static, from 1 to 65536: the calls of ``update`` that make a logical batch.
      microbatch_rows: rows of each microbatch, padding included, static; it decides how much rounding is allowed for.
        A sum of more rows is refused where that can be seen; where it cannot, as the sum was made outside the compiled
        function that calls ``update``, this number is believed, so it must be exact. None: the rows of the very sum
        where they can be seen, else the ``max_batch_size`` of what clipped.

    Returns:
      An optax transformation whose ``update(clipped_sum, state, params)`` gives exact zeros K - 1 times of K. It works
      under jit, scan, vmap and donation. `ledger_of` reads its state: one event step for each logical batch.

    Raises:
      ValueError: num_microbatches or microbatch_rows is not such a number, no single `privatize` in tx, leaves that are
        not the parameters', a sum wider than float32 for float32 parameters, a rounding allowance above 1%.

    Reference: Abadi et al., arXiv:1607.00133, section 3.1 (lots made of batches).

    >>> import gdpjax
    >>> grad_fn = gdpjax.clipped_grad(lambda w, x: jnp.dot(w, x), 1.0)
    >>> batches = gdpjax.sampling.PoissonNumbers(0.1, expected_batch_size=4)
    >>> tx = accumulate_clipped(gdpjax.dpsgd(0.1, grad_fn, 1.0, batches, jax.random.key(0)), num_microbatches=2)
    >>> params, batch = jnp.zeros(2), jnp.ones((4, 2))
    >>> step = jax.jit(lambda rows, state: tx.update(grad_fn(params, rows), state, params))
    >>> state = tx.init(params)
    >>> for rows in (batch[:2], batch[2:]):
    ...     updates, state = step(rows, state)
    ...     print(updates.any(), gdpjax.ledger_of(state).num_steps)
    False 0
    True 1
    """
    num_sums = int(check_number("num_microbatches", num_microbatches, _MICROBATCHES))
    check_static_size("microbatch_rows", microbatch_rows)
    check_transformation("tx", tx, "gdpjax.dpsgd(...)")
    private = optax.with_extra_args_support(tx)

    def init(params: PyTree) -> AccumulateState:
        # The trees of zeros share no buffer: a donated one must not take the other with it.
        return AccumulateState(
            microstep=jnp.zeros((), jnp.int32),
            total=jax.tree.map(zeros_like_sum, params),
            error=jax.tree.map(zeros_like_sum, params),
            row=jnp.zeros((), float),
            rounding=jnp.zeros((), float),
            inner_state=tx.init(params),
        )

    def update(
        updates: PyTree, state: Any, params: PyTree | None = None, **extra_args: Any
    ) -> tuple[PyTree, AccumulateState]:
        check_instance("state", state, AccumulateState, "made by this transformation's init")
        check_leaves(updates, params)
        total, error = _add(state.total, state.error, updates)

        def release(inner_state: PyTree, accumulation: Accumulation) -> tuple[PyTree, PyTree]:
            # ``total`` is the sum rounded once: two_sum leaves less than half a unit in ``error``.
            released = private.update(
                total,
                inner_state,
                params,
                accumulation=accumulation,
                **extra_args,
            )
            if accumulation.num_private != 1:
                raise ValueError(
                    "accumulate_clipped needs a chain with exactly one gdpjax.privatize in it, and "
                    f"{accumulation.num_private} took part; without privacy use optax.MultiSteps, and put wrappers "
                    "that pass no extra arguments on inside"
                )
            return released

        def wait(inner_state: PyTree) -> tuple[PyTree, PyTree]:
            return jax.tree.map(jnp.zeros_like, shapes), inner_state

        # Evaluate the release in shapes alone, so that the private transform says what this sum costs.
        trial = Accumulation(num_sums, microbatch_rows, updates, total)
        release_in_shapes = functools.partial(release, accumulation=trial)
        shapes, inner_shapes = jax.eval_shape(release_in_shapes, state.inner_state)
        row, rounding = _add_charge(state, trial.charge)

        # Release the total if it is complete, with the sensitivity that the charges add up to.
        factor = jnp.maximum(1, _next_larger(row + rounding))
        complete = Accumulation(num_sums, microbatch_rows, updates, total, factor)
        is_complete = state.microstep + 1 >= num_sums
        released, inner_state = jax.lax.cond(
            is_complete,
            functools.partial(release, accumulation=complete),
            wait,
            jax.tree.map(_as_dtype, state.inner_state, inner_shapes),
        )

        # After a release the sums start at zero again.
        def emptied(leaf: Array) -> Array:
            return jnp.where(is_complete, jnp.zeros_like(leaf), leaf)

        return released, AccumulateState(
            microstep=jnp.where(is_complete, 0, state.microstep + 1),
            total=jax.tree.map(emptied, total),
            error=jax.tree.map(emptied, error),
            row=row,
            rounding=emptied(rounding),
            inner_state=inner_state,
        )

    return optax.GradientTransformationExtraArgs(init, update)


def _as_dtype(leaf: Array, like: Any) -> Array:
    """Return ``leaf`` in the dtype of ``like``: a restored state may hold other types than both branches agree on."""
    if jnp.result_type(leaf) == like.dtype:
        return leaf
    return jnp.asarray(leaf, like.dtype)


def _add(total: PyTree, error: PyTree, updates: PyTree) -> tuple[PyTree, PyTree]:
    """Return the unevaluated sum total + error with ``updates`` added."""
    # From a tree of pairs to a pair of trees.
    pairs = jax.tree.map_with_path(_add_leaf, total, error, updates)
    pair = jax.tree.structure((0, 0))
    return jax.tree.transpose(jax.tree.structure(total), pair, pairs)


def _add_leaf(path: Any, high: Array, low: Array, update: Array) -> tuple[Array, Array]:
    """Return the unevaluated sum high + low of one leaf with ``update`` added."""
    if not is_floating(high):
        return high, low
    if jnp.promote_types(update.dtype, high.dtype) != high.dtype:
        raise ValueError(
            f"leaf {leaf_name(path)} of the clipped sum is {update.dtype} and would be rounded to {high.dtype}, "
            "the type of its parameter's sums; give sums and parameters of one precision"
        )
    update = update.astype(high.dtype)

    # two_sum renormalises the pair, so that ``low`` stays a rounding error of ``high``.
    exact_update = (update, jnp.zeros_like(update))
    new_high, new_low = compensated_add((high, low), exact_update)
    return two_sum(new_high, new_low)


def _add_charge(state: AccumulateState, charge: AccumulationCharge) -> tuple[Array, Array]:
    """Return ``row`` and ``rounding`` of the state with one more sum, rounded up."""
    last_row = jnp.asarray(state.row)
    rounding = jnp.asarray(state.rounding)

    # A sum of no rows leaves the largest row as it was.
    row = round_toward(charge.row, np.inf, last_row.dtype) if charge.row > 0 else last_row

    # A row that moves between sums of different sizes is clipped to different thresholds.
    has_moved = (state.microstep > 0) & (last_row > 0)
    moved = jnp.where(has_moved, 2 * jnp.abs(row - last_row), 0)
    added = _next_larger(round_toward(charge.rounding, np.inf, rounding.dtype) + moved)
    return row, _next_larger(rounding + added)


def _next_larger(value: Array) -> Array:
    """Return the next larger number, which is above what the last operation rounded; 0 stays 0."""
    is_positive = value > 0
    larger = jnp.nextafter(value, jnp.asarray(jnp.inf, value.dtype))
    return jnp.where(is_positive, larger, value)
