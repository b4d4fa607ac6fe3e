"""What was run: `Event` and `Ledger`, inert descriptions that accountants read. No privacy mathematics.

A training run writes its ledger inside the compiled step, as `LedgerState` in the optimizer's state: run-length arrays
of a static capacity, in which equal consecutive steps share a row. When the rows run out, the last one takes the
smaller noise and the larger sampling probability of what it covers, which can only overstate the loss, and `overflow`
is set. `ledger_of(opt_state)` reads it back on the host.
"""

import dataclasses
import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from gdpjax._core import interop
from gdpjax._core.checks import COUNT, HALF_OPEN_UNIT, POSITIVE, UNIT, check, is_traced
from gdpjax._core.types import Array, NeighboringRelation, PyTree

FORMAT_VERSION = 1
"""Version of the JSON form; another one is refused."""

_RELATIONS = {
    "poisson": (NeighboringRelation.ADD_OR_REMOVE_ONE, NeighboringRelation.REPLACE_SPECIAL),
    "uniform": (NeighboringRelation.REPLACE_ONE,),
}
_KINDS = tuple((sampling, relation) for sampling, relations in _RELATIONS.items() for relation in relations)


def resolve_relation(sampling: str, neighboring_relation: NeighboringRelation | None) -> NeighboringRelation:
    """The relation of an event: the sampling's default, or the given one if a bound is known for the pair.

    Raises:
      ValueError: unknown sampling, or a pair without a proved bound.
    """
    if sampling not in _RELATIONS:
        raise ValueError(f"sampling must be one of {tuple(_RELATIONS)}, got {sampling!r}")
    if neighboring_relation is None:
        return _RELATIONS[sampling][0]
    relation = NeighboringRelation(neighboring_relation)
    if relation not in _RELATIONS[sampling]:
        allowed = " or ".join(r.name for r in _RELATIONS[sampling])
        raise ValueError(f"{sampling} sampling has a proved bound under {allowed}, not under {relation.name}")
    return relation


@dataclasses.dataclass(frozen=True)
class Event:
    """``num_steps`` releases of a noisy sum over a random batch, with the same public parameters.

    Args:
      noise_multiplier: stddev of the noise over the sum's sensitivity under ``neighboring_relation``, > 0.
      sampling_prob: probability in [0, 1] that a given example is in a batch.
      num_steps: how many such releases, a whole number >= 1.
      sampling: "poisson" (each example independently) or "uniform" (a fixed number without replacement).
      neighboring_relation: ADD_OR_REMOVE_ONE by default for poisson, REPLACE_ONE for uniform.
      overflow: probability in [0, 1), over all the steps, that a batch did not fit its static capacity.

    Raises:
      ValueError: a value out of range, or a pair of sampling and relation without a proved bound.

    >>> Event(1.0, 0.01, 100)
    Event(noise_multiplier=1.0, sampling_prob=0.01, num_steps=100, sampling='poisson',
          neighboring_relation=<NeighboringRelation.ADD_OR_REMOVE_ONE: 'add_or_remove_one'>, overflow=0.0)
    """

    noise_multiplier: float
    sampling_prob: float
    num_steps: int
    sampling: str = "poisson"
    neighboring_relation: NeighboringRelation | None = None
    overflow: float = 0.0

    def __post_init__(self) -> None:
        for name, domain in (
            ("noise_multiplier", POSITIVE), ("sampling_prob", UNIT), ("num_steps", COUNT), ("overflow", HALF_OPEN_UNIT),
        ):  # fmt: skip
            value = getattr(self, name)
            if np.ndim(value) != 0:
                raise ValueError(f"an Event describes one configuration: {name} must be a number, got {value!r}")
            check(name, value, domain)
            object.__setattr__(self, name, int(value) if name == "num_steps" else float(value))
        relation = resolve_relation(self.sampling, self.neighboring_relation)
        object.__setattr__(self, "neighboring_relation", relation)

    @classmethod
    def joint(cls, *noise_multipliers: float, sampling_prob: float, num_steps: int, **fields: Any) -> "Event":
        """Several releases from the *same* batch, as one event with noise multiplier (sum s_i^-2)^-1/2.

        Releases from one random batch are not independent events: whether an example was in it is shared by all.

        >>> round(Event.joint(1.0, 1.0, sampling_prob=0.01, num_steps=10).noise_multiplier, 4)
        0.7071
        """
        if not noise_multipliers:
            raise ValueError("Event.joint needs at least one noise multiplier")
        for value in noise_multipliers:
            check("noise_multiplier", value, POSITIVE)
        combined = float(np.sum(np.asarray(noise_multipliers, np.float64) ** -2.0) ** -0.5)
        return cls(combined, sampling_prob, num_steps, **fields)


