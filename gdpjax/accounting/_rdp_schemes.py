r"""Renyi differential privacy of the sampling schemes, and of a whole Ledger: upper bounds.

    rdp = rdp_of_ledger(ledger, orders=[2.0, 4.0, 8.0])

Renyi divergences of adaptive compositions add up, so each event of a Ledger gives one term:

| event | divergence of order a of one release |
|---|---|
| `Event` | `rdp_subsampled_gaussian` |
| `TruncatedPoissonEvent` | `gdpjax.accounting._renyi_truncated` |
| `AllocationEvent` | `gdpjax.accounting._renyi_allocation`, one block of steps |
| `GaussianEvent`, `CorrelatedGaussianEvent` | a / (2 s^2) |
| `CyclicPoissonEvent` | `rdp_subsampled_gaussian` of its rounds |
| `LaplaceEvent` | log(a/(2a-1) e^{(a-1) e} + (a-1)/(2a-1) e^{-a e}) / (a - 1) |
| `RandomizedResponseEvent` | log((e^{a e} + e^{(1-a) e} + k - 2) / (e^e + k - 1)) / (a - 1) |
| `ApproximateDPEvent` | that of randomized response with k = 2, the worst mechanism of its epsilon, if delta = 0 |

An epoch of allocation whose last steps were not made counts as a whole one. Of shuffled batches no Renyi divergence is
known but that of no sampling at all.
"""

from collections.abc import Callable, Sequence

import numpy as np

from gdpjax._core.arguments import check_choice
from gdpjax._core.checks import COUNT, POSITIVE, RENYI_ORDER, UNIT, Domain, check, check_broadcast, is_traced
from gdpjax._core.shown import shown
from gdpjax._core.types import Array
from gdpjax.accounting import _correlated
from gdpjax.accounting._allocation import make_scheme
from gdpjax.accounting._ledgers import check_relations, events_of
from gdpjax.accounting._rdp import rdp_subsampled_gaussian
from gdpjax.accounting._renyi import log_moments
from gdpjax.accounting._renyi_allocation import log_moments_allocation
from gdpjax.accounting._renyi_truncated import log_moments_truncated
from gdpjax.ledger import (
    AllocationEvent,
    AnyEvent,
    ApproximateDPEvent,
    LaplaceEvent,
    Ledger,
    RandomizedResponseEvent,
    SampledEvent,
    ShuffledEvent,
    TruncatedPoissonEvent,
    UniformEvent,
)

_ROUNDING = 1.0 + 2.0**-48
_Named = dict[str, tuple[Array, Domain]]


def rdp_allocation(
    noise_multiplier: Array,
    steps_per_epoch: Array,
    num_epochs: Array,
    orders: Array,
    *,
    num_selected: Array = 1,
    bins: str = "fresh",
) -> np.ndarray:
    """Renyi differential privacy of random allocation: an upper bound.

    Each example takes part in one of the t = steps_per_epoch steps of an epoch, chosen uniformly.

    Formula: rdp(a) = num_epochs * log max(E R^a, E R^(1-a)) / (a - 1), where R is the mean of t independent numbers
    exp(g / s - 1 / (2 s^2)), g ~ N(0, 1), s = noise_multiplier. Several examples' steps of an epoch (num_selected = k)
    are k such blocks of t / k steps, rounded down or up. Fixed bins over E epochs are one epoch with s / sqrt(E).

    Args:
        noise_multiplier: stddev of the noise / clip norm, > 0.
        steps_per_epoch: number t of steps in an epoch, a whole number >= 1.
        num_epochs: number of epochs, a whole number >= 1. All three broadcast, to the shape [...].
        orders: Renyi orders > 1, one axis [K] or a single number.
        num_selected: in how many steps of an epoch an example takes part, one of each of that many blocks; a whole
            number from 1 to steps_per_epoch, broadcasting with the others.
        bins: "fresh" if the steps are drawn anew in each epoch, "fixed" if once for all.

    Returns:
        rdp >= 0 in nats of the whole run, a NumPy array of shape [..., K] ([...] for a single order); upper bound for
        add-or-remove-one neighbours, in both directions. At whole orders from 2 to 1024 and, for noise multipliers from
        0.5, at the orders below 8 its log moment (a - 1) rdp is right to about 1e-9 of itself and 1e-12 nats an epoch;
        for less noise orders between whole ones are up to a tenth high. Between whole orders above 8 it is the line
        between their log moments, a percent high where those do not rise steeply. Beyond 1024 it is that of the run in
        which the draw is known.

    Raises:
        ValueError: an argument outside its range or traced, or shapes that do not broadcast.

    Reference: Feldman and Shenfeld, arXiv:2502.08202, Section 6 (the first moment, and a simpler bound on the second);
    both are derived in docs/theory/allocation.md.

    >>> print([f"{value:.6f}" for value in rdp_allocation(1.0, 100, 1, [1.5, 2.0, 8.0])])
    ['0.012723', '0.017037', '0.076510']
    """
    named = {
        "noise_multiplier": (noise_multiplier, POSITIVE),
        "steps_per_epoch": (steps_per_epoch, COUNT),
        "num_epochs": (num_epochs, COUNT),
        "num_selected": (num_selected, COUNT),
    }
    static_orders = _check_concrete(orders, named)
    check_choice("bins", bins, ("fresh", "fixed"))
    if np.any(np.asarray(num_selected) > np.asarray(steps_per_epoch)):
        raise ValueError(f"num_selected must be at most steps_per_epoch={steps_per_epoch}, got {num_selected}")

    def one_run(noise: float, steps: float, epochs: float, selected: float) -> np.ndarray:
        return _of_allocation(noise, steps, epochs, selected, bins == "fixed", static_orders)

    return _one_by_one(one_run, named, orders)


