"""The ledger inside a compiled step, and reading it back.

A training run writes its ledger inside the compiled step, as `LedgerState` in the optimizer's state: run-length arrays
of a static capacity, in which equal consecutive steps share a row. When the rows run out, the last one takes the
smaller noise and the larger sampling probability of what it covers, which can only overstate the loss, and `overflow`
is set. `ledger_of(opt_state)` reads it back on the host.
"""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from gdpjax._core.arguments import (
    check_choice,
    check_count,
    check_flag,
    check_instance,
    check_number,
    check_relation,
    check_tree,
    leaves_of,
)
from gdpjax._core.checks import HALF_OPEN_UNIT, NONNEGATIVE, UNIT, Domain, check, check_scalar, is_traced, number_kind
from gdpjax._core.shown import shown
from gdpjax._core.types import Array, NeighboringRelation, PyTree
from gdpjax.ledger._events import (
    ALLOCATION,
    SHUFFLED,
    TRUNCATED_POISSON,
    AllocationEvent,
    Event,
    ShuffledEvent,
    TruncatedPoissonEvent,
)
from gdpjax.ledger._ledger import Ledger

_ANY = Domain("a number", lambda x: x == x)
_INFINITE = Domain("-inf or inf", lambda x: abs(x) == np.inf)


class LedgerState(NamedTuple):
    """A ledger inside a compiled step: run-length rows of static capacity (see the module docstring)."""

    noise_multiplier: Array  # float[capacity], rounded down
    sampling_prob: Array  # float[capacity], rounded up
    num_steps: Array  # int32[capacity]
    used: Array  # int32, rows in use
    overflow: Array  # bool, whether rows had to be merged conservatively
    extra_delta: Array  # float, probability so far that a padded batch did not fit
    kind: Array  # int32, index of `_Kind`
    sizes: Any = None  # int32[1 to 3], what else an event of the scheme says (`_SIZES`)


class _Kind(NamedTuple):
    """What the steps of one ledger have in common."""

    sampling: str
    neighboring_relation: NeighboringRelation
    announced: bool = False  # whether a run stops at a batch that does not fit, and says so


_ADDED, _REPLACED = NeighboringRelation.ADD_OR_REMOVE_ONE, NeighboringRelation.REPLACE_ONE
_SPECIAL = NeighboringRelation.REPLACE_SPECIAL
_KINDS = (
    _Kind("poisson", _ADDED),
    _Kind("poisson", _SPECIAL),
    _Kind("uniform", _REPLACED),
    _Kind("poisson", _ADDED, announced=True),
    _Kind("poisson", _SPECIAL, announced=True),
    _Kind(TRUNCATED_POISSON, _ADDED),
    _Kind(ALLOCATION, _ADDED),
    _Kind(ALLOCATION, _SPECIAL),
    _Kind(ALLOCATION, _ADDED, announced=True),
    _Kind(ALLOCATION, _SPECIAL, announced=True),
    _Kind(SHUFFLED, _SPECIAL),
    _Kind(SHUFFLED, _ADDED),
    _Kind(SHUFFLED, _REPLACED),
)
"""Saved states hold an index into these: new ones go to the end."""

_SIZES = {
    TRUNCATED_POISSON: ("max_examples", "capacity"),
    ALLOCATION: ("steps_per_epoch", "num_selected", "fixed bins, 1 or 2"),
    SHUFFLED: ("steps_per_epoch",),
}
"""The whole numbers >= 1 that a scheme has beside those of `Event`."""

_MOST_ROWS = 2**20
_KIND_NAMES = tuple(f"{kind.sampling!r}, {kind.neighboring_relation.name}" for kind in _KINDS)


