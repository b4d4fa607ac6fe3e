"""The ledger inside a compiled step, and reading it back.

A training run writes its ledger inside the compiled step, as `LedgerState` in the optimizer's state: run-length arrays
of a static capacity, in which equal consecutive steps share a row. When the rows run out, the last one takes the
smaller noise and the larger sampling probability of what it covers, which can only overstate the loss, and `overflow`
is set. `ledger_of(opt_state)` reads it back on the host; the event of such a row is not exact.
"""

import hashlib
import warnings
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Int

from gdpjax._core.arguments import check_count, check_instance, check_tree
from gdpjax._core.checks import HALF_OPEN_UNIT, NONNEGATIVE, UNIT, Domain, check, check_scalar, is_traced, number_kind
from gdpjax._core.trees import nodes_of, rounded_to
from gdpjax._core.types import Array, PyTree
from gdpjax.ledger._events import StepEvent
from gdpjax.ledger._ledger import Ledger

_NUMBER = Domain("a number", lambda value: value == value)


class LedgerState(NamedTuple):
    """A ledger inside a compiled step: run-length rows of static capacity (see the module docstring).

    Attributes:
      noise_multiplier: float[capacity], rounded down.
      sampling_prob: float[capacity], rounded up.
      num_steps: int32[capacity].
      used: int32[], the number of rows in use.
      overflow: bool[], whether rows had to be merged conservatively.
      extra_delta: float[], the probability so far that a padded batch did not fit.
      digest: int32[], of ``recorded``, which a state that is saved as arrays does not hold.
      recorded: what else the event of these steps says, known before compiling: the JSON text of one such step, and on
        a second line what else tells the noise apart, as the one name of an empty dictionary, so that it belongs to the
        structure of the state and is no leaf.
    """

    noise_multiplier: Float[Array, " capacity"]
    sampling_prob: Float[Array, " capacity"]
    num_steps: Int[Array, " capacity"]
    used: Int[Array, ""]
    overflow: Bool[Array, ""]
    extra_delta: Float[Array, ""]
    digest: Int[Array, ""]
    recorded: Any


_MOST_ROWS = 2**20


def init_ledger(capacity: int, event: StepEvent, noise: str = "") -> LedgerState:
    """Return an empty ledger of ``capacity`` rows, for steps like those of ``event``; ``noise`` is a line of text."""
    capacity = check_count("capacity", capacity, most=_MOST_ROWS)
    check_instance("event", event, StepEvent, "such as the event of a sampling scheme, batches.event(1.0)")
    step = Ledger([event.of_steps(1.0, 1.0, 1)]).to_json()
    text = f"{step}\n{noise}" if noise else step
    real = jnp.result_type(float)
    return LedgerState(
        noise_multiplier=jnp.zeros(capacity, real),
        sampling_prob=jnp.zeros(capacity, real),
        num_steps=jnp.zeros(capacity, jnp.int32),
        used=jnp.zeros((), jnp.int32),
        overflow=jnp.zeros((), bool),
        extra_delta=jnp.zeros((), real),
        digest=jnp.asarray(_digest_of(text), jnp.int32),
        recorded={text: ()},
    )


