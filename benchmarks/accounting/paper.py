"""The formulas of arXiv:1911.11607 and arXiv:1905.02383 typed in as they stand, with SciPy's normal and root finder.

This is what one gets from the papers in an afternoon; it is a peer in speed and in accuracy, not a reference.
"""

import numpy as np
from scipy.optimize import root_scalar
from scipy.stats import norm

EPSILONS = [0, 500.0]
"""The bracket in which the root finder looks for epsilon."""


def clt_mu(noise_multiplier, sampling_prob, num_steps):
    """Return the mu of the central limit theorem, p sqrt(T (exp(1 / sigma^2) - 1))."""
    of_one_step = np.sqrt(np.exp(noise_multiplier**-2.0) - 1)
    return sampling_prob * np.sqrt(num_steps) * of_one_step


def delta(epsilon, mu):
    """Return the delta of mu-GDP at epsilon."""
    above = norm.cdf(-epsilon / mu + mu / 2)
    below = norm.cdf(-epsilon / mu - mu / 2)
    return above - np.exp(epsilon) * below


def epsilon(target, mu):
    """Return the epsilon at which mu-GDP has a delta."""

    def excess(epsilon):
        return delta(epsilon, mu) - target

    return root_scalar(excess, bracket=EPSILONS, method="brentq").root


def clt_epsilon(noise_multiplier, sampling_prob, num_steps, target):
    """Return epsilon at a delta by the central limit theorem."""
    mu_of_run = clt_mu(noise_multiplier, sampling_prob, num_steps)
    return epsilon(target, mu_of_run)
