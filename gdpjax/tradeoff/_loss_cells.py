r"""A curve cut into cells of nearly constant privacy loss, with certified masses: the input of numeric composition.

A trade-off curve is a pair of laws on its own graph: the piece between alpha_i and alpha_{i+1} has null mass
n = alpha_{i+1} - alpha_i and alternative mass a = f(alpha_i) - f(alpha_{i+1}), and its losses log |f'| lie between
those at its ends. Cells are cut at multiples of a spacing h, moved by a little so that rounding leaves no loss beyond
the next multiple (down, or up where the cells are going to be reversed). Masses must be accurate *relative to
themselves*, since tiny tails decide a tiny delta; so none is a difference of large numbers:

* Gaussian: the loss at x = -Phi^-1(alpha) is mu x - mu^2/2; both masses are Gauss-Legendre integrals of densities
  (order 8, cells so narrow that x varies the density by e^{1/2} at most: remainder below 1e-15), and tails beyond
  |x| = 10.5.
* Laplace: atoms at the ends and exponentials in between, by expm1.
* Polygons: differences of stored vertices, which are exact numbers.
* Mixture: masses a' = p a + (1 - p) n, loss log(1 - p + p e^l). Inverse: n and a exchanged, losses negated.
* C_p(f): the left half of f_p, its mirror image, and the straight piece with loss 0 (enlarged by 1e-12, which can only
  give an upper bound on every error and on every delta).
* Any other curve: a polygon below it or above it, from values trusted to an absolute 1e-12 and convexity.

RELATIVE_ERROR bounds the relative error of every mass and LOSS_ERROR the absolute error of every loss.
"""

from typing import NamedTuple

import numpy as np
import scipy

from gdpjax.tradeoff._abstract import Curve
from gdpjax.tradeoff._approximate_dp import ApproximateDP
from gdpjax.tradeoff._derived_curves import Inverse, Mixture, Subsampled
from gdpjax.tradeoff._gaussian import Gaussian, Identity
from gdpjax.tradeoff._laplace import Laplace
from gdpjax.tradeoff._piecewise_linear import PiecewiseLinear, lower_hull

RELATIVE_ERROR = 1e-12
LOSS_ERROR = 1e-12
_REACH = 10.5
_VALUE_ERROR = 1e-12
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(8)


class Cut(NamedTuple):
    """How to cut: at multiples of ``spacing`` moved down (sign 1) or up (-1); ``below``: which polygon to use."""

    spacing: float
    below: bool
    sign: int = 1

    def edges(self, low: float, high: float) -> np.ndarray:
        """Decreasing losses strictly inside (low, high), 0 among them if it is inside."""
        first = int(np.floor(low / self.spacing)) - 1
        last = int(np.ceil(high / self.spacing)) + 1
        multiples = self.spacing * np.arange(last, first - 1, -1)
        moved = multiples - self.sign * 2.0 * LOSS_ERROR
        edges = np.sort(np.append(moved, 0.0))[::-1]
        return edges[(edges > low) & (edges < high)]


class Cells(NamedTuple):
    """Pieces of a curve, and the masses that only the alternative and only the null have.

    Fields:
        null: mass of each piece under the null.
        alternative: mass of each piece under the alternative.
        low, high: an interval for the loss of each piece (infinite ends allowed).
        infinite: mass that only the alternative has.
        negative: mass that only the null has.
    """

    null: np.ndarray
    alternative: np.ndarray
    low: np.ndarray
    high: np.ndarray
    infinite: float
    negative: float


_ALL_ONE = Cells(np.ones(1), np.ones(1), np.zeros(1), np.zeros(1), 0.0, 0.0)
_NOTHING = np.zeros(0)
_DISJOINT = Cells(_NOTHING, _NOTHING, _NOTHING, _NOTHING, infinite=1.0, negative=1.0)

# Parameters beyond these are taken for no privacy at all (from below), or for the parameters themselves (from above).
_MOST_MU = 25.0
_MOST_LAPLACE = 200.0
_MOST_EPSILON = 600.0


