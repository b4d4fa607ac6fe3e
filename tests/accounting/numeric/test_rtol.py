"""The argument `rtol`: how narrow a bracket has to be."""

import jax
import numpy as np
import pytest

from gdpjax.accounting import certified, delta_bounds, epsilon_bounds
from gdpjax.ledger import AllocationEvent, Event, GaussianEvent, Ledger

NOISE_MULTIPLIERS = np.array([0.7, 1.0, 2.0])
SAMPLING_PROBS = np.array([0.01, 0.1, 0.004])
NUM_STEPS = np.array([2000, 100, 10000])
WIDTHS = (1e-2, 1e-3, 1e-4)


@pytest.mark.parametrize(("function", "at"), [(epsilon_bounds, 1e-6), (delta_bounds, 0.8)])
def test_brackets_are_as_narrow_as_asked_and_meet(function, at):
    """Each bracket is nearly as narrow as asked, and brackets of different widths have a point in common."""
    lower_ends = []
    upper_ends = []
    for rtol in WIDTHS:
        bounds = function(NOISE_MULTIPLIERS, SAMPLING_PROBS, NUM_STEPS, at, rtol=rtol)
        assert np.all(bounds.upper / bounds.lower - 1 <= 1.2 * rtol)
        lower_ends.append(bounds.lower)
        upper_ends.append(bounds.upper)
    highest_lower = np.max(lower_ends, axis=0)
    lowest_upper = np.min(upper_ends, axis=0)
    assert np.all(highest_lower <= lowest_upper)


def test_of_ledgers_and_curves_and_in_traced_code():
    """Ledgers, curves and traced runs are bracketed as closely."""
    ledger = Ledger([Event(1.0, 0.01, 1000), GaussianEvent(20.0)])
    narrow = epsilon_bounds(ledger, delta=1e-5, rtol=1e-4)
    assert narrow.upper < (1 + 1e-4) * narrow.lower
    assert certified(ledger, rtol=1e-4).epsilon(1e-5) == narrow

    def bounds_of_run(noise_multiplier):
        return epsilon_bounds(noise_multiplier, 0.01, 1000, 1e-5, rtol=1e-2)

    with jax.enable_x64(True):
        traced = np.asarray(jax.jit(bounds_of_run)(1.0))
    np.testing.assert_array_equal(traced, bounds_of_run(1.0))


@pytest.mark.parametrize("rtol", [0.0, 1e-7, 0.1, np.nan, -1e-3, "close", [1e-3, 1e-4]])
def test_others_are_refused(rtol):
    """A width that is no number, or out of range, is refused."""
    with pytest.raises(ValueError, match="rtol must be"):
        epsilon_bounds(1.0, 0.1, 10, 1e-5, rtol=rtol)


def test_it_is_the_default_where_nothing_else_is_known():
    """A scheme without brackets of other widths refuses them."""
    event = AllocationEvent(1.0, 10, 2)
    assert epsilon_bounds(event, delta=1e-5) == epsilon_bounds(event, delta=1e-5, rtol=1e-3)
    with pytest.raises(ValueError, match="leave group_size and rtol out"):
        epsilon_bounds(event, delta=1e-5, rtol=1e-4)
