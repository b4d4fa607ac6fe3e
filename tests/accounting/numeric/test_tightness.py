"""The brackets are narrow where they are promised to be."""

import numpy as np

from gdpjax.accounting import delta_bounds, epsilon_bounds
from tests.accounting.numeric import reference
from tests.accounting.numeric.inside import EPSILON, of_phases

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


def epsilon_of_phases(*phases):
    """Return the bracket on epsilon of phases (noise_multiplier, sampling_prob, num_steps), at delta 1e-6.

    Empty phases make them four, as in a Ledger: another number would be compiled anew.
    """
    empty_phases = [(1.0, 0.0, 0)] * (4 - len(phases))
    columns = zip(*phases, *empty_phases, strict=True)
    return of_phases(EPSILON)(*(list(column) for column in columns), 1e-6)


def test_equal_phases_are_one_event():
    """Equal phases cost what one of all their steps costs, and phases without steps or examples cost nothing."""
    one_event = epsilon_bounds(1.2, 0.02, 600, 1e-6)
    four_phases = epsilon_of_phases((1.2, 0.02, 200), (1.2, 0.02, 300), (1.2, 0.02, 1), (1.2, 0.02, 99))
    np.testing.assert_allclose(four_phases, one_event, rtol=1e-9)
    padded = epsilon_of_phases((1.2, 0.02, 600), (7.0, 0.0, 50), (1.0, 0.5, 0), (1.0, 0.0, 0))
    np.testing.assert_allclose(padded, one_event, rtol=1e-9)


def test_phases_lie_between_their_extremes():
    """Two phases cost more than the better one for all steps, less than the worse, and the same in any order."""
    mixed = epsilon_of_phases((1.0, 0.01, 300), (2.0, 0.02, 700))
    extremes = epsilon_bounds([2.0, 1.0], [0.01, 0.02], 1000, 1e-6)
    assert extremes.lower[0] < mixed.lower < mixed.upper < extremes.upper[1]
    swapped = epsilon_of_phases((2.0, 0.02, 700), (1.0, 0.01, 300))
    np.testing.assert_allclose(mixed, swapped, rtol=1e-9)
