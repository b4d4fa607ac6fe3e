"""A training of (init, step) trains on what its plan says, and on nothing after its end."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import gdpjax
from gdpjax import NeighboringRelation
from gdpjax.ledger import UniformEvent
from gdpjax.sampling import BatchOverflowError, PoissonNumbers, WithoutReplacement
from gdpjax.training import Data, batch_source, group_by_user, make_plan, private_training

N, D = 60, 3
PRIVATE = dict(clip=1.0, delta=1e-5, noise_multiplier=2.0)
PLAN = dict(max_examples=N, expected_batch_size=8, num_steps=6) | PRIVATE
KEY = jax.random.key(1)
PARAMS = {"w": jnp.zeros(D)}


def loss(params, x, y):
    """Return half the squared residual."""
    residual = x @ params["w"] - y
    return 0.5 * residual**2


def rows(n=N, seed=0):
    """Return n examples, of which the first m are the same for every n >= m."""
    generator = np.random.default_rng(seed)
    x = generator.normal(size=(N, D)).astype(np.float32)
    y = x.sum(axis=1)
    return x[:n], y[:n]


def without_gradient(n):
    """Return n examples whose gradient is zero at the initial parameters."""
    x = np.zeros((n, D), np.float32)
    y = np.zeros(n, np.float32)
    return x, y


def assert_close(first, second):
    np.testing.assert_allclose(first.params["w"], second.params["w"], rtol=1e-5, atol=1e-6)


def assert_same_noise(steps):
    """Check that the parameters after a step differ from zero, and are the same to the bit."""
    first, *later = steps
    assert first.all()
    for step in later:
        np.testing.assert_array_equal(step, first)


@pytest.fixture(scope="module")
def training():
    """Return a small training."""
    return private_training(make_plan(**PLAN), loss, optax.sgd(0.1, momentum=0.9))


@pytest.fixture(scope="module")
def whole(training):
    """Return state and info after nine scanned steps, of which six are planned."""
    data = training.place(*rows())
    state = training.init(PARAMS, KEY)
    return training.run_steps(state, data, 9)


@pytest.fixture(scope="module")
def after_each(training):
    """Return the states before and after each of the six steps, taken one by one, and the last info."""
    data = training.place(*rows())
    states = [training.init(PARAMS, KEY)]
    for _ in range(6):
        state, info = training.step(states[-1], data)
        states.append(state)
    return states, info


def by_hand(plan, key, steps):
    """Return parameters and ledger of the same run, written out with the public pieces."""
    grad_fn = gdpjax.clipped_grad(loss, 1.0, batch_argnums=(1, 2))
    sampling_key, noise_key = jax.random.split(key)
    private = gdpjax.privatize(
        grad_fn,
        noise_multiplier=plan.noise_multiplier,
        batches=plan.batches,
        key=noise_key,
        announced=True,
    )
    tx = optax.chain(private, optax.sgd(0.1, momentum=0.9))
    x, y = rows()

    @jax.jit
    def step(params, opt_state, t):
        key_of_step = jax.random.fold_in(sampling_key, t)
        batch = gdpjax.sampling.poisson_sample(key_of_step, N, plan.sampling_prob, plan.capacity)
        *batch_rows, is_padding = batch.take(x, y)
        total = grad_fn(params, *batch_rows, is_padding=is_padding)
        updates, opt_state = tx.update(total, opt_state, params)
        return optax.apply_updates(params, updates), opt_state

    params = PARAMS
    opt_state = tx.init(PARAMS)
    for t in range(steps):
        params, opt_state = step(params, opt_state, t)
    return params, gdpjax.ledger_of(opt_state)


def test_a_step_is_the_written_out_step(training, whole):
    """Parameters and ledger are those of sampling, clipping, noise and optimizer, called one after the other."""
    params, ledger = by_hand(training.plan, KEY, 6)
    state, _ = whole
    np.testing.assert_allclose(state.params["w"], params["w"], rtol=1e-5, atol=1e-6)
    assert gdpjax.ledger_of(state.opt_state) == ledger
    (event,) = ledger.events
    assert event.overflow >= training.plan.overflow * 0.999999
    assert event.sampling_prob == training.plan.sampling_prob


def test_scan_equals_steps_equals_a_loader(training, whole, after_each):
    """A batch is the same whether it is drawn in the scan, in the step or on the host."""
    states, info = after_each
    x, y = rows()
    loaded = training.init(PARAMS, KEY)
    for indices, is_padding in batch_source(training.plan, loaded, N):
        loaded, _ = training.step_on(loaded, x[indices], y[indices], is_padding=is_padding)
    scanned, scanned_info = whole
    for state in (states[-1], loaded):
        assert_close(state, scanned)
        assert state.finished
    np.testing.assert_allclose(info.losses, scanned_info.losses[5], rtol=1e-4, atol=1e-5)
    assert info.norms.shape == (training.plan.capacity,)


def test_two_runs_have_batches_of_their_own(training):
    """Trap 86: a run has one key, from which its batches and its noise are drawn."""
    sources = [batch_source(training.plan, training.init(PARAMS, jax.random.key(seed)), N) for seed in (0, 1, 0)]
    first, second, again = [[batch.indices.tolist() for batch in source] for source in sources]
    assert first == again
    assert all(one != other for one, other in zip(first, second, strict=True))


def test_constant_work_trains_the_same(training):
    """The rows that are computed or skipped beyond the batch change nothing that is released."""
    optimizer = optax.sgd(0.1, momentum=0.9)
    computing = private_training(training.plan, loss, optimizer, microbatch_size=4, constant_work=True)
    skipping = private_training(training.plan, loss, optimizer, microbatch_size=4)
    assert computing.grad_fn.constant_work
    assert not skipping.grad_fn.constant_work

    # Two batches of six and of seven rows; the rest of the capacity is padding.
    x, y = rows()
    capacity = training.plan.capacity
    slots = np.arange(capacity)

    def after_two_batches(training):
        state = training.init(PARAMS, KEY)
        for size in (6, 7):
            indices = slots + size
            state, info = training.step_on(state, x[indices], y[indices], is_padding=slots >= size)
        return state, info

    computed, computed_info = after_two_batches(computing)
    skipped, skipped_info = after_two_batches(skipping)
    whole_batch, _ = after_two_batches(training)
    np.testing.assert_array_equal(computed.params["w"], skipped.params["w"])
    np.testing.assert_array_equal(computed_info.norms, skipped_info.norms)
    assert_close(computed, whole_batch)


def test_it_stops_at_the_planned_maximum(training, whole, after_each):
    """The budget is compared as integers; more steps change nothing, also in the middle of a scan (trap 35)."""
    scanned, _ = whole
    states, _ = after_each
    assert not states[-2].finished
    assert_close(scanned, states[-1])
    assert gdpjax.ledger_of(scanned.opt_state) == gdpjax.ledger_of(states[-1].opt_state)
    assert int(scanned.num_steps_done) == 6

    # To the bit: one more step, and nine more in a scan.
    data = training.place(*rows())
    after_a_step, _ = training.step(scanned, data)
    after_a_scan, _ = training.run_steps(scanned, data, 9)
    for after in (after_a_step, after_a_scan):
        is_same = jax.tree.map(lambda leaf, before: bool(jnp.all(leaf == before)), after, scanned)
        assert jax.tree.all(is_same)


def test_size_of_the_data_does_not_show(training):
    """Trap 34: padded to the public maximum, nothing that is compiled or divided by depends on n."""
    state = training.init(PARAMS, KEY)
    programs = set()
    for n in (N, N - 1, 5, 0):
        data = training.place(*rows(n))
        assert data.arrays[0].shape == (N, D)
        programs.add(training.step.lower(state, data).as_text())
        after, info = training.step(state, data)
        num_real = int((~info.is_padding).sum())
        assert num_real <= n
        assert np.isfinite(after.params["w"]).all()
    assert len(programs) == 1


def test_an_empty_data_set_gives_noise_of_the_planned_size():
    """Traps 1 and 2: std = noise_multiplier C / expected batch, whatever was drawn."""
    wide = {"w": jnp.zeros(4000)}
    plan = make_plan(**PLAN | dict(num_steps=1))
    training = private_training(plan, loss, optax.sgd(1.0))
    for n in (0, N):
        x = np.zeros((n, 4000), np.float32)
        y = np.zeros(n, np.float32)
        state = training.init(wide, jax.random.key(2))
        after, _ = training.step(state, training.place(x, y))
        assert np.std(after.params["w"]) == pytest.approx(2.0 / 8, rel=0.05)


def test_the_noise_does_not_depend_on_who_is_in_the_batch(training):
    """Traps 1 and 2: on rows without gradient the step is noise alone, the same to the bit for every mask."""
    capacity = training.plan.capacity
    x, y = without_gradient(capacity)
    state = training.init(PARAMS, KEY)
    steps = []
    for num_real in (0, 1, 2, 8, capacity):
        is_padding = np.arange(capacity) >= num_real
        after, _ = training.step_on(state, x, y, is_padding=is_padding)
        steps.append(np.asarray(after.params["w"]))
    assert_same_noise(steps)


def test_the_divisor_does_not_follow_the_size_of_the_data(training):
    """Trap 3: data without gradient, of neighbouring and of very different sizes: the same noise, divided alike."""
    state = training.init(PARAMS, KEY)
    steps = []
    for n in (N, N - 1, 1, 0):
        after, _ = training.step(state, training.place(*without_gradient(n)))
        steps.append(np.asarray(after.params["w"]))
    assert_same_noise(steps)


def test_neighbours_differ_by_one_clipped_gradient(training):
    """Traps 2, 6: with the same keys, data with and without the last example are C / expected batch apart at most."""
    x, y = rows()
    # A long gradient, which is clipped, and which one batch in eight holds.
    x[-1] *= 100
    y[-1] = 100
    data = training.place(x, y)
    neighbouring_data = training.place(x[:-1], y[:-1])
    learning_rate = 0.1
    distances = []
    for seed in range(40):
        state = training.init(PARAMS, jax.random.key(seed))
        with_it, _ = training.step(state, data)
        without, _ = training.step(state, neighbouring_data)
        moved = np.subtract(with_it.params["w"], without.params["w"])
        distances.append(np.linalg.norm(moved) / learning_rate)
    assert max(distances) <= 1.0 / 8 * (1 + 1e-5)
    assert max(distances) >= 1.0 / 8 * (1 - 1e-3), "the example was in one of the batches"


def test_a_batch_that_does_not_fit_stops_the_run():
    """Traps 15 and 33: a batch above the capacity is never truncated or trained on; it is charged for, and said."""
    plan = make_plan(**PLAN)
    # Nobody can plan with so small a capacity.
    object.__setattr__(plan.batches, "capacity", 8)
    training = private_training(plan, loss, optax.sgd(0.1))
    data = training.place(*rows())
    states = [training.init(PARAMS, jax.random.key(0))]
    for _ in range(6):
        state, _ = training.step(states[-1], data)
        states.append(state)
    assert state.overflowed
    charged = int(state.num_steps_done)
    assert 1 <= charged < 6
    with pytest.raises(BatchOverflowError, match="planned capacity"):
        state.check_status()
    np.testing.assert_array_equal(states[charged - 1].params["w"], state.params["w"])
    with pytest.raises(BatchOverflowError, match="the capacity is 8"):
        list(batch_source(plan, training.init(PARAMS, jax.random.key(0)), N))


def test_a_sweep_is_one_program(training):
    """Traced noise, clip norm, learning rate and keys under one vmap equal separate runs, each with its own noise."""
    data = training.place(*rows())

    def run(noise, norm, rate, key):
        swept_plan = training.plan.replace(noise_multiplier=noise, clip=norm)
        swept = private_training(swept_plan, loss, optax.sgd(rate, momentum=0.9))
        state, _ = swept.run_steps(swept.init(PARAMS, key), data, 9)
        return state

    # The second of these runs has the numbers of `training`.
    noise = jnp.array([1.0, 2.0, 2.0])
    norm = jnp.array([0.5, 1.0, 1.0])
    rate = jnp.array([0.2, 0.1, 0.1])
    keys = jax.random.split(jax.random.key(5), 3)
    together = jax.jit(jax.vmap(run))(noise, norm, rate, keys)
    alone, _ = training.run_steps(training.init(PARAMS, keys[1]), data, 9)
    np.testing.assert_allclose(together.params["w"][1], alone.params["w"], rtol=1e-5, atol=1e-6)

    # Each run has a ledger and noise of its own; two of them differ by their keys alone.
    together = jax.tree.map(np.asarray, together._replace(sampling_key=None))
    for number in range(3):
        state = jax.tree.map(lambda leaf, number=number: leaf[number], together)
        (event,) = gdpjax.ledger_of(state.opt_state).events
        assert event.noise_multiplier == float(noise[number])
    weights = together.params["w"]
    assert np.abs(weights[1] - weights[2]).max() > 1e-3

    with pytest.raises(ValueError, match="share one noise key"):
        jax.vmap(run, in_axes=(0, 0, 0, None))(noise, norm, rate, keys[0])


def test_uniform_batches_and_example_keys():
    """Every batch is full, the ledger says how it was drawn, and each example and step has a key of its own."""
    plan = make_plan(WithoutReplacement(N, 8, num_steps=4), **PRIVATE)

    def drawn(params, x, y, key):
        return 0 * loss(params, x, y) + jax.random.uniform(key)

    training = private_training(plan, drawn, optax.sgd(0.1), example_key=True)
    data = training.place(*rows())
    state, info = training.run_steps(training.init(PARAMS, jax.random.key(0)), data, 4)
    (event,) = gdpjax.ledger_of(state.opt_state).events
    assert isinstance(event, UniformEvent)
    assert event.neighboring_relation is NeighboringRelation.REPLACE_ONE
    assert not info.is_padding.any()
    assert info.losses.shape == (4, 8)
    assert len(np.unique(info.losses)) == 4 * 8, "the keys of two examples or two steps are never the same"


def test_users_as_examples():
    """The unit of privacy is a user: all of a user's rows are one clipped gradient."""
    ids = np.repeat(np.arange(20), 3)
    x, y = rows()
    (users_x, users_y), is_padding = group_by_user(ids, x, y, max_per_user=4, key=jax.random.key(0))
    assert users_x.shape == (20, 4, D)
    np.testing.assert_array_equal(users_x[4, :3], x[12:15])

    def user_loss(params, x, y, is_padding):
        losses = jax.vmap(loss, (None, 0, 0))(params, x, y)
        total = jnp.sum(jnp.where(is_padding, 0.0, losses))
        num_rows = jnp.maximum(1, jnp.sum(~is_padding))
        return total / num_rows

    users = dict(max_examples=20, expected_batch_size=4, unit="user", clip=1e-3, num_steps=1)
    training = private_training(make_plan(**PLAN | users), user_loss, optax.sgd(1.0), num_arrays=3)
    state = training.init(PARAMS, jax.random.key(0))
    moved = []
    for factor in (1.0, 100.0):
        changed = users_x.copy()
        changed[7] *= factor
        after, _ = training.step(state, training.place(changed, users_y, is_padding))
        moved.append(np.asarray(after.params["w"]))
    assert np.linalg.norm(moved[0] - moved[1]) <= 2 * 1e-3 / 4 * (1 + 1e-4)


