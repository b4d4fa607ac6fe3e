"""The `Ledger`: a sequence of events, its JSON form, and its forms in other libraries. No privacy mathematics."""

import collections
import dataclasses
import json
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal

import msgspec

from gdpjax._core import VERSION, interop
from gdpjax._core.arguments import check_choice, check_number, check_text
from gdpjax._core.checks import OPEN_UNIT
from gdpjax._core.documents import parse_document
from gdpjax._core.figures import rounded
from gdpjax._core.types import NeighboringRelation, certified_epsilon, neighbours_differ
from gdpjax.ledger._events import (
    EVENT_TYPES,
    AllocationEvent,
    AnyEvent,
    CorrelatedGaussianEvent,
    CyclicPoissonEvent,
    Event,
    GaussianEvent,
    LaplaceEvent,
    OutcomesEvent,
    ShuffledEvent,
    TruncatedPoissonEvent,
    UniformEvent,
)

FORMAT_VERSION = 2
"""Version of the JSON form; besides it the first one is read, and any other refused."""


class _LedgerFile(msgspec.Struct, forbid_unknown_fields=True):
    """The JSON form of a ledger."""

    gdpjax_ledger: Literal[1, 2]
    events: list[dict[str, Any]]


_MOST_DESCRIBED = 6
"""Events of a ledger that are described one by one."""


def _event_to_dict(event: AnyEvent) -> dict[str, Any]:
    """Return the fields of an event and the name of its type, as JSON takes them."""
    (kind,) = (name for name, event_type in EVENT_TYPES.items() if isinstance(event, event_type))
    assert event.neighboring_relation is not None
    fields = dataclasses.asdict(event)
    fields["neighboring_relation"] = event.neighboring_relation.value
    return {"type": kind, **fields}


def _event_from_dict(description: dict[str, Any], version: int) -> AnyEvent:
    """Return the event of a description; the inverse of `_event_to_dict`."""
    fields = dict(description)
    kind = fields.pop("type", "subsampled_gaussian")
    later = set()
    if version == 1:
        # Batches without replacement were a field of the first event, from the time on that events have a type.
        if kind == "subsampled_gaussian":
            drawn = fields.pop("sampling", None if "type" in description else "poisson")
            if check_choice("the sampling of an event", drawn, ("poisson", "uniform")) == "uniform":
                kind = drawn
                fields.pop("announced", None)

        # Two fields came later.
        later = {"announced"} if kind == "correlated" else {"announced", "is_exact"}
    check_choice("the type of an event", kind, EVENT_TYPES)

    # Without the field, which came later, all of the data took part.
    later |= {"sampling_prob"} if kind == "laplace" else set()

    # The default in the place of a number that was lost, such as no overflow or one epoch, would cost less.
    expected = {field.name for field in dataclasses.fields(EVENT_TYPES[kind])}
    named = (expected - later) | fields.keys()
    missing = sorted(name for name in named if fields.get(name) is None)
    if missing:
        raise ValueError(
            f"expected all fields of an event of type {kind}, got none for {', '.join(missing)}; give what "
            "Ledger.to_json made"
        )
    return EVENT_TYPES[kind](**fields)


def _refuse_unusual(event: AnyEvent, form: str) -> None:
    """Raise ValueError for an event that other libraries cannot express in this form."""
    # Elsewhere noise is relative to the sensitivity of adding one example, and doubled for replacing one.
    is_expressible = isinstance(event, Event | GaussianEvent | LaplaceEvent)
    is_doubled = is_expressible and event.neighboring_relation is NeighboringRelation.REPLACE_ONE
    others = UniformEvent | TruncatedPoissonEvent | AllocationEvent | ShuffledEvent | OutcomesEvent
    if is_doubled or isinstance(event, others) or (isinstance(event, Event) and event.overflow):
        raise ValueError(
            f"{form} expresses Poisson sampling of add-or-remove-one neighbours, got {event}: account for an overflow "
            "by hand, as that much less delta, and pass events with overflow 0 (dataclasses.replace)"
        )