def init_ledger(
    capacity: int, sampling: str, neighboring_relation: NeighboringRelation, *, announced: bool = False,
    sizes: tuple[int, ...] | None = None,
) -> LedgerState:  # fmt: skip
    """An empty ledger of ``capacity`` rows, whose events will be ``announced`` or not where batches may overflow.

    ``sizes`` is (max_examples, capacity of a batch) under truncated Poisson sampling, (steps_per_epoch, num_selected, 2
    for fixed bins or else 1) under allocation, and (steps_per_epoch,) of shuffled batches.
    """
    capacity = check_count("capacity", capacity, most=_MOST_ROWS)
    relation = check_relation(neighboring_relation)
    check_choice("sampling and neighboring_relation", f"{shown(sampling)}, {relation.name}", _KIND_NAMES)
    announced = check_flag("announced", announced) and sampling in ("poisson", ALLOCATION)
    kind = _KINDS.index(_Kind(sampling, relation, announced))
    names = _SIZES.get(sampling)
    if not (sizes is None if names is None else isinstance(sizes, tuple) and len(sizes) == len(names)):
        expected = "no sizes" if names is None else f"sizes ({', '.join(names)})"
        raise ValueError(f"{sampling} sampling takes {expected}, got {shown(sizes)}")
    most = np.iinfo(np.int32).max
    whole = [check_count(name, size, most=most) for name, size in zip(names or (), sizes or (), strict=True)]
    real = jnp.result_type(float)
    return LedgerState(
        noise_multiplier=jnp.zeros(capacity, real),
        sampling_prob=jnp.zeros(capacity, real),
        num_steps=jnp.zeros(capacity, jnp.int32),
        used=jnp.zeros((), jnp.int32),
        overflow=jnp.zeros((), bool),
        extra_delta=jnp.zeros((), real),
        kind=jnp.asarray(kind, jnp.int32),
        sizes=jnp.asarray(whole, jnp.int32) if whole else None,
    )


def round_toward(value: Array, direction: float, real: Any) -> Array:
    """``value`` as a float of dtype ``real``, rounded down (direction -inf) or up (inf)."""
    check("value", value, _ANY)
    check_number("direction", direction, _INFINITE)
    if number_kind(real) != "f":
        raise ValueError(f"real must be a floating dtype, got {shown(real)}")
    if is_traced(value):
        return value.astype(real)
    exact = np.float64(value)
    rounded = np.asarray(exact, real)
    wrong = rounded > exact if direction < 0 else rounded < exact
    return jnp.asarray(np.nextafter(rounded, np.asarray(direction, real)) if wrong else rounded)


def record_step(state: LedgerState, noise_multiplier: Array, sampling_prob: Array, extra_delta: Array) -> LedgerState:
    """The ledger after one more step; jit, scan and vmap."""
    check_instance("state", state, LedgerState, "such as init_ledger gives")
    check_tree("state", state)
    check_scalar("noise_multiplier", noise_multiplier, NONNEGATIVE)
    check_scalar("sampling_prob", sampling_prob, UNIT)
    check_scalar("extra_delta", extra_delta, HALF_OPEN_UNIT)
    state = jax.tree.map(jnp.asarray, state)  # a restored state may hold NumPy arrays
    capacity, real = state.noise_multiplier.shape[0], state.noise_multiplier.dtype
    noise = round_toward(noise_multiplier, -np.inf, real)
    prob = round_toward(sampling_prob, np.inf, real)
    lost = state.extra_delta + jnp.asarray(extra_delta, real)
    lost = jnp.where(lost > state.extra_delta, jnp.nextafter(lost, jnp.asarray(jnp.inf, real)), lost)
    last = jnp.maximum(state.used - 1, 0)
    same = (state.used > 0) & (state.noise_multiplier[last] == noise) & (state.sampling_prob[last] == prob)
    full = ~same & (state.used >= capacity)
    row = jnp.where(same | full, last, state.used)
    noise = jnp.where(full, jnp.minimum(state.noise_multiplier[last], noise), noise)
    prob = jnp.where(full, jnp.maximum(state.sampling_prob[last], prob), prob)
    return LedgerState(
        noise_multiplier=state.noise_multiplier.at[row].set(noise),
        sampling_prob=state.sampling_prob.at[row].set(prob),
        num_steps=state.num_steps.at[row].add(1),
        used=jnp.where(same | full, state.used, state.used + 1),
        overflow=state.overflow | full,
        extra_delta=lost,
        kind=state.kind,
        sizes=state.sizes,
    )


