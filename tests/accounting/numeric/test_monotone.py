"""The certified bracket is monotone in every argument, up to its own width."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from gdpjax.accounting import epsilon_bounds

NOISE = st.floats(0.7, 10)
PROB = st.floats(1e-3, 1)
STEPS = st.integers(20, 5000)
LOG_DELTA = st.floats(-12, -2)


@settings(deadline=None, max_examples=25, derandomize=True)
@given(NOISE, PROB, STEPS, LOG_DELTA, st.floats(1e-4, 1))
def test_epsilon_bounds_are_monotone_up_to_their_width(noise, prob, steps, log_delta, gap):
    """Row i changes argument i towards less loss: no lower bound there exceeds the upper bound of row 0."""
    changed = np.eye(5)[:, 1:] * gap
    delta = 10.0**log_delta
    bounds = epsilon_bounds(
        noise * (1 + changed[:, 0]),
        prob / (1 + changed[:, 1]),
        np.ceil(steps / (1 + changed[:, 2])),
        delta * (1 + changed[:, 3]),
    )
    width = (bounds.upper - bounds.lower).max()
    assert (bounds.lower <= bounds.upper).all()
    assert (bounds.lower[1:] <= bounds.upper[0]).all()
    assert (bounds.upper[1:] <= bounds.upper[0] + width).all()
    assert (bounds.lower[1:] <= bounds.lower[0] + width).all()


def test_brackets_move_with_every_argument():
    """The property above would hold of a constant: a change of 1 % shows in the bracket, in the right direction."""
    base = epsilon_bounds(1.3, 256 / 60_000, 3516, 1e-5)
    less = epsilon_bounds(
        1.3 * np.array([1.01, 1, 1, 1]), 256 / 60_000 / np.array([1, 1.01, 1, 1]), [3516, 3516, 3480, 3516],
        1e-5 * np.array([1, 1, 1, 1.05]),
    )  # fmt: skip
    assert (less.upper < base.lower).all()
