r"""Batched bracketed search for the edge of a monotone condition.

Calibration asks for the smallest noise, the largest number of steps or the largest sampling probability that *meets a
target*. That is not quite a root: the accountant's epsilon can jump, and the answer must lie on the safe side of the
edge, not within a tolerance of it. So both searches here keep one end that holds and one that does not,

    invariant: condition(holds) is true, condition(fails) is false, all elements at once,

and the answer is a point at which the condition was evaluated, not an interpolation.

*Bisection*, `bisect`, for conditions that are cheap: each step halves the bracket (in the scale that ``midpoint``
defines), with a fixed number of steps, so that it jits, vmaps and never fails to converge. Whether the invariant is
true to begin with is reported, not assumed: the first two rounds of the same loop evaluate the ends, so that a costly
condition is compiled once. `bisect_on_host` does the same in NumPy.

*Secant steps*, `begin` and `advance`, for conditions that cost milliseconds to seconds and come with an ``excess``, a
smooth number that vanishes at the edge. From a guess and a guessed slope in r = log(point), signed so that larger is
riskier, each evaluation at r proposes the edge at r - excess / slope, with the slope from the last two evaluations.
Near the edge that is right to a fraction of the tolerance t, so it pays to aim t/4 to the safe side of the proposal and
then to test 0.9 t beyond a point that held (or before one that failed): two evaluations close the bracket. No proposal
is trusted:

* a step is at least 0.9 t, four times longer after each further step in the same direction from the third on, so that
  an edge far away is found; and at most e^2, e^4, e^8, ... in the same way;
* a step stays 0.9 t short of an end that was evaluated, or halves what is left;
* after 12 evaluations every step between two evaluated ends bisects.

On an axis of whole numbers t is at most 1 / point, and the search ends at two neighbours. The ends of the axis are
evaluated only if the search gets there. An ``Axis`` has values that float32 can hold, so that the answer survives a way
into float32 unchanged; whole numbers are float64 and exact. The search is NumPy's and runs on the host: it needs no
compilation, all elements advance independently, and a loop may evaluate the unfinished ones only.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from gdpjax._core.types import Array

TOLERANCE = 2e-6
"""Relative width at which a secant search ends, but for whole numbers."""
_ALMOST = 0.9  # of the tolerance
_PATIENCE = 12
_MOST_EVALUATIONS = 60


class Bracket(NamedTuple):
    """The two ends after the search, and what the condition said at the two ends before it."""

    holds: Array
    fails: Array
    first_held: Array
    last_held: Array


def bisect(
    condition: Callable[[Array], Array],
    holds: Array,
    fails: Array,
    *,
    midpoint: Callable[[Array, Array], Array],
    num_iterations: int,
    check_ends: bool = True,
) -> Bracket:
    """Shrink brackets, one end of which satisfies a condition and the other not, for ``num_iterations`` halvings.

    The ends have the full shape of the condition's answer. Where an end is not as promised, the result means nothing
    and the flags say so: ``first_held`` must be true and ``last_held`` false. Without ``check_ends`` neither end is
    evaluated, and the flags are false.
    """
    holds, fails = jnp.broadcast_arrays(holds, fails)

    num_checks = 2 if check_ends else 0

    def step(i: Array, state: Bracket) -> Bracket:
        point = midpoint(state.holds, state.fails)
        if check_ends:
            point = jnp.where(i == 0, holds, jnp.where(i == 1, fails, point))
        good = condition(point)
        is_halving = i >= num_checks
        return Bracket(
            jnp.where(good & is_halving, point, state.holds),
            jnp.where(good | ~is_halving, state.fails, point),
            jnp.where(~is_halving & (i == 0), good, state.first_held),
            jnp.where(~is_halving & (i == 1), good, state.last_held),
        )

    unknown = jnp.zeros(holds.shape, bool)
    start = Bracket(holds, fails, unknown, unknown)
    return jax.lax.fori_loop(0, num_iterations + num_checks, step, start)


def bisect_on_host(
    condition: Callable[[Any], Any], holds: Any, fails: Any, *, num_iterations: int
) -> tuple[np.ndarray, np.ndarray]:
    """Shrink brackets as `bisect` does, by arithmetic means, in NumPy and without compiling anything.

    Args:
      condition: maps points, of the shape of the ends, to whether it holds at each.
      holds: the ends at which it holds.
      fails: the ends at which it does not.
      num_iterations: how often the brackets are halved.

    Returns:
      (holds, fails), each point evaluated, or the end that was given.
    """
    for _ in range(num_iterations):
        point = middle(holds, fails)
        good = condition(point)
        holds, fails = np.where(good, point, holds), np.where(good, fails, point)
    return holds, fails


def middle(a: Array, b: Array) -> Array:
    """The arithmetic mean."""
    return 0.5 * (a + b)


def geometric_midpoint(a: Array, b: Array) -> Array:
    """sqrt(a b) of positive numbers: halves the bracket in log scale."""
    return jnp.sqrt(a) * jnp.sqrt(b)


def whole_midpoint(a: Array, b: Array) -> Array:
    """The whole number halfway between two whole numbers, rounded towards ``a``, so that a never leaves its side."""
    return a + jnp.trunc((b - a) / 2)


class Axis(NamedTuple):
    """The positive numbers that are searched: the end where the condition is likeliest to hold, the other end, and
    whether only whole numbers between them count."""

    safest: float
    riskiest: float
    whole: bool = False

    @property
    def sign(self) -> float:
        """1 where larger is riskier, otherwise -1."""
        return 1.0 if self.riskiest > self.safest else -1.0


class Search(NamedTuple):
    """The state of a secant search; ``holds`` and ``fails`` are the axis' ends until ``held``, ``failed``."""

    point: np.ndarray  # to be evaluated next; once done, the last one
    holds: np.ndarray
    fails: np.ndarray
    held: np.ndarray
    failed: np.ndarray
    slope: np.ndarray
    last: np.ndarray  # r of the last evaluation, and its excess
    last_excess: np.ndarray
    last_good: np.ndarray
    streak: np.ndarray  # evaluations in a row with that answer
    rounds: np.ndarray
    done: np.ndarray


