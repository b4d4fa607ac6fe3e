"""One configuration, both directions, as many tries as it needs; and many configurations in a loop."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from gdpjax._core.types import Array
from gdpjax.accounting._numeric import _atoms, _plan, _solve
from gdpjax.accounting._numeric._run import Run, gaussian_mu, largest_finite_loss, largest_loss

RELATIVE_WIDTH = 1e-3
ESTIMATE_WIDTH = 3e-2
DELTA_WIDTH = 1e-2
FLOOR = 1e-6
TRIES = 5
_CLEARLY_BELOW = 0.5
_CONFIRMED = 0.2
"""An estimate counts as confirmed if the certified upper end exceeds it by at most this share of that end, ..."""
_NEGLIGIBLE = 2e-5
"""... or by this much, since brackets next to epsilon 0 are that wide."""


class Answer(NamedTuple):
    """A certified bracket and an estimate inside it."""

    lower: Array
    upper: Array
    estimate: Array


def _worse(first: Answer, second: Answer) -> Answer:
    return jax.tree.map(jnp.maximum, first, second)


def epsilon_of_run(run: Run, log_delta: Array, width: float = RELATIVE_WIDTH) -> Answer:
    """The bracket on epsilon, the larger of the two directions, of a run.

    "remove" comes first, since it nearly always decides. "add" then only has to be shown to be smaller, with a
    smoothing as coarse as the gap between the two allows.
    """

    def direction(best: Answer, sign: Array) -> tuple[Answer, None]:
        return _worse(best, direction_epsilon(run.towards(sign), log_delta, best.lower, width)), None

    zero = jnp.zeros_like(log_delta)
    return jax.lax.scan(direction, Answer(zero, zero, zero), jnp.array(run.signs))[0]


def estimate_of_run(run: Run, log_delta: Array) -> Array:
    """An estimate of epsilon; a direction whose rough guess is far below that of another is left out.

    The search of a direction brackets what it estimates. Where the upper end stays far above, the estimate is inf.
    """

    def direction(best: tuple[Array, Array], sign: Array) -> tuple[tuple[Array, Array], None]:
        directed = run.towards(sign)
        guess = _plan.first_guess(directed, _plan.windows(directed, log_delta), log_delta)
        needed = guess > _CLEARLY_BELOW * best[0]

        def confirmed() -> Array:
            answer = direction_epsilon(directed, log_delta, best[1], ESTIMATE_WIDTH)
            narrow = answer.upper - answer.estimate <= _CONFIRMED * answer.upper + _NEGLIGIBLE
            return jnp.where(narrow | (answer.upper <= best[1]), answer.estimate, jnp.inf)

        estimate = jax.lax.cond(needed, confirmed, lambda: jnp.zeros_like(guess))
        return (jnp.maximum(best[0], guess), jnp.maximum(best[1], estimate)), None

    zero = jnp.full_like(log_delta, -1.0), jnp.zeros_like(log_delta)
    return jax.lax.scan(direction, zero, jnp.array(run.signs))[0][1]


def direction_epsilon(run: Run, log_delta: Array, against: Array, target: float) -> Answer:
    """One direction; the bracket need not be tight once its upper end is below ``against``."""
    window = _plan.windows(run, log_delta)

    def body(state: tuple[Array, Answer]) -> tuple[Array, Answer]:
        i, old = state
        slack = 0.5 * (against / jnp.maximum(old.estimate, 1e-300) - 1.0)
        width = jnp.clip(slack, target, 0.2) * 0.8**i
        plan = _plan.make_plan(run, window, old.estimate, log_delta, width, of_delta=False)
        new, estimate = _solve.epsilon_bracket(run, plan)
        return i + 1, Answer(jnp.maximum(old.lower, new.lower), jnp.minimum(old.upper, new.upper), estimate)

    def unfinished(state: tuple[Array, Answer]) -> Array:
        i, now = state
        wide = now.upper - now.lower > jnp.maximum(target * now.estimate, FLOOR)
        return (i < TRIES) & wide & (now.upper > against)

    guess = _plan.first_guess(run, window, log_delta)
    start = Answer(jnp.zeros_like(log_delta), _trivial_upper(run, log_delta), guess)
    _, answer = jax.lax.while_loop(unfinished, body, (np.int32(0), start))
    return answer._replace(estimate=jnp.clip(answer.estimate, answer.lower, answer.upper))


def _trivial_upper(run: Run, log_delta: Array) -> Array:
    """Without sampling the steps are mu-GDP, delta <= Phi(mu/2 - e/mu) <= e^{-x^2/2}; other losses are bounded."""
    mu = gaussian_mu(run)
    return mu * (jnp.sqrt(-2.0 * log_delta) + 0.5 * mu) * (1.0 + 1e-12) + largest_finite_loss(run)


def log_delta_of_run(run: Run, epsilon: Array, width: float = DELTA_WIDTH) -> Answer:
    """The bracket on log delta, the larger of the two directions, of a run."""
    return jax.tree.map(lambda leaf: leaf[0], log_deltas_of_run(run, epsilon[None], width))


def log_deltas_of_run(run: Run, epsilon: Array, width: float = DELTA_WIDTH) -> Answer:
    """The same at several epsilon [n] that are close enough to share a contour."""

    def direction(best: Answer, sign: Array) -> tuple[Answer, None]:
        return _worse(best, direction_log_deltas(run.towards(sign), epsilon, best.lower, width)), None

    nothing = jnp.full_like(epsilon, -jnp.inf)
    return jax.lax.scan(direction, Answer(nothing, nothing, nothing), jnp.array(run.signs))[0]


def direction_log_deltas(run: Run, epsilon: Array, against: Array, target: float = DELTA_WIDTH) -> Answer:
    """One direction; a bracket need not be tight once its upper end is below ``against``.

    The contour is made for the middle of the points, then for the one with the widest bracket.
    """
    middle = epsilon.shape[0] // 2

    def too_wide(now: Answer) -> Array:
        return (now.upper - now.lower > target) & (now.upper > jnp.maximum(against, -690.0))

    def body(state: tuple[Array, Answer]) -> tuple[Array, Answer]:
        i, old = state
        worst = jnp.argmax(jnp.where(too_wide(old), old.upper - old.lower, -1.0))
        at = jnp.where(i == 0, middle, worst)
        guess = jnp.clip(old.estimate, -690.0, -1e-12)
        width = jnp.clip(0.3 * (against[at] - guess[at]), target, 1.0)
        # Once for all points, later for the one at hand: a window for a much smaller delta does harm.
        window = _plan.windows(run, jnp.where(i == 0, jnp.min(guess), guess[at]))
        plan = _plan.make_plan(run, window, epsilon[at], guess[at], width, of_delta=True)
        new, estimate = _solve.log_delta_bracket(run, plan, epsilon)
        # No lower bound: the window may have been too narrow for a delta this small.
        estimate = jnp.where(new.lower > -jnp.inf, estimate, jnp.fmin(estimate, 1.6 * guess))
        better = new.upper - new.lower < old.upper - old.lower
        estimate = jnp.where(better | (np.arange(epsilon.shape[0]) == at), estimate, old.estimate)
        return i + 1, Answer(jnp.maximum(old.lower, new.lower), jnp.minimum(old.upper, new.upper), estimate)

    def unfinished(state: tuple[Array, Answer]) -> Array:
        i, now = state
        return (i < TRIES + 2 * (epsilon.shape[0] - 1)) & jnp.any(too_wide(now))

    # No loss exceeds the largest, but for the infinite ones of atoms: beyond it delta is their mass.
    steps = run.steps
    bounded = jnp.all(steps.sign < 0) & (not steps.symmetric) | (jnp.sum(steps.num_steps) == 0)
    beyond = bounded & (epsilon > largest_loss(run))
    nothing = jnp.full_like(epsilon, -jnp.inf)
    infinite = jnp.log(-jnp.expm1(_atoms.log_lost(run.atoms)))
    guess = _plan.guess_log_delta(run, epsilon[middle])
    start = Answer(nothing, jnp.where(beyond, infinite, 0.0), jnp.broadcast_to(guess, epsilon.shape))
    _, answer = jax.lax.while_loop(unfinished, body, (np.int32(0), start))
    return answer._replace(estimate=jnp.clip(answer.estimate, answer.lower, answer.upper))
