"""How closely a bracket is looked for: `rtol`."""

import jax
import numpy as np
import pytest

from gdpjax.accounting import allocation_epsilon_bounds, certified, delta_bounds, epsilon_bounds
from gdpjax.ledger import AllocationEvent, Event, GaussianEvent, Ledger
from tests.accounting.numeric import reference

RUN = (np.array([0.7, 1.0, 2.0]), np.array([0.01, 0.1, 0.004]), np.array([2000, 100, 10000]))
WIDTHS = (1e-2, 1e-3, 1e-4)


@pytest.mark.parametrize(("function", "at"), [(epsilon_bounds, 1e-6), (delta_bounds, 0.8)])
def test_brackets_are_as_narrow_as_asked_and_meet(function, at):
    found = [function(*RUN, at, rtol=rtol) for rtol in WIDTHS]
    for rtol, bounds in zip(WIDTHS, found, strict=True):
        assert np.all(bounds.upper / bounds.lower - 1 <= 1.2 * rtol)
    lower, upper = np.max([bounds.lower for bounds in found], axis=0), np.min([b.upper for b in found], axis=0)
    assert np.all(lower <= upper)


def test_narrow_brackets_contain_the_reference():
    rows = reference.COMPOSED[::6]
    sigma, p, steps, delta = reference.columns(rows, "noise_multiplier", "sampling_prob", "num_steps", "delta")
    bounds = epsilon_bounds(sigma, p, steps, delta, rtol=1e-4)
    low = np.max([reference.columns([row[way] for row in rows], "lower")[0] for way in reference.DIRECTIONS], axis=0)
    high = np.max([reference.columns([row[way] for row in rows], "upper")[0] for way in reference.DIRECTIONS], axis=0)
    assert np.all(bounds.lower <= high)
    assert np.all(bounds.upper >= low)


def test_of_ledgers_and_curves_and_in_traced_code():
    ledger = Ledger([Event(1.0, 0.01, 1000), GaussianEvent(20.0)])
    narrow = epsilon_bounds(ledger, delta=1e-5, rtol=1e-4)
    assert narrow.upper < (1 + 1e-4) * narrow.lower
    assert certified(ledger, rtol=1e-4).epsilon(1e-5) == narrow
    with jax.enable_x64(True):
        traced = np.asarray(jax.jit(lambda noise: epsilon_bounds(noise, 0.01, 1000, 1e-5, rtol=1e-2))(1.0))
    np.testing.assert_array_equal(traced, epsilon_bounds(1.0, 0.01, 1000, 1e-5, rtol=1e-2))


@pytest.mark.parametrize("rtol", [0.0, 1e-7, 0.1, np.nan, -1e-3, "close", [1e-3, 1e-4]])
def test_others_are_refused(rtol):
    with pytest.raises(ValueError, match="rtol must be"):
        epsilon_bounds(1.0, 0.1, 10, 1e-5, rtol=rtol)


def test_it_is_the_default_where_nothing_else_is_known():
    event = AllocationEvent(1.0, 10, 2)
    assert epsilon_bounds(event, delta=1e-5) == allocation_epsilon_bounds(1.0, 10, 2, 1e-5)
    with pytest.raises(ValueError, match="rtol is available"):
        epsilon_bounds(event, delta=1e-5, rtol=1e-4)
