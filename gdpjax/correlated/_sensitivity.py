"""Certified sensitivities of a matrix C under a participation schema.

    sens(C)^2 = max over patterns P and |x_t| <= 1 of sum_{i, j in P} G_ij <x_i, x_j>,          G = C^T C

is at most the maximum of S(P) = sum_{i, j in P} |G_ij|, and equal to it where G has no negative entry. The functions
here return the smallest of several proved bounds on max_P S(P); docs/theory/matrix_mechanism.md has the proofs.

* One participation, or columns at participations of one example that are orthogonal: S(P) is a sum over P, exact.
* Fixed epochs: there are b patterns. If C is Toeplitz the first one is the worst, otherwise all are tried.
* Toeplitz with coefficients that do not increase and are not negative: the pattern 0, b, 2 b, ... is the worst. For
  other coefficients the same formula holds for any larger coefficients that do not increase.
* Lags: entry (i, j) of a pattern has a lag of at least (j - i) b and lies at or after step j b, so |G| is at most its
  largest value there.

Every number is rounded outwards, by the bound on the rounding error of all of its sums.
"""

import math

import numpy as np
import scipy

from gdpjax.correlated._participation import AbstractParticipation, FixedEpochs
from gdpjax.correlated._series import UNIT_ROUNDOFF, CertifiedSeries

_CLOSE = 1e-9
"""A bound within this relative distance of a lower bound is taken without looking for a better one."""
_LARGEST_GRAM = 2048
"""Steps up to which n x n numbers are formed for a better bound."""
_MOST_OPERATIONS = 10**9
"""Multiplications that may be spent on a better bound."""
_MOST_TRANSFORMED = 3 * 10**7
"""Numbers that may be sent through an FFT for a better bound."""
_FFT_ERROR = 1e-13
"""More than the relative error of a convolution by FFT, 2^-53 times a small multiple of log2 of its length."""


def toeplitz_sensitivity(column: CertifiedSeries, participation: AbstractParticipation) -> float:
    """Return an upper bound on the sensitivity of the Toeplitz matrix with this first column."""
    num_steps = len(column.values)
    count, separation = participation.limits(num_steps)
    magnitudes = column.magnitudes()

    # Columns that share no row: the first ones are the longest.
    if count == 1 or column.num_nonzero <= separation:
        return _norm_of_disjoint_columns(magnitudes, count, separation)

    # With fixed epochs the first pattern is the worst; otherwise it is for coefficients that do not increase.
    is_fixed = isinstance(participation, FixedEpochs)
    larger = magnitudes if is_fixed else _largest_to_come(magnitudes)
    bound = _norm_of_first_pattern(larger, count, separation)
    # Whether to look further may depend on a rounded number: what is returned is an upper bound in any case.
    pattern = sum_of_columns(column.values, count, separation)
    attained = np.linalg.norm(pattern)
    if bound <= (1.0 + _CLOSE) * attained:
        return bound

    # The coefficients go up or below zero: look closer where that is affordable.
    if is_fixed and num_steps * count**2 <= _MOST_OPERATIONS:
        return min(bound, _bound_from_first_columns(column, count, separation))
    if not is_fixed and num_steps * count <= _MOST_TRANSFORMED:
        bound = min(bound, _toeplitz_lag_bound(magnitudes, count, separation))
    if not is_fixed and num_steps <= _LARGEST_GRAM:
        gram, entry_error = _toeplitz_gram(column, np.arange(num_steps))
        bound = min(bound, _bound_from_gram(gram, entry_error, count, separation))
    return bound


def dense_sensitivity(matrix: np.ndarray, participation: AbstractParticipation) -> float:
    """Return an upper bound on the sensitivity of a lower-triangular matrix."""
    gram, entry_error = _gram(matrix)
    count, separation = participation.limits(len(matrix))
    if isinstance(participation, FixedEpochs):
        return _rounded_up_root_with_errors(_largest_epoch_sum(gram, separation), entry_error, count, len(matrix))
    return _bound_from_gram(gram, entry_error, count, separation)


def toeplitz_attained(column: CertifiedSeries, participation: AbstractParticipation) -> float:
    """Return |C x| for an x of ones at steps 0, b, ..., (k - 1) b, less what rounding may have added; C Toeplitz."""
    count, separation = participation.limits(len(column.values))
    totals, rounding = _sums_of_columns(column.values, count, separation)
    return float(np.linalg.norm(np.maximum(np.abs(totals) - rounding, 0.0)))


