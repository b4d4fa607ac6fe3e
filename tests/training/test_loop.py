"""(init, step): what is trained is what the plan says, and nothing after its end."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import gdpjax
from gdpjax import NeighboringRelation
from gdpjax.sampling import BatchOverflowError
from gdpjax.training import (
    FINISHED,
    OVERFLOWED,
    RUNNING,
    batch_source,
    check_status,
    group_by_user,
    make_plan,
    num_steps_done,
    private_training,
)

N, D = 60, 3
PLAN = dict(clip=1.0, max_examples=N, expected_batch_size=8, num_steps=6, delta=1e-5, noise_multiplier=2.0)


def loss(params, x, y):
    """Least squares."""
    return 0.5 * (x @ params["w"] - y) ** 2


PARAMS = {"w": jnp.zeros(D)}


def rows(n=N, seed=0):
    """n examples, of which the first m are the same for every n >= m."""
    draw = np.random.default_rng(seed)
    x = draw.normal(size=(N, D)).astype(np.float32)
    return x[:n], x[:n].sum(axis=1)


@pytest.fixture(scope="module")
def training():
    """A small training."""
    return private_training(make_plan(**PLAN), loss, optax.sgd(0.1, momentum=0.9))


@pytest.fixture(scope="module")
def whole(training):
    """The state after six scanned steps."""
    data = training.place(*rows())
    return training.run_steps(training.init(PARAMS, jax.random.key(1)), data, 6)


def by_hand(plan, key, steps):
    """The same run written out with the public pieces."""
    grad_fn = gdpjax.clipped_grad(loss, 1.0, batch_argnums=(1, 2))
    sampling_key, noise_key = jax.random.split(key)
    tx = optax.chain(
        gdpjax.privatize(
            grad_fn, noise_multiplier=plan.noise_multiplier, sampling_prob=plan.sampling_prob,
            expected_batch_size=plan.expected_batch_size, key=noise_key, overflow_per_step=plan.overflow_per_step,
            announced=True,
        ),
        optax.sgd(0.1, momentum=0.9),
    )  # fmt: skip
    x, y = rows()

    @jax.jit
    def step(params, opt_state, t):
        batch = gdpjax.sampling.poisson_sample(
            jax.random.fold_in(sampling_key, t), N, plan.sampling_prob, plan.capacity
        )
        batch_x, batch_y = jnp.asarray(x)[batch.indices], jnp.asarray(y)[batch.indices]
        total = grad_fn(params, batch_x, batch_y, is_padding=batch.is_padding)
        updates, opt_state = tx.update(total, opt_state, params)
        return optax.apply_updates(params, updates), opt_state

    params, opt_state = PARAMS, tx.init(PARAMS)
    for t in range(steps):
        params, opt_state = step(params, opt_state, t)
    return params, gdpjax.ledger_of(opt_state)


def test_a_step_is_the_written_out_step(training, whole):
    params, ledger = by_hand(training.plan, jax.random.key(1), 6)
    np.testing.assert_allclose(whole[0].params["w"], params["w"], rtol=1e-5, atol=1e-6)
    assert gdpjax.ledger_of(whole[0].opt_state) == ledger
    (event,) = ledger.events
    assert event.overflow >= training.plan.overflow * 0.999999
    assert event.sampling_prob == training.plan.sampling_prob


def test_scan_equals_steps_equals_a_loader(training, whole):
    x, y = rows()
    data = training.place(x, y)
    state = training.init(PARAMS, jax.random.key(1))
    for _ in range(6):
        state, info = training.step(state, data)
    loaded = training.init(PARAMS, jax.random.key(1))
    for indices, is_padding in batch_source(training.plan, loaded, N):
        loaded, _ = training.step_on(loaded, x[indices], y[indices], is_padding=is_padding)
    for other in (state, loaded):
        np.testing.assert_allclose(other.params["w"], whole[0].params["w"], rtol=1e-5, atol=1e-6)
        assert int(other.status) == FINISHED
    np.testing.assert_allclose(info.losses, whole[1].losses[-1], rtol=1e-4, atol=1e-5)
    assert info.norms.shape == (training.plan.capacity,)


def test_constant_work_trains_the_same(training, whole):
    """The rows that are computed or skipped beyond the batch change nothing that is released."""
    other = private_training(training.plan, loss, optax.sgd(0.1, momentum=0.9), microbatch_size=4, constant_work=True)
    skipping = private_training(training.plan, loss, optax.sgd(0.1, momentum=0.9), microbatch_size=4)
    assert (other.grad_fn.constant_work, skipping.grad_fn.constant_work) == (True, False)
    states = []
    for each in (other, skipping):
        state = each.init(PARAMS, jax.random.key(1))
        states.append(each.run_steps(state, each.place(*rows()), 6))
    np.testing.assert_array_equal(states[0][0].params["w"], states[1][0].params["w"])
    np.testing.assert_array_equal(states[0][1].norms, states[1][1].norms)
    np.testing.assert_allclose(states[0][0].params["w"], whole[0].params["w"], rtol=1e-5, atol=1e-6)


def test_it_stops_at_the_planned_maximum(training, whole):
    """The budget is compared as integers; more steps change nothing, also in the middle of a scan (trap 35)."""
    data = training.place(*rows())
    state = training.init(PARAMS, jax.random.key(1))
    longer, _ = training.run_steps(state, data, 9)
    np.testing.assert_array_equal(longer.params["w"], whole[0].params["w"])
    assert gdpjax.ledger_of(longer.opt_state) == gdpjax.ledger_of(whole[0].opt_state)
    assert int(num_steps_done(longer)) == 6
    after, _ = training.step(longer, data)
    assert jax.tree.all(jax.tree.map(lambda a, b: bool(jnp.all(a == b)), after, longer))
    for _ in range(5):
        state, _ = training.step(state, data)
    assert int(state.status) == RUNNING


def test_size_of_the_data_does_not_show():
    """Trap 34: padded to the public maximum, nothing that is compiled or divided by depends on n."""
    training = private_training(make_plan(**PLAN), loss, optax.sgd(0.1))
    state = training.init(PARAMS, jax.random.key(1))
    texts, noises = set(), []
    for n in (N, N - 1, 5, 0):
        data = training.place(*rows(n))
        assert data.arrays[0].shape == (N, D)
        texts.add(training.step.lower(state, data).as_text())
        after, info = training.step(state, data)
        assert int((~info.is_padding).sum()) <= n
        noises.append(after.params["w"])
    assert len(texts) == 1
    assert bool(jnp.all(jnp.isfinite(jnp.stack(noises))))


def test_an_empty_data_set_gives_noise_of_the_planned_size():
    """Traps 1 and 2: std = noise_multiplier C / expected batch, whatever was drawn."""
    wide = {"w": jnp.zeros(4000)}
    training = private_training(make_plan(**PLAN | dict(num_steps=1)), loss, optax.sgd(1.0))
    for n in (0, N):
        x = np.zeros((n, 4000), np.float32)
        after, _ = training.step(training.init(wide, jax.random.key(2)), training.place(x, np.zeros(n, np.float32)))
        assert float(jnp.std(after.params["w"])) == pytest.approx(2.0 / 8, rel=0.05)


def test_the_noise_does_not_depend_on_who_is_in_the_batch(training):
    """Traps 1 and 2: on rows without gradient the step is noise alone, the same to the bit for every mask."""
    x, y = np.zeros((training.plan.capacity, D), np.float32), np.zeros(training.plan.capacity, np.float32)
    state, steps = training.init(PARAMS, jax.random.key(1)), []
    for num_real in (0, 1, 2, 8, training.plan.capacity):
        after, _ = training.step_on(state, x, y, is_padding=np.arange(training.plan.capacity) >= num_real)
        steps.append(np.asarray(after.params["w"]))
    assert steps[0].all()
    for other in steps[1:]:
        np.testing.assert_array_equal(other, steps[0])


def test_the_divisor_does_not_follow_the_size_of_the_data(training):
    """Trap 3: data without gradient, of neighbouring and of very different sizes: the same noise, divided alike."""
    state, steps = training.init(PARAMS, jax.random.key(1)), []
    for n in (N, N - 1, 1, 0):
        data = training.place(np.zeros((n, D), np.float32), np.zeros(n, np.float32))
        steps.append(np.asarray(training.step(state, data)[0].params["w"]))
    assert steps[0].all()
    for other in steps[1:]:
        np.testing.assert_array_equal(other, steps[0])


def test_neighbours_differ_by_one_clipped_gradient():
    """Traps 2, 6: the same keys on data with and without the last example: at most C / expected batch apart."""
    training = private_training(make_plan(**PLAN | dict(num_steps=1, expected_batch_size=30)), loss, optax.sgd(1.0))
    for seed in range(5):
        state = training.init(PARAMS, jax.random.key(seed))
        with_it, _ = training.step(state, training.place(*rows(N)))
        without, _ = training.step(state, training.place(*rows(N - 1)))
        moved = float(jnp.linalg.norm(with_it.params["w"] - without.params["w"]))
        assert moved <= 1.0 / 30 * (1 + 1e-5)


def test_a_batch_that_does_not_fit_stops_the_run(monkeypatch):
    """Traps 15 and 33: never truncated, never trained on, charged for, and said."""
    from gdpjax.training import _loop, _plan

    plan = make_plan(**PLAN)
    monkeypatch.setattr(_plan.Plan, "capacity", property(lambda self: 8))
    training = _loop.private_training(plan, loss, optax.sgd(0.1))
    data = training.place(*rows())
    states = [training.init(PARAMS, jax.random.key(0))]
    for _ in range(6):
        state, _ = training.step(states[-1], data)
        states.append(state)
    assert int(state.status) == OVERFLOWED
    charged = int(num_steps_done(state))
    assert 1 <= charged < 6
    with pytest.raises(BatchOverflowError, match="planned capacity"):
        check_status(state)
    np.testing.assert_array_equal(states[charged - 1].params["w"], state.params["w"])
    with pytest.raises(BatchOverflowError, match="the capacity is 8"):
        list(batch_source(plan, training.init(PARAMS, jax.random.key(0)), N))


def test_a_sweep_is_one_program():
    """Traced noise, clip norm, learning rate and keys under one vmap equal separate runs, each with its own noise."""
    plan = make_plan(**PLAN | dict(num_steps=3))
    data = private_training(plan, loss, optax.sgd(0.1)).place(*rows())

    def run(noise, norm, rate, key):
        training = private_training(plan.replace(noise_multiplier=noise, clip=norm), loss, optax.sgd(rate))
        return training.run_steps(training.init(PARAMS, key), data, 3)[0]

    noise, norm, rate = jnp.array([1.0, 2.0, 2.0]), jnp.array([1.0, 0.5, 0.5]), jnp.array([0.1, 0.2, 0.2])
    keys = jax.random.split(jax.random.key(5), 3)
    together = jax.jit(jax.vmap(run))(noise, norm, rate, keys)
    alone = run(noise[1], norm[1], rate[1], keys[1])
    np.testing.assert_allclose(together.params["w"][1], alone.params["w"], rtol=1e-5, atol=1e-6)
    for i in range(3):
        one = jax.tree.map(lambda leaf, i=i: leaf[i], together)
        (event,) = gdpjax.ledger_of(one.opt_state).events
        assert event.noise_multiplier == float(noise[i])
    assert float(jnp.abs(together.params["w"][1] - together.params["w"][2]).max()) > 1e-3
    with pytest.raises(ValueError, match="share one noise key"):
        jax.vmap(run, in_axes=(0, 0, 0, None))(noise, norm, rate, keys[0])


def test_uniform_batches_and_example_keys():
    plan = make_plan(**PLAN | dict(sampling="uniform", num_steps=4))

    def dropped(params, x, y, key):
        return loss(params, x * jax.random.bernoulli(key, 0.5, x.shape), y)

    training = private_training(plan, dropped, optax.adam(0.1), example_key=True)
    data = training.place(*rows())
    state, info = training.run_steps(training.init(PARAMS, jax.random.key(0)), data, 4)
    (event,) = gdpjax.ledger_of(state.opt_state).events
    assert event.sampling == "uniform"
    assert event.neighboring_relation is NeighboringRelation.REPLACE_ONE
    assert not bool(info.is_padding.any())
    assert info.losses.shape == (4, 8)
    assert len(np.unique(np.asarray(info.losses))) > 16, "dropout differs between examples and steps"


def test_users_as_examples():
    """The unit of privacy is a user: all of a user's rows are one clipped gradient."""
    ids = np.repeat(np.arange(20), 3)
    x, y = rows()
    (ux, uy), is_padding = group_by_user(ids, x, y, max_per_user=4, key=jax.random.key(0))
    assert ux.shape == (20, 4, D)
    np.testing.assert_array_equal(ux[4, :3], x[12:15])

    def user_loss(params, x, y, is_padding):
        each = jax.vmap(loss, (None, 0, 0))(params, x, y)
        return jnp.sum(jnp.where(is_padding, 0.0, each)) / jnp.maximum(1, jnp.sum(~is_padding))

    plan = make_plan(**PLAN | dict(max_examples=20, expected_batch_size=4, unit="user", clip=1e-3, num_steps=1))
    training = private_training(plan, user_loss, optax.sgd(1.0), num_arrays=3)
    state = training.init(PARAMS, jax.random.key(0))
    moved = []
    for factor in (1.0, 100.0):
        changed = ux.copy()
        changed[7] *= factor
        moved.append(training.step(state, training.place(changed, uy, is_padding))[0].params["w"])
    assert float(jnp.linalg.norm(moved[0] - moved[1])) <= 2 * 1e-3 / 4 * (1 + 1e-4)


