r"""Exact Gaussian differential privacy: duality with (epsilon, delta), and composition.

A mechanism is mu-GDP when telling two neighbouring data sets apart is at least as hard as telling N(0, 1) from
N(mu, 1), i.e. its trade-off curve lies above G_mu(alpha) = Phi(Phi^-1(1 - alpha) - mu). The Gaussian mechanism with
stddev = sensitivity / mu attains it. The conjugate of G_mu gives the equivalent family of (epsilon, delta) statements

    delta(epsilon) = Phi(-epsilon/mu + mu/2) - e^epsilon Phi(-epsilon/mu - mu/2),        epsilon >= 0,

so that every function here is an equality, not a bound. Composition adds squares because the log-likelihood ratio of a
product of Gaussians is again Gaussian. A group of k people shifts the mean k times as far: its mu is k mu. How the
formula is computed without cancellation, and inverted, is derived in `gdpjax._core.gdp` and `gdpjax._core.normal`.

In a program compiled for a TPU it is computed in float32: relative errors are below 1e-5, for epsilon below that plus
1e-6 mu. A delta below 1e-36 may come out as 0.
"""

import jax.numpy as jnp
import numpy as np

from gdpjax._core import gdp
from gdpjax._core.arguments import check_count
from gdpjax._core.checks import EXTENDED_NONNEGATIVE, NONNEGATIVE, Domain, is_traced
from gdpjax._core.precision import float64_function
from gdpjax._core.types import Array, Floats, Numbers

_TINY = float(np.finfo(np.float64).tiny)
DELTA = Domain(f"a number in [{_TINY:.4g}, 1)", lambda x: (x > 0) & (x >= _TINY) & (x < 1))
"""Below the smallest normal float64 the devices flush to zero, so such a delta cannot be told from 0."""


@float64_function(has_float32=True, epsilon=NONNEGATIVE, mu=EXTENDED_NONNEGATIVE)
def gdp_delta(epsilon: Numbers, mu: Numbers) -> Floats:
    """Return the smallest delta for which mu-GDP implies (epsilon, delta)-DP.

    Formula: delta = Phi(-epsilon/mu + mu/2) - e^epsilon Phi(-epsilon/mu - mu/2).

    Args:
        epsilon: privacy loss, finite and >= 0, in nats.
        mu: Gaussian privacy parameter >= 0; 0 means no leakage and inf none of the privacy.

    Returns:
        delta in [0, 1], of the broadcast shape; exact, relative error about 1e-15. Values below 2.2e-308 come out as
        0: use `gdp_log_delta` there.

    Raises:
        ValueError: an argument outside its range, or shapes that do not broadcast.

    Reference: Dong, Roth and Su, arXiv:1905.02383, Corollary 2.13.

    >>> print(f"{gdp_delta(1.0, 1.0):.10f}")
    0.1269367375
    """
    return gdp.gdp_delta(epsilon, mu)


@float64_function(has_float32=True, epsilon=NONNEGATIVE, mu=EXTENDED_NONNEGATIVE)
def gdp_log_delta(epsilon: Numbers, mu: Numbers) -> Floats:
    """Return the natural logarithm of `gdp_delta`, for deltas too small to be a float64.

    Formula: log delta = log phi(x) + log(M(x) - M(x + mu)), x = epsilon/mu - mu/2, M the Mills ratio.

    Args:
        epsilon: privacy loss, finite and >= 0, in nats.
        mu: Gaussian privacy parameter >= 0.

    Returns:
        log delta <= 0, of the broadcast shape; exact; -inf at mu = 0.

    Raises:
        ValueError: an argument outside its range, or shapes that do not broadcast.

    Reference: Dong, Roth and Su, arXiv:1905.02383, Corollary 2.13.

    >>> print(f"{gdp_log_delta(100.0, 1.0):.6f}")
    -4960.254554
    """
    return gdp.gdp_log_delta(epsilon, mu)


