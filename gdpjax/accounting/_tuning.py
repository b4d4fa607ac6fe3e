r"""The privacy of choosing hyperparameters: release the best of a random number of private runs.

Run a mechanism Q (one private training run with randomly chosen hyperparameters, scored without touching private data
or inside Q's budget) K times, with K drawn from a fixed law that knows nothing of the data, and release the best of the
K outcomes. With ties broken by a fixed order, outcomes are totally ordered. Let Q, Q' be the laws of one run on two
neighbouring data sets, A, A' those of the release, q(y) = Q(outcome <= y), and f(x) = E[x^K]. Then for an outcome y

    A(y) = f(q(y)) - f(q(y-)) = Q(y) E[f'(X_y)],    X_y uniform on [q(y-), q(y)],

and A' is the same with X'_y. The map (a, b) -> a^l b^{1-l} is convex and homogeneous for l > 1, so that by Jensen's
inequality (X and X' from one uniform number)

    sum_y A(y)^l A'(y)^{1-l} <= sum_y Q(y)^l Q'(y)^{1-l} max f'(x)^l f'(x')^{1-l},                                  (*)

the maximum over all pairs (x, x') that are probabilities of one (randomised) event under Q and Q'. Let l be the order,
rdp(l) >= D_l of one run in both directions, and bars denote complements.

*Truncated negative binomial* (Papernot and Steinke, arXiv:2110.03620, Theorem 2). With t = 1 - (1 - gamma) x in
[gamma, 1], itself the probability of an event, f'(x) = E[K] gamma^{eta+1} t^{-eta-1}. For any order m >= 1,
D_m(Q' || Q) <= rdp(m) gives t' <= e^{(1-1/m) rdp(m)} t^{1-1/m}, hence (t')^{l-1} t^{-l} gamma is at most
e^{(l-1)(1-1/m) rdp(m)} gamma t^{-1-(l-1)/m} <= e^{(l-1)(1-1/m) rdp(m)} gamma^{-(l-1)/m}, and

    rdp_tuned(l) = rdp(l) + (1 + eta) min_m [(1 - 1/m) rdp(m) + log(1/gamma) / m] + log E[K] / (l - 1).

m = 1 needs no knowledge of rdp and is always among the candidates.

*Poisson* (the same paper, Theorem 6). f'(x) = mean e^{-mean xbar}. Let one run be (e, d)-DP with
e = log(1 + 1/(l - 1)): xbar' <= e^e xbar + d, so (l-1) xbar' - l xbar <= (l-1) d, and the factor of (*) is at most
mean e^{(l-1) mean d}. The theorem concludes rdp(l) + mean d + log(mean) / (l - 1). But K = 0 has probability e^{-mean}
on every data set and adds that much to the left of (*); without it the formula is negative for mean < 1 where nothing
is leaked. We keep the term:

    rdp_tuned(l) = log( e^{-mean} + mean e^{(l-1)(rdp(l) + mean d)} ) / (l - 1),

which for mean >= 5 is the theorem's number to 2e-3 / (l - 1). It holds whatever is released for K = 0, as long as that
does not depend on the data. d comes from rdp itself (`rdp_delta`), or from a better accountant.

All results are raised by 2^-36 of themselves against rounding.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gdpjax._core.checks import (
    COUNT,
    EXTENDED_NONNEGATIVE,
    OPEN_UNIT,
    POSITIVE,
    RENYI_ORDER,
    UNIT,
    Domain,
)  # fmt: skip
from gdpjax._core.precision import float64_function, map_chunks
from gdpjax._core.types import Array
from gdpjax.accounting._gdp import DELTA
from gdpjax.accounting._num_runs import SHAPE, check_parameters, mean_kernel
from gdpjax.accounting._rdp import DEFAULT_ORDERS, check_orders, column, convert, convert_to_delta, run_rdp

_POISSON_MEAN = Domain("a number in (0, 1e6]", lambda x: (x > 0) & (x <= 1e6))
_ROUNDING = 1 + 2.0**-36
_LARGE = 500.0


def tuning_rdp(
    rdp: Array,
    orders: Array,
    *,
    distribution: str = "negative_binomial",
    eta: Array | None = None,
    gamma: Array | None = None,
    mean: Array | None = None,
    one_run_delta: Array | None = None,
) -> Array:
    """Renyi differential privacy of releasing the best of a random number of runs: an upper bound.

    Only the best run may be released: neither the others nor their number.

    Formula: "negative_binomial", rdp(l) + (1 + eta) min_{m >= 1} [(1 - 1/m) rdp(m) + log(1/gamma) / m]
    + log E[K] / (l - 1); "poisson", log(e^{-mean} + mean e^{(l-1)(rdp(l) + mean d_l)}) / (l - 1), where one run is
    (log(l / (l - 1)), d_l)-DP.

    Args:
        rdp: Renyi differential privacy >= 0 in nats of one run, in both directions, shape [..., K]; inf marks an order
            as unusable. The largest over the hyperparameters that a run may choose.
        orders: Renyi orders > 1, shape [K].
        distribution: law of the number of runs, "negative_binomial" (truncated) or "poisson".
        eta: shape > -1 of "negative_binomial"; 1 is the geometric law and 0 the logarithmic one.
        gamma: number strictly between 0 and 1, of "negative_binomial" (`gamma_for_mean_num_runs`).
        mean: mean number of runs in (0, 1e6], of "poisson".
        one_run_delta: for "poisson", d_l in [0, 1] of one run, broadcasting with rdp; by default `rdp_delta` of rdp.

    Returns:
        rdp of the release, >= 0 in nats, shape [..., K] with the shapes of the parameters broadcast against [...];
        upper bound.

    Raises:
        ValueError: an unknown distribution, a missing or superfluous parameter, an argument outside its range, or
            shapes that do not fit.

    Reference: Papernot and Steinke, arXiv:2110.03620, Theorems 2 and 6.

    >>> orders = [2.0, 8.0, 32.0]
    >>> print([f"{value:.4f}" for value in tuning_rdp([0.01, 0.04, 0.16], orders, eta=1.0, gamma=0.1)])
    ['2.7665', '0.8229', '0.6882']
    """
    check_parameters(distribution, eta=eta, gamma=gamma, mean=mean)
    check_orders(rdp, orders)
    if distribution == "negative_binomial":
        if one_run_delta is not None:
            raise ValueError('one_run_delta belongs to distribution "poisson"; leave it out')
        return _negative_binomial(rdp, orders, column(eta), column(gamma))
    if one_run_delta is not None:
        return _poisson_with_delta(rdp, orders, column(mean), one_run_delta)
    return _poisson(rdp, orders, column(mean))


def tuning_epsilon(
    noise_multiplier: Array,
    sampling_prob: Array,
    num_steps: Array,
    delta: Array,
    *,
    distribution: str = "negative_binomial",
    eta: Array | None = None,
    gamma: Array | None = None,
    mean: Array | None = None,
) -> Array:
    """The epsilon of DP-SGD with privately chosen hyperparameters, by the moments accountant: an upper bound.

    Each run is DP-SGD with Poisson sampling and add-or-remove-one neighbours; the best of a random number of runs is
    released.

    Formula: `rdp_epsilon` of `tuning_rdp` of num_steps * `rdp_subsampled_gaussian`.

    Args:
        noise_multiplier: stddev of the noise / sensitivity, > 0.
        sampling_prob: probability in [0, 1] that an example joins a batch.
        num_steps: whole number >= 1 of steps of one run.
        delta: probability strictly between 0 and 1.
        distribution: law of the number of runs, "negative_binomial" (truncated) or "poisson".
        eta: shape > -1 of "negative_binomial".
        gamma: number strictly between 0 and 1, of "negative_binomial".
        mean: mean number of runs in (0, 1e6], of "poisson".

    Returns:
        epsilon >= 0 in nats of the whole selection, of the broadcast shape; upper bound.

    Raises:
        ValueError: an unknown distribution, a missing or superfluous parameter, an argument outside its range, or
            shapes that do not broadcast.

    Reference: Papernot and Steinke, arXiv:2110.03620, Theorems 2 and 6; Mironov, Talwar and Zhang, arXiv:1908.10530.

    >>> print(f"{tuning_epsilon(1.3, 256 / 60000, 3516, 1e-5, eta=0.0, gamma=0.1):.3f}")
    1.509
    """
    check_parameters(distribution, eta=eta, gamma=gamma, mean=mean)
    run = noise_multiplier, sampling_prob, num_steps, delta
    if distribution == "negative_binomial":
        return _negative_binomial_epsilon(*run, eta, gamma)
    return _poisson_epsilon(*run, mean)


@float64_function(rounding="up", rdp=EXTENDED_NONNEGATIVE, orders=RENYI_ORDER, eta=SHAPE, gamma=OPEN_UNIT)
def _negative_binomial(rdp: Array, orders: Array, eta: Array, gamma: Array) -> Array:
    return _negative_binomial_kernel(rdp, orders, eta, gamma)


@float64_function(rounding="up", rdp=EXTENDED_NONNEGATIVE, orders=RENYI_ORDER, mean=_POISSON_MEAN)
def _poisson(rdp: Array, orders: Array, mean: Array) -> Array:
    return _poisson_kernel(rdp, orders, mean, _one_run_delta(rdp, orders))


@float64_function(rounding="up", rdp=EXTENDED_NONNEGATIVE, orders=RENYI_ORDER, mean=_POISSON_MEAN, one_run_delta=UNIT)
def _poisson_with_delta(rdp: Array, orders: Array, mean: Array, one_run_delta: Array) -> Array:
    return _poisson_kernel(rdp, orders, mean, one_run_delta)


_RUN: dict[str, Any] = dict(noise_multiplier=POSITIVE, sampling_prob=UNIT, num_steps=COUNT, delta=DELTA)


@float64_function(rounding="up", **_RUN, eta=SHAPE, gamma=OPEN_UNIT)
def _negative_binomial_epsilon(
    noise_multiplier: Array, sampling_prob: Array, num_steps: Array, delta: Array, eta: Array, gamma: Array
) -> Array:
    orders = np.asarray(DEFAULT_ORDERS)

    def kernel(noise: Array, prob: Array, steps: Array, probability: Array, eta: Array, gamma: Array) -> Array:
        one_run = run_rdp(noise, prob, steps, orders)
        tuned = _negative_binomial_kernel(one_run, orders, eta[..., None], gamma[..., None])
        return convert(tuned, orders, probability[..., None], "tight").min(axis=-1)

    return map_chunks(kernel, noise_multiplier, sampling_prob, num_steps, delta, eta, gamma)


@float64_function(rounding="up", **_RUN, mean=_POISSON_MEAN)
def _poisson_epsilon(
    noise_multiplier: Array, sampling_prob: Array, num_steps: Array, delta: Array, mean: Array
) -> Array:
    orders = np.asarray(DEFAULT_ORDERS)

    def kernel(noise: Array, prob: Array, steps: Array, probability: Array, mean: Array) -> Array:
        one_run = run_rdp(noise, prob, steps, orders)
        tuned = _poisson_kernel(one_run, orders, mean[..., None], _one_run_delta(one_run, jnp.asarray(orders)))
        return convert(tuned, orders, probability[..., None], "tight").min(axis=-1)

    return map_chunks(kernel, noise_multiplier, sampling_prob, num_steps, delta, mean)


def _negative_binomial_kernel(rdp: Array, orders: Array, eta: Array, gamma: Array) -> Array:
    rate = -jnp.log(gamma)
    candidates = (1 - 1 / orders) * rdp + rate / orders
    selection = (1 + eta) * jnp.minimum(candidates.min(axis=-1, keepdims=True), rate)
    return (rdp + selection + jnp.log(mean_kernel(eta, gamma)) / (orders - 1)) * _ROUNDING


def _one_run_delta(rdp: Array, orders: Array) -> Array:
    """d_l of one run for every order l, from all the orders m; sequential in l to bound the memory."""

    def at_order(order: Array) -> Array:
        return convert_to_delta(rdp, orders, -jnp.log1p(-1 / order)).min(axis=-1)

    return jnp.moveaxis(jax.lax.map(at_order, orders), 0, -1)


def _poisson_kernel(rdp: Array, orders: Array, mean: Array, one_run_delta: Array) -> Array:
    exponent = (orders - 1) * (rdp + mean * one_run_delta)
    # e^{-mean} + mean e^x - 1 = (e^{-mean} - 1 + mean) + mean (e^x - 1); mean^2 / 2 bounds the first where it cancels
    gap = jnp.where(mean < 0.01, 0.5 * mean * mean, mean + jnp.expm1(-mean))
    moderate = jnp.log1p(gap + mean * jnp.expm1(jnp.minimum(exponent, _LARGE)))
    large = jnp.logaddexp(-mean, jnp.log(mean) + exponent)
    return jnp.where(exponent < _LARGE, moderate, large) / (orders - 1) * _ROUNDING
