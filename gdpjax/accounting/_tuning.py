r"""The privacy of choosing hyperparameters: release the best of a random number of private runs.

Run a mechanism K times, with K drawn from a fixed law that knows nothing of the data (`_num_runs`), and release the
best of the K outcomes. Let rdp(l) bound the Renyi divergence of order l of one run in both directions. That of the
release is at most

    truncated negative binomial:  rdp(l) + (1 + eta) min_m [(1 - 1/m) rdp(m) + log(1/gamma) / m] + log E[K] / (l - 1),
    Poisson:                      log( e^{-mean} + mean e^{(l-1)(rdp(l) + mean d)} ) / (l - 1),

where one run is (log(l / (l - 1)), d)-DP, by the conversion of rdp. `tuning_epsilon` turns them into the epsilon of
DP-SGD. They are Theorems 2 and 6 of Papernot and Steinke (arXiv:2110.03620), the second with a term that the theorem
leaves out. The proofs are docs/theory/tuning.md. All results are raised by 2^-36 of themselves against rounding.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from gdpjax._core.arguments import check_count
from gdpjax._core.checks import (
    EXTENDED_NONNEGATIVE,
    OPEN_UNIT,
    RENYI_ORDER,
    RUN,
    Domain,
    check,
)
from gdpjax._core.precision import float64_function, map_chunks
from gdpjax._core.types import Array, Numbers
from gdpjax.accounting._gdp import DELTA
from gdpjax.accounting._num_runs import SHAPE, check_parameters, mean_kernel
from gdpjax.accounting._rdp import DEFAULT_ORDERS, check_orders, column, convert, convert_to_delta, rdp_epsilon, run_rdp

_POISSON_MEAN = Domain("a number in (0, 1e6]", lambda x: (x > 0) & (x <= 1e6))
_ROUNDING = 1 + 2.0**-36
_MEAN_ERROR = 2.0**-41
_LARGEST_EXPONENT = 500.0


def tuning_epsilon(
    noise_multiplier: Numbers,
    sampling_prob: Numbers,
    num_steps: Numbers,
    delta: Numbers,
    *,
    distribution: str = "negative_binomial",
    eta: Numbers | None = None,
    gamma: Numbers | None = None,
    mean: Numbers | None = None,
    axis: int | None = None,
) -> Float[Array, "..."]:
    """Bound the epsilon of DP-SGD with privately chosen hyperparameters from above, by the moments accountant.

    Each run is DP-SGD with Poisson sampling and add-or-remove-one neighbours; the best of a random number of runs is
    released. Only the best run may be released: neither the others nor their number.

    Formula: `rdp_epsilon` of the release's Renyi divergence. With rdp = num_steps * `rdp_subsampled_gaussian` this is,
    for "negative_binomial", rdp(l) + (1 + eta) min_{m >= 1} [(1 - 1/m) rdp(m) + log(1/gamma) / m] + log E[K] / (l - 1);
    for "poisson", log(e^{-mean} + mean e^{(l-1)(rdp(l) + mean d_l)}) / (l - 1), one run being (log(l/(l-1)), d_l)-DP.

    Args:
        noise_multiplier: stddev of the noise / sensitivity, > 0.
        sampling_prob: probability in [0, 1] that an example joins a batch.
        num_steps: whole number >= 1 of steps of one run.
        delta: probability strictly between 0 and 1.
        distribution: law of the number of runs, "negative_binomial" (truncated) or "poisson".
        eta: shape > -1 of "negative_binomial".
        gamma: number strictly between 0 and 1, of "negative_binomial".
        mean: mean number of runs in (0, 1e6], of "poisson".
        axis: axis of the runs' settings (the first three arguments, broadcast) along which a run may choose, static:
            at each order the largest rdp along it counts. By default there is one setting for each epsilon.

    Returns:
        epsilon >= 0 in nats of the whole selection, of the broadcast shape, without ``axis`` of the settings; upper
        bound.

    Raises:
        ValueError: an unknown distribution, a missing or superfluous parameter, an argument outside its range, shapes
            that do not broadcast, or no such axis.

    Reference: Papernot and Steinke, arXiv:2110.03620, Theorems 2 and 6; Mironov, Talwar and Zhang, arXiv:1908.10530.

    >>> print(f"{tuning_epsilon(1.3, 256 / 60000, 3516, 1e-5, eta=0.0, gamma=0.1):.3f}")
    1.509
    >>> print(f"{tuning_epsilon([1.3, 0.7], [0.004, 0.001], 3516, 1e-5, eta=0.0, gamma=0.1, axis=0):.3f}")
    2.539
    """
    check_parameters(distribution, eta=eta, gamma=gamma, mean=mean)
    if axis is not None:
        rdp = _largest_rdp(noise_multiplier, sampling_prob, num_steps, axis)
        tuned_rdp = tuning_rdp(rdp, DEFAULT_ORDERS, distribution=distribution, eta=eta, gamma=gamma, mean=mean)
        return rdp_epsilon(tuned_rdp, np.asarray(DEFAULT_ORDERS), delta)
    run = noise_multiplier, sampling_prob, num_steps, delta
    if distribution == "negative_binomial":
        return _negative_binomial_epsilon(*run, eta, gamma)
    return _poisson_epsilon(*run, mean)


def _largest_rdp(noise_multiplier: Array, sampling_prob: Array, num_steps: Array, axis: int) -> Array:
    """Return the largest Renyi differential privacy along an axis of runs, [..., K]."""
    run = {"noise_multiplier": noise_multiplier, "sampling_prob": sampling_prob, "num_steps": num_steps}
    for name, value in run.items():
        check(name, value, RUN[name])
    shape = np.broadcast_shapes(*map(np.shape, run.values()))
    axis = check_count("axis", axis, least=-len(shape))
    if axis >= len(shape) or not shape[axis]:
        raise ValueError(f"the settings must have an axis {axis}, not empty, to choose along, got shape {shape}")
    return _largest_rdp_of_runs(**run, axis=axis % len(shape))


def tuning_rdp(
    rdp: Array,
    orders: Array,
    *,
    distribution: str = "negative_binomial",
    eta: Array | None = None,
    gamma: Array | None = None,
    mean: Array | None = None,
) -> Array:
    """Return the release's Renyi differential privacy, [..., K], from that of one run at orders [K]: an upper bound."""
    check_parameters(distribution, eta=eta, gamma=gamma, mean=mean)
    check_orders(rdp, orders)
    if distribution == "negative_binomial":
        return _negative_binomial(rdp, orders, column(eta), column(gamma))
    return _poisson(rdp, orders, column(mean))