def test_a_users_rows_do_not_depend_on_the_others():
    ids, x = np.array([1, 2, 2, 2, 3]), np.arange(5.0)
    (all_of_them,), _ = group_by_user(ids, x, max_per_user=2, key=jax.random.key(3))
    (without,), _ = group_by_user(ids[1:4], x[1:4], max_per_user=2, key=jax.random.key(3))
    np.testing.assert_array_equal(all_of_them[1], without[0])


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda t: t.place(np.zeros((61, D)), np.zeros(61)), "more than the plan's public max_examples = 60"),
        (lambda t: t.place(np.zeros((5, D)), np.zeros(6)), "one row per example"),
        (lambda t: t.place(), "at least one array"),
        (lambda t: t.step(t.init(PARAMS, jax.random.key(0)), rows()), "must be what training.place"),
        (lambda t: t.step(t.init(PARAMS, jax.random.key(0)), t.place(rows()[0])), "num_arrays=2"),
        (lambda t: t.step_on(t.init(PARAMS, jax.random.key(0)), *rows(), is_padding=np.zeros(N, bool)), "capacity of"),
        (lambda t: t.init(PARAMS, 0), "PRNG key"),
        (lambda t: t.init({"params": PARAMS, "batch_stats": {"mean": jnp.zeros(3)}}, jax.random.key(0)), "GroupNorm"),
        (lambda t: private_training(t.plan, loss, 0.1), "optax transformation"),
        (lambda t: private_training(t.plan, loss, optax.sgd(0.1), constant_work="yes"), "constant_work"),
        (lambda t: batch_source(t.plan, t.init(PARAMS, jax.random.key(0)), 61), "max_examples = 60"),
        (lambda t: group_by_user([1, 2], np.zeros(3), max_per_user=1, key=jax.random.key(0)), "one row per example"),
        (lambda t: group_by_user([1, 2], np.zeros(2), max_per_user=0, key=jax.random.key(0)), "max_per_user"),
    ],
)
def test_bad_input(training, act, message):
    with pytest.raises(ValueError, match=message):
        act(training)