def dense_attained(matrix: np.ndarray, participation: AbstractParticipation) -> float:
    """Return |C x| for an x of ones at steps 0, b, ..., (k - 1) b; for fixed epochs the largest over all positions."""
    count, separation = participation.limits(len(matrix))
    positions = range(separation) if isinstance(participation, FixedEpochs) else range(1)
    best = 0.0
    for position in positions:
        steps = position + separation * np.arange(count)
        change = np.sum(matrix[:, steps[steps < len(matrix)]], axis=1)
        best = max(best, float(np.linalg.norm(change)))
    return best


# Toeplitz matrices


def _norm_of_disjoint_columns(magnitudes: np.ndarray, count: int, separation: int) -> float:
    """Return the norm of the columns 0, b, ..., (k - 1) b together, which are orthogonal."""
    num_steps = len(magnitudes)
    # Column t has the coefficients 0 to n - 1 - t.
    squared_norms = np.cumsum(magnitudes * magnitudes)
    lengths = num_steps - separation * np.arange(count)
    return _rounded_up_root(float(squared_norms[lengths - 1].sum()), num_steps + count)


def _norm_of_first_pattern(magnitudes: np.ndarray, count: int, separation: int) -> float:
    """Return the norm of the sum of the columns 0, b, ..., (k - 1) b."""
    total = sum_of_columns(magnitudes, count, separation)
    num_rows = -(-len(magnitudes) // separation)
    return _rounded_up_root(float(total @ total), len(magnitudes) + 4 * num_rows)


def sum_of_columns(coefficients: np.ndarray, count: int, separation: int) -> np.ndarray:
    """Return sum_{i < k} c_{m - i b} for each m; for coefficients >= 0 an upper bound, but for 4 n / b roundings.

    Optimisers also use it for other coefficients: what they find is certified afterwards.
    """
    totals, rounding = _sums_of_columns(coefficients, count, separation)
    return totals + rounding


def _sums_of_columns(coefficients: np.ndarray, count: int, separation: int) -> tuple[np.ndarray, np.ndarray]:
    """Return sum_{i < k} c_{m - i b} for each m, and a bound on the rounding error of the difference that gives it.

    With the coefficients in rows of b it is a running sum down the rows, less that of k rows before.
    """
    num_steps = len(coefficients)
    num_rows = -(-num_steps // separation)
    padded = np.zeros(num_rows * separation)
    padded[:num_steps] = coefficients
    sums = np.cumsum(padded.reshape(num_rows, separation), axis=0)
    totals = sums.copy()
    rounding = np.zeros_like(sums)
    if count < num_rows:
        totals[count:] -= sums[:-count]
        # A difference of two rounded sums is off by at most 2 (n / b) 2^-53 of the larger, for terms >= 0.
        rounding[count:] = 2.0 * num_rows * UNIT_ROUNDOFF * np.abs(sums[count:])
    return totals.ravel()[:num_steps], rounding.ravel()[:num_steps]


def _bound_from_first_columns(column: CertifiedSeries, count: int, separation: int) -> float:
    """Return the square root of the sum of |G_ij| over the columns i and j in 0, b, ..., (k - 1) b."""
    num_steps = len(column.values)
    gram, entry_error = _toeplitz_gram(column, separation * np.arange(count))
    return _rounded_up_root_with_errors(float(gram.sum()), entry_error, count, num_steps)


def _toeplitz_lag_bound(magnitudes: np.ndarray, count: int, separation: int) -> float:
    """Return the root of the bound of `_lag_bound`, for coefficients >= 0, from k convolutions.

    Entry (j - d, j) of C^T C is the sum of c_u c_{u + d} over u < n - j, which falls with j. So its largest value at or
    after step j is the one at j. Where d > j it is the one at d, which the same sum gives, as c is 0 from n on.
    """
    num_steps = len(magnitudes)
    length = scipy.fft.next_fast_len(2 * num_steps, real=True)
    spectrum = np.fft.rfft(magnitudes, length)
    norm = float(np.linalg.norm(magnitudes))

    def correlation(num_terms: int) -> np.ndarray:
        """Return sum_{u < num_terms} c_u c_{u + d} for each lag d, or a little more."""
        first = np.fft.rfft(magnitudes[:num_terms], length)
        sums = np.fft.irfft(spectrum * np.conj(first), length)[:num_steps]
        return sums + _FFT_ERROR * norm * norm

    squared = 0.0
    for number in range(count):
        step = number * separation
        largest = _largest_to_come(correlation(num_steps - step))

        # The pairs of this participation with itself and, twice, with the earlier ones.
        squared += largest[0] + 2.0 * largest[separation : step + 1 : separation].sum()
    return _rounded_up_root(float(squared), num_steps + count * count)


def toeplitz_columns(coefficients: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Return the columns of these numbers of the lower-triangular Toeplitz matrix, shape [n, columns]."""
    lag = np.subtract.outer(np.arange(len(coefficients)), columns)
    return np.where(lag >= 0, coefficients[np.maximum(lag, 0)], 0.0)


def _toeplitz_gram(column: CertifiedSeries, columns: np.ndarray) -> tuple[np.ndarray, float]:
    """Return |C^T C| of the columns of these numbers, and a bound on the errors of its entries.

    The errors e of c change an entry by |(c + e)^T (c' + e') - c^T c'| <= 2 |c| |e| + |e|^2.
    """
    gram, entry_error = _gram(toeplitz_columns(column.values, columns))
    norm = float(np.linalg.norm(column.values))
    uncertainty = float(np.linalg.norm(column.errors))
    return gram, entry_error + (2.0 * norm + uncertainty) * uncertainty * (1.0 + 1e-9)


# Gram matrices


def _gram(matrix: np.ndarray) -> tuple[np.ndarray, float]:
    """Return |C^T C|, and a bound on the rounding error of its entries."""
    gram = np.abs(matrix.T @ matrix)
    largest = float(np.max(np.diag(gram)))
    return gram, (len(matrix) + 8) * 2.0 * UNIT_ROUNDOFF * largest


def _bound_from_gram(gram: np.ndarray, entry_error: float, count: int, separation: int) -> float:
    """Return the bound by lags, for a |G| whose entries are off by ``entry_error``."""
    squared = _lag_bound(gram, count, separation)
    return _rounded_up_root_with_errors(squared, entry_error, count, len(gram))


def _rounded_up_root_with_errors(squared: float, entry_error: float, count: int, num_steps: int) -> float:
    """Return the root, rounded up, of a sum of k^2 entries each of which may be larger by ``entry_error``."""
    return _rounded_up_root(squared + count * count * entry_error, count * count + num_steps)


def _largest_epoch_sum(gram: np.ndarray, separation: int) -> float:
    """Return the largest sum of |G_ij| over i and j congruent modulo b."""
    count = len(gram) // separation
    blocks = gram.reshape(count, separation, count, separation)
    sums = np.einsum("irjr->r", blocks)
    return float(np.max(sums))


def _lag_bound(gram: np.ndarray, count: int, separation: int) -> float:
    """Return sum_{i, j < k} of the largest |G| with a lag of at least |i - j| b, at or after step max(i, j) b."""
    num_steps = len(gram)

    # Entry [d, j] is |G[j - d, j]|, or 0 where that is outside.
    index = np.arange(num_steps)
    lag, later = index[:, None], index[None, :]
    earlier = np.maximum(later - lag, 0)
    by_lag = np.where(lag <= later, gram[earlier, later], 0.0)

    # The largest at that lag or more, and at that step or later.
    by_lag = _largest_to_come(by_lag)
    by_lag = _largest_to_come(by_lag.T).T

    # The sum over pairs of participations.
    steps = separation * np.arange(count)
    chosen = by_lag[np.ix_(steps, steps)]
    number = np.arange(count)
    apart = np.abs(number[:, None] - number[None, :])
    latest = np.maximum(number[:, None], number[None, :])
    return float(np.sum(chosen[apart, latest]))


def _largest_to_come(values: np.ndarray) -> np.ndarray:
    """Return the largest of each value and those after it, along the first axis."""
    backwards = np.maximum.accumulate(values[::-1], axis=0)
    return backwards[::-1]


def _rounded_up_root(squared: float, num_roundings: int) -> float:
    """Return an upper bound on the root of a sum of positive terms, computed as ``squared`` with so many roundings."""
    relative_error = 4.0 * (num_roundings + 8) * UNIT_ROUNDOFF
    root = math.sqrt(squared * (1.0 + relative_error))
    return math.nextafter(root, math.inf)
