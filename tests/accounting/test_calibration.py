"""Calibrate, then verify: safe, tight, and clear about what cannot be done."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gdpjax.accounting import (
    calibrate_noise_multiplier,
    calibrate_num_steps,
    clt_epsilon,
    clt_mu_poisson,
    epsilon_bounds,
    moments_accountant_epsilon,
)

EPSILON = np.array([0.5, 1.0, 4.0, 30.0])
DELTA = 1e-5
PROB = np.array([1e-3, 0.01, 0.1, 1.0])
SLACK = 1 + 1e-13  # two compilations of one formula


def bound(accountant, noise_multiplier, sampling_prob, num_steps):
    """Return the epsilon of four runs by an accountant."""
    function = {"rdp": moments_accountant_epsilon, "clt": clt_epsilon}[accountant]
    runs = [np.broadcast_to(x, 4) for x in (noise_multiplier, sampling_prob, num_steps, DELTA)]
    return function(*runs)


@pytest.mark.parametrize("accountant", ["rdp", "clt"])
def test_noise_multiplier_is_safe_and_tight(accountant):
    """The target is met, and not with 0.1 % less noise."""
    noise = calibrate_noise_multiplier(
        epsilon=EPSILON, delta=DELTA, sampling_prob=PROB, num_steps=1000, accountant=accountant
    )
    assert (bound(accountant, noise, PROB, 1000) <= EPSILON * SLACK).all()
    assert (bound(accountant, 0.999 * noise, PROB, 1000) > EPSILON).all()


@pytest.mark.parametrize("accountant", ["rdp", "clt"])
def test_num_steps_is_safe_and_tight(accountant):
    """The target is met, and not with one step more."""
    steps = calibrate_num_steps(
        epsilon=EPSILON, delta=DELTA, noise_multiplier=2.0, sampling_prob=0.004, accountant=accountant
    )
    assert (steps == np.floor(steps)).all()
    assert (bound(accountant, 2.0, 0.004, steps) <= EPSILON * SLACK).all()
    assert (bound(accountant, 2.0, 0.004, steps + 1) > EPSILON).all()


def test_target_mu():
    mu = clt_mu_poisson(0.9, 0.01, 5000)
    noise = calibrate_noise_multiplier(mu=mu, sampling_prob=0.01, num_steps=5000, accountant="clt")
    assert noise == pytest.approx(0.9, rel=1e-11)
    steps = calibrate_num_steps(mu=mu * 1.00001, noise_multiplier=0.9, sampling_prob=0.01, accountant="clt")
    assert steps == 5000


@pytest.mark.parametrize("accountant", ["clt", pytest.param("rdp", marks=pytest.mark.slow)])
def test_traced(accountant):
    """The search runs inside compiled code, rounds to the side of more noise, and is NaN where it has no answer."""
    run = {"delta": DELTA, "sampling_prob": 0.01, "num_steps": 500, "accountant": accountant}

    @jax.jit
    def noise(epsilon):
        return calibrate_noise_multiplier(epsilon=epsilon, **run)

    # The moments accountant's search ends before noise that is so small.
    asks_for_nothing = {"clt": np.nan, "rdp": 1e9}[accountant]
    eager = calibrate_noise_multiplier(epsilon=2.0, **run)
    found = noise(np.array([2.0, -1.0, asks_for_nothing], np.float32))
    assert found[0] == pytest.approx(eager, rel=1e-6)
    assert float(found[0]) >= eager
    assert np.isnan(found[1:]).all()


RUN = {"sampling_prob": 0.01, "num_steps": 1000}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"epsilon": 1.0, "accountant": "rdp"}, "complete target"),
        ({"mu": 1.0, "epsilon": 1.0, "delta": 1e-5, "accountant": "clt"}, "give one complete target"),
        ({"mu": 1.0, "accountant": "rdp"}, 'accountant "rdp" bounds epsilon, not mu'),
        ({"epsilon": 1e-4, "delta": 1e-100, "accountant": "rdp"}, "cannot be met: even noise_multiplier = 1.153e"),
        ({"epsilon": 1e12, "delta": 1e-5, "accountant": "rdp"}, "asks for nothing: even noise_multiplier = 0.0009766"),
    ],
)
def test_bad_targets(arguments, message):
    with pytest.raises(ValueError, match=message):
        calibrate_noise_multiplier(**RUN, **arguments)


def test_infeasible_steps_say_why():
    few = 0.1 * np.ones(4)
    with pytest.raises(ValueError, match="cannot be met: even num_steps = 1 exceeds it"):
        calibrate_num_steps(epsilon=few, delta=DELTA, noise_multiplier=0.5, sampling_prob=0.5, accountant="rdp")
    with pytest.raises(ValueError, match="asks for nothing: even num_steps = "):
        calibrate_num_steps(epsilon=EPSILON, delta=DELTA, noise_multiplier=0.5, sampling_prob=0.0, accountant="clt")


TARGETS = np.array([0.05, 0.5, 2.0, 8.0, 200.0])
DELTAS = np.array([1e-6, 1e-5, 1e-50, 1e-10, 1e-2])
RATES = np.array([256 / 60_000, 0.01, 0.1, 1.0, 0.3])
LENGTHS = np.array([3516, 1000, 50, 10, 300])


def test_numeric_is_safe_and_tight():
    noise = calibrate_noise_multiplier(epsilon=TARGETS, delta=DELTAS, sampling_prob=RATES, num_steps=LENGTHS)
    assert (epsilon_bounds(noise, RATES, LENGTHS, DELTAS).upper <= TARGETS).all()
    assert (epsilon_bounds(0.999 * noise, RATES, LENGTHS, DELTAS).lower > TARGETS).all()
    assert (np.float32(noise) == noise).all()  # a float32 ledger records the value that was certified
    steps = calibrate_num_steps(epsilon=TARGETS, delta=DELTAS, noise_multiplier=noise, sampling_prob=RATES)
    assert (epsilon_bounds(noise, RATES, steps, DELTAS).upper <= TARGETS).all()
    assert (epsilon_bounds(noise, RATES, steps + 1, DELTAS).upper > TARGETS).all()


def test_numeric_finds_the_last_step_of_millions():
    run = {"noise_multiplier": [1.5, 30.0], "sampling_prob": [5e-4, 0.003]}
    steps = calibrate_num_steps(epsilon=2.0, delta=1e-6, **run)
    assert (steps > 1e6).all()
    assert (epsilon_bounds(*run.values(), steps, 1e-6).upper <= 2.0).all()
    assert (epsilon_bounds(*run.values(), steps + 1, 1e-6).upper > 2.0).all()


def test_numeric_in_corners():
    wide = {"epsilon": 1.0, "delta": 1e-28, "sampling_prob": 1e-4, "num_steps": 1}  # the bracket says little here
    noise = calibrate_noise_multiplier(**wide)
    assert epsilon_bounds(noise, 1e-4, 1, 1e-28).upper <= 1
    assert calibrate_num_steps(epsilon=1.5, delta=1e-5, noise_multiplier=3.0, sampling_prob=1.0) == 1
    with pytest.raises(ValueError, match="cannot be met: even num_steps = 1 exceeds it by the accountant 'numeric'"):
        calibrate_num_steps(epsilon=0.1, delta=1e-9, noise_multiplier=0.5, sampling_prob=0.5)
    with pytest.raises(ValueError, match=r"asks for nothing: even noise_multiplier = 0\.0009766 meets it"):
        calibrate_noise_multiplier(epsilon=1.0, delta=1e-5, sampling_prob=0.0, num_steps=10)
    assert calibrate_noise_multiplier(epsilon=np.ones((0, 2)), delta=1e-5, sampling_prob=0.1, num_steps=9).shape == (
        0,
        2,
    )


def test_numeric_traced():
    """The search inside compiled code meets its targets, and is NaN where there is none."""

    def noise(epsilon):
        return calibrate_noise_multiplier(epsilon=epsilon, delta=2.0**-17, sampling_prob=2.0**-7, num_steps=500)

    targets = np.array([0.5, 2.0, -1.0, 1e30], np.float32)
    mapped = jax.jit(jax.vmap(noise))(targets)
    assert mapped.dtype == jnp.float32
    np.testing.assert_allclose(mapped[:2], noise(targets[:2]), rtol=5e-6)
    assert (epsilon_bounds(np.asarray(mapped[:2], float), 2.0**-7, 500, 2.0**-17).upper <= targets[:2]).all()
    assert np.isnan(mapped[2:]).all()
    constant = jax.jit(lambda x: x + noise(2.0))(0.0)  # a constant inside compiled code
    assert constant == noise(2.0)
