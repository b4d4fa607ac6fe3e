"""Runs of random allocation: the plan, its statement, the loop, and a run that is killed in the middle of an epoch."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import gdpjax
from gdpjax.ledger import AllocationEvent
from gdpjax.sampling import allocation_sample
from gdpjax.training import (
    FINISHED,
    OVERFLOWED,
    Info,
    Plan,
    _loop,
    _run,
    batch_source,
    group_by_user,
    make_plan,
    num_steps_done,
    private_training,
    resume_run,
    start_run,
)
from tests.training.interrupted import finished, interrupted

N, D = 60, 3
PLAN = dict(
    clip=1.0, max_examples=N, expected_batch_size=9, epochs=3, delta=1e-5, noise_multiplier=2.0, sampling="allocation"
)
PARAMS = {"w": jnp.zeros(D)}
KEY = jax.random.key(1)


def loss(params, x, y):
    """Least squares."""
    return 0.5 * (x @ params["w"] - y) ** 2


def rows(n=N, seed=0):
    """n examples, of which the first m are the same for every n >= m."""
    x = np.random.default_rng(seed).normal(size=(N, D)).astype(np.float32)
    return x[:n], x[:n].sum(axis=1)


@functools.cache
def built(**changes):
    """Return a training, which is compiled once for all tests."""
    return private_training(make_plan(**PLAN | changes), loss, optax.sgd(0.1, momentum=0.9))


@pytest.fixture(scope="module")
def training():
    """Seven steps an epoch, of which every example has two."""
    return built(num_selected=2, expected_batch_size=17)


@functools.cache
def numbered(**changes):
    """A training whose gradients do not depend on the parameters, and data whose norms are the numbers of rows."""
    training = private_training(make_plan(**PLAN | changes), lambda params, x, y: params["w"] @ x, optax.sgd(0.1))
    return training, np.outer(np.arange(1, N + 1), [1, 0, 0]).astype(np.float32)


def times_taken(plan, infos, num_rows):
    """How often each row took part in each step, [epochs, steps, rows], of the steps of some `Info`."""
    norms, is_padding = (
        np.concatenate([np.atleast_2d(getattr(info, name)) for info in infos]) for name in ("norms", "is_padding")
    )
    taken = np.zeros((len(norms), num_rows), int)
    for step, (batch, padding) in enumerate(zip(norms, is_padding, strict=True)):
        np.add.at(taken[step], np.rint(batch[~padding]).astype(int) - 1, 1)
    return taken.reshape(-1, plan.steps_per_epoch, num_rows)


def test_the_plan(training):
    plan = training.plan
    assert (plan.steps_per_epoch, plan.max_steps, plan.sampling_prob) == (7, 21, 2 / 7)
    expected = AllocationEvent(2.0, 7, 3, 2, overflow=plan.overflow, announced=True)
    assert plan.event == expected
    assert 0 < plan.overflow <= 1e-8
    assert plan.capacity <= N + 8
    again = Plan.from_json(plan.to_json())
    assert (again, again.event) == (plan, plan.event)
    fixed = plan.replace(bins="fixed")
    assert fixed.event.bins == "fixed"
    assert fixed.epsilon_bounds().upper != plan.epsilon_bounds().upper
    poisson = plan.replace(sampling="poisson", num_selected=1)
    assert not {"num_selected", "bins"} & set(poisson.to_json().split('"'))  # as plans were written before


def test_the_statement_says_what_is_done(training, monkeypatch):
    # The words are what is tested here, and not the figures.
    monkeypatch.setattr(Plan, "mu_bounds", lambda self: gdpjax.Bounds(0.1, 0.2))
    monkeypatch.setattr(Plan, "epsilon_bounds", lambda self: gdpjax.Bounds(0.3, 0.4))
    text = " ".join(training.plan.statement().split())
    assert "random allocation: every example takes part in exactly 2 steps, one in each of as many blocks" in text
    assert "of the 7 steps of an epoch" in text
    assert "in each epoch anew; 21 steps in 3 epochs" in text
    assert "at which a run stops and says so" in text
    one = " ".join(built(unit="user", bins="fixed").plan.statement().split())
    assert "every user takes part in exactly one step of the 7 steps of an epoch" in one
    assert "independently of other users, once for all epochs" in one
    assert "Poisson" not in one.split("Sampling:")[1].split(";")[0]


@pytest.mark.parametrize("target", [{"epsilon": 1.0}, pytest.param({"mu": 0.5}, marks=pytest.mark.slow)])
def test_a_plan_meets_its_target(target):
    given = {name: value for name, value in PLAN.items() if name != "noise_multiplier"}
    plan = make_plan(**given, **target)
    found = plan.epsilon_bounds() if "epsilon" in target else plan.mu_bounds()
    (aim,) = target.values()
    assert 0.999 * aim < found.upper <= aim
    assert found.lower > 0.98 * aim
    assert plan.is_private


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"epochs": 1.5}, "epochs"),
        ({"epochs": None, "num_steps": 10}, "whole epochs, of 7 steps each"),
        ({"group_size": 2}, "group_size > 1"),
        ({"capacity": 20}, "no other sampling takes one"),
        ({"bins": "poisson"}, "bins"),
        ({"num_selected": 0}, "num_selected"),
        ({"sampling": "poisson", "num_selected": 2}, "belong to sampling"),
        ({"sampling": "uniform", "bins": "fixed"}, "belong to sampling"),
        ({"neighboring_relation": gdpjax.NeighboringRelation.REPLACE_ONE}, "proved bound under"),
    ],
)
def test_bad_plans(changes, message):
    given = {name: value for name, value in (PLAN | changes).items() if value is not None}
    with pytest.raises(ValueError, match=message):
        make_plan(**given)


def test_a_batch_above_the_capacity_stops_the_run(training, monkeypatch):
    """It is announced, and nothing of it is trained on."""
    plan = training.plan
    drawn = jax.jit(lambda key: allocation_sample(key, 0, N, 7, 4, num_selected=2))(KEY)
    assert int(drawn.count) > 4
    monkeypatch.setattr(_loop, "allocation_sample", lambda *_, **__: drawn._replace(count=jnp.int32(plan.capacity + 1)))
    other = built(num_selected=2, expected_batch_size=17, noise_multiplier=2.5)
    state, _ = other.run_steps(other.init(PARAMS, KEY), other.place(*rows()), 21)
    assert int(state.status) == OVERFLOWED
    np.testing.assert_array_equal(state.params["w"], PARAMS["w"])


def test_extreme_batch_sizes():
    everyone = make_plan(**PLAN | dict(expected_batch_size=N))
    assert (everyone.steps_per_epoch, everyone.sampling_prob) == (1, 1.0)
    assert everyone.capacity > N
    single = make_plan(**PLAN | dict(expected_batch_size=1, epochs=1))
    assert single.steps_per_epoch == N
    assert single.overflow <= 1e-8


@pytest.mark.parametrize("n", [N, 41])
def test_every_example_takes_part_in_exactly_its_steps(n):
    """The loop draws what is accounted for, also of fewer examples than the plan covers."""
    training, x = numbered(num_selected=2, expected_batch_size=17)
    plan = training.plan
    state, info = training.run_steps(training.init(PARAMS, KEY), training.place(x[:n], x[:n, 0]), plan.max_steps)
    assert int(state.status) == FINISHED
    taken = times_taken(plan, [info], n)
    assert (taken[:, :4].sum(axis=1) == 1).all()
    assert (taken[:, 4:].sum(axis=1) == 1).all()
    assert (taken[0] != taken[1]).any()
    (event,) = gdpjax.ledger_of(state.opt_state).events
    assert plan.overflow * 0.999999 <= event.overflow <= plan.overflow * 1.0001
    assert event == AllocationEvent(2.0, 7, 3, 2, overflow=event.overflow, announced=True)


def test_steps_equal_scan_equal_a_loader(training):
    x, y = rows()
    whole, _ = training.run_steps(training.init(PARAMS, KEY), training.place(x, y), 21)
    state, data = training.init(PARAMS, KEY), training.place(x, y)
    for _ in range(10):
        state, _ = training.step(state, data)
    (event,) = gdpjax.ledger_of(state.opt_state).events
    assert (event.num_epochs, event.missing_steps, event.num_steps) == (2, 4, 10)
    source = batch_source(training.plan, state, N)
    for t in range(int(num_steps_done(state)), len(source)):
        indices, is_padding = source[t]
        state, _ = training.step_on(state, x[indices], y[indices], is_padding=is_padding)
    np.testing.assert_allclose(state.params["w"], whole.params["w"], rtol=1e-5, atol=1e-6)


def test_fixed_bins_repeat_the_epoch():
    training, x = numbered(bins="fixed")
    _, info = training.run_steps(training.init(PARAMS, KEY), training.place(x, x[:, 0]), 21)
    taken = times_taken(training.plan, [info], N)
    assert (taken == taken[0]).all()
    assert (taken.sum(axis=1) == 1).all()


def test_users_take_part_whole():
    plan = make_plan(**PLAN | dict(unit="user"))
    (x,), missing = group_by_user(np.arange(90) % 30, rows()[0].repeat(2, axis=0)[:90], max_per_user=3, key=KEY)

    def loss_of_user(params, x, is_missing):
        return jnp.sum(jnp.where(is_missing, 0.0, x @ params["w"]))

    training = private_training(plan, loss_of_user, optax.sgd(0.1))
    state, info = training.run_steps(training.init(PARAMS, KEY), training.place(x, missing), 21)
    assert int(state.status) == FINISHED
    sizes = (~np.asarray(info.is_padding)).sum(axis=1).reshape(3, 7)
    assert (sizes.sum(axis=1) == 30).all()
    assert (sizes[0] != sizes[1]).any()
    (event,) = gdpjax.ledger_of(state.opt_state).events
    assert (event.num_epochs, event.missing_steps) == (3, 0)


# A run in a folder.


@pytest.fixture(scope="module")
def parts():
    """Training, parameters and data of a run of four epochs of seven steps."""
    training = built(epochs=4)
    return training, PARAMS, training.place(*rows())


def test_killed_in_the_middle_of_an_epoch_it_goes_on_bit_for_bit(parts, tmp_path):
    whole = start_run(tmp_path / "whole", *parts, key=KEY, scan=False)
    finished(whole)
    interrupted(parts, tmp_path / "run", 12, 5, KEY)
    run = resume_run(tmp_path / "run", *parts, scan=False)
    finished(run)
    leaves = zip(jax.tree.leaves((run.state.params, run.state.opt_state)),
                 jax.tree.leaves((whole.state.params, whole.state.opt_state)), strict=True)  # fmt: skip
    assert all(np.array_equal(np.asarray(a), np.asarray(b)) for a, b in leaves)
    assert run.ledger == whole.ledger


def test_on_another_machine_no_example_takes_part_twice_in_an_epoch(tmp_path, monkeypatch):
    """The lost steps are charged and left out, the noise has a new key, and the steps of the examples stay."""
    training, x = numbered(epochs=4)
    parts = training, PARAMS, training.place(x, x[:, 0])
    key = jax.random.key(21)
    kept = interrupted(parts, tmp_path / "run", 12, 5, key)
    environment = _run.environment
    monkeypatch.setattr(_run, "environment", lambda: environment() | {"cpu": "another"})
    run = resume_run(tmp_path / "run", *parts, scan=False)
    assert (run.step, run.num_lost) == (15, 5)
    before = training.init(PARAMS, key)
    np.testing.assert_array_equal(*(jax.random.key_data(state.sampling_key) for state in (run.state, before)))
    assert not np.array_equal(run.state.opt_state[0].key_data, before.opt_state[0].key_data)
    rest = finished(run)
    assert (len(kept), len(rest)) == (10, 13)
    # The lost steps, drawn once more on the host, take the place of what was not kept.
    source = batch_source(training.plan, before, N)
    lost = [Info(None, np.linalg.norm(x[source[t].indices], axis=1), source[t].is_padding) for t in range(10, 15)]
    assert (times_taken(training.plan, kept + lost + rest, N).sum(axis=1) == 1).all()
    (event,) = run.ledger.events
    assert (event.num_epochs, event.missing_steps) == (4, 0)


def test_with_rows_that_moved_it_does_not_go_on(parts, tmp_path):
    training, params, _ = parts
    run = start_run(tmp_path / "run", *parts, key=KEY, scan=False)
    run.advance(5)
    x, y = rows()
    with pytest.raises(ValueError, match="the step of an example belongs to its row"):
        resume_run(tmp_path / "run", training, params, training.place(x[::-1], y[::-1]), scan=False)
    assert resume_run(tmp_path / "run", *parts, scan=False).step == 5
