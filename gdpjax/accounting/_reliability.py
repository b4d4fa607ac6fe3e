"""A test of whether the central limit theorem's epsilon may be used, by comparing it with the certified bracket.

The theorem is a limit without a usable rate: its epsilon is off by a factor of four in realistic runs, in either
direction. A rule of thumb on the skewness of the privacy loss is right most of the time. The bracket is always right
and costs milliseconds. So `clt_is_reliable` is True exactly where the bracket proves that the estimate is within 5% of
the truth: |epsilon_clt - e| <= 0.05 e holds for every e in [lower, upper] if and only if

    0.95 upper <= epsilon_clt <= 1.05 lower.
"""

import jax.numpy as jnp
import numpy as np

from gdpjax._core.checks import is_traced
from gdpjax._core.types import Array, Bounds
from gdpjax.accounting._certified import epsilon_bounds
from gdpjax.accounting._clt import clt_epsilon

TOLERANCE = 0.05


def clt_is_reliable(
    noise_multiplier: Array,
    sampling_prob: Array,
    num_steps: Array,
    delta: Array,
) -> Array:
    """Return whether `clt_epsilon` is proved to be within 5% of the true epsilon of this run.

    Formula: 0.95 upper <= epsilon_clt <= 1.05 lower, with the bracket of `epsilon_bounds`.

    Args:
        noise_multiplier: stddev of the noise / sensitivity, > 0.
        sampling_prob: probability in [0, 1] that an example joins a batch (Poisson sampling).
        num_steps: whole number >= 1 of steps.
        delta: probability strictly between 0 and 1. All arguments broadcast.

    Returns:
        bool of the broadcast shape. True is certified; False says that it is not within 5%, or that the bracket is too
        wide to tell. Where both are zero the answer is True. False for traced arguments out of range.

    Raises:
        ValueError: an argument outside its range, or shapes that do not broadcast.

    Reference: Bu, Dong, Long and Su, arXiv:1911.11607, Section 3 (the estimate that is judged).

    >>> bool(clt_is_reliable(1.3, 256 / 60000, 3516, 1e-5)), bool(clt_is_reliable(0.6, 256 / 60000, 100, 1e-5))
    (True, False)
    """
    bounds = epsilon_bounds(noise_multiplier, sampling_prob, num_steps, delta)
    estimate = clt_epsilon(noise_multiplier, sampling_prob, num_steps, delta)
    return proves_reliable(bounds, estimate)


def proves_reliable(bounds: Bounds, estimate: Array) -> Array:
    """Return whether a bracket proves ``estimate`` to be within `TOLERANCE` of the truth."""
    xp = jnp if is_traced((bounds, estimate)) else np
    is_large_enough = estimate >= (1 - TOLERANCE) * bounds.upper
    is_small_enough = estimate <= (1 + TOLERANCE) * bounds.lower
    return xp.logical_and(is_large_enough, is_small_enough)
