"""Events and ledgers: validation, JSON, the joint event."""

import json
import re

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gdpjax import Event, Ledger, NeighboringRelation
from gdpjax.accounting import epsilon_bounds
from gdpjax.ledger import (
    AllocationEvent,
    ApproximateDPEvent,
    CorrelatedGaussianEvent,
    CyclicPoissonEvent,
    GaussianEvent,
    LaplaceEvent,
    OutcomesEvent,
    RandomizedResponseEvent,
    ShuffledEvent,
    StepEvent,
    TruncatedPoissonEvent,
    UniformEvent,
    init_ledger,
    ledger_from_state,
    record_step,
    round_toward,
)
from gdpjax.tradeoff import PiecewiseLinear

STEP = Event(1.0, 0.1, 1)
EVENTS = st.builds(
    Event,
    noise_multiplier=st.floats(1e-3, 1e3),
    sampling_prob=st.floats(0, 1),
    num_steps=st.integers(1, 10**7),
    overflow=st.floats(0, 0.5),
    announced=st.booleans(),
)


@given(st.lists(EVENTS, max_size=5))
def test_json_round_trip(events):
    ledger = Ledger(events)
    assert Ledger.from_json(ledger.to_json()) == ledger
    assert hash(Ledger(events)) == hash(ledger)


def test_defaults_of_the_relation():
    assert Event(1.0, 0.1, 1).neighboring_relation is NeighboringRelation.ADD_OR_REMOVE_ONE
    assert UniformEvent(1.0, 0.1, 1).neighboring_relation is NeighboringRelation.REPLACE_ONE
    special = Event(1.0, 0.1, 1, neighboring_relation=NeighboringRelation.REPLACE_SPECIAL)
    assert Ledger.from_json(Ledger([special]).to_json())[0] == special


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ((-0.5, 0.1, 1), "noise_multiplier"),
        ((1.0, 1.1, 1), "sampling_prob"),
        ((1.0, 0.1, 0), "num_steps"),
        ((1.0, 0.1, 1, "poisson"), "neighboring_relation must be one of"),
        ((1.0, 0.1, 1, None, 1.0), "overflow"),
    ],
)
def test_bad_events(fields, message):
    with pytest.raises(ValueError, match=message):
        Event(*fields)


def test_batches_without_replacement_have_one_relation():
    with pytest.raises(ValueError, match="UniformEvent has a proved bound under REPLACE_ONE, not under ADD_OR"):
        UniformEvent(1.0, 0.1, 1, NeighboringRelation.ADD_OR_REMOVE_ONE)


def test_joint_event_is_the_one_of_the_combined_noise():
    """Trap 39: releases from one batch add up in 1 / sigma^2 before sampling, not after."""
    joint = Event.joint(3.0, 4.0, sampling_prob=0.1, num_steps=5)
    assert joint.noise_multiplier == pytest.approx(2.4)
    with pytest.raises(ValueError, match="at least one"):
        Event.joint(sampling_prob=0.1, num_steps=5)
    with pytest.raises(ValueError, match="noise_multiplier"):
        Event.joint(1.0, -1.0, sampling_prob=0.1, num_steps=5)


@pytest.mark.parametrize(
    "text",
    [
        "",
        '{"gdpjax_ledger": 3, "events": []}',
        '{"gdpjax_ledger": 1, "events": [{"a": 1}]}',
        '{"gdpjax_ledger": 1, "events": [], "more events": [1]}',
        '{"gdpjax_ledger": 1, "events": [{"a": 1}], "events": []}',
        Ledger([Event(1.0, 0.1, 10)]).to_json().replace('"num_steps": 10', '"num_steps": 10, "num_steps": 1'),
    ],
)
def test_bad_json(text):
    with pytest.raises(ValueError, match=r"the JSON text of a Ledger|expected all fields"):
        Ledger.from_json(text)


ALL_EVENTS = [
    Event(1.0, 0.1, 1000, overflow=1e-3),
    UniformEvent(1.0, 0.1, 1000),
    AllocationEvent(1.0, 10, 3, 2, missing_steps=1),
    ShuffledEvent(1.0, 10, 3),
    TruncatedPoissonEvent(1.0, 0.1, 10, 100, 30),
    CorrelatedGaussianEvent(2.0, 100, max_participations=4, min_separation=25),
    CyclicPoissonEvent(1.0, 0.1, 10, 5),
    GaussianEvent(1.0, 3),
    LaplaceEvent(0.1, 3),
    RandomizedResponseEvent(0.1, 3, 3),
    ApproximateDPEvent(0.1, 1e-6, 3),
    OutcomesEvent([0.5, 0.5], [0.4, 0.6], 3),
]