def _digest_of(text: str) -> int:
    """Return a number of 31 bits that tells texts apart."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big") >> 1


def round_toward(value: Array, direction: float, real: Any) -> Array:
    """Return ``value`` as a float of dtype ``real``, rounded down (direction -inf) or up (inf)."""
    check("value", value, _NUMBER)
    if is_traced(value) and value.dtype == real:
        return value
    # Round to the nearest, and go one float on if that is on the wrong side.
    exact = value if is_traced(value) else np.float64(value)
    rounded = exact.astype(real)
    is_compiled = is_traced(value) and number_kind(exact.dtype) == "f"
    read_back = rounded_to(exact, real) if is_compiled else rounded.astype(exact.dtype)
    is_wrong_side = read_back > exact if direction < 0 else read_back < exact
    if is_traced(value):
        return jnp.where(is_wrong_side, jnp.nextafter(rounded, jnp.asarray(direction, real)), rounded)
    if is_wrong_side:
        rounded = np.nextafter(rounded, np.asarray(direction, real))
    # Compiled code may take subnormal numbers for 0, which is the wrong side of a positive one.
    smallest = np.finfo(real).tiny
    if direction > 0 and 0 < exact < smallest:
        rounded = np.asarray(smallest)
    return jnp.asarray(rounded)


def record_step(state: LedgerState, noise_multiplier: Array, sampling_prob: Array, extra_delta: Array) -> LedgerState:
    """Return the ledger after one more step; works under jit, scan and vmap."""
    check_instance("state", state, LedgerState, "such as init_ledger gives")
    _check_arrays(state)
    check_scalar("noise_multiplier", noise_multiplier, NONNEGATIVE)
    check_scalar("sampling_prob", sampling_prob, UNIT)
    check_scalar("extra_delta", extra_delta, HALF_OPEN_UNIT)
    # A restored state may hold NumPy arrays.
    state = jax.tree.map(jnp.asarray, state)

    # Round to the side that overstates the loss.
    real = state.noise_multiplier.dtype
    noise_multiplier = round_toward(noise_multiplier, -np.inf, real)
    sampling_prob = round_toward(sampling_prob, np.inf, real)
    extra_delta = round_toward(extra_delta, np.inf, real)
    rounded_up = jnp.nextafter(state.extra_delta + extra_delta, jnp.asarray(jnp.inf, real))
    # A traced probability out of range is NaN, and stays so.
    total_delta = jnp.where(extra_delta == 0, state.extra_delta, rounded_up)

    # A step like those of the last row joins it; any other step takes a new row, as long as there is one.
    place = np.arange(len(state.num_steps))
    is_last = place == state.used - 1
    is_equal = (state.noise_multiplier == noise_multiplier) & (state.sampling_prob == sampling_prob)
    is_same = jnp.any(is_last & is_equal)
    is_merged = ~is_same & (state.used >= len(state.num_steps))
    is_new = ~(is_same | is_merged)
    row = jnp.where(is_new, place == state.used, is_last)

    # A row that unequal steps share holds the less private of their parameters.
    smaller_noise = jnp.minimum(state.noise_multiplier, noise_multiplier)
    recorded_noise = jnp.where(is_merged, smaller_noise, noise_multiplier)
    larger_prob = jnp.maximum(state.sampling_prob, sampling_prob)
    recorded_prob = jnp.where(is_merged, larger_prob, sampling_prob)
    return state._replace(
        noise_multiplier=jnp.where(row, recorded_noise, state.noise_multiplier),
        sampling_prob=jnp.where(row, recorded_prob, state.sampling_prob),
        num_steps=state.num_steps + row.astype(jnp.int32),
        used=state.used + is_new.astype(jnp.int32),
        overflow=state.overflow | is_merged,
        extra_delta=total_delta,
    )


def record_steps(
    state: LedgerState, num_steps: Array, noise_multiplier: Array, sampling_prob: Array, extra_delta: Array
) -> LedgerState:
    """Return the ledger after ``num_steps`` more equal steps."""
    if not is_traced(num_steps):
        num_steps = check_count("num_steps", num_steps, least=0)
    check_instance("state", state, LedgerState, "such as init_ledger gives")
    check_tree("state", state)
    # Concrete numbers are checked here; in the loop they are traced.
    check_scalar("noise_multiplier", noise_multiplier, NONNEGATIVE)
    check_scalar("sampling_prob", sampling_prob, UNIT)
    check_scalar("extra_delta", extra_delta, HALF_OPEN_UNIT)

    def record_one(_: Array, state: LedgerState) -> LedgerState:
        return record_step(state, noise_multiplier, sampling_prob, extra_delta)

    return jax.lax.fori_loop(0, num_steps, record_one, state)


def _check_arrays(state: LedgerState) -> None:
    """Raise ValueError unless the state holds arrays, and its numbers in float32 or wider, as they were recorded."""
    check_tree("state", state)
    for name in ("noise_multiplier", "sampling_prob", "extra_delta"):
        dtype = getattr(state, name).dtype
        if dtype not in (np.float32, np.float64):
            raise ValueError(
                f"the ledger's {name} must be in float32, got {dtype}: a cast rounds what was recorded to either side. "
                "Leave the optimizer's state out of casts to half precision"
            )


def ledger_from_state(state: LedgerState) -> Ledger:
    """Return the host-side `Ledger` of one configuration's state; rows without steps are dropped."""
    check_instance("state", state, LedgerState, "the ledger of an optimizer's state (see ledger_of)")
    _check_arrays(state)
    if np.ndim(state.used) != 0:
        raise ValueError(
            f"the state holds {np.shape(state.used)} ledgers of a vmapped sweep; pick one configuration first, "
            "for example jax.tree.map(lambda x: x[i], opt_state)"
        )
    (text,) = state.recorded
    step: StepEvent = Ledger.from_json(text.partition("\n")[0])[0]
    if int(state.digest) != _digest_of(text):
        raise ValueError(
            f"the state was recorded for other steps than {step}: restore it with the batches, the noise and the "
            "neighbouring relation that it was made with"
        )
    rows = _rows_made(state)
    if rows and step.is_one_event:
        rows = [_as_one(rows)]
    merged_steps = sum(row.num_steps for row in rows if not row.is_exact)
    if merged_steps:
        warnings.warn(
            f"{merged_steps} steps of different noise multipliers or sampling probabilities share one event of the "
            "ledger. Upper ends charge each of them as the least private one; lower ends count none",
            stacklevel=3,
        )

    # Which step a batch might have overflowed in does not matter: the probabilities add up over the whole run.
    overflows = [0.0] * (len(rows) - 1) + [float(state.extra_delta)]
    events = []
    for row, overflow in zip(rows, overflows, strict=False):
        event = step.of_steps(*row[:3], overflow=overflow, is_exact=row.is_exact)
        events.append(event)
    return Ledger(events)