@float64_function(
    rounding="up",
    by_element=False,
    rdp=EXTENDED_NONNEGATIVE,
    orders=RENYI_ORDER,
    eta=SHAPE,
    gamma=OPEN_UNIT,
)
def _negative_binomial(rdp: Array, orders: Array, eta: Array, gamma: Array) -> Array:
    """Return `tuning_rdp` of the truncated negative binomial law."""
    return _negative_binomial_kernel(rdp, orders, eta, gamma)


@float64_function(rounding="up", by_element=False, rdp=EXTENDED_NONNEGATIVE, orders=RENYI_ORDER, mean=_POISSON_MEAN)
def _poisson(rdp: Array, orders: Array, mean: Array) -> Array:
    """Return `tuning_rdp` of the Poisson law."""
    return _poisson_kernel(rdp, orders, mean)


@float64_function(rounding="up", broadcast=False, by_element=False, **RUN)
def _largest_rdp_of_runs(noise_multiplier: Array, sampling_prob: Array, num_steps: Array, axis: int) -> Array:
    """Return `_largest_rdp` along an axis that there is, counted from the first."""
    noise, prob, steps = jnp.broadcast_arrays(noise_multiplier, sampling_prob, num_steps)
    return run_rdp(noise, prob, steps, np.asarray(DEFAULT_ORDERS)).max(axis=axis)


