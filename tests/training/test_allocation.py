"""A plan of random allocation, its statement, its loop, and a run that is killed in the middle of an epoch."""

import dataclasses
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


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"group_size": 2}, "group_size > 1"),
        ({"neighboring_relation": gdpjax.NeighboringRelation.REPLACE_ONE}, "proved bound under"),
        ({"num_steps": 21}, "batches= says how batches are drawn: leave num_steps out"),
        ({"num_selected": 2}, "no argument 'num_selected'"),
    ],
)
def test_bad_plans(changes, message):
    """What random allocation does not have, and what its batches already say, is refused."""
    with pytest.raises(ValueError, match=message):
        make_plan(BATCHES, **PLAN | changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"epochs": 1.5}, "epochs"),
        ({"num_steps": 10}, "whole epochs, of 7 steps each"),
        ({"bins": "poisson"}, "bins"),
        ({"num_selected": 0}, "num_selected"),
    ],
)
def test_bad_batches(changes, message):
    """Batches of no whole epochs, or with a field out of range, are refused."""
    length = {} if "num_steps" in changes else {"epochs": 3}
    with pytest.raises(ValueError, match=message):
        RandomAllocation(N, 9, **length | changes)


def test_a_batch_above_the_capacity_stops_the_run(training, monkeypatch):
    """A batch above the capacity is announced, and nothing of it is trained on."""
    drawn = jax.jit(lambda key: TWICE.sample(key, 0))(KEY)
    too_many = dataclasses.replace(drawn, count=jnp.int32(TWICE.capacity + 1))
    monkeypatch.setattr(RandomAllocation, "sample", lambda *_, **__: too_many)
    other = built(TWICE, noise_multiplier=2.5)
    state, _ = other.step(other.init(PARAMS, KEY), other.place(*rows()))
    assert state.overflowed
    np.testing.assert_array_equal(state.params["w"], PARAMS["w"])


def test_extreme_batch_sizes():
    """A batch may hold all examples, and an epoch may have as many steps as examples."""
    everyone = make_plan(BATCHES.replace(expected_batch_size=N, epochs=3), **PLAN)
    assert (everyone.batches.steps_per_epoch, everyone.sampling_prob) == (1, 1.0)
    assert everyone.capacity > N
    single = make_plan(BATCHES.replace(expected_batch_size=1, epochs=1), **PLAN)
    assert single.batches.steps_per_epoch == N
    assert single.overflow <= 1e-8


@pytest.mark.parametrize("n", [N, 41])
def test_every_example_takes_part_in_exactly_its_steps(n):
    """The loop draws what is accounted for, also of fewer examples than the plan covers."""
    training, x = numbered(TWICE)
    plan = training.plan
    state, info = training.run_steps(training.init(PARAMS, KEY), training.place(x[:n], x[:n, 0]), plan.num_steps)
    assert state.finished
    taken = times_taken(plan, [info], n)
    # One step of the first four of an epoch, and one of the other three.
    assert (taken[:, :4].sum(axis=1) == 1).all()
    assert (taken[:, 4:].sum(axis=1) == 1).all()
    assert (taken[0] != taken[1]).any()
    (event,) = gdpjax.ledger_of(state.opt_state).events
    assert plan.overflow * 0.999999 <= event.overflow <= plan.overflow * 1.0001
    assert event == AllocationEvent(2.0, 7, 3, 2, overflow=event.overflow, announced=True)

    # A loader draws the same batches on the host.
    norms, paddings = np.asarray(info.norms), np.asarray(info.is_padding)
    source = batch_source(plan, state, n)
    assert len(source) == plan.num_steps
    for t in range(plan.num_steps):
        indices, is_padding = source[t]
        np.testing.assert_array_equal(indices[~is_padding], rows_of(norms[t], paddings[t]))


def test_fixed_bins_repeat_the_epoch():
    """Every example has the same step in all epochs."""
    training, x = numbered(BATCHES.replace(bins="fixed"))
    _, info = training.run_steps(training.init(PARAMS, KEY), training.place(x, x[:, 0]), 21)
    taken = times_taken(training.plan, [info], N)
    assert (taken == taken[0]).all()
    assert (taken.sum(axis=1) == 1).all()