@float64_function(has_float32=True, delta=DELTA, mu=EXTENDED_NONNEGATIVE)
def gdp_epsilon(delta: Numbers, mu: Numbers) -> Floats:
    """Return the smallest epsilon for which mu-GDP implies (epsilon, delta)-DP.

    Formula: the root epsilon >= 0 of Phi(-epsilon/mu + mu/2) - e^epsilon Phi(-epsilon/mu - mu/2) = delta.

    Args:
        delta: probability strictly between 0 and 1 (at least 2.3e-308).
        mu: Gaussian privacy parameter >= 0.

    Returns:
        epsilon >= 0 in nats, of the broadcast shape; exact; 0 where delta >= 2 Phi(mu/2) - 1, and inf at mu = inf.

    Raises:
        ValueError: an argument outside its range, or shapes that do not broadcast.

    Reference: Dong, Roth and Su, arXiv:1905.02383, Corollary 2.13.

    >>> print(f"{gdp_epsilon(1e-5, 1.0):.10f}")
    4.3771780957
    """
    return gdp.gdp_epsilon(delta, mu)


@float64_function(has_float32=True, epsilon=NONNEGATIVE, delta=DELTA)
def gdp_mu(epsilon: Numbers, delta: Numbers) -> Floats:
    """Return the largest mu for which mu-GDP implies (epsilon, delta)-DP.

    It is the mu of the Gaussian mechanism that is (epsilon, delta)-DP and no better. It says nothing about other
    mechanisms: an arbitrary (epsilon, delta)-DP mechanism need not be mu-GDP for any mu.

    Formula: the root mu > 0 of Phi(-epsilon/mu + mu/2) - e^epsilon Phi(-epsilon/mu - mu/2) = delta.

    Args:
        epsilon: privacy loss, finite and >= 0, in nats.
        delta: probability strictly between 0 and 1 (at least 2.3e-308).

    Returns:
        mu > 0, of the broadcast shape; exact.

    Raises:
        ValueError: an argument outside its range, or shapes that do not broadcast.

    Reference: Dong, Roth and Su, arXiv:1905.02383, Corollary 2.13; Balle and Wang, arXiv:1805.06530, Section 3.

    >>> print(f"{gdp_mu(1.0, 1e-5):.10f}")
    0.2680511232
    """
    return gdp.gdp_mu(epsilon, delta)


def gdp_compose(mu: Array, axis: int = -1) -> Array:
    """Return the mu of several Gaussian-private mechanisms together.

    Formula: mu = sqrt(sum_i mu_i^2).

    Args:
        mu: array of Gaussian privacy parameters >= 0, at least one axis.
        axis: the axis of mechanisms, static.

    Returns:
        mu of the composition, the shape of ``mu`` without ``axis``; exact. No mechanism at all gives 0.

    Raises:
        ValueError: an element outside its range, or no such axis.

    Reference: Dong, Roth and Su, arXiv:1905.02383, Corollary 3.3.

    >>> print(gdp_compose([3.0, 4.0]))
    5.0
    """
    num_axes = np.ndim(mu)
    axis = check_count("axis", axis, least=-num_axes)

    # One composition at a time where they may be differentiated: each depends on its own mus alone.
    if is_traced(mu) and num_axes > 1:
        return jnp.vectorize(_composed, excluded={1}, signature="(n)->()")(jnp.moveaxis(mu, axis, -1), -1)
    return _composed(mu, axis)


@float64_function(has_float32=True, broadcast=False, mu=EXTENDED_NONNEGATIVE)
def _composed(mu: Array, axis: int) -> Array:
    """Return `gdp_compose` along an axis that there is."""
    # The largest mu is taken out of the root, so that no square overflows.
    largest = jnp.max(mu, axis=axis, keepdims=True, initial=0.0)
    scale = jnp.where((largest > 0) & (largest < jnp.inf), largest, 1.0)
    squares = jnp.sum((mu / scale) ** 2, axis=axis)

    # The guard keeps the derivative at mu = 0 finite.
    is_positive = squares > 0
    root = jnp.sqrt(jnp.where(is_positive, squares, 1.0))
    root = jnp.where(is_positive, root, 0.0)
    return jnp.squeeze(scale, axis) * root
