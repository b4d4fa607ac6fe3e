"""The brackets are narrow where they are promised to be."""

import numpy as np

from gdpjax.accounting import delta_bounds, epsilon_bounds, epsilon_estimate
from gdpjax.accounting._numeric import of_phases
from tests.accounting.numeric import reference

RUN = ("noise_multiplier", "sampling_prob", "num_steps")


def ordinary(size, seed=0):
    """Runs of the kind that people train with: T >= 100, p >= .004."""
    uniform = np.random.default_rng(seed).uniform
    ranges = ((0.5, 10.0), (0.004, 0.3), (100, 1e5), (1e-10, 1e-3))
    sigma, p, steps, delta = (np.exp(uniform(np.log(a), np.log(b), size)) for a, b in ranges)
    return sigma, p, np.round(steps), delta


def test_ordinary_runs_are_within_a_thousandth():
    bounds = epsilon_bounds(*ordinary(100))
    width = bounds.upper - bounds.lower
    narrow = (width <= 1e-3 * bounds.lower) | (width <= 1e-6)
    assert narrow.mean() >= 0.99
    assert np.all((width <= 1e-2 * bounds.lower) | (width <= 1e-6))


def test_reference_rows_are_within_a_few_thousandths():
    bounds = epsilon_bounds(*reference.columns(reference.COMPOSED, *RUN, "delta"))
    (truth,) = reference.columns(reference.COMPOSED, "epsilon")
    assert np.max((bounds.upper - bounds.lower) / truth) < 2e-3


def test_delta_is_within_a_few_percent():
    bounds = delta_bounds(*reference.columns(reference.COMPOSED, *RUN, "epsilon"))
    assert np.max(np.log(bounds.upper / bounds.lower)) < 0.04


def test_deep_tail():
    bounds = epsilon_bounds([1.0, 2.0, 5.0], [0.01, 0.1, 0.05], [1000, 10000, 100], 1e-50)
    assert np.all(bounds.upper - bounds.lower < 2e-3 * bounds.lower)


def test_estimates_are_inside_a_slightly_wider_bracket():
    runs = ordinary(60, seed=1)
    bounds, estimate = epsilon_bounds(*runs), epsilon_estimate(*runs)
    middle = 0.5 * (bounds.lower + bounds.upper)
    assert np.max(np.abs(estimate / middle - 1)) < 5e-3


NONE = ([1.0, 1.0], [0.0, 0.0], [0, 0])  # four phases as in a Ledger: another number would be compiled anew


def test_equal_phases_are_one_event():
    one = epsilon_bounds(1.2, 0.02, 600, 1e-6)
    two = of_phases("epsilon")([1.2] * 4, [0.02] * 4, [200, 300, 1, 99], 1e-6)
    np.testing.assert_allclose(two, one, rtol=1e-9)
    padded = of_phases("epsilon")([1.2, 7.0, 1.0, 1.0], [0.02, 0.0, 0.5, 0.0], [600, 50, 0, 0], 1e-6)
    np.testing.assert_allclose(padded, one, rtol=1e-9)


def test_phases_lie_between_their_extremes():
    mixed = of_phases("epsilon")([1.0, 2.0, *NONE[0]], [0.01, 0.02, *NONE[1]], [300, 700, *NONE[2]], 1e-6)
    low, high = epsilon_bounds([2.0, 1.0], [0.01, 0.02], 1000, 1e-6)
    assert low[0] < mixed.lower < mixed.upper < high[1]
    swapped = of_phases("epsilon")([2.0, 1.0, *NONE[0]], [0.02, 0.01, *NONE[1]], [700, 300, *NONE[2]], 1e-6)
    np.testing.assert_allclose(mixed, swapped, rtol=1e-9)


def test_an_estimate_is_confirmed_by_a_bracket_or_infinite():
    runs = [
        (2.0, 0.005, 65052, 0.25),
        (4.642889533243997, 0.5732924902471512, 10, 0.14335113228106316),
        (0.001, 0.001, 100, 1e-5),
        (0.06550539077477337, 0.004881538677046087, 1, 0.004881538677045111),
    ]
    estimate = epsilon_estimate(*np.transpose(runs))
    np.testing.assert_allclose(estimate[[0, 1, 3]], [0.043342, 0.027695, 0.334240], rtol=2e-3)
    assert estimate[2] == np.inf  # the truth is about 5e5, and no bracket says so