def test_users_take_part_whole():
    """A user is an example: all of the user's rows are in one batch of an epoch."""
    plan = make_plan(BATCHES, **PLAN, unit="user")
    ids = np.arange(90) % 30
    x = rows()[0].repeat(2, axis=0)[:90]
    (x,), missing = group_by_user(ids, x, max_per_user=3, key=KEY)

    def loss_of_user(params, x, is_missing):
        return jnp.sum(jnp.where(is_missing, 0.0, x @ params["w"]))

    training = private_training(plan, loss_of_user, optax.sgd(0.1))
    state, info = training.run_steps(training.init(PARAMS, KEY), training.place(x, missing), 21)
    assert state.finished
    sizes = (~np.asarray(info.is_padding)).sum(axis=1).reshape(3, 7)
    assert (sizes.sum(axis=1) == 30).all()
    assert (sizes[0] != sizes[1]).any()
    (event,) = gdpjax.ledger_of(state.opt_state).events
    assert (event.num_epochs, event.missing_steps) == (3, 0)


# A run in a folder.


@pytest.fixture(scope="module")
def parts():
    """Return training, parameters and data of a run of four epochs of seven steps, of numbered rows."""
    training, x = numbered(FOUR_EPOCHS)
    return training, PARAMS, training.place(x, x[:, 0])


def test_killed_in_the_middle_of_an_epoch_it_goes_on_bit_for_bit(parts, tmp_path):
    """Parameters, optimizer state and ledger are those of a run that was not killed."""
    key = jax.random.key(20)
    whole = start_run(tmp_path / "whole", *parts, key=key, scan=False)
    infos = finished(whole)
    assert (times_taken(parts[0].plan, infos, N).sum(axis=1) == 1).all()
    interrupted(parts, tmp_path / "run", 12, 5, key)
    run = resume_run(tmp_path / "run", *parts, scan=False)
    (event,) = run.ledger.events
    assert (event.num_epochs, event.missing_steps, event.num_steps) == (2, 4, 10)
    finished(run)
    ours = jax.tree.leaves((run.state.params, run.state.opt_state))
    theirs = jax.tree.leaves((whole.state.params, whole.state.opt_state))
    for one, other in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(one, other)
    assert run.ledger == whole.ledger


def lost_batches(training, x, state, steps):
    """Return the batches of some steps, drawn once more on the host, as `Info`."""
    source = batch_source(training.plan, state, N)
    infos = []
    for t in steps:
        indices, is_padding = source[t]
        infos.append(Info(None, np.linalg.norm(x[indices], axis=1), is_padding, None))
    return infos


def test_on_another_machine_no_example_takes_part_twice_in_an_epoch(parts, tmp_path, monkeypatch):
    """The lost steps are charged and left out, the noise has a new key, and the steps of the examples stay."""
    training, x = numbered(FOUR_EPOCHS)
    key = jax.random.key(21)
    kept = interrupted(parts, tmp_path / "run", 12, 5, key)
    environment = _run.environment
    monkeypatch.setattr(_run, "environment", lambda: environment() | {"cpu": "another"})
    run = resume_run(tmp_path / "run", *parts, scan=False)
    assert (run.step, run.num_lost) == (15, 5)
    before = training.init(PARAMS, key)
    sampling_keys = [jax.random.key_data(state.sampling_key) for state in (run.state, before)]
    np.testing.assert_array_equal(*sampling_keys)
    assert not np.array_equal(run.state.opt_state[0].key_data, before.opt_state[0].key_data)
    rest = finished(run)
    assert (len(kept), len(rest)) == (10, 13)
    # The lost steps take the place of what was not kept.
    lost = lost_batches(training, x, before, range(10, 15))
    assert (times_taken(training.plan, kept + lost + rest, N).sum(axis=1) == 1).all()
    (event,) = run.ledger.events
    assert (event.num_epochs, event.missing_steps) == (4, 0)


def test_with_rows_that_moved_it_does_not_go_on(parts, tmp_path):
    """An example at another row might take part twice in an epoch."""
    training, params, _ = parts
    run = committed(start_run(tmp_path / "run", *parts, key=jax.random.key(22), scan=False))
    run.advance(5)
    _, x = numbered(FOUR_EPOCHS)
    moved = training.place(x[::-1], x[::-1, 0])
    with pytest.raises(ValueError, match="the step of an example belongs to its row"):
        resume_run(tmp_path / "run", training, params, moved, scan=False)
    assert resume_run(tmp_path / "run", *parts, scan=False).step == 5