def begin(axis: Axis, guess: np.ndarray, slope: np.ndarray) -> Search:
    """The search before its first evaluation, at a guess anywhere, with a guess of d excess / d r > 0."""
    guess = np.where(guess > 0, guess, min(axis.safest, axis.riskiest))
    point = _on_axis(axis, np.clip(guess, min(axis[:2]), max(axis[:2])))
    number, no = np.zeros_like(point), np.zeros_like(point, dtype=bool)
    ends = number + axis.safest, number + axis.riskiest
    slope = np.where(np.isfinite(slope) & (slope > 0), slope, 1.0)
    return Search(point, *ends, no, no, slope, number + np.nan, number + np.nan, no, number, number, no)


def advance(axis: Axis, state: Search, excess: np.ndarray, good: np.ndarray) -> Search:
    """The search after the condition at ``state.point`` turned out ``good`` or not; finished elements stay."""
    r, toward = axis.sign * np.log(state.point), np.where(good, 1.0, -1.0)
    holds, fails = np.where(good, state.point, state.holds), np.where(good, state.fails, state.point)
    held, failed = np.logical_or(state.held, good), np.logical_or(state.failed, ~good)
    secant = (excess - state.last_excess) / (r - state.last)
    secant = np.where(np.isfinite(secant) & (secant > 0), secant, state.slope)
    slope = np.clip(secant, state.slope / 8, state.slope * 8)
    streak = np.where(good == state.last_good, state.streak, 0.0) + 1

    gap = axis.sign * np.log(fails / holds)
    evaluated = np.logical_and(held, failed)
    # Whole numbers are told apart, however many they are.
    finest = np.where(evaluated, np.minimum(TOLERANCE, 1 / state.point), TOLERANCE) if axis.whole else TOLERANCE
    step = toward * -excess / slope - toward * finest / 4
    shortest = _ALMOST * finest * 4.0 ** np.maximum(streak - 3, 0.0)
    step = np.clip(np.where(np.isnan(step), np.inf, step), shortest, 2.0**streak)
    room = gap - _ALMOST * finest
    inside = np.where(step <= room, step, np.where(room >= shortest, room, gap / 2))
    inside = np.where(state.rounds >= _PATIENCE, gap / 2, inside)
    step = np.where(evaluated, inside, step)
    point = _on_axis(axis, np.exp(axis.sign * (r + toward * step)))
    point = np.where(~evaluated & (step >= gap), np.where(good, fails, holds), point)
    if axis.whole:
        point = np.clip(point, np.where(held, holds + 1, axis.safest), np.where(failed, fails - 1, axis.riskiest))
        between = _on_axis(axis, 0.5 * (holds + fails))
        narrow = evaluated & ((between <= holds) | (between >= fails))
    else:
        narrow = evaluated & (gap <= TOLERANCE)
    at_an_end = (good & (state.point == axis.riskiest)) | (~good & (state.point == axis.safest))
    done = narrow | at_an_end | (state.rounds + 1 >= _MOST_EVALUATIONS)
    point = np.where(done, state.point, point)
    new = Search(point, holds, fails, held, failed, slope, r, excess, good, streak, state.rounds + 1, done)
    return Search(*(np.where(state.done, old, now) for old, now in zip(state, new, strict=True)))


def _on_axis(axis: Axis, value: np.ndarray) -> np.ndarray:
    if axis.whole:
        return np.floor(value * (1 + 1e-12))
    return value.astype(np.float32).astype(np.float64)
