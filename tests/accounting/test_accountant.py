"""Accountants inside training loops: the closed forms, no understatement in float32, composition."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gdpjax import Event, Ledger
from gdpjax.accounting import (
    Tally,
    clt_epsilon,
    clt_mu_poisson,
    delta_bounds,
    epsilon_bounds,
    gdp_clt,
    gdp_compose,
    gdp_delta,
    moments_accountant_epsilon,
    mu_bounds,
    numeric,
    rdp,
    rdp_delta,
    rdp_epsilon,
    rdp_subsampled_gaussian,
)

# Both are exact in float32.
NOISE = 1.25
PROB = 2.0**-8
ORDERS = (1.5, 2.0, 4.0, 16.0)


def total(state):
    """Return the sum that a state holds in two parts."""
    high = np.asarray(state.high, np.float64)
    low = np.asarray(state.low, np.float64)
    return high + low


def test_one_call_of_the_moments_equals_the_closed_form():
    """Many equal steps at once have the epsilon and the delta of the moments accountant."""
    accountant = rdp()
    state = accountant.step(accountant.init(), NOISE, PROB, 3000)
    exact = moments_accountant_epsilon(NOISE, PROB, 3000, 1e-5)
    assert exact <= accountant.epsilon(state, 1e-5) <= exact * (1 + 1e-12)
    assert accountant.delta(state, exact) == pytest.approx(1e-5, rel=1e-9)


def test_one_call_of_the_limit_equals_the_closed_form():
    """Many equal steps at once have the mu, epsilon and delta of the central limit theorem."""
    accountant = gdp_clt()
    state = accountant.step(accountant.init(), NOISE, PROB, 3000)
    mu = clt_mu_poisson(NOISE, PROB, 3000)
    epsilon = clt_epsilon(NOISE, PROB, 3000, 1e-5)
    assert accountant.mu(state) == pytest.approx(mu, rel=1e-13)
    assert accountant.epsilon(state, 1e-5) == pytest.approx(epsilon, rel=1e-12)
    assert accountant.delta(state, 0.5) == pytest.approx(gdp_delta(0.5, mu), rel=1e-12)


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize(("factory", "closed"), [(rdp, moments_accountant_epsilon), (gdp_clt, clt_epsilon)])
def test_a_scanned_loop_equals_the_closed_form(factory, closed, wide):
    """Two thousand steps one by one give the closed form, and so does epsilon in the same program.

    The state is float32 in either case.
    """
    accountant = factory()
    num_steps = 2000

    @jax.jit
    def train(noise_multiplier):
        def step(state, _):
            return accountant.step(state, noise_multiplier, PROB), None

        state, _ = jax.lax.scan(step, accountant.init(), length=num_steps)
        return state, accountant.epsilon(state, 1e-5)

    with jax.enable_x64(wide):
        state, traced_epsilon = train(NOISE)
    exact = closed(NOISE, PROB, num_steps, 1e-5)
    assert state.high.dtype == state.low.dtype == jnp.float32
    assert exact <= accountant.epsilon(state, 1e-5) <= exact * (1 + 1e-9)
    assert traced_epsilon.dtype == (jnp.float64 if wide else jnp.float32)
    np.testing.assert_allclose(traced_epsilon, exact, rtol=1e-9 if wide else 1.3e-7)


def test_float32_loops_never_fall_below_the_sum():
    """The state of a float32 loop is at least the exact sum, where a plain float32 sum ends 5% low.

    The terms of the plain sum fall below half a unit of the total.
    """
    accountant = rdp(ORDERS)
    num_steps = 20_000
    noise_multiplier = np.float32(4.0)
    # A large total, to which the steps are small.
    start = accountant.step(accountant.init(), 1.0, 1.0, 10_000)
    per_step = rdp_subsampled_gaussian(noise_multiplier, PROB, ORDERS)

    @jax.jit
    def train(state):
        def step(_, carried):
            state, plain_sum = carried
            return accountant.step(state, noise_multiplier, PROB), plain_sum + jnp.float32(per_step)

        return jax.lax.fori_loop(0, num_steps, step, (state, state.high))

    end, plain_sum = train(start)
    exact_growth = num_steps * per_step
    growth = total(end) - total(start)
    assert (growth >= exact_growth * (1 - 1e-9)).all()
    exact_total = total(start) + exact_growth
    assert (total(end) <= exact_total * (1 + num_steps * 2.0**-45)).all()
    plain_growth = np.asarray(plain_sum, float) - np.asarray(start.high)
    assert (plain_growth < 0.95 * exact_growth).any()


def test_states_survive_the_way_into_compiled_code():
    """A state is the same in compiled code, where eager float64 would be rounded to nearest, so perhaps down."""
    accountant = rdp(ORDERS)
    state = accountant.step(accountant.init(), 1.1, 0.01, 7)
    passed_through = jax.jit(lambda state: state)(state)
    np.testing.assert_array_equal(total(passed_through), total(state))
    assert (total(state) >= 7 * rdp_subsampled_gaussian(1.1, 0.01, ORDERS)).all()


PHASES = [(1.0, 0.01, 100), (2.0, 0.05, 30), (0.7, 0.001, 1), (5.0, 0.0, 9), (3.0, 1.0, 2)]


def state_after_phases(accountant):
    """Return the state of an accountant after all PHASES."""
    state = accountant.init()
    for phase in PHASES:
        state = accountant.step(state, *phase)
    return state


def test_different_steps_compose():
    """Divergences add up over phases, and so do the squares of mu."""
    accountant = rdp(ORDERS)
    state = state_after_phases(accountant)
    expected = 0.0
    for noise_multiplier, sampling_prob, num_steps in PHASES:
        expected = expected + num_steps * rdp_subsampled_gaussian(noise_multiplier, sampling_prob, ORDERS)
    np.testing.assert_allclose(total(state), expected, rtol=1e-13)
    assert (total(state) >= expected * (1 - 1e-15)).all()
    expected_epsilon = rdp_epsilon(expected, ORDERS, 1e-6)
    expected_delta = rdp_delta(expected, ORDERS, 3.0)
    assert accountant.epsilon(state, 1e-6) == pytest.approx(expected_epsilon, rel=1e-12)
    assert accountant.delta(state, 3.0) == pytest.approx(expected_delta, rel=1e-9)
    no_steps = accountant.step(accountant.init(), 1e-3, 0.5, 0)
    assert accountant.epsilon(no_steps, 1e-5) == 0

    accountant = gdp_clt()
    state = state_after_phases(accountant)
    mus = [clt_mu_poisson(*phase) for phase in PHASES]
    assert accountant.mu(state) == pytest.approx(gdp_compose(mus), rel=1e-12)


def moments_at_few_orders():
    """Return the moments accountant at ORDERS."""
    return rdp(ORDERS)


@pytest.mark.parametrize("factory", [moments_at_few_orders, gdp_clt])
def test_batches_and_vmap(factory):
    """A batch of states and a state that is mapped over are the states one by one."""
    accountant = factory()
    noise_multipliers = np.array([1.0, 2.0, 4.0], np.float32)

    def two_steps(noise_multiplier, shape=()):
        state = accountant.step(accountant.init(shape), noise_multiplier, PROB, 3)
        return accountant.step(state, noise_multiplier, PROB)

    @jax.jit
    @jax.vmap
    def state_and_delta(noise_multiplier):
        state = two_steps(noise_multiplier)
        return state, accountant.delta(state, 1e-3)

    one_by_one = [two_steps(noise_multiplier) for noise_multiplier in noise_multipliers]
    totals = [total(state) for state in one_by_one]
    epsilons = [accountant.epsilon(state, 1e-5) for state in one_by_one]
    batch = two_steps(noise_multipliers, (3,))
    np.testing.assert_allclose(total(batch), totals, rtol=1e-12)
    np.testing.assert_allclose(accountant.epsilon(batch, 1e-5), epsilons, rtol=1e-12)
    mapped, deltas = state_and_delta(noise_multipliers)
    np.testing.assert_allclose(total(mapped), totals, rtol=1e-12)
    np.testing.assert_allclose(deltas, accountant.delta(batch, 1e-3), rtol=1e-6)

    # Noise that is out of range spoils its own state only.
    one_bad = np.array([1.0, -1.0, 2.0], np.float32)
    step = jax.jit(lambda noise_multiplier: accountant.step(accountant.init((3,)), noise_multiplier, PROB))
    parts = np.asarray(step(one_bad).high).reshape(3, -1)
    is_spoiled = np.isnan(parts).all(axis=1)
    np.testing.assert_array_equal(is_spoiled, [False, True, False])


def test_overflow_is_infinite_and_stays_so():
    """After a step of next to no noise nothing brings the total back, and nothing becomes NaN."""
    for accountant in (rdp(), gdp_clt()):
        state = accountant.step(accountant.init(), 1e-25, 1.0)
        state = accountant.step(state, 1.0, 0.1)
        assert np.isinf(state.high).any()
        assert not np.isnan(total(state)).any()
        assert accountant.epsilon(state, 1e-5) == np.inf


# Noise multiplier, sampling probability and number of steps; all are exact in float32.
RUNS = [(1.25, 2.0**-7, 300), (2.5, 2.0**-6, 200), (1.25, 2.0**-7, 100)]


def test_numeric_equals_the_certified_bounds():
    """The state is a run, and its answers are the upper ends of that run's brackets."""
    accountant = numeric()
    state = accountant.step(accountant.init(), NOISE, PROB, 1000)
    state = accountant.step(state, NOISE, PROB, 2000)
    assert np.asarray(state.num_steps).tolist() == [3000] + [0] * 15
    epsilon = epsilon_bounds(NOISE, PROB, 3000, 1e-5).upper
    delta = delta_bounds(NOISE, PROB, 3000, 0.5).upper
    assert accountant.epsilon(state, 1e-5) == pytest.approx(epsilon, rel=1e-9)
    assert accountant.delta(state, 0.5) == pytest.approx(delta, rel=1e-8)

    # Neither 1.1 nor 0.01 is a float32: they are rounded to the side that loses more.
    rounded = accountant.step(accountant.init(), 1.1, 0.01, 3000)
    epsilon = epsilon_bounds(1.1, 0.01, 3000, 1e-5).upper
    assert epsilon <= accountant.epsilon(rounded, 1e-5) <= epsilon * (1 + 1e-5)
    assert rounded.noise_multiplier[0] < 1.1
    assert rounded.sampling_prob[0] > 0.01


