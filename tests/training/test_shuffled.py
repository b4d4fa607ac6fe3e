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
    Info,
    Plan,
    _run,
    batch_source,
    group_by_user,
    make_plan,
    private_training,
    resume_run,
    start_run,
)
from tests.training.interrupted import committed, finished, interrupted

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


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"epochs": 1.5}, "epochs"),
        ({"epochs": None, "num_steps": 10}, "whole epochs, of 7 steps each"),
        ({"capacity": 20}, "every batch has at most 9 rows: leave capacity out"),
        ({"order": "random"}, "order"),
        ({"expected_batch_size": 0.5}, r"is that the sampling probability\?"),
    ],
)
def test_bad_batches(changes, message):
    """Batches of no whole epochs, or with a field out of range, are refused."""
    with pytest.raises(ValueError, match=message):
        Shuffled(**dict(num_examples=N, expected_batch_size=9, epochs=3) | changes)


def test_groups_are_refused():
    with pytest.raises(ValueError, match="group_size > 1"):
        make_plan(BATCHES, **PLAN, group_size=2)


@pytest.mark.parametrize("n", [N, 41])
def test_every_example_takes_part_once_an_epoch(padded, n):
    """The loop draws what is accounted for, also of fewer examples than the plan covers."""
    training, x = padded
    state, info = training.run_steps(training.init(PARAMS, KEY), training.place(x[:n], x[:n, 0]), 28)
    assert state.finished
    taken = times_taken([info], n)
    assert (taken.sum(axis=1) == 1).all()
    assert (taken[0] != taken[1]).any()
    (event,) = gdpjax.ledger_of(state.opt_state).events
    expected = ShuffledEvent(2.0, 7, 4, RELATION.ADD_OR_REMOVE_ONE, overflow=event.overflow)
    assert event == expected
    assert training.plan.overflow * 0.999999 <= event.overflow <= training.plan.overflow * 1.0001

    # A loader draws the same batches on the host.
    norms, paddings = np.asarray(info.norms), np.asarray(info.is_padding)
    source = batch_source(training.plan, state, n)
    assert len(source) == 28
    for t in range(28):
        indices, is_padding = source[t]
        np.testing.assert_array_equal(indices[~is_padding], rows_of(norms[t], paddings[t]))


@pytest.mark.slow
def test_users_take_part_whole():
    """A user is an example: all of the user's rows are in one batch of an epoch."""
    plan = make_plan(BATCHES, **PLAN, unit="user", neighboring_relation=RELATION.ADD_OR_REMOVE_ONE)
    x = np.ones((90, D), np.float32)
    (x,), missing = group_by_user(np.arange(90) % 30, x, max_per_user=3, key=KEY)

    def loss_of_user(params, x, is_missing):
        return jnp.sum(jnp.where(is_missing, 0.0, x @ params["w"]))

    training = private_training(plan, loss_of_user, optax.sgd(0.1))
    state, info = training.run_steps(training.init(PARAMS, KEY), training.place(x, missing), 21)
    assert state.finished
    sizes = (~np.asarray(info.is_padding)).sum(axis=1).reshape(3, 7)
    assert (sizes.sum(axis=1) == 30).all()
    assert (sizes[0] != sizes[1]).any()


# A run in a folder.


def test_on_another_machine_no_example_takes_part_twice_in_an_epoch(padded, tmp_path, monkeypatch):
    """The lost steps are charged and left out, the noise has a new key, and the permutations stay."""
    training, x = padded
    parts = training, PARAMS, training.place(x, x[:, 0])
    key = jax.random.key(72)
    kept = interrupted(parts, tmp_path / "run", 12, 5, key)
    environment = _run.environment
    monkeypatch.setattr(_run, "environment", lambda: environment() | {"cpu": "another"})
    run = resume_run(tmp_path / "run", *parts, scan=False)
    assert (run.step, run.num_lost) == (15, 5)
    (event,) = run.ledger.events
    assert (event.num_epochs, event.missing_steps, event.num_steps) == (3, 6, 15)
    rest = finished(run)
    # The lost steps, drawn once more on the host, take the place of what was not kept.
    source = batch_source(training.plan, training.init(PARAMS, key), N)
    lost = []
    for t in range(10, 15):
        indices, is_padding = source[t]
        lost.append(Info(None, np.linalg.norm(x[indices], axis=1), is_padding, None))
    assert (times_taken(kept + lost + rest, N).sum(axis=1) == 1).all()
    (event,) = run.ledger.events
    assert (event.num_epochs, event.missing_steps) == (4, 0)


def test_with_rows_that_moved_it_does_not_go_on(padded, tmp_path):
    """An example at another row might take part twice in an epoch."""
    training, x = padded
    parts = training, PARAMS, training.place(x, x[:, 0])
    committed(start_run(tmp_path / "run", *parts, key=KEY, scan=False)).advance(5)
    with pytest.raises(ValueError, match="the step of an example belongs to its row"):
        resume_run(tmp_path / "run", training, PARAMS, training.place(x[::-1], x[:, 0]), scan=False)