class _Row(NamedTuple):
    """Steps of a ledger, by the names of the fields of events; `is_exact` if all of them have these numbers."""

    noise_multiplier: float
    sampling_prob: float
    num_steps: int
    is_exact: bool = True


def _rows_made(state: LedgerState) -> list[_Row]:
    """Return every row that has steps."""
    columns = (state.noise_multiplier, state.sampling_prob, state.num_steps)
    rows = []
    for noise_multiplier, sampling_prob, num_steps in zip(
        *(np.asarray(column).tolist() for column in columns), strict=True
    ):
        if num_steps:
            rows.append(_Row(noise_multiplier, sampling_prob, num_steps))
    if bool(state.overflow):
        rows[-1] = rows[-1]._replace(is_exact=False)
    return rows


def _as_one(rows: list[_Row]) -> _Row:
    """Return all steps with the least noise multiplier and the largest sampling probability that they had.

    A step with more noise reveals no more. That of correlated noise is a sum g_t with noise sigma_t w_t, or a rescaled
    sum g_t / sigma_t with noise w_t, of a sensitivity that is at most that of the least sigma_t.
    """
    return _Row(
        noise_multiplier=min(row.noise_multiplier for row in rows),
        sampling_prob=max(row.sampling_prob for row in rows),
        num_steps=sum(row.num_steps for row in rows),
        is_exact=len(rows) == 1 and rows[0].is_exact,
    )


_CALLING_ONCE = {
    "InjectStatefulHyperparamsState",
    "MaskedState",
    "PartitionState",
    "ScheduleFreeState",
}
"""States of the optax wrappers that give what they wrap every sum once, unchanged, and use nothing but its answer.

Others do not: MultiSteps, apply_if_finite and conditionally_transform skip steps or roll them back; lookahead may begin
the state again, which its own state does not show; sam and mechanize use the sum itself.
"""


