"""`privatize` and the optimizers: what is released, what is recorded, and what is refused."""

import functools
import inspect

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy import stats

import gdpjax
from gdpjax import correlated, mechanisms, sampling, training
from gdpjax.accounting import epsilon_bounds, moments_accountant_epsilon
from gdpjax.sampling import PoissonNumbers, WithoutReplacement
from tests.transforms.recorded import recorded

SUM = gdpjax.Sensitivity(1.0)
NUMBERS = {"sampling_prob": 0.01, "expected_batch_size": 50.0, "overflow_per_step": 0.0}
PRIVATE = {"noise_multiplier": 1.3, "batches": PoissonNumbers(**NUMBERS), "key": jax.random.key(0)}


def make(**changes):
    numbers = {name: changes.pop(name, number) for name, number in NUMBERS.items()}
    return gdpjax.privatize(**{"clip": SUM, **PRIVATE, "batches": PoissonNumbers(**numbers), **changes})


def first_release(tx, params, total=None):
    """Return the release of the first step of a transformation; tests call it in what they compile."""
    total = params if total is None else total
    released, _ = tx.update(total, tx.init(params), params)
    return released


LARGE = 20_000
LARGE_TOTAL = 300.0


@functools.cache
def released_in_each_dtype():
    """Return the releases of a total of 300s in half precision and in single, by one program."""

    @jax.jit
    def release():
        released = {}
        for dtype in ("bfloat16", "float16", "float32"):
            params = {"w": jnp.zeros(LARGE, dtype)}
            released[dtype] = first_release(make(), params, {"w": jnp.full(LARGE, LARGE_TOTAL, dtype)})["w"]
        return released

    return release()


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_leaves_get_the_noise_of_float32_ones(dtype):
    """Not rounded to the leaf's dtype anywhere: the standard deviation is 1.3, not bfloat16's 1.296875."""
    released = released_in_each_dtype()
    assert released[dtype].dtype == jnp.float32
    np.testing.assert_array_equal(released[dtype], released["float32"])


@functools.cache
def released_under_each_relation():
    """Return the releases of a total of 300s with a clip norm of 1/2, by one program."""

    @jax.jit
    def release():
        released = {}
        for relation in gdpjax.NeighboringRelation:
            replaces = relation is gdpjax.NeighboringRelation.REPLACE_ONE
            batches = WithoutReplacement(5000, 50, 10) if replaces else PRIVATE["batches"]
            tx = make(clip=gdpjax.Sensitivity(0.5), neighboring_relation=relation, batches=batches)
            params = {"w": jnp.zeros(LARGE)}
            released[relation.name] = first_release(tx, params, {"w": jnp.full(LARGE, LARGE_TOTAL)})["w"]
        return released

    return release()


@pytest.mark.parametrize("relation", list(gdpjax.NeighboringRelation))
def test_released_mean_and_deviation(relation):
    released = released_under_each_relation()[relation.name]
    noise = np.asarray(released, np.float64) * 50 - LARGE_TOTAL
    deviation = 1.3 * 0.5 * relation.sensitivity_factor
    assert stats.kstest(noise / deviation, "norm").pvalue > 1e-4


@functools.cache
def step_on_padded_rows():
    """A compiled step from rows and from which of them are padding, with one on no rows; and how many numbers."""
    grad_fn, size = gdpjax.clipped_grad(lambda w, x: jnp.vdot(w, x), 1.0), 16_000
    tx, w = make(clip=grad_fn), jnp.zeros(size)

    @jax.jit
    def step(rows, is_padding):
        state = tx.init(w)
        padded, _ = tx.update(grad_fn(w, rows, is_padding=is_padding), state, w)
        empty, _ = tx.update(grad_fn(w, rows[:0], is_padding=is_padding[:0]), state, w)
        return padded, empty

    return step, size


@pytest.mark.parametrize("num_real", [0, 1, 2, 8])
def test_noise_does_not_depend_on_the_realised_batch(num_real):
    """Traps 1 and 2: the divisor is the expected batch size, for empty and all-padding batches too."""
    step, size = step_on_padded_rows()
    released, empty = step(np.zeros((8, size), np.float32), np.arange(8) >= num_real)
    assert abs(np.std(released) / (1.3 / 50) - 1) < 0.02
    np.testing.assert_array_equal(empty, released)


