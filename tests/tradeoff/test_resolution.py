"""Curves that were worked out with rounding claim nothing below the smallest probability they resolve."""

import numpy as np

from gdpjax.tradeoff import ApproximateDP, Laplace, epsilon, group, subsample
from gdpjax.tradeoff._duality import _resolution


def test_groups_claim_no_epsilon_where_their_curve_is_rounding():
    grouped = group(ApproximateDP(0.5, 1e-6), 3)
    none, nothing, some = epsilon(grouped, np.array([1e-16, 0.0, 1e-3]))
    assert none == nothing == np.inf
    assert 0 < some < 1.6
    assert _resolution(subsample(grouped, 0.5)) == _resolution(grouped) > _resolution(Laplace(1.0)) == 0
