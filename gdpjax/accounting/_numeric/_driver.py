"""One configuration, both directions, as many tries as it needs; and many configurations in a loop."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from gdpjax._core.types import Array
from gdpjax.accounting._numeric import _plan, _solve
from gdpjax.accounting._numeric._moments import Step

RELATIVE_WIDTH = 1e-3
ESTIMATE_WIDTH = 3e-2
DELTA_WIDTH = 1e-2
FLOOR = 1e-6
TRIES = 5


class Answer(NamedTuple):
    """A certified bracket and an estimate inside it."""

    lower: Array
    upper: Array
    estimate: Array


def _worse(first: Answer, second: Answer) -> Answer:
    return jax.tree.map(jnp.maximum, first, second)


def epsilon_of_run(
    noise_multiplier: Array, sampling_prob: Array, num_steps: Array, log_delta: Array, width: float = RELATIVE_WIDTH
) -> Answer:
    """The bracket on epsilon, the larger of the two directions, of a run given per phase ([J] arrays).

    "remove" comes first, since it nearly always decides. "add" then only has to be shown to be smaller, with a
    smoothing as coarse as the gap between the two allows.
    """

    def direction(best: Answer, sign: Array) -> tuple[Answer, None]:
        step = Step(noise_multiplier, sampling_prob, num_steps, jnp.broadcast_to(sign, jnp.shape(num_steps)))
        return _worse(best, direction_epsilon(step, log_delta, best.lower, width)), None

    zero = jnp.zeros_like(log_delta)
    return jax.lax.scan(direction, Answer(zero, zero, zero), jnp.array([1.0, -1.0]))[0]


def direction_epsilon(step: Step, log_delta: Array, against: Array, target: float) -> Answer:
    """One direction; the bracket need not be tight once its upper end is below ``against``."""
    window = _plan.windows(step, log_delta)

    def body(state: tuple[Array, Answer]) -> tuple[Array, Answer]:
        i, old = state
        slack = 0.5 * (against / jnp.maximum(old.estimate, 1e-300) - 1.0)
        width = jnp.clip(slack, target, 0.2)
        plan = _plan.make_plan(step, window, old.estimate, log_delta, width, of_delta=False)
        new, estimate = _solve.epsilon_bracket(step, plan)
        return i + 1, Answer(jnp.maximum(old.lower, new.lower), jnp.minimum(old.upper, new.upper), estimate)

    def unfinished(state: tuple[Array, Answer]) -> Array:
        i, now = state
        wide = now.upper - now.lower > jnp.maximum(target * now.estimate, FLOOR)
        return (i < TRIES) & wide & (now.upper > against)

    guess = _plan.first_guess(step, window, log_delta)
    start = Answer(jnp.zeros_like(log_delta), _trivial_upper(step, log_delta), guess)
    _, answer = jax.lax.while_loop(unfinished, body, (np.int32(0), start))
    return answer._replace(estimate=jnp.clip(answer.estimate, answer.lower, answer.upper))


def _trivial_upper(step: Step, log_delta: Array) -> Array:
    """Without subsampling the run is mu-GDP, mu^2 = sum T / sigma^2, and delta <= Phi(mu/2 - e/mu) <= e^{-x^2/2}."""
    mu = jnp.sqrt(jnp.sum(step.num_steps / step.noise_multiplier**2))
    return mu * (jnp.sqrt(-2.0 * log_delta) + 0.5 * mu) * (1.0 + 1e-12)


def log_delta_of_run(
    noise_multiplier: Array, sampling_prob: Array, num_steps: Array, epsilon: Array, width: float = DELTA_WIDTH
) -> Answer:
    """The bracket on log delta, the larger of the two directions, of a run given per phase."""

    def direction(best: Answer, sign: Array) -> tuple[Answer, None]:
        step = Step(noise_multiplier, sampling_prob, num_steps, jnp.broadcast_to(sign, jnp.shape(num_steps)))
        return _worse(best, direction_log_delta(step, epsilon, best.lower, width)), None

    nothing = jnp.full_like(epsilon, -jnp.inf)
    return jax.lax.scan(direction, Answer(nothing, nothing, nothing), jnp.array([1.0, -1.0]))[0]


def direction_log_delta(step: Step, epsilon: Array, against: Array, target: float = DELTA_WIDTH) -> Answer:
    """One direction; the bracket need not be tight once its upper end is below ``against``."""

    def body(state: tuple[Array, Answer]) -> tuple[Array, Answer]:
        i, old = state
        guess = jnp.clip(old.estimate, -690.0, -1e-12)
        width = jnp.clip(0.3 * (against - guess), target, 1.0)
        plan = _plan.make_plan(step, _plan.windows(step, guess), epsilon, guess, width, of_delta=True)
        new, estimate = _solve.log_delta_bracket(step, plan)
        # No lower bound: the window may have been too narrow for a delta this small.
        estimate = jnp.where(new.lower > -jnp.inf, estimate, jnp.fmin(estimate, 1.6 * guess))
        return i + 1, Answer(jnp.maximum(old.lower, new.lower), jnp.minimum(old.upper, new.upper), estimate)

    def unfinished(state: tuple[Array, Answer]) -> Array:
        i, now = state
        return (i < TRIES) & (now.upper - now.lower > target) & (now.upper > jnp.maximum(against, -690.0))

    # In the direction "add" no loss exceeds sum T log 1/(1 - p), and delta is zero beyond.
    largest = -jnp.sum(step.num_steps * jnp.log1p(-step.sampling_prob)) * (1.0 + 1e-12)
    beyond = (step.sign[0] < 0) & (epsilon > largest)
    nothing = jnp.full_like(epsilon, -jnp.inf)
    start = Answer(nothing, jnp.where(beyond, nothing, 0.0), _plan.guess_log_delta(step, epsilon))
    _, answer = jax.lax.while_loop(unfinished, body, (np.int32(0), start))
    return answer._replace(estimate=jnp.clip(answer.estimate, answer.lower, answer.upper))