def _event_to_dict(event: Event) -> dict[str, Any]:
    assert event.neighboring_relation is not None
    return {**dataclasses.asdict(event), "neighboring_relation": event.neighboring_relation.value}


class Ledger(Sequence[Event]):
    """An immutable sequence of events, composed by the accountants.

    >>> ledger = Ledger().add(Event(1.0, 0.01, 100)).add(Event(1.0, 0.01, 50))
    >>> len(ledger), ledger.num_steps
    (2, 150)
    >>> Ledger.from_json(ledger.to_json()) == ledger
    True
    """

    def __init__(self, events: Iterable[Event] = ()) -> None:
        self._events = tuple(events)
        for event in self._events:
            if not isinstance(event, Event):
                raise ValueError(f"a Ledger holds events such as gdpjax.Event, got {type(event).__name__}")

    @property
    def events(self) -> tuple[Event, ...]:
        """The events in order."""
        return self._events

    @property
    def num_steps(self) -> int:
        """Total number of steps."""
        return sum(event.num_steps for event in self._events)

    def add(self, event: Event) -> "Ledger":
        """A new ledger with one event more."""
        return Ledger((*self._events, event))

    def to_json(self) -> str:
        """A JSON text with a format version."""
        return json.dumps({"gdpjax_ledger": FORMAT_VERSION, "events": [_event_to_dict(e) for e in self._events]})

    @classmethod
    def from_json(cls, text: str) -> "Ledger":
        """The inverse of `to_json`; ValueError for anything else or another version."""
        try:
            data = json.loads(text)
        except (json.JSONDecodeError, TypeError) as error:
            raise ValueError(f"expected the JSON text of a Ledger, got text that is not JSON: {error}") from error
        if not isinstance(data, dict) or "gdpjax_ledger" not in data:
            raise ValueError("expected the JSON text of a Ledger (made by Ledger.to_json), got other JSON")
        if data["gdpjax_ledger"] != FORMAT_VERSION:
            raise ValueError(f"expected a Ledger of version {FORMAT_VERSION}, got version {data['gdpjax_ledger']}")
        try:
            return cls([Event(**event) for event in data["events"]])
        except (KeyError, TypeError) as error:
            raise ValueError(f"a Ledger's events could not be read: {error}") from error

    def to_dp_event(self) -> Any:
        """The run as a ``dp_accounting.DpEvent`` for that library's accountants, which must be installed.

        Raises:
          ImportError: dp_accounting is not installed.
          ValueError: an event that it cannot express: uniform sampling (it asks for the sizes), or overflow.
        """
        return interop.to_dp_event(self._rows("to_dp_event"))

    def to_opacus_history(self) -> list[tuple[float, float, int]]:
        """The run as the history of an Opacus accountant; ValueError for uniform sampling or overflow.

        >>> Ledger([Event(1.1, 0.01, 100)]).to_opacus_history()
        [(1.1, 0.01, 100)]
        """
        return self._rows("to_opacus_history")

    @classmethod
    def from_opacus_history(cls, history: Iterable[Any]) -> "Ledger":
        """The inverse of `to_opacus_history`: Poisson sampling, add-or-remove-one; ValueError for anything else.

        >>> Ledger.from_opacus_history([(1.1, 0.01, 100)]).num_steps
        100
        """
        return cls([Event(*row) for row in interop.rows_of_history(history)])

    def _rows(self, form: str) -> list[tuple[float, float, int]]:
        for event in self._events:
            if event.sampling != "poisson":
                raise ValueError(f"{form} can express poisson sampling, got a {event.sampling} event")
            if event.overflow:
                raise ValueError(
                    f"{form} cannot express the overflow of a padded batch, got {event.overflow}: account for it by "
                    "hand, as that much less delta, and pass events with overflow 0 (dataclasses.replace)"
                )
        return [(event.noise_multiplier, event.sampling_prob, event.num_steps) for event in self._events]

    def __len__(self) -> int:
        return len(self._events)

    def __getitem__(self, index: Any) -> Any:
        return self._events[index]

    def __iter__(self) -> Iterator[Event]:
        return iter(self._events)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Ledger) and self._events == other._events

    def __hash__(self) -> int:
        return hash(self._events)

    def __repr__(self) -> str:
        return f"Ledger({list(self._events)!r})"


