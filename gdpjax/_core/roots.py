r"""Batched bracketed search for the edge of a monotone condition.

Calibration asks for the smallest noise or the largest number of steps that *meets a target*. That is not quite a root:
the accountant's epsilon can jump, and the answer must lie on the safe side of the edge, not within a tolerance of it.
So both searches here keep one end that holds and one that does not,

    invariant: condition(holds) is true, condition(fails) is false, all elements at once,

and the answer is a point at which the condition was evaluated, not an interpolation.

*Bisection*, `bisect`, for conditions that are cheap: each step halves the bracket (in the scale that ``midpoint``
defines), with a fixed number of steps, so that it jits, vmaps and never fails to converge. An end that comes back as it
was given was not evaluated. `bisect_on_host` does the same in NumPy.

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
_ALMOST = 0.9
"""The part of the tolerance by which a step goes beyond a point, or stays short of one."""
_PATIENCE = 12
"""The number of evaluations after which every step between two evaluated ends bisects."""
_MOST_EVALUATIONS = 60


def bisect(
    condition: Callable[[Array], Array],
    holds: Array,
    fails: Array,
    *,
    midpoint: Callable[[Array, Array], Array],
    num_iterations: int,
) -> tuple[Array, Array]:
    """Shrink brackets, one end of which satisfies a condition and the other not, for ``num_iterations`` halvings.

    The ends have the full shape of the condition's answer, and are not evaluated: what comes back is a point at which
    the condition was evaluated, or the end that was given.
    """
    holds, fails = jnp.broadcast_arrays(holds, fails)

    def step(_: Array, ends: tuple[Array, Array]) -> tuple[Array, Array]:
        point = midpoint(*ends)
        is_good = condition(point)
        return jnp.where(is_good, point, ends[0]), jnp.where(is_good, ends[1], point)

    return jax.lax.fori_loop(0, num_iterations, step, (holds, fails))


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
        is_good = condition(point)
        holds = np.where(is_good, point, holds)
        fails = np.where(is_good, fails, point)
    return holds, fails


def middle(a: Array, b: Array) -> Array:
    """Return the arithmetic mean."""
    return 0.5 * (a + b)


def geometric_midpoint(a: Array, b: Array) -> Array:
    """Return sqrt(a b) of positive numbers, which halves the bracket in log scale."""
    return jnp.sqrt(a) * jnp.sqrt(b)


def whole_midpoint(a: Array, b: Array) -> Array:
    """Return the whole number halfway between two, rounded towards ``a``, so that a never leaves its side."""
    half_way = (b - a) / 2
    return a + jnp.trunc(half_way)


class Axis(NamedTuple):
    """The positive numbers that are searched.

    Attributes:
      safest: the end where the condition is likeliest to hold.
      riskiest: the other end.
      whole: whether only whole numbers between them count.
    """

    safest: float
    riskiest: float
    whole: bool = False

    @property
    def sign(self) -> float:
        """1 where larger is riskier, otherwise -1."""
        return 1.0 if self.riskiest > self.safest else -1.0


class Search(NamedTuple):
    """The state of a secant search; every field has an element for each configuration.

    Attributes:
      point: to be evaluated next; once done, the last one.
      holds: the riskiest point that held, or the axis' safest end.
      fails: the safest point that failed, or the axis' riskiest end.
      held: bool, whether any point held.
      failed: bool, whether any point failed.
      slope: of the excess in r, by the last two evaluations.
      last: r of the last evaluation.
      last_excess: the excess there.
      last_good: bool, whether the condition held there.
      streak: the number of evaluations in a row with that answer.
      rounds: the number of evaluations.
      done: bool.
    """

    point: np.ndarray
    holds: np.ndarray
    fails: np.ndarray
    held: np.ndarray
    failed: np.ndarray
    slope: np.ndarray
    last: np.ndarray
    last_excess: np.ndarray
    last_good: np.ndarray
    streak: np.ndarray
    rounds: np.ndarray
    done: np.ndarray


def begin(axis: Axis, guess: np.ndarray, slope: np.ndarray) -> Search:
    """Return the search before its first evaluation, at a guess anywhere, with a guess of d excess / d r > 0."""
    smallest = min(axis.safest, axis.riskiest)
    largest = max(axis.safest, axis.riskiest)
    guess = np.where(guess > 0, guess, smallest)
    point = _on_axis(axis, np.clip(guess, smallest, largest))
    zeros = np.zeros_like(point)
    nothing = np.zeros_like(point, dtype=bool)
    return Search(
        point=point,
        holds=zeros + axis.safest,
        fails=zeros + axis.riskiest,
        held=nothing,
        failed=nothing,
        slope=np.where(np.isfinite(slope) & (slope > 0), slope, 1.0),
        last=zeros + np.nan,
        last_excess=zeros + np.nan,
        last_good=nothing,
        streak=zeros,
        rounds=zeros,
        done=nothing,
    )


class Edge(NamedTuple):
    """The end of a search for one number.

    Attributes:
      holds: the riskiest point at which the value was at most the target, or the axis' safest end.
      fails: the safest point at which it was not, or the axis' riskiest end.
      reached: the value at ``holds``.
    """

    holds: float
    fails: float
    reached: float


def find_edge(axis: Axis, value: Callable[[float], float], target: float, guess: float = 1.0) -> Edge:
    """Return the edge of "``value`` is at most ``target``", for a value > 0 that increases with the risk."""
    state = begin(axis, np.array([guess]), np.ones(1))
    reached = 0.0
    with np.errstate(all="ignore"):
        while not state.done.all():
            found = value(float(state.point[0]))
            meets_target = found <= target
            if meets_target:
                reached = found
            state = advance(axis, state, np.log(np.array([found]) / target), np.array([meets_target]))
    return Edge(float(state.holds[0]), float(state.fails[0]), reached)


def advance(axis: Axis, state: Search, excess: np.ndarray, good: np.ndarray) -> Search:
    """Return the search after the condition at ``state.point`` turned out ``good`` or not; finished elements stay."""
    r = axis.sign * np.log(state.point)
    holds = np.where(good, state.point, state.holds)
    fails = np.where(good, state.fails, state.point)
    held = np.logical_or(state.held, good)
    failed = np.logical_or(state.failed, ~good)
    has_two_ends = np.logical_and(held, failed)
    streak = np.where(good == state.last_good, state.streak, 0.0) + 1

    # The slope by the last two evaluations, where it is one, and at most eight times another than before.
    secant = (excess - state.last_excess) / (r - state.last)
    is_slope = np.isfinite(secant) & (secant > 0)
    secant = np.where(is_slope, secant, state.slope)
    slope = np.clip(secant, state.slope / 8, state.slope * 8)

    # Whole numbers are told apart, however many they are.
    tolerance: Any = TOLERANCE
    if axis.whole:
        between_neighbours = np.minimum(TOLERANCE, 1 / state.point)
        tolerance = np.where(has_two_ends, between_neighbours, TOLERANCE)

    # A step from r to the proposed edge, and a quarter of the tolerance to its safe side.
    direction = np.where(good, 1.0, -1.0)
    step = direction * -excess / slope - direction * tolerance / 4
    step = np.where(np.isnan(step), np.inf, step)
    shortest = _ALMOST * tolerance * 4.0 ** np.maximum(streak - 3, 0.0)
    step = np.clip(step, shortest, 2.0**streak)

    # Between two evaluated ends it stays short of the other one, or halves what is left.
    gap = axis.sign * np.log(fails / holds)
    room = gap - _ALMOST * tolerance
    shortened = np.where(room >= shortest, room, gap / 2)
    step_inside = np.where(step <= room, step, shortened)
    step_inside = np.where(state.rounds >= _PATIENCE, gap / 2, step_inside)
    step = np.where(has_two_ends, step_inside, step)
    point = _on_axis(axis, np.exp(axis.sign * (r + direction * step)))

    # Without one it may reach the end of the axis.
    reaches_end = ~has_two_ends & (step >= gap)
    end_ahead = np.where(good, fails, holds)
    point = np.where(reaches_end, end_ahead, point)

    # The bracket is narrow where nothing is left between its ends.
    if axis.whole:
        first_left = np.where(held, holds + 1, axis.safest)
        last_left = np.where(failed, fails - 1, axis.riskiest)
        point = np.clip(point, first_left, last_left)
        between = _on_axis(axis, 0.5 * (holds + fails))
        is_narrow = has_two_ends & ((between <= holds) | (between >= fails))
    else:
        is_narrow = has_two_ends & (gap <= TOLERANCE)

    # Nothing is beyond an end of the axis.
    is_good_at_riskiest = good & (state.point == axis.riskiest)
    is_bad_at_safest = ~good & (state.point == axis.safest)
    rounds = state.rounds + 1
    done = is_narrow | (is_good_at_riskiest | is_bad_at_safest) | (rounds >= _MOST_EVALUATIONS)

    new = Search(
        point=np.where(done, state.point, point),
        holds=holds,
        fails=fails,
        held=held,
        failed=failed,
        slope=slope,
        last=r,
        last_excess=excess,
        last_good=good,
        streak=streak,
        rounds=rounds,
        done=done,
    )
    fields = [np.where(state.done, old, now) for old, now in zip(state, new, strict=True)]
    return Search(*fields)


def _on_axis(axis: Axis, value: np.ndarray) -> np.ndarray:
    """Return numbers of the axis next to these: whole ones, or ones that float32 can hold."""
    if axis.whole:
        return np.floor(value * (1 + 1e-12))
    return value.astype(np.float32).astype(np.float64)
