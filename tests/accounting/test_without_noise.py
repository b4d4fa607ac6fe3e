"""A run without noise shows an example whenever it is in a batch, and the accountants say that."""

import numpy as np
import pytest

from gdpjax import Event, Ledger
from gdpjax.accounting import (
    calibrate_noise_multiplier,
    certified,
    delta_bounds,
    epsilon_bounds,
    gdp_delta,
    mu_bounds,
    tradeoff_bounds,
)
from gdpjax.ledger import AllocationEvent, CorrelatedGaussianEvent, GaussianEvent

SHOWN = 1 - 0.9**3
"""Probability that an example is in one of three batches of probability 0.1."""


def test_epsilon_is_infinite_below_the_probability_of_being_in_a_batch():
    for run in (Event(0.0, 0.1, 3), Ledger([Event(0.0, 0.1, 1), Event(1.0, 0.01, 5), Event(0.0, 0.1, 2)])):
        assert tuple(epsilon_bounds(run, delta=1e-5)) == (np.inf, np.inf)
        assert epsilon_bounds(run, delta=SHOWN - 1e-3).lower == np.inf
        assert np.isfinite(epsilon_bounds(run, delta=SHOWN + 1e-3).upper)
    assert tuple(epsilon_bounds(0.0, 0.1, 3, 1e-5)) == (np.inf, np.inf)
    assert tuple(epsilon_bounds(0, 1.0, 3, 0.9)) == (np.inf, np.inf)


def test_delta_and_curve_are_those_of_being_in_a_batch():
    lower, upper = delta_bounds(0.0, 0.1, 3, 50.0)
    assert lower <= SHOWN <= upper
    assert upper - lower < 1e-11
    lower, upper = tradeoff_bounds(0.0, 0.1, 3, 0.2)
    assert lower <= 0.9**3 - 0.2 <= upper
    assert upper - lower < 1e-11
    assert mu_bounds(0.0, 0.1, 3, 1e-10).lower == np.inf


@pytest.mark.parametrize("accountant", ["numeric", "rdp", "clt"])
def test_an_infinite_target_asks_for_no_noise(accountant):
    given = dict(delta=1e-5, sampling_prob=[0.1, 0.2], num_steps=10, accountant=accountant)
    assert calibrate_noise_multiplier(epsilon=np.inf, **given).tolist() == [0.0, 0.0]
    with pytest.raises(ValueError, match="sampling_prob"):
        calibrate_noise_multiplier(epsilon=np.inf, **given | {"sampling_prob": 2.0})


@pytest.mark.parametrize("prob", [5e-4, 0.25, 0.7])
def test_beside_noise_the_example_is_shown_or_missed(prob):
    """The bracket holds what the law of outcomes says, and is as wide as the smaller of what is shown and missed."""
    ledger = Ledger([Event(0.0, prob, 1), GaussianEvent(2.0)])
    shift = -np.log1p(-prob)

    def delta(epsilon):
        """Exact, for both directions; the Gaussian mechanism is symmetric."""
        removed = prob + (1 - prob) * gdp_delta(epsilon + shift, 0.5)
        distance = abs(epsilon - shift)
        added = gdp_delta(distance, 0.5)
        return max(removed, added if epsilon >= shift else 1 - np.exp(-distance) * (1 - added))

    for epsilon in (0.0, 0.01, 0.1, 0.5, 2.0):
        lower, upper = delta_bounds(ledger, epsilon=epsilon)
        assert lower * (1 - 1e-9) <= delta(epsilon) <= upper * (1 + 1e-9)
        assert upper - lower < min(prob, gdp_delta(epsilon, 0.5)) * (1 + 1e-9)
        above = epsilon_bounds(ledger, delta=delta(epsilon) * (1 + 1e-7))
        assert above.lower <= epsilon + 1e-5
        below = epsilon_bounds(ledger, delta=delta(epsilon) * (1 - 1e-7))
        assert epsilon - 1e-5 <= below.upper
    assert mu_bounds(ledger, failure=0.9 * prob) == (np.inf, np.inf)
    curve = tradeoff_bounds(ledger, alpha=0.1)
    assert curve.lower <= 1 - prob - 0.1


@pytest.mark.parametrize(
    "event",
    [Event(1e-200, 0.1, 10), AllocationEvent(1e-200, 10, 3), CorrelatedGaussianEvent(1e-200, 10)],
    ids=["poisson", "allocation", "correlated"],
)
def test_noise_whose_square_underflows(event):
    curve = certified(event)
    assert curve.epsilon(1e-5).upper == curve.mu().upper == np.inf
    lower, upper = curve.delta([0.0, 1.0])
    assert np.all((lower >= 0) & (upper >= 1 - 0.9**10))
