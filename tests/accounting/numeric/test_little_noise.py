"""Runs with hardly any noise, which are bracketed by how often an example takes part."""

import numpy as np
import pytest

from gdpjax._composition import _closed_forms, _directions, _participations
from gdpjax._composition._likelihood_ratio import SubsampledGaussian
from gdpjax._composition._run_description import RunDescription
from gdpjax.accounting import delta_bounds, epsilon_bounds, gdp_epsilon

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
        exact = _closed_forms.epsilon(run, delta)
        with np.errstate(all="ignore"):
            bracket = _participations.epsilon(run, delta)
            at_exact = _participations.delta(run, exact.lower)
        assert bracket.lower <= exact.upper
        assert exact.lower <= bracket.upper
        assert at_exact.lower <= delta * (1 + 1e-5)
        assert delta * (1 - 1e-5) <= at_exact.upper


@pytest.mark.parametrize("run", [(0.1, 0.01, 100), (0.2, 1e-3, 1000), (0.05, 0.2, 10), (0.3, 0.01, 3), (0.1, 0.9, 20)])
def test_it_holds_what_the_contour_brackets(run):
    description = a_run(*run)
    for delta in DELTAS:
        with np.errstate(all="ignore"):
            contour = _directions.epsilon_of_run(description, np.log(delta))
            bracket = _participations.epsilon(description, delta)
            inside = _participations.delta(description, contour.estimate)
        assert bracket.lower <= contour.upper
        assert contour.lower <= bracket.upper
        assert inside.lower <= 1.01 * delta
        assert 0.99 * delta <= inside.upper


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


def test_more_noise_and_fewer_participations_cost_less():
    noise_multipliers = np.geomspace(1e-3, 0.1, 15)
    lower, upper = epsilon_bounds(noise_multipliers, 1e-3, 500, 1e-6)
    assert np.all(lower[1:] <= upper[:-1])
    lower, upper = epsilon_bounds(2e-3, np.geomspace(1e-5, 0.99, 12), 500, 1e-6)
    assert np.all(lower[:-1] <= upper[1:])
    many = epsilon_bounds(5e-3, 0.5, 1e6, 1e-6)
    assert 0.99 < many.lower / many.upper <= 1