def test_a_users_rows_do_not_depend_on_the_others():
    """The rows that a user keeps are drawn for each user apart."""
    ids = np.array([1, 2, 2, 2, 3])
    x = np.arange(5.0)
    key = jax.random.key(3)
    (of_all_users,), _ = group_by_user(ids, x, max_per_user=2, key=key)
    (of_one_user,), _ = group_by_user(ids[1:4], x[1:4], max_per_user=2, key=key)
    np.testing.assert_array_equal(of_all_users[1], of_one_user[0])


def step_on_too_many(training):
    state = training.init(PARAMS, KEY)
    training.step_on(state, *rows(), is_padding=np.zeros(N, bool))


def train_statistics(training):
    training.init({"params": PARAMS, "batch_stats": {"mean": jnp.zeros(3)}}, KEY)


MASKED = np.ma.array([1, 1, 2], mask=[True, False, False])


def group(ids, x, max_per_user):
    return group_by_user(ids, np.array(x), max_per_user=max_per_user, key=KEY)


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda t: t.place(np.zeros((61, D)), np.zeros(61)), "more than the plan's public max_examples = 60"),
        (lambda t: t.step(t.init(PARAMS, KEY), rows()), "which training.place"),
        (lambda t: t.run_steps(t.init(PARAMS, KEY), Data((jnp.ones(61), jnp.ones(61)), 60), 2), "for another plan"),
        (step_on_too_many, "capacity of"),
        (lambda t: t.init(PARAMS, 0), "PRNG key"),
        (train_statistics, "GroupNorm"),
        (lambda t: batch_source(t.plan, t.init(PARAMS, KEY), 61), "max_examples = 60"),
        (lambda t: group([1, 2], [0.0, 0.0, 0.0], 1), "one for each of 3 rows"),
        (lambda t: group([1, 2, 2], [0.0, 0.0, 0.0], 10**9), "more than all 3 rows"),
        (lambda t: group(MASKED, [0.0, 0.0, 0.0], 1), "none masked"),
        (lambda t: group(["a", " ", "b"], [0.0, 0.0, 0.0], 1), "name the owner of each row"),
        (lambda t: group(["a", float("nan"), "b"], [0.0, 0.0, 0.0], 1), "name the owner of each row"),
        (lambda t: group([b"a", b"", b"b"], [0.0, 0.0, 0.0], 1), "name the owner of each row"),
        (lambda t: t.place(np.zeros((60, D)), np.ma.array(np.zeros(60), mask=np.eye(60)[0])), "array of numbers"),
    ],
)
def test_bad_input(training, act, message):
    """Data or an argument that the plan does not cover is refused in words."""
    with pytest.raises(ValueError, match=message):
        act(training)


