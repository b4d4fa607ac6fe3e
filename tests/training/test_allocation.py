"""A plan of random allocation, its statement, and the target that it meets."""

import pytest

import gdpjax
from gdpjax.ledger import AllocationEvent
from gdpjax.sampling import RandomAllocation
from gdpjax.training import Plan, make_plan

N = 60
BATCHES = RandomAllocation(N, 9, epochs=3)
TWICE = RandomAllocation(N, 17, epochs=3, num_selected=2)
"""Seven steps an epoch, of which every example has two."""
PLAN = dict(clip=1.0, delta=1e-5, noise_multiplier=2.0)


def test_the_plan():
    """Steps, probability, event and capacity follow from the batch size and the number of selected steps."""
    plan = make_plan(TWICE, **PLAN)
    assert (plan.batches.steps_per_epoch, plan.num_steps, plan.sampling_prob) == (7, 21, 2 / 7)
    expected = AllocationEvent(2.0, 7, 3, 2, overflow=plan.overflow, announced=True)
    assert plan.event == expected
    assert 0 < plan.overflow <= 1e-8
    assert plan.capacity <= N + 8
    again = Plan.from_json(plan.to_json())
    assert (again, again.event) == (plan, plan.event)
    fixed = plan.replace(bins="fixed")
    assert fixed.event.bins == "fixed"
    assert fixed.epsilon_bounds().upper != plan.epsilon_bounds().upper


def test_the_statement_says_what_is_done(monkeypatch):
    """The statement describes random allocation in words; its figures are tested elsewhere."""
    monkeypatch.setattr(Plan, "mu_bounds", lambda self: gdpjax.Bounds(0.1, 0.2))
    monkeypatch.setattr(Plan, "epsilon_bounds", lambda self: gdpjax.Bounds(0.3, 0.4))
    text = " ".join(make_plan(TWICE, **PLAN).statement().split())
    assert "random allocation: every example takes part in exactly 2 steps, one in each of as many blocks" in text
    assert "of the 7 steps of an epoch" in text
    assert "in each epoch anew; 21 steps in 3 epochs" in text
    assert "in which case training stops" in text
    one = " ".join(make_plan(BATCHES.replace(bins="fixed"), **PLAN, unit="user").statement().split())
    assert "every user takes part in exactly one step of the 7 steps of an epoch" in one
    assert "independently of other users, once for all epochs" in one
    assert "Poisson" not in one.split("Sampling:")[1].split(";")[0]


@pytest.mark.parametrize("target", [{"epsilon": 1.0}, pytest.param({"mu": 0.5}, marks=pytest.mark.slow)])
def test_a_plan_meets_its_target(target):
    """The upper end is the target, and the lower end is close to it."""
    given = {name: value for name, value in PLAN.items() if name != "noise_multiplier"}
    plan = make_plan(BATCHES, **given, **target)
    found = plan.epsilon_bounds() if "epsilon" in target else plan.mu_bounds()
    (aim,) = target.values()
    assert 0.999 * aim < found.upper <= aim
    assert found.lower > 0.98 * aim
    assert plan.is_private