@pytest.mark.slow
def test_numeric_mu_equals_the_certified_one():
    """The mu of a state is the upper end of its run's bracket."""
    accountant = numeric()
    state = accountant.step(accountant.init(), NOISE, PROB, 3000)
    for failure in (1e-10, 1e-6):
        expected = mu_bounds(NOISE, PROB, 3000, failure).upper
        assert accountant.mu(state, failure) == pytest.approx(expected, rel=1e-9)
    assert accountant.mu(state) == accountant.mu(state, 1e-10)


@pytest.mark.parametrize("wide", [False, True])
def test_numeric_in_a_scanned_loop(wide):
    """A run of equal steps has one row, the bound is the Ledger's, and any schedule runs in the same program."""
    accountant = numeric(capacity=4)
    traces = []

    @jax.jit
    def train(noise_multipliers, sampling_probs):
        traces.append(None)

        def step(state, arguments):
            return accountant.step(state, *arguments), None

        state, _ = jax.lax.scan(step, accountant.init(), (noise_multipliers, sampling_probs))
        return state

    noise_of_runs, prob_of_runs, steps_of_runs = np.transpose(RUNS)
    steps_of_runs = steps_of_runs.astype(int)
    noise_multipliers = np.repeat(noise_of_runs, steps_of_runs).astype(np.float32)
    sampling_probs = np.repeat(prob_of_runs, steps_of_runs).astype(np.float32)
    with jax.enable_x64(wide):
        state = train(noise_multipliers, sampling_probs)
        train(noise_multipliers[::-1].copy(), sampling_probs[::-1].copy())
    assert len(traces) == 1
    assert [state.noise_multiplier.dtype, state.sampling_prob.dtype, state.num_steps.dtype] == ["f4", "f4", "i4"]
    assert np.asarray(state.num_steps).tolist() == [300, 200, 100, 0]
    assert not state.merged
    ledger = Ledger([Event(*run) for run in RUNS])
    expected = epsilon_bounds(ledger, delta=1e-5).upper
    assert accountant.epsilon(state, 1e-5) == pytest.approx(expected, rel=1e-9)


