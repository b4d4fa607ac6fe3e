"""Numeric composition: the curves of many steps between two polygons.

    numerically([Laplace(0.5)], [8], num_cells=8192)    # CurveBounds

Each curve is cut into cells of nearly constant loss (`_loss_cells`), rounded to one side. The grids of these losses are
convolved (`_grid`), and the hull of the points that they give is the polygon of that side. The derivation, with all
rounding, is docs/theory/numeric_composition.md.
"""

import math

import numpy as np

from gdpjax.tradeoff._abstract import Curve
from gdpjax.tradeoff._curve_bounds import CurveBounds
from gdpjax.tradeoff._grid import (
    UNIT_ROUNDOFF,
    above_from,
    below_from,
    compose_grids,
    points_above,
    vertices_below,
)
from gdpjax.tradeoff._loss_cells import CellRule, cells_of, loss_range
from gdpjax.tradeoff._piecewise_linear import PiecewiseLinear, from_vertices, lower_hull

NUM_CELLS = 8192
_LEAST_EXPONENT = -40
"""Of the spacing of a grid, 2^exponent: a finer one than the error of the losses would only make cells."""


def numerically(curves: list[Curve], counts: list[int], num_cells: int = NUM_CELLS) -> CurveBounds:
    """Return bounds on the composition of each curve, repeated by its count."""
    orders = [curves]
    if not all(_is_exactly_symmetric(curve) for curve in curves):
        orders.append([curve.inverse() for curve in curves])

    points_of_lower = []
    points_of_upper = []
    for order in orders:
        # A grid from below and a grid from above for each curve.
        lower_grids = []
        upper_grids = []
        for curve in order:
            exponent = _exponent(curve, num_cells)
            spacing = math.ldexp(1.0, exponent)
            cells_below = cells_of(curve, CellRule(spacing, below=True))
            cells_above = cells_of(curve, CellRule(spacing, below=False))
            lower_grids.append(below_from(cells_below, exponent))
            upper_grids.append(above_from(cells_above, exponent))

        lower_grid = compose_grids(lower_grids, counts, num_cells)
        upper_grid = compose_grids(upper_grids, counts, num_cells)
        points_of_lower.append(vertices_below(lower_grid))
        points_of_upper.append(points_above(upper_grid))

    lower = polygon(points_of_lower, lower=True)
    upper = polygon(points_of_upper, lower=False)
    return CurveBounds(lower, upper)


def _is_exactly_symmetric(curve: Curve) -> bool:
    # A polygon counts as symmetric if it is so to 1e-10, and the errors of many steps would add up.
    return curve.is_symmetric() and not isinstance(curve, PiecewiseLinear)


def _exponent(curve: Curve, num_cells: int) -> int:
    """Return the exponent of a spacing at which a curve has at most ``num_cells`` cells."""
    low, high = loss_range(curve)
    if high <= low:
        return _LEAST_EXPONENT
    widest = (high - low) / (num_cells - 4)
    return max(math.floor(math.log2(widest)) + 1, _LEAST_EXPONENT)


def polygon(parts: list[tuple[np.ndarray, np.ndarray]], *, lower: bool) -> PiecewiseLinear:
    """Return the hull of points and their mirror images, moved outwards by the rounding of the hull itself.

    Rounding may drop a vertex that is below the chord; it then lies below it by at most 6 u min(y, 1 - y).
    """
    alpha = np.concatenate([alpha for alpha, _ in parts])
    beta = np.concatenate([beta for _, beta in parts])
    x = np.append(alpha, beta)
    y = np.append(beta, alpha)
    slack = 16.0 * (x.size + 4) * UNIT_ROUNDOFF
    if lower:
        # Nothing is claimed beyond the largest alpha of a vertex, where the curve reaches 0.
        end = float(np.max(x))
        x = np.append(x, [end, 1.0])
        y = np.append(y, [0.0, 0.0])
        lowered = y - slack * np.minimum(y, 1.0 - y)
        lowered = np.nextafter(lowered, -1.0)
        return from_vertices(x, np.maximum(lowered, 0.0), "down")

    rest = np.maximum(1.0 - y, 0.0)
    raised = y + slack * np.minimum(y, rest)
    raised = np.nextafter(raised, 2.0)
    y = np.minimum(raised, 1.0)
    x, y = lower_hull(np.append(x, [0.0, 1.0]), np.append(y, [1.0, 0.0]))
    # The hull is at most 1 - alpha, up to its rounding.
    y = np.minimum(y, 1.0 - x + 1e-13)
    return PiecewiseLinear(x, y.clip(0.0, 1.0), "up")