def _described(event: AnyEvent, form: str) -> dict[str, Any]:
    """Return the description of an event for another library; ValueError where that cannot express it.

    A release with correlated noise is described as the one that other libraries know in place of it.
    """
    if isinstance(event, CorrelatedGaussianEvent | CyclicPoissonEvent):
        event = event.from_above
    _refuse_unusual(event, form)
    return _event_to_dict(event)


def _event_of(given: Any) -> AnyEvent:
    """Return an event, or that of a plan or a mechanism."""
    event = getattr(given, "event", given)
    if callable(event) and not isinstance(given, type):
        event = event()
    if getattr(given, "group_size", 1) > 1:
        raise ValueError(f"a Ledger is of single units, got a plan for groups of {given.group_size}: ask the plan")
    if not isinstance(event, AnyEvent):
        raise ValueError(f"a Ledger holds events such as gdpjax.Event, plans, mechanisms, got {type(given).__name__}")
    return event


class Ledger(Sequence[AnyEvent]):
    """An immutable sequence of events, composed by the accountants.

    Args:
      events: events, and plans and mechanisms, of which it takes the event: ``Ledger([plan, GaussianMechanism(20.0)])``
        is a training and a histogram on the same data.

    Raises:
      ValueError: anything else, a plan for groups.

    >>> ledger = Ledger().add(Event(1.0, 0.01, 100)).add(Event(1.0, 0.01, 50))
    >>> len(ledger), ledger.num_steps
    (2, 150)
    >>> Ledger.from_json(ledger.to_json()) == ledger
    True
    """

    def __init__(self, events: Iterable[Any] = ()) -> None:
        self._events = tuple(map(_event_of, events))

    @property
    def events(self) -> tuple[AnyEvent, ...]:
        """The events in order."""
        return self._events

    @property
    def num_steps(self) -> int:
        """Total number of steps."""
        return sum(event.num_steps for event in self._events)

    def describe(self) -> str:
        """Return what was run as a clause of a report: every event, or of many how many they are."""
        if len(self) <= _MOST_DESCRIBED:
            times = collections.Counter(event.describe() for event in self)
            clauses = [f"{number} times: {clause}" if number > 1 else clause for clause, number in times.items()]
            return "; ".join(clauses) or "nothing"
        kinds = ", ".join(sorted({type(event).__name__ for event in self}))
        return f"{len(self)} events of {self.num_steps} steps ({kinds})"

    def statement(self, *, unit: str, delta: float) -> str:
        """Return the sentences that belong in a paper, with the certified epsilon of all events together.

        Args:
          unit: what one row of the data is, in the singular: "example", "patient".
          delta: strictly between 0 and 1.

        Raises:
          ValueError: an argument out of range, events of different neighbouring relations.

        >>> print(Ledger([Event(2.0, 0.01, 100)]).statement(unit="patient", delta=1e-6))  # doctest: +ELLIPSIS
        Released: Gaussian steps on Poisson batches: noise multiplier 2, sampling probability 0.01, 100 steps. All of it
        together is (epsilon, delta)-differentially private with delta = 1e-06 and epsilon <= 0.227... (the best
        epsilon lies in [0.227..., 0.227...]), where neighbouring data sets differ by adding or removing one patient
        (ADD_OR_REMOVE_ONE). Accountant: gdpjax ..., certified composition, lower and upper bounds, for real arithmetic.
        """
        check_text("unit", unit, "what one row is, in the singular")
        bounds = certified_epsilon(self, check_number("delta", delta, OPEN_UNIT))
        released = f"Released: {self.describe()}."
        if not self:
            return released
        relation = self[0].neighboring_relation
        if bounds.upper == math.inf:
            return f"{released} THIS IS NOT PRIVATE: no epsilon is certified at delta = {delta} for one {unit}."
        return (
            f"{released} All of it together is (epsilon, delta)-differentially private with delta = {delta} and "
            f"epsilon <= {rounded(float(bounds.upper), 5, 'up')} (the best epsilon lies in {bounds}), where "
            f"neighbouring data sets {neighbours_differ(relation, unit)}. Accountant: gdpjax {VERSION}, certified "
            "composition, lower and upper bounds, for real arithmetic."
        )

    def add(self, event: AnyEvent) -> "Ledger":
        """Return a new ledger with one event more."""
        return Ledger((*self._events, event))

    def __add__(self, other: "Ledger") -> "Ledger":
        """Return the ledger of two runs on the same data, whose batches and noise were drawn with different keys.

        Only then are they independent: runs that share a sampling key draw the same batches, and cost more than this.

        >>> len(Ledger([Event(1.0, 0.01, 100)]) + Ledger([Event(2.0, 0.01, 50)]))
        2
        """
        return Ledger((*self._events, *other._events))

    def to_json(self) -> str:
        """Return a JSON text with a format version."""
        events = [_event_to_dict(event) for event in self._events]
        return json.dumps({"gdpjax_ledger": FORMAT_VERSION, "events": events})

    @classmethod
    def from_json(cls, text: str) -> "Ledger":
        """Return the ledger of such a text, as `to_json` gives; ValueError for anything else or another version."""
        file = parse_document(text, _LedgerFile, "the JSON text of a Ledger, made by Ledger.to_json")
        try:
            return cls([_event_from_dict(event, file.gdpjax_ledger) for event in file.events])
        except TypeError as error:
            raise ValueError(f"a Ledger's events could not be read: {error}") from error

    def to_dp_event(self) -> Any:
        """Return the run as a ``dp_accounting.DpEvent`` for that library's accountants, which must be installed.

        Raises:
          ImportError: dp_accounting is not installed.
          ValueError: an event that it cannot express: uniform sampling (it asks for the sizes), or overflow.
        """
        return interop.to_dp_event(_described(event, "to_dp_event") for event in self._events)

    def to_opacus_history(self) -> list[tuple[float, float, int]]:
        """Return the run as the history of an Opacus accountant; ValueError for uniform sampling or overflow.

        >>> Ledger([Event(1.1, 0.01, 100)]).to_opacus_history()
        [(1.1, 0.01, 100)]
        """
        return self._rows("to_opacus_history")

    @classmethod
    def from_opacus_history(cls, history: Iterable[Any]) -> "Ledger":
        """Return the run of such a history: Poisson sampling, add-or-remove-one; ValueError for anything else.

        Also of an accountant's ``state_dict()``, which holds its history.

        >>> Ledger.from_opacus_history([(1.1, 0.01, 100)]).num_steps
        100
        >>> Ledger.from_opacus_history({"history": [(1.1, 0.01, 100)], "mechanism": "rdp"}).num_steps
        100
        """
        return cls([Event(*row) for row in interop.rows_of_history(history)])

    def _rows(self, form: str) -> list[tuple[float, float, int]]:
        """Return (noise_multiplier, sampling_prob, num_steps) of every event."""
        rows = []
        for event in self._events:
            described = _described(event, form)
            if described["type"] not in ("subsampled_gaussian", "gaussian"):
                raise ValueError(f"{form} can express Gaussian events, got {type(event).__name__}")
            rows.append((described["noise_multiplier"], described.get("sampling_prob", 1.0), described["num_steps"]))
        return rows

    def __len__(self) -> int:
        return len(self._events)

    def __getitem__(self, index: Any) -> Any:
        found = self._events[index]
        return Ledger(found) if isinstance(index, slice) else found

    def __iter__(self) -> Iterator[AnyEvent]:
        return iter(self._events)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Ledger) and self._events == other._events

    def __hash__(self) -> int:
        return hash(self._events)

    def __repr__(self) -> str:
        return f"Ledger({list(self._events)!r})"
