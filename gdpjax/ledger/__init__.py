"""The record of a run: events, the `Ledger` of them, and its form inside a compiled step. No privacy mathematics."""

from gdpjax.ledger._events import (
    AllocationEvent,
    AnyEvent,
    ApproximateDPEvent,
    CorrelatedGaussianEvent,
    CyclicPoissonEvent,
    Event,
    GaussianEvent,
    LaplaceEvent,
    RandomizedResponseEvent,
    ShuffledEvent,
    TruncatedPoissonEvent,
    resolve_relation,
    resolve_scheme_relation,
)
from gdpjax.ledger._ledger import FORMAT_VERSION, Ledger
from gdpjax.ledger._scheme import check_scheme
from gdpjax.ledger._state import (
    LedgerState,
    init_ledger,
    ledger_from_state,
    ledger_of,
    ledger_state_of,
    record_step,
    record_steps,
    round_toward,
)

__all__ = [
    "FORMAT_VERSION",
    "AllocationEvent",
    "AnyEvent",
    "ApproximateDPEvent",
    "CorrelatedGaussianEvent",
    "CyclicPoissonEvent",
    "Event",
    "GaussianEvent",
    "LaplaceEvent",
    "Ledger",
    "LedgerState",
    "RandomizedResponseEvent",
    "ShuffledEvent",
    "TruncatedPoissonEvent",
    "check_scheme",
    "init_ledger",
    "ledger_from_state",
    "ledger_of",
    "ledger_state_of",
    "record_step",
    "record_steps",
    "resolve_relation",
    "resolve_scheme_relation",
    "round_toward",
]
