"""Closed forms that tests of several accountants compare with."""

import numpy as np
from scipy.special import log_ndtr, ndtr


def gaussian_delta(epsilon, mu):
    """Return delta_mu at an epsilon of either sign: E_P (1 - e^{epsilon - L})_+ of N(mu, 1) against N(0, 1)."""
    return ndtr(mu / 2 - epsilon / mu) - np.exp(epsilon + log_ndtr(-mu / 2 - epsilon / mu))
