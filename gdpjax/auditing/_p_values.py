r"""Test whether numbers follow a law that is known completely.

An audit with a claimed trade-off curve sees only what an attacker gains. Where the whole law of a release is known (its
noise is N(0, stddev^2), its sum is a number, its batches are Poisson samples) every departure from that law can be
tested, and small ones show much earlier:

    z = (released sum - known sum) / stddev          # standard normal, if the step does what it says
    variance_p_value((z**2).sum(), z.size)           # 1e-20: the noise has another size

Every function returns a p-value: under the law, it is at most x with probability at most x, for every x in (0, 1). No
approximation for large samples is used, so a threshold of 1e-6 means what it says. Numbers that are NaN or infinite do
not follow any of these laws: their p-value is 0.

Several p-values become one by `bonferroni`, which does not ask how they depend on each other.
"""

import numpy as np
import scipy


def bonferroni(p_values: np.ndarray | list[float]) -> float:
    """Return the p-value of several tests together: their number times the smallest, at most 1."""
    values = np.asarray(p_values, np.float64).ravel()
    values = np.where(np.isnan(values), 0.0, values)
    return float(min(1.0, values.size * values.min()))


def two_sided(lower: np.ndarray, upper: np.ndarray) -> np.ndarray:
    """Return the p-value of a statistic that is suspicious at both ends, from its two tail probabilities."""
    return np.minimum(1.0, 2 * np.minimum(lower, upper))


def variance_p_value(sum_of_squares: np.ndarray, num_draws: int) -> np.ndarray:
    """Test that independent standard normal draws have this sum of squares, which is chi-square distributed."""
    half = np.asarray(sum_of_squares, np.float64) / 2
    finite = np.isfinite(half)
    half = np.where(finite, half, 0.0)
    lower = scipy.special.gammainc(num_draws / 2, half)
    upper = scipy.special.gammaincc(num_draws / 2, half)
    return np.where(finite, two_sided(lower, upper), 0.0)


def mean_p_value(mean: np.ndarray, stddev: float, num_draws: int, tolerance: float) -> float:
    """Test that the mean of independent N(m, stddev^2 I) vectors has a centre m of norm at most ``tolerance``.

    By the triangle inequality the noise in the mean is at least as long as the mean is beyond the tolerance, and its
    squared length is chi-square distributed.
    """
    excess = max(0.0, float(np.linalg.norm(mean)) - tolerance) if np.isfinite(mean).all() else np.inf
    length = np.sqrt(num_draws) * excess / stddev
    return float(scipy.special.gammaincc(mean.size / 2, length**2 / 2))


def cdf_p_value(probabilities: np.ndarray) -> float:
    """Test that numbers are independent and uniform on (0, 1), as a continuous cdf of its own draws is.

    With D the largest distance between the empirical cdf and the uniform one, P(D > d) <= 2 exp(-2 n d^2) for every n
    (Dvoretzky, Kiefer and Wolfowitz, with Massart's constant).
    """
    if not np.isfinite(probabilities).all():
        return 0.0
    ordered = np.sort(probabilities, axis=None)
    steps = np.arange(ordered.size + 1) / ordered.size
    distance = max((steps[1:] - ordered).max(), (ordered - steps[:-1]).max())
    return float(min(1.0, 2 * np.exp(-2 * ordered.size * distance**2)))


def range_p_value(smallest: float, largest: float, num_draws: int) -> float:
    """Test the smallest and the largest of independent standard normal draws, and the largest without its sign.

    The largest of n draws is below m with probability Phi(m)^n. A tail that is cut off shows as a largest draw that is
    too small, outliers as one that is too large.
    """
    if not (np.isfinite(smallest) and np.isfinite(largest)):
        return 0.0
    beyond = scipy.special.ndtr([smallest, -largest, -max(largest, -smallest)])
    tails = np.minimum(beyond * [1, 1, 2], 1.0)
    with np.errstate(divide="ignore"):  # all draws on one side of zero
        all_within = num_draws * np.log1p(-tails)
    return bonferroni(two_sided(np.exp(all_within), -np.expm1(all_within)))


def count_p_value(count: np.ndarray, num_trials: int, prob: np.ndarray | float) -> np.ndarray:
    """Test that independent trials of a known probability succeed this many times, which is binomial."""
    count, prob = np.broadcast_arrays(np.asarray(count, np.float64), np.asarray(prob, np.float64))
    # P(X <= k) and P(X >= k) as incomplete beta functions; their arguments must be positive.
    lower = scipy.special.betainc(np.maximum(num_trials - count, 1), count + 1, 1 - prob)
    upper = scipy.special.betainc(np.maximum(count, 1), num_trials - count + 1, prob)
    lower, upper = np.where(count >= num_trials, 1.0, lower), np.where(count <= 0, 1.0, upper)
    return two_sided(lower, upper)


def correlation_p_value(columns: np.ndarray) -> float:
    """Test that the columns of a matrix of standard normal draws are independent of each other.

    Given column j, the inner product of columns i and j over the length of column j is standard normal.
    """
    products = columns.T @ columns
    first, second = np.triu_indices(columns.shape[1], 1)
    with np.errstate(all="ignore"):  # a column of zeros, or of NaN, is caught by `bonferroni`
        scores = products[first, second] / np.sqrt(products[second, second])
    return bonferroni(scipy.special.erfc(np.abs(scores) / np.sqrt(2)))
