r"""Accountants as pure functions of a small state, for training loops.

`rdp()` and `gdp_clt()` return an `Accountant`: a tuple of functions that know nothing of each other but a state, the
sum of one quantity over the steps so far (the Renyi differential privacy of each order; the squared mu). A further
accountant is one more factory: `numeric()`, whose state is no sum, has its own module.

*Precision.* The state must be one type whether it was made eagerly or inside a compiled loop, with or without x64, and
a sum of a million small float32 terms must not lose privacy loss. So it is an unevaluated sum of two float32 numbers,
high + low, that hold at least 46 bits together. One step forms value = (high + low + increment) (1 + 2^-50) in float64,
where the factor covers the three roundings of at most 2^-53 each, then takes high = value rounded down to float32 and
low = value - high (exact) rounded *up*. Hence the state never falls below the true sum, and T steps exceed it by at
most a factor (1 + 2^-45)^T: 3e-8 after 10^6 steps. (Sums below 1e-38, the end of float32, are raised to it.)
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from gdpjax._core import gdp
from gdpjax._core.arguments import check_array
from gdpjax._core.checks import (
    EXTENDED_NONNEGATIVE,
    NONNEGATIVE,
    POSITIVE,
    RENYI_ORDER,
    UNIT,
    WHOLE,
    check,
)
from gdpjax._core.precision import float64_function, narrow
from gdpjax._core.types import Array
from gdpjax.accounting._clt import poisson_factor
from gdpjax.accounting._gdp import DELTA
from gdpjax.accounting._rdp import DEFAULT_ORDERS, column, convert, convert_to_delta, run_rdp

_ROUNDING = 1 + 2.0**-50


class Tally(NamedTuple):
    """The state of an accountant: the sum high + low of two float32 arrays, never below the true sum."""

    high: Array
    low: Array


class Accountant(NamedTuple):
    """Pure functions that accumulate the privacy loss of Poisson-sampled Gaussian steps (add-or-remove-one).

    All of them work eagerly and under jit, scan and vmap. The tuple itself is not an array: close over it.

    * ``init(shape=())``: the state of no steps, for a batch of ``shape`` runs.
    * ``step(state, noise_multiplier, sampling_prob, num_steps=1)``: the state after num_steps >= 0 more steps.
    * ``epsilon(state, delta)``, ``delta(state, epsilon)``, ``mu(state)``: what was spent, one number each; its standing
      is that of the factory, and an accountant that does not bound a quantity refuses it with a ValueError.
      ``mu(state, failure=1e-10)`` of `numeric` is the (mu, failure) statement of `mu_bounds`.

    Planned steps only: reporting a count that depended on private data understates the loss.
    """

    init: Callable[..., Any]
    step: Callable[..., Any]
    epsilon: Callable[[Any, Array], Array]
    delta: Callable[[Any, Array], Array]
    mu: Callable[..., Array]


def rdp(orders: Array = DEFAULT_ORDERS) -> Accountant:
    """The moments accountant for training loops: upper bounds on epsilon and delta.

    Formula: state = sum of num_steps * `rdp_subsampled_gaussian` over the steps, one number per order; epsilon is
    `rdp_epsilon` of it and delta `rdp_delta`, as in `moments_accountant_epsilon`. The state's last axis
    is that of the orders.

    Args:
        orders: Renyi orders > 1, concrete, one axis [K].

    Returns:
        An `Accountant`; its state, epsilon and delta are upper bounds. Renyi differential privacy implies no useful mu,
        so mu(state) raises ValueError. A step costs about as much as a call of `rdp_subsampled_gaussian`: where the
        hyperparameters are constant, make one step of num_steps. Its steps are Poisson-sampled: epochs of random
        allocation, and truncated batches, are computed on the host, by `rdp_of_ledger`.

    Raises:
        ValueError: an argument outside its range, here or in the functions.

    Reference: Mironov, Talwar and Zhang, arXiv:1908.10530; Canonne, Kamath and Steinke, arXiv:2004.00010.

    >>> accountant = rdp()
    >>> state = accountant.step(accountant.init(), 1.3, 256 / 60000, num_steps=3516)
    >>> print(f"{accountant.epsilon(state, 1e-5):.3f}")
    0.955
    """
    check("orders", orders, RENYI_ORDER)
    if np.ndim(orders) != 1 or not np.size(orders):
        raise ValueError(f"orders must have one axis and not be empty, got shape {np.shape(orders)}")
    static = tuple(np.asarray(orders, np.float64).tolist())

    def step(state: Tally, noise_multiplier: Array, sampling_prob: Array, num_steps: Array = 1) -> Tally:
        _check_state(state, len(static))
        return _rdp_step(*state, column(noise_multiplier), column(sampling_prob), column(num_steps), static)

    def epsilon(state: Tally, delta: Array) -> Array:
        _check_state(state, len(static))
        return _epsilon_per_order(*state, column(delta), static).min(axis=-1)

    def delta(state: Tally, epsilon: Array) -> Array:
        _check_state(state, len(static))
        return _delta_per_order(*state, column(epsilon), static).min(axis=-1)

    def mu(state: Tally) -> Array:
        raise ValueError(
            "Renyi differential privacy bounds epsilon and delta, not mu: use accountant.epsilon(state, delta), or "
            "gdp_clt() for the limiting mu, an estimate"
        )

    return Accountant(lambda shape=(): _zero((*shape, len(static))), step, epsilon, delta, mu)


def gdp_clt() -> Accountant:
    """The central limit theorem accountant for training loops: asymptotic estimates of mu, epsilon and delta.

    Formula: state = mu^2 = sum of num_steps sampling_prob^2 (e^{1/noise_multiplier^2} - 1); epsilon and delta are those
    of mu-GDP, as in `clt_epsilon`.

    Returns:
        An `Accountant` whose mu, epsilon and delta are asymptotic: the true privacy loss may be larger. Not a
        guarantee.

    Raises:
        ValueError: an argument of the functions outside its range.

    Reference: Bu, Dong, Long and Su, arXiv:1911.11607, Section 3; Dong, Roth and Su, arXiv:1905.02383, Section 5.

    >>> accountant = gdp_clt()
    >>> state = accountant.step(accountant.init(), 1.3, 256 / 60000, num_steps=3516)
    >>> print(f"{accountant.mu(state):.4f} {accountant.epsilon(state, 1e-5):.3f}")
    0.2273 0.835
    """

    def step(state: Tally, noise_multiplier: Array, sampling_prob: Array, num_steps: Array = 1) -> Tally:
        _check_state(state)
        return _clt_step(*state, noise_multiplier, sampling_prob, num_steps)

    def epsilon(state: Tally, delta: Array) -> Array:
        _check_state(state)
        return _clt_epsilon(*state, delta)

    def delta(state: Tally, epsilon: Array) -> Array:
        _check_state(state)
        return _clt_delta(*state, epsilon)

    def mu(state: Tally) -> Array:
        _check_state(state)
        return _clt_mu(*state)

    return Accountant(_zero_scalar, step, epsilon, delta, mu)


def _zero(shape: tuple[int, ...]) -> Tally:
    return Tally(jnp.zeros(shape, jnp.float32), jnp.zeros(shape, jnp.float32))


def _zero_scalar(shape: tuple[int, ...] = ()) -> Tally:
    return _zero(tuple(shape))


def _check_state(state: Tally, num_orders: int | None = None) -> None:
    if isinstance(state, Tally):
        check_array("state.high", state.high)
        check_array("state.low", state.low)
    if not isinstance(state, Tally) or np.shape(state.high) != np.shape(state.low):
        raise ValueError(f"state must come from accountant.init() or accountant.step(), got {type(state).__name__}")
    if num_orders is not None and np.shape(state.high)[-1:] != (num_orders,):
        raise ValueError(
            f"state must belong to an accountant with these {num_orders} orders, got shape {np.shape(state.high)}"
        )


def _accumulate(high: Array, low: Array, increment: Array) -> Tally:
    """The tally of high + low + increment, rounded up as the module docstring says."""
    value = (high + low + increment) * _ROUNDING
    high = narrow(value, "down")
    rest = jnp.where(value < jnp.inf, value - high.astype(jnp.float64), 0.0)
    return Tally(high, narrow(rest, "up"))


_STATE: dict[str, Any] = dict(high=EXTENDED_NONNEGATIVE, low=EXTENDED_NONNEGATIVE)
_STEP: dict[str, Any] = dict(**_STATE, noise_multiplier=POSITIVE, sampling_prob=UNIT, num_steps=WHOLE)


@float64_function(**_STEP)
def _rdp_step(
    high: Array, low: Array, noise_multiplier: Array, sampling_prob: Array, num_steps: Array, orders: tuple
) -> Tally:
    noise, prob, steps = (value[..., 0] for value in (noise_multiplier, sampling_prob, num_steps))
    return _accumulate(high, low, run_rdp(noise, prob, steps, np.asarray(orders)))


@float64_function(rounding="up", **_STATE, delta=DELTA)
def _epsilon_per_order(high: Array, low: Array, delta: Array, orders: tuple) -> Array:
    return convert((high + low) * _ROUNDING, np.asarray(orders), delta, "tight")


@float64_function(rounding="up", **_STATE, epsilon=NONNEGATIVE)
def _delta_per_order(high: Array, low: Array, epsilon: Array, orders: tuple) -> Array:
    return convert_to_delta((high + low) * _ROUNDING, np.asarray(orders), epsilon)


@float64_function(**_STEP)
def _clt_step(high: Array, low: Array, noise_multiplier: Array, sampling_prob: Array, num_steps: Array) -> Tally:
    weight = sampling_prob * jnp.sqrt(num_steps)
    mu = jnp.where(weight > 0, weight * jnp.where(weight > 0, poisson_factor(1 / noise_multiplier), 0.0), 0.0)
    return _accumulate(high, low, mu * mu)


@float64_function(**_STATE)
def _clt_mu(high: Array, low: Array) -> Array:
    return jnp.sqrt(high + low)


@float64_function(**_STATE, delta=DELTA)
def _clt_epsilon(high: Array, low: Array, delta: Array) -> Array:
    return gdp.gdp_epsilon(delta, jnp.sqrt(high + low))


@float64_function(**_STATE, epsilon=NONNEGATIVE)
def _clt_delta(high: Array, low: Array, epsilon: Array) -> Array:
    return gdp.gdp_delta(epsilon, jnp.sqrt(high + low))