class LedgerState(NamedTuple):
    """A ledger inside a compiled step: run-length rows of static capacity (see the module docstring)."""

    noise_multiplier: Array  # float[capacity], rounded down
    sampling_prob: Array  # float[capacity], rounded up
    num_steps: Array  # int32[capacity]
    used: Array  # int32, rows in use
    overflow: Array  # bool, whether rows had to be merged conservatively
    extra_delta: Array  # float, probability so far that a padded batch did not fit
    kind: Array  # int32, index of (sampling, relation)


def init_ledger(capacity: int, sampling: str, neighboring_relation: NeighboringRelation) -> LedgerState:
    """An empty ledger of ``capacity`` rows."""
    real = jnp.result_type(float)
    return LedgerState(
        noise_multiplier=jnp.zeros(capacity, real),
        sampling_prob=jnp.zeros(capacity, real),
        num_steps=jnp.zeros(capacity, jnp.int32),
        used=jnp.zeros((), jnp.int32),
        overflow=jnp.zeros((), bool),
        extra_delta=jnp.zeros((), real),
        kind=jnp.asarray(_KINDS.index((sampling, neighboring_relation)), jnp.int32),
    )


def round_toward(value: Array, direction: float, real: Any) -> Array:
    """``value`` as a float of dtype ``real``, rounded down (direction -inf) or up (inf)."""
    if is_traced(value):
        return value.astype(real)
    exact = np.float64(value)
    rounded = np.asarray(exact, real)
    wrong = rounded > exact if direction < 0 else rounded < exact
    return jnp.asarray(np.nextafter(rounded, np.asarray(direction, real)) if wrong else rounded)


def record_step(state: LedgerState, noise_multiplier: Array, sampling_prob: Array, extra_delta: Array) -> LedgerState:
    """The ledger after one more step; jit, scan and vmap."""
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
    )


def ledger_from_state(state: LedgerState) -> Ledger:
    """The host-side `Ledger` of one configuration's state; rows without steps are dropped."""
    if is_traced(state):
        raise ValueError("a Ledger is read outside compiled code; return the optimizer state and read it there")
    if np.ndim(state.used) != 0:
        raise ValueError(
            f"the state holds {np.shape(state.used)} ledgers of a vmapped sweep; pick one configuration first, "
            "for example jax.tree.map(lambda x: x[i], opt_state)"
        )
    sampling, relation = _KINDS[int(state.kind)]
    rows = zip(state.noise_multiplier, state.sampling_prob, state.num_steps, strict=True)
    events = [Event(float(s), float(p), int(t), sampling, relation) for s, p, t in rows if int(t)]
    if events and float(state.extra_delta):
        # Which step a batch might have overflowed in does not matter: the probabilities add up over the whole run.
        events[-1] = dataclasses.replace(events[-1], overflow=float(state.extra_delta))
    return Ledger(events)


_ROLLING_BACK = (optax.MultiStepsState, optax.ApplyIfFiniteState, optax.ConditionallyTransformState)
"""States of optax wrappers that do not call what they wrap exactly once per step."""


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
      ValueError: no ledger or several of them in the state, a vmapped or traced state, a private transform inside
        optax.MultiSteps, apply_if_finite or conditionally_transform.
    """
    found = _ledgers(opt_state)
    for node in jax.tree.leaves(opt_state, is_leaf=lambda node: isinstance(node, _ROLLING_BACK)):
        if isinstance(node, _ROLLING_BACK) and _ledgers(list(node)):
            raise ValueError(
                f"{type(node).__name__.removesuffix('State')} around the private transform skips, repeats or averages "
                "its steps, so that noise and ledger no longer describe what was released; put such wrappers after "
                "gdpjax.privatize in the chain"
            )
    if not found:
        raise ValueError("the optimizer state holds no ledger; was it made by a chain with gdpjax.privatize in it?")
    if len(found) > 1:
        raise ValueError(
            f"the optimizer state holds {len(found)} ledgers; two private releases from the same batches are one joint "
            "event (Event.joint), never two independent ones: use a single privatize for all the parameters"
        )
    # Optimizers such as flax.nnx.Optimizer wrap every array of the state in a variable of its own.
    return ledger_from_state(LedgerState(*(jax.tree.leaves(field)[0] for field in found[0])))
