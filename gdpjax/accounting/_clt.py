r"""The central limit theorem for noisy SGD: asymptotic estimates of mu and epsilon.

One step of DP-SGD releases the clipped sum of a random sample plus Gaussian noise. Composing num_steps of them, with
sampling_prob * sqrt(num_steps) tending to a constant, the privacy-loss sum becomes Gaussian and the run tends to
mu-GDP. With s = noise_multiplier, p = sampling_prob, T = num_steps,

    Poisson sampling:                  mu = p sqrt(T) sqrt(e^{1/s^2} - 1),
    uniform, without replacement:      mu = p sqrt(2 T) sqrt(e^{1/s^2} Phi(1.5/s) + 3 Phi(-0.5/s) - 2).

**These are limits, not bounds.** At finite T the epsilon they give may be below the true one (by a factor of four at
s = 0.6, p = 256/60000, T = 100) as well as above it. Never quote them as a guarantee.

*Numerics.* Write h = 1/s. e^{h^2} overflows for s < 0.0375 although its root need not, so it is taken out of the
root: sqrt(e^{h^2} - 1) = e^{h^2/2} sqrt(1 - e^{-h^2}), with expm1 for the last difference. The uniform bracket is
h^2/2 + O(h^3) while its terms are near 1/2, 3/2 and 2. Rearranged,

    e^{h^2} Phi(1.5 h) + 3 Phi(-0.5 h) - 2 = (e^{h^2} - 1) Phi(1.5 h) + r(h),
    r(h) = (erf(1.5 h / sqrt 2) - 3 erf(0.5 h / sqrt 2)) / 2,

and the linear terms of r cancel identically, which leaves the alternating series
r(h) = (1/sqrt pi) sum_{n >= 1} (-1)^n (a^{2n+1} - 3 (a/3)^{2n+1}) / (n! (2n+1)), a = 1.5 h / sqrt 2,
used for h < 1/2, where 14 terms are exact to rounding. For larger h the difference of erf loses nothing.

In a program compiled for a TPU it is computed in float32: mu to 2e-6, epsilon to 1e-5 of it plus 2e-6 mu.
"""

import math

import jax.numpy as jnp
from jax.scipy.special import erf, ndtr

from gdpjax._core import gdp
from gdpjax._core.arguments import check_choice
from gdpjax._core.checks import RUN
from gdpjax._core.precision import float64_function
from gdpjax._core.types import Array, Floats, Numbers
from gdpjax.accounting._gdp import DELTA
from gdpjax.ledger import AnyEvent, Ledger

_SERIES_BELOW = 0.5
_NUM_SERIES_TERMS = 14


@float64_function(has_float32=True, **RUN)
def clt_mu_poisson(
    noise_multiplier: Numbers,
    sampling_prob: Numbers,
    num_steps: Numbers,
) -> Floats:
    """Return the limiting mu of noisy SGD with Poisson sampling: an asymptotic estimate.

    Formula: mu = sampling_prob sqrt(num_steps (e^{1/noise_multiplier^2} - 1)).

    Args:
        noise_multiplier: stddev of the noise / sensitivity, > 0.
        sampling_prob: probability in [0, 1] that an example joins a batch.
        num_steps: whole number >= 1 of steps.

    Returns:
        mu >= 0, of the broadcast shape; asymptotic: the true privacy loss may be larger. inf where it overflows.

    Raises:
        ValueError: an argument outside its range, or shapes that do not broadcast.

    Reference: Bu, Dong, Long and Su, arXiv:1911.11607, Section 3 (Corollary 4); Dong, Roth and Su, arXiv:1905.02383,
    Section 5.

    >>> print(f"{clt_mu_poisson(1.3, 256 / 60000, 3516):.4f}")
    0.2273
    """
    factor = poisson_factor(1 / noise_multiplier)
    return _limiting_mu(factor, sampling_prob, num_steps)


@float64_function(has_float32=True, **RUN)
def clt_mu_uniform(
    noise_multiplier: Numbers,
    sampling_prob: Numbers,
    num_steps: Numbers,
) -> Floats:
    """Return the limiting mu of noisy SGD with batches of fixed size: an asymptotic estimate.

    Neighbours are replace-one and the noise multiplier is relative to that sensitivity.

    Formula: mu = sampling_prob sqrt(2 num_steps (e^{1/s^2} Phi(1.5/s) + 3 Phi(-0.5/s) - 2)), s = noise_multiplier.

    Args:
        noise_multiplier: stddev of the noise / sensitivity, > 0.
        sampling_prob: batch size / number of examples, in [0, 1].
        num_steps: whole number >= 1 of steps.

    Returns:
        mu >= 0, of the broadcast shape; asymptotic: the true privacy loss may be larger. inf where it overflows.

    Raises:
        ValueError: an argument outside its range, or shapes that do not broadcast.

    Reference: Bu, Dong, Long and Su, arXiv:1911.11607, Section 3.

    >>> print(f"{clt_mu_uniform(1.3, 256 / 60000, 3516):.4f}")
    0.2847
    """
    factor = _uniform_factor(1 / noise_multiplier)
    return _limiting_mu(factor, sampling_prob, num_steps)


