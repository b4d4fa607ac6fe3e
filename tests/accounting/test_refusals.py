"""Arguments that are out of range are refused by name, whichever accountant they are for."""

import numpy as np
import pytest

from gdpjax import accounting

RUN = {"noise_multiplier": 1.0, "sampling_prob": 0.1, "num_steps": 10}
CALLS = {
    "gdp_delta": {"epsilon": 1.0, "mu": 1.0},
    "gdp_log_delta": {"epsilon": 1.0, "mu": 1.0},
    "gdp_epsilon": {"delta": 1e-5, "mu": 1.0},
    "gdp_mu": {"epsilon": 1.0, "delta": 1e-5},
    "clt_mu_poisson": RUN,
    "clt_mu_uniform": RUN,
    "clt_epsilon": RUN | {"delta": 1e-5},
    "moments_accountant_epsilon": RUN | {"delta": 1e-5},
    "epsilon_bounds": RUN | {"delta": 1e-5},
    "delta_bounds": RUN | {"epsilon": 1.0},
    "tradeoff_bounds": RUN | {"alpha": 0.1},
    "mu_bounds": RUN | {"failure": 1e-10},
}
# Beside these, no argument takes NaN, a text, or shapes that do not broadcast.
BAD = {
    "epsilon": [-1.0],
    "mu": [-1.0],
    "delta": [0.0, 1.0],
    "noise_multiplier": [-1.0],
    "sampling_prob": [-0.1, 1.1],
    "num_steps": [0, -1, 1.5],
    "alpha": [-0.1, 1.1],
    "failure": [-0.1, 1.1],
}


@pytest.mark.parametrize("function", CALLS)
def test_a_number_out_of_range_is_refused_by_name(function):
    ask, good = getattr(accounting, function), CALLS[function]
    for name in good:
        for bad in (*BAD[name], np.nan, "one", -(10**400)):
            with pytest.raises(ValueError, match=f"{name} must be"):
                ask(**good | {name: bad})


@pytest.mark.parametrize("function", CALLS)
def test_arrays_that_do_not_fit_each_other_are_refused(function):
    ask, good = getattr(accounting, function), CALLS[function]
    first, second, *_ = good
    with pytest.raises((ValueError, TypeError), match="broadcast"):
        ask(**good | {first: np.full(2, good[first]), second: np.full(3, good[second])})