def cells_of(curve: Curve, cut: Cut) -> Cells:
    """The cells of a curve with concrete scalar parameters."""
    match curve:
        case Identity():
            return _ALL_ONE
        case Gaussian():
            mu = min(float(curve.mu), _MOST_MU)
            top = mu * (_REACH + 0.5 * mu)
            return _DISJOINT if cut.below and mu == _MOST_MU else _gaussian(mu, cut.edges(-top, top))
        case Laplace():
            theta = min(float(curve.epsilon), _MOST_LAPLACE)
            return _DISJOINT if cut.below and theta == _MOST_LAPLACE else _laplace(theta, cut.edges(-theta, theta))
        case ApproximateDP():
            return _approximate_dp(float(curve.epsilon), float(curve.delta), cut)
        case PiecewiseLinear():
            return _of_polygon(np.asarray(curve.alpha, np.float64), np.asarray(curve.beta, np.float64))
        case Mixture():
            return _mixture(curve.curve, float(curve.sampling_prob), cut)
        case Inverse():
            return _reversed(cells_of(curve.curve, cut._replace(sign=-cut.sign)))
        case Subsampled():
            # The right half is the mirror image of the left one, cut with the other sign.
            prob = float(curve.sampling_prob)
            left = _mixture(curve.curve, prob, cut)
            mirrored = _mixture(curve.curve, prob, cut._replace(sign=-cut.sign))
            return _mirrored(_left_half(left), _left_half(mirrored))
    polygon = polygon_below if cut.below else polygon_above
    return _of_polygon(*polygon(curve))


def loss_range(curve: Curve) -> tuple[float, float]:
    """Roughly where the losses of a curve lie, tails beyond 1e-25 apart; equal ends if all are 0."""
    match curve:
        case Gaussian():
            mu = min(float(curve.mu), _MOST_MU)
            top = mu * (_REACH + 0.5 * mu)
            return -top, top
        case Mixture():
            inner = np.array(loss_range(curve.curve))
            low, high = _mixed_loss(inner, float(curve.sampling_prob))
            return float(low), float(high)
        case Inverse():
            low, high = loss_range(curve.curve)
            return -high, -low
        case Subsampled():
            _, high = loss_range(Mixture(curve.curve, curve.sampling_prob))
            return -high, high
    cells = cells_of(curve, Cut(1.0, below=True))
    ends = np.append(cells.low, cells.high)
    ends = ends[np.isfinite(ends)]
    return (float(ends.min()), float(ends.max())) if ends.size else (0.0, 0.0)


def _of_polygon(alpha: np.ndarray, beta: np.ndarray) -> Cells:
    """Cells of a polygon: its edges, of one loss each."""
    null = np.diff(alpha)
    alternative = -np.diff(beta)
    infinite = 1.0 - float(beta[0])

    # Where the curve is flat only the null has mass.
    is_flat = ~(alternative > 0)
    negative = float(np.sum(null[is_flat]))
    null = null[~is_flat]
    alternative = alternative[~is_flat]

    # The losses fall.
    loss = np.log(alternative) - np.log(null)
    order = np.argsort(-loss, kind="stable")
    return Cells(null[order], alternative[order], loss[order], loss[order], infinite, negative)


def _approximate_dp(epsilon: float, delta: float, cut: Cut) -> Cells:
    if np.isinf(epsilon) or delta == 1 or (cut.below and epsilon >= _MOST_EPSILON):
        return _DISJOINT
    epsilon = min(epsilon, _MOST_EPSILON)
    masses = (1.0 - delta) / (1.0 + np.exp(np.array([epsilon, -epsilon])))
    loss = np.array([epsilon, -epsilon])
    return Cells(masses, masses[::-1], loss, loss, delta, delta)


