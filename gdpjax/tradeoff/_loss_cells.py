r"""A curve cut into cells of nearly constant privacy loss, with certified masses: the input of numeric composition.

    cells = cells_of(Laplace(0.5), CellRule(spacing=2.0**-6, below=True))
    cells.null, cells.alternative   # the two masses of each cell

A trade-off curve is a pair of laws on its own graph: the piece between alpha_i and alpha_{i+1} has null mass
n = alpha_{i+1} - alpha_i and alternative mass a = f(alpha_i) - f(alpha_{i+1}), and its losses log |f'| lie between
those at its ends. Tiny tails decide a tiny delta, so masses must be accurate *relative to themselves*, and none is a
difference of large numbers. RELATIVE_ERROR bounds the relative error of every mass and LOSS_ERROR the absolute error of
every loss. docs/theory/numeric_composition.md tells how each kind of curve is cut, and why these errors hold.
"""

from typing import NamedTuple

import numpy as np
import scipy

from gdpjax.tradeoff._abstract import Curve
from gdpjax.tradeoff._closed_forms import ApproximateDP, Gaussian, Identity, Laplace
from gdpjax.tradeoff._derived_curves import Grouped, Inverse, Mixture, Subsampled
from gdpjax.tradeoff._piecewise_linear import PiecewiseLinear, lower_hull

RELATIVE_ERROR = 1e-12
LOSS_ERROR = 1e-12
_REACH = 10.5
"""The distance from the mean at which the tails of a normal law begin."""
_VALUE_ERROR = 1e-12
_STEP_ERROR = 2e-15
"""The absolute errors of the values of a curve of unknown kind, and of each step of a group."""
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(8)


class CellRule(NamedTuple):
    """The rule by which a curve is cut into cells.

    Fields:
        spacing: cells are cut at its multiples.
        below: whether a curve of unknown kind is replaced by a polygon below it, or by one above it.
        sign: 1 if the multiples are moved down by rounding, -1 if up, for cells that will be reversed.
    """

    spacing: float
    below: bool
    sign: int = 1

    def reversed(self) -> "CellRule":
        """Return the rule for cells that will be reversed."""
        return self._replace(sign=-self.sign)

    def edges(self, low: float, high: float) -> np.ndarray:
        """Return decreasing losses strictly inside (low, high), 0 among them if it is inside."""
        first = int(np.floor(low / self.spacing)) - 1
        last = int(np.ceil(high / self.spacing)) + 1
        multiples = self.spacing * np.arange(last, first - 1, -1)
        moved = multiples - self.sign * 2.0 * LOSS_ERROR
        edges = np.sort(np.append(moved, 0.0))[::-1]
        is_inside = (edges > low) & (edges < high)
        return edges[is_inside]


class LossCells(NamedTuple):
    """Pieces of a curve, and the masses that only the alternative and only the null have.

    Fields:
        null: mass of each piece under the null [n].
        alternative: mass of each piece under the alternative [n].
        low, high: an interval for the loss of each piece (infinite ends allowed) [n].
        infinite: mass that only the alternative has.
        negative: mass that only the null has.
    """

    null: np.ndarray
    alternative: np.ndarray
    low: np.ndarray
    high: np.ndarray
    infinite: float
    negative: float

    def taken(self, where: np.ndarray) -> "LossCells":
        """Return some of the pieces, with all of what only one of the two has."""
        null, alternative, low, high = (column[where] for column in self[:4])
        return self._replace(null=null, alternative=alternative, low=low, high=high)


_ONE_CELL_WITHOUT_LOSS = LossCells(np.ones(1), np.ones(1), np.zeros(1), np.zeros(1), 0.0, 0.0)
_EMPTY = np.zeros(0)
_DISJOINT = LossCells(_EMPTY, _EMPTY, _EMPTY, _EMPTY, infinite=1.0, negative=1.0)

# From below, parameters beyond these count as no privacy at all. From above, they count as these.
_LARGEST_MU = 25.0
_LARGEST_LAPLACE = 200.0
_LARGEST_EPSILON = 600.0


