"""The law of one step, R = e^{g / s - 1 / (2 s^2)}, g standard normal under Q, s the noise multiplier.

The grid is uniform in g, between -reach and 1/s + reach. In a cell [g_k, g_{k+1}] of width w = s h, with the values y_k
and y_{k+1} = y_k e^h at its ends and x = (g - g_k) / s, the three masses that are needed are integrals of positive
functions:

    upper, to the right end    integral phi(g) (e^x - 1) / (e^h - 1) dg
    upper, to the left end     integral phi(g) (e^h - e^x) / (e^h - 1) dg,     which together keep the mean;
    lower, to the nearer end   integral phi(g) dg over half of the cell.

The excess of a label is the integral of phi(g) (e^x - 1) over the half to its right, and of phi(g) (e^{x - h} - 1),
which is negative, over the half to its left. Sixteen Gauss-Legendre nodes in each half take them all. On the ellipse
with foci at the ends of a half and semi-axes below 4 w, all integrands are below e^{4 w |g| + 8 w^2 + 4 h} times twenty
times their mean over the half, and the error of the rule is below 4 * 16^{-32} / (1 - 1/16) of that: together less than
a rounding as long as 4 w |g| + 8 w^2 + 4 h < 45, which holds for all noise multipliers from SMALLEST_NOISE on.

Outside of the grid Phi(-x) <= e^{-x^2 / 2} / 2. The upper law moves what is above the last value down to it and its
P-mass to infinity, and what is below the first one to the values 0 and y_0; the lower law leaves both out.
"""

import math

import numpy as np

from gdpjax.accounting._allocation._law import UNIT_ROUNDOFF, RatioGrid, RatioLaw

SMALLEST_NOISE = 0.05
_LARGEST_LOG_VALUE = 650.0
"""It keeps the values finite, and is less than the reach needs only at the smallest noises and deltas."""
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(16)


def one_step(
    noise_multiplier: float,
    size: int,
    log_tail: float,
) -> tuple[RatioLaw, RatioGrid]:
    """Return the law of one step on ``size`` values, which leaves out tails of about e^log_tail."""
    shift = 1.0 / noise_multiplier
    largest_reach = (_LARGEST_LOG_VALUE - 0.5 * shift**2) / shift
    reach = min(math.sqrt(-2.0 * log_tail), largest_reach)
    width = (2.0 * reach + shift) / (size - 1.0)
    spacing = width * shift
    grid = RatioGrid(-reach * shift - 0.5 * shift**2, spacing, size)

    # The nodes of each cell, half by half [size - 1, 2, 16], with the density folded into their weights.
    start = (-reach + width * np.arange(size - 1))[:, None, None]
    inside = 0.25 * width * (1.0 + _NODES + np.array([[0.0], [2.0]]))
    weights = 0.25 * width / math.sqrt(2.0 * math.pi) * _WEIGHTS
    density = np.exp(-0.5 * (start + inside) ** 2) * weights

    # e^x - 1 and e^h - e^x, without cancellation.
    rise = inside * shift
    above_left = np.expm1(rise)
    below_right = np.expm1(rise - spacing)
    to_right = np.sum(density * above_left, axis=(1, 2)) / math.expm1(spacing)
    to_left = np.sum(
        density * -below_right,
        axis=(1, 2),
    ) * (math.exp(spacing) / math.expm1(spacing))

    # The P-mass below -reach, at the value y_0, is a Q-mass of P(-reach) / y_0 = e^{-reach^2 / 2} / 2 at most.
    tail = 0.5 * math.exp(-0.5 * reach**2) * (1.0 + 1e-9)
    far_tail = 0.5 * math.exp(-0.5 * (reach + shift) ** 2) * (1.0 + 1e-9)
    upper = np.zeros(size)
    upper[:-1] += to_left
    upper[1:] += to_right
    upper[0] += tail
    upper[-1] += far_tail

    # Each half goes to the nearer label.
    half_masses = np.sum(density, axis=2)
    lower = np.zeros(size)
    lower[:-1] += half_masses[:, 0]
    lower[1:] += half_masses[:, 1]
    excess = np.zeros(size)
    excess[:-1] += np.sum(density[:, 0] * above_left[0], axis=1)
    excess[1:] += np.sum(density[:, 1] * below_right[1], axis=1)

    # The exponent of the density is right to a few ulp of its size, and a node to a few ulp of its size.
    rounding = UNIT_ROUNDOFF * (100.0 + 8.0 * (reach + shift) ** 2)
    displacement = 16.0 * UNIT_ROUNDOFF * grid.reach
    law = RatioLaw(
        upper=upper,
        at_zero=tail + 1e-300,
        at_infinity=tail + grid.underflow(),
        lower=lower,
        excess=excess,
        rounding=rounding,
        displacement=displacement,
        lower_displacement=displacement + 4.0 * rounding * math.expm1(spacing),
    )
    return law, grid
