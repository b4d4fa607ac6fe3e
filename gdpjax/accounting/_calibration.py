r"""Calibration: the noise multiplier, number of steps or sampling probability that meets a privacy target.

epsilon decreases in the noise multiplier and increases in num_steps and sampling_prob, so "the best value that meets
the target" is the edge of a monotone condition.

* ``accountant="rdp"``: bisection on the moments accountant's upper bound (`gdpjax._core.roots`); the end that meets
  the target is returned, so the bound at the answer is at most the target: safe.
* ``accountant="clt"``: the target (epsilon, delta) is one number, mu = gdp_mu(epsilon, delta), and
  mu = p sqrt(T (e^{1/s^2} - 1)) inverts in closed form. An asymptotic estimate: the true epsilon may exceed the target.
* ``accountant="numeric"``: bisection on the upper end of the certified bracket, for epsilon or for mu; the default. As
  tight as that bracket, about 1e-3 of the target.

An accountant is one entry of `_EPSILON`. The traced functions return NaN where no value meets the target.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp

from gdpjax._core.checks import COUNT, OPEN_UNIT, POSITIVE, UNIT, check, float64_function, is_traced
from gdpjax._core.roots import bisect, geometric_midpoint, whole_midpoint
from gdpjax._core.types import Array
from gdpjax.accounting._clt import poisson_factor
from gdpjax.accounting._gdp import DELTA, gdp_mu
from gdpjax.accounting._numeric import epsilon_of_runs, mu_of_runs
from gdpjax.accounting._rdp import moments_epsilon_kernel

# Aim a little below the target, by more than two compilations of one formula can differ.
_SEARCH_MARGIN = 1 - 1e-10
_CLOSED_MARGIN = 1 - 1e-12

ACCOUNTANTS = ("numeric", "rdp", "clt")
_EPSILON: dict[str, Callable[..., Array]] = {
    "rdp": moments_epsilon_kernel,
    "numeric": lambda noise_multiplier, sampling_prob, num_steps, delta: (
        epsilon_of_runs(noise_multiplier, sampling_prob, num_steps, delta).upper
    ),
}
"""Name to epsilon(noise_multiplier, sampling_prob, num_steps, delta), an upper bound; "clt" has a closed form."""
_NUMERIC_ITERATIONS = 26  # to 1e-6 of the value; finer than the bracket


class _Unknown(NamedTuple):
    """What is searched: the bracket end with the least privacy loss, the one with the most, the scale between, and
    the direction of rounding that keeps the answer safe."""

    safest: float
    riskiest: float
    midpoint: Callable[[Array, Array], Array]
    num_iterations: int
    rounding: str


_UNKNOWNS = {
    "noise_multiplier": _Unknown(2.0**60, 2.0**-10, geometric_midpoint, 42, "up"),
    "num_steps": _Unknown(1.0, 2.0**40, whole_midpoint, 41, "down"),
    "sampling_prob": _Unknown(2.0**-100, 1.0, geometric_midpoint, 42, "down"),
}


class _Answer(NamedTuple):
    value: Array
    too_strict: Array  # even the safest end misses the target
    too_lax: Array  # even the riskiest end meets it


def calibrate_noise_multiplier(
    *,
    epsilon: Array | None = None,
    delta: Array | None = None,
    mu: Array | None = None,
    failure: Array | None = None,
    sampling_prob: Array,
    num_steps: Array,
    accountant: str = "numeric",
) -> Array:
    """The smallest noise multiplier that meets a privacy target.

    Formula: min { s : epsilon(s, sampling_prob, num_steps, delta) <= epsilon }; for "clt",
    s = log(1 + (mu / (sampling_prob sqrt(num_steps)))^2)^{-1/2}.

    Args:
        epsilon: target epsilon > 0 in nats, with delta; instead of mu.
        delta: probability strictly between 0 and 1.
        mu: target mu > 0: the (mu, failure) statement of `mu_bounds` for "numeric", the limiting mu for "clt".
        failure: failure probability of a certified mu statement, default 1e-10; only with accountant "numeric".
        sampling_prob: probability in [0, 1] that an example joins a batch.
        num_steps: whole number >= 1 of steps.
        accountant: "numeric" (certified), "rdp" (the moments accountant's upper bound) or "clt" (an estimate).

    Returns:
        noise_multiplier, of the broadcast shape. With "rdp" an upper bound on the noise needed: the true epsilon is at
        most the target. With "clt" asymptotic: the true epsilon may exceed the target. NaN where traced and infeasible.

    Raises:
        ValueError: an argument outside its range, an incomplete target, an accountant that cannot serve it, or a target
            that no noise multiplier meets or every one does.

    Reference: Mironov, Talwar and Zhang, arXiv:1908.10530 (rdp); Bu, Dong, Long and Su, arXiv:1911.11607, Section 3
    (clt).

    >>> s = calibrate_noise_multiplier(epsilon=2.0, delta=1e-5, sampling_prob=0.01, num_steps=1000, accountant="rdp")
    >>> print(f"{s:.4f}")
    1.0223
    """
    target = _target(accountant, epsilon, delta, mu, failure)
    return _calibrate("noise_multiplier", target, accountant, sampling_prob=sampling_prob, num_steps=num_steps)


def calibrate_num_steps(
    *,
    epsilon: Array | None = None,
    delta: Array | None = None,
    mu: Array | None = None,
    failure: Array | None = None,
    noise_multiplier: Array,
    sampling_prob: Array,
    accountant: str = "numeric",
) -> Array:
    """The largest number of steps that meets a privacy target.

    Formula: max { T >= 1 : epsilon(noise_multiplier, sampling_prob, T, delta) <= epsilon }.

    Args:
        epsilon: target epsilon > 0 in nats, with delta; instead of mu.
        delta: probability strictly between 0 and 1.
        mu: target mu > 0: the (mu, failure) statement of `mu_bounds` for "numeric", the limiting mu for "clt".
        failure: failure probability of a certified mu statement, default 1e-10; only with accountant "numeric".
        noise_multiplier: stddev of the noise / sensitivity, > 0.
        sampling_prob: probability in [0, 1] that an example joins a batch.
        accountant: "numeric" (certified), "rdp" (the moments accountant's upper bound) or "clt" (an estimate).

    Returns:
        num_steps, whole numbers in floating point, of the broadcast shape. With "rdp" safe: the true epsilon is at most
        the target. With "clt" asymptotic: it may exceed the target. NaN where traced and infeasible.

    Raises:
        ValueError: an argument outside its range, an incomplete target, an accountant that cannot serve it, or a target
            that not even one step meets, or 2^40 steps do.

    Reference: Mironov, Talwar and Zhang, arXiv:1908.10530 (rdp); Bu, Dong, Long and Su, arXiv:1911.11607, Section 3
    (clt).

    >>> steps = calibrate_num_steps(mu=0.5, noise_multiplier=1.0, sampling_prob=0.01, accountant="clt")
    >>> print(int(steps))
    1454
    """
    target = _target(accountant, epsilon, delta, mu, failure)
    return _calibrate("num_steps", target, accountant, noise_multiplier=noise_multiplier, sampling_prob=sampling_prob)


def calibrate_sampling_prob(
    *,
    epsilon: Array | None = None,
    delta: Array | None = None,
    mu: Array | None = None,
    failure: Array | None = None,
    noise_multiplier: Array,
    num_steps: Array,
    accountant: str = "numeric",
) -> Array:
    """The largest sampling probability that meets a privacy target.

    Formula: max { p in (0, 1] : epsilon(noise_multiplier, p, num_steps, delta) <= epsilon }.

    Args:
        epsilon: target epsilon > 0 in nats, with delta; instead of mu.
        delta: probability strictly between 0 and 1.
        mu: target mu > 0: the (mu, failure) statement of `mu_bounds` for "numeric", the limiting mu for "clt".
        failure: failure probability of a certified mu statement, default 1e-10; only with accountant "numeric".
        noise_multiplier: stddev of the noise / sensitivity, > 0.
        num_steps: whole number >= 1 of steps.
        accountant: "numeric" (certified), "rdp" (the moments accountant's upper bound) or "clt" (an estimate).

    Returns:
        sampling_prob in (0, 1], of the broadcast shape; 1 where the target allows every example in every batch. With
        "rdp" safe: the true epsilon is at most the target. With "clt" asymptotic: it may exceed the target. NaN where
        traced and infeasible.

    Raises:
        ValueError: an argument outside its range, an incomplete target, an accountant that cannot serve it, or a target
            that no sampling probability meets.

    Reference: Mironov, Talwar and Zhang, arXiv:1908.10530 (rdp); Bu, Dong, Long and Su, arXiv:1911.11607, Section 3
    (clt).

    >>> p = calibrate_sampling_prob(mu=0.5, noise_multiplier=1.0, num_steps=1000, accountant="clt")
    >>> print(f"{p:.6f}")
    0.012062
    """
    target = _target(accountant, epsilon, delta, mu, failure)
    return _calibrate("sampling_prob", target, accountant, noise_multiplier=noise_multiplier, num_steps=num_steps)


def _target(
    accountant: str, epsilon: Array | None, delta: Array | None, mu: Array | None, failure: Array | None
) -> dict[str, Any]:
    """The target as keyword arguments of the kernels, after the checks that need no numbers."""
    if accountant not in ACCOUNTANTS:
        raise ValueError(f"accountant must be one of {', '.join(ACCOUNTANTS)}, got {accountant!r}")
    if mu is not None and (epsilon is not None or delta is not None):
        raise ValueError("give either mu or both epsilon and delta as the target, not mu together with them")
    if mu is None and (epsilon is None or delta is None):
        raise ValueError("give a complete target: both epsilon and delta, or mu")
    if failure is not None and (accountant != "numeric" or mu is None):
        raise ValueError('failure belongs to a target mu with accountant "numeric"; leave it out')
    if accountant == "rdp" and mu is not None:
        raise ValueError(
            'accountant "rdp" bounds epsilon, not mu: give epsilon and delta, or choose "clt" (an estimate)'
        )
    if mu is not None:
        return {"mu": mu} if accountant == "clt" else {"mu": mu, "failure": 1e-10 if failure is None else failure}
    check("epsilon", epsilon, POSITIVE)
    return {"epsilon": epsilon, "delta": delta}


def _calibrate(unknown: str, target: dict[str, Array], accountant: str, **known: Array) -> Array:
    known[unknown] = 1.0  # a placeholder inside every domain
    if accountant == "clt":
        mu = target["mu"] if "mu" in target else gdp_mu(target["epsilon"], target["delta"])
        answer = _CLOSED_FORMS[unknown](mu, **known)
    else:
        searches = _MU_SEARCHES if "mu" in target else _SEARCHES
        answer = searches[unknown](**target, **known, accountant=accountant)
    if is_traced(answer.value):
        return answer.value
    meaning, ends = " and ".join(target), _UNKNOWNS[unknown]
    if answer.too_strict.any():
        raise ValueError(f"the target {meaning} cannot be met: even {unknown} = {ends.safest:.4g} exceeds it")
    if unknown != "sampling_prob" and answer.too_lax.any():
        raise ValueError(f"the target {meaning} asks for nothing: even {unknown} = {ends.riskiest:.4g} meets it")
    return answer.value


def _finish(unknown: str, value: Array, too_strict: Array, too_lax: Array) -> _Answer:
    lax_value = 1.0 if unknown == "sampling_prob" else jnp.nan
    return _Answer(jnp.where(too_strict, jnp.nan, jnp.where(too_lax, lax_value, value)), too_strict, too_lax)


def _search(unknown: str) -> Callable[..., _Answer]:
    ends = _UNKNOWNS[unknown]

    @float64_function(
        rounding=ends.rounding,
        epsilon=POSITIVE,
        delta=DELTA,
        noise_multiplier=POSITIVE,
        sampling_prob=UNIT,
        num_steps=COUNT,
    )
    def search(
        epsilon: Array, delta: Array, noise_multiplier: Array, sampling_prob: Array, num_steps: Array, accountant: str
    ) -> _Answer:
        known = {"noise_multiplier": noise_multiplier, "sampling_prob": sampling_prob, "num_steps": num_steps}

        def meets(value: Array) -> Array:
            return _EPSILON[accountant](**{**known, unknown: value}, delta=delta) <= epsilon * _SEARCH_MARGIN

        return _bisect(unknown, accountant, meets, epsilon, delta, *known.values())

    return search


def _mu_search(unknown: str) -> Callable[..., _Answer]:
    ends = _UNKNOWNS[unknown]

    @float64_function(
        rounding=ends.rounding,
        mu=POSITIVE,
        failure=OPEN_UNIT,
        noise_multiplier=POSITIVE,
        sampling_prob=UNIT,
        num_steps=COUNT,
    )
    def search(
        mu: Array, failure: Array, noise_multiplier: Array, sampling_prob: Array, num_steps: Array, accountant: str
    ) -> _Answer:
        known = {"noise_multiplier": noise_multiplier, "sampling_prob": sampling_prob, "num_steps": num_steps}

        def meets(value: Array) -> Array:
            run = {**known, unknown: value}
            bounds = mu_of_runs(run["noise_multiplier"], run["sampling_prob"], run["num_steps"], failure)
            return bounds.upper <= mu * _SEARCH_MARGIN

        return _bisect(unknown, accountant, meets, mu, failure, *known.values())

    return search


def _bisect(unknown: str, accountant: str, meets: Callable[[Array], Array], *shapes: Array) -> _Answer:
    ends = _UNKNOWNS[unknown]
    shape = jnp.broadcast_shapes(*(value.shape for value in shapes))
    coarse = accountant == "numeric" and unknown != "num_steps"
    found = bisect(
        meets,
        jnp.full(shape, ends.safest),
        jnp.full(shape, ends.riskiest),
        midpoint=ends.midpoint,
        num_iterations=_NUMERIC_ITERATIONS if coarse else ends.num_iterations,
    )
    return _finish(unknown, found.holds, ~found.first_held, found.last_held)


def _closed_form(unknown: str) -> Callable[..., _Answer]:
    ends = _UNKNOWNS[unknown]

    @float64_function(
        rounding=ends.rounding, mu=POSITIVE, noise_multiplier=POSITIVE, sampling_prob=UNIT, num_steps=COUNT
    )
    def closed_form(mu: Array, noise_multiplier: Array, sampling_prob: Array, num_steps: Array) -> _Answer:
        # The quotient of the target and the mu of the known quantities; inf where these leak nothing.
        if unknown == "noise_multiplier":
            quotient = mu * _CLOSED_MARGIN / (sampling_prob * jnp.sqrt(num_steps))
            # log(1 + quotient^2), which does not overflow
            value = 1 / jnp.sqrt(jnp.logaddexp(0.0, 2 * jnp.log(quotient)))
            return _finish(unknown, value, value > ends.safest, value < ends.riskiest)
        quotient = mu * _CLOSED_MARGIN / (sampling_prob * jnp.sqrt(num_steps) * poisson_factor(1 / noise_multiplier))
        value = jnp.floor(quotient * quotient) if unknown == "num_steps" else quotient
        return _finish(unknown, value, value < ends.safest, value > ends.riskiest)

    return closed_form


_SEARCHES = {unknown: _search(unknown) for unknown in _UNKNOWNS}
_MU_SEARCHES = {unknown: _mu_search(unknown) for unknown in _UNKNOWNS}
_CLOSED_FORMS = {unknown: _closed_form(unknown) for unknown in _UNKNOWNS}
