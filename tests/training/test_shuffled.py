"""A plan of shuffled batches, its statement, and the target that it meets."""

import numpy as np
import pytest

import gdpjax
from gdpjax.accounting import gdp_epsilon
from gdpjax.ledger import ShuffledEvent
from gdpjax.sampling import Shuffled
from gdpjax.training import Plan, make_plan

N, D = 60, 3
BATCHES = Shuffled(N, 9, epochs=3)
PLAN = dict(clip=1.0, delta=1e-5, noise_multiplier=2.0)
RELATION = gdpjax.NeighboringRelation


@pytest.mark.parametrize("relation", [None, RELATION.REPLACE_ONE, RELATION.ADD_OR_REMOVE_ONE])
def test_the_plan(relation):
    """Steps, batch size and event follow from the expected batch size and the relation."""
    plan = make_plan(BATCHES, **PLAN, neighboring_relation=relation)
    assert (BATCHES.steps_per_epoch, plan.num_steps, plan.sampling_prob, plan.capacity) == (7, 21, 1 / 7, 9)
    assert plan.event == ShuffledEvent(2.0, 7, 3, relation or RELATION.REPLACE_SPECIAL, overflow=plan.overflow)
    assert 0 < plan.overflow < 1e-30
    assert plan.num_examples_is_public == (relation is not RELATION.ADD_OR_REMOVE_ONE)
    again = Plan.from_json(plan.to_json())
    assert (again, again.event) == (plan, plan.event)


def test_the_statement_says_what_is_done_and_what_is_not_known():
    """By its sentences about sampling; the figures are those of the plan."""
    text = BATCHES.describe("example", RELATION.REPLACE_SPECIAL, is_correlated=False)
    assert text in make_plan(BATCHES, **PLAN).statement().splitlines()
    assert "the 60 examples are permuted, in each epoch anew, and cut into 7 batches of 8 or 9" in text
    assert "every example takes part in exactly one step of an epoch; 21 steps in 3 epochs" in text
    assert "without amplification by sampling, one release an epoch; no better ones are proved" in text
    users = make_plan(BATCHES, **PLAN, unit="user", neighboring_relation=RELATION.ADD_OR_REMOVE_ONE)
    assert "the 60 users, null users among them, are permuted" in users.statement()


@pytest.mark.parametrize("target", [{"epsilon": 3.0}, {"mu": 0.5}])
def test_a_plan_meets_its_target_by_the_upper_end(target):
    """A run of epochs is one Gaussian release an epoch."""
    given = {name: value for name, value in PLAN.items() if name != "noise_multiplier"}
    plan = make_plan(BATCHES, **given, **target)
    mu = np.sqrt(3) / plan.noise_multiplier
    (aim,) = target.values()
    found = gdp_epsilon(1e-5, mu) if "epsilon" in target else mu
    assert 0.9999 * aim < found <= aim * (1 + 1e-9)
    assert plan.is_private
