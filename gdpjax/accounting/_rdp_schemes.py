r"""Renyi differential privacy of the events of a Ledger: upper bounds, for the moments accountant.

Renyi divergences of adaptive compositions add up, so each event gives one term:

| event | divergence of order a of one release |
|---|---|
| `Event` | `rdp_subsampled_gaussian` |
| `TruncatedPoissonEvent` | below |
| `GaussianEvent`, `CorrelatedGaussianEvent` | a / (2 s^2) |
| `CyclicPoissonEvent` | `rdp_subsampled_gaussian` of its rounds |
| `LaplaceEvent` | log(a/(2a-1) e^{(a-1) e} + (a-1)/(2a-1) e^{-a e}) / (a - 1) |
| `RandomizedResponseEvent` | log((e^{a e} + e^{(1-a) e} + k - 2) / (e^e + k - 1)) / (a - 1) |
| `ApproximateDPEvent` | that of randomized response with k = 2, the worst mechanism of its epsilon, if delta = 0 |

Of random allocation and shuffled batches only the certified bracket is offered. Sums, and the rows from `GaussianEvent`
on, are Propositions 1, 5, 6 and 7 of Mironov, arXiv:1702.07476.

*Truncated Poisson batches.* Show the number K of other drawn examples (`gdpjax.accounting._truncated`). Where all of
them fit, the step is Poisson's with noise multiplier s and probability p. Otherwise the example, if it is kept, takes
another's place: at worst the step is Poisson's with s / 2 and p. K has one law under both data sets, so the moment of
the step together with K is the mean of the moments given K, and

    A(a) <= (1 - q) A_{s, p}(a) + q A_{s/2, p}(a),      q = P(Bin(N - 1, p) >= B),

where A is the larger moment of the two directions. In either term it is the one of Poisson sampling, so this holds for
both directions. A_{s/2, p} >= A_{s, p}, since halving an output and adding noise loses information, so the bound grows
with q: it holds for every number n <= N of examples. That the example is kept with a probability of at most p is all
that is used of the random order: equal random bits do no harm.
"""

from collections.abc import Sequence

import numpy as np

from gdpjax.accounting._ledgers import check_relations, replaces_in_poisson
from gdpjax.accounting._rdp import rdp_subsampled_gaussian
from gdpjax.accounting._renyi import log_expm1, log_moments
from gdpjax.accounting._truncated import overflow_of_a_step
from gdpjax.ledger import (
    AllocationEvent,
    AnyEvent,
    ApproximateDPEvent,
    LaplaceEvent,
    OutcomesEvent,
    RandomizedResponseEvent,
    SampledEvent,
    ShuffledEvent,
    TruncatedPoissonEvent,
    UniformEvent,
)

_ROUNDING = 1.0 + 2.0**-48
_MEAN_ROUNDING = 1.0 + 2.0**-36


def rdp_of_events(events: Sequence[AnyEvent], orders: np.ndarray) -> np.ndarray:
    """The Renyi differential privacy of events without what they may lose, at orders of shape [K]."""
    check_relations(events)
    total = np.zeros(orders.shape)
    for event in events:
        total = total + _of_event(event, orders)
    return total * (_ROUNDING + len(events) * 2.0**-53)


def _of_event(event: AnyEvent, orders: np.ndarray) -> np.ndarray:
    is_sampled_laplace = isinstance(event, LaplaceEvent) and 0 < event.sampling_prob < 1
    is_other = isinstance(event, OutcomesEvent | AllocationEvent | ShuffledEvent)
    if is_sampled_laplace or is_other or replaces_in_poisson(event):
        raise ValueError(f"the moments accountant does not know {event}: use epsilon_bounds")
    if isinstance(event, LaplaceEvent | RandomizedResponseEvent | ApproximateDPEvent):
        if isinstance(event, LaplaceEvent) and event.sampling_prob == 0:
            return np.zeros(orders.shape)
        return event.num_steps * (_bounded(event, orders) / (orders - 1.0))
    if event.noise_multiplier == 0:
        nothing = isinstance(event, SampledEvent | TruncatedPoissonEvent) and event.sampling_prob == 0
        return np.full(orders.shape, 0.0 if nothing else np.inf)
    if isinstance(event, TruncatedPoissonEvent):
        return event.num_steps * _of_truncated(event, orders)
    if isinstance(event, UniformEvent):
        step = rdp_subsampled_gaussian(event.noise_multiplier, event.sampling_prob, orders, sampling="uniform")
        return event.num_steps * np.asarray(step)

    prob = event.sampling_prob if isinstance(event, SampledEvent) else 1.0
    with np.errstate(all="ignore"):
        moments = log_moments(np.float64(event.noise_multiplier), np.float64(prob), orders, np)
    return event.num_steps * (moments / (orders - 1.0))


def _of_truncated(event: TruncatedPoissonEvent, orders: np.ndarray) -> np.ndarray:
    """The Renyi differential privacy of one truncated step."""
    with np.errstate(all="ignore"):
        return _log_moments_truncated(event, orders) / (orders - 1.0) * _ROUNDING


def _log_moments_truncated(event: TruncatedPoissonEvent, orders: np.ndarray) -> np.ndarray:
    """Upper bounds on log A of one truncated step, for orders > 1 of shape [K]."""
    noise = np.float64(event.noise_multiplier)
    prob = np.float64(event.sampling_prob)
    overflow = overflow_of_a_step(event)
    fitting = log_moments(noise, prob, orders, np)
    if overflow == 0.0:
        return fitting
    displacing = log_moments(0.5 * noise, prob, orders, np)

    # A - 1 is a mean of the two A - 1: in logarithms, nothing overflows and small moments keep their digits.
    with np.errstate(divide="ignore"):
        excess = np.log1p(-overflow) + log_expm1(np, fitting)
        excess_displacing = np.log(overflow) + log_expm1(np, displacing)
        mean = np.logaddexp(0.0, np.logaddexp(excess, excess_displacing))
    # The largest moments have no excess that is a number: fmin leaves it out.
    return np.fmin(mean * _MEAN_ROUNDING, displacing)


def _bounded(event: LaplaceEvent | RandomizedResponseEvent | ApproximateDPEvent, orders: np.ndarray) -> np.ndarray:
    """The log moments of one release whose loss is at most epsilon."""
    epsilon = event.epsilon
    if isinstance(event, LaplaceEvent):
        share = orders / (2.0 * orders - 1.0)
        moments = np.logaddexp(np.log(share) + (orders - 1.0) * epsilon, np.log1p(-share) - orders * epsilon)
    else:
        categories = event.num_categories if isinstance(event, RandomizedResponseEvent) else 2
        answers = np.logaddexp(orders * epsilon, (1.0 - orders) * epsilon)
        if categories > 2:
            answers = np.logaddexp(answers, np.log(categories - 2.0))
        moments = answers - np.logaddexp(epsilon, np.log(categories - 1.0))

    # The terms are right to a few ulp of their size; a loss of at most epsilon bounds the moment, too.
    rounding = 2.0**-48 * (1.0 + orders * epsilon)
    return np.minimum(np.maximum(moments, 0.0) + rounding, (orders - 1.0) * epsilon * _ROUNDING)