def record_steps(
    state: LedgerState, num_steps: Array, noise_multiplier: Array, sampling_prob: Array, extra_delta: Array
) -> LedgerState:
    """The ledger after ``num_steps`` more equal steps."""
    if not is_traced(num_steps):
        num_steps = check_count("num_steps", num_steps, least=0)
    check_instance("state", state, LedgerState, "such as init_ledger gives")
    check_tree("state", state)
    # Concrete numbers are looked at here; in the loop they are traced.
    check_scalar("noise_multiplier", noise_multiplier, NONNEGATIVE)
    check_scalar("sampling_prob", sampling_prob, UNIT)
    check_scalar("extra_delta", extra_delta, HALF_OPEN_UNIT)
    return jax.lax.fori_loop(
        0, num_steps, lambda _, after: record_step(after, noise_multiplier, sampling_prob, extra_delta), state
    )


def ledger_from_state(state: LedgerState) -> Ledger:
    """The host-side `Ledger` of one configuration's state; rows without steps are dropped."""
    check_instance("state", state, LedgerState, "the ledger of an optimizer's state (see ledger_of)")
    check_tree("state", state)
    if is_traced(state):
        raise ValueError("a Ledger is read outside compiled code; return the optimizer state and read it there")
    if np.ndim(state.used) != 0:
        raise ValueError(
            f"the state holds {np.shape(state.used)} ledgers of a vmapped sweep; pick one configuration first, "
            "for example jax.tree.map(lambda x: x[i], opt_state)"
        )
    kind = _KINDS[int(state.kind)]
    rows = zip(state.noise_multiplier, state.sampling_prob, state.num_steps, strict=True)
    if kind.sampling == TRUNCATED_POISSON:
        assert state.sizes is not None
        most, batch = (int(size) for size in state.sizes)
        return Ledger([TruncatedPoissonEvent(float(s), float(p), int(t), most, batch) for s, p, t in rows if int(t)])
    if kind.sampling in (ALLOCATION, SHUFFLED):
        return Ledger(_events_of_epochs(state, kind))
    events = [Event(float(s), float(p), int(t), **kind._asdict()) for s, p, t in rows if int(t)]
    if events and float(state.extra_delta):
        # Which step a batch might have overflowed in does not matter: the probabilities add up over the whole run.
        events[-1] = dataclasses.replace(events[-1], overflow=float(state.extra_delta))
    return Ledger(events)


