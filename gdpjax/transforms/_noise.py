"""Noise, division by the expected batch size, and the ledger: the private step as an optax transformation.

    grad_fn = gdpjax.clipped_grad(loss_fn, 1.0)
    tx = optax.chain(gdpjax.privatize(grad_fn, noise_multiplier=1.0, batches=batches, key=key), optax.adam(1e-3))
    updates, state = tx.update(grad_fn(params, batch), state, params)
    gdpjax.ledger_of(state)                                          # what was released so far

`privatize` takes the SUM of clipped per-example gradients, of sensitivity Delta, and returns

    (sum + N(0, (noise_multiplier Delta)^2 I)) / expected_batch_size,

computed in float32 or wider. The divisor is a public constant: the realised batch size is private. The standard
deviation is enlarged by 2^-21 of itself, which covers every rounding between the recorded noise multiplier and the
noise that is added.

The state holds the data of the noise key and the step count; `_noise_key` says how no noise is used twice.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Int, PRNGKeyArray, UInt32

from gdpjax._core.arguments import check_instance, check_tree, keyword_checked
from gdpjax._core.checks import NONNEGATIVE, NONNEGATIVE_FLOAT32, POSITIVE_FLOAT32, checked_scalar, is_traced
from gdpjax._core.keys import fold_in, refuse_key_of_a_loop
from gdpjax._core.noise import SCALE_MARGIN, apart, standard_normals
from gdpjax._core.provenance import Provenance, RecordedSum, current_trace
from gdpjax._core.shown import shown
from gdpjax._core.trees import (
    broadcast_trainable,
    is_floating,
    keys_of_leaves,
    leaf_names,
    nodes_of,
    num_elements,
    refuse_complex,
    wide_dtype,
)
from gdpjax._core.types import Array, NeighboringRelation, PyTree, Scalar
from gdpjax.clipping import AccumulationCharge, charge_of_sum
from gdpjax.correlated import AbstractNoiseStrategy
from gdpjax.ledger import LedgerState, init_ledger, record_step
from gdpjax.sampling import AbstractBatches
from gdpjax.transforms._noise_key import NoiseKey
from gdpjax.transforms._public_values import refuse_private_values
from gdpjax.transforms._release import (
    INDEPENDENT,
    IndependentGaussian,
    Release,
    release_of,
)

_SMALLEST_STDDEV = 1e-36
_ROWS = 512
_ROWS_OF_A_SCHEDULE = 4096


class NoiseState(NamedTuple):
    """State of `add_gaussian_noise`.

    Attributes:
      count: int32, the steps done.
      key_data: the data of the noise key.
    """

    count: Int[Array, ""]
    key_data: UInt32[Array, " words"]


class PrivatizeState(NamedTuple):
    """State of `privatize`.

    Attributes:
      count: int32, the steps done.
      key_data: the data of the noise key.
      ledger: the ledger of the steps done.
      past_noise: what correlated noise keeps of earlier steps, as secret as the key; None where noise is independent.
    """

    count: Int[Array, ""]
    key_data: UInt32[Array, " words"]
    ledger: LedgerState
    past_noise: PyTree = None


def noise_stddev(noise_multiplier: Array, sensitivity: Array, valid: Array) -> Array:
    """Return noise_multiplier * sensitivity with `SCALE_MARGIN`, times ``valid`` of `NoiseKey.of`.

    A concrete noise multiplier of 0 asks for a step without privacy; one that vanishes on the way does not.
    """
    if asks_for_no_noise(noise_multiplier):
        return 0.0 * valid
    stddev = jnp.asarray(noise_multiplier, float) * sensitivity * SCALE_MARGIN * valid

    # A product that vanishes or overflows would release the sum without noise, or nothing: let it show.
    is_usable = (stddev >= _SMALLEST_STDDEV) & (stddev < jnp.inf)
    return jnp.where(is_usable, stddev, jnp.nan)


def asks_for_no_noise(noise_multiplier: Any) -> bool:
    """Return whether this is a number, known before compiling, that is exactly 0."""
    if is_traced(noise_multiplier) or callable(noise_multiplier):
        return False
    return float(noise_multiplier) == 0.0


def is_noised(leaf: Array, trained: bool) -> bool:
    """Return whether a leaf gets noise: it is trained, floating, and not empty."""
    return trained and is_floating(leaf) and num_elements(leaf) > 0


def noised_leaves(tree: PyTree, trainable: PyTree) -> dict[str, Array]:
    """Return the leaves that get noise, by their paths."""
    leaves = {}
    marks = jax.tree.leaves(trainable)
    for name, leaf, trained in zip(leaf_names(tree), jax.tree.leaves(tree), marks, strict=True):
        if is_noised(leaf, trained):
            leaves[name] = leaf
    return leaves


def draws_of(key: Array, leaves: dict[str, Array]) -> Callable[[Array], dict[str, Array]]:
    """Return the function from a step to its standard normal draws, of the shapes of ``leaves``.

    Each step and each leaf has a key of its own.
    """

    def draw(step: Array) -> dict[str, Array]:
        step_key = fold_in(key, step)
        keys = keys_of_leaves(step_key, list(leaves))
        shapes = [leaf.shape for leaf in leaves.values()]
        dtypes = [wide_dtype(leaf) for leaf in leaves.values()]
        return dict(zip(leaves, standard_normals(keys, shapes, dtypes), strict=True))

    return draw


def noisy_tree(tree: PyTree, noise: dict[str, Array], stddevs: PyTree) -> PyTree:
    """Return leaf + stddev * noise at the leaves that have noise, in float32 or wider, and zeros at the others.

    Args:
      tree: arrays.
      noise: that of leaves, by their paths.
      stddevs: a standard deviation for each leaf or, as a prefix of the tree, for each part of it.
    """
    leaves, structure = jax.tree.flatten(apart(tree))
    leaf_stddevs = jax.tree.leaves(jax.tree.broadcast(stddevs, tree))
    released = []
    for name, leaf, stddev in zip(leaf_names(tree), leaves, leaf_stddevs, strict=True):
        if name not in noise:
            released.append(jnp.zeros_like(leaf))
            continue
        dtype = wide_dtype(leaf)
        released.append(leaf.astype(dtype) + jnp.asarray(stddev).astype(dtype) * noise[name].astype(dtype))
    return jax.tree.unflatten(structure, released)


def noisy_mean(noisy_sum: PyTree, expected_batch_size: Array, trainable: PyTree) -> PyTree:
    """Return the noisy sum, divided by expected_batch_size at the leaves that got noise."""

    def divided(leaf: Array, trained: bool) -> Array:
        return leaf / jnp.asarray(expected_batch_size, leaf.dtype) if is_noised(leaf, trained) else leaf

    return jax.tree.map(divided, noisy_sum, trainable)


def num_ledger_rows(noise_multiplier: Any) -> int:
    """Return how many rows the ledger has: 4096 for a schedule, whose steps may all differ; else 512."""
    return _ROWS_OF_A_SCHEDULE if callable(noise_multiplier) else _ROWS


def scheduled(name: str, value: Any, count: Array, domain: Any) -> Array:
    """Return ``value``, or what it gives at step ``count`` where it is a schedule, after `checked_scalar`."""
    if callable(value):
        value = value(count)
    return checked_scalar(name, value, domain)


def check_params(params: PyTree) -> None:
    """Raise ValueError unless ``params`` are arrays, real and unmasked."""
    if params is None:
        raise ValueError("the private transform needs the parameters: call init(params), update(sums, state, params)")
    _refuse_masks(params)
    check_tree("params", params)
    refuse_complex(params, "parameter")


def _refuse_masks(tree: PyTree) -> None:
    """Raise ValueError if leaves are masked, and so would get no noise."""
    if nodes_of(tree, optax.MaskedNode):
        raise ValueError(
            "a mask (optax.masked, multi_transform, partition) around the private transform would let the masked "
            "leaves' gradients out without noise; freeze with trainable= instead, and put masks after privatize"
        )


def check_leaves(updates: PyTree, params: PyTree) -> None:
    """Raise ValueError unless ``updates`` is one whole sum: a tree like the parameters, unmasked, not per-example."""
    check_params(params)
    _refuse_masks(updates)
    check_tree("updates", updates)

    # A leaf of the gradients of each example has one axis more than its parameter.
    is_like_params = jax.tree.structure(updates) == jax.tree.structure(params)
    shapes, expected = ([jnp.shape(leaf) for leaf in jax.tree.leaves(tree)] for tree in (updates, params))
    if not is_like_params or shapes != expected:
        raise ValueError(
            f"the clipped sum must be a tree like the parameters, with shapes {expected}, got {shapes}; per-example "
            "gradients must go through gdpjax.clip_and_sum first"
        )


def check_clip(clip: Any) -> None:
    """Raise ValueError unless ``clip`` knows the sensitivity of the sum it made."""
    if not callable(getattr(clip, "sensitivity", None)):
        raise ValueError(
            "clip must be what bounded the sum: a gdpjax.clipped_grad function itself (jax.jit(grad_fn) has lost its "
            ".sensitivity), a gdpjax.clip_and_sum transform or gdpjax.Sensitivity(value); got "
            f"{shown(clip)}, which has no .sensitivity"
        )


def check_origin(clip: Any, updates: PyTree, batches: AbstractBatches) -> None:
    """Raise ValueError unless ``updates`` is a sum that ``clip`` made; what a `Sensitivity` states is believed.

    The sum of a batch that ``batches`` draws has its rows and a mask of its padding.
    """
    provenance = getattr(clip, "provenance", None)
    if isinstance(provenance, Provenance):
        recorded = provenance.take(updates, current_trace())
        _refuse_other_batches(recorded, batches)


def _refuse_other_batches(recorded: RecordedSum | None, batches: AbstractBatches, num_microbatches: int = 1) -> None:
    """Raise ValueError for a sum that is of no batch that ``batches`` draws; one of another trace is believed."""
    if recorded is not None:
        refuse_other_rows(recorded.num_rows * num_microbatches, batches, recorded.has_mask)


def refuse_other_rows(num_rows: int, batches: AbstractBatches, has_mask: bool) -> None:
    """Raise ValueError unless a batch that ``batches`` draws has that many rows, with a mask of its padding."""
    if batches.capacity is None:
        return
    if not has_mask:
        raise ValueError(
            "batches= draws batches that are padded to their capacity, with rows of examples that are not in them, and "
            "this sum counted all its rows. Give the mask that comes with the indices, grad_fn(params, x, y, "
            "is_padding=is_padding)"
        )
    if num_rows != batches.capacity:
        raise ValueError(
            f"batches= draws batches of {batches.capacity} rows, padding included (its capacity), and this sum is of "
            f"{num_rows}: give all rows of batches.sample(key, step), or of batches.on_host(key)[step]. Batches that a "
            "loader makes otherwise have another epsilon: say how they are drawn, of Poisson batches by "
            "batches=gdpjax.sampling.PoissonNumbers(sampling_prob, expected_batch_size)"
        )


class Accumulation:
    """Passed by `accumulate_clipped` to the private transform: that its sum is one of several clipped sums.

    Attributes:
      charge: what this microbatch's sum adds to the sensitivity of the total, once the private transform has asked.
      num_private: how many private transforms took part.
    """

    def __init__(
        self,
        num_microbatches: int,
        microbatch_rows: int | None,
        clipped_sum: PyTree,
        total: PyTree,
        factor: Array = 1.0,
    ) -> None:
        self._num_microbatches = num_microbatches
        self._microbatch_rows = microbatch_rows
        self._clipped_sum = clipped_sum
        self._total = total
        self._factor = factor
        self._trace = current_trace()
        self.charge = AccumulationCharge(1.0, 0.0)
        self.num_private = 0

    def sensitivity_factor(self, clip: Any, updates: PyTree, batches: AbstractBatches) -> Array:
        """Return what the sensitivity of one of ``clip``'s sums is to be multiplied by for the sum of all of them.

        A `Sensitivity` that is stated by hand is that of the whole sum already.
        """
        self.num_private += 1
        provenance = getattr(clip, "provenance", None)
        if not isinstance(provenance, Provenance):
            return 1.0

        # The updates must be the very arrays that were added up.
        totals = jax.tree.leaves(self._total)
        for update, total in zip(jax.tree.leaves(updates), totals, strict=True):
            if update is not total:
                raise ValueError(
                    "something between accumulate_clipped and privatize changes the accumulated sum, and with it the "
                    "sensitivity; put it after gdpjax.privatize in the chain"
                )

        recorded = provenance.take(self._clipped_sum, self._trace)
        _refuse_other_batches(recorded, batches, self._num_microbatches)
        self.charge = charge_of_sum(
            clip,
            self._clipped_sum,
            recorded,
            self._microbatch_rows,
            self._num_microbatches,
        )
        return self._factor


def add_gaussian_noise(stddev: Scalar, key: PRNGKeyArray) -> optax.GradientTransformationExtraArgs:
    """Add N(0, stddev^2) to every floating leaf, in float32 or wider; records nothing and claims nothing.

    Args:
      stddev: absolute standard deviation >= 0, a number, a traced scalar or a schedule of the step.
      key: one PRNG key.

    Raises:
      ValueError: a negative or NaN stddev, a wrong key.

    >>> tx = add_gaussian_noise(0.0, jax.random.key(0))
    >>> tx.update({"w": jnp.ones(2)}, tx.init({"w": jnp.ones(2)}))[0]["w"].tolist()
    [1.0, 1.0]
    """
    if not callable(stddev):
        stddev = checked_scalar("stddev", stddev, NONNEGATIVE)
    noise_key = NoiseKey(key)

    def init(params: PyTree) -> NoiseState:
        static = () if callable(stddev) else (stddev,)
        return NoiseState(jnp.zeros((), jnp.int32), noise_key.begin(static, params))

    def update(
        updates: PyTree, state: Any, params: PyTree | None = None, **extra_args: Any
    ) -> tuple[PyTree, NoiseState]:
        del params
        refuse_private_values(extra_args)
        check_instance("state", state, NoiseState, "made by this transformation's init")
        refuse_complex(updates, "leaf")
        step_stddev = scheduled("stddev", stddev, state.count, NONNEGATIVE)
        run_key, valid = noise_key.of(state, updates, step_stddev)
        valid_stddev = step_stddev * valid

        # Leaves that are not floating stay as they are.
        floating = jax.tree.map(is_floating, updates)
        noise = draws_of(run_key, noised_leaves(updates, floating))(state.count)
        noised = noisy_tree(updates, noise, valid_stddev)
        released = jax.tree.map(lambda leaf, new: new if is_floating(leaf) else leaf, updates, noised)
        count = optax.safe_increment(state.count)
        return released, NoiseState(count, state.key_data)

    return optax.GradientTransformationExtraArgs(init, update)


@keyword_checked()
def privatize(
    clip: Any,
    noise_multiplier: Any,
    batches: AbstractBatches,
    key: PRNGKeyArray,
    *,
    noise: IndependentGaussian | AbstractNoiseStrategy = INDEPENDENT,
    neighboring_relation: NeighboringRelation | None = None,
    announced: bool = False,
) -> optax.GradientTransformationExtraArgs:
    """Make a clipped sum private: add noise, divide by the expected batch size, record the step in the ledger.

    (sum + N(0, (noise_multiplier * sensitivity)^2 I)) / expected_batch_size

    Args:
      clip: what clipped the sum: a `clipped_grad` function, a `clip_and_sum` transform, or `Sensitivity`.
      noise_multiplier: stddev / sensitivity > 0: a number, a traced scalar, or a schedule of the step count. The number
        0 makes steps without privacy, and the ledger's epsilon infinite. The ledger has 512 rows, or 4096 for a
        schedule, one for each run of equal (noise multiplier, sampling probability). Steps beyond them share one event
        that is not exact (`Event`), and `ledger_of` warns.
      batches: how the batches are drawn, such as a `gdpjax.sampling.Poisson`, which draws them too. The sum must have
        been made with ``is_padding=``, of all its ``capacity`` rows. Of Poisson batches that are drawn elsewhere, or
        whose sampling probability is traced in a sweep, the numbers, `gdpjax.sampling.PoissonNumbers`.
      key: one PRNG key, used for nothing else. `gdpjax.fresh_key()` fills one from the system's entropy. A new one does
        not make a new run of old batches: two runs that share the key of their batches are one `gdpjax.Event.joint`.
      noise: `IndependentGaussian`, or a strategy C of `gdpjax.correlated`, for noise that is correlated over the steps:

          (sum + noise_multiplier * sensitivity * sens(C) * sum_s C^-1[t, s] z_s) / expected_batch_size

        Its batches promise how often and how far apart an example takes part: `gdpjax.sampling.Shuffled`, of which the
        run is one Gaussian release, (1 / noise_multiplier)-GDP; `Promised`, of a loader of one's own; or
        `CyclicPoisson`, amplified by sampling. The noise multiplier is then one number, and what a step beyond
        ``batches.num_steps`` releases is NaN.
      neighboring_relation: one with a proved bound for these batches; it decides the sensitivity. None: their first.
      announced: whether the loop stops at a batch that does not fit and says so, as `gdpjax.training` does; see
        `Event`.

    Returns:
      An optax transformation from the clipped sum to the noisy mean, float32 or wider. ``update`` needs params.
      Frozen leaves (``trainable`` of clip) and integer leaves leave as exact zeros.

      Over a mesh the noise is the same as on one device, and lies where the parameters lie, with any buffers of past
      noise; no array of a leaf's size is sent between devices. A leaf whose first axis alone is split, into parts of a
      multiple of 64 numbers, is drawn in parts, one a device. Of any other leaf that is split every device draws the
      noise of the whole and keeps its part, which takes time and temporary memory of the whole leaf.

    Raises:
      ValueError: values out of range, batches beside the numbers that they stand for, a clip without ``sensitivity``,
        updates that are no sum of this clip, or were changed since, or made without is_padding or of another number of
        rows than a drawn batch has, params=None, a leaf whose shape is not its
        parameter's, masked leaves, a key shared under vmap or that is a constant of a loop (`jax.lax.map`, scan) or of
        a shard_map over hyperparameters, a pair of sampling and relation without a bound; ``init`` after ``update`` in
        one compiled program; an extra argument of ``update`` that is not named ``public_...`` (see `public_values`).

    Reference: Abadi et al., arXiv:1607.00133, algorithm 1; Bu et al., arXiv:1911.11607, section 2.

    >>> import gdpjax
    >>> batches = gdpjax.sampling.Poisson(num_examples=100, expected_batch_size=10, num_steps=20)
    >>> tx = privatize(gdpjax.Sensitivity(1.0), noise_multiplier=1.0, batches=batches, key=jax.random.key(0))
    >>> params = {"w": jnp.zeros(3)}
    >>> noisy_mean, state = jax.jit(tx.update)({"w": jnp.ones(3)}, tx.init(params), params)
    >>> noisy_mean["w"].shape, int(state.ledger.num_steps[0])
    ((3,), 1)
    """
    release = release_of(batches, noise, neighboring_relation, announced)
    return private_transform(clip, noise_multiplier, release, key)


def private_transform(
    clip: Any,
    noise_multiplier: Any,
    release: Release,
    key: PRNGKeyArray,
) -> optax.GradientTransformationExtraArgs:
    """Return `privatize` of what its steps release."""
    check_clip(clip)
    if not callable(noise_multiplier):
        noise_multiplier = checked_scalar("noise_multiplier", noise_multiplier, NONNEGATIVE_FLOAT32)
    batches = release.batches
    strategy = release.strategy
    if strategy is not None and callable(noise_multiplier):
        raise ValueError(
            "correlated noise takes one noise_multiplier for the whole run: later steps take back the noise of "
            f"earlier ones; got the schedule {shown(noise_multiplier)}"
        )
    sensitivity = clip.sensitivity(release.relation)

    # The key, and the numbers that must not differ between configurations that share it.
    noise_key = NoiseKey(key)
    hyperparameters = [release.sampling_prob, batches.expected_batch_size, sensitivity, release.sensitivity, strategy]
    if not callable(noise_multiplier):
        hyperparameters.append(noise_multiplier)

    def init(params: PyTree) -> PrivatizeState:
        check_params(params)
        ledger = init_ledger(num_ledger_rows(noise_multiplier), release.step, release.strategy_digest)
        past_noise = None
        if strategy is not None:
            trainable = broadcast_trainable(getattr(clip, "trainable", None), params)
            past_noise = strategy.init(noised_leaves(params, trainable))
        key_data = noise_key.begin(hyperparameters, params)
        return PrivatizeState(jnp.zeros((), jnp.int32), key_data, ledger, past_noise)

    def update(
        updates: PyTree,
        state: Any,
        params: PyTree | None = None,
        *,
        accumulation: Accumulation | None = None,
        **extra_args: Any,
    ) -> tuple[PyTree, PrivatizeState]:
        refuse_private_values(extra_args)
        check_instance("state", state, PrivatizeState, "made by this transformation's init")
        check_leaves(updates, params)

        # The sensitivity is that of the clip's sum; of several sums that are added up, a little more.
        if accumulation is None:
            check_origin(clip, updates, batches)
            factor = 1.0
        else:
            factor = accumulation.sensitivity_factor(clip, updates, batches)
        if asks_for_no_noise(noise_multiplier):
            multiplier = 0.0
        else:
            multiplier = scheduled("noise_multiplier", noise_multiplier, state.count, POSITIVE_FLOAT32)

        run_key, valid = noise_key.of(state, updates, hyperparameters, multiplier)
        trainable = broadcast_trainable(getattr(clip, "trainable", None), params)
        past_noise = state.past_noise

        # Draw the noise of the step.
        draw = draws_of(run_key, noised_leaves(updates, trainable))
        if strategy is None:
            noise = draw(state.count)
        else:
            # A step that the strategy's sensitivity is not for gets no noise that it would be private with: NaN.
            valid = jnp.where(state.count < batches.num_steps, valid, jnp.nan)
            # Earlier draws are made again in loops, so the key is looked at here.
            refuse_key_of_a_loop(run_key)
            noise, past_noise = strategy.next(state.count, draw, past_noise)

        # Release the noisy mean.
        stddev = noise_stddev(multiplier, sensitivity * factor * release.sensitivity, valid)
        noisy_sum = noisy_tree(updates, noise, stddev)
        released = noisy_mean(noisy_sum, batches.expected_batch_size, trainable)

        # Record the step.
        ledger = record_step(state.ledger, multiplier, release.sampling_prob, release.overflow_per_step)
        count = optax.safe_increment(state.count)
        return released, PrivatizeState(count, state.key_data, ledger, past_noise)

    return optax.GradientTransformationExtraArgs(init, update)
