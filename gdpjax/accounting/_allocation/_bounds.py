"""Random allocation as events of the contour, from both sides.

    events_of_scheme(make_scheme(noise_multiplier, steps_per_epoch, num_epochs, num_selected, fixed), log_tail)

In each epoch of t steps an example takes part in exactly one, chosen uniformly. With noise multiplier s, the outputs of
an epoch have under P the mixture (1/t) sum_i N(e_i, s^2 I), and under Q the law N(0, s^2 I), so

    R = dP/dQ = (Y_1 + ... + Y_t) / t,      Y_i = e^{g_i / s - 1 / (2 s^2)},  g_i independent standard normal under Q.

`_law` brackets the law of Y, `_average` that of R, once by a pair that understates and once by one that overstates. The
derivation is docs/theory/allocation.md.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np

from gdpjax._composition import _contour_choice
from gdpjax._composition._atoms import OutcomeEvents
from gdpjax._composition._run_description import RunDescription
from gdpjax._core.types import Bounds
from gdpjax.accounting._allocation import _average
from gdpjax.accounting._allocation._law import SMALLEST_NOISE, UNIT_ROUNDOFF, Pair, lower_pair, one_step, upper_pair

Side = TypeVar("Side")
FEWEST_CELLS = 512
_MOST_CELLS = 2560
_LOST_SHARE = 1e-5
_LOWEST_LOG_TAIL = -330.0
_KEPT_EVENTS = 128
"""How many pairs of sides are kept, of at most some 300 kB each: neighbouring questions need the same ones."""
_LARGEST_ROUNDING = 0.01
_FIRST_LOG_DELTA = -25.0
_GUESSES = 2
EXP_ROUNDING = 1e-12


class Scheme(NamedTuple):
    """A run in blocks of steps, in each of which an example takes part once.

    There are ``counts[0]`` blocks of ``block`` steps and ``counts[1]`` blocks of one step more.
    """

    noise_multiplier: float
    block: int
    counts: tuple[float, float]

    @property
    def num_blocks(self) -> float:
        """Return the number of all blocks."""
        return sum(self.counts)

    @property
    def squared_mu(self) -> float:
        """Return mu^2 of the run if it were known in which steps an example takes part."""
        mu = 1.0 / self.noise_multiplier
        return self.num_blocks * mu * mu

    @property
    def is_gaussian(self) -> bool:
        """Return whether an example takes part in every step, so that the run has just that mu."""
        return self.block == 1 and self.counts[1] == 0

    @property
    def has_small_noise(self) -> bool:
        """Return whether the noise is too small for the grid, so that nothing is known from above."""
        return self.noise_multiplier < SMALLEST_NOISE

    @property
    def num_cells(self) -> int:
        """Return the number of grid values: the longer the blocks, the more."""
        num_cells = math.ceil(420.0 * self.block**0.35)
        return min(max(num_cells, FEWEST_CELLS), _MOST_CELLS)


def make_scheme(
    noise_multiplier: float,
    steps: float,
    epochs: float,
    selected: float,
    fixed: float,
) -> Scheme:
    """Return the blocks of ``epochs`` epochs in which ``selected`` of ``steps`` steps are drawn, one from each block.

    With ``fixed`` bins all epochs use the same draw. An example's E steps in a bin are then together one step with the
    noise multiplier s / sqrt(E).
    """
    if fixed > 0:
        noise_multiplier = noise_multiplier / math.sqrt(epochs)
        epochs = 1.0
    block, num_longer = divmod(int(steps), int(selected))
    counts = (epochs * (selected - num_longer), epochs * num_longer)
    return Scheme(noise_multiplier, block, counts)


class Sides(NamedTuple, Generic[Side]):
    """Events or runs that understate and that overstate; None stands for a side of which nothing is known."""

    below: Side | None
    above: Side | None


def within(widest: Bounds, sides: Sides[Side], ask: Callable[[Side], Any]) -> Bounds:
    """Return the bracket from both sides, where they narrow the ``widest``.

    Args:
        widest: what is known without them.
        sides: what gives the lower and the upper end.
        ask: the question to both of them, which brackets the answer.
    """
    lower, upper = widest
    if sides.below is not None:
        lower = float(np.fmax(ask(sides.below).lower, lower))
    if sides.above is not None:
        upper = float(np.fmin(ask(sides.above).upper, upper))
    return Bounds(lower, upper)


@functools.lru_cache(maxsize=_KEPT_EVENTS)
def events_of_scheme(
    scheme: Scheme,
    log_tail: float,
    num_cells: int | None = None,
) -> Sides[tuple[OutcomeEvents, ...]]:
    """Return both sides of the blocks as events of the contour, one a kind of block.

    Tails of e^log_tail are left out at each end and in each round.
    Noise multipliers below the smallest that the grid is made for count as that one, which understates.
    """
    # The relative error of a mass doubles with the number of steps.
    if scheme.block * 100.0 * UNIT_ROUNDOFF >= _LARGEST_ROUNDING:
        return Sides(None, None)
    noise_multiplier = max(scheme.noise_multiplier, SMALLEST_NOISE)
    step, grid = one_step(noise_multiplier, num_cells or scheme.num_cells, log_tail)
    also_next = scheme.counts[1] > 0
    laws, grid = _average.average_of_steps(step, grid, scheme.block, also_next, log_tail)

    below = _as_events(scheme, noise_multiplier, [lower_pair(law, grid) for law in laws])
    if scheme.has_small_noise:
        return Sides(below, None)
    above = _as_events(scheme, noise_multiplier, [upper_pair(law, grid) for law in laws])
    return Sides(below, above)


def _as_events(
    scheme: Scheme,
    noise_multiplier: float,
    pairs: list[Pair],
) -> tuple[OutcomeEvents, ...] | None:
    """Return the pairs of the kinds of block as events of the contour; None where their rounding is large."""
    events = []
    for count, pair in zip(scheme.counts, pairs, strict=False):
        if count == 0:
            continue
        if pair.rounding >= _LARGEST_ROUNDING:
            return None
        events.append(OutcomeEvents(num_steps=count, mu=1.0 / noise_multiplier, **pair._asdict()))
    return tuple(events)


def log_tail_of(schemes: Sequence[Scheme], log_delta: float) -> float:
    """Return the log of the mass to leave out at each end and in each round, so that a small share of delta is lost.

    It is a whole number, so that questions with about the same delta share their events.
    """
    largest_block = max(scheme.block for scheme in schemes)
    num_blocks = sum(scheme.num_blocks for scheme in schemes)
    num_rounds = 2.0 + math.log2(largest_block)
    log_tail = log_delta + math.log(_LOST_SHARE) - math.log(num_rounds * num_blocks)
    return max(float(math.floor(log_tail)), _LOWEST_LOG_TAIL)


def guess_log_delta(epsilon: float, events: Callable[[float], RunDescription | None]) -> float:
    """Return a rough log delta, on which depends how far a grid must reach; two coarse grids give it.

    ``events`` makes the run for a guess of log delta. The larger of the two directions counts.
    """
    guess = _FIRST_LOG_DELTA
    for _ in range(_GUESSES):
        run = events(guess)
        if run is None:
            return _FIRST_LOG_DELTA
        guesses = [
            _contour_choice.guess_log_delta(
                run.towards(sign),
                epsilon,
            )
            for sign in run.signs
        ]
        guess = _FIRST_LOG_DELTA
        if np.all(np.isfinite(guesses)):
            guess = min(max(*guesses, _LOWEST_LOG_TAIL), 0.0)
    return guess


def only_pair(events: tuple[OutcomeEvents, ...]) -> Pair:
    """Return the pair of the only event."""
    fields = [getattr(events[0], name) for name in Pair._fields]
    return Pair(*fields)