def test_steps_leaves_and_keys_give_independent_noise():
    params = {"a": jnp.zeros(16_000), "b": jnp.zeros(16_000), "c": {"a": jnp.zeros(16_000)}}

    @jax.jit
    def two_steps(key):
        tx = make(key=key)

        def step(state, _):
            released, state = tx.update(params, state, params)
            return state, released

        return jax.lax.scan(step, tx.init(params), length=2)[1]

    draws = []
    for key in [jax.random.key(0), jax.random.key(1)]:
        for leaf in jax.tree.leaves(two_steps(key)):
            draws += list(np.asarray(leaf))
    assert len(draws) == 12
    correlations = np.corrcoef(draws) - np.eye(len(draws))
    assert np.abs(correlations).max() < 5 / np.sqrt(16_000)


NEED_A_KEY = [
    gdpjax.privatize,
    gdpjax.privatize_adaptive,
    gdpjax.dpsgd,
    gdpjax.dpadam,
    gdpjax.add_gaussian_noise,
    sampling.poisson_sample,
    sampling.Poisson.sample,
    sampling.Poisson.on_host,
    sampling.HostBatches,
    training.start_run,
    training.group_by_user,
    mechanisms.GaussianMechanism.sample,
    mechanisms.LaplaceMechanism.sample,
    mechanisms.RandomizedResponse.sample,
    mechanisms.PoissonSubsampled.sample,
]


@pytest.mark.parametrize("function", NEED_A_KEY, ids=lambda f: f.__qualname__)
def test_no_key_has_a_default(function):
    """Trap 10: a default key is one key for everybody."""
    assert inspect.signature(function).parameters["key"].default is inspect.Parameter.empty


def test_noise_of_a_leaf_does_not_depend_on_other_leaves():
    tx, update = make(), jax.jit(make().update)
    released = []
    for params in ({"a": jnp.zeros(5)}, {"a": jnp.zeros(5), "b": jnp.zeros(7)}):
        updates, _ = update(params, tx.init(params), params)
        released.append(updates["a"])
    # Two programs may round the last product and sum at once, or one after the other.
    np.testing.assert_allclose(released[0], released[1], rtol=1e-6)


def test_frozen_and_integer_leaves_leave_as_exact_zeros():
    def loss(params, x):
        return jnp.vdot(params["w"], x) + params["frozen"].sum()

    grad_fn = gdpjax.clipped_grad(loss, 1.0, trainable={"w": True, "frozen": False, "n": True})
    params = {"w": jnp.zeros(3), "frozen": jnp.zeros(3), "n": jnp.arange(2)}
    tx = make(clip=grad_fn)
    jax.eval_shape(grad_fn, params, jnp.ones((4, 3)))

    # Even a sum that something wrote into a frozen leaf must not get out without noise.
    total = {"w": np.ones(3, np.float32), "frozen": np.ones(3, np.float32), "n": np.arange(2)}
    released = jax.jit(lambda total: first_release(tx, params, total))(total)
    assert np.all(released["w"])
    assert not np.any(released["frozen"])
    assert not np.any(released["n"])


SCHEMES = [
    sampling.Poisson(1000, 10, 100, capacity=20),
    sampling.WithoutReplacement(1000, 10, 100),
    sampling.TruncatedPoisson(1000, 10, 100, capacity=20),
    sampling.RandomAllocation(1000, 10, epochs=1, capacity=20),
    sampling.Shuffled(1000, 10, epochs=1),
    sampling.CyclicPoisson(1000, 10, 100, num_groups=5, capacity=20),
]
each_scheme = pytest.mark.parametrize("batches", SCHEMES, ids=lambda batches: type(batches).__name__)


@each_scheme
def test_the_overflow_of_every_step_is_recorded(batches):
    """Trap 83: what a scheme may lose is in the event of its steps, and where that has no place for it it is 0."""
    (event,) = recorded(make(batches=batches), jnp.zeros(1), 50)
    assert event == batches.event(event.noise_multiplier, 50).of_steps(
        event.noise_multiplier,
        getattr(event, "sampling_prob", 1.0),
        50,
        overflow=getattr(event, "overflow", 0.0),
    )
    if hasattr(event, "overflow"):
        assert batches.overflow / 2 <= event.overflow <= batches.overflow / 2 * (1 + 1e-5) + 1e-36
    else:
        assert batches.overflow == 0.0


