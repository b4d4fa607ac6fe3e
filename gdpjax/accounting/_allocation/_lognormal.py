"""The law of one step: R = e^{g / s - 1 / (2 s^2)}, g standard normal under Q, s the noise multiplier.

The grid is uniform in g, between -reach and 1/s + reach. In a cell [g_k, g_{k+1}] of width w = s h, with the values y_k
and y_{k+1} = y_k e^h at its ends and x = (g - g_k) / s, the three masses that are needed are integrals of positive
functions:

    lower label k              integral phi(g) dg
    its excess                 integral phi(g) (e^x - 1) dg
    upper, to the left end     integral phi(g) (e^h - e^x) / (e^h - 1) dg      (and the rest of phi to the right end,
                               excess / (e^h - 1), which keeps the mean).

Sixteen Gauss-Legendre nodes a cell take them. On the ellipse with foci at the ends of a cell and semi-axes below 4 w,
all three integrands are below e^{4 w |g| + 8 w^2 + 4 h} times eight times their size in the cell, and the error of the
rule is below 4 * 16^{-32} / (1 - 1/16) of that, 1e-38: less than a rounding as long as 4 w |g| + 8 w^2 + 4 h < 45,
which holds for all noise multipliers from SMALLEST_NOISE on.

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

    # The nodes of each cell, with the density folded into their weights.
    start = -reach + width * np.arange(CELLS)
    inside = width * 0.5 * (1.0 + _NODES)
    nodes = start[:, None] + inside
    density = jnp.exp(-0.5 * nodes**2) * (0.5 * width / np.sqrt(2.0 * np.pi) * _WEIGHTS)
    density = jnp.where((np.arange(CELLS) < size - 1)[:, None], density, 0.0)

    # Positive integrands only: e^x - 1 and e^x (e^{h - x} - 1).
    rise = inside * shift
    lower = jnp.sum(density, axis=1)
    excess = jnp.sum(density * jnp.expm1(rise), axis=1)
    to_left = jnp.sum(density * (jnp.exp(rise) * jnp.expm1(spacing - rise)), axis=1) / jnp.expm1(spacing)
    to_right = excess / jnp.expm1(spacing)

    # The P-mass below -reach, at the value y_0, is a Q-mass of P(-reach) / y_0 = e^{-reach^2 / 2} / 2 at most.
    tail = 0.5 * jnp.exp(-0.5 * reach**2) * (1.0 + 1e-9)
    far_tail = 0.5 * jnp.exp(-0.5 * (reach + shift) ** 2) * (1.0 + 1e-9)
    index = np.arange(CELLS)
    upper = to_left + jnp.roll(to_right, 1)
    upper = upper + jnp.where(index == 0, tail, 0.0) + jnp.where(index == size - 1, far_tail, 0.0)

    # The exponent of the density is right to a few ulp of its size, and a node to a few ulp of its size.
    largest = reach + shift
    rounding = UNIT_ROUNDOFF * (100.0 + 8.0 * largest**2)
    displacement = 16.0 * UNIT_ROUNDOFF * (jnp.abs(grid.origin) + spacing * size)
    return Law(upper, tail + 1e-300, tail + grid.underflow(), lower, excess, rounding, displacement), grid
