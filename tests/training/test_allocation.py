"""A plan of random allocation, its statement, its loop, and a run that is killed in the middle of an epoch."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import gdpjax
from gdpjax.ledger import AllocationEvent
from gdpjax.sampling import RandomAllocation
from gdpjax.training import (
    Info,
    Plan,
    batch_source,
    make_plan,
    private_training,
)

N, D = 60, 3
BATCHES = RandomAllocation(N, 9, epochs=3)
TWICE = RandomAllocation(N, 17, epochs=3, num_selected=2)
"""Seven steps an epoch, of which every example has two."""
FOUR_EPOCHS = BATCHES.replace(epochs=4)
PLAN = dict(clip=1.0, delta=1e-5, noise_multiplier=2.0)
PARAMS = {"w": jnp.zeros(D)}
KEY = jax.random.key(1)


def loss(params, x, y):
    """Return half the squared residual."""
    return 0.5 * (x @ params["w"] - y) ** 2


def rows(n=N, seed=0):
    """Return n examples, of which the first m are the same for every n >= m."""
    x = np.random.default_rng(seed).normal(size=(N, D)).astype(np.float32)
    return x[:n], x[:n].sum(axis=1)


@functools.cache
def built(batches, **changes):
    """Return a training, which is compiled once for all tests."""
    return private_training(make_plan(batches, **PLAN | changes), loss, optax.sgd(0.1, momentum=0.9))


@pytest.fixture(scope="module")
def training():
    """Return a training on batches of which every example has two an epoch."""
    return built(TWICE)


def linear(params, x, y):
    """Return a loss whose gradient does not depend on the parameters."""
    return params["w"] @ x


@functools.cache
def numbered(batches):
    """Return a training, compiled once for all tests, and data whose gradients have the row numbers as norms."""
    training = private_training(make_plan(batches, **PLAN), linear, optax.sgd(0.1))
    return training, np.outer(np.arange(1, N + 1), [1, 0, 0]).astype(np.float32)


def rows_of(norms, is_padding):
    """Return the numbers of the rows of a batch, of the data of `numbered`."""
    return np.rint(norms[~is_padding]).astype(int) - 1


def times_taken(plan, infos, num_rows):
    """Return how often each row took part in each step, [epochs, steps, rows], by the `Info` of the steps."""
    norms = np.concatenate([np.atleast_2d(info.norms) for info in infos])
    is_padding = np.concatenate([np.atleast_2d(info.is_padding) for info in infos])
    taken = np.zeros((len(norms), num_rows), int)
    for step in range(len(norms)):
        np.add.at(taken[step], rows_of(norms[step], is_padding[step]), 1)
    return taken.reshape(-1, plan.batches.steps_per_epoch, num_rows)


def test_the_plan(training):
    """Steps, probability, event and capacity follow from the batch size and the number of selected steps."""
    plan = training.plan
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


def test_the_statement_says_what_is_done(training, monkeypatch):
    """The statement describes random allocation in words; its figures are tested elsewhere."""
    monkeypatch.setattr(Plan, "mu_bounds", lambda self: gdpjax.Bounds(0.1, 0.2))
    monkeypatch.setattr(Plan, "epsilon_bounds", lambda self: gdpjax.Bounds(0.3, 0.4))
    text = " ".join(training.plan.statement().split())
    assert "random allocation: every example takes part in exactly 2 steps, one in each of as many blocks" in text
    assert "of the 7 steps of an epoch" in text
    assert "in each epoch anew; 21 steps in 3 epochs" in text
    assert "in which case training stops" in text
    one = " ".join(built(BATCHES.replace(bins="fixed"), unit="user").plan.statement().split())
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


# A run in a folder.


@pytest.fixture(scope="module")
def parts():
    """Return training, parameters and data of a run of four epochs of seven steps, of numbered rows."""
    training, x = numbered(FOUR_EPOCHS)
    return training, PARAMS, training.place(x, x[:, 0])


def lost_batches(training, x, state, steps):
    """Return the batches of some steps, drawn once more on the host, as `Info`."""
    source = batch_source(training.plan, state, N)
    infos = []
    for t in steps:
        indices, is_padding = source[t]
        infos.append(Info(None, np.linalg.norm(x[indices], axis=1), is_padding, None))
    return infos
