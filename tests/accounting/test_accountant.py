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

NOISE, PROB = 1.25, 2.0**-8  # exact in float32
ORDERS = (1.5, 2.0, 4.0, 16.0)


def total(state):
    """Return the sum that a state holds in two parts."""
    return np.asarray(state.high, np.float64) + np.asarray(state.low, np.float64)


def test_one_call_of_the_moments_equals_the_closed_form():
    """Many equal steps at once have the epsilon and the delta of the moments accountant."""
    accountant = rdp()
    state = accountant.step(accountant.init(), NOISE, PROB, 3000)
    closed = moments_accountant_epsilon(NOISE, PROB, 3000, 1e-5)
    assert closed <= accountant.epsilon(state, 1e-5) <= closed * (1 + 1e-12)
    assert accountant.delta(state, closed) == pytest.approx(1e-5, rel=1e-9)


def test_one_call_of_the_limit_equals_the_closed_form():
    """Many equal steps at once have the mu, epsilon and delta of the central limit theorem."""
    accountant = gdp_clt()
    state = accountant.step(accountant.init(), NOISE, PROB, 3000)
    mu = clt_mu_poisson(NOISE, PROB, 3000)
    assert accountant.mu(state) == pytest.approx(mu, rel=1e-13)
    assert accountant.epsilon(state, 1e-5) == pytest.approx(clt_epsilon(NOISE, PROB, 3000, 1e-5), rel=1e-12)
    assert accountant.delta(state, 0.5) == pytest.approx(gdp_delta(0.5, mu), rel=1e-12)


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize(("factory", "closed"), [(rdp, moments_accountant_epsilon), (gdp_clt, clt_epsilon)])
def test_a_scanned_loop_equals_the_closed_form(factory, closed, wide):
    """Two thousand steps one by one, and epsilon in the same program; the state is float32 in either case."""
    accountant, steps = factory(), 2000

    @jax.jit
    def train(noise):
        def step(state, _):
            return accountant.step(state, noise, PROB), None

        state, _ = jax.lax.scan(step, accountant.init(), length=steps)
        return state, accountant.epsilon(state, 1e-5)

    with jax.enable_x64(wide):
        state, epsilon = train(NOISE)
    exact = closed(NOISE, PROB, steps, 1e-5)
    assert state.high.dtype == state.low.dtype == jnp.float32
    assert exact <= accountant.epsilon(state, 1e-5) <= exact * (1 + 1e-9)
    assert epsilon.dtype == (jnp.float64 if wide else jnp.float32)
    np.testing.assert_allclose(epsilon, exact, rtol=1e-9 if wide else 1.3e-7)


def test_float32_loops_never_fall_below_the_sum():
    """A plain float32 sum of these terms ends 5% low: the terms fall below half a unit of the total."""
    accountant = rdp(ORDERS)
    steps, noise = 20_000, np.float32(4.0)
    # A large total, to which the steps are small.
    start = accountant.step(accountant.init(), 1.0, 1.0, 10_000)
    per_step = rdp_subsampled_gaussian(noise, PROB, ORDERS)

    @jax.jit
    def train(state):
        def step(_, carried):
            state, plain = carried
            return accountant.step(state, noise, PROB), plain + jnp.float32(per_step)

        return jax.lax.fori_loop(0, steps, step, (state, state.high))

    looped, plain = train(start)
    exact = steps * per_step
    assert (total(looped) - total(start) >= exact * (1 - 1e-9)).all()
    assert (total(looped) <= (total(start) + exact) * (1 + steps * 2.0**-45)).all()
    assert (np.asarray(plain, float) - np.asarray(start.high) < 0.95 * exact).any()


