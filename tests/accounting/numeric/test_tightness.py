"""The brackets are narrow where they are promised to be."""

import numpy as np

from gdpjax.accounting import delta_bounds, epsilon_bounds
from tests.accounting.numeric import reference

RUN = ("noise_multiplier", "sampling_prob", "num_steps")


def ordinary_runs(size, seed=0):
    """Return runs of the kind that people train with: num_steps >= 100, sampling_prob >= 0.004."""
    uniform = np.random.default_rng(seed).uniform
    columns = []
    for low, high in ((0.5, 10.0), (0.004, 0.3), (100, 1e5), (1e-10, 1e-3)):
        columns.append(np.exp(uniform(np.log(low), np.log(high), size)))
    noise_multiplier, sampling_prob, num_steps, delta = columns
    return noise_multiplier, sampling_prob, np.round(num_steps), delta


def test_ordinary_runs_are_within_a_thousandth():
    """Brackets of ordinary runs are within a thousandth, and all of them within a hundredth."""
    bounds = epsilon_bounds(*ordinary_runs(100))
    width = bounds.upper - bounds.lower
    is_tiny = width <= 1e-6
    is_narrow = (width <= 1e-3 * bounds.lower) | is_tiny
    assert is_narrow.mean() >= 0.99
    assert np.all((width <= 1e-2 * bounds.lower) | is_tiny)


def test_reference_rows_are_within_a_few_thousandths():
    """The width of the brackets on epsilon is at most two thousandths of the truth."""
    bounds = epsilon_bounds(*reference.columns(reference.COMPOSED, *RUN, "delta"))
    (truth,) = reference.columns(reference.COMPOSED, "epsilon")
    width = bounds.upper - bounds.lower
    assert np.max(width / truth) < 2e-3


def test_delta_is_within_a_few_percent():
    """The ends of the brackets on delta differ by 4 % at most."""
    bounds = delta_bounds(*reference.columns(reference.COMPOSED, *RUN, "epsilon"))
    assert np.max(np.log(bounds.upper / bounds.lower)) < 0.04


def test_deep_tail():
    """Brackets are as narrow where delta is 1e-50."""
    bounds = epsilon_bounds([1.0, 2.0, 5.0], [0.01, 0.1, 0.05], [1000, 10000, 100], 1e-50)
    width = bounds.upper - bounds.lower
    assert np.all(width < 2e-3 * bounds.lower)
