"""Any question about runs in which random allocation is composed with other events.

An epoch is two events given by their outcomes (`_numeric._atoms`), one a kind of block, in a pair that understates
and in one that overstates: `_bounds.atoms_of_scheme`. They go into one `Run` beside the other phases and the events of
bounded loss. Of the two runs, below and above, epsilon, delta and mu are asked: the lower end comes from the run below
and the upper end from the one above. For the trade-off curve, which falls where the others rise, it is the reverse.
What the run below leaves out is never part of a test, so the errors of its tests are those of tests of the true run.

Nothing is known from the pairs where their rounding is large or the noise is below the smallest that they are made for:
the ends are then those of the run in which it is known when an example takes part, and of a run of nothing.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import ndtr, ndtri

from gdpjax._core.checks import COUNT, NONNEGATIVE, OPEN_UNIT, POSITIVE, UNIT, WHOLE, Domain
from gdpjax._core.gdp import gdp_delta, gdp_epsilon
from gdpjax._core.types import Array, Bounds
from gdpjax.accounting._allocation import _bounds
from gdpjax.accounting._numeric import _dominating, _driver, _finite, _plan, _tradeoff
from gdpjax.accounting._numeric._atoms import Atoms
from gdpjax.accounting._numeric._batch import batched
from gdpjax.accounting._numeric._finite import Finite
from gdpjax.accounting._numeric._ratio import Step
from gdpjax.accounting._numeric._run import Run

_SLACK = 1e-9
_TINY = 2.3e-308
_SMALLEST_PROB = 1e-30
_SMALLEST_ALPHA = 1e-300
_SMALLEST_NOISE_SEARCHED = 0.2
_LEAST_BETA = 1e-12
_ALLOCATION = {
    "noise_multiplier": POSITIVE,
    "steps_per_epoch": COUNT,
    "num_epochs": COUNT,
    "num_selected": COUNT,
    "fixed": UNIT,
}
_PHASES = {"phase_noise": POSITIVE, "phase_prob": UNIT, "phase_steps": WHOLE}
_FINITE = {"count": WHOLE, "bound": NONNEGATIVE, "categories": NONNEGATIVE}


class _Parts(NamedTuple):
    """What a run consists of."""

    schemes: _bounds.Scheme  # [A], counts [A, 2]
    steps: Step  # [J]
    finite: Finite | None  # [F]

    @property
    def mu(self) -> Array:
        """The mu of all Gaussian steps if it were known in which of them an example takes part: the most it can be."""
        steps = jnp.sum(self.steps.num_steps / self.steps.noise_multiplier**2)
        allocated = jnp.sum(jnp.sum(self.schemes.counts, axis=-1) / self.schemes.noise_multiplier**2)
        return jnp.sqrt(steps + allocated)

    @property
    def largest_finite_loss(self) -> Array:
        return jnp.zeros(()) if self.finite is None else _finite.largest_loss(self.finite)

    @property
    def whole_mu(self) -> Array:
        """A mu that the whole run has, with the events of bounded loss."""
        other = jnp.zeros(()) if self.finite is None else _finite.squared_mu(self.finite)
        return jnp.sqrt(self.mu**2 + other) * (1.0 + _SLACK)


class _Bracket(NamedTuple):
    """The runs below and above, whether each says something, and the parts for what is known anyway."""

    below: Run
    above: Run
    below_holds: Array
    above_holds: Array
    parts: _Parts


def _bracket(parts: _Parts, log_delta: Array, coarse: Array | bool = False) -> _Bracket:
    """The runs of ``parts`` for a question about a delta of e^log_delta."""
    rounds = 2.0 + jnp.log2(jnp.max(parts.schemes.block))
    share = np.log(_bounds._LOST_SHARE) - jnp.log(rounds * jnp.sum(parts.schemes.counts))
    log_tail = jnp.maximum(log_delta + share, _bounds._LOWEST_LOG_TAIL)

    def pair(scheme: _bounds.Scheme) -> tuple[Atoms, tuple[Array, Array]]:
        size = jnp.where(coarse, float(_bounds._FEWEST_CELLS), _bounds._cells(scheme))
        atoms = _bounds.atoms_of_scheme(scheme, log_tail, size)
        return atoms, _bounds._certain(scheme, atoms)

    # [A, 2, 2, ...]: events, below or above, kinds of blocks; the first and the last axis become one.
    atoms, (below_holds, above_holds) = jax.lax.map(pair, parts.schemes)

    def side(index: int) -> Atoms:
        return jax.tree.map(lambda leaf: leaf[:, index].reshape(-1, *leaf.shape[3:]), atoms)

    # Phases of a tiny probability are computed with a larger one, and left out below.
    steps, prob = parts.steps, jnp.maximum(parts.steps.sampling_prob, _SMALLEST_PROB)
    kept = jnp.where(steps.sampling_prob >= _SMALLEST_PROB, steps.num_steps, 0.0)
    steps_below = dataclasses.replace(steps, sampling_prob=prob, num_steps=kept)
    steps_above = dataclasses.replace(steps, sampling_prob=prob)
    return _Bracket(
        Run(steps_below, parts.finite, side(0)),
        Run(steps_above, parts.finite, side(1)),
        jnp.all(below_holds),
        jnp.all(above_holds),
        parts,
    )


def _both(ask: Callable[[Run], tuple[Array, Array]], runs: _Bracket) -> tuple[Bounds, Bounds]:
    """The answers about the runs below and above, by one program that is compiled once."""
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), runs.below, runs.above)
    lower, upper = jax.lax.map(ask, stacked)
    return Bounds(lower[0], upper[0]), Bounds(lower[1], upper[1])


def _known(holds: Array, value: Array, otherwise: Array) -> Array:
    return jnp.where(holds & ~jnp.isnan(value), value, otherwise)


def _epsilon(parts: _Parts, delta: Array) -> Bounds:
    runs = _bracket(parts, jnp.log(delta))
    below, above = _both(lambda run: _driver.epsilon_of_run(run, jnp.log(delta))[:2], runs)
    trivial = gdp_epsilon(delta, parts.mu) * (1.0 + _SLACK) + 1e-12 + parts.largest_finite_loss
    lower = jnp.maximum(_known(runs.below_holds, below.lower, jnp.zeros(())), 0.0)
    return Bounds(lower, jnp.minimum(_known(runs.above_holds, above.upper, trivial), trivial))


def _delta(parts: _Parts, epsilon: Array) -> Bounds:
    def refine(_: int, log_delta: Array) -> Array:
        run = _bracket(parts, log_delta, coarse=True).above
        guesses = [_plan.guess_log_delta(run.towards(jnp.asarray(sign)), epsilon) for sign in run.signs]
        guess = jnp.nan_to_num(jnp.maximum(*guesses), nan=_bounds._FIRST_LOG_DELTA)
        return jnp.clip(guess, _bounds._LOWEST_LOG_TAIL, 0.0)

    start = jnp.asarray(_bounds._FIRST_LOG_DELTA)
    log_delta = jax.lax.fori_loop(np.int32(0), np.int32(_bounds._GUESSES), refine, start)
    runs = _bracket(parts, log_delta)
    below, above = _both(lambda run: _driver.log_delta_of_run(run, epsilon)[:2], runs)
    # Events of bounded loss shift epsilon by their largest loss at most.
    rest = jnp.maximum(epsilon - parts.largest_finite_loss * (1.0 + 1e-12), 0.0)
    exceeds = epsilon < parts.largest_finite_loss * (1.0 + 1e-12)
    trivial = jnp.where(exceeds, 1.0, gdp_delta(rest, parts.mu) * (1.0 + _SLACK))
    lower = _known(runs.below_holds, jnp.exp(below.lower) * (1.0 - 1e-12), jnp.zeros(()))
    upper = jnp.minimum(_known(runs.above_holds, jnp.exp(above.upper) * (1.0 + 1e-12), trivial), trivial)
    return Bounds(jnp.maximum(lower - _TINY, 0.0), jnp.minimum(upper + _TINY, 1.0))


def _mu(parts: _Parts, failure: Array) -> Bounds:
    whole = parts.whole_mu
    least = jnp.minimum(jnp.min(parts.schemes.noise_multiplier), jnp.min(parts.steps.noise_multiplier, initial=np.inf))

    def searched() -> Bounds:
        runs = _bracket(parts, jnp.log(failure))
        below, above = _both(lambda run: tuple(_dominating.mu_of_run(run, failure)), runs)
        lower = jnp.maximum(_known(runs.below_holds, below.lower, jnp.zeros(())), 0.0)
        return Bounds(jnp.minimum(lower, whole), jnp.minimum(_known(runs.above_holds, above.upper, whole), whole))

    # As for other runs: at the smallest noises the search takes minutes and finds little.
    return jax.lax.cond(least < _SMALLEST_NOISE_SEARCHED, lambda: Bounds(jnp.zeros_like(whole), whole), searched)


def _curve(parts: _Parts, alpha: Array) -> Bounds:
    at = jnp.clip(alpha, _SMALLEST_ALPHA, 1.0 - 1e-16)
    trivial = ndtr(-ndtri(at) - parts.whole_mu) * (1.0 - _SLACK) - 1e-15
    scale = jnp.minimum(jnp.minimum(at, 1.0 - at), jnp.maximum(trivial, _LEAST_BETA))
    runs = _bracket(parts, jnp.log(scale))
    below, above = _both(lambda run: tuple(_tradeoff.tradeoff_of_run(run, at)), runs)
    lower = jnp.maximum(jnp.maximum(_known(runs.above_holds, above.lower, trivial), trivial), 0.0)
    upper = jnp.minimum(_known(runs.below_holds, below.upper, 1.0 - at), 1.0 - at)
    # The curve falls, so below the smallest alpha only the lower bound at it holds.
    upper = jnp.where(alpha < _SMALLEST_ALPHA, 1.0, upper)
    ends = (alpha == 0) | (alpha == 1)
    return Bounds(jnp.where(ends, 1.0 - alpha, lower), jnp.where(ends, 1.0 - alpha, upper))


_QUESTIONS: dict[str, tuple[Callable[[_Parts, Array], Bounds], str, Domain]] = {
    "epsilon": (_epsilon, "delta", OPEN_UNIT),
    "delta": (_delta, "epsilon", NONNEGATIVE),
    "mu": (_mu, "failure", OPEN_UNIT),
    "tradeoff": (_curve, "alpha", UNIT),
}


@functools.cache
def of_allocation(question: str, with_steps: bool, with_finite: bool) -> Callable[..., Any]:
    """The question about runs of allocation, which are the last axis of its five arguments, and other events.

    Called with (noise_multiplier, steps_per_epoch, num_epochs, num_selected, fixed), then the phases and the events of
    bounded loss as in `_numeric.of_phases` where there are any, then what it is asked at.
    """
    ask, name, domain = _QUESTIONS[question]

    def core(*values: Array) -> Bounds:
        *columns, at = values
        schemes = jax.vmap(_bounds.make_scheme)(*columns[:5])
        phases = columns[5:8] if with_steps else [jnp.zeros(0)] * 3
        noise, prob, num_steps = phases
        num_steps = jnp.where(prob > 0, num_steps, 0.0)
        ones = jnp.ones_like(num_steps)
        steps = Step(noise, prob, num_steps, ones, ones)
        finite = Finite(*columns[-3:]) if with_finite else None
        return ask(_Parts(schemes, steps, finite), at)

    domains = {**_ALLOCATION, **(_PHASES if with_steps else {}), **(_FINITE if with_finite else {}), name: domain}
    groups = (5, *((3,) if with_steps else ()), *((3,) if with_finite else ()))
    return batched(core, phase_groups=groups, **domains)  # pyright: ignore