def test_a_public_number_must_be_met():
    plan = make_plan(**PLAN | dict(neighboring_relation=NeighboringRelation.REPLACE_SPECIAL))
    training = private_training(plan, loss, optax.sgd(0.1))
    training.place(*rows(N))
    with pytest.raises(ValueError, match="is public and equal"):
        training.place(*rows(N - 1))


def test_an_optimizer_that_is_private_itself(training):
    inner = gdpjax.dpsgd(
        0.1, clipped_by=training.grad_fn, noise_multiplier=1.0, sampling_prob=0.1, expected_batch_size=6,
        key=jax.random.key(0),
    )  # fmt: skip
    twice = private_training(training.plan, loss, inner)
    with pytest.raises(ValueError, match="give it the plain optimizer"):
        twice.init(PARAMS, jax.random.key(0))


def test_running_statistics_of_nnx():
    from flax import nnx

    model = nnx.BatchNorm(3, rngs=nnx.Rngs(0))
    training = private_training(make_plan(**PLAN), loss, optax.sgd(0.1))
    with pytest.raises(ValueError, match="BatchStat"):
        training.init(nnx.state(model), jax.random.key(0))


TRUNCATED = PLAN | dict(sampling="truncated_poisson", capacity=7)


@pytest.fixture(scope="module")
def truncated():
    """A training whose batches often lose a part."""
    return private_training(make_plan(**TRUNCATED), loss, optax.sgd(0.1, momentum=0.9))