@pytest.mark.parametrize("event", ALL_EVENTS, ids=lambda event: type(event).__name__)
def test_a_field_that_was_lost_from_json_is_refused(event):
    """Its default, such as no overflow or a single epoch, would cost less than what was run."""
    text = Ledger([event]).to_json()
    assert Ledger.from_json(text) == Ledger([event])
    written = json.loads(text)
    fields = written["events"][0]
    for name in fields.keys() - {"type"}:
        without = {kept: value for kept, value in fields.items() if kept != name}
        if name != "sampling_prob" or not isinstance(event, LaplaceEvent):  # whose default, 1, costs most
            with pytest.raises(ValueError, match=f"expected all fields .*{name}"):
                Ledger.from_json(json.dumps(written | {"events": [without]}))
        with pytest.raises(ValueError, match="expected"):
            Ledger.from_json(json.dumps(written | {"events": [fields | {name: None}]}))


def test_ledgers_join():
    first, second = Ledger([Event(1.0, 0.1, 10)]), Ledger([Event(2.0, 0.1, 5)])
    assert (first + second).events == (*first, *second)
    assert sum([first, second], Ledger()) == first + second


@pytest.mark.parametrize("fields", [{}, {"sampling": "shuffled"}])
def test_unknown_sampling_of_an_older_ledger_is_refused(fields):
    """It was read as Poisson sampling."""
    text = Ledger([Event(1.0, 0.5, 3)]).to_json()
    saved = json.loads(text) | {"gdpjax_ledger": 1}
    saved["events"][0] |= fields
    with pytest.raises(ValueError, match=r"must be one of poisson, uniform, got (None|'shuffled')"):
        Ledger.from_json(json.dumps(saved))


def test_an_overflow_that_its_event_cannot_hold_is_refused_when_it_is_read():
    """Trap 83: steps that are recorded by hand, too."""
    state = init_ledger(1, TruncatedPoissonEvent(1.0, 0.1, 1, max_examples=1000, capacity=300))
    state = record_step(state, 1.0, 0.1, 1e-3)
    with pytest.raises(ValueError, match="a TruncatedPoissonEvent holds no overflow"):
        ledger_from_state(state)


def test_a_run_without_noise_is_an_event_that_says_so():
    event = Event(0.0, 0.1, 3)
    assert Ledger.from_json(Ledger([event]).to_json()).events == (event,)
    for noise in (-1.0, float("nan"), float("inf"), -1e-300):
        with pytest.raises(ValueError, match="noise_multiplier must be a finite number >= 0"):
            Event(noise, 0.1, 3)


def test_joint_events_of_tiny_noise_do_not_vanish():
    joint = Event.joint(1e-200, 1e-200, sampling_prob=0.1, num_steps=1).noise_multiplier
    assert joint == pytest.approx(1e-200 / 2**0.5, rel=1e-12)
    assert Event.joint(0.0, 1.0, sampling_prob=0.1, num_steps=1).noise_multiplier == 0.0


@pytest.mark.parametrize("overflow", [3.6e-115, 1e-45, 1e-20])
def test_an_overflow_that_float32_cannot_hold_is_rounded_up(overflow):
    """Also where compiled code takes subnormal numbers for 0."""
    state = init_ledger(4, STEP)
    record = jax.jit(lambda state: record_step(state, 1.0, 0.1, overflow))
    for _ in range(3):
        state = record(state)
    assert 3 * overflow <= ledger_from_state(state).events[0].overflow <= max(4 * overflow, 1e-36)


@pytest.mark.parametrize("value", [1.1, 1.3, 0.01, 1 / 3])
def test_a_traced_number_is_rounded_to_the_side_that_overstates(value):
    """To the nearest, as a cast rounds, half of the sampling probabilities would be too small."""
    with jax.enable_x64(True):
        down, up = jax.jit(lambda x: [round_toward(x, side, jax.numpy.float32) for side in (-np.inf, np.inf)])(value)
    assert float(down) <= value <= float(up)


