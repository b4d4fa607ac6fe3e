"""Calls of the certified functions: shapes, transformations, precision, refusals."""

import jax
import numpy as np
import pytest

from gdpjax.accounting import calibrate_num_steps, delta_bounds, epsilon_bounds

FUNCTIONS = [epsilon_bounds, delta_bounds]
RUN = (np.array([0.8, 1.5, 4.0]), 0.02, 300)


def last(function):
    return 1.0 if function is delta_bounds else 1e-6


@pytest.mark.parametrize(
    "function",
    [FUNCTIONS[0], *(pytest.param(function, marks=pytest.mark.slow) for function in FUNCTIONS[1:])],
    ids=[function.__name__ for function in FUNCTIONS],
)
def test_broadcasting_is_a_loop(function):
    whole = np.asarray(function(RUN[0][:, None], np.array([0.01, 0.02]), RUN[2], last(function)))
    assert whole.shape[-2:] == (3, 2)
    for i in range(3):
        one = np.asarray(function(RUN[0][i], 0.02, RUN[2], last(function)))
        np.testing.assert_allclose(whole[..., i, 1], one, rtol=1e-9)
    assert np.asarray(function(np.zeros((0, 2)) + 1, 0.1, 1, last(function))).shape[-2:] == (0, 2)


def test_runs_side_by_side_are_bracketed_like_each_alone():
    """Easy and hard runs, with many and few frequencies, in one call: brackets overlap and are about as wide."""
    rng = np.random.default_rng(3)
    noise = np.exp(rng.uniform(np.log(0.1), np.log(20.0), 60))
    prob = np.exp(rng.uniform(np.log(1e-5), 0.0, 60))
    steps = np.round(np.exp(rng.uniform(0.0, np.log(1e5), 60)))
    delta = np.exp(rng.uniform(np.log(1e-12), np.log(0.1), 60))
    for rtol in (1e-3, 1e-5):
        lower, upper = epsilon_bounds(noise, prob, steps, delta, rtol=rtol)
        for i in range(0, 60, 3):
            one = epsilon_bounds(noise[i], prob[i], steps[i], delta[i], rtol=rtol)
            assert lower[i] <= one.upper
            assert one.lower <= upper[i]
            assert upper[i] - lower[i] <= 1.01 * (one.upper - one.lower) + 1e-9


@pytest.mark.parametrize("function", FUNCTIONS)
def test_every_function_jits_and_vmaps(function):
    eager = np.asarray(function(*RUN, last(function)))
    with jax.enable_x64(True):
        jitted = np.asarray(jax.jit(function)(*RUN, last(function)))
        mapped = np.asarray(jax.vmap(function, in_axes=(0, None, None, None))(*RUN, last(function)))
    np.testing.assert_array_equal(jitted, eager)
    np.testing.assert_array_equal(mapped, eager)


def test_jitted_vmap_without_x64_is_rounded_outward():
    assert not jax.config.jax_enable_x64
    arguments = [np.float32(x) for x in (0.02, 300, 1e-6)]
    sigma = np.float32([1.5, 4.0, -1.0])
    eager = epsilon_bounds(sigma[:2], *arguments)
    assert eager.lower.dtype == np.float64
    traced = jax.jit(jax.vmap(lambda one: epsilon_bounds(one, *arguments)))(sigma)
    assert traced.lower.dtype == np.float32
    lower, upper = (np.asarray(x[:2], np.float64) for x in traced)
    assert np.all((lower <= eager.lower) & (eager.upper <= upper))
    np.testing.assert_allclose((lower, upper), eager, rtol=1e-6)
    # Outside its range a traced value cannot be refused.
    assert np.isnan(traced.lower[2])
    assert np.isnan(traced.upper[2])
    assert not jax.config.jax_enable_x64


def test_a_traced_count_of_steps_is_exact():
    num_steps = 2**24 + 3  # no float32
    with jax.enable_x64(True):
        traced = jax.jit(lambda n: delta_bounds(50.0, 1e-4, n, 0.1))(np.int32(num_steps))
    np.testing.assert_array_equal(np.asarray(traced), delta_bounds(50.0, 1e-4, num_steps, 0.1))


def test_a_compiled_loop_stops_at_its_budget():
    def may_go_on(num_steps):
        return epsilon_bounds(1.0, 0.01, num_steps + 100, 1e-5).upper <= 1.0

    made = jax.jit(lambda: jax.lax.while_loop(may_go_on, lambda num_steps: num_steps + 100, 0))()
    assert made == 100 * (calibrate_num_steps(epsilon=1.0, delta=1e-5, noise_multiplier=1.0, sampling_prob=0.01) // 100)


def test_certified_bounds_as_constants_of_compiled_code():
    def scaled(x):
        return x * float(epsilon_bounds(1.0, 0.01, 1000, 1e-5).upper)

    assert abs(float(jax.jit(scaled)(1.0)) - 1.828) < 2e-3
