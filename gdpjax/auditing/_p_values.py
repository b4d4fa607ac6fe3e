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
    # A test whose statistic is not a number has failed.
    values = np.where(np.isnan(values), 0.0, values)
    together = values.size * values.min()
    return float(min(1.0, together))


def two_sided(lower_tail: np.ndarray, upper_tail: np.ndarray) -> np.ndarray:
    """Return the p-value of a statistic that is suspicious at both ends, from its two tail probabilities."""
    smaller_tail = np.minimum(lower_tail, upper_tail)
    return np.minimum(1.0, 2 * smaller_tail)


def variance_p_value(sum_of_squares: np.ndarray, num_draws: int) -> np.ndarray:
    """Test that independent standard normal draws have this sum of squares, which is chi-square distributed."""
    half_sum = np.asarray(sum_of_squares, np.float64) / 2
    is_finite = np.isfinite(half_sum)
    half_sum = np.where(is_finite, half_sum, 0.0)

    # Half of a chi-square variable with n degrees of freedom has the gamma distribution of shape n / 2.
    shape = num_draws / 2
    lower_tail = scipy.special.gammainc(shape, half_sum)
    upper_tail = scipy.special.gammaincc(shape, half_sum)
    p_value = two_sided(lower_tail, upper_tail)
    return np.where(is_finite, p_value, 0.0)


def mean_p_value(mean: np.ndarray, stddev: float, num_draws: int, tolerance: float) -> float:
    """Test that the mean of independent N(m, stddev^2 I) vectors has a centre m of norm at most ``tolerance``.

    By the triangle inequality the noise in the mean is at least as long as the mean is beyond the tolerance, and its
    squared length is chi-square distributed.
    """
    excess = np.inf
    if np.isfinite(mean).all():
        norm = float(np.linalg.norm(mean))
        excess = max(0.0, norm - tolerance)

    # The noise in the mean has the standard deviation stddev / sqrt(num_draws) in each coordinate.
    length = np.sqrt(num_draws) * excess / stddev
    upper_tail = scipy.special.gammaincc(mean.size / 2, length**2 / 2)
    return float(upper_tail)


def cdf_p_value(probabilities: np.ndarray) -> float:
    """Test that numbers are independent and uniform on (0, 1), as a continuous cdf of its own draws is.

    With D the largest distance between the empirical cdf and the uniform one, P(D > d) <= 2 exp(-2 n d^2) for every n
    (Dvoretzky, Kiefer and Wolfowitz, with Massart's constant).
    """
    if not np.isfinite(probabilities).all():
        return 0.0
    ordered = np.sort(probabilities, axis=None)
    num_draws = ordered.size

    # The empirical cdf jumps at each draw: the largest distance is just before or just after a jump.
    steps = np.arange(num_draws + 1) / num_draws
    before, after = steps[:-1], steps[1:]
    distance = max((after - ordered).max(), (ordered - before).max())

    bound = 2 * np.exp(-2 * num_draws * distance**2)
    return float(min(1.0, bound))


def range_p_value(smallest: float, largest: float, num_draws: int) -> float:
    """Test the smallest and the largest of independent standard normal draws, and the largest without its sign.

    The largest of n draws is below m with probability Phi(m)^n. A tail that is cut off shows as a largest draw that is
    too small, outliers as one that is too large.
    """
    if not (np.isfinite(smallest) and np.isfinite(largest)):
        return 0.0
    largest_size = max(largest, -smallest)

    # The probability that one draw is below the smallest, above the largest, and larger than both without its sign.
    one_tail = scipy.special.ndtr([smallest, -largest, -largest_size])
    one_beyond = np.minimum(one_tail * [1, 1, 2], 1.0)

    # The probability that no draw is beyond, and that some draw is.
    with np.errstate(divide="ignore"):  # all draws on one side of zero
        log_none_beyond = num_draws * np.log1p(-one_beyond)
    none_beyond = np.exp(log_none_beyond)
    some_beyond = -np.expm1(log_none_beyond)
    return bonferroni(two_sided(none_beyond, some_beyond))


def count_p_value(count: np.ndarray, num_trials: int, prob: np.ndarray | float) -> np.ndarray:
    """Test that independent trials of a known probability succeed this many times, which is binomial."""
    count, prob = np.broadcast_arrays(np.asarray(count, np.float64), np.asarray(prob, np.float64))

    # P(X <= k) and P(X >= k) are incomplete beta functions, whose arguments must be positive.
    num_failures = num_trials - count
    lower_tail = scipy.special.betainc(np.maximum(num_failures, 1), count + 1, 1 - prob)
    upper_tail = scipy.special.betainc(np.maximum(count, 1), num_failures + 1, prob)

    # At the ends of the range one of the two events is certain.
    lower_tail = np.where(count >= num_trials, 1.0, lower_tail)
    upper_tail = np.where(count <= 0, 1.0, upper_tail)
    return two_sided(lower_tail, upper_tail)


def correlation_p_value(columns: np.ndarray) -> float:
    """Test that the columns of a matrix of standard normal draws are independent of each other.

    Given column j, the inner product of columns i and j over the length of column j is standard normal.
    """
    inner_products = columns.T @ columns
    num_columns = columns.shape[1]
    first, second = np.triu_indices(num_columns, 1)

    # One standard normal score for each pair of columns.
    squared_lengths = inner_products[second, second]
    with np.errstate(all="ignore"):  # a column of zeros, or of NaN, is caught by `bonferroni`
        scores = inner_products[first, second] / np.sqrt(squared_lengths)
    two_tails = scipy.special.erfc(np.abs(scores) / np.sqrt(2))
    return bonferroni(two_tails)
