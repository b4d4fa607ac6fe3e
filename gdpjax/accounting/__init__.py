"""Functional privacy accountants, batched over hyperparameters.

Every name says in its docstring what its number is: exact, a certified bracket, an upper bound, or an asymptotic
estimate that may understate the truth.
"""

# What is imported under an alias is for the other parts of the library, and not public.
from gdpjax.accounting._calibration import calibrate_noise_multiplier, calibrate_num_steps
from gdpjax.accounting._certified import delta_bounds, epsilon_bounds, mu_bounds, tradeoff_bounds
from gdpjax.accounting._clt import clt_epsilon, clt_mu_poisson, clt_mu_uniform
from gdpjax.accounting._gdp import (
    gdp_compose,
    gdp_delta,
    gdp_epsilon,
    gdp_log_delta,
    gdp_mu,
)
from gdpjax.accounting._moments_accountant import moments_accountant_epsilon
from gdpjax.accounting._num_runs import gamma_for_mean_num_runs, mean_num_runs, sample_num_runs
from gdpjax.accounting._overflow import with_overflow as with_overflow
from gdpjax.accounting._rdp import rdp_epsilon, rdp_subsampled_gaussian
from gdpjax.accounting._run_curve import certified, mu_and_regret
from gdpjax.accounting._tuning import tuning_epsilon

__all__ = [
    "calibrate_noise_multiplier",
    "calibrate_num_steps",
    "certified",
    "clt_epsilon",
    "clt_mu_poisson",
    "clt_mu_uniform",
    "delta_bounds",
    "epsilon_bounds",
    "gamma_for_mean_num_runs",
    "gdp_compose",
    "gdp_delta",
    "gdp_epsilon",
    "gdp_log_delta",
    "gdp_mu",
    "mean_num_runs",
    "moments_accountant_epsilon",
    "mu_and_regret",
    "mu_bounds",
    "rdp_epsilon",
    "rdp_subsampled_gaussian",
    "sample_num_runs",
    "tradeoff_bounds",
    "tuning_epsilon",
]