def test_states_survive_the_way_into_compiled_code():
    """An eager float64 state would be rounded to nearest, so perhaps down, on its way into jit."""
    accountant = rdp(ORDERS)
    state = accountant.step(accountant.init(), 1.1, 0.01, 7)
    np.testing.assert_array_equal(total(jax.jit(lambda s: s)(state)), total(state))
    assert (total(state) >= 7 * rdp_subsampled_gaussian(1.1, 0.01, ORDERS)).all()


def test_different_steps_compose():
    """Divergences add up over phases, and so do the squares of mu."""
    phases = [(1.0, 0.01, 100), (2.0, 0.05, 30), (0.7, 0.001, 1), (5.0, 0.0, 9), (3.0, 1.0, 2)]
    moments, clt = rdp(ORDERS), gdp_clt()
    of_moments, of_clt = moments.init(), clt.init()
    for phase in phases:
        of_moments = moments.step(of_moments, *phase)
        of_clt = clt.step(of_clt, *phase)
    expected = sum(steps * rdp_subsampled_gaussian(noise, prob, ORDERS) for noise, prob, steps in phases)
    np.testing.assert_allclose(total(of_moments), expected, rtol=1e-13)
    assert (total(of_moments) >= expected * (1 - 1e-15)).all()
    assert moments.epsilon(of_moments, 1e-6) == pytest.approx(rdp_epsilon(expected, ORDERS, 1e-6), rel=1e-12)
    assert moments.delta(of_moments, 3.0) == pytest.approx(rdp_delta(expected, ORDERS, 3.0), rel=1e-9)
    mus = [clt_mu_poisson(*phase) for phase in phases]
    assert clt.mu(of_clt) == pytest.approx(gdp_compose(mus), rel=1e-12)
    nothing = moments.step(moments.init(), 1e-3, 0.5, 0)
    assert moments.epsilon(nothing, 1e-5) == 0


def moments_at_few_orders():
    return rdp(ORDERS)


@pytest.mark.parametrize("factory", [moments_at_few_orders, gdp_clt])
def test_batches_and_vmap(factory):
    """A batch of states and a state that is mapped over are the states one by one."""
    accountant = factory()
    noise = np.array([1.0, 2.0, 4.0], np.float32)

    def two_steps(noise, shape=()):
        state = accountant.step(accountant.init(shape), noise, PROB, 3)
        return accountant.step(state, noise, PROB)

    loop = [two_steps(s) for s in noise]
    batch = two_steps(noise, (3,))
    mapped, deltas = jax.jit(jax.vmap(lambda s: (two_steps(s), accountant.delta(two_steps(s), 1e-3))))(noise)
    totals = [total(one) for one in loop]
    np.testing.assert_allclose(total(batch), totals, rtol=1e-12)
    np.testing.assert_allclose(total(mapped), totals, rtol=1e-12)
    epsilons = [accountant.epsilon(one, 1e-5) for one in loop]
    np.testing.assert_allclose(accountant.epsilon(batch, 1e-5), epsilons, rtol=1e-12)
    np.testing.assert_allclose(deltas, accountant.delta(batch, 1e-3), rtol=1e-6)

    # Noise that is out of range spoils its own state only.
    bad = jax.jit(lambda s: accountant.step(accountant.init((3,)), s, PROB))(np.array([1.0, -1.0, 2.0], np.float32))
    spoiled = np.isnan(np.asarray(bad.high).reshape(3, -1)).all(axis=1)
    np.testing.assert_array_equal(spoiled, [False, True, False])


def test_overflow_is_infinite_and_stays_so():
    """After a step of next to no noise nothing brings the total back, and nothing becomes NaN."""
    for accountant in (rdp(), gdp_clt()):
        state = accountant.step(accountant.step(accountant.init(), 1e-25, 1.0), 1.0, 0.1)
        assert np.isinf(state.high).any()
        assert not np.isnan(total(state)).any()
        assert accountant.epsilon(state, 1e-5) == np.inf


RUNS = [(1.25, 2.0**-7, 300), (2.5, 2.0**-6, 200), (1.25, 2.0**-7, 100)]


