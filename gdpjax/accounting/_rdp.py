r"""The moments accountant: upper bounds from Renyi differential privacy.

A step whose Renyi divergence of order a is at most rdp(a), in both directions, composes by addition: num_steps steps
have num_steps * rdp(a). Each order gives a valid (epsilon, delta), so the smallest over any set of orders is valid:

    classic:   epsilon = min_a  rdp(a) + log(1/delta) / (a - 1),
    tight:     epsilon = min_a  rdp(a) + log(1 - 1/a) - (log delta + log a) / (a - 1).

The first is the conversion of the original papers, the second that of Canonne, Kamath and Steinke. With "tight" the
answer is 0 where 1 - e^{-rdp} <= delta^2 as well: Bretagnolle and Huber bound the total variation distance by
sqrt(1 - e^{-KL}), the Kullback-Leibler divergence is at most any rdp(a), and (0, delta)-DP is exactly that distance.

Solved for delta, "tight" reads delta = min_a e^{(a-1)(rdp(a) - epsilon)} (1 - 1/a)^{a-1} / a, capped by the bound on
the total variation distance (`convert_to_delta`).

The per-step moments of the Poisson-subsampled Gaussian are bounded in `gdpjax.accounting._renyi`, those with batches of
a fixed size in `gdpjax.accounting._renyi_uniform`. The events of a Ledger and the
accountant's epsilon are in `gdpjax.accounting._moments_accountant`.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Real

from gdpjax._core.arguments import check_array, check_choice
from gdpjax._core.checks import (
    EXTENDED_NONNEGATIVE,
    POSITIVE,
    RENYI_ORDER,
    UNIT,
    check,
    is_traced,
    known,
)
from gdpjax._core.precision import float64_function, map_chunks
from gdpjax._core.types import Array, Floats, Number, Numbers
from gdpjax.accounting._gdp import DELTA
from gdpjax.accounting._renyi import log_moments
from gdpjax.accounting._renyi_uniform import log_moments_uniform

DEFAULT_ORDERS = tuple(
    sorted({*(1 + k / 10 for k in range(1, 101)), *(k / 4 for k in range(44, 81)), *range(20, 64), 128, 256, 512})
)
"""Steps of 0.1 up to 11, of 1/4 up to 20, of 1 up to 63, then 128, 256 and 512: the customary grid of the moments
accountant, refined between 11 and 20, where the best order of usual small-epsilon runs lies."""

CONVERSIONS = ("tight", "classic")
_LOG_MOMENTS = {"poisson": log_moments, "uniform": log_moments_uniform}
SAMPLINGS = tuple(_LOG_MOMENTS)


def rdp_subsampled_gaussian(
    noise_multiplier: Numbers,
    sampling_prob: Numbers,
    orders: Real[Array, "*orders"] | Number,
    *,
    sampling: str = "poisson",
) -> Float[Array, "..."]:
    """Renyi differential privacy of one subsampled Gaussian step: an upper bound.

    Formula: with r(u) = 1 - p + p e^{u/s - 1/(2 s^2)}, p = sampling_prob, s = noise_multiplier and u ~ N(0, 1),
    "poisson": rdp(a) = log E[r^a] / (a - 1), for a whole a a binomial sum, otherwise an integral with its error bound
    added; neighbours are add-or-remove-one.
    "uniform": rdp(a) = log(1 + E[(r^a + r^{1-a} - 1 - r) 1{r > 1}]) / (a - 1); neighbours are replace-one.

    Args:
        noise_multiplier: stddev of the noise / sensitivity, > 0, of any shape [...]. With "uniform" the sensitivity is
            the replace-one one, twice the clip norm.
        sampling_prob: probability in [0, 1] that an example joins a batch, broadcasting with noise_multiplier.
        orders: Renyi orders > 1, one axis [K] or a single number, known before compiling.
        sampling: "poisson" (each example independently) or "uniform" (a fixed number without replacement).

    Returns:
        rdp >= 0 in nats per step, of shape [..., K] ([...] for a single order); upper bound. For noise multipliers of 1
        and more "poisson" is exact to 2e-9, orders above 1024 apart, and "uniform" at most 2e-3 above its formula; from
        0.3 on they are at most 2e-3 and 1e-2 high. With less noise the bound of a fractional order may be that of a
        step without sampling. Some real pair of data sets reaches "poisson"; "uniform" is the worst case over pairs
        that obey the amplification theorem.

    Raises:
        ValueError: an argument outside its range, an unknown sampling, or shapes that do not broadcast.

    Reference: Mironov, Talwar and Zhang, arXiv:1908.10530, Sections 3.1 to 3.3 (poisson); Balle, Barthe and Gaboardi,
    arXiv:1807.01647, Theorem 9 (uniform, from which the formula is derived in this package).

    >>> print([f"{value:.6f}" for value in rdp_subsampled_gaussian(1.0, 0.01, [1.5, 2.0, 8.0])])
    ['0.000127', '0.000172', '0.000894']
    """
    check("noise_multiplier", noise_multiplier, POSITIVE)
    check("sampling_prob", sampling_prob, UNIT)
    check_choice("sampling", sampling, SAMPLINGS)
    known_orders = tuple(np.atleast_1d(known("orders", orders, RENYI_ORDER)).tolist())
    result = _rdp_at_orders(column(noise_multiplier), column(sampling_prob), known_orders, sampling)
    return result[..., 0] if np.ndim(orders) == 0 else result


@float64_function(rounding="up", rdp=EXTENDED_NONNEGATIVE, orders=RENYI_ORDER, delta=DELTA)
def _epsilon_per_order(rdp: Array, orders: Array, delta: Array, conversion: str) -> Array:
    return convert(rdp, orders, delta, conversion)


def rdp_epsilon(
    rdp: Real[Array, "*#settings orders"], orders: Real[Array, " orders"], delta: Numbers, conversion: str = "tight"
) -> Floats:
    """The epsilon implied by Renyi differential privacy: an upper bound.

    Formula: tight, min_a rdp(a) + log(1 - 1/a) - (log delta + log a) / (a - 1), at least 0;
    classic, min_a rdp(a) + log(1/delta) / (a - 1).

    Args:
        rdp: Renyi differential privacy >= 0 in nats of the whole run, shape [..., K]; inf marks an order as unusable.
        orders: Renyi orders > 1, shape [K].
        delta: probability strictly between 0 and 1, of a shape that broadcasts with [...].
        conversion: "tight" or "classic".

    Returns:
        epsilon >= 0 in nats, shape [...]; upper bound.

    Raises:
        ValueError: an argument outside its range, an unknown conversion, or shapes that do not fit.

    Reference: Canonne, Kamath and Steinke, arXiv:2004.00010, Proposition 12 (tight); Abadi et al., arXiv:1607.00133,
    Theorem 2, and Mironov, arXiv:1702.07476, Proposition 3 (classic).

    >>> print(f"{rdp_epsilon([0.5, 1.0], [2.0, 4.0], 1e-5):.4f}")
    4.0879
    """
    check_choice("conversion", conversion, CONVERSIONS)
    check_orders(rdp, orders)
    return _epsilon_per_order(rdp, orders, column(delta), conversion).min(axis=-1)


def moments_epsilon_kernel(
    noise_multiplier: Array, sampling_prob: Array, num_steps: Array, delta: Array, conversion: str = "tight",
    sampling: str = "poisson",
) -> Array:  # fmt: skip
    """`moments_accountant_epsilon` on float64 arrays, without its checks, for use inside other kernels."""

    def kernel(noise: Array, prob: Array, steps: Array, probability: Array) -> Array:
        total = run_rdp(noise, prob, steps, np.asarray(DEFAULT_ORDERS), sampling)
        return convert(total, np.asarray(DEFAULT_ORDERS), probability[..., None], conversion).min(axis=-1)

    return map_chunks(kernel, noise_multiplier, sampling_prob, num_steps, delta)


def run_rdp(
    noise_multiplier: Array, sampling_prob: Array, num_steps: Array, orders: np.ndarray, sampling: str = "poisson"
) -> Array:
    """The Renyi differential privacy of a run, [...] to [..., K]; 0 where there are no steps."""
    per_step = _rdp_of_step(noise_multiplier, sampling_prob, orders, sampling)
    steps = num_steps[..., None]
    return jnp.where(steps > 0, jnp.maximum(steps, 1.0) * per_step, 0.0)


def _rdp_of_step(noise_multiplier: Array, sampling_prob: Array, orders: np.ndarray, sampling: str) -> Array:
    """The Renyi differential privacy of one step, [...] to [..., K].

    Its derivative is a product with two arrays, which JAX can transpose after float64 was switched off again; the
    gathers inside of it are not transposed there.
    """

    def divergences(noise: Array, prob: Array) -> Array:
        return _LOG_MOMENTS[sampling](noise, prob, orders) / (orders - 1)

    def derivative(primals: Any, tangents: Any) -> tuple[Array, Array]:
        noise, prob = jnp.broadcast_arrays(*primals)
        ones, zeros = jnp.ones_like(noise), jnp.zeros_like(noise)
        value, by_noise = jax.jvp(divergences, (noise, prob), (ones, zeros))
        _, by_prob = jax.jvp(divergences, (noise, prob), (zeros, ones))
        of_noise, of_prob = (tangent[..., None] for tangent in tangents)
        return value, by_noise * of_noise + by_prob * of_prob

    function = jax.custom_jvp(divergences)
    function.defjvp(derivative)
    return function(noise_multiplier, sampling_prob)


def convert(rdp: Array, orders: Array, delta: Array, conversion: str, xp: Any = jnp) -> Array:
    """The epsilon of each order, raised by 2^-48 of its largest term against rounding."""
    slack = 2.0**-48 * (rdp - xp.log(delta) / (orders - 1) + 1 / orders)
    if conversion == "classic":
        return rdp - xp.log(delta) / (orders - 1) + slack
    epsilon = rdp + xp.log1p(-1 / orders) - (xp.log(delta) + xp.log(orders)) / (orders - 1) + slack
    negligible = -xp.expm1(-rdp) <= delta * delta
    return xp.where(negligible, 0.0, xp.maximum(epsilon, 0.0))


def convert_to_delta(rdp: Array, orders: Array, epsilon: Array) -> Array:
    """The delta of each order, raised by 2^-36 of itself against rounding."""
    log_delta = (orders - 1) * (rdp - epsilon + jnp.log1p(-1 / orders)) - jnp.log(orders)
    # The rounding of the exponent is relative to its largest term.
    slack = 2.0**-48 * (orders - 1) * (jnp.where(rdp < jnp.inf, rdp, 0.0) + epsilon + 1)
    total_variation = jnp.sqrt(-jnp.expm1(-rdp))
    return jnp.minimum(jnp.minimum(jnp.exp(log_delta + slack), total_variation) * (1 + 2.0**-36), 1.0)


@float64_function(rounding="up", noise_multiplier=POSITIVE, sampling_prob=UNIT)
def _rdp_at_orders(noise_multiplier: Array, sampling_prob: Array, orders: tuple, sampling: str) -> Array:
    array = np.asarray(orders)
    return _rdp_of_step(noise_multiplier[..., 0], sampling_prob[..., 0], array, sampling)


def column(value: Array) -> Array:
    """value[..., None], of a concrete value in NumPy, so that nothing is rounded to float32."""
    array = jnp.asarray(value) if is_traced(value) else np.asarray(value)
    return array[..., None]


def check_orders(rdp: Array, orders: Array) -> None:
    """Raise ValueError unless the last axis of rdp is the one axis of orders."""
    rdp, orders = check_array("rdp", rdp), check_array("orders", orders)
    if np.ndim(rdp) < 1 or np.ndim(orders) != 1 or np.shape(rdp)[-1] != np.shape(orders)[0] or not np.shape(orders)[0]:
        raise ValueError(
            f"the last axis of rdp must be that of orders and not empty, got rdp {np.shape(rdp)}, "
            f"orders {np.shape(orders)}"
        )
