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
Score = Callable[[np.ndarray], np.ndarray]


def _finite(rows: np.ndarray) -> np.ndarray:
    return np.where(np.isfinite(rows), rows, 0.0)


def _scaled(out: np.ndarray, inside: np.ndarray) -> Score:
    """Centred and scaled features, so that one ridge suits all coordinates; missing values become 0."""
    both = _finite(np.concatenate([out, inside]))
    size = np.maximum(np.abs(both).max(axis=0), 1e-300)  # first, so that squares cannot overflow
    centre, spread = (both / size).mean(axis=0), (both / size).std(axis=0)
    spread = np.where(spread > 0, spread, 1.0)

    def scale(rows: np.ndarray) -> np.ndarray:
        with np.errstate(over="ignore"):  # what was never seen may be far out; beyond 1e12 only the sign matters
            return np.clip((_finite(rows) / size - centre) / spread, -1e12, 1e12)

    return scale


def _covariance(rows: np.ndarray, ridge: float) -> np.ndarray:
    centred = rows - rows.mean(axis=0)
    return centred.T @ centred / max(len(rows) - 1, 1) + ridge * np.eye(rows.shape[1])


def linear(out: np.ndarray, inside: np.ndarray) -> Score:
    """Fisher's discriminant."""
    scale = _scaled(out, inside)
    a, b = scale(out), scale(inside)
    pooled = 0.5 * (_covariance(a, _RIDGE) + _covariance(b, _RIDGE))
    weights = np.linalg.solve(pooled, b.mean(axis=0) - a.mean(axis=0))
    weights = weights / max(np.abs(weights).max(), 1e-300)
    return lambda rows: scale(rows) @ weights


def quadratic(out: np.ndarray, inside: np.ndarray) -> Score:
    """Log-ratio of two normal densities, up to a constant."""
    scale = _scaled(out, inside)
    means, factors = [], []
    for rows in (scale(out), scale(inside)):
        means.append(rows.mean(axis=0))
        factors.append(np.linalg.inv(np.linalg.cholesky(_covariance(rows, _COARSE_RIDGE))))

    def score(rows: np.ndarray) -> np.ndarray:
        far_out, far_in = (
            (((scale(rows) - mean) @ factor.T) ** 2).sum(axis=1) for mean, factor in zip(means, factors, strict=True)
        )
        return far_out - far_in

    return score


def missing(out: np.ndarray, inside: np.ndarray) -> Score:
    """The number of coordinates that are not finite."""
    del out, inside
    return lambda rows: (~np.isfinite(rows)).sum(axis=1).astype(np.float64)


def exact(out: np.ndarray, inside: np.ndarray) -> Score:
    """Coordinates with a value seen exactly among the "in" vectors, less those seen among the "out" ones."""
    seen = [(np.unique(_bits(a)), np.unique(_bits(b))) for a, b in zip(out.T, inside.T, strict=True)]

    def score(rows: np.ndarray) -> np.ndarray:
        total = np.zeros(len(rows))
        for column, (in_out, in_inside) in zip(rows.T, seen, strict=True):
            total += np.isin(_bits(column), in_inside).astype(float) - np.isin(_bits(column), in_out)
        return total

    return score


def _bits(values: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(values).view(np.int64)


STATISTICS: dict[str, Callable[[np.ndarray, np.ndarray], Score]] = {
    "linear": linear, "quadratic": quadratic, "missing": missing, "exact": exact,
}  # fmt: skip
