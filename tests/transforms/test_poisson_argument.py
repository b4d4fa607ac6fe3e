"""Poisson batches of the private transforms are their numbers, each drawn with, noised with and recorded."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gdpjax
from gdpjax import sampling
from gdpjax.sampling import Poisson, PoissonNumbers
from tests.transforms.recorded import recorded

pytestmark = pytest.mark.usefixtures("cheap_noise")
KEY = jax.random.key(3)
SUM = gdpjax.Sensitivity(1.0)
PARAMS = {"w": jnp.arange(3.0)}
BATCHES = Poisson(num_examples=1000, expected_batch_size=64, num_steps=100, capacity=100)
ROWS = {"w": jnp.ones((BATCHES.capacity, 3))}


def long_form(batches=BATCHES):
    """The numbers that ``batches`` stands for, each from the function that a loop by hand calls."""
    prob = sampling.dyadic_probability(batches.expected_batch_size / batches.num_examples)
    overflow = sampling.overflow_probability(batches.num_examples, prob, 1, batches.capacity)
    return PoissonNumbers(prob, batches.expected_batch_size, overflow)


def private(**options):
    return {"noise_multiplier": 1.3, "key": KEY, **options}


MAKERS = {
    "privatize": (lambda **options: gdpjax.privatize(SUM, **private(**options)), PARAMS),
    "privatize_adaptive": (
        lambda **options: gdpjax.privatize_adaptive(initial_l2_clip_norm=1.0, count_stddev=2.0, **private(**options)),
        ROWS,
    ),
    "dpsgd": (lambda **options: gdpjax.dpsgd(0.1, 1.0, **private(**options)), ROWS),
    "dpadam": (lambda **options: gdpjax.dpadam(0.1, clip=SUM, **private(**options)), PARAMS),
}
each_transform = pytest.mark.parametrize("name", MAKERS)


def steps(tx, updates, num_steps=3, update=None):
    """Return the releases of all steps, and the last state."""
    state, released = tx.init(PARAMS), []
    update = tx.update if update is None else update
    for _ in range(num_steps):
        one, state = update(updates, state, PARAMS)
        released.append(one)
    return released, state


def steps_of_both(short, long, updates, num_steps=3):
    """`steps` of two transformations, by one program: with the same numbers they draw the same noise."""

    @jax.jit
    def step(short_state, long_state):
        return short.update(updates, short_state, PARAMS), long.update(updates, long_state, PARAMS)

    states, released = (short.init(PARAMS), long.init(PARAMS)), []
    for _ in range(num_steps):
        (one, state), (other, other_state) = step(*states)
        released.append((one, other))
        states = state, other_state
    ones, others = zip(*released, strict=True)
    return (ones, states[0]), (others, states[1])


def assert_equal_trees(tree, other):
    assert jax.tree.structure(tree) == jax.tree.structure(other)
    for leaf, other_leaf in zip(jax.tree.leaves(tree), jax.tree.leaves(other), strict=True):
        assert jnp.result_type(leaf) == jnp.result_type(other_leaf)
        np.testing.assert_allclose(leaf, other_leaf, rtol=1e-14)


@pytest.mark.parametrize(("name", "x64"), [*[(name, False) for name in MAKERS], ("privatize", True)])
def test_it_is_its_numbers(name, x64):
    """Traps 4, 30 and 33: noise, ledger and epsilon are those of the numbers that the batches are drawn with."""
    make, updates = MAKERS[name]
    with jax.enable_x64(x64):
        short, long = make(batches=BATCHES), make(batches=long_form())
        found, expected = steps_of_both(short, long, updates)
        assert_equal_trees(found, expected)
        ledger = gdpjax.ledger_of(found[1])
    (event,) = ledger.events
    assert ledger.num_steps == 3
    assert type(event) is gdpjax.Event
    assert event.sampling_prob == BATCHES.sampling_prob
    assert 0 <= event.overflow / (3 * BATCHES.overflow_per_step) - 1 < 1e-6
    assert BATCHES.overflow_per_step > 1e-7


def test_the_ledgers_epsilon_is_that_of_the_run():
    tx = gdpjax.privatize(SUM, **private(batches=BATCHES))
    ledger = recorded(tx, PARAMS, 20)
    prob, tail = BATCHES.sampling_prob, 20 * BATCHES.overflow_per_step
    event = gdpjax.Event(ledger.events[0].noise_multiplier, prob, 20, overflow=ledger.events[0].overflow)
    assert ledger == gdpjax.Ledger([event])
    np.testing.assert_allclose(event.overflow, tail, rtol=1e-5)
    bounds = gdpjax.accounting.epsilon_bounds(ledger, delta=1e-3)
    ideal = gdpjax.accounting.epsilon_bounds(event.noise_multiplier, prob, 20, 1e-3)
    assert bounds.upper > ideal.upper


def test_nothing_is_charged_where_every_batch_fits():
    batches = Poisson(10, 5, 3)
    assert batches.capacity == 16
    ledger = recorded(gdpjax.privatize(SUM, **private(batches=batches)), PARAMS, 3)
    assert ledger.events[0].overflow == 0.0


def test_more_steps_than_it_was_made_for_are_charged_one_by_one():
    batches = Poisson(1000, 64, 2, capacity=102)
    tx = gdpjax.privatize(SUM, **private(batches=batches))
    (event,) = recorded(tx, PARAMS, 6).events
    assert event.num_steps == 6
    np.testing.assert_allclose(event.overflow, 3 * batches.overflow, rtol=1e-5)
    assert batches.overflow > 1e-7


def test_the_divisor_is_the_number_that_was_given():
    """Not p times the number of examples, which is a little less: without noise the mean shows it."""
    tx = gdpjax.privatize(SUM, **private(batches=BATCHES, noise_multiplier=0.0))
    (mean,), _ = steps(tx, PARAMS, 1)
    np.testing.assert_array_equal(mean["w"], PARAMS["w"] / 64)
    assert jnp.float32(BATCHES.sampling_prob * 1000) < 64


def test_a_sweep_over_probabilities_gives_their_numbers():
    def one_run(sampling_prob, key):
        tx = gdpjax.privatize(SUM, 1.0, PoissonNumbers(sampling_prob, 1000 * sampling_prob), key)
        return tx.update(PARAMS, tx.init(PARAMS), PARAMS)[1].ledger.sampling_prob[0]

    probs = np.float32([0.25, 0.5])
    np.testing.assert_array_equal(jax.jit(jax.vmap(one_run))(probs, jax.random.split(KEY, 2)), probs)
    with pytest.raises(ValueError, match="known before compiling"):
        jax.vmap(lambda size: Poisson(1000, size, 10).sampling_prob)(jnp.array([64.0, 128.0]))


def test_an_accumulated_logical_batch():
    batches = Poisson(1000, 64, 10, capacity=2 * 60)
    tx = gdpjax.accumulate_clipped(gdpjax.privatize(SUM, **private(batches=batches)), 2)
    _, state = steps(tx, PARAMS, 4, update=jax.jit(tx.update))
    (event,) = gdpjax.ledger_of(state).events
    assert event.num_steps == 2
    np.testing.assert_allclose(event.overflow, 2 * batches.overflow_per_step, rtol=1e-5)


WRONG = {"host batches": BATCHES.on_host(KEY), "a text": "poisson", "the class": Poisson}


@pytest.mark.parametrize("wrong", WRONG)
@each_transform
def test_what_is_no_scheme_is_refused(name, wrong):
    make, _ = MAKERS[name]
    with pytest.raises(ValueError, match=r"batches must be a sampling scheme, such as gdpjax\.sampling\.Poisson"):
        make(batches=WRONG[wrong])


def traced_numbers(sampling_prob, expected_batch_size, overflow_per_step):
    tx = gdpjax.privatize(SUM, 1.0, PoissonNumbers(sampling_prob, expected_batch_size, overflow_per_step), KEY)
    released, state = tx.update(PARAMS, tx.init(PARAMS), PARAMS)
    return released["w"], state.ledger.sampling_prob[0], state.ledger.extra_delta


def test_a_traced_number_out_of_range_is_nan():
    """It is what noise, ledger or mean is made of, so that nothing that looks right comes out."""
    compiled = jax.jit(traced_numbers)
    assert np.isfinite(np.concatenate([np.ravel(leaf) for leaf in compiled(0.1, 4.0, 1e-3)])).all()
    assert np.isnan(compiled(1.5, 4.0, 0.0)[1])
    assert np.isnan(compiled(0.1, -4.0, 0.0)[0]).all()
    assert np.isnan(compiled(0.1, 4.0, 1.0)[2])