def _gaussian(mu: float, edges: np.ndarray) -> Cells:
    """Cells of G_mu between decreasing losses and the two tails beyond."""
    if mu == 0:
        return _ALL_ONE
    # The places x at which the losses mu x - mu^2 / 2 are, in falling order, between the two tails.
    x = edges / mu + 0.5 * mu
    inside = (x < mu + _REACH) & (x > -_REACH)
    x = np.concatenate([[mu + _REACH], x[inside], [-_REACH]])

    # Divide wide cells, so that the density changes little within each.
    widest = 0.5 / (_REACH + mu)
    counts = np.maximum(1, np.ceil(-np.diff(x) / widest)).astype(int)
    start = np.repeat(x[:-1], counts)
    step = np.repeat(-np.diff(x) / counts, counts)
    within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    x = np.append(start - step * within, x[-1])

    # Gauss-Legendre integrals of both densities over the cells, and their tails beyond.
    width = x[:-1] - x[1:]
    centre = 0.5 * (x[:-1] + x[1:])
    nodes = centre[:, None] + 0.5 * width[:, None] * _NODES
    masses = []
    for mean in (0.0, mu):
        density = np.exp(-0.5 * (nodes - mean) ** 2)
        body = 0.5 * width * (density @ _WEIGHTS) / np.sqrt(2.0 * np.pi)
        upper_tail = scipy.special.ndtr(mean - x[0])
        lower_tail = scipy.special.ndtr(x[-1] - mean)
        masses.append(np.concatenate([[upper_tail], body, [lower_tail]]))

    null, alternative = masses
    loss = mu * (x - 0.5 * mu)
    return Cells(null, alternative, np.append(loss, -np.inf), np.append(np.inf, loss), 0.0, 0.0)


def _laplace(theta: float, edges: np.ndarray) -> Cells:
    """Cells of the Laplace curve between decreasing losses, and its two atoms."""
    if theta == 0:
        return _ALL_ONE
    edges = np.concatenate([[theta], edges, [-theta]])
    upper = edges[:-1]
    lower = edges[1:]

    # The null's mass between two losses is (e^{-(theta + lower) / 2} - e^{-(theta + upper) / 2}) / 2; the alternative's
    # is its mirror image.
    shrink = -0.5 * np.expm1(-0.5 * (upper - lower))
    null = shrink * np.exp(-0.5 * (theta + lower))
    alternative = shrink * np.exp(-0.5 * (theta - upper))

    # The atoms at the largest and at the smallest loss.
    small = 0.5 * np.exp(-theta)
    return Cells(
        null=np.concatenate([[small], null, [0.5]]),
        alternative=np.concatenate([[0.5], alternative, [small]]),
        low=np.concatenate([[theta], lower, [-theta]]),
        high=np.concatenate([[theta], upper, [-theta]]),
        infinite=0.0,
        negative=0.0,
    )


def _mixed_loss(loss: np.ndarray, p: float) -> np.ndarray:
    """log(1 - p + p e^l)."""
    with np.errstate(divide="ignore"):
        return np.logaddexp(np.log1p(-p), np.log(p) + loss) if p > 0 else np.zeros_like(loss)


def _inner_edges(cut: Cut, top: float, p: float) -> np.ndarray:
    """Losses l within (-top, top) at which log(1 - p + p e^l) is an edge."""
    low, high = _mixed_loss(np.array([-top, top]), p)
    outer = cut.edges(low, high)
    excess = np.expm1(np.minimum(outer, 700.0)) / p
    return np.where(outer < 700.0, np.log1p(np.maximum(excess, -1.0 + 1e-16)), outer - np.log(p))


def _mixture(curve: Curve, p: float, cut: Cut) -> Cells:
    """Cells of p f + (1 - p) Id."""
    if p == 0:
        return _ALL_ONE
    top = loss_range(curve)[1]
    match curve:
        case Gaussian() if 0 < float(curve.mu) < _MOST_MU:
            inner = _gaussian(float(curve.mu), _inner_edges(cut, top, p))
        case Laplace() if 0 < float(curve.epsilon) < _MOST_LAPLACE:
            inner = _laplace(float(curve.epsilon), _inner_edges(cut, top, p))
        case _:
            inner = cells_of(curve, cut)
    alternative = p * inner.alternative + (1.0 - p) * inner.null
    low, high = _mixed_loss(inner.low, p), _mixed_loss(inner.high, p)
    if p == 1 or inner.negative == 0:
        return Cells(inner.null, alternative, low, high, p * inner.infinite, inner.negative)
    # What had loss minus infinity now has log(1 - p).
    return Cells(
        null=np.append(inner.null, inner.negative),
        alternative=np.append(alternative, (1.0 - p) * inner.negative),
        low=np.append(low, np.log1p(-p)),
        high=np.append(high, np.log1p(-p)),
        infinite=p * inner.infinite,
        negative=0.0,
    )


