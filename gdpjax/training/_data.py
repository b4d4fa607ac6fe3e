"""Private data where the compiled step can draw from it, without its size showing.

Under ADD_OR_REMOVE_ONE the number of examples is private, but the shape of an array is public: it decides what is
compiled. `place` therefore pads every data set to the plan's public maximum; the number of real rows is a traced
number that only the sampler sees. Refusing a data set because it is *smaller* would be a membership test.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, PartitionSpec

from gdpjax._core import arguments
from gdpjax._core.arguments import check_array, check_instance
from gdpjax._core.keys import check_key
from gdpjax._core.shown import shown
from gdpjax._core.types import Array
from gdpjax.training._plan import Plan

EXPLICIT = AxisType.Explicit


class Data(NamedTuple):
    """Padded arrays on the device, each ``[max_examples, ...]``, and the (private) number of real rows."""

    arrays: tuple[Array, ...]
    num_examples: Array  # int32


def place(plan: Plan, *arrays: Any, sharding: Any = None) -> Data:
    """Put a data set on the device, padded to ``plan.max_examples`` rows.

    Args:
      plan: the plan; its maximum is public.
      arrays: what the loss takes of each example, ``[n, ...]`` each, n <= max_examples (equal to it where the plan
        says that the number is public).
      sharding: where the arrays go, as for `jax.device_put`; default: the first device.

    Raises:
      ValueError: no arrays, unequal lengths, more rows than the maximum, fewer where the number is public.

    >>> plan = Plan(noise_multiplier=1.0, clip=1.0, max_examples=10, expected_batch_size=2, max_steps=5, delta=1e-5)
    >>> data = place(plan, np.ones((7, 3)))
    >>> data.arrays[0].shape, int(data.num_examples)
    ((10, 3), 7)
    """
    if not arrays:
        raise ValueError("place needs at least one array of examples")
    arrays = tuple(check_array("every array of the data", array, kinds="biufc") for array in arrays)
    lengths = [np.shape(array)[:1] for array in arrays]
    if () in lengths or len(set(lengths)) != 1:
        raise ValueError(
            f"all arrays must have one row per example, got leading axes {[s[0] if s else None for s in lengths]}"
        )
    count = int(lengths[0][0])
    check_count(plan, count)
    missing = plan.max_examples - count

    def padded(array: Any) -> Array:
        rows = array
        if missing:
            rows = np.pad(np.asarray(array), [(0, missing)] + [(0, 0)] * (np.ndim(array) - 1))
        if jax.process_count() > 1:
            rows = np.asarray(rows)  # each process has its own copy, and puts its part
        return jnp.asarray(rows) if sharding is None else jax.device_put(rows, sharding)

    return Data(tuple(padded(array) for array in arrays), jnp.asarray(count, jnp.int32))


def rows_of(array: Array, indices: Array) -> Array:
    """array[indices], spread over the devices of the mesh that the array is on."""
    sharding: Any = jax.typeof(array).sharding
    explicit = [
        a for a, kind in zip(sharding.mesh.axis_names, sharding.mesh.axis_types, strict=True) if kind == EXPLICIT
    ]
    if not explicit:
        return array[indices]  # on an Auto mesh `clipped_grad` spreads the rows
    with jax.sharding.use_abstract_mesh(sharding.mesh):
        whole = jax.sharding.reshard(array, PartitionSpec())
        return jax.sharding.reshard(whole[indices], PartitionSpec(tuple(explicit)))


def check_count(plan: Plan, count: int) -> None:
    """ValueError unless a data set of ``count`` rows is one that the plan covers."""
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


def group_by_user(
    user_ids: Any, *arrays: Any, max_per_user: int, key: Array
) -> tuple[tuple[np.ndarray, ...], np.ndarray]:
    """One row per user instead of one per example, so that a plan's "example" is all of a user's data.

    A user's rows beyond ``max_per_user`` are dropped at random, user by user; missing ones are zeros and marked.

    Args:
      user_ids: ``[n]`` integers or strings, the owner of each row.
      arrays: ``[n, ...]`` each.
      max_per_user: rows kept of one user, >= 1, public.
      key: one PRNG key, for the choice of rows.

    Returns:
      ``(arrays, is_padding)``: arrays ``[users, max_per_user, ...]`` and bool ``[users, max_per_user]``. Users are in
      order of their ids; the loss of a user is usually the mean over the rows that are not padding.

    Raises:
      ValueError: unequal lengths, max_per_user < 1, what is no key.

    >>> (x,), is_padding = group_by_user([7, 9, 7], np.array([1.0, 2.0, 3.0]), max_per_user=2, key=jax.random.key(0))
    >>> x.shape, is_padding.tolist()
    ((2, 2), [[False, False], [False, True]])
    """
    ids = np.asarray(user_ids)
    if ids.dtype.kind not in "biuUS":
        raise ValueError(f"user_ids must be whole numbers or texts, got {shown(user_ids)}")
    arrays = tuple(check_array("every array", array, kinds="biufc") for array in arrays)
    words = np.asarray(check_key(key)[0]).ravel().tolist()
    if ids.ndim != 1 or any(np.shape(array)[:1] != ids.shape for array in arrays):
        raise ValueError(
            f"user_ids and every array must have one row per example, got {[np.shape(a) for a in (ids, *arrays)]}"
        )
    max_per_user = arguments.check_count("max_per_user", max_per_user)
    _, users = np.unique(ids, return_inverse=True)
    # A random order within each user; how one user's rows fall must not depend on the others' data.
    order = np.argsort(users, kind="stable")
    starts = np.flatnonzero(np.r_[True, np.diff(users[order]) > 0]) if len(ids) else np.zeros(0, int)
    shape = (len(starts), max_per_user)
    rows, is_padding = np.zeros(shape, int), np.ones(shape, bool)
    for user, (start, end) in enumerate(zip(starts, np.r_[starts[1:], len(ids)], strict=True)):
        own = order[start:end]
        if len(own) > max_per_user:
            own = np.sort(
                np.random.default_rng([*words, *_words(ids[own[0]])]).choice(own, max_per_user, replace=False)
            )
        rows[user, : len(own)], is_padding[user, : len(own)] = own, False

    def gathered(array: Any) -> np.ndarray:
        values = np.asarray(array)[rows]
        values[is_padding] = 0
        return values

    return tuple(gathered(array) for array in arrays), is_padding


def _words(user: Any) -> list[int]:
    """A user's id as seed words: the id alone decides, not where it stands among the others."""
    text = str(user).encode()
    return [len(text), int.from_bytes(text, "little")]
