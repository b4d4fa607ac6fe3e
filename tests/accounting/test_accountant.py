"""Accountants inside training loops: the closed forms, no understatement in float32, composition."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gdpjax.accounting import (
    Tally,
    clt_epsilon,
    clt_mu_poisson,
    gdp_clt,
    gdp_compose,
    gdp_delta,
    moments_accountant_epsilon,
    rdp,
    rdp_delta,
    rdp_epsilon,
    rdp_subsampled_gaussian,
)

NOISE, PROB = 1.25, 2.0**-8  # exact in float32
ORDERS = (1.5, 2.0, 4.0, 16.0)


def total(state):
    return np.asarray(state.high, np.float64) + np.asarray(state.low, np.float64)


def test_one_call_equals_the_closed_forms():
    moments, clt = rdp(), gdp_clt()
    state = moments.step(moments.init(), NOISE, PROB, 3000)
    closed = moments_accountant_epsilon(NOISE, PROB, 3000, 1e-5)
    assert closed <= moments.epsilon(state, 1e-5) <= closed * (1 + 1e-12)
    assert moments.delta(state, closed) == pytest.approx(1e-5, rel=1e-9)
    state = clt.step(clt.init(), NOISE, PROB, 3000)
    mu = clt_mu_poisson(NOISE, PROB, 3000)
    assert clt.mu(state) == pytest.approx(mu, rel=1e-13)
    assert clt.epsilon(state, 1e-5) == pytest.approx(clt_epsilon(NOISE, PROB, 3000, 1e-5), rel=1e-12)
    assert clt.delta(state, 0.5) == pytest.approx(gdp_delta(0.5, mu), rel=1e-12)


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize(("factory", "closed"), [(rdp, moments_accountant_epsilon), (gdp_clt, clt_epsilon)])
def test_a_scanned_loop_equals_the_closed_form(factory, closed, wide):
    accountant, steps = factory(), 2000

    @jax.jit
    def train(noise):
        state, _ = jax.lax.scan(
            lambda state, _: (accountant.step(state, noise, PROB), None), accountant.init(), length=steps
        )
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
    start = accountant.step(accountant.init(), 1.0, 1.0, 10_000)  # a large total, so that the steps are small to it
    per_step = rdp_subsampled_gaussian(noise, PROB, ORDERS)
    looped = jax.jit(lambda state: jax.lax.fori_loop(0, steps, lambda _, s: accountant.step(s, noise, PROB), state))(
        start
    )
    grown = total(looped) - total(start)
    assert (grown >= steps * per_step * (1 - 1e-9)).all()
    assert (total(looped) <= (total(start) + steps * per_step) * (1 + steps * 2.0**-45)).all()
    plain = jax.jit(lambda x: jax.lax.fori_loop(0, steps, lambda _, s: s + jnp.float32(per_step), x))(start.high)
    assert (np.asarray(plain, float) - np.asarray(start.high) < 0.95 * steps * per_step).any()


def test_states_survive_the_way_into_compiled_code():
    """An eager float64 state would be rounded to nearest, so perhaps down, on its way into jit."""
    accountant = rdp(ORDERS)
    state = accountant.step(accountant.init(), 1.1, 0.01, 7)
    np.testing.assert_array_equal(total(jax.jit(lambda s: s)(state)), total(state))
    assert (total(state) >= 7 * rdp_subsampled_gaussian(1.1, 0.01, ORDERS)).all()


def test_different_steps_compose():
    phases = [(1.0, 0.01, 100), (2.0, 0.05, 30), (0.7, 0.001, 1), (5.0, 0.0, 9), (3.0, 1.0, 2)]
    moments, clt = rdp(ORDERS), gdp_clt()
    a, b = moments.init(), clt.init()
    for phase in phases:
        a, b = moments.step(a, *phase), clt.step(b, *phase)
    expected = sum(t * rdp_subsampled_gaussian(s, p, ORDERS) for s, p, t in phases)
    np.testing.assert_allclose(total(a), expected, rtol=1e-13)
    assert (total(a) >= expected * (1 - 1e-15)).all()
    assert moments.epsilon(a, 1e-6) == pytest.approx(rdp_epsilon(expected, ORDERS, 1e-6), rel=1e-12)
    assert moments.delta(a, 3.0) == pytest.approx(rdp_delta(expected, ORDERS, 3.0), rel=1e-9)
    assert clt.mu(b) == pytest.approx(gdp_compose([clt_mu_poisson(*phase) for phase in phases]), rel=1e-12)
    nothing = moments.step(moments.init(), 1e-3, 0.5, 0)
    assert moments.epsilon(nothing, 1e-5) == 0


@pytest.mark.parametrize("factory", [lambda: rdp(ORDERS), gdp_clt])
def test_batches_and_vmap(factory):
    accountant = factory()
    noise = np.array([1.0, 2.0, 4.0], np.float32)
    loop = [accountant.step(accountant.step(accountant.init(), s, PROB, 3), s, PROB) for s in noise]
    batch = accountant.step(accountant.step(accountant.init((3,)), noise, PROB, 3), noise, PROB)

    def two_steps(s, num_steps):
        return accountant.step(accountant.step(accountant.init(), s, PROB, num_steps), s, PROB)

    mapped = jax.jit(jax.vmap(two_steps, in_axes=(0, None)))(noise, 3)
    for state in (batch, mapped):
        np.testing.assert_allclose(total(state), [total(one) for one in loop], rtol=1e-12)
    epsilon = [accountant.epsilon(one, 1e-5) for one in loop]
    np.testing.assert_allclose(accountant.epsilon(batch, 1e-5), epsilon, rtol=1e-12)
    np.testing.assert_allclose(
        jax.vmap(lambda s: accountant.delta(s, 1e-3))(mapped), accountant.delta(batch, 1e-3), rtol=1e-6
    )
    bad = jax.jit(lambda s: accountant.step(accountant.init((3,)), s, PROB))(jnp.array([1.0, -1.0, 2.0]))
    np.testing.assert_array_equal(np.isnan(bad.high.reshape(3, -1)).all(axis=1), [False, True, False])


def test_overflow_is_infinite_and_stays_so():
    for accountant in (rdp(), gdp_clt()):
        state = accountant.step(accountant.step(accountant.init(), 1e-25, 1.0), 1.0, 0.1)
        assert np.isinf(state.high).any()
        assert not np.isnan(total(state)).any()
        assert accountant.epsilon(state, 1e-5) == np.inf


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
        (lambda: rdp().delta(rdp().init(), np.nan), "epsilon must be"),
        (lambda: gdp_clt().mu(Tally(-1.0, 0.0)), "high must be"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call()
