"""Runs on shuffled batches: the plan, its statement, the loop, and a run that is killed in the middle of an epoch."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import gdpjax
from gdpjax.accounting import gdp_epsilon
from gdpjax.ledger import ShuffledEvent
from gdpjax.sampling import Shuffled
from gdpjax.training import (
    Plan,
    make_plan,
    private_training,
)

N, D = 60, 3
BATCHES = Shuffled(N, 9, epochs=3)
PLAN = dict(clip=1.0, delta=1e-5, noise_multiplier=2.0)
PARAMS = {"w": jnp.zeros(D)}
KEY = jax.random.key(71)
RELATION = gdpjax.NeighboringRelation


@pytest.fixture(scope="module")
def padded():
    """A training of seven steps an epoch, of a private number of examples, and data that it is given.

    Gradients do not depend on the parameters, and their norms are the numbers of the rows.
    """
    plan = make_plan(BATCHES.replace(epochs=4), **PLAN, neighboring_relation=RELATION.ADD_OR_REMOVE_ONE)
    training = private_training(plan, lambda params, x, y: params["w"] @ x, optax.sgd(0.1))
    return training, np.outer(np.arange(1, N + 1), [1, 0, 0]).astype(np.float32)


def rows_of(norms, is_padding):
    """Return the numbers of the rows of a batch."""
    return np.rint(norms[~is_padding]).astype(int) - 1


def times_taken(infos, num_rows, steps=7):
    """Return how often each row took part in each step, [epochs, steps, rows], by the `Info` of the steps."""
    norms = np.concatenate([np.atleast_2d(info.norms) for info in infos])
    is_padding = np.concatenate([np.atleast_2d(info.is_padding) for info in infos])
    taken = np.zeros((len(norms), num_rows), int)
    for step in range(len(norms)):
        np.add.at(taken[step], rows_of(norms[step], is_padding[step]), 1)
    return taken.reshape(-1, steps, num_rows)


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


# A run in a folder.