def _is_optax_state(tree: PyTree) -> bool:
    """Return whether optax defines the type of this state."""
    return type(tree).__module__.partition(".")[0] == "optax"


def _way_to_ledger(opt_state: PyTree) -> list[tuple[PyTree, list[PyTree]]]:
    """Return the states around the one ledger, from the outside in, each with what stands in it before the ledger."""
    way = []
    state = opt_state
    while not isinstance(state, LedgerState):
        children, _ = jax.tree_util.default_registry.flatten_one_level(state)
        place = next(i for i, child in enumerate(children) if nodes_of(child, LedgerState))
        way.append((state, list(children)[:place]))
        state = list(children)[place]
    return way


def _stateful(states: list[PyTree]) -> list[str]:
    """Return the names of the optax states with numbers of their own."""
    found = jax.tree.leaves(states, is_leaf=_is_optax_state)
    return [type(state).__name__ for state in found if _is_optax_state(state) and jax.tree.leaves(state)]


def ledger_of(opt_state: PyTree) -> Ledger:
    """Return the ledger of what an optimizer state has actually run.

    Args:
      opt_state: the state of a chain with exactly one `gdpjax.privatize` in it (`gdpjax.dpsgd` is such a chain).

    Returns:
      A `Ledger`; its noise multipliers are rounded down and its probabilities up to the precision they are stored in,
      by a relative 2^-23 at most in float32. The noise itself is larger than that by up to 2^-21. At an ``rtol`` below
      1e-4, and where there is a closed form, lower ends allow for both; other brackets are far wider than that.
      Steps beyond the rows of the ledger share an event that is not exact (`Event`), with a warning.

    Raises:
      ValueError: no ledger or several of them in the state, a vmapped or traced state, a private transform inside a
        wrapper that is not known to call it once per step (optax.MultiSteps, apply_if_finite, sam, ...), or an optax
        transform with a state of its own (adam, momentum, a schedule) before it in the chain. The state of an
        optax.named_chain does not tell the order, which is then not looked at.
    """
    state = ledger_state_of(opt_state)

    # Optimizers such as flax.nnx.Optimizer wrap every array of the state in a variable of its own.
    arrays = {name: jax.tree.leaves(getattr(state, name))[0] for name in state._fields if name != "recorded"}
    return ledger_from_state(state._replace(**arrays))


def ledger_state_of(opt_state: PyTree) -> LedgerState:
    """Return the one `LedgerState` in an optimizer's state, also inside compiled code; ValueError as `ledger_of`."""
    states = nodes_of(opt_state, LedgerState)
    if len(states) != 1:
        raise ValueError(
            f"expected the state of a chain with one gdpjax.privatize in it, got {len(states)} ledgers; two private "
            "releases from the same batches are one joint event (Event.joint), never two independent ones"
        )
    for state, before in _way_to_ledger(opt_state):
        name = type(state).__name__
        if _is_optax_state(state) and name not in _CALLING_ONCE:
            raise ValueError(
                f"{name.removesuffix('State')} around the private transform may skip, repeat or average its steps, or "
                "begin them again, or use the sums without noise, so that noise and ledger no longer describe what was "
                "released; put such wrappers after gdpjax.privatize in the chain, add microbatches up with "
                "gdpjax.accumulate_clipped, and average parameters outside of the optimizer, with "
                "optax.incremental_update, as optax.lookahead does inside"
            )
        # The state of a chain is a tuple of the states of its transforms, in order.
        stateful = _stateful(before) if type(state) is tuple else []
        if stateful:
            raise ValueError(
                f"{stateful[0].removesuffix('State')} comes before the private transform in the chain and changes the "
                "clipped sums, so that their sensitivity is not the one that the noise is for; put it after "
                "gdpjax.privatize"
            )
    return states[0]