def rdp_truncated_poisson(
    noise_multiplier: Array, sampling_prob: Array, max_examples: Array, capacity: Array, orders: Array
) -> np.ndarray:
    """Renyi differential privacy of one step on a truncated Poisson batch: an upper bound.

    Of more than ``capacity`` drawn examples a random ``capacity`` are kept, as `ledger.TruncatedPoissonEvent` says.

    Formula: rdp(a) = log((1 - q) A_s(a) + q A_{s/2}(a)) / (a - 1), where A_s(a) is the moment of a Poisson step with
    noise multiplier s and probability p (`rdp_subsampled_gaussian`), and q = P(Bin(max_examples - 1, p) >= capacity).

    Args:
        noise_multiplier: stddev of the noise / clip norm, > 0.
        sampling_prob: probability in [0, 1] that an example is drawn.
        max_examples: public maximum of the number of examples, a whole number >= 1.
        capacity: the most examples that a batch keeps, a whole number >= 1. All four broadcast, to the shape [...].
        orders: Renyi orders > 1, one axis [K] or a single number.

    Returns:
        rdp >= 0 in nats per step, a NumPy array of shape [..., K] ([...] for a single order); upper bound for
        add-or-remove-one neighbours, in both directions. Of a batch that is truncated the bound supposes the worst: an
        example pushes out an opposite one. High orders feel that where q is far below delta; what
        `moments_accountant_epsilon` says of a `Ledger` does not. Neighbours keep the order of the other examples;
        equal random bits, of probability max_examples 2^-128, could otherwise tell.

    Raises:
        ValueError: an argument outside its range or traced, or shapes that do not broadcast.

    Reference: derived in `gdpjax.accounting._renyi_truncated`; Mironov, Talwar and Zhang, arXiv:1908.10530, for the
    Poisson steps; arXiv:2508.15089 (the scheme).

    >>> print(f"{rdp_truncated_poisson(1.0, 0.01, 10_000, 200, 4.0):.6f}")
    0.000363
    >>> print(f"{rdp_truncated_poisson(1.0, 0.01, 10_000, 100, 4.0):.6f}")
    1.640632
    """
    named = {
        "noise_multiplier": (noise_multiplier, POSITIVE),
        "sampling_prob": (sampling_prob, UNIT),
        "max_examples": (max_examples, COUNT),
        "capacity": (capacity, COUNT),
    }
    static_orders = _check_concrete(orders, named)

    def one_step(noise: float, prob: float, examples: float, places: float) -> np.ndarray:
        event = TruncatedPoissonEvent(noise, prob, 1, int(examples), int(places))
        return _of_truncated(event, static_orders)

    return _one_by_one(one_step, named, orders)


def rdp_of_ledger(ledger: Ledger | AnyEvent, orders: Array) -> np.ndarray:
    """Renyi differential privacy of everything in a Ledger: an upper bound.

    Formula: the sum over the events of num_steps times the divergence of one release, as the table in
    `gdpjax.accounting._rdp_schemes` says; `rdp_subsampled_gaussian`, `rdp_truncated_poisson` and `rdp_allocation` are
    those of the samplers.

    Args:
        ledger: a `Ledger`, or one of its events.
        orders: Renyi orders > 1, one axis [K] or a single number.

    Returns:
        rdp >= 0 in nats, a NumPy array of shape [K] (a number for a single order); upper bound, in both directions,
        under the relation of the events. inf with an event without noise.

    Raises:
        ValueError: an order outside its range; events under different relations; shuffled batches, whose divergences
            are not known; events with overflow, or with a delta above 0: a divergence allows for no probability of
            failure, and `moments_accountant_epsilon` of the Ledger takes it from delta.

    Reference: Mironov, arXiv:1702.07476, Propositions 1 (composition), 5 (randomized response), 6 (Laplace) and 7
    (Gaussian).

    >>> from gdpjax.ledger import AllocationEvent, GaussianEvent, Ledger
    >>> print(f"{rdp_of_ledger(Ledger([AllocationEvent(1.0, 100, 5), GaussianEvent(10.0)]), 8.0):.4f}")
    0.4226
    """
    if not isinstance(ledger, Ledger | AnyEvent):
        raise ValueError(f"expected a Ledger or one of its events, got {shown(ledger)}")
    static_orders = _check_concrete(orders, {})
    events = events_of(_correlated.from_above(ledger))
    for event in events:
        lost = max(getattr(event, "overflow", 0.0), getattr(event, "delta", 0.0))
        if lost > 0.0:
            raise ValueError(
                f"a Renyi divergence allows for no probability of failure, got {type(event).__name__} with {lost}: "
                "moments_accountant_epsilon(ledger, delta=...) takes it from delta"
            )
    total = rdp_of_events(events, static_orders)
    return total if np.ndim(orders) else total[0]


