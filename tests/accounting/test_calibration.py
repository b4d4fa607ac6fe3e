"""Calibrate, then verify: safe, tight, and clear about what cannot be done."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gdpjax.accounting import (
    calibrate_noise_multiplier,
    calibrate_num_steps,
    calibrate_sampling_prob,
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
    function = {"rdp": moments_accountant_epsilon, "clt": clt_epsilon}[accountant]
    return function(*(np.broadcast_to(x, (4,)) for x in (noise_multiplier, sampling_prob, num_steps, DELTA)))


@pytest.mark.parametrize("accountant", ["rdp", "clt"])
def test_noise_multiplier_is_safe_and_tight(accountant):
    noise = calibrate_noise_multiplier(
        epsilon=EPSILON, delta=DELTA, sampling_prob=PROB, num_steps=1000, accountant=accountant
    )
    assert (bound(accountant, noise, PROB, 1000) <= EPSILON * SLACK).all()
    assert (bound(accountant, 0.999 * noise, PROB, 1000) > EPSILON).all()


@pytest.mark.parametrize("accountant", ["rdp", "clt"])
def test_num_steps_is_safe_and_tight(accountant):
    steps = calibrate_num_steps(
        epsilon=EPSILON, delta=DELTA, noise_multiplier=2.0, sampling_prob=0.004, accountant=accountant
    )
    assert (steps == np.floor(steps)).all()
    assert (bound(accountant, 2.0, 0.004, steps) <= EPSILON * SLACK).all()
    assert (bound(accountant, 2.0, 0.004, steps + 1) > EPSILON).all()


@pytest.mark.parametrize("accountant", ["rdp", "clt"])
def test_sampling_prob_is_safe_and_tight(accountant):
    target = np.array([0.5, 1.0, 4.0, 1e4])
    prob = calibrate_sampling_prob(
        epsilon=target, delta=DELTA, noise_multiplier=1.0, num_steps=300, accountant=accountant
    )
    assert prob[3] == 1
    assert (bound(accountant, 1.0, prob, 300) <= target * SLACK).all()
    assert (bound(accountant, 1.0, np.minimum(prob * 1.001, 1), 300) > target)[:3].all()


def test_target_mu():
    known = {"noise_multiplier": 0.9, "sampling_prob": 0.01, "num_steps": 5000}
    mu = clt_mu_poisson(**known)
    for unknown, calibrate in [
        ("noise_multiplier", calibrate_noise_multiplier),
        ("sampling_prob", calibrate_sampling_prob),
    ]:
        rest = {name: value for name, value in known.items() if name != unknown}
        assert calibrate(mu=mu, **rest, accountant="clt") == pytest.approx(known[unknown], rel=1e-11)
    steps = calibrate_num_steps(mu=mu * 1.00001, noise_multiplier=0.9, sampling_prob=0.01, accountant="clt")
    assert steps == 5000


def test_traced():
    @jax.jit
    def noise(epsilon):
        return calibrate_noise_multiplier(
            epsilon=epsilon, delta=DELTA, sampling_prob=0.01, num_steps=500, accountant="rdp"
        )

    eager = calibrate_noise_multiplier(epsilon=2.0, delta=DELTA, sampling_prob=0.01, num_steps=500, accountant="rdp")
    result = noise(jnp.array([2.0, -1.0, 1e9]))
    assert result[0] == pytest.approx(eager, rel=1e-6)
    assert float(result[0]) >= eager  # float32 is rounded to the side of more noise
    assert np.isnan(result[1:]).all()
    assert np.isnan(
        jax.jit(lambda m: calibrate_num_steps(mu=m, noise_multiplier=1.0, sampling_prob=0.5, accountant="clt"))(0.1)
    )


RUN = {"sampling_prob": 0.01, "num_steps": 1000}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"epsilon": 1.0, "delta": 1e-5, "accountant": "pld"},
            "accountant must be one of numeric, rdp, clt, got 'pld'",
        ),
        ({"epsilon": 1.0, "accountant": "rdp"}, "complete target"),
        ({"accountant": "clt"}, "complete target"),
        ({"mu": 1.0, "epsilon": 1.0, "delta": 1e-5, "accountant": "clt"}, "not mu together"),
        ({"mu": 1.0, "accountant": "rdp"}, 'accountant "rdp" bounds epsilon, not mu'),
        (
            {"mu": 1.0, "failure": 1e-10, "accountant": "clt"},
            'failure belongs to a target mu with accountant "numeric"',
        ),
        ({"epsilon": 0.0, "delta": 1e-5, "accountant": "rdp"}, "epsilon must be a finite number > 0, got 0.0"),
        ({"epsilon": np.nan, "delta": 1e-5, "accountant": "clt"}, "epsilon must be a finite number > 0, got nan"),
        ({"epsilon": 1.0, "delta": 0.0, "accountant": "rdp"}, "delta must be a number in"),
        ({"epsilon": 1e-4, "delta": 1e-100, "accountant": "rdp"}, "cannot be met: even noise_multiplier = 1.153e"),
        ({"epsilon": 1e12, "delta": 1e-5, "accountant": "rdp"}, "asks for nothing: even noise_multiplier = 0.0009766"),
    ],
)
def test_bad_targets(arguments, message):
    with pytest.raises(ValueError, match=message):
        calibrate_noise_multiplier(**RUN, **arguments)


def test_infeasible_steps_say_why():
    with pytest.raises(ValueError, match="cannot be met: even num_steps = 1 exceeds it"):
        calibrate_num_steps(epsilon=0.1, delta=1e-5, noise_multiplier=0.5, sampling_prob=0.5, accountant="rdp")
    with pytest.raises(ValueError, match="asks for nothing: even num_steps = "):
        calibrate_num_steps(epsilon=1.0, delta=1e-5, noise_multiplier=0.5, sampling_prob=0.0, accountant="clt")


def test_numeric_is_safe_and_tight():
    target, run = np.array([0.5, 2.0, 8.0]), (256 / 60_000, 3516)
    noise = calibrate_noise_multiplier(epsilon=target, delta=1e-5, sampling_prob=run[0], num_steps=run[1])
    assert (epsilon_bounds(noise, *run, 1e-5).upper <= target).all()
    assert (epsilon_bounds(0.999 * noise, *run, 1e-5).lower > target).all()