def cells_of(curve: Curve, rule: CellRule) -> LossCells:
    """Return the cells of a curve with concrete scalar parameters."""
    match curve:
        case Identity():
            return _ONE_CELL_WITHOUT_LOSS
        case Gaussian():
            return _cells_of_gaussian(float(curve.mu), rule)
        case Laplace():
            return _cells_of_laplace(float(curve.epsilon), rule)
        case ApproximateDP():
            return _cells_of_approximate_dp(float(curve.epsilon), float(curve.delta), rule)
        case PiecewiseLinear():
            alpha = np.asarray(curve.alpha, np.float64)
            beta = np.asarray(curve.beta, np.float64)
            return _cells_of_polygon(alpha, beta)
        case Mixture():
            return _cells_of_mixture(curve.curve, float(curve.sampling_prob), rule)
        case Inverse():
            cells = cells_of(curve.curve, rule.reversed())
            return _reversed(cells)
        case Subsampled():
            # The right half is the mirror image of the left one, and is cut with the other sign.
            sampling_prob = float(curve.sampling_prob)
            left = _cells_of_mixture(curve.curve, sampling_prob, rule)
            mirrored = _cells_of_mixture(curve.curve, sampling_prob, rule.reversed())
            return _symmetric_cells(_left_half(left), _left_half(mirrored))

    # Any other curve.
    if rule.below:
        alpha, beta = polygon_below(curve)
    else:
        alpha, beta = polygon_above(curve)
    return _cells_of_polygon(alpha, beta)


def loss_range(curve: Curve) -> tuple[float, float]:
    """Return an interval of the losses of a curve but for tails of about 1e-25; equal ends if all losses are 0."""
    # The finite losses of the cells, however wide these are.
    cells = cells_of(curve, CellRule(1.0, below=False))
    ends = np.append(cells.low, cells.high)
    ends = ends[np.isfinite(ends)]
    if not ends.size:
        return 0.0, 0.0
    return float(ends.min()), float(ends.max())


def _cells_of_polygon(alpha: np.ndarray, beta: np.ndarray) -> LossCells:
    """Return the cells of a polygon: its edges, of one loss each."""
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
    loss = loss[order]
    return LossCells(null[order], alternative[order], loss, loss, infinite, negative)


def _cells_of_approximate_dp(epsilon: float, delta: float, rule: CellRule) -> LossCells:
    if np.isinf(epsilon) or delta == 1:
        return _DISJOINT
    if rule.below and epsilon >= _LARGEST_EPSILON:
        return _DISJOINT
    epsilon = min(epsilon, _LARGEST_EPSILON)
    loss = np.array([epsilon, -epsilon])
    masses = (1.0 - delta) / (1.0 + np.exp(loss))
    return LossCells(masses, masses[::-1], loss, loss, delta, delta)


def _largest_loss_of_gaussian(mu: float) -> float:
    """Return the loss at x = _REACH + mu; the smallest loss, at x = -_REACH, is its negative."""
    return mu * (_REACH + 0.5 * mu)


def _cells_of_gaussian(mu: float, rule: CellRule) -> LossCells:
    mu = min(mu, _LARGEST_MU)
    if rule.below and mu == _LARGEST_MU:
        return _DISJOINT
    largest_loss = _largest_loss_of_gaussian(mu)
    edges = rule.edges(-largest_loss, largest_loss)
    return _gaussian_between(mu, edges)


def _gaussian_between(mu: float, edges: np.ndarray) -> LossCells:
    """Return the cells of G_mu between decreasing losses, and the two tails beyond."""
    if mu == 0:
        return _ONE_CELL_WITHOUT_LOSS
    # The places x of the losses mu x - mu^2 / 2, in falling order, between the two tails.
    x = edges / mu + 0.5 * mu
    is_inside = (x < mu + _REACH) & (x > -_REACH)
    x = np.concatenate([[mu + _REACH], x[is_inside], [-_REACH]])

    # Divide wide cells, so that the density changes little within each.
    width = -np.diff(x)
    widest = 0.5 / (_REACH + mu)
    counts = np.maximum(1, np.ceil(width / widest)).astype(int)
    start = np.repeat(x[:-1], counts)
    step = np.repeat(width / counts, counts)
    index_of_first = np.cumsum(counts) - counts
    index_within = np.arange(counts.sum()) - np.repeat(index_of_first, counts)
    x = np.append(start - step * index_within, x[-1])

    # Both masses of the cells and of the tails beyond.
    null = _normal_masses(x, 0.0)
    alternative = _normal_masses(x, mu)
    loss = mu * (x - 0.5 * mu)
    low = np.append(loss, -np.inf)
    high = np.append(np.inf, loss)
    return LossCells(null, alternative, low, high, 0.0, 0.0)


