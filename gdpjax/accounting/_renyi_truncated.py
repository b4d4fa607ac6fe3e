r"""Renyi moments of one step of truncated Poisson sampling, rigorously from above.

Show the number K of other drawn examples (`gdpjax.accounting._truncated`). Where all of them fit, the step is Poisson's
with noise multiplier s and probability p. Otherwise the example, if it is kept, takes another's place: at worst the
step is Poisson's with s / 2 and p. K has one law under both data sets, so the moment of the step together with K is the
mean of the moments given K, and

    A(a) <= (1 - q) A_{s, p}(a) + q A_{s/2, p}(a),      q = P(Bin(N - 1, p) >= B),

where A is the larger moment of the two directions. It is the one of Poisson sampling in either term, so this holds for
both directions. A_{s/2, p} >= A_{s, p}, since halving an output and adding noise loses information, so the bound grows
with q: it holds for every number n <= N of examples. That the example is kept with a probability of at most p is all
that is used of the random order: equal random bits do no harm.
"""

import numpy as np

from gdpjax.accounting._renyi import log_moments
from gdpjax.accounting._truncated import overflow_of_a_step
from gdpjax.ledger import TruncatedPoissonEvent

_ROUNDING = 1.0 + 2.0**-36


def log_moments_truncated(event: TruncatedPoissonEvent, orders: np.ndarray) -> np.ndarray:
    """Upper bounds on log A of one step, for orders > 1 of shape [K]."""
    noise = np.float64(event.noise_multiplier)
    prob = np.float64(event.sampling_prob)
    overflow = overflow_of_a_step(event)
    fitting = log_moments(noise, prob, orders, np)
    if overflow == 0.0:
        return fitting
    displacing = log_moments(0.5 * noise, prob, orders, np)

    # A - 1 is a mean of the two A - 1: in logarithms, nothing overflows and small moments keep their digits.
    with np.errstate(divide="ignore"):
        excess = np.log1p(-overflow) + _log_expm1(fitting)
        excess_displacing = np.log(overflow) + _log_expm1(displacing)
        mean = np.logaddexp(0.0, np.logaddexp(excess, excess_displacing))
    # The largest moments have no excess that is a number: fmin leaves it out.
    return np.fmin(mean * _ROUNDING, displacing)


def _log_expm1(x: np.ndarray) -> np.ndarray:
    """log(e^x - 1) at x >= 0, inf included."""
    return x + np.log(-np.expm1(-x))
