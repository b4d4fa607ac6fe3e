"""A run without noise shows an example whenever it is in a batch, and the accountants say that."""

import numpy as np
import pytest

from gdpjax import Event, Ledger
from gdpjax.accounting import calibrate_noise_multiplier, delta_bounds, epsilon_bounds, mu_bounds, tradeoff_bounds

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
    assert upper - lower < 1e-12
    lower, upper = tradeoff_bounds(0.0, 0.1, 3, 0.2)
    assert lower <= 0.9**3 - 0.2 <= upper
    assert upper - lower < 1e-12
    assert mu_bounds(0.0, 0.1, 3, 1e-10).lower == np.inf


def test_no_batch_no_loss():
    assert tuple(epsilon_bounds(Event(0.0, 0.0, 3), delta=1e-5)) == (0.0, 0.0)


@pytest.mark.parametrize("accountant", ["numeric", "rdp", "clt"])
def test_an_infinite_target_asks_for_no_noise(accountant):
    given = dict(delta=1e-5, sampling_prob=[0.1, 0.2], num_steps=10, accountant=accountant)
    assert calibrate_noise_multiplier(epsilon=np.inf, **given).tolist() == [0.0, 0.0]
    with pytest.raises(ValueError, match="sampling_prob"):
        calibrate_noise_multiplier(epsilon=np.inf, **given | {"sampling_prob": 2.0})
