"""One configuration, both directions, as many tries as it needs; and many configurations in a loop."""

import jax
import jax.numpy as jnp

from gdpjax._core.types import Array, Bounds
from gdpjax.accounting._numeric import _plan, _solve
from gdpjax.accounting._numeric._moments import Step

RELATIVE_WIDTH = 1e-3
DELTA_WIDTH = 1e-2
FLOOR = 1e-6
TRIES = 4


def epsilon_of_run(noise_multiplier: Array, sampling_prob: Array, num_steps: Array, log_delta: Array) -> Bounds:
    """The bracket on epsilon, the larger of the two directions, of a run given per phase ([J] arrays).

    "remove" comes first, since it nearly always decides. "add" then only has to be shown to be smaller, with a
    smoothing as coarse as the gap between the two allows.
    """

    def direction(best: Bounds, sign: Array) -> tuple[Bounds, None]:
        step = Step(noise_multiplier, sampling_prob, num_steps, jnp.broadcast_to(sign, jnp.shape(num_steps)))
        new = direction_bracket(step, log_delta, best.lower)
        return Bounds(jnp.maximum(best.lower, new.lower), jnp.maximum(best.upper, new.upper)), None

    zero = jnp.zeros_like(log_delta)
    return jax.lax.scan(direction, Bounds(zero, zero), jnp.array([1.0, -1.0]))[0]


def direction_bracket(step: Step, log_delta: Array, against: Array) -> Bounds:
    """The bracket of one direction; it need not be tight once its upper end is below ``against``."""
    window = _plan.windows(step, log_delta)

    def body(state):
        i, bounds, guess = state
        slack = 0.5 * (against / jnp.maximum(guess, 1e-300) - 1.0)
        width = jnp.clip(slack, RELATIVE_WIDTH, 0.2)
        plan = _plan.make_plan(step, window, guess, log_delta, width, of_delta=False)
        new, guess = _solve.epsilon_bracket(step, plan)
        return i + 1, Bounds(jnp.maximum(bounds.lower, new.lower), jnp.minimum(bounds.upper, new.upper)), guess

    def unfinished(state):
        i, bounds, guess = state
        wide = bounds.upper - bounds.lower > jnp.maximum(RELATIVE_WIDTH * guess, FLOOR)
        return (i < TRIES) & wide & (bounds.upper > against)

    trivial = Bounds(jnp.zeros_like(log_delta), _trivial_upper(step, log_delta))
    return jax.lax.while_loop(unfinished, body, (0, trivial, _plan.first_guess(step, window, log_delta)))[1]


def log_delta_of_run(noise_multiplier: Array, sampling_prob: Array, num_steps: Array, epsilon: Array) -> Bounds:
    """The bracket on log delta, the larger of the two directions, of a run given per phase."""

    def direction(best: Bounds, sign: Array) -> tuple[Bounds, None]:
        step = Step(noise_multiplier, sampling_prob, num_steps, jnp.broadcast_to(sign, jnp.shape(num_steps)))
        new = _direction_log_delta(step, epsilon, best.lower)
        return Bounds(jnp.maximum(best.lower, new.lower), jnp.maximum(best.upper, new.upper)), None

    nothing = jnp.full_like(epsilon, -jnp.inf)
    return jax.lax.scan(direction, Bounds(nothing, nothing), jnp.array([1.0, -1.0]))[0]


def _direction_log_delta(step: Step, epsilon: Array, against: Array) -> Bounds:
    def body(state):
        i, bounds, guess = state
        guess = jnp.clip(guess, -690.0, -1e-12)
        width = jnp.clip(0.3 * (against - guess), DELTA_WIDTH, 1.0)
        plan = _plan.make_plan(step, _plan.windows(step, guess), epsilon, guess, width, of_delta=True)
        new, guess = _solve.log_delta_bracket(step, plan)
        return i + 1, Bounds(jnp.maximum(bounds.lower, new.lower), jnp.minimum(bounds.upper, new.upper)), guess

    def unfinished(state):
        i, bounds, _ = state
        wide = bounds.upper - bounds.lower > DELTA_WIDTH
        return (i < TRIES) & wide & (bounds.upper > jnp.maximum(against, -690.0))

    anything = Bounds(jnp.full_like(epsilon, -jnp.inf), jnp.zeros_like(epsilon))
    return jax.lax.while_loop(unfinished, body, (0, anything, _plan.guess_log_delta(step, epsilon)))[1]


def _trivial_upper(step: Step, log_delta: Array) -> Array:
    """Without subsampling the run is mu-GDP, mu^2 = sum T / sigma^2, and delta <= Phi(mu/2 - e/mu) <= e^{-x^2/2}."""
    mu = jnp.sqrt(jnp.sum(step.num_steps / step.noise_multiplier**2))
    return mu * (jnp.sqrt(-2.0 * log_delta) + 0.5 * mu) * (1.0 + 1e-12)
