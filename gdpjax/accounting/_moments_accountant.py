"""The moments accountant's epsilon, of runs that are arrays of numbers and of a Ledger.

The Renyi divergences are those of `gdpjax.accounting._rdp` and `gdpjax.accounting._rdp_schemes`. A small probability of
overflow or failure is taken from delta first (`gdpjax.accounting._overflow`).

Truncated Poisson batches have several bounds, of which the smallest is taken. Either every step may displace an
example, with its probability, which the high moments feel even where it is tiny. Or at most m steps do, except with a
probability that is taken from delta: a thousandth of it, or a tenth (`gdpjax.accounting._truncated.from_above`).
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from gdpjax._core import xla
from gdpjax._core.arguments import check_choice
from gdpjax._core.checks import COUNT, POSITIVE, UNIT, check, is_traced, known
from gdpjax._core.precision import float64_function
from gdpjax._core.types import Array, Floats, Numbers
from gdpjax.accounting import _correlated, _truncated
from gdpjax.accounting._gdp import DELTA
from gdpjax.accounting._ledgers import check_form, check_relations, describe, events_of
from gdpjax.accounting._overflow import Lost, upper_end
from gdpjax.accounting._rdp import (
    CONVERSIONS,
    DEFAULT_ORDERS,
    SAMPLINGS,
    convert,
    moments_epsilon_kernel,
    rdp_subsampled_gaussian,
)
from gdpjax.accounting._rdp_schemes import rdp_of_events
from gdpjax.accounting._renyi import log_moments
from gdpjax.accounting._run_curve import check_options
from gdpjax.ledger import (
    AllocationEvent,
    AnyEvent,
    Event,
    GaussianEvent,
    Ledger,
    SampledEvent,
    ShuffledEvent,
    TruncatedPoissonEvent,
    event_type_of,
)

_RUNS_AT_ONCE = 4096
_STEPS_AT_ONCE = 64


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


@float64_function(rounding="up", noise_multiplier=POSITIVE, sampling_prob=UNIT, num_steps=COUNT, delta=DELTA)
def _moments_accountant(
    noise_multiplier: Array, sampling_prob: Array, num_steps: Array, delta: Array, conversion: str, sampling: str
) -> Array:
    return moments_epsilon_kernel(noise_multiplier, sampling_prob, num_steps, delta, conversion, sampling)


def _epsilon_of_known_runs(
    noise_multiplier: Array, sampling_prob: Array, num_steps: Array, delta: Array, conversion: str
) -> np.ndarray:
    """The epsilon of runs that are numbers: the runs of a grid share few steps, whose divergences are computed once."""
    names = ("noise_multiplier", "sampling_prob", "num_steps", "delta")
    run = dict(zip(names, (noise_multiplier, sampling_prob, num_steps, delta), strict=True))
    for (name, value), domain in zip(run.items(), (POSITIVE, UNIT, COUNT, DELTA), strict=True):
        check(name, value, domain)
    runs = np.stack(np.broadcast_arrays(*(np.asarray(value, np.float64) for value in run.values())))
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
    run = _correlated.from_above(run)
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
    schemes = AllocationEvent | TruncatedPoissonEvent | ShuffledEvent
    rest = describe(Ledger([event for event in events if not isinstance(event, schemes)]), 1)
    ties = sum(_truncated.ties(event) for event in events if isinstance(event, TruncatedPoissonEvent))
    return rest.lost._replace(silent=min(rest.lost.silent + ties, 1.0), largest_loss=math.inf)