def test_rounding_to_a_side_does_not_rest_on_a_cast_and_back():
    """Found on a GPU: its compiler leaves such casts out, so that upper bounds were rounded to the nearest."""
    curve = PiecewiseLinear([0, 0.2, 1], [0.9, 0.3, 0], rounding="up")
    with jax.enable_x64(True):
        rounded = jax.jit(lambda x: round_toward(x, np.inf, jax.numpy.float32)).lower(0.1)
    for lowered in (rounded, jax.jit(curve).lower(np.float32(0.1))):
        assert "reduce_precision" in lowered.as_text()


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_ledger_that_was_cast_to_half_precision_is_refused(dtype):
    """A cast rounds to the nearest: a noise multiplier of 1.004 became 1.0078, and an overflow of 2e-8 became 0."""
    state = record_step(init_ledger(1, STEP), 1.004, 0.064, 2e-8)
    cast = jax.tree.map(lambda leaf: leaf.astype(dtype) if leaf.dtype == np.float32 else leaf, state)
    for use in (ledger_from_state, lambda state: record_step(state, 1.004, 0.064, 2e-8)):
        with pytest.raises(ValueError, match="must be in float32"):
            use(cast)


@pytest.mark.parametrize("event", [event for event in ALL_EVENTS if isinstance(event, StepEvent)], ids=repr)
def test_a_ledger_in_compiled_code_has_the_event_of_its_steps(event):
    """Its other numbers are known before compiling, and come back as they were given."""
    recorded = jax.jit(lambda state: record_step(state, 2.0, 0.25, 0.0))(init_ledger(2, event))
    (found,) = ledger_from_state(jax.tree.map(np.asarray, recorded))
    expected = event.of_steps(2.0, 0.25, 1)
    assert found == expected
    assert found.num_steps == 1


def test_a_state_that_is_restored_as_that_of_other_steps_is_refused():
    """A file of arrays says nothing of sampling: poisson steps restored as allocation would cost another epsilon."""
    saved = record_step(init_ledger(2, STEP), 1.0, 0.1, 0.0)
    template = init_ledger(2, AllocationEvent(1.0, 10))
    restored = jax.tree.unflatten(jax.tree.structure(template), jax.tree.leaves(saved))
    with pytest.raises(ValueError, match="recorded for other steps than AllocationEvent"):
        ledger_from_state(restored)


def test_a_sum_of_overflows_never_stands_still():
    """Each addition is rounded up by one float at least, however large the sum is beside it."""
    state = init_ledger(4, STEP)._replace(extra_delta=np.float32(0.5))
    later = record_step(state, 1.0, 0.1, 1e-12)
    assert later.extra_delta > state.extra_delta
    assert record_step(state, 1.0, 0.1, 0.0).extra_delta == state.extra_delta


def test_a_ledger_states_its_certified_epsilon():
    """What was run, the unit, the neighbours and both ends, rounded outward, are in the sentences."""
    ledger = Ledger([Event(1.3, 0.01, 100), GaussianEvent(20.0, 2), LaplaceEvent(0.1)])
    statement = ledger.statement(unit="patient", delta=1e-6)
    bounds = epsilon_bounds(ledger, delta=1e-6)
    upper = re.search(r"delta = 1e-06 and epsilon <= ([\d.]+) \(the best epsilon lies in (.*?)\)", statement)
    assert bounds.upper <= float(upper[1]) <= bounds.upper * 1.001
    assert upper[2] == str(bounds)
    assert "noise multiplier 1.3, sampling probability 0.01, 100 steps; 2 Gaussian releases, noise mult" in statement
    assert "differ by adding or removing one patient (ADD_OR_REMOVE_ONE)" in statement


def test_statements_of_unusual_ledgers():
    """Nothing, a run without noise, and mixed neighbours are not given an epsilon; many events are counted."""
    stated = {"unit": "example", "delta": 1e-5}
    assert Ledger().statement(**stated) == "Released: nothing."
    assert "THIS IS NOT PRIVATE" in Ledger([Event(0.0, 0.1, 3)]).statement(**stated)
    twice = Ledger([GaussianEvent(5.0), GaussianEvent(5.0), GaussianEvent(9.0)]).describe()
    assert twice == "2 times: Gaussian release, noise multiplier 5; Gaussian release, noise multiplier 9"
    many = Ledger([Event(2.0 + step, 0.01, 1) for step in range(20)])
    assert many.statement(**stated).startswith("Released: 20 events of 20 steps (Event). All of it")
    with pytest.raises(ValueError, match="share one neighboring relation"):
        Ledger([GaussianEvent(2.0), GaussianEvent(2.0, 1, NeighboringRelation.REPLACE_ONE)]).statement(**stated)
    with pytest.raises(ValueError, match="delta"):
        many.statement(unit="example", delta=0.0)