def rdp_of_events(events: Sequence[AnyEvent], orders: np.ndarray) -> np.ndarray:
    """The Renyi differential privacy of events without what they may lose, at orders of shape [K]."""
    check_relations(events)
    total = np.zeros(orders.shape)
    for event in events:
        total = total + _of_event(event, orders)
    return total * (_ROUNDING + len(events) * 2.0**-53)


def _of_event(event: AnyEvent, orders: np.ndarray) -> np.ndarray:
    if isinstance(event, ShuffledEvent):
        raise ValueError(
            "the Renyi divergences of shuffled batches are not known: use epsilon_bounds, or GaussianEvent with the "
            "epochs as num_steps, which reveals at least as much"
        )
    if isinstance(event, LaplaceEvent | RandomizedResponseEvent | ApproximateDPEvent):
        return event.num_steps * (_bounded(event, orders) / (orders - 1.0))
    if event.noise_multiplier == 0:
        nothing = isinstance(event, SampledEvent | TruncatedPoissonEvent) and event.sampling_prob == 0
        return np.full(orders.shape, 0.0 if nothing else np.inf)
    if isinstance(event, AllocationEvent):
        numbers = event.noise_multiplier, event.steps_per_epoch, event.num_epochs, event.num_selected
        return _of_allocation(*numbers, event.bins == "fixed", orders)
    if isinstance(event, TruncatedPoissonEvent):
        return event.num_steps * _of_truncated(event, orders)
    if isinstance(event, UniformEvent):
        step = rdp_subsampled_gaussian(event.noise_multiplier, event.sampling_prob, orders, sampling="uniform")
        return event.num_steps * np.asarray(step)

    prob = event.sampling_prob if isinstance(event, SampledEvent) else 1.0
    with np.errstate(all="ignore"):
        moments = log_moments(np.float64(event.noise_multiplier), np.float64(prob), orders, np)
    return event.num_steps * (moments / (orders - 1.0))


def _of_allocation(
    noise_multiplier: float, steps: float, epochs: float, selected: float, fixed: bool, orders: np.ndarray
) -> np.ndarray:
    """The Renyi differential privacy of epochs of allocation: the sum over their blocks."""
    scheme = make_scheme(noise_multiplier, steps, epochs, selected, fixed)
    # With fixed bins the noise multiplier was divided: less noise than it came out as is on the safe side.
    noise = scheme.noise_multiplier * (1.0 - 2.0**-51) if fixed else scheme.noise_multiplier
    total = np.zeros(orders.shape)
    for count, block in zip(scheme.counts, (scheme.block, scheme.block + 1), strict=True):
        if count:
            total = total + count * log_moments_allocation(noise, block, orders)
    return total / (orders - 1.0) * _ROUNDING


def _of_truncated(event: TruncatedPoissonEvent, orders: np.ndarray) -> np.ndarray:
    """The Renyi differential privacy of one truncated step."""
    with np.errstate(all="ignore"):
        return log_moments_truncated(event, orders) / (orders - 1.0) * _ROUNDING


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


def _check_concrete(orders: Array, named: _Named) -> np.ndarray:
    """The orders as an array [K], after the checks of all arguments."""
    if is_traced((orders, [value for value, _ in named.values()])):
        raise ValueError("these divergences are computed outside compiled code: give numbers")
    check("orders", orders, RENYI_ORDER)
    if np.ndim(orders) > 1 or not np.size(orders):
        raise ValueError(f"orders must be a number or have one axis, not empty, got shape {np.shape(orders)}")
    for name, (value, domain) in named.items():
        check(name, value, domain)
    check_broadcast(**{name: value for name, (value, _) in named.items()})
    return np.atleast_1d(np.asarray(orders, np.float64))


def _one_by_one(one_run: Callable[..., np.ndarray], named: _Named, orders: Array) -> np.ndarray:
    """The answers of ``one_run`` at each element of the broadcast arguments, [..., K] or [...]."""
    columns = np.broadcast_arrays(*(np.asarray(value, np.float64) for value, _ in named.values()))
    shape = columns[0].shape
    result = np.zeros((*shape, np.size(orders)))
    for place in np.ndindex(*shape):
        result[place] = one_run(*(float(column[place]) for column in columns))
    return result if np.ndim(orders) else result[..., 0]
