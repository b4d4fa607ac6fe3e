"""The curves of a picture, as arrays, each with its standing.

The supporting curve f_{epsilon, delta}(alpha) = max(0, 1 - delta - e^epsilon alpha, e^{-epsilon} (1 - delta - alpha))
at the certified upper epsilon lies below f, and at the true epsilon it touches. A certified mu is a statement with a
failure probability d: f >= G_mu (x) f_{0,d}, which is (1 - d) G_mu(alpha / (1 - d)), and 0 beyond 1 - d.
"""

import contextlib
import math
from typing import Any, NamedTuple

import numpy as np
import scipy
from jaxtyping import Float

from gdpjax._core.arguments import check_number
from gdpjax._core.types import FAILURE, Bounds, NeighboringRelation
from gdpjax.accounting import (
    certified,
    clt_epsilon,
    clt_mu_poisson,
    clt_mu_uniform,
    gdp_compose,
    moments_accountant_epsilon,
)
from gdpjax.accounting._gdp import DELTA
from gdpjax.ledger import AnyEvent, Event, GaussianEvent, Ledger, UniformEvent
from gdpjax.tradeoff import ApproximateDP, CertifiedCurve, Gaussian


class TradeoffCurves(NamedTuple):
    """A trade-off curve and the curves it is compared with, at the points ``alpha``.

    Attributes:
        alpha: type I errors, increasing from 0 to 1, float64 [n].
        curve: certified bracket on the trade-off curve f, the least type II error.
        approximate_dp: f_{epsilon, delta} at the upper end of ``epsilon``; certified to lie below f.
        gaussian_certified: G_mu at ``mu_upper``, lowered by the failure probability; certified to lie below f.
        gaussian_clt: G_mu at ``mu_clt``; asymptotic, may lie on either side of f. None where ``mu_clt`` is.
        epsilon: certified bracket at ``delta``.
        delta: as given.
        mu_upper: certified mu with failure probability 1e-10.
        mu_clt: asymptotic mu of the central limit theorem; None where there is none.
    """

    alpha: Float[np.ndarray, " points"]
    curve: Bounds
    approximate_dp: Float[np.ndarray, " points"]
    gaussian_certified: Float[np.ndarray, " points"]
    gaussian_clt: Float[np.ndarray, " points"] | None
    epsilon: Bounds
    delta: float
    mu_upper: float
    mu_clt: float | None


class EpsilonCurves(NamedTuple):
    """Epsilon against the number of steps by every accountant.

    Attributes:
        num_steps: increasing whole numbers, float64 [n].
        delta: as given.
        certified: bracket on the true epsilon.
        moments_accountant: upper bound.
        moments_accountant_classic: upper bound, with the conversion of the papers that introduced it.
        clt: asymptotic, may understate.
    """

    num_steps: Float[np.ndarray, " points"]
    delta: float
    certified: Bounds
    moments_accountant: Float[np.ndarray, " points"]
    moments_accountant_classic: Float[np.ndarray, " points"]
    clt: Float[np.ndarray, " points"]


def tradeoff_curves(
    noise_multiplier: float | CertifiedCurve | Ledger | AnyEvent,
    sampling_prob: float | None = None,
    num_steps: float | None = None,
    delta: float | None = None,
) -> TradeoffCurves:
    """Return the trade-off curve of a run, or of anything that is certified, and what it is compared with.

    Formula: see the module docstring.

    Args:
        noise_multiplier: stddev of the noise / sensitivity, > 0, of DP-SGD with Poisson sampling; or a `CertifiedCurve`
            (such as ``plan.curve``, or what `gdpjax.tradeoff.compose` returns), a `Ledger` or one of its
            events, then only ``delta=`` follows.
        sampling_prob: probability in [0, 1] that an example joins a batch.
        num_steps: whole number >= 1 of steps.
        delta: probability strictly between 0 and 1.

    Returns:
        `TradeoffCurves`, with the standing of each curve.

    Raises:
        ValueError: an argument outside its range, an incomplete call.

    Reference: Dong, Roth and Su, arXiv:1905.02383, Sections 2 and 3.

    >>> curves = tradeoff_curves(1.0, 0.01, 100, 1e-5)
    >>> bool((curves.approximate_dp <= curves.curve.upper).all())
    True
    """
    run: Any = noise_multiplier
    if not isinstance(run, CertifiedCurve | Ledger | AnyEvent) or (sampling_prob, num_steps) != (None, None):
        numbers: Any = run, sampling_prob, num_steps
        run = Event(*numbers)
    mu_clt = None
    if isinstance(run, CertifiedCurve):
        curve = run
    else:
        curve = certified(run)
        with contextlib.suppress(ValueError):
            mu_clt = limiting_mu(run)
    delta = check_number("delta", delta, DELTA)
    epsilon: Any = curve.epsilon(delta)
    alpha = _alphas(epsilon.upper, delta)
    mu_upper = float(curve.mu(FAILURE).upper)
    inside = np.minimum(alpha / (1 - FAILURE), 1.0)
    return TradeoffCurves(
        alpha=alpha,
        curve=curve.tradeoff(alpha),
        approximate_dp=np.asarray(ApproximateDP(epsilon.upper, delta)(alpha)),
        gaussian_certified=(1 - FAILURE) * Gaussian(mu_upper)(inside),
        gaussian_clt=None if mu_clt is None else Gaussian(mu_clt)(alpha),
        epsilon=epsilon,
        delta=delta,
        mu_upper=mu_upper,
        mu_clt=mu_clt,
    )