def _normal_masses(x: np.ndarray, mean: float) -> np.ndarray:
    """Return the masses of N(mean, 1) above the first point, between the points, which fall, and below the last."""
    # A Gauss-Legendre integral of the density over each cell.
    width = x[:-1] - x[1:]
    centre = 0.5 * (x[:-1] + x[1:])
    nodes = centre[:, None] + 0.5 * width[:, None] * _NODES
    density = np.exp(-0.5 * (nodes - mean) ** 2)
    between = 0.5 * width * (density @ _WEIGHTS) / np.sqrt(2.0 * np.pi)

    upper_tail = scipy.special.ndtr(mean - x[0])
    lower_tail = scipy.special.ndtr(x[-1] - mean)
    return np.concatenate([[upper_tail], between, [lower_tail]])


def _cells_of_laplace(theta: float, rule: CellRule) -> LossCells:
    theta = min(theta, _LARGEST_LAPLACE)
    if rule.below and theta == _LARGEST_LAPLACE:
        return _DISJOINT
    edges = rule.edges(-theta, theta)
    return _laplace_between(theta, edges)


def _laplace_between(theta: float, edges: np.ndarray) -> LossCells:
    """Return the cells of the Laplace curve between decreasing losses, and its two atoms."""
    if theta == 0:
        return _ONE_CELL_WITHOUT_LOSS
    edges = np.concatenate([[theta], edges, [-theta]])
    upper = edges[:-1]
    lower = edges[1:]

    # The null's mass between two losses is (e^{-(theta + lower) / 2} - e^{-(theta + upper) / 2}) / 2; the alternative's
    # is its mirror image.
    shrink = -0.5 * np.expm1(-0.5 * (upper - lower))
    null = shrink * np.exp(-0.5 * (theta + lower))
    alternative = shrink * np.exp(-0.5 * (theta - upper))

    # The atoms at the largest and at the smallest loss.
    small_atom = 0.5 * np.exp(-theta)
    return LossCells(
        null=np.concatenate([[small_atom], null, [0.5]]),
        alternative=np.concatenate([[0.5], alternative, [small_atom]]),
        low=np.concatenate([[theta], lower, [-theta]]),
        high=np.concatenate([[theta], upper, [-theta]]),
        infinite=0.0,
        negative=0.0,
    )


def _mixed_loss(loss: np.ndarray, p: float) -> np.ndarray:
    """Return log(1 - p + p e^loss)."""
    if p == 0:
        return np.zeros_like(loss)
    with np.errstate(divide="ignore"):
        return np.logaddexp(np.log1p(-p), np.log(p) + loss)


def _edges_before_mixing(curve: Curve, p: float, rule: CellRule) -> np.ndarray:
    """Return the losses l of a curve at which log(1 - p + p e^l) is an edge."""
    _, largest_loss = loss_range(curve)
    low, high = _mixed_loss(np.array([-largest_loss, largest_loss]), p)
    edges = rule.edges(low, high)
    # l = log(1 + (e^edge - 1) / p), which is edge - log p where e^edge overflows.
    excess = np.expm1(np.minimum(edges, 700.0)) / p
    moderate = np.log1p(np.maximum(excess, -1.0 + 1e-16))
    large = edges - np.log(p)
    return np.where(edges < 700.0, moderate, large)


def _cells_of_mixture(curve: Curve, p: float, rule: CellRule) -> LossCells:
    """Return the cells of p f + (1 - p) Id."""
    if p == 0:
        return _ONE_CELL_WITHOUT_LOSS
    match curve:
        case Gaussian() if 0 < float(curve.mu) < _LARGEST_MU:
            inner = _gaussian_between(float(curve.mu), _edges_before_mixing(curve, p, rule))
        case Laplace() if 0 < float(curve.epsilon) < _LARGEST_LAPLACE:
            inner = _laplace_between(float(curve.epsilon), _edges_before_mixing(curve, p, rule))
        case _:
            inner = cells_of(curve, rule)

    alternative = p * inner.alternative + (1.0 - p) * inner.null
    low = _mixed_loss(inner.low, p)
    high = _mixed_loss(inner.high, p)
    infinite = p * inner.infinite
    if p == 1 or inner.negative == 0:
        return LossCells(inner.null, alternative, low, high, infinite, inner.negative)

    # The mass with loss minus infinity now has loss log(1 - p).
    smallest_loss = np.log1p(-p)
    return LossCells(
        null=np.append(inner.null, inner.negative),
        alternative=np.append(alternative, (1.0 - p) * inner.negative),
        low=np.append(low, smallest_loss),
        high=np.append(high, smallest_loss),
        infinite=infinite,
        negative=0.0,
    )