def test_truncated_batches_are_trained_on_and_recorded(truncated):
    x, y = rows(50)
    plan, data = truncated.plan, truncated.place(x, y)
    assert (plan.capacity, plan.overflow, plan.overflow_per_step, plan.announces_overflow) == (7, 0.0, 0.0, False)
    state, info = truncated.run_steps(truncated.init(PARAMS, jax.random.key(5)), data, 20)
    assert int(state.status) == FINISHED
    assert gdpjax.ledger_of(state.opt_state).events == (plan.event,)
    sizes = (~np.asarray(info.is_padding)).sum(axis=1)[:6]
    assert sizes.max() == 7  # nothing overflows
    # A loader that draws on the host, from the middle on.
    loaded = truncated.init(PARAMS, jax.random.key(5))
    for _ in range(2):
        loaded, _ = truncated.step(loaded, data)
    source = batch_source(plan, loaded, 50)
    for t in range(int(num_steps_done(loaded)), len(source)):
        indices, is_padding = source[t]
        loaded, _ = truncated.step_on(loaded, x[indices], y[indices], is_padding=is_padding)
    np.testing.assert_allclose(loaded.params["w"], state.params["w"], rtol=1e-5, atol=1e-6)


def test_the_statement_says_that_users_are_drawn_for_truncated_batches():
    assert "every user is drawn for each batch" in make_plan(**TRUNCATED | dict(unit="user")).statement()