def clt_epsilon(
    noise_multiplier: Numbers,
    sampling_prob: Numbers | None = None,
    num_steps: Numbers | None = None,
    delta: Numbers | None = None,
    *,
    sampling: str = "poisson",
) -> Floats:
    """Return the epsilon of the limiting mu: an asymptotic estimate that may understate the true epsilon.

    Formula: epsilon(delta) of mu-GDP (`gdp_epsilon`) at mu = `clt_mu_poisson` or `clt_mu_uniform`.

    Args:
        noise_multiplier: stddev of the noise / sensitivity, > 0.
        sampling_prob: probability in [0, 1] that an example joins a batch.
        num_steps: whole number >= 1 of steps.
        delta: probability strictly between 0 and 1.
        sampling: "poisson" (add-or-remove-one neighbours) or "uniform" (fixed size, replace-one neighbours).

    Returns:
        epsilon >= 0 in nats, of the broadcast shape; asymptotic: not a guarantee.

    Raises:
        ValueError: an argument that is missing or outside its range, a Ledger, an unknown sampling, or shapes that do
            not broadcast.

    Reference: Bu, Dong, Long and Su, arXiv:1911.11607, Section 3.

    >>> print(f"{clt_epsilon(1.3, 256 / 60000, 3516, 1e-5):.3f}")
    0.835
    """
    if isinstance(noise_multiplier, Ledger | AnyEvent):
        raise ValueError("expected the numbers of one run, got a Ledger: ask epsilon_bounds(ledger, delta=...)")
    if sampling_prob is None or num_steps is None or delta is None:
        raise ValueError("expected noise_multiplier, sampling_prob, num_steps and delta of one run")
    return _clt_epsilon(noise_multiplier, sampling_prob, num_steps, delta, sampling)


@float64_function(has_float32=True, **RUN, delta=DELTA)
def _clt_epsilon(noise_multiplier: Array, sampling_prob: Array, num_steps: Array, delta: Array, sampling: str) -> Array:
    factors = {"poisson": poisson_factor, "uniform": _uniform_factor}
    factor_function = factors[check_choice("sampling", sampling, tuple(factors))]
    factor = factor_function(1 / noise_multiplier)
    mu = _limiting_mu(factor, sampling_prob, num_steps)
    return gdp.gdp_epsilon(delta, mu)


def poisson_factor(inverse_noise: Array) -> Array:
    """Return sqrt(e^{h^2} - 1), the limiting mu of one step over its sampling probability, h = 1 / noise_multiplier."""
    growth = jnp.exp(0.5 * inverse_noise * inverse_noise)
    return growth * jnp.sqrt(-jnp.expm1(-inverse_noise * inverse_noise))


def _uniform_factor(inverse_noise: Array) -> Array:
    """Return the same for batches of fixed size, sqrt(2 (e^{h^2} Phi(1.5 h) + 3 Phi(-0.5 h) - 2))."""
    squared = inverse_noise * inverse_noise

    # The bracket over e^{h^2}, which is multiplied outside of the root.
    leading = -jnp.expm1(-squared) * ndtr(1.5 * inverse_noise)
    bracket = leading + jnp.exp(-squared) * _erf_remainder(inverse_noise)
    return math.sqrt(2.0) * jnp.exp(0.5 * squared) * jnp.sqrt(bracket)


def _series_coefficients() -> list[float]:
    """Return (-1)^n (1 - 3^{-2n}) / (n! (2n+1) sqrt(pi)) for n = 1, 2, ..., `_NUM_SERIES_TERMS`."""
    coefficients = []
    for n in range(1, _NUM_SERIES_TERMS + 1):
        denominator = math.factorial(n) * (2 * n + 1) * math.sqrt(math.pi)
        coefficients.append((-1) ** n * (1 - 3.0 ** (-2 * n)) / denominator)
    return coefficients


def _erf_remainder(inverse_noise: Array) -> Array:
    """Return (erf(a) - 3 erf(a/3)) / 2 at a = 1.5 h / sqrt 2."""
    a = 1.5 * inverse_noise / math.sqrt(2.0)
    direct = 0.5 * (erf(a) - 3 * erf(a / 3))

    # For small h, Horner's rule for the alternating series.
    small_a = jnp.minimum(a, 1.5 * _SERIES_BELOW / math.sqrt(2.0))
    total = jnp.zeros_like(a)
    for coefficient in reversed(_series_coefficients()):
        total = (total + coefficient) * small_a * small_a
    series = small_a * total
    return jnp.where(inverse_noise < _SERIES_BELOW, series, direct)


def _limiting_mu(factor: Array, sampling_prob: Array, num_steps: Array) -> Array:
    """Return sampling_prob sqrt(num_steps) factor; 0 where nothing is released, even if the factor overflowed."""
    weight = sampling_prob * jnp.sqrt(num_steps)
    safe_factor = jnp.where(weight > 0, factor, 0.0)
    return jnp.where(weight > 0, weight * safe_factor, 0.0)