@each_scheme
def test_an_announcement_is_recorded_or_refused(batches):
    """Trap 83: an event that does not hold it would drop it."""
    if not hasattr(batches.step_event(), "announced"):
        with pytest.raises(ValueError, match="does not hold whether an overflow is announced"):
            make(batches=batches, announced=True)
        return
    assert recorded(make(batches=batches, announced=True), jnp.zeros(1), 2)[0].announced
    assert not recorded(make(batches=batches), jnp.zeros(1), 2)[0].announced


def test_independent_noise_is_not_recorded_as_that_of_a_strategy():
    """Trap 83: eight participations with independent noise are eight releases, not one."""
    batches = sampling.Promised(50.0, 100, correlated.MinSep(8, 1))
    with pytest.raises(ValueError, match="only correlated noise is accounted for"):
        make(batches=batches)


def test_every_row_of_an_embedding_is_noised():
    """Trap 25: rows no example touched must not show it."""
    grad_fn = gdpjax.clipped_grad(lambda table, i: table[i].sum(), 1.0)
    table, tx = jnp.zeros((50, 4)), make(clip=grad_fn)

    @jax.jit
    def release(rows):
        return first_release(tx, table, grad_fn(table, rows))

    released = release(np.array([1, 2]))
    assert np.all(np.asarray(released) != 0)


def test_ledger_records_what_was_run_and_merges_equal_steps():
    (event,) = recorded(make(overflow_per_step=1e-9), {"w": jnp.zeros(3)}, 5).events
    assert (type(event), event.num_steps) == (gdpjax.Event, 5)
    assert event.neighboring_relation.name == "ADD_OR_REMOVE_ONE"
    assert 0 <= 1.3 - event.noise_multiplier < 3e-7
    assert 0 <= event.sampling_prob - 0.01 < 1e-9
    np.testing.assert_allclose(event.overflow, 5e-9, rtol=1e-5)


def test_scheduled_noise_multiplier_is_recorded_by_phase_without_recompiling():
    schedule = optax.join_schedules([optax.constant_schedule(1.0), optax.constant_schedule(2.0)], [3])
    events = recorded(make(noise_multiplier=schedule), {"w": jnp.zeros(3)}, 7).events
    assert [(event.noise_multiplier, event.num_steps) for event in events] == [(1.0, 3), (2.0, 4)]


def scheduled_ledger(schedule, num_steps):
    """Return the ledger of so many steps with a schedule of the noise multiplier, in one compiled loop."""
    tx = make(noise_multiplier=schedule)
    params = jnp.zeros(1)

    @jax.jit
    def run(state):
        def step(_, state):
            after = tx.update(params, state, params)[1]
            return state._replace(count=after.count, ledger=after.ledger)

        return jax.lax.fori_loop(0, num_steps, step, state)

    return gdpjax.ledger_of(run(tx.init(params)))


def test_the_bracket_of_a_schedule_is_that_of_its_steps():
    """Trap 84: one row for the least noise of many steps made a lower end above the truth."""
    schedule = optax.linear_schedule(4.0, 1.0, 100)
    steps = gdpjax.Ledger(gdpjax.Event(float(schedule(t)), 0.01, 1) for t in range(100))
    truth = epsilon_bounds(steps, delta=1e-5)
    ledger = scheduled_ledger(schedule, 100)
    bracket = epsilon_bounds(ledger, delta=1e-5)
    assert truth.lower * (1 - 1e-3) < bracket.lower <= truth.upper
    assert truth.lower <= bracket.upper < truth.upper * (1 + 1e-3)
    assert moments_accountant_epsilon(ledger, delta=1e-5) > bracket.upper


def test_every_step_of_a_long_schedule_has_its_own_numbers():
    ledger = scheduled_ledger(optax.linear_schedule(4.0, 1.0, 3000), 3000)
    assert len(ledger) == ledger.num_steps == 3000
    assert all(event.is_exact for event in ledger)


def two_configurations(noise_multiplier, total=None):
    tx = make(noise_multiplier=noise_multiplier)
    params = {"w": jnp.zeros(4)}
    return tx.update(params if total is None else total, tx.init(params), params)[0]


