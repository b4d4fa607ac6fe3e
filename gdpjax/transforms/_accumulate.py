"""Gradient accumulation: clipped sums of microbatches are added up, and the private step is taken once.

A logical batch of K microbatches is one release. Its clipped sum is the sum of the microbatches' clipped sums, whatever
examples are in which, so one example changes it by what it changes the sum of one big batch by. Noise, division by the
expected size and the ledger's event all belong to the *logical* batch. (Noise for each microbatch would be K events; a
mean over microbatches, as optax.MultiSteps takes, would divide a sum that is to be divided once.)

What remains is rounding. It is not enough that each sum's own sensitivity covers its rounding: where an added example
moves the others up one slot, as in a batch that `poisson_sample` draws, every later microbatch hands one example on to
the next, and all K sums are of other rows than before and rounded differently. So all their errors count, and that of
adding them up: in float32 or wider, as an unevaluated sum hi + lo in which the error of each addition is kept, rounded
once at the end. `clipping/_clip.py` derives the factor >= 1 by which the logical sum can then move further than a
microbatch's: 1.00001 for 4 microbatches of 8 rows in a small model. The state adds up what each sum contributes to it,
from the rows of that very sum, and `privatize` multiplies its noise by it. With ``max_batch_size`` of the logical
batch's rows given to what clips, the clip's slack holds nearly all of it, and the result is that of one big batch up to
rounding and 2.1 u per row. A factor above 1.01 is refused. A `Sensitivity` stated by hand is taken as that of the
accumulated sum, rounding included.

How many rows a sum has is known where the clip is called under the same `jax.jit` as ``update``. A sum from elsewhere
is taken to have ``max_batch_size`` rows, the most that it can have, and refused without that.

Between releases the state holds a clipped sum without noise. It is private: release no checkpoint of it but one taken
after a whole logical batch. An unfinished batch at the end of a run is never released, and never recorded.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from gdpjax._core.checks import Domain, check, is_traced
from gdpjax._core.shown import shown
from gdpjax._core.trees import compensated_add, is_floating, leaf_name, two_sum, wide_dtype
from gdpjax._core.types import Array, PyTree
from gdpjax.clipping._calls import Charge
from gdpjax.ledger._state import round_toward
from gdpjax.transforms._noise import Accumulation, check_leaves

_MICROBATCHES = Domain("a whole number from 1 to 65536", lambda n: (n >= 1) & (n <= 2**16) & (n == n // 1))
"""Up to which the compensated sum of them is as exact as derived."""


class AccumulateState(NamedTuple):
    """State of `accumulate_clipped`. ``total`` and ``error`` are private: sums without noise."""

    microstep: Array  # int32, sums added since the last release
    total: PyTree
    error: PyTree
    row: Array  # float, the largest norm of a row of the last sum, in clip norms
    rounding: Array  # float, what all roundings since the last release can move the total by, in clip norms
    inner_state: PyTree


def accumulate_clipped(
    tx: optax.GradientTransformation, num_microbatches: int
) -> optax.GradientTransformationExtraArgs:
    """Add up the clipped sums of microbatches and call ``tx`` once for each logical batch.

    update_1, ..., update_(K-1) = 0,  update_K = tx(sum_1 + ... + sum_K)

    Args:
      tx: a chain that begins with `privatize` (`gdpjax.dpsgd` with clipped_by is one), with sampling_prob and
        expected_batch_size of the LOGICAL batch.
      num_microbatches: K, static, from 1 to 65536: the calls of ``update`` that make a logical batch.

    Returns:
      An optax transformation whose ``update(clipped_sum, state, params)`` gives exact zeros K - 1 times of K. It works
      under jit, scan, vmap and donation. `ledger_of` reads its state: one event step for each logical batch.

    Raises:
      ValueError: num_microbatches is not such a number, no single `privatize` in tx, leaves that are not the
        parameters', a sum wider than float32 for float32 parameters, a rounding allowance above 1%.

    Reference: Abadi et al., arXiv:1607.00133, section 3.1 (lots made of batches).

    >>> import gdpjax
    >>> grad_fn = gdpjax.clipped_grad(lambda w, x: jnp.dot(w, x), 1.0)
    >>> tx = accumulate_clipped(
    ...     gdpjax.dpsgd(0.1, clipped_by=grad_fn, noise_multiplier=1.0, sampling_prob=0.1, expected_batch_size=4,
    ...                  key=jax.random.key(0)), num_microbatches=2)
    >>> params, batch = jnp.zeros(2), jnp.ones((4, 2))
    >>> step = jax.jit(lambda rows, state: tx.update(grad_fn(params, rows), state, params))
    >>> state = tx.init(params)
    >>> for rows in (batch[:2], batch[2:]):
    ...     updates, state = step(rows, state)
    ...     print(updates.any(), gdpjax.ledger_of(state).num_steps)
    False 0
    True 1
    """
    if is_traced(num_microbatches) or np.ndim(num_microbatches):
        raise ValueError(
            f"num_microbatches must be a static whole number, got {shown(num_microbatches)}; under "
            "optax.inject_hyperparams list it in static_args"
        )
    check("num_microbatches", num_microbatches, _MICROBATCHES)
    if not callable(getattr(tx, "init", None)) or not callable(getattr(tx, "update", None)):
        raise ValueError(f"tx must be an optax transformation such as gdpjax.dpsgd(...), got {shown(tx)}")
    size, inner = int(num_microbatches), optax.with_extra_args_support(tx)

    def init(params: PyTree) -> AccumulateState:
        # Two trees of zeros that share no buffer: a donated one must not take the other with it.
        total, error = (jax.tree.map(_zeros, params) for _ in range(2))
        row, rounding = (jnp.zeros((), float) for _ in range(2))
        return AccumulateState(jnp.zeros((), jnp.int32), total, error, row, rounding, tx.init(params))

    def update(
        updates: PyTree, state: Any, params: PyTree | None = None, **extra_args: Any
    ) -> tuple[PyTree, AccumulateState]:
        check_leaves(updates, params)
        total, error = _added(state.total, state.error, updates)

        def release(inner_state: PyTree, accumulation: Accumulation) -> tuple[PyTree, PyTree]:
            # ``total`` is rounded from the unevaluated sum already: two_sum leaves less than half a unit in ``error``.
            result = inner.update(total, inner_state, params, accumulation=accumulation, **extra_args)
            _check_taken(accumulation)
            return result

        # The first evaluation, of shapes alone, asks the clip what this sum costs; the second one releases.
        question = Accumulation(size, updates, total)
        shapes, inner_shapes = jax.eval_shape(lambda inner_state: release(inner_state, question), state.inner_state)
        row, rounding = _charged(state, question.charge)
        answer = Accumulation(size, updates, total, factor=jnp.maximum(1, _up(row + rounding)))
        inner_state = jax.tree.map(_as_dtype, state.inner_state, inner_shapes)
        wait = lambda inner_state: (jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes), inner_state)  # noqa: E731
        full = state.microstep + 1 >= size
        released, inner_state = jax.lax.cond(full, lambda inner_state: release(inner_state, answer), wait, inner_state)

        # After a release the sums start at zero again.
        emptied = lambda tree: jax.tree.map(lambda leaf: jnp.where(full, jnp.zeros_like(leaf), leaf), tree)  # noqa: E731
        microstep = jnp.where(full, 0, state.microstep + 1)
        after = AccumulateState(microstep, emptied(total), emptied(error), row, emptied(rounding), inner_state)
        return released, after

    return optax.GradientTransformationExtraArgs(init, update)


def _zeros(leaf: Array) -> Array:
    return jnp.zeros(jnp.shape(leaf), wide_dtype(leaf) if is_floating(leaf) else jnp.result_type(leaf))


def _as_dtype(leaf: Array, like: Any) -> Array:
    """A restored state may hold other types than the step gives, and both branches of a cond must agree."""
    return leaf if jnp.result_type(leaf) == like.dtype else jnp.asarray(leaf, like.dtype)


def _added(total: PyTree, error: PyTree, updates: PyTree) -> tuple[PyTree, PyTree]:
    """The unevaluated sum total + error, with ``updates`` added."""
    paths, structure = jax.tree_util.tree_flatten_with_path(total)
    pairs = [
        _add_leaf(leaf_name(path), hi, lo, update)
        for (path, hi), lo, update in zip(paths, jax.tree.leaves(error), jax.tree.leaves(updates), strict=True)
    ]
    totals, errors = zip(*pairs, strict=True)
    return jax.tree.unflatten(structure, totals), jax.tree.unflatten(structure, errors)


def _add_leaf(name: str, hi: Array, lo: Array, update: Array) -> tuple[Array, Array]:
    if not is_floating(hi):
        return hi, lo
    if jnp.promote_types(update.dtype, hi.dtype) != hi.dtype:
        raise ValueError(
            f"leaf {name} of the clipped sum is {update.dtype} and would be rounded to {hi.dtype}, the type in which "
            "its parameter's sums are added; give sums and parameters of one precision"
        )
    update = update.astype(hi.dtype)
    return two_sum(*compensated_add((hi, lo), (update, jnp.zeros_like(update))))


def _charged(state: AccumulateState, charge: Charge) -> tuple[Array, Array]:
    """``row`` and ``rounding`` of the state with one more sum, rounded up."""
    row, rounding = jnp.asarray(state.row), jnp.asarray(state.rounding)
    last = row
    if charge.row > 0:  # an empty sum has no row
        row = round_toward(charge.row, np.inf, row.dtype)
    # Rows that move between sums of different sizes are clipped to different thresholds.
    moved = jnp.where((state.microstep > 0) & (last > 0), 2 * jnp.abs(row - last), 0)
    added = _up(round_toward(charge.rounding, np.inf, rounding.dtype) + moved)
    return row, _up(rounding + added)


def _up(value: Array) -> Array:
    """The next larger number, above what the last operation rounded."""
    return jnp.where(value > 0, jnp.nextafter(value, jnp.asarray(jnp.inf, value.dtype)), value)


def _check_taken(accumulation: Accumulation) -> None:
    if accumulation.taken != 1:
        raise ValueError(
            f"accumulate_clipped needs a chain with exactly one gdpjax.privatize in it, and {accumulation.taken} took "
            "part; without privacy use optax.MultiSteps, and put wrappers that pass no extra arguments on inside"
        )
