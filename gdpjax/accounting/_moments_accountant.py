r"""The moments accountant's epsilon, of runs that are arrays of numbers and of a Ledger.

A small probability of overflow or failure is taken from delta first (`gdpjax.accounting._overflow`). Renyi divergences
of adaptive compositions add up, so each event gives one term:

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

They have several bounds, of which the smallest is taken. Either every step may displace an example, with its
probability, which the high moments feel even where it is tiny. Or at most m steps do, except with a probability that is
taken from delta: a thousandth of it, or a tenth (`gdpjax.accounting._truncated.from_above`).
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from gdpjax._core import xla
from gdpjax._core.arguments import check_choice
from gdpjax._core.checks import RUN, is_traced, known
from gdpjax._core.precision import float64_function
from gdpjax._core.types import Array, Floats, Numbers
from gdpjax.accounting import _truncated
from gdpjax.accounting._gdp import DELTA
from gdpjax.accounting._ledgers import (
    check_form,
    check_relations,
    events_of,
    exact_from_above,
    lost_of,
    replaces_in_poisson,
)
from gdpjax.accounting._overflow import Lost, upper_end
from gdpjax.accounting._rdp import (
    CONVERSIONS,
    DEFAULT_ORDERS,
    SAMPLINGS,
    convert,
    moments_epsilon_kernel,
    rdp_subsampled_gaussian,
)
from gdpjax.accounting._renyi import log_expm1, log_moments
from gdpjax.accounting._run_curve import check_options
from gdpjax.ledger import (
    AllocationEvent,
    AnyEvent,
    ApproximateDPEvent,
    Event,
    GaussianEvent,
    LaplaceEvent,
    Ledger,
    OutcomesEvent,
    RandomizedResponseEvent,
    SampledEvent,
    ShuffledEvent,
    TruncatedPoissonEvent,
    UniformEvent,
    event_type_of,
)

_RUNS_AT_ONCE = 4096
_STEPS_AT_ONCE = 64
_ROUNDING = 1.0 + 2.0**-48
_MEAN_ROUNDING = 1.0 + 2.0**-36


def moments_accountant_epsilon(
    noise_multiplier: Numbers | Ledger | AnyEvent,
    sampling_prob: Numbers | None = None,
    num_steps: Numbers | None = None,
    delta: Numbers | None = None,
    conversion: str = "tight",
    *,
    sampling: str = "poisson",
) -> Floats:
    """The epsilon of DP-SGD, or of a whole Ledger, by the moments accountant: an upper bound.

    The smallest over 182 orders from 1.1 to 512. Neighbours are add-or-remove-one for Poisson sampling, replace-one for
    uniform sampling, and what the events of a Ledger say.

    Formula: `rdp_epsilon` of num_steps * `rdp_subsampled_gaussian`; of a Ledger that of the sum of its events' Renyi
    divergences, at the delta that is left after overflow and failures: (delta - tau) / (1 - tau).

    Args:
        noise_multiplier: stddev of the noise / sensitivity, > 0; or a `Ledger` or one of its events, then only
            ``delta=`` and ``conversion=`` follow.
        sampling_prob: probability in [0, 1] that an example joins a batch.
        num_steps: whole number >= 1 of steps.
        delta: probability strictly between 0 and 1.
        conversion: "tight", or "classic" as in the papers that introduced it.
        sampling: "poisson" (each example independently) or "uniform" (a fixed number without replacement; the noise
            multiplier is then relative to the replace-one sensitivity). The events of a Ledger say it themselves.

    Returns:
        epsilon >= 0 in nats, of the broadcast shape; upper bound. Of a Ledger it is inf where delta does not exceed
        what may be lost, or where an event has no noise.

    Raises:
        ValueError: an argument outside its range, an unknown conversion or sampling, shapes that do not broadcast; an
            incomplete or mixed call; a Ledger under several relations, or with random allocation or shuffled batches.

    Reference: Abadi et al., arXiv:1607.00133, Section 3.2; Mironov, Talwar and Zhang, arXiv:1908.10530; Balle, Barthe
    and Gaboardi, arXiv:1807.01647, Theorem 9 (uniform).

    >>> print(f"{moments_accountant_epsilon(1.3, 256 / 60000, 3516, 1e-5, conversion='classic'):.3f}")
    1.191
    >>> from gdpjax.ledger import LaplaceEvent
    >>> print(f"{moments_accountant_epsilon(LaplaceEvent(0.1, num_steps=30), delta=1e-5):.3f}")
    2.193
    """
    check_choice("conversion", conversion, CONVERSIONS)
    check_choice("sampling", sampling, SAMPLINGS)
    if check_form(noise_multiplier, sampling_prob, num_steps, delta=delta):
        check_options(noise_multiplier, sampling, None)  # pyright: ignore[reportArgumentType]
        return _epsilon_of_ledger(noise_multiplier, delta, conversion)  # pyright: ignore[reportArgumentType]
    run: tuple[Any, Any, Any, Any] = (noise_multiplier, sampling_prob, num_steps, delta)
    if event_type_of(sampling) is Event and not is_traced(run) and not xla.in_program():
        return _epsilon_of_known_runs(*run, conversion)
    return _moments_accountant(*run, conversion, sampling)


@float64_function(rounding="up", **RUN, delta=DELTA)
def _moments_accountant(
    noise_multiplier: Array, sampling_prob: Array, num_steps: Array, delta: Array, conversion: str, sampling: str
) -> Array:
    return moments_epsilon_kernel(noise_multiplier, sampling_prob, num_steps, delta, conversion, sampling)


def _epsilon_of_known_runs(
    noise_multiplier: Array, sampling_prob: Array, num_steps: Array, delta: Array, conversion: str
) -> np.ndarray:
    """The epsilon of runs that are numbers: the runs of a grid share few steps, whose divergences are computed once."""
    domains = {**RUN, "delta": DELTA}.items()
    values = (noise_multiplier, sampling_prob, num_steps, delta)
    numbers = [known(name, value, domain) for (name, domain), value in zip(domains, values, strict=True)]
    runs = np.stack(np.broadcast_arrays(*numbers))
    epsilon = np.empty(runs.shape[1:])
    columns, flat = runs.reshape(4, -1), epsilon.reshape(-1)
    orders = np.asarray(DEFAULT_ORDERS)
    for start in range(0, flat.size, _RUNS_AT_ONCE):
        some = columns[:, start : start + _RUNS_AT_ONCE]
        steps, place = np.unique(some[:2], axis=1, return_inverse=True)
        with np.errstate(all="ignore"):
            total = some[2][:, None] * _rdp_of_steps(steps, orders)[place.reshape(-1)]
            flat[start : start + _RUNS_AT_ONCE] = convert(total, orders, some[3][:, None], conversion, np).min(axis=-1)
    return epsilon[()]


def _rdp_of_steps(steps: np.ndarray, orders: np.ndarray) -> np.ndarray:
    """The divergences of steps, [2, n] to [n, K]: of one by NumPy, since to compile takes a second and more."""
    num_steps = steps.shape[1]
    if num_steps == 1:
        return log_moments(steps[0], steps[1], orders, np) / (orders - 1)

    # A number of steps at a time for which the program is compiled already.
    filled = np.pad(steps, [(0, 0), (0, -num_steps % _STEPS_AT_ONCE)], mode="edge")
    parts = np.split(filled, filled.shape[1] // _STEPS_AT_ONCE, axis=1)
    return np.concatenate([rdp_subsampled_gaussian(part[0], part[1], orders) for part in parts])[:num_steps]


def _epsilon_of_ledger(run: Ledger | AnyEvent, delta: Array, conversion: str) -> np.ndarray:
    """The epsilon of a Ledger, at deltas of any shape."""
    delta = known("delta", delta, DELTA)
    run = exact_from_above(run)
    bound = _epsilon_of_events(events_of(run), delta, conversion)
    if _truncated.has_truncated(run) and delta.size:
        for scale in (np.min(delta), 100.0 * np.min(delta)):
            above = _truncated.from_above(run, float(scale))
            bound = np.minimum(bound, _epsilon_of_events(above.events, delta, conversion))
    return bound


def _epsilon_of_events(events: Sequence[AnyEvent], delta: np.ndarray, conversion: str) -> np.ndarray:
    """The epsilon of events by their divergences, after what they may lose is taken from delta."""
    orders = np.asarray(DEFAULT_ORDERS)
    # Steps without noise are failures, with the probability that an example is in them.
    noisy = [
        event for event in events if not isinstance(event, SampledEvent | GaussianEvent) or event.noise_multiplier > 0
    ]
    rdp = rdp_of_events(noisy, orders)

    def ideal(left: np.ndarray) -> np.ndarray:
        with np.errstate(all="ignore"):
            return convert(rdp, orders, left[..., None], conversion, np).min(axis=-1)

    # That function asks only at what is left of delta, rounded down: an upper bound comes out of an upper bound.
    return upper_end(ideal, delta, _lost(events))[()]


def _lost(events: Sequence[AnyEvent]) -> Lost:
    """Return the probabilities of failure and overflow of all the events."""
    check_relations(events)
    lost = lost_of(events)
    ties = sum(_truncated.ties(event) for event in events if isinstance(event, TruncatedPoissonEvent))
    return lost._replace(silent=min(lost.silent + ties, 1.0))


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
    overflow = _truncated.overflow_of_a_step(event)
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