def test_a_key_shared_by_the_configurations_of_a_sweep_is_refused():
    """Trap 38: with sigma 1 and 2 and one key, 2 u1 - u2 is the clipped sum without noise."""
    leaked = 2 * two_configurations(1.0)["w"] - two_configurations(2.0)["w"]
    assert np.abs(leaked).max() < 1e-6  # the attack works on a shared key, which is why vmap over one is refused
    mapped = jax.vmap(two_configurations)
    for sweep in (mapped, jax.jit(mapped), jax.vmap(jax.jit(two_configurations))):
        with pytest.raises(ValueError, match="share one noise key"):
            sweep(jnp.array([1.0, 2.0]))
    with pytest.raises(ValueError, match="share one noise key"):
        jax.vmap(lambda total: two_configurations(1.0, {"w": total}))(jnp.ones((2, 4)))


def test_state_of_one_key_mapped_over_many_updates_is_refused():
    tx, params = make(), {"w": jnp.zeros(4)}
    totals = {"w": jnp.ones((2, 4))}
    with pytest.raises(ValueError, match="share one noise key"):
        jax.vmap(tx.update, in_axes=(0, None, None))(totals, tx.init(params), params)


def test_traced_nonsense_gives_nan_not_a_number():
    params = {"w": jnp.zeros(4)}

    def once(noise_multiplier, divisor):
        tx = make(noise_multiplier=noise_multiplier, expected_batch_size=divisor)
        return tx.update(params, tx.init(params), params)[0]["w"]

    for bad in [(-1.0, 50.0), (jnp.nan, 50.0), (0.0, 50.0), (1.0, 0.0), (1.0, -5.0)]:
        assert np.isnan(jax.jit(once)(*bad)).all(), bad


@pytest.mark.parametrize("noise_multiplier", [True, 1 + 0j])
def test_a_traced_noise_multiplier_that_is_no_real_number_is_refused(noise_multiplier):
    with pytest.raises(ValueError, match="noise_multiplier must be"):
        jax.jit(lambda traced: make(noise_multiplier=traced).init({"w": jnp.zeros(4)}))(noise_multiplier)


def test_unclipped_or_per_example_gradients_are_refused():
    tx, params = make(), {"w": jnp.zeros(3)}
    state = tx.init(params)
    with pytest.raises(ValueError, match="needs the parameters"):
        tx.update(params, state)
    with pytest.raises(ValueError, match="clip_and_sum"):
        tx.update({"w": jnp.zeros((8, 3))}, state, params)
    with pytest.raises(ValueError, match="a tree like the parameters"):
        tx.update({"v": jnp.zeros(3)}, state, params)


@pytest.mark.parametrize("wrap", ["masked", "partition"])
def test_masks_around_the_private_transform_are_refused(wrap):
    """Trap 40: optax.masked would pass the masked leaf's sum through without noise."""
    params = {"a": jnp.zeros(3), "b": jnp.zeros(3)}
    inner = gdpjax.dpsgd(0.1, clip=SUM, **PRIVATE)
    if wrap == "masked":
        tx = optax.masked(inner, {"a": True, "b": False})
    else:
        tx = optax.partition({"private": inner, "plain": optax.sgd(0.1)}, {"a": "private", "b": "plain"})
    with pytest.raises(ValueError, match="trainable="):
        tx.update(params, tx.init(params), params)


def test_two_ledgers_in_one_state_are_refused():
    """Trap 39: two releases from the same batch are one joint event."""
    tx = optax.chain(make(), make(key=jax.random.key(1)))
    with pytest.raises(ValueError, match="joint"):
        gdpjax.ledger_of(tx.init({"w": jnp.zeros(3)}))
    with pytest.raises(ValueError, match="got 0 ledgers"):
        gdpjax.ledger_of(optax.adam(1e-3).init({"w": jnp.zeros(3)}))


