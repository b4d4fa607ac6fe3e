"""Numeric composition: the curves of many steps between two polygons.

    numerically([Laplace(0.5)], [8], num_cells=8192)    # CurveBounds

Each curve is cut into cells of nearly constant loss (`_loss_cells`), rounded to one side; grids of losses are convolved
(`_grid`), and the hull of the points that they give is the polygon of that side.
"""

import math

import numpy as np

from gdpjax.tradeoff._abstract import Curve
from gdpjax.tradeoff._curve_bounds import CurveBounds
from gdpjax.tradeoff._grid import _U, above_from, below_from, compose_grids, points_above, vertices_below
from gdpjax.tradeoff._loss_cells import Cut, cells_of, loss_range
from gdpjax.tradeoff._operators import inverse
from gdpjax.tradeoff._piecewise_linear import PiecewiseLinear, from_vertices, lower_hull

NUM_CELLS = 8192
_LEAST_EXPONENT = -40
"""Of the spacing of a grid, 2^exponent: a finer one than the error of the losses would only make cells."""


def numerically(curves: list[Curve], counts: list[int], num_cells: int = NUM_CELLS) -> CurveBounds:
    """Bounds on the composition of each curve as often as it is counted."""
    # A polygon counts as symmetric if it is so to 1e-10, which many steps would add up: it is composed both ways.
    orders = [curves]
    if not all(curve.is_symmetric() and not isinstance(curve, PiecewiseLinear) for curve in curves):
        orders.append([inverse(curve) for curve in curves])

    below = []
    above = []
    for order in orders:
        lower_grids = []
        upper_grids = []
        for curve in order:
            exponent = _exponent(curve, num_cells)
            spacing = math.ldexp(1.0, exponent)
            lower_grids.append(below_from(cells_of(curve, Cut(spacing, below=True)), exponent))
            upper_grids.append(above_from(cells_of(curve, Cut(spacing, below=False)), exponent))
        below.append(vertices_below(compose_grids(lower_grids, counts, num_cells)))
        above.append(points_above(compose_grids(upper_grids, counts, num_cells)))
    return CurveBounds(polygon(below, lower=True), polygon(above, lower=False))


def _exponent(curve: Curve, num_cells: int) -> int:
    """The exponent of a spacing at which a curve has at most so many cells."""
    low, high = loss_range(curve)
    if high <= low:
        return _LEAST_EXPONENT
    widest = (high - low) / (num_cells - 4)
    return max(math.floor(math.log2(widest)) + 1, _LEAST_EXPONENT)


def polygon(parts: list[tuple[np.ndarray, np.ndarray]], *, lower: bool) -> PiecewiseLinear:
    """The hull of points and their mirror images, moved outwards by the rounding of the hull itself.

    A vertex that is dropped although it is below the chord by rounding lies below it by at most 6 u min(y, 1 - y).
    """
    alpha = np.concatenate([alpha for alpha, _ in parts])
    beta = np.concatenate([beta for _, beta in parts])
    x = np.append(alpha, beta)
    y = np.append(beta, alpha)
    slack = 16.0 * (x.size + 4) * _U
    if lower:
        # Nothing is claimed beyond the largest alpha of a vertex, where the curve reaches 0.
        end = float(np.max(x))
        x = np.append(x, [end, 1.0])
        y = np.append(y, [0.0, 0.0])
        y = np.maximum(np.nextafter(y - slack * np.minimum(y, 1.0 - y), -1.0), 0.0)
        return from_vertices(x, y, "down")
    y = np.minimum(np.nextafter(y + slack * np.minimum(y, np.maximum(1.0 - y, 0.0)), 2.0), 1.0)
    x, y = lower_hull(np.append(x, [0.0, 1.0]), np.append(y, [1.0, 0.0]))
    return PiecewiseLinear(x, np.minimum(y, 1.0 - x + 1e-13).clip(0.0, 1.0), "up")
