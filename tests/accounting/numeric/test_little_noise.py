"""Runs with hardly any noise, which are bracketed by how often an example takes part."""

import numpy as np
import pytest

from gdpjax.accounting import certified, delta_bounds, epsilon_bounds, gdp_epsilon
from tests.accounting.numeric.inside import RunDescription, SubsampledGaussian, _without_contour

DELTAS = (1e-3, 1e-5, 1e-9)


def a_run(noise_multiplier, sampling_prob, num_steps):
    """A run of one phase."""
    return RunDescription((SubsampledGaussian(noise_multiplier, sampling_prob, float(num_steps)),))


@pytest.mark.parametrize("noise_multiplier", [1e-3, 0.01, 0.02, 0.1])
@pytest.mark.parametrize("sampling_prob", [1e-4, 0.01, 0.6])
def test_one_step_holds_the_closed_form(noise_multiplier, sampling_prob):
    run = a_run(noise_multiplier, sampling_prob, 1)
    for delta in DELTAS:
        if delta >= sampling_prob:
            continue
        exact = _without_contour.closed_epsilon(run, delta)
        with np.errstate(all="ignore"):
            bracket = _without_contour.epsilon_by_number(run, delta)
            at_exact = _without_contour.delta_by_number(run, exact.lower)
        assert bracket.lower <= exact.upper
        assert exact.lower <= bracket.upper
        assert at_exact.lower <= delta * (1 + 1e-5)
        assert delta * (1 - 1e-5) <= at_exact.upper


@pytest.mark.parametrize(("noise_multiplier", "width"), [(0.017, 1e-2), (0.01, 3e-3), (3e-3, 3e-4), (1e-3, 5e-5)])
def test_brackets_are_useful_down_to_hardly_any_noise(noise_multiplier, width):
    """Below 0.015 they were from 0 to what holds without sampling."""
    probs, steps = np.array([0.01, 1e-4, 1e-3, 0.3]), np.array([1000, 1000, 10, 1e5])
    lower, upper = epsilon_bounds(noise_multiplier, probs, steps, 1e-5)
    assert np.all(upper - lower < width * upper)
    assert np.all(upper < 0.8 * gdp_epsilon(1e-5, np.sqrt(steps) / noise_multiplier))
    middle = 0.5 * (lower + upper)
    below = delta_bounds(noise_multiplier, probs, steps, middle)
    assert np.all((below.lower <= 1e-5) & (below.upper >= 1e-5))


def test_the_regret_of_next_to_no_noise_is_found_at_once():
    """It asks for delta at many epsilon, for which the contour would take minutes and find nothing."""
    run = certified(1e-200, 0.1, 10)
    leaked = 1 - 0.9**10
    assert run.regret().lower <= 0.5 * (1 - leaked) <= run.regret().upper