def test_a_public_number_must_be_met():
    """The data have the number of examples that is public."""
    plan = make_plan(**PLAN | dict(neighboring_relation=NeighboringRelation.REPLACE_SPECIAL))
    training = private_training(plan, loss, optax.sgd(0.1))
    training.place(*rows(N))
    with pytest.raises(ValueError, match="is public and equal"):
        training.place(*rows(N - 1))


def test_an_optimizer_that_is_private_itself(training):
    """An optimizer that adds noise itself is refused, as noise is added once."""
    inner = gdpjax.dpsgd(0.1, training.grad_fn, 1.0, PoissonNumbers(0.1, 6), jax.random.key(0))
    twice = private_training(training.plan, loss, inner)
    with pytest.raises(ValueError, match="give it the plain optimizer"):
        twice.init(PARAMS, jax.random.key(0))


def test_what_is_not_trained_stays_as_it_is():
    """Weight decay would shrink a frozen leaf, and Adam's moments of whole numbers would become floats."""

    def loss_of_three(params, x):
        return jnp.sum(jnp.tanh(x @ params["w"]) * params["table"] * params["count"])

    plan = make_plan(**PLAN | dict(max_examples=20, expected_batch_size=5, num_steps=2))
    params = {"w": jnp.ones((3, 2)), "table": jnp.ones(2), "count": jnp.arange(2)}
    trainable = {"w": True, "table": False, "count": True}
    optimizer = optax.adamw(0.1, weight_decay=0.5)
    training = private_training(plan, loss_of_three, optimizer, num_arrays=1, trainable=trainable)
    data = training.place(np.ones((20, 3), np.float32))
    state, _ = training.run_steps(training.init(params, gdpjax.fresh_key()), data, 2)
    for name in ("table", "count"):
        assert state.params[name].dtype == params[name].dtype
        np.testing.assert_array_equal(state.params[name], params[name])
    assert not np.any(np.equal(state.params["w"], 1.0))