def limiting_mu(run: Ledger | AnyEvent) -> float:
    """Return the mu of the central limit theorem: that of each event, and squares add up; asymptotic.

    Raises:
        ValueError: an event without a limit.
    """
    mus = []
    for event in run if isinstance(run, Ledger) else [run]:
        relation: Any = event.neighboring_relation
        if isinstance(event, GaussianEvent) and event.noise_multiplier:
            mus.append(math.sqrt(event.num_steps) / event.noise_multiplier)
        elif isinstance(event, UniformEvent):
            mus.append(clt_mu_uniform(event.noise_multiplier, event.sampling_prob, event.num_steps))
        elif isinstance(event, Event) and relation is not NeighboringRelation.REPLACE_ONE:
            mus.append(clt_mu_poisson(event.noise_multiplier, event.sampling_prob, event.num_steps))
        else:
            raise ValueError(f"no central limit theorem for {type(event).__name__} under {relation.name}")
    return float(gdp_compose(mus))


def epsilon_curves(
    noise_multiplier: float,
    sampling_prob: float,
    num_steps: int,
    delta: float,
) -> EpsilonCurves:
    """Epsilon of the first T steps of a DP-SGD run with Poisson sampling, T = 1 to num_steps, by every accountant.

    Args:
        noise_multiplier: stddev of the noise / sensitivity, > 0.
        sampling_prob: probability in [0, 1] that an example joins a batch.
        num_steps: whole number >= 1, the largest number of steps.
        delta: probability strictly between 0 and 1.

    Returns:
        `EpsilonCurves`, with the standing of each curve.

    Raises:
        ValueError: an argument outside its range.

    Reference: `gdpjax.accounting`, function by function.

    >>> curves = epsilon_curves(1.0, 0.01, 100, 1e-5)
    >>> bool((curves.certified.upper <= curves.moments_accountant).all())
    True
    """
    last = Event(noise_multiplier, sampling_prob, num_steps).num_steps
    delta = check_number("delta", delta, DELTA)
    steps = np.unique(np.round(np.geomspace(1, last, 48)))
    run = noise_multiplier, sampling_prob, steps, delta
    return EpsilonCurves(
        num_steps=steps,
        delta=delta,
        certified=certified(noise_multiplier, sampling_prob, steps).epsilon(delta),
        moments_accountant=moments_accountant_epsilon(*run),
        moments_accountant_classic=moments_accountant_epsilon(*run, conversion="classic"),
        clt=clt_epsilon(*run),
    )


def _alphas(epsilon: float, delta: float) -> np.ndarray:
    """0, 1, the kinks of f_{epsilon, delta}, and in between evenly spaced quantiles of the normal distribution.

    Gaussian trade-off curves are straight lines in these, so that every part of them is resolved alike.
    """
    lowest = scipy.special.ndtri(min(1e-6, delta / 100))
    spaced = scipy.special.ndtr(np.linspace(lowest, -lowest, 96))
    kink = (1.0 - delta) * np.exp(-np.logaddexp(0.0, epsilon))
    return np.unique([0.0, kink, 1.0 - delta, 1.0, *spaced])