REFUSALS = {
    "negative noise": (dict(noise_multiplier=-1.0), "noise_multiplier must be"),
    "NaN noise": (dict(noise_multiplier=float("nan")), "noise_multiplier must be"),
    "noise that float32 takes for 0": (dict(noise_multiplier=5e-324), "noise_multiplier must be .* range of float32"),
    "probability": (dict(sampling_prob=1.5), "sampling_prob must be a probability > 0 and at most 1"),
    "no probability": (dict(sampling_prob=64 // 1000), r"64 // 1000 is 0, 64 / 1000 is not"),
    "batch size": (dict(expected_batch_size=0), "expected_batch_size must be"),
    "no key": (dict(key=None), "key must be a PRNG key"),
    "many keys": (dict(key=jax.random.split(jax.random.key(0), 2)), "one PRNG key"),
    "jitted grad_fn": (dict(clip=jax.jit(lambda x: x)), "jax.jit"),
    "no batches": (dict(batches=None), "batches must be a sampling scheme, such as"),
    "bfloat16 noise": (dict(noise_multiplier=jnp.bfloat16(1.3)), "hyperparam_dtype=jnp.float32"),
    "certain overflow": (dict(overflow_per_step=1.0), "overflow_per_step must be"),
    "unknown noise": (dict(noise="gaussian"), "noise must be an IndependentGaussian"),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_bad_input_is_refused(case):
    options, message = REFUSALS[case]
    with pytest.raises(ValueError, match=message):
        make(**options)


BAD_PARAMS = {
    "a word": ({"w": "weights"}, "params must be a pytree of arrays"),
    "complex": ({"w": jnp.ones(3, complex)}, "is complex"),
    "masked": ({"w": optax.MaskedNode()}, "trainable="),
}


@pytest.mark.parametrize("case", BAD_PARAMS)
def test_init_checks_the_parameters(case):
    params, message = BAD_PARAMS[case]
    adaptive = gdpjax.privatize_adaptive(initial_l2_clip_norm=1.0, count_stddev=1.0, **PRIVATE)
    for tx in (make(), adaptive, gdpjax.dpsgd(0.1, clip=SUM, **PRIVATE)):
        with pytest.raises(ValueError, match=message):
            tx.init(params)


def test_both_ways_of_clipping_give_the_same_step():
    params = jnp.ones(3)
    x = np.random.default_rng(0).normal(0.0, 3.0, size=(6, 3)).astype(np.float32)

    def loss(w, x):
        return jnp.vdot(w, x) ** 2

    grad_fn = gdpjax.clipped_grad(loss, 0.7)

    @jax.jit
    def both(params):
        total, rows = grad_fn(params, x), gdpjax.per_example_grad(loss)(params, x)
        updates = []
        for optimizer in (gdpjax.dpsgd, gdpjax.dpadam):
            by_sum = first_release(optimizer(0.1, clip=grad_fn, **PRIVATE), params, total)
            by_rows = first_release(optimizer(0.1, 0.7, **PRIVATE), params, rows)
            updates.append((by_sum, by_rows))
        return updates

    for by_sum, by_rows in both(params):
        np.testing.assert_allclose(by_sum, by_rows, rtol=1e-5)


def test_clip_and_sum_refuses_what_is_not_per_example():
    clip = gdpjax.clip_and_sum(1.0)
    with pytest.raises(ValueError, match="same leading batch axis"):
        clip.update({"a": jnp.ones((3, 2)), "b": jnp.ones((4, 2))}, clip.init(None))
    with pytest.raises(ValueError, match="same leading batch axis"):
        clip.update({"a": jnp.ones(())}, clip.init(None))
    with pytest.raises(ValueError, match="a tree like the parameters"):
        clip.update({"a": jnp.ones((3, 2))}, clip.init(None), {"a": jnp.ones(5)})
    with pytest.raises(ValueError, match="no trainable floating"):
        clip.update({"a": jnp.ones((3, 2), int)}, clip.init(None))


def behind_a_predicate(branching, total):
    """A release that `branching` makes where the total is above -1."""
    params = {"w": jnp.zeros(4)}
    tx = make(noise_multiplier=1.0)
    if branching == "apply_if_finite":
        return first_release(optax.apply_if_finite(tx, 3), params, total)["w"]

    def step(total):
        return first_release(tx, params, total)["w"]

    def unchanged(total):
        return total["w"]

    index = (total["w"][0] > -1).astype(int)
    if branching == "cond":
        return jax.lax.cond(index == 1, step, unchanged, total)
    return jax.lax.switch(index, [unchanged, step], total)


BRANCHINGS = ["cond", "switch", "apply_if_finite"]


@pytest.mark.parametrize("branching", BRANCHINGS)
def test_a_shared_key_behind_a_batched_predicate_gives_nan(branching):
    """Batching a cond broadcasts its operands, so that the shared key only shows in its values."""
    mapped = jax.jit(jax.vmap(functools.partial(behind_a_predicate, branching)))
    try:
        released = np.asarray(mapped({"w": np.float32([[0] * 4, [10] * 4])}))
    except ValueError as error:
        assert "share one noise key" in str(error)  # noqa: PT017
    else:
        assert not np.isfinite(released).any() or not (released[1] - released[0] == 10).all()
        assert branching == "apply_if_finite" or np.isnan(released).all()


def test_a_key_of_its_own_behind_a_predicate_is_accepted():
    @jax.jit
    def release(total):
        return [behind_a_predicate(branching, total) for branching in BRANCHINGS]

    assert np.isfinite(release({"w": np.zeros(4, np.float32)})).all()


def test_keys_that_differ_pass_under_nested_vmap():
    keys = jax.random.split(jax.random.key(0), 6).reshape(2, 3)
    params = {"w": jnp.zeros(4)}

    def release(noise_multiplier, key):
        tx = make(noise_multiplier=noise_multiplier, key=key)
        return tx.update(params, tx.init(params), params)[0]["w"]

    sweep = jax.jit(jax.vmap(jax.vmap(release)))
    ones = np.ones((2, 3), np.float32)
    assert np.isfinite(sweep(ones, keys)).all()
    repeated = jnp.stack([keys[0], keys[0]])
    assert np.isnan(sweep(ones, repeated)).all()


def test_values_of_a_schedule_are_checked_too():
    params = {"w": jnp.zeros(4)}
    for schedule in (lambda t: 0.0, lambda t: -1.0, optax.linear_schedule(0.0, 0.0, 10), lambda t: jnp.ones(2)):
        tx = make(noise_multiplier=schedule)
        with pytest.raises(ValueError, match="noise_multiplier must be"):
            tx.update(params, tx.init(params), params)
    tx = make(noise_multiplier=optax.linear_schedule(0.0, 1.0, 10))
    released, _ = jax.jit(tx.update)(params, tx.init(params), params)
    assert np.isnan(released["w"]).all()


def test_a_noise_that_would_vanish_or_overflow_shows():
    params = {"w": jnp.zeros(4)}
    for sensitivity, noise_multiplier in [(1e-30, 1e-10), (1e30, 1e10)]:
        tx = make(clip=gdpjax.Sensitivity(sensitivity), noise_multiplier=noise_multiplier)
        assert np.isnan(tx.update(params, tx.init(params), params)[0]["w"]).all()


BEFORE = {
    "ScaleByAdam": lambda: optax.adam(0.1),
    "Trace": lambda: optax.trace(0.9),
    "ScaleBySchedule": lambda: optax.scale_by_schedule(lambda count: 0.5),
}


@pytest.mark.parametrize("name", BEFORE)
def test_transforms_with_a_state_before_the_noise_have_no_ledger(name):
    """Trap 28: the sums that adam or momentum returns have another sensitivity than the clipped ones."""
    params = {"w": jnp.zeros(4)}

    def nested(first, second):
        return optax.chain(optax.chain(optax.scale(1.0), first), second)

    for chain in (optax.chain, nested):
        with pytest.raises(ValueError, match=f"{name} comes before the private transform"):
            gdpjax.ledger_of(chain(BEFORE[name](), make()).init(params))
        assert len(gdpjax.ledger_of(chain(make(), BEFORE[name]()).init(params))) == 0
    clipped_in_the_chain = optax.chain(gdpjax.clip_and_sum(1.0), make(), optax.adam(0.1))
    assert len(gdpjax.ledger_of(clipped_in_the_chain.init(params))) == 0


def test_a_concrete_noise_multiplier_of_zero_adds_nothing_and_is_recorded():
    """Only the number 0 asks for that: noise that vanishes on the way, or a traced 0, still shows as NaN."""
    params, total = {"w": jnp.zeros(4)}, {"w": jnp.arange(4.0)}

    def steps_of(noise_multipliers):
        transforms = [make(noise_multiplier=each, expected_batch_size=2.0) for each in noise_multipliers]
        return jax.jit(lambda: [tx.update(total, tx.init(params), params) for tx in transforms])()

    for mean, state in steps_of((0, 0.0, np.float32(0))):
        np.testing.assert_array_equal(mean["w"], np.arange(4.0) / 2)
        assert gdpjax.ledger_of(state)[0].noise_multiplier == 0.0
    for mean, _ in steps_of((2e-38, lambda step: 0.0 * step)):
        assert np.isnan(mean["w"]).all()