def _reversed(cells: Cells) -> Cells:
    """The cells of the inverse: null and alternative exchanged, losses negated."""
    return Cells(
        null=cells.alternative[::-1],
        alternative=cells.null[::-1],
        low=-cells.high[::-1],
        high=-cells.low[::-1],
        infinite=cells.negative,
        negative=cells.infinite,
    )


def _left_half(cells: Cells) -> Cells:
    """The cells with a positive loss, by the middles of their intervals."""
    middle = 0.5 * np.maximum(cells.low, -1e9) + 0.5 * np.minimum(cells.high, 1e9)
    is_left = middle > 0
    return Cells(
        cells.null[is_left], cells.alternative[is_left], cells.low[is_left], cells.high[is_left], cells.infinite, 0.0
    )


def _mirrored(left: Cells, mirrored: Cells) -> Cells:
    """The symmetric curve with this left half, given once for the left and once for the right side."""
    right = _reversed(mirrored)
    # The straight piece in the middle, of loss 0, has what the two halves leave.
    rest = 1.0 - float(np.sum(left.null) + np.sum(left.alternative)) - left.infinite
    middle = max(0.0, rest) + 1e-12
    return Cells(
        null=np.concatenate([left.null, [middle], right.null]),
        alternative=np.concatenate([left.alternative, [middle], right.alternative]),
        low=np.concatenate([left.low, [0.0], right.low]),
        high=np.concatenate([left.high, [0.0], right.high]),
        infinite=left.infinite,
        negative=left.infinite,
    )


def _sampled(curve: Curve) -> tuple[np.ndarray, np.ndarray]:
    alpha = scipy.special.ndtr(np.linspace(-6.5, 6.5, 4097))
    return alpha, np.asarray(curve(alpha), np.float64)


def polygon_above(curve: Curve) -> tuple[np.ndarray, np.ndarray]:
    """Vertices of a polygon above the curve: chords between raised values."""
    alpha, beta = _sampled(curve)
    raised = beta + _VALUE_ERROR
    return lower_hull(np.concatenate([[0.0], alpha, [1.0]]), np.concatenate([[1.0], raised, [0.0]]))


def polygon_below(curve: Curve) -> tuple[np.ndarray, np.ndarray]:
    """Vertices of a polygon below the curve.

    By convexity the curve lies above the line through two earlier points, prolonged to the right, and above the line
    through two later points, prolonged to the left. With each pair's far value raised and near value lowered both
    remain below it; vertices are the lowered points and the intersections.
    """
    x, y = _sampled(curve)
    above = y + _VALUE_ERROR
    below = np.maximum(y - _VALUE_ERROR, 0.0)
    # Slopes that are steeper than the chords, to be prolonged to the right, and flatter ones, to the left.
    falling = np.minimum((below[1:] - above[:-1]) / np.diff(x), 0.0)
    rising = np.minimum((above[1:] - below[:-1]) / np.diff(x), 0.0)

    # Where the line from the left and the line from the right meet, between neighbouring points.
    left_x, left_y, left_s = x[1:-2], below[1:-2], falling[:-2]
    right_x, right_y, right_s = x[2:-1], below[2:-1], rising[2:]
    gap = right_s - left_s
    offset = left_y - right_y + right_s * right_x - left_s * left_x
    where = np.divide(offset, gap, out=left_x.copy(), where=gap > 0)
    where = np.clip(where, left_x, right_x)
    from_left = left_y + left_s * (where - left_x)
    from_right = right_y + right_s * (where - right_x)
    lines = np.minimum(from_left, from_right)

    # The first and the last line, prolonged to the axes.
    start = min(1.0, below[1] - rising[1] * x[1])
    end = min(1.0, x[-2] - below[-2] / falling[-2]) if falling[-2] < 0 else x[-2]
    vertex_x = np.concatenate([[0.0], x[1:-1], where, [end, 1.0]])
    vertex_y = np.concatenate([[start], below[1:-1], lines - 1e-14, [0.0, 0.0]])
    return lower_hull(vertex_x, np.maximum(vertex_y, 0.0))
