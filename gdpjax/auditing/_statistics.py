r"""A family of attacks on a released vector: numbers that tell two laws apart, fitted on samples of both.

Each attack is fitted to released vectors of known origin, rows [n, d] of float64 with their bits untouched, and then
gives every other vector one finite score, higher where "in" is likelier.

* ``linear``: Fisher's discriminant S^-1 (mean_in - mean_out), S the pooled covariance. Along the canary it is the
  optimal test of Gaussian noise. It also finds what no fixed direction would: noise used twice cancels in some
  combination of coordinates, S is singular there and the weight goes there; so do a leaf without noise and a leaf that
  was not clipped.
* ``quadratic``: the log-ratio of two fitted normal densities. It sees a change of variance: a divisor that depends on
  the batch, noise scaled by something private.
* ``missing``: how many coordinates are not finite. It sees an example whose NaN goes around clipping.
* ``exact``: how many coordinates have a value, to the bit, that the fitted "in" vectors had at that place, less those
  that the "out" vectors had. It sees noise on a lattice: values too coarse (bfloat16) or too few to hide the sum
  beneath, and noise that vanished.
"""

from collections.abc import Callable

import numpy as np

_RIDGE = 1e-12
_COARSE_RIDGE = 1e-6
_FARTHEST = 1e12
_SMALLEST_SIZE = 1e-300

Score = Callable[[np.ndarray], np.ndarray]
"""A fitted attack: released vectors, float64[n, d], to one finite score for each, float64[n]."""


def _finite(rows: np.ndarray) -> np.ndarray:
    """Return the rows with 0 in place of NaN and infinity."""
    return np.where(np.isfinite(rows), rows, 0.0)


def _scaled(out: np.ndarray, inside: np.ndarray) -> Score:
    """Return a map of rows to centred and scaled rows, so that one ridge suits all coordinates.

    Values that are not finite count as 0 before the scaling.
    """
    both = _finite(np.concatenate([out, inside]))
    # Divide by the largest value first, so that squares cannot overflow.
    size = np.maximum(np.abs(both).max(axis=0), _SMALLEST_SIZE)
    unit = both / size
    centre = unit.mean(axis=0)
    spread = unit.std(axis=0)
    spread = np.where(spread > 0, spread, 1.0)

    def scale(rows: np.ndarray) -> np.ndarray:
        # New rows may be far outside of the fitted ones; beyond 1e12 only the sign matters.
        with np.errstate(over="ignore"):
            scaled = (_finite(rows) / size - centre) / spread
        return np.clip(scaled, -_FARTHEST, _FARTHEST)

    return scale


def _covariance(rows: np.ndarray, ridge: float) -> np.ndarray:
    """Return the covariance matrix of the rows plus ``ridge`` times the identity."""
    num_rows, num_coordinates = rows.shape
    centred = rows - rows.mean(axis=0)
    covariance = centred.T @ centred / max(num_rows - 1, 1)
    return covariance + ridge * np.eye(num_coordinates)


def linear(out: np.ndarray, inside: np.ndarray) -> Score:
    """Fit Fisher's discriminant."""
    scale = _scaled(out, inside)
    scaled_out = scale(out)
    scaled_inside = scale(inside)

    # weights = S^-1 (mean_in - mean_out), S the pooled covariance.
    pooled = 0.5 * (_covariance(scaled_out, _RIDGE) + _covariance(scaled_inside, _RIDGE))
    difference = scaled_inside.mean(axis=0) - scaled_out.mean(axis=0)
    weights = np.linalg.solve(pooled, difference)

    # The size of the weights does not matter to a ranking; a singular S can make them very large.
    weights = weights / max(np.abs(weights).max(), _SMALLEST_SIZE)

    def score(rows: np.ndarray) -> np.ndarray:
        return scale(rows) @ weights

    return score


def quadratic(out: np.ndarray, inside: np.ndarray) -> Score:
    """Fit the log-ratio of two normal densities, up to a constant."""
    scale = _scaled(out, inside)
    mean_out, whiten_out = _normal_density(scale(out))
    mean_in, whiten_in = _normal_density(scale(inside))

    def score(rows: np.ndarray) -> np.ndarray:
        scaled = scale(rows)
        # Squared Mahalanobis distances from the two means.
        distance_out = (((scaled - mean_out) @ whiten_out.T) ** 2).sum(axis=1)
        distance_in = (((scaled - mean_in) @ whiten_in.T) ** 2).sum(axis=1)
        return distance_out - distance_in

    return score


def _normal_density(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean of the rows and the matrix that whitens them, the inverse of the covariance's factor."""
    factor = np.linalg.cholesky(_covariance(rows, _COARSE_RIDGE))
    return rows.mean(axis=0), np.linalg.inv(factor)


def missing(out: np.ndarray, inside: np.ndarray) -> Score:
    """Count the coordinates that are not finite; there is nothing to fit."""
    del out, inside

    def score(rows: np.ndarray) -> np.ndarray:
        is_missing = ~np.isfinite(rows)
        return is_missing.sum(axis=1).astype(np.float64)

    return score


def exact(out: np.ndarray, inside: np.ndarray) -> Score:
    """Count coordinates with a value seen exactly among the "in" vectors, less those seen among the "out" ones."""
    num_coordinates = out.shape[1]
    seen_out = []
    seen_inside = []
    for i in range(num_coordinates):
        seen_out.append(np.unique(_bits(out[:, i])))
        seen_inside.append(np.unique(_bits(inside[:, i])))

    def score(rows: np.ndarray) -> np.ndarray:
        total = np.zeros(len(rows))
        for i in range(num_coordinates):
            patterns = _bits(rows[:, i])
            total += np.isin(patterns, seen_inside[i]).astype(np.float64)
            total -= np.isin(patterns, seen_out[i])
        return total

    return score


def _bits(values: np.ndarray) -> np.ndarray:
    """Return the 64 bits of each float64 number as an integer."""
    return np.ascontiguousarray(values).view(np.int64)


STATISTICS: dict[str, Callable[[np.ndarray, np.ndarray], Score]] = {
    "linear": linear,
    "quadratic": quadratic,
    "missing": missing,
    "exact": exact,
}
