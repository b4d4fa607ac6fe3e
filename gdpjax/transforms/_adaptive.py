"""Adaptive clipping: the clip norm follows a quantile of the gradient norms, and that is paid for.

    tx = gdpjax.privatize_adaptive(initial_l2_clip_norm=1.0, count_stddev=12.0, noise_multiplier=1.0, ...)
    grad_fn = gdpjax.clipped_grad(loss_fn, gdpjax.clip_norm_of(state), return_info=True)     # in each step
    clipped_sum, info = grad_fn(params, batch)
    updates, state = tx.update(clipped_sum, state, params, clipped_by=grad_fn, norms=info.norms)

Step t clips at C_t, a public number held in the state, and releases two things about the same batch, with Delta = 1
(2 for REPLACE_ONE):

    sum    sum_i clip(g_i, C_t)   sensitivity Delta C_t   noise N(0, (noise_multiplier Delta C_t)^2 I)
    count  sum_i b_i              sensitivity Delta / 2   noise N(0, count_stddev^2)

where b_i = 1/2 if 0 < ||g_i|| <= C_t, -1/2 if ||g_i|| > C_t and 0 if ||g_i|| = 0. Bits of 0 and 1 would have the
sensitivity Delta. The next clip norm is a function of what was released,

    C_{t+1} = C_t exp(-learning_rate (fraction - target_quantile)),  fraction = noisy count / expected_batch_size + 1/2,

kept within a public range. Divided by the standard deviations of its noise, the pair is one vector with standard normal
noise, which neighbours move by at most (noise_multiplier^-2 + (2 count_stddev / Delta)^-2)^1/2, whatever C_t is. So a
step is one Gaussian release with the noise multiplier of `Event.quantile_clipping`, and that is what the ledger gets.
The two are never separate events: whether an example was in the batch is shared by both.

Zero norms. Rows of padding, and rows whose gradient was not finite, have norm zero, and so has an example whose loss is
flat. They all count as 0. Counting zeros as "below" would give a padding row the bit 1/2, and an example that takes its
place could then move the count by 1, twice what is recorded, unless every caller remembered to mark the padding. The
quantile is thus one of the nonzero norms, in which an example without gradient counts half below and half above. An
empty batch has fraction 1/2.

Rounding. C_t is a float32 number and the same one clips, scales the noise and is compared with. The count is a sum of
integers, exact. The joint noise multiplier is computed in float64 where it is known beforehand; a traced one in float32
by a dozen roundings, and lowered by 2^-19 of itself to cover them.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Float, Int, PRNGKeyArray, UInt32

from gdpjax._core.arguments import check_instance, check_static_size, keyword_checked
from gdpjax._core.checks import (
    CLIP_NORM,
    NONNEGATIVE,
    POSITIVE_FLOAT32,
    UNIT,
    Domain,
    check,
    checked_scalar,
    is_traced,
)
from gdpjax._core.shown import shown
from gdpjax._core.trees import broadcast_trainable, nodes_of
from gdpjax._core.types import Array, NeighboringRelation, PyTree, Scalar
from gdpjax.clipping import Flat, clip_rows
from gdpjax.ledger import Event, LedgerState, init_ledger, record_step
from gdpjax.sampling import AbstractBatches
from gdpjax.transforms._noise import (
    check_clip,
    check_leaves,
    check_origin,
    check_params,
    draws_of,
    noise_stddev,
    noised_leaves,
    noisy_mean,
    noisy_tree,
    num_ledger_rows,
    refuse_other_rows,
    scheduled,
)
from gdpjax.transforms._noise_key import NoiseKey
from gdpjax.transforms._public_values import refuse_private_values
from gdpjax.transforms._release import release_of


class AdaptiveState(NamedTuple):
    """State of `privatize_adaptive`.

    Attributes:
      count: int32, the steps done.
      key_data: the data of the noise key.
      l2_clip_norm: float32, the norm at which the next batch is clipped.
      ledger: the ledger of the steps done.
    """

    count: Int[Array, ""]
    key_data: UInt32[Array, " words"]
    l2_clip_norm: Float[Array, ""]
    ledger: LedgerState


@keyword_checked(clip="initial_l2_clip_norm", l2_clip_norm="initial_l2_clip_norm")
def privatize_adaptive(
    *,
    initial_l2_clip_norm: Scalar,
    noise_multiplier: Any,
    count_stddev: Scalar,
    key: PRNGKeyArray,
    batches: AbstractBatches,
    target_quantile: Scalar = 0.5,
    learning_rate: Scalar = 0.2,
    l2_clip_norm_range: tuple[float, float] = (1e-6, 1e6),
    trainable: PyTree | None = None,
    max_batch_size: int | None = None,
    neighboring_relation: NeighboringRelation | None = None,
) -> optax.GradientTransformationExtraArgs:
    """Make a clipped sum private, as `privatize` does, with a clip norm that follows a quantile of the gradient norms.

    C <- C exp(-learning_rate (noisy fraction of norms <= C - target_quantile)); see the module's docstring.

    There are two ways to call ``update``:

    * ``update(per_example_grads, state, params)`` clips them itself. Padding rows must be zeros, as
      `per_example_grad` gives them.
    * ``update(clipped_sum, state, params, clipped_by=grad_fn, norms=info.norms)`` takes the sum and the norms of
      ``grad_fn = clipped_grad(loss_fn, clip_norm_of(opt_state), return_info=True)``, made anew in each step (inside
      the compiled step: a traced clip norm does not recompile). A function of another sensitivity is refused, or
      gives NaN where it is traced, and so is a sum that it did not make, as in `privatize`. What cannot be detected:
      norms of other rows or after clipping, a norm that depends on other rows. Each of them voids what the ledger says.

    Args:
      initial_l2_clip_norm: the first clip norm, within l2_clip_norm_range.
      noise_multiplier: stddev / sensitivity > 0 of the gradient sum alone: a number, a traced scalar, or a schedule
        of the step count. With the count, what a step costs is the smaller noise multiplier
        (noise_multiplier^-2 + (2 count_stddev)^-2)^-1/2 (count_stddev, not twice it, under REPLACE_ONE).
      count_stddev: standard deviation > 0, in examples, of the noise on the count of norms below the clip norm. The
        reference advises expected_batch_size / 20.
      key, batches, neighboring_relation: as in `privatize`.
      target_quantile: which quantile of the norms to follow, in [0, 1].
      learning_rate: at least 0, the step of log C per unit of fraction; 0 keeps the clip norm, and still pays for the
        count.
      l2_clip_norm_range: public (smallest, largest) clip norm, static, each from 1e-30 to 1e30.
      trainable, max_batch_size: as in `clip_and_sum`; with clipped_by they belong to the `clipped_grad` function.

    Returns:
      An optax transformation to the noisy mean, float32 or wider; frozen and integer leaves leave as exact zeros. Its
      ledger holds one `Event.quantile_clipping` per step. `clip_norm_of` reads the clip norm.

    Raises:
      ValueError: as `privatize`; shapes that are neither a sum's nor per-example gradients'; a sum without norms.

    Reference: Andrew, Thakkar, McMahan and Ramaswamy, arXiv:1905.03871, Section 3 (geometric update, bits less 1/2).

    >>> import gdpjax
    >>> batches = gdpjax.sampling.Poisson(num_examples=100, expected_batch_size=10, num_steps=20)
    >>> tx = privatize_adaptive(initial_l2_clip_norm=1.0, noise_multiplier=1.0, count_stddev=2.0, batches=batches,
    ...                         key=jax.random.key(0))
    >>> params = jnp.zeros(2)
    >>> batch = jnp.ones((batches.capacity, 2))  # a gradient for each row; those of padding are zero
    >>> noisy_mean, state = jax.jit(tx.update)(batch, tx.init(params), params)
    >>> noisy_mean.shape, round(float(state.ledger.noise_multiplier[0]), 4)
    ((2,), 0.9701)
    """
    check_static_size("max_batch_size", max_batch_size)
    norm_range = _float32_range(l2_clip_norm_range)
    low, high = l2_clip_norm_range
    within_range = Domain(f"within l2_clip_norm_range [{low}, {high}]", lambda x: (x >= low) & (x <= high))
    if not callable(noise_multiplier):
        noise_multiplier = checked_scalar("noise_multiplier", noise_multiplier, POSITIVE_FLOAT32)
    initial_l2_clip_norm = checked_scalar("initial_l2_clip_norm", initial_l2_clip_norm, within_range)
    count_stddev = checked_scalar("count_stddev", count_stddev, POSITIVE_FLOAT32)
    target_quantile = checked_scalar("target_quantile", target_quantile, UNIT)
    learning_rate = checked_scalar("learning_rate", learning_rate, NONNEGATIVE)
    release = release_of(batches, neighboring_relation=neighboring_relation)

    # The key, and the numbers that must not differ between configurations that share it.
    noise_key = NoiseKey(key)
    hyperparameters = [
        initial_l2_clip_norm,
        count_stddev,
        release.sampling_prob,
        batches.expected_batch_size,
        target_quantile,
        learning_rate,
        release.overflow_per_step,
    ]
    if not callable(noise_multiplier):
        hyperparameters.append(noise_multiplier)

    def bounded_sum(
        updates: PyTree,
        state: AdaptiveState,
        params: PyTree,
        clipped_by: Any,
        norms: Any,
    ) -> _BoundedSum:
        """Return the clipped sum: of per-example gradients, or the one that ``clipped_by`` made."""
        # Gradients of each example are clipped here.
        if clipped_by is None and norms is None:
            _refuse_a_sum(updates, params)
            rule = Flat(state.l2_clip_norm)
            clipped = clip_rows(updates, params, rule, trainable, max_batch_size)
            check_leaves(clipped.total, params)
            refuse_other_rows(clipped.num_rows, batches, clipped.has_mask)
            is_trained = broadcast_trainable(trainable, params)
            return _BoundedSum(clipped.total, clipped.norms, is_trained, jnp.ones(()))

        # A sum was clipped elsewhere, and has to be at this state's clip norm.
        _check_sum(updates, params, clipped_by, norms, batches)
        if trainable is not None or max_batch_size is not None:
            raise ValueError(
                "with clipped_by, trainable and max_batch_size belong to the gdpjax.clipped_grad function; drop them"
            )
        is_trained = broadcast_trainable(getattr(clipped_by, "trainable", None), params)
        valid = _same_norm(clipped_by, state.l2_clip_norm, release.relation)
        return _BoundedSum(updates, norms, is_trained, valid)

    def next_norm(l2_clip_norm: Array, noisy_count: Array) -> Array:
        """Return the next clip norm: a geometric step towards the quantile."""
        fraction = noisy_count / batches.expected_batch_size + 0.5
        factor = jnp.exp(-learning_rate * (fraction - target_quantile))
        next_norm = jnp.clip(l2_clip_norm * factor, *norm_range)
        return next_norm.astype(jnp.float32)

    def init(params: PyTree) -> AdaptiveState:
        """Return the state before the first step."""
        check_params(params)
        first_norm = jnp.asarray(initial_l2_clip_norm, jnp.float32)
        return AdaptiveState(
            count=jnp.zeros((), jnp.int32),
            key_data=noise_key.begin(hyperparameters, params),
            l2_clip_norm=jnp.clip(first_norm, *norm_range),
            ledger=init_ledger(num_ledger_rows(noise_multiplier), release.step),
        )

    def update(
        updates: PyTree,
        state: Any,
        params: PyTree | None = None,
        *,
        clipped_by: Any = None,
        norms: Any = None,
        **extra_args: Any,
    ) -> tuple[PyTree, AdaptiveState]:
        """Return the noisy mean of one batch, and the state with the next clip norm."""
        check_instance("state", state, AdaptiveState, "made by this transformation's init")
        if "accumulation" in extra_args:
            raise ValueError(
                "gdpjax.privatize_adaptive does not work inside gdpjax.accumulate_clipped: the clip norm would follow "
                "the norms of the last microbatch alone. Use gdpjax.privatize with a fixed clip norm"
            )
        refuse_private_values(extra_args)
        bounded = bounded_sum(updates, state, params, clipped_by, norms)
        count = _bit_sum(bounded.norms, state.l2_clip_norm)

        # One key for the sum and one for the count, of this step and this configuration alone.
        multiplier = scheduled("noise_multiplier", noise_multiplier, state.count, POSITIVE_FLOAT32)
        values = (bounded.total, bounded.norms, state.l2_clip_norm, hyperparameters, multiplier)
        run_key, is_own_key = noise_key.of(state, *values)
        valid = is_own_key * bounded.valid

        # Release the sum and the count, each with its noise.
        sensitivity = state.l2_clip_norm * release.relation.sensitivity_factor
        stddevs = {
            "sum": noise_stddev(multiplier, sensitivity, valid),
            "count": noise_stddev(count_stddev, 1.0, valid),
        }
        both = {"sum": bounded.total, "count": count}
        leaves = noised_leaves(both, {"sum": bounded.is_trained, "count": True})
        noisy = noisy_tree(both, draws_of(run_key, leaves)(state.count), stddevs)
        mean = noisy_mean(noisy["sum"], batches.expected_batch_size, bounded.is_trained)
        noisy_count = noisy["count"]

        # Both together are one Gaussian release.
        joint = _joint_noise_multiplier(multiplier, count_stddev, release.relation)
        return mean, AdaptiveState(
            count=optax.safe_increment(state.count),
            key_data=state.key_data,
            l2_clip_norm=next_norm(state.l2_clip_norm, noisy_count),
            ledger=record_step(state.ledger, joint, release.sampling_prob, release.overflow_per_step),
        )

    return optax.GradientTransformationExtraArgs(init, update)


def clip_norm_of(opt_state: PyTree) -> Float[Array, "*sweep"]:
    """Return the l2 clip norm for the next batch, from the state of a chain with `privatize_adaptive`.

    Args:
      opt_state: that state, traced or not; of a vmapped sweep it gives the clip norms of all configurations.

    Returns:
      A float32 scalar. It is a function of noisy counts, which the ledger's events cover.

    Raises:
      ValueError: no `privatize_adaptive` in the state, or several.

    >>> import gdpjax
    >>> batches = gdpjax.sampling.Poisson(num_examples=100, expected_batch_size=10, num_steps=20)
    >>> tx = privatize_adaptive(initial_l2_clip_norm=1.0, noise_multiplier=1.0, count_stddev=2.0, batches=batches,
    ...                         key=jax.random.key(0))
    >>> params = jnp.zeros(2)
    >>> @jax.jit
    ... def step(state, batch, is_padding):
    ...     grad_fn = gdpjax.clipped_grad(lambda w, x: jnp.dot(w, x), clip_norm_of(state), return_info=True)
    ...     clipped_sum, info = grad_fn(params, batch, is_padding=is_padding)
    ...     return tx.update(clipped_sum, state, params, clipped_by=grad_fn, norms=info.norms)
    >>> batch, is_padding = jnp.ones((batches.capacity, 2)), jnp.arange(batches.capacity) >= 10
    >>> noisy_mean, state = step(tx.init(params), batch, is_padding)
    >>> noisy_mean.shape, clip_norm_of(state).shape
    ((2,), ())
    """
    states = nodes_of(opt_state, AdaptiveState)
    if len(states) != 1:
        raise ValueError(f"expected the state of one gdpjax.privatize_adaptive, got a state with {len(states)} of them")

    # Optimizers such as flax.nnx.Optimizer wrap every array of the state in a variable of its own.
    (l2_clip_norm,) = jax.tree.leaves(states[0].l2_clip_norm)
    return l2_clip_norm


class _BoundedSum(NamedTuple):
    """A clipped sum, from either way of calling ``update``.

    Attributes:
      total: the sum.
      norms: Float[Array, " batch"], the norms before clipping.
      is_trained: a tree of bools like the parameters.
      valid: 1, or NaN where the sum was clipped at another norm than the state's, both traced.
    """

    total: PyTree
    norms: Array
    is_trained: PyTree
    valid: Array


def _bit_sum(norms: Array, l2_clip_norm: Array) -> Array:
    """Return sum_i b_i: halves of ones below and above the clip norm, zeros for zero norms (and for NaN)."""
    # In whole numbers 2 b_i, whose sum is exact.
    has_gradient = norms > 0
    side = jnp.where(norms <= l2_clip_norm, 1, -1)
    doubled_bits = jnp.where(has_gradient, side, 0)
    doubled_sum = jnp.sum(doubled_bits, dtype=jnp.int32)
    return doubled_sum.astype(jnp.float32) / 2


def _joint_noise_multiplier(noise_multiplier: Array, count_stddev: Array, relation: NeighboringRelation) -> Array:
    """Return the noise multiplier of `Event.quantile_clipping`, or a lower bound of it where it is traced."""
    if not is_traced((noise_multiplier, count_stddev)):
        event = Event.quantile_clipping(
            float(noise_multiplier), float(count_stddev), sampling_prob=1.0, num_steps=1, neighboring_relation=relation
        )
        return event.noise_multiplier

    # (s^-2 + (2 t / Delta)^-2)^-1/2 for the multiplier s and the stddev t, lowered to cover the rounding.
    ratio = jnp.asarray(noise_multiplier, float) * (relation.sensitivity_factor / 2) / count_stddev
    return noise_multiplier / jnp.sqrt(1 + ratio * ratio) * (1 - 2.0**-19)


def _float32_range(bounds: Any) -> tuple[Array, Array]:
    """Return the ends of the public range of clip norms, rounded inward."""
    check("l2_clip_norm_range", bounds, CLIP_NORM)

    # Where the nearest float32 is outside, take its neighbour within.
    exact_low, exact_high = np.asarray(bounds, np.float64)
    low = np.float32(exact_low)
    high = np.float32(exact_high)
    if low < exact_low:
        low = np.nextafter(low, np.float32(np.inf))
    if high > exact_high:
        high = np.nextafter(high, np.float32(0))
    if not low <= high:
        raise ValueError(f"l2_clip_norm_range must be (smallest, largest), got {shown(bounds)}")
    return low, high


def _check_sum(updates: PyTree, params: PyTree, clipped_by: Any, norms: Any, batches: AbstractBatches) -> None:
    """Raise ValueError unless the arguments describe one clipped sum with the norms of its examples."""
    if clipped_by is None or norms is None:
        raise ValueError(
            "give clipped_by= and norms= together (a clipped sum, what clipped it, and its info.norms), or neither "
            "of them (per-example gradients)"
        )
    check_clip(clipped_by)
    check_leaves(updates, params)
    check_origin(clipped_by, updates, batches)
    if jnp.ndim(norms) != 1 or not jnp.issubdtype(jnp.result_type(norms), jnp.floating):
        raise ValueError(
            f"norms must be the per-example gradient norms before clipping, floating [B], got "
            f"{jnp.result_type(norms)}{list(jnp.shape(norms))}"
        )


def _same_norm(clipped_by: Any, l2_clip_norm: Array, relation: NeighboringRelation) -> Array:
    """Return 1 if the sum was clipped at this state's clip norm; else a ValueError, or NaN where it is traced."""
    stated = clipped_by.sensitivity(relation)
    needed = l2_clip_norm * relation.sensitivity_factor
    if is_traced((stated, needed)):
        return jnp.where(stated == needed, 1.0, jnp.nan)
    if not float(stated) == float(needed):
        raise ValueError(
            f"the sum was clipped by something of sensitivity {float(stated)}, but the optimizer state's clip norm "
            f"asks for {float(needed)}: build the clipped_grad function from gdpjax.clip_norm_of(opt_state) each step"
        )
    return jnp.ones(())


def _refuse_a_sum(updates: PyTree, params: PyTree) -> None:
    """Raise ValueError for a clipped sum given without what a sum needs."""
    shapes_of_updates = [jnp.shape(leaf) for leaf in jax.tree.leaves(updates)]
    shapes_of_params = [jnp.shape(leaf) for leaf in jax.tree.leaves(params)]
    if shapes_of_updates == shapes_of_params:
        raise ValueError(
            "the updates have the shapes of the parameters, without a batch axis; give per-example gradients, or with "
            "a clipped sum also clipped_by=grad_fn and norms=info.norms (clipped_grad with return_info=True)"
        )