@float64_function(rounding="up", **RUN, delta=DELTA, eta=SHAPE, gamma=OPEN_UNIT)
def _negative_binomial_epsilon(
    noise_multiplier: Array,
    sampling_prob: Array,
    num_steps: Array,
    delta: Array,
    eta: Array,
    gamma: Array,
) -> Array:
    """Return `tuning_epsilon` of the truncated negative binomial law."""
    return _epsilon(_negative_binomial_kernel, noise_multiplier, sampling_prob, num_steps, delta, eta, gamma)


@float64_function(rounding="up", **RUN, delta=DELTA, mean=_POISSON_MEAN)
def _poisson_epsilon(
    noise_multiplier: Array,
    sampling_prob: Array,
    num_steps: Array,
    delta: Array,
    mean: Array,
) -> Array:
    """Return `tuning_epsilon` of the Poisson law."""
    return _epsilon(_poisson_kernel, noise_multiplier, sampling_prob, num_steps, delta, mean)


def _epsilon(tuned: Callable[..., Array], *arguments: Array) -> Array:
    """Return `tuning_epsilon` of a run at a delta and the parameters of a law, by the kernel of that law."""
    orders = np.asarray(DEFAULT_ORDERS)

    def kernel(noise_multiplier: Array, sampling_prob: Array, num_steps: Array, delta: Array, *law: Array) -> Array:
        rdp = run_rdp(noise_multiplier, sampling_prob, num_steps, orders)
        tuned_rdp = tuned(rdp, orders, *(parameter[..., None] for parameter in law))
        return convert(tuned_rdp, orders, delta[..., None], "tight").min(axis=-1)

    return map_chunks(kernel, *arguments)


def _negative_binomial_kernel(
    rdp: Array,
    orders: Array,
    eta: Array,
    gamma: Array,
) -> Array:
    """Return `tuning_rdp` of the truncated negative binomial law, [..., K], unchecked."""
    # The smallest candidate over all orders m, and over m = 1, whose candidate is log(1/gamma).
    rate = -jnp.log(gamma)
    candidates = (1 - 1 / orders) * rdp + rate / orders
    smallest = jnp.minimum(candidates.min(axis=-1, keepdims=True), rate)
    selection = (1 + eta) * smallest
    # The error of a mean close to 1 is large beside its logarithm.
    repetition = (jnp.log(mean_kernel(eta, gamma)) + _MEAN_ERROR) / (orders - 1)
    return (rdp + selection + repetition) * _ROUNDING


def _one_run_delta(rdp: Array, orders: Array) -> Array:
    """Return d_l of one run for every order l, from all the orders m; sequential in l to bound the memory."""

    def at_order(order: Array) -> Array:
        epsilon = -jnp.log1p(-1 / order)
        return convert_to_delta(rdp, orders, epsilon).min(axis=-1)

    return jnp.moveaxis(jax.lax.map(at_order, orders), 0, -1)


def _poisson_kernel(
    rdp: Array,
    orders: Array,
    mean: Array,
) -> Array:
    """Return `tuning_rdp` of the Poisson law, [..., K], unchecked, with d from rdp."""
    one_run_delta = _one_run_delta(rdp, jnp.asarray(orders))
    exponent = (orders - 1) * (rdp + mean * one_run_delta)

    # e^{-mean} + mean e^x - 1 = (e^{-mean} - 1 + mean) + mean (e^x - 1); mean^2 / 2 bounds the first where it cancels.
    gap = jnp.where(mean < 0.01, 0.5 * mean * mean, mean + jnp.expm1(-mean))
    gain = mean * jnp.expm1(jnp.minimum(exponent, _LARGEST_EXPONENT))
    moderate = jnp.log1p(gap + gain)

    # Where e^x is too large, the sum is taken of logarithms.
    large = jnp.logaddexp(-mean, jnp.log(mean) + exponent)
    log_moment = jnp.where(exponent < _LARGEST_EXPONENT, moderate, large)
    return log_moment / (orders - 1) * _ROUNDING