def test_numeric_reads_inside_compiled_code():
    """Epsilon may be read where it is traced, rounded up; NaN stays in the state until it is read."""
    accountant = numeric(capacity=2)
    noise_multipliers = np.array([1.25, 2.5, -1.0], np.float32)

    def step(noise_multiplier, shape=()):
        return accountant.step(accountant.init(shape), noise_multiplier, PROB, 500)

    @jax.jit
    def states_and_epsilons(noise_multipliers):
        states = jax.vmap(step)(noise_multipliers)
        return states, accountant.epsilon(states, 1e-5)

    mapped, traced = states_and_epsilons(noise_multipliers)
    valid = noise_multipliers[:2].astype(float)
    exact = epsilon_bounds(valid, PROB, 500, 1e-5).upper
    assert traced.dtype == jnp.float32
    assert (np.asarray(traced[:2], float) >= exact).all()
    np.testing.assert_allclose(traced[:2], exact, rtol=3e-7)
    np.testing.assert_array_equal(np.isnan(traced), [False, False, True])

    # A batch of states is the same, and its invalid member does not spoil the others.
    batch = jax.jit(lambda noise_multipliers: step(noise_multipliers, (3,)))(noise_multipliers)
    jax.tree.map(np.testing.assert_array_equal, mapped, batch)
    assert np.isnan(mapped.noise_multiplier).any(axis=-1).tolist() == [False, False, True]
    valid_states = jax.tree.map(lambda leaf: leaf[:2], mapped)
    np.testing.assert_allclose(accountant.epsilon(valid_states, 1e-5), exact, rtol=1e-9)

    # Half a step is an error that is seen where the state is read, after another step, too.
    @jax.jit
    def poisoned_state(num_steps):
        state = accountant.step(accountant.init(), 1.0, 0.1)
        return accountant.step(state, 1.0, 0.1, num_steps)

    state = accountant.step(poisoned_state(0.5), 1.0, 0.1)
    with pytest.raises(ValueError, match="noise_multiplier must be a finite number > 0, got nan"):
        accountant.epsilon(state, 1e-5)