@pytest.mark.slow
def test_users_are_drawn_whole_in_truncated_batches():
    plan = make_plan(**TRUNCATED | dict(unit="user"))
    (x,), missing = group_by_user(
        np.arange(90) % 30, rows()[0].repeat(2, axis=0)[:90], max_per_user=3, key=jax.random.key(0)
    )

    def loss_of_user(params, x, is_missing):
        return jnp.sum(jnp.where(is_missing, 0.0, x @ params["w"]))

    training = private_training(plan, loss_of_user, optax.sgd(0.1))
    state, _ = training.run_steps(training.init(PARAMS, jax.random.key(1)), training.place(x, missing), 6)
    assert gdpjax.ledger_of(state.opt_state).events == (plan.event,)


def test_what_is_not_trained_stays_as_it_is():
    """Weight decay would shrink a frozen leaf, and Adam's moments of whole numbers would become floats."""

    def loss(params, x):
        return jnp.sum(jnp.tanh(x @ params["w"]) * params["table"] * params["count"])

    plan = gdpjax.make_plan(
        clip=1.0, max_examples=20, expected_batch_size=5, num_steps=2, delta=1e-5, noise_multiplier=1.0
    )
    params = {"w": jnp.ones((3, 2)), "table": jnp.ones(2), "count": jnp.arange(2)}
    trainable = {"w": True, "table": False, "count": True}
    training = private_training(plan, loss, optax.adamw(0.1, weight_decay=0.5), num_arrays=1, trainable=trainable)
    state = training.init(params, gdpjax.fresh_key())
    state, _ = training.run_steps(state, training.place(np.ones((20, 3), np.float32)), 2)
    for name in ("table", "count"):
        assert state.params[name].dtype == params[name].dtype
        assert np.array_equal(state.params[name], params[name])
    assert not np.any(np.equal(state.params["w"], 1.0))
