"""A mechanism's event has its curve, and a ledger takes plans, mechanisms and events side by side."""

import jax
import numpy as np
import pytest

import gdpjax
from gdpjax import Event, Ledger, NeighboringRelation
from gdpjax.accounting import certified, epsilon_bounds
from gdpjax.ledger import ApproximateDPEvent, GaussianEvent, LaplaceEvent, RandomizedResponseEvent
from gdpjax.mechanisms import (
    DiscreteLaplaceMechanism,
    GaussianMechanism,
    LaplaceMechanism,
    PoissonSubsampled,
    RandomizedResponse,
)
from gdpjax.sampling import Poisson

EVENTS = [
    (GaussianMechanism(2.0), GaussianEvent(2.0)),
    (LaplaceMechanism(0.5), LaplaceEvent(0.5)),
    (RandomizedResponse(0.5), RandomizedResponseEvent(0.5)),
    (RandomizedResponse(0.5, 5), RandomizedResponseEvent(0.5, 5)),
    (DiscreteLaplaceMechanism(0.5), ApproximateDPEvent(0.5, 0.0)),
    (PoissonSubsampled(GaussianMechanism(1.5), 0.25), Event(1.5, 0.25, 1)),
]
each_event = pytest.mark.parametrize(("mechanism", "event"), EVENTS, ids=lambda value: type(value).__name__)


@each_event
def test_the_event_of_a_mechanism_has_its_curve(mechanism, event):
    assert mechanism.event() == event
    bracket = certified(mechanism.event()).delta(0.3)
    assert bracket.lower * (1 - 1e-9) <= mechanism.delta(0.3) <= bracket.upper * (1 + 1e-9)
    assert bracket.upper < bracket.lower * (1 + 1e-3)


@each_event
def test_several_releases_under_another_relation(mechanism, event):
    relation = NeighboringRelation.REPLACE_SPECIAL
    several = mechanism.event(3, neighboring_relation=relation)
    assert (type(several), several.num_steps, several.neighboring_relation) == (type(event), 3, relation)


def test_a_traced_parameter_has_no_event():
    with pytest.raises(ValueError, match="known before compiling"):
        jax.jit(lambda noise: GaussianMechanism(noise).event().noise_multiplier)(2.0)


def test_plans_mechanisms_and_events_add_up():
    plan = gdpjax.make_plan(Poisson(1000, 50, 40), clip=1.0, delta=1e-5, noise_multiplier=2.0)
    ledger = Ledger([plan, GaussianMechanism(20.0), LaplaceMechanism(0.01).event(2)])
    assert ledger.events == (plan.event, GaussianEvent(20.0), LaplaceEvent(0.01, 2))
    both = epsilon_bounds(ledger, delta=1e-5)
    assert plan.epsilon_bounds().upper < both.lower
    assert Ledger([plan]).add(GaussianMechanism(20.0)) == Ledger([plan, GaussianMechanism(20.0)])


@pytest.mark.parametrize("wrong", [GaussianMechanism, Event, "plan", 1.0, np.zeros(3)])
def test_other_things_are_refused(wrong):
    with pytest.raises(ValueError, match=r"a Ledger holds events such as gdpjax\.Event, plans, mechanisms, got"):
        Ledger([wrong])


def test_a_plan_for_groups_is_refused():
    sizes = dict(max_examples=1000, expected_batch_size=50, num_steps=40)
    plan = gdpjax.make_plan(**sizes, clip=1.0, delta=1e-5, noise_multiplier=2.0, group_size=2)
    with pytest.raises(ValueError, match="single units, got a plan for groups of 2"):
        Ledger([plan])
