"""Private data where the compiled step can draw from it, without its size showing.

Under ADD_OR_REMOVE_ONE the number of examples is private, but the shape of an array is public: it decides what is
compiled. `place` therefore pads every data set to the plan's public maximum; the number of real rows is a traced
number that only the sampler sees. Refusing a data set because it is *smaller* would be a membership test.
"""

import warnings
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.layout import Format, Layout
from jaxtyping import Bool, Int, PRNGKeyArray

from gdpjax._core import arguments
from gdpjax._core.arguments import check_instance, check_rows
from gdpjax._core.checks import is_traced
from gdpjax._core.keys import check_key
from gdpjax._core.shown import shown
from gdpjax._core.types import Array, PyTree
from gdpjax.sampling import HostBatches
from gdpjax.training._plan import Plan


class Data(NamedTuple):
    """A data set on the device.

    Attributes:
      arrays: arguments of the loss for all examples, arrays or pytrees of them ``[max_examples, ...]``, padded with
        zeros.
      num_examples: int32, the number of real rows, which may be private.
    """

    arrays: tuple[PyTree, ...]
    num_examples: Int[Array, ""]

    def __repr__(self) -> str:
        """Show the shapes, which are public, and nothing of the examples or their number."""
        return f"Data(private, {jax.tree.map(jnp.shape, self.arrays)})"


def place(plan: Plan, *arrays: PyTree, sharding: Any = None) -> Data:
    """Put a data set on the device, padded to ``plan.max_examples`` rows.

    It warns of rows with a NaN or an infinity. Their number is private: the warning goes to this machine only.

    Args:
      plan: the plan; its maximum is public.
      arrays: the arguments of the loss, arrays or pytrees of arrays ``[n, ...]`` each, n <= max_examples (equal to it
        where the plan says that the number is public).
      sharding: where the arrays go, as for `jax.device_put`; default: the first device. On a TPU give images as rows,
        ``[n, height * width * channels]``, and reshape one in the loss: an array of more axes is copied at each step.

    Raises:
      ValueError: no arrays, unequal lengths, more rows than the maximum, fewer where the number is public; masked
        elements; numbers of 64 bits that the type that JAX gives them does not hold.

    >>> from gdpjax.sampling import Poisson
    >>> plan = Plan(Poisson(10, 2, num_steps=5), clip=1.0, delta=1e-5, noise_multiplier=1.0)
    >>> data = place(plan, np.ones((7, 3)))
    >>> data.arrays[0].shape, int(data.num_examples)
    ((10, 3), 7)
    """
    arrays, num_examples = check_rows(arrays)
    for index, argument in enumerate(arrays):
        for path, array in jax.tree_util.tree_leaves_with_path(argument):
            _check_fits(f"array {index} of the data{jax.tree_util.keystr(path)}", array)
    check_count(plan, num_examples)
    num_missing = plan.max_examples - num_examples
    _warn_of_rows_that_are_not_finite(arrays, num_examples, plan.unit)

    def placed(array: Any) -> Array:
        # A copy, because on processors an array of NumPy may be used where it lies, and changed by its owner.
        if isinstance(array, jax.Array) and not num_missing and jax.process_count() == 1:
            return _with_whole_rows(jax.device_put(array.copy(), sharding))
        # Rows that are missing are zeros. Each of several processes has a copy of its own, and puts its part.
        widths = [(0, num_missing), *[(0, 0)] * (np.ndim(array) - 1)]
        return _with_whole_rows(jax.device_put(np.pad(np.asarray(array), widths), sharding))

    return Data(jax.tree.map(placed, arrays), jnp.asarray(num_examples, jnp.int32))


def _warn_of_rows_that_are_not_finite(arrays: tuple[PyTree, ...], num_examples: int, unit: str) -> None:
    """Warn of examples with a NaN or an infinity in some array."""
    has_others = np.zeros(num_examples, bool)
    for array in jax.tree.leaves(arrays):
        if is_traced(array) or not jnp.issubdtype(array.dtype, jnp.inexact):
            continue
        # An array of JAX is looked at on its own devices.
        is_finite = jnp.isfinite(array) if isinstance(array, jax.Array) else np.isfinite(np.asarray(array))
        is_finite_row = is_finite.all(axis=tuple(range(1, is_finite.ndim)))
        has_others |= ~np.asarray(is_finite_row)
    num_others = has_others.sum()
    if num_others:
        warnings.warn(
            f"{num_others} of {num_examples} {unit}s have a NaN or an infinity in the data. One whose gradient is not "
            "finite adds nothing to any sum, so that nothing is learned from it: fill the gaps, or leave these "
            f"{unit}s out. The number is private",
            stacklevel=3,
        )


def _with_whole_rows(array: Array) -> Array:
    """Return a matrix on a TPU with its rows in one piece each, as it is on other platforms; other arrays as they are.

    A TPU puts the longer axis in its lanes, the rows'. The compiler would then copy the matrix to the other layout at
    each step that takes rows of it.
    """
    if is_traced(array) or array.ndim != 2 or not array.is_fully_addressable:
        return array
    platform = next(iter(array.devices())).platform
    if platform != "tpu":
        return array
    return jax.device_put(array, Format(Layout(major_to_minor=(0, 1)), array.sharding))


