"""The formulas of arXiv:1911.11607 and arXiv:1905.02383 typed in as they stand, with SciPy's normal and root finder.

This is what one gets from the papers in an afternoon; it is a peer in speed and in accuracy, not a reference.
"""

import numpy as np
from scipy.optimize import root_scalar
from scipy.stats import norm

LARGEST_EPSILON = 500.0


def clt_mu(noise_multiplier, sampling_prob, num_steps):
    return sampling_prob * np.sqrt(num_steps) * np.sqrt(np.exp(noise_multiplier**-2.0) - 1)


def tradeoff(alpha, mu):
    return norm.cdf(norm.ppf(1 - alpha) - mu)


def delta(epsilon, mu):
    return norm.cdf(-epsilon / mu + mu / 2) - np.exp(epsilon) * norm.cdf(-epsilon / mu - mu / 2)


def epsilon(target, mu):
    return root_scalar(lambda x: delta(x, mu) - target, bracket=[0, LARGEST_EPSILON], method="brentq").root


def mu(epsilon, target):
    return root_scalar(lambda x: delta(epsilon, x) - target, bracket=[1e-6, 100], method="brentq").root


def clt_epsilon(noise_multiplier, sampling_prob, num_steps, target):
    return epsilon(target, clt_mu(noise_multiplier, sampling_prob, num_steps))