def test_numeric_equals_the_certified_bounds():
    """The state is a run, and its answers are the upper ends of that run's brackets."""
    accountant = numeric()
    state = accountant.step(accountant.step(accountant.init(), NOISE, PROB, 1000), NOISE, PROB, 2000)
    assert np.asarray(state.num_steps).tolist() == [3000] + [0] * 15
    assert accountant.epsilon(state, 1e-5) == pytest.approx(epsilon_bounds(NOISE, PROB, 3000, 1e-5).upper, rel=1e-9)
    assert accountant.delta(state, 0.5) == pytest.approx(delta_bounds(NOISE, PROB, 3000, 0.5).upper, rel=1e-8)
    rounded = accountant.step(accountant.init(), 1.1, 0.01, 3000)  # neither is a float32
    closed = epsilon_bounds(1.1, 0.01, 3000, 1e-5).upper
    assert closed <= accountant.epsilon(rounded, 1e-5) <= closed * (1 + 1e-5)
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
    """One row per run of equal steps, the same bound as the Ledger's, and one compilation for any schedule."""
    accountant = numeric(capacity=4)
    traces = []

    @jax.jit
    def train(noise, prob):
        traces.append(None)
        return jax.lax.scan(lambda s, x: (accountant.step(s, *x), None), accountant.init(), (noise, prob))[0]

    noise, prob = (np.repeat([run[i] for run in RUNS], [run[2] for run in RUNS]).astype(np.float32) for i in (0, 1))
    with jax.enable_x64(wide):
        state = train(noise, prob)
        train(noise[::-1].copy(), prob[::-1].copy())
    assert len(traces) == 1
    assert [state.noise_multiplier.dtype, state.sampling_prob.dtype, state.num_steps.dtype] == ["f4", "f4", "i4"]
    assert np.asarray(state.num_steps).tolist() == [300, 200, 100, 0]
    assert not state.merged
    expected = epsilon_bounds(Ledger([Event(*run) for run in RUNS]), delta=1e-5).upper
    assert accountant.epsilon(state, 1e-5) == pytest.approx(expected, rel=1e-9)


def test_numeric_reads_inside_compiled_code():
    """Epsilon may be read where it is traced, rounded up; NaN stays in the state until it is read."""
    accountant = numeric(capacity=2)
    noise = np.array([1.25, 2.5, -1.0], np.float32)

    @jax.jit
    def spent(noise):
        states = jax.vmap(lambda s: accountant.step(accountant.init(), s, PROB, 500))(noise)
        return states, accountant.epsilon(states, 1e-5)

    batch, traced = spent(noise)
    eager = epsilon_bounds(noise[:2].astype(float), PROB, 500, 1e-5).upper
    assert traced.dtype == jnp.float32
    assert (np.asarray(traced[:2], float) >= eager).all()
    np.testing.assert_allclose(traced[:2], eager, rtol=3e-7)
    other = jax.jit(lambda s: accountant.step(accountant.init((3,)), s, PROB, 500))(noise)
    jax.tree.map(np.testing.assert_array_equal, batch, other)
    assert np.isnan(batch.noise_multiplier).any(axis=-1).tolist() == [False, False, True]
    np.testing.assert_array_equal(np.isnan(traced), [False, False, True])
    np.testing.assert_allclose(accountant.epsilon(jax.tree.map(lambda x: x[:2], batch), 1e-5), eager, rtol=1e-9)
    poisoned = jax.jit(lambda n: accountant.step(accountant.step(accountant.init(), 1.0, 0.1), 1.0, 0.1, n))(0.5)
    again = accountant.step(poisoned, 1.0, 0.1)
    with pytest.raises(ValueError, match="noise_multiplier must be a finite number > 0, got nan"):
        accountant.epsilon(again, 1e-5)


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
    """Where a float32 count would stop, ours goes on, and it ends with an error."""
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
    ],
)
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call()