def _check_fits(name: str, array: Any) -> None:
    """Raise ValueError where a number is beyond the type of 32 bits that JAX gives an array of 64 bits.

    JAX wraps whole numbers around, and makes real ones infinite. Rounding is not refused, nor what was infinite before.
    """
    dtype = jax.dtypes.canonicalize_dtype(array.dtype)
    if dtype == array.dtype or not np.size(array):
        return
    values = np.asarray(array)
    with np.errstate(over="ignore"):
        cast = values.astype(dtype)
    is_lost = np.isfinite(values) & ~np.isfinite(cast) if np.issubdtype(dtype, np.inexact) else cast != values
    if np.any(is_lost):
        raise ValueError(
            f"{name} is {shown(array)} with numbers that {dtype} does not hold, the type that JAX gives it: scale or "
            "renumber them and cast the array yourself, or switch on jax_enable_x64"
        )


def check_data(data: Any) -> int:
    """Return the number of rows of data that were placed, padding included; ValueError for anything else."""
    check_instance("data", data, Data, "which training.place(...) returned")
    check_instance("data.arrays", data.arrays, tuple)
    _, num_rows = check_rows(data.arrays)
    return num_rows


def check_count(plan: Plan, count: int) -> None:
    """Raise ValueError unless a data set of ``count`` rows is one that the plan covers."""
    check_instance("plan", plan, Plan, "made by gdpjax.make_plan")
    count = arguments.check_count("num_examples", count, least=0)
    if count > plan.max_examples:
        raise ValueError(
            f"the data have {count} {plan.unit}s, more than the plan's public max_examples = {plan.max_examples}: the "
            "plan's sampling probability and capacity do not cover them; make a plan with a larger maximum"
        )
    if plan.num_examples_is_public and count != plan.max_examples:
        assert plan.neighboring_relation is not None
        raise ValueError(
            f"under {plan.neighboring_relation.name} the number of {plan.unit}s is public and equal to the plan's "
            f"max_examples = {plan.max_examples}, but the data have {count}; make the plan for that number"
        )


def batch_source(plan: Plan, state: Any, num_examples: int) -> HostBatches:
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
    return plan.batches.on_host(state.sampling_key, num_valid=num_examples)


_MOST_SPARE_SLOTS = 2**24


def group_by_user(
    user_ids: Any, *arrays: PyTree, max_per_user: int, key: PRNGKeyArray
) -> tuple[tuple[PyTree, ...], Bool[np.ndarray, "users {max_per_user}"]]:
    """Return one row per user instead of one per example, so that a plan's "example" is all of a user's data.

    A user's rows beyond ``max_per_user`` are dropped at random, user by user; missing ones are zeros and marked.

    Args:
      user_ids: ``[n]`` integers or strings, the owner of each row.
      arrays: arrays or pytrees of arrays ``[n, ...]`` each.
      max_per_user: rows kept of one user, >= 1, public.
      key: one PRNG key, for the choice of rows.

    Returns:
      ``(arrays, is_padding)``: arrays ``[users, max_per_user, ...]`` and bool ``[users, max_per_user]``. Users are in
      order of their ids; the loss of a user is usually the mean over the rows that are not padding.

    Raises:
      ValueError: unequal lengths, masked, empty or missing ids, max_per_user < 1 or far above the rows, no key.

    >>> (x,), is_padding = group_by_user([7, 9, 7], np.array([1.0, 2.0, 3.0]), max_per_user=2, key=jax.random.key(0))
    >>> x.shape, is_padding.tolist()
    ((2, 2), [[False, False], [False, True]])
    """
    ids = np.asarray(user_ids)
    arrays, num_rows = check_rows(arrays)
    key_data, _ = check_key(key)
    key_words = np.asarray(key_data).ravel().tolist()
    # Rows of a user who is not known may be those of several, or of another one.
    if ids.shape != (num_rows,) or ids.dtype.kind not in "biuUS" or np.ma.is_masked(user_ids):
        raise ValueError(
            f"user_ids must be whole numbers or texts, none masked, one for each of {num_rows} rows, got {shown(ids)}"
        )
    # NumPy, and `str`, write a missing id among texts as one of these.
    missing = np.array(["", "nan", "None", "NaT", "<NA>"])
    if ids.dtype.kind in "US" and np.isin(np.char.strip(ids), missing.astype(ids.dtype.kind)).any():
        raise ValueError("user_ids must name the owner of each row, got an empty or missing one; leave such rows out")
    max_per_user = arguments.check_count("max_per_user", max_per_user)

    # The rows of each user stand together in this order.
    _, users, counts = np.unique(ids, return_inverse=True, return_counts=True)
    if max_per_user > num_rows and max_per_user * len(counts) > _MOST_SPARE_SLOTS:
        raise ValueError(
            f"max_per_user={max_per_user} is more than all {num_rows} rows, and every user gets so many, which are "
            "zeros beyond their own: give the number that is to count of one user"
        )
    order = np.argsort(users, kind="stable")
    ends = np.cumsum(counts)

    # Choose rows where a user has too many; the choice must not depend on the data of others.
    shape = (len(counts), max_per_user)
    rows = np.zeros(shape, int)
    is_padding = np.ones(shape, bool)
    for user, (count, end) in enumerate(zip(counts, ends, strict=True)):
        own_rows = order[end - count : end]
        if count > max_per_user:
            seed = [*key_words, *_seed_words(ids[own_rows[0]])]
            generator = np.random.default_rng(seed)
            chosen = generator.choice(own_rows, max_per_user, replace=False)
            own_rows = np.sort(chosen)
        rows[user, : len(own_rows)] = own_rows
        is_padding[user, : len(own_rows)] = False

    def gathered(array: Any) -> np.ndarray:
        values = np.asarray(array)[rows]
        values[is_padding] = 0
        return values

    return jax.tree.map(gathered, arrays), is_padding


def _seed_words(user: Any) -> list[int]:
    """Return a user's id as seed words: the id alone decides, not its place among the others."""
    text = str(user).encode()
    return [len(text), int.from_bytes(text, "little")]