def _events_of_epochs(state: LedgerState, kind: _Kind) -> list[AllocationEvent | ShuffledEvent]:
    """The steps so far as whole epochs, of which the last may lack some."""
    assert state.sizes is not None
    steps_per_epoch, *others = (int(size) for size in state.sizes)
    noise = [float(s) for s, t in zip(state.noise_multiplier, state.num_steps, strict=True) if int(t)]
    num_steps = sum(int(t) for t in state.num_steps)
    if not noise:
        return []
    if len(noise) > 1:
        scheme = "allocation is" if kind.sampling == ALLOCATION else "shuffled batches are"
        raise ValueError(f"{scheme} accounted for with one noise multiplier, got steps with {len(noise)} of them")
    num_epochs = -(-num_steps // steps_per_epoch)
    numbers = {
        "noise_multiplier": noise[0],
        "steps_per_epoch": steps_per_epoch,
        "num_epochs": num_epochs,
        "neighboring_relation": kind.neighboring_relation,
        "overflow": float(state.extra_delta),
        "missing_steps": num_epochs * steps_per_epoch - num_steps,
    }
    if kind.sampling == SHUFFLED:
        return [ShuffledEvent(**numbers)]
    num_selected, fixed = others
    bins = "fixed" if fixed == 2 else "fresh"
    return [AllocationEvent(**numbers, num_selected=num_selected, bins=bins, announced=kind.announced)]


_CALLING_ONCE = {
    "InjectHyperparamsState", "InjectStatefulHyperparamsState", "LookaheadState", "MaskedState", "PartitionState",
    "ScheduleFreeState",
}  # fmt: skip
"""States of the optax wrappers that give what they wrap every sum once, unchanged, and use nothing but its answer.

Others do not: MultiSteps, apply_if_finite and conditionally_transform skip steps or roll them back; sam and mechanize
use the sum itself.
"""


def _wrapper_around(tree: PyTree) -> str | None:
    """The first optax wrapper around the ledger's transform that is not known to call it once per step, by name."""
    if isinstance(tree, LedgerState) or not _ledgers(tree):
        return None
    name = type(tree).__name__
    is_optax = type(tree).__module__.partition(".")[0] == "optax"
    if is_optax and name not in _CALLING_ONCE:
        return name
    return next(filter(None, map(_wrapper_around, _children(tree))), None)


def _stateful_before(tree: PyTree) -> str | None:
    """The optax state that stands before the ledger's in a chain and holds numbers of its own, by name, or None."""
    if isinstance(tree, LedgerState):
        return None
    children = _children(tree)
    if type(tree) is tuple:  # a chain's
        last = max((index for index, child in enumerate(children) if _ledgers(child)), default=0)
        before = (_stateful(child) for child in children[:last] if not _ledgers(child))
        if name := next(filter(None, before), None):
            return name
    return next(filter(None, map(_stateful_before, children)), None)


def _stateful(tree: PyTree) -> str | None:
    """The first optax state in a tree that holds arrays, by name, or None."""
    if type(tree) is tuple:
        return next(filter(None, map(_stateful, tree)), None)
    is_optax = type(tree).__module__.partition(".")[0] == "optax"
    return type(tree).__name__ if is_optax and jax.tree.leaves(tree) else None


def _children(tree: PyTree) -> list[PyTree]:
    level = jax.tree_util.default_registry.flatten_one_level(tree)
    return [] if level is None else list(level[0])


def _ledgers(tree: PyTree) -> list[LedgerState]:
    leaves = jax.tree.leaves(tree, is_leaf=lambda node: isinstance(node, LedgerState))
    return [leaf for leaf in leaves if isinstance(leaf, LedgerState)]


def ledger_of(opt_state: PyTree) -> Ledger:
    """The ledger of what an optimizer state has actually run.

    Args:
      opt_state: the state of a chain with exactly one `gdpjax.privatize` in it (`gdpjax.dpsgd` is such a chain).

    Returns:
      A `Ledger`; its noise multipliers are rounded down and its probabilities up to the precision they are stored in.

    Raises:
      ValueError: no ledger or several of them in the state, a vmapped or traced state, a private transform inside a
        wrapper that is not known to call it once per step (optax.MultiSteps, apply_if_finite, sam, ...), or an optax
        transform with a state of its own (adam, momentum, a schedule) before it in the chain.
    """
    # Optimizers such as flax.nnx.Optimizer wrap every array of the state in a variable of its own.
    found = ledger_state_of(opt_state)
    arrays = [jax.tree.leaves(field) for field in found]
    return ledger_from_state(LedgerState(*(leaves[0] if leaves else None for leaves in arrays)))


def ledger_state_of(opt_state: PyTree) -> LedgerState:
    """The one `LedgerState` in an optimizer's state, also inside compiled code; ValueError as `ledger_of`."""
    leaves_of("opt_state", opt_state)
    found = _ledgers(opt_state)
    if wrapper := _wrapper_around(opt_state):
        raise ValueError(
            f"{wrapper.removesuffix('State')} around the private transform skips, repeats or averages its steps, or "
            "uses the sums without noise, so that noise and ledger no longer describe what was released; put such "
            "wrappers after gdpjax.privatize in the chain, and add microbatches up with gdpjax.accumulate_clipped"
        )
    if before := _stateful_before(opt_state):
        raise ValueError(
            f"{before.removesuffix('State')} comes before the private transform in the chain and changes the clipped "
            "sums, so that their sensitivity is not the one that the noise is for; put it after gdpjax.privatize"
        )
    if not found:
        raise ValueError("the optimizer state holds no ledger; was it made by a chain with gdpjax.privatize in it?")
    if len(found) > 1:
        raise ValueError(
            f"the optimizer state holds {len(found)} ledgers; two private releases from the same batches are one joint "
            "event (Event.joint), never two independent ones: use a single privatize for all the parameters"
        )
    return found[0]