def test_numeric_merges_conservatively_when_full():
    """Phases that share a row have the least noise and the largest rate of them."""
    accountant = numeric(capacity=2)
    state = accountant.init()
    for run in [*RUNS[:2], (5.0, 2.0**-5, 0)]:
        state = accountant.step(state, *run)
    assert not state.merged  # full, and no steps were added
    for run in [*RUNS[2:], (5.0, 2.0**-5, 50), (5.0, 2.0**-5, 0)]:
        state = accountant.step(state, *run)
    assert state.merged
    assert np.asarray(state.noise_multiplier).tolist() == [1.25, 1.25]
    assert np.asarray(state.sampling_prob).tolist() == [2.0**-7, 2.0**-5]
    assert np.asarray(state.num_steps).tolist() == [300, 350]


def test_numeric_counts_steps_exactly():
    """The count goes on where one in float32 would stop, and it ends with an error."""
    accountant = numeric()
    state = accountant.step(accountant.init(), 2.0, 0.0, 2**24)
    for _ in range(3):
        state = accountant.step(state, 2.0, 0.0)
    assert state.num_steps[0] == 2**24 + 3
    assert accountant.epsilon(state, 1e-5) == 0
    assert accountant.epsilon(accountant.init(), 1e-5) == 0
    with pytest.raises(ValueError, match="num_steps must stay at most 2147483647"):
        accountant.step(state, 2.0, 0.0, 2**31 - 1)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: rdp([1.0]), "orders must be a Renyi order > 1"),
        (lambda: rdp(2.0), "orders must have one axis"),
        (lambda: rdp().mu(rdp().init()), "bounds epsilon and delta, not mu"),
        (lambda: rdp(ORDERS).step(rdp().init(), 1.0, 0.1), "with these 4 orders"),
        (lambda: gdp_clt().step(0.0, 1.0, 0.1), "state must come from accountant.init"),
        (lambda: gdp_clt().step(gdp_clt().init(), np.nan, 0.1), "noise_multiplier must be"),
        (lambda: gdp_clt().step(gdp_clt().init(), 1.0, 0.1, -1), "num_steps must be a whole number >= 0"),
        (lambda: rdp().epsilon(rdp().init(), 1.0), "delta must be"),
        (lambda: numeric(0), "capacity must be a whole number >= 1"),
        (lambda: numeric(4).step(numeric().init(), 1.0, 0.1), "an accountant of capacity 4"),
        (lambda: numeric().epsilon(rdp().init(), 1e-5), "state must come from accountant.init"),
        (lambda: numeric().step(numeric().init(), np.nan, 0.1), "noise_multiplier must be"),
        (lambda: numeric().step(numeric().init(), 1.0, 1.1), "sampling_prob must be"),
        (lambda: numeric().step(numeric().init((2,)), np.ones(3), 0.1), "must broadcast together"),
        (lambda: numeric().epsilon(numeric().init(), 0.0), "delta must be"),
        (lambda: numeric().delta(numeric().init(), np.nan), "epsilon must be"),
        (lambda: numeric().mu(numeric().init(), 1.0), "failure must be"),
        (lambda: rdp().delta(rdp().init(), np.nan), "epsilon must be"),
        (lambda: gdp_clt().mu(Tally(-1.0, 0.0)), "high must be"),
        (lambda: gdp_clt().mu(Tally([[1.0], [1.0, 2.0]], 0.0)), "state.high must be an array of numbers"),
        (
            lambda: numeric().epsilon(numeric().init()._replace(merged=np.array([object()])), 1e-5),
            "state.merged must be an array of numbers",
        ),
    ],
)
def test_bad_input(call, message):
    """Arguments out of range, and states of other accountants, are refused with a message."""
    with pytest.raises(ValueError, match=message):
        call()
