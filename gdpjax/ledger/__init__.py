"""The record of a run: events, the `Ledger` of them, and its form inside a compiled step. No privacy mathematics."""

# What is imported under an alias is for the other parts of the library, and not public.
from gdpjax.ledger._events import (
    AllocationEvent,
    ApproximateDPEvent,
    CyclicPoissonEvent,
    Event,
    GaussianEvent,
    LaplaceEvent,
    OutcomesEvent,
    ShuffledEvent,
)
from gdpjax.ledger._events import AnyEvent as AnyEvent
from gdpjax.ledger._events import CorrelatedGaussianEvent as CorrelatedGaussianEvent
from gdpjax.ledger._events import RandomizedResponseEvent as RandomizedResponseEvent
from gdpjax.ledger._events import SampledEvent as SampledEvent
from gdpjax.ledger._events import StepEvent as StepEvent
from gdpjax.ledger._events import TruncatedPoissonEvent as TruncatedPoissonEvent
from gdpjax.ledger._events import UniformEvent as UniformEvent
from gdpjax.ledger._events import event_type_of as event_type_of
from gdpjax.ledger._events import resolve_relation as resolve_relation
from gdpjax.ledger._ledger import FORMAT_VERSION as FORMAT_VERSION
from gdpjax.ledger._ledger import Ledger
from gdpjax.ledger._state import LedgerState as LedgerState
from gdpjax.ledger._state import init_ledger as init_ledger
from gdpjax.ledger._state import ledger_from_state as ledger_from_state
from gdpjax.ledger._state import ledger_of
from gdpjax.ledger._state import ledger_state_of as ledger_state_of
from gdpjax.ledger._state import record_step as record_step
from gdpjax.ledger._state import record_steps as record_steps
from gdpjax.ledger._state import round_toward as round_toward

__all__ = [
    "AllocationEvent",
    "ApproximateDPEvent",
    "CyclicPoissonEvent",
    "Event",
    "GaussianEvent",
    "LaplaceEvent",
    "Ledger",
    "OutcomesEvent",
    "ShuffledEvent",
    "ledger_of",
]
