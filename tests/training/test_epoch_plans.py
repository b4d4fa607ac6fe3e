"""Plans of random allocation and of shuffled batches, their statements, and the targets that they meet."""

import pytest

import gdpjax
from gdpjax.ledger import AllocationEvent, ShuffledEvent
from gdpjax.sampling import RandomAllocation, Shuffled
from gdpjax.training import Plan, make_plan

N = 60
SHUFFLED = Shuffled(N, 9, epochs=3)
ALLOCATION = RandomAllocation(N, 9, epochs=3)
TWICE = RandomAllocation(N, 17, epochs=3, num_selected=2)
"""Seven steps an epoch, of which every example has two."""
TARGETED = dict(clip=1.0, delta=1e-5)
PLAN = TARGETED | dict(noise_multiplier=2.0)
RELATION = gdpjax.NeighboringRelation


def assert_survives_json(plan):
    again = Plan.from_json(plan.to_json())
    assert (again, again.event) == (plan, plan.event)


def test_a_plan_of_allocation():
    """Steps, probability, event and capacity follow from the batch size and the number of selected steps."""
    plan = make_plan(TWICE, **PLAN)
    assert (plan.batches.steps_per_epoch, plan.num_steps, plan.sampling_prob) == (7, 21, 2 / 7)
    assert plan.event == AllocationEvent(2.0, 7, 3, 2, overflow=plan.overflow, announced=True)
    assert 0 < plan.overflow <= 1e-8
    assert plan.capacity <= N + 8
    assert_survives_json(plan)
    fixed = plan.replace(bins="fixed")
    assert fixed.event.bins == "fixed"
    assert fixed.epsilon_bounds().upper != plan.epsilon_bounds().upper


@pytest.mark.parametrize("relation", [None, RELATION.REPLACE_ONE, RELATION.ADD_OR_REMOVE_ONE])
def test_a_plan_of_shuffled_batches(relation):
    """Steps, batch size and event follow from the expected batch size and the relation."""
    plan = make_plan(SHUFFLED, **PLAN, neighboring_relation=relation)
    assert (SHUFFLED.steps_per_epoch, plan.num_steps, plan.sampling_prob, plan.capacity) == (7, 21, 1 / 7, 9)
    assert plan.event == ShuffledEvent(2.0, 7, 3, relation or RELATION.REPLACE_SPECIAL, overflow=plan.overflow)
    assert 0 < plan.overflow < 1e-30
    assert plan.num_examples_is_public == (relation is not RELATION.ADD_OR_REMOVE_ONE)
    assert_survives_json(plan)


def test_the_statement_of_allocation_says_what_is_done(monkeypatch):
    """The statement describes random allocation in words; its figures are tested elsewhere."""
    monkeypatch.setattr(Plan, "mu_bounds", lambda self: gdpjax.Bounds(0.1, 0.2))
    monkeypatch.setattr(Plan, "epsilon_bounds", lambda self: gdpjax.Bounds(0.3, 0.4))
    text = " ".join(make_plan(TWICE, **PLAN).statement().split())
    assert "random allocation: every example takes part in exactly 2 steps, one in each of as many blocks" in text
    assert "of the 7 steps of an epoch" in text
    assert "in each epoch anew; 21 steps in 3 epochs" in text
    assert "in which case training stops" in text
    one = " ".join(make_plan(ALLOCATION.replace(bins="fixed"), **PLAN, unit="user").statement().split())
    assert "every user takes part in exactly one step of the 7 steps of an epoch" in one
    assert "independently of other users, once for all epochs" in one
    assert "Poisson" not in one.split("Sampling:")[1].split(";")[0]


def test_the_statement_of_shuffled_batches_says_what_is_done_and_what_is_not_known():
    """By its sentences about sampling; the figures are those of the plan."""
    text = SHUFFLED.describe("example", RELATION.REPLACE_SPECIAL, is_correlated=False)
    assert text in make_plan(SHUFFLED, **PLAN).statement().splitlines()
    assert "the 60 examples are permuted, in each epoch anew, and cut into 7 batches of 8 or 9" in text
    assert "every example takes part in exactly one step of an epoch; 21 steps in 3 epochs" in text
    assert "without amplification by sampling, one release an epoch; no better ones are proved" in text
    users = make_plan(SHUFFLED, **PLAN, unit="user", neighboring_relation=RELATION.ADD_OR_REMOVE_ONE)
    assert "the 60 users, null users among them, are permuted" in users.statement()


@pytest.mark.parametrize(
    ("batches", "target", "least"),
    [
        (SHUFFLED, {"epsilon": 3.0}, 0.0),
        (SHUFFLED, {"mu": 0.5}, 0.0),
        (ALLOCATION, {"epsilon": 1.0}, 0.98),
        pytest.param(ALLOCATION, {"mu": 0.5}, 0.98, marks=pytest.mark.slow),
    ],
)
def test_a_plan_meets_its_target(batches, target, least):
    """The upper end is the target, and that of the lower end is known where amplification is proved."""
    plan = make_plan(batches, **TARGETED, **target)
    found = plan.epsilon_bounds() if "epsilon" in target else plan.mu_bounds()
    (aim,) = target.values()
    assert 0.999 * aim < found.upper <= aim
    assert found.lower > least * aim
    assert plan.is_private
    if batches is SHUFFLED and "mu" in target:  # a run of epochs is one Gaussian release an epoch
        assert plan.noise_multiplier == pytest.approx(3**0.5 / aim, rel=1e-4)
