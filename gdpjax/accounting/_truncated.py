"""Brackets on truncated Poisson sampling, as those of ledgers without it.

Of n <= N examples, N public, each is drawn with probability p; of more than B drawn ones a random B are kept.

* From above, a step in which B or more of the others are drawn costs as much as Poisson's with half the noise: one
  example may take the place of another there. At most m of T steps are of that kind but for a probability that is paid
  for as an overflow; with m = 0 an example has to be drawn in such a step to show at all, which has a probability of
  at most T p q.
* From below every step is Poisson's with the probability that an example is kept.

The proofs are in docs/theory/truncated.md.
"""

from collections.abc import Callable

import numpy as np
import scipy

from gdpjax._core.types import Bounds, Numbers
from gdpjax.accounting._combinators import AccountedCurve, asked_at, between
from gdpjax.accounting._ledgers import events_of
from gdpjax.ledger import AnyEvent, Event, Ledger, TruncatedPoissonEvent
from gdpjax.tradeoff import CertifiedCurve

_SHARE = 1e-3
_LEAST, _MOST = 1e-30, 1e-3
_ROUNDING = 1e-9
"""Binomial tails are good to about 1e-13 relative, and are moved by this much."""


def has_truncated(run: Ledger | AnyEvent) -> bool:
    """Whether there are truncated batches in a run."""
    return any(isinstance(event, TruncatedPoissonEvent) for event in events_of(run))


class TruncatedCurve(AccountedCurve):
    """The certified curve of a run with truncated batches, between those of two runs without.

    The run above depends on the question: what it pays as an overflow is a small part of a probability, ``scale``.

    Args:
        run: the Ledger, or its one event.
        curve_of: returns the curve of a Ledger without truncated batches.
    """

    def __init__(self, run: Ledger | AnyEvent, curve_of: Callable[[Ledger], CertifiedCurve]) -> None:
        self.run = run
        self.curve_of = curve_of
        self.below = curve_of(from_below(run))

    def _ask(self, question: str, at: Numbers) -> Bounds:
        at = asked_at(question, at)
        below = getattr(self.below, question)(at)
        scale = at
        if question == "delta":
            scale = below.lower
        if question == "tradeoff":
            scale = np.minimum(at, below.upper)
        above = self.curve_of(from_above(self.run, float(np.min(scale, initial=1.0))))
        return between(question, getattr(above, question)(at), below)


def from_above(run: Ledger | AnyEvent, scale: float) -> Ledger:
    """A run that reveals at least as much; a small part of ``scale`` goes to the steps that are not counted."""
    events = events_of(run)
    truncated = sum(isinstance(event, TruncatedPoissonEvent) for event in events)
    spare = min(max(_SHARE * scale, _LEAST), _MOST) / max(truncated, 1)
    bounds: list[AnyEvent] = []
    for event in events:
        bounds += _above(event, spare) if isinstance(event, TruncatedPoissonEvent) else [event]
    return Ledger(bounds)


def from_below(run: Ledger | AnyEvent) -> Ledger:
    """A run that reveals at most as much."""
    return Ledger([_below(event) if isinstance(event, TruncatedPoissonEvent) else event for event in events_of(run)])


def overflow_of_a_step(event: TruncatedPoissonEvent) -> float:
    """q = P(Bin(N - 1, p) >= B), rounded up: the probability that an example finds no free place in a batch."""
    return _tail_above(event.max_examples - 1, event.sampling_prob, event.capacity)


def ties(event: TruncatedPoissonEvent) -> float:
    """T N 2^-128, rounded up: the probability of equal random bits; none where every batch fits."""
    if event.capacity >= event.max_examples:
        return 0.0
    probability = float(event.num_steps) * float(event.max_examples) * 2.0**-128
    return min(probability * (1 + 1e-12), 0.5)


def _above(event: TruncatedPoissonEvent, spare: float) -> list[Event]:
    """The steps of both kinds, and the rest of the second kind as overflow of the first event."""
    overflow = overflow_of_a_step(event)
    count = 0
    more = event.num_steps * event.sampling_prob * overflow * (1 + _ROUNDING)
    if more > spare:
        count, more = _most_overflows(event.num_steps, overflow, spare)
    lost = min(more + ties(event), 1.0 - 2.0**-53)
    noise = event.noise_multiplier
    prob = event.sampling_prob
    relation = event.neighboring_relation

    steps: list[Event] = []
    if count < event.num_steps:
        fitting = Event(noise, prob, event.num_steps - count, relation, lost)
        steps, lost = [fitting], 0.0
    if count:
        steps.append(Event(0.5 * noise, prob, count, relation, lost))
    return steps


def _below(event: TruncatedPoissonEvent) -> Event:
    """Poisson steps with the probability that an example is kept, rounded down."""
    n = event.max_examples
    p = event.sampling_prob
    capacity = event.capacity
    fits = 1.0 - _tail(n - 1, p, capacity)
    displaces = capacity / n * _tail(n, p, capacity + 1)
    kept = (p * fits + displaces) * (1 - _ROUNDING)
    kept = min(max(kept - 1e-15 * p, 0.0), p)
    return Event(
        event.noise_multiplier,
        kept,
        event.num_steps,
        neighboring_relation=event.neighboring_relation,
        overflow=ties(event),
        announced=True,
    )


def _most_overflows(num_steps: int, prob: float, spare: float) -> tuple[int, float]:
    """The least m with P(Bin(num_steps, prob) > m) at most ``spare``, and that probability, rounded up."""
    low, high = 0, num_steps
    while low < high:
        middle = (low + high) // 2
        if _tail_above(num_steps, prob, middle + 1) <= spare:
            high = middle
        else:
            low = middle + 1
    return low, _tail_above(num_steps, prob, low + 1)


def _tail_above(num: int, prob: float, least: int) -> float:
    """`_tail`, rounded up; also where it underflows."""
    tail = _tail(num, prob, least)
    return min(tail * (1 + _ROUNDING) + 1e-300, 1.0) if 0 < least <= num else tail


def _tail(num: int, prob: float, least: int) -> float:
    """P(Bin(num, prob) >= least) = I_prob(least, num - least + 1)."""
    if least <= 0:
        return 1.0
    if least > num:
        return 0.0
    return float(scipy.special.betainc(float(least), float(num - least + 1), prob))
