"""Functional privacy accountants, batched over hyperparameters.

Every name says in its docstring what its number is: exact, a certified bracket, an upper bound, or an asymptotic
estimate that may understate the truth.
"""

from gdpjax.accounting._calibration import calibrate_noise_multiplier, calibrate_num_steps, calibrate_sampling_prob
from gdpjax.accounting._certified import delta_bounds, epsilon_bounds, epsilon_estimate, mu_bounds, tradeoff_bounds
from gdpjax.accounting._clt import clt_epsilon, clt_mu_poisson, clt_mu_uniform
from gdpjax.accounting._gdp import (
    gdp_compose,
    gdp_delta,
    gdp_epsilon,
    gdp_group,
    gdp_log_delta,
    gdp_mu,
    gdp_tradeoff,
)
from gdpjax.accounting._rdp import moments_accountant_epsilon, rdp_epsilon, rdp_subsampled_gaussian

__all__ = [
    "calibrate_noise_multiplier",
    "calibrate_num_steps",
    "calibrate_sampling_prob",
    "clt_epsilon",
    "clt_mu_poisson",
    "clt_mu_uniform",
    "delta_bounds",
    "epsilon_bounds",
    "epsilon_estimate",
    "gdp_compose",
    "gdp_delta",
    "gdp_epsilon",
    "gdp_group",
    "gdp_log_delta",
    "gdp_mu",
    "gdp_tradeoff",
    "moments_accountant_epsilon",
    "mu_bounds",
    "rdp_epsilon",
    "rdp_subsampled_gaussian",
    "tradeoff_bounds",
]