def _reversed(cells: LossCells) -> LossCells:
    """Return the cells of the inverse: null and alternative exchanged, losses negated."""
    return LossCells(
        null=cells.alternative[::-1],
        alternative=cells.null[::-1],
        low=-cells.high[::-1],
        high=-cells.low[::-1],
        infinite=cells.negative,
        negative=cells.infinite,
    )


def _left_half(cells: LossCells) -> LossCells:
    """Return the cells with a positive loss, by the middles of their intervals."""
    middle = 0.5 * np.maximum(cells.low, -1e9) + 0.5 * np.minimum(cells.high, 1e9)
    return cells.taken(middle > 0)._replace(negative=0.0)


def _symmetric_cells(left: LossCells, mirrored: LossCells) -> LossCells:
    """Return the symmetric curve with this left half, given once for the left and once for the right side."""
    right = _reversed(mirrored)
    # The straight piece in the middle, of loss 0, has the mass that the two halves leave.
    mass_of_halves = float(np.sum(left.null) + np.sum(left.alternative))
    rest = 1.0 - mass_of_halves - left.infinite
    middle = max(0.0, rest) + 1e-12
    return LossCells(
        null=np.concatenate([left.null, [middle], right.null]),
        alternative=np.concatenate([left.alternative, [middle], right.alternative]),
        low=np.concatenate([left.low, [0.0], right.low]),
        high=np.concatenate([left.high, [0.0], right.high]),
        infinite=left.infinite,
        negative=left.infinite,
    )


def _sampled(curve: Curve) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return points of the curve, dense in both tails, and bounds on the errors of their values."""
    alpha = scipy.special.ndtr(np.linspace(-6.5, 6.5, 4097))
    beta = np.asarray(curve(alpha), np.float64)
    # The later steps of a group multiply the rounding of the earlier ones by their slopes, whose product is at most the
    # steepness of the curve, or 1.
    num_steps = curve.k if isinstance(curve, Grouped) else 1
    steepness = -np.diff(beta, prepend=1.0) / np.diff(alpha, prepend=0.0)
    return alpha, beta, _VALUE_ERROR + _STEP_ERROR * num_steps * steepness


def polygon_above(curve: Curve) -> tuple[np.ndarray, np.ndarray]:
    """Return the vertices of a polygon above the curve: chords between raised values."""
    alpha, beta, error = _sampled(curve)
    raised = np.minimum(beta + error, 1.0)
    alpha = np.concatenate([[0.0], alpha, [1.0]])
    raised = np.concatenate([[1.0], raised, [0.0]])
    return lower_hull(alpha, raised)


def polygon_below(curve: Curve) -> tuple[np.ndarray, np.ndarray]:
    """Return the vertices of a polygon below the curve.

    By convexity the curve lies above the line through two earlier points, prolonged to the right, and above the line
    through two later points, prolonged to the left. With each pair's far value raised and near value lowered both
    remain below it; vertices are the lowered points and the intersections.
    """
    x, y, error = _sampled(curve)
    above = y + error
    below = np.maximum(y - error, 0.0)
    # Slopes that are steeper than the chords, to be prolonged to the right, and flatter ones, to the left.
    width = np.diff(x)
    steeper = np.minimum((below[1:] - above[:-1]) / width, 0.0)
    flatter = np.minimum((above[1:] - below[:-1]) / width, 0.0)

    # The line from the left and the line from the right, between neighbouring points.
    left_x = x[1:-2]
    left_y = below[1:-2]
    left_slope = steeper[:-2]
    right_x = x[2:-1]
    right_y = below[2:-1]
    right_slope = flatter[2:]

    # The point where they cross.
    gap = right_slope - left_slope
    offset = left_y - right_y + right_slope * right_x - left_slope * left_x
    crossing = np.divide(offset, gap, out=left_x.copy(), where=gap > 0)
    crossing = np.clip(crossing, left_x, right_x)
    from_left = left_y + left_slope * (crossing - left_x)
    from_right = right_y + right_slope * (crossing - right_x)
    lower_line = np.minimum(from_left, from_right)

    # The first and the last line, prolonged to the axes.
    start = min(1.0, below[1] - flatter[1] * x[1])
    end = x[-2]
    if steeper[-2] < 0:
        end = min(1.0, x[-2] - below[-2] / steeper[-2])
    vertex_x = np.concatenate([[0.0], x[1:-1], crossing, [end, 1.0]])
    vertex_y = np.concatenate([[start], below[1:-1], lower_line - 1e-14, [0.0, 0.0]])
    return lower_hull(vertex_x, np.maximum(vertex_y, 0.0))
