"""The law of one step: R = e^{g / s - 1 / (2 s^2)}, g standard normal under Q, s the noise multiplier.

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

import jax.numpy as jnp
import numpy as np

from gdpjax._core.types import Array
from gdpjax.accounting._allocation._law import CELLS, UNIT_ROUNDOFF, Grid, Law

SMALLEST_NOISE = 0.05
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(16)


def one_step(noise_multiplier: Array, size: Array, log_tail: Array) -> tuple[Law, Grid]:
    """The law of one step on ``size`` values, which leaves out tails of about e^log_tail."""
    shift = 1.0 / noise_multiplier
    reach = jnp.sqrt(-2.0 * log_tail)
    width = (2.0 * reach + shift) / (size - 1.0)
    spacing = width * shift
    grid = Grid(-reach * shift - 0.5 * shift**2, spacing, size)

    # The nodes of each cell, half by half [CELLS, 2, 16], with the density folded into their weights.
    index = np.arange(CELLS)
    start = (-reach + width * index)[:, None, None]
    inside = 0.25 * width * (1.0 + _NODES + np.array([[0.0], [2.0]]))
    density = jnp.exp(-0.5 * (start + inside) ** 2) * (0.25 * width / np.sqrt(2.0 * np.pi) * _WEIGHTS)
    density = jnp.where((index < size - 1)[:, None, None], density, 0.0)

    # e^x - 1 and e^h - e^x, without cancellation.
    rise = inside * shift
    above_left = jnp.expm1(rise)
    below_right = jnp.expm1(rise - spacing)
    to_right = jnp.sum(density * above_left, axis=(1, 2)) / jnp.expm1(spacing)
    to_left = jnp.sum(density * -below_right, axis=(1, 2)) * (jnp.exp(spacing) / jnp.expm1(spacing))

    # Each half goes to the nearer label.
    halves = jnp.sum(density, axis=2)
    excesses = jnp.sum(density[:, 0] * above_left[0], axis=1), jnp.sum(density[:, 1] * below_right[1], axis=1)
    lower = halves[:, 0] + jnp.roll(halves[:, 1], 1)
    excess = excesses[0] + jnp.roll(excesses[1], 1)

    # The P-mass below -reach, at the value y_0, is a Q-mass of P(-reach) / y_0 = e^{-reach^2 / 2} / 2 at most.
    tail = 0.5 * jnp.exp(-0.5 * reach**2) * (1.0 + 1e-9)
    far_tail = 0.5 * jnp.exp(-0.5 * (reach + shift) ** 2) * (1.0 + 1e-9)
    upper = to_left + jnp.roll(to_right, 1)
    upper = upper + jnp.where(index == 0, tail, 0.0) + jnp.where(index == size - 1, far_tail, 0.0)

    # The exponent of the density is right to a few ulp of its size, and a node to a few ulp of its size.
    largest = reach + shift
    rounding = UNIT_ROUNDOFF * (100.0 + 8.0 * largest**2)
    displacement = 16.0 * UNIT_ROUNDOFF * (jnp.abs(grid.origin) + spacing * size)
    law = Law(
        upper=upper,
        at_zero=tail + 1e-300,
        at_infinity=tail + grid.underflow(),
        lower=lower,
        excess=excess,
        rounding=rounding,
        displacement=displacement,
        lower_displacement=displacement + 4.0 * rounding * jnp.expm1(spacing),
    )
    return law, grid
