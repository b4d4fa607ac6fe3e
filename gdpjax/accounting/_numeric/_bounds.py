"""The whole computation for one run, lifted to arrays of runs and to runs in phases.

The losses of the phases of a run add up, so K is a sum over phases; a phase without steps or with sampling_prob 0 does
nothing.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from gdpjax._core import checks
from gdpjax._core.gdp import gdp_epsilon
from gdpjax._core.types import Array, Bounds
from gdpjax.accounting._numeric import _closed, _dominating, _driver, _run, _tradeoff
from gdpjax.accounting._numeric._batch import batched
from gdpjax.accounting._numeric._finite import Finite
from gdpjax.accounting._numeric._ratio import Step
from gdpjax.accounting._numeric._run import Run

_RUN = {"noise_multiplier": checks.POSITIVE, "sampling_prob": checks.UNIT, "num_steps": checks.COUNT}
_PHASES = {**_RUN, "num_steps": checks.WHOLE}
_FINITE = {"count": checks.WHOLE, "bound": checks.NONNEGATIVE, "categories": checks.NONNEGATIVE}
_GROUP = {"group_size": checks.COUNT}
_TINY = 2.3e-308
_SMALLEST_PROB = 1e-30
_SMALLEST_ALPHA = 1e-300
_SMALLEST_NOISE_SEARCHED = 0.2
PROFILE_SHARING = 6
"""How many neighbouring epsilon of a profile share a contour."""


class Family(NamedTuple):
    """What kind of run is asked about; each kind is one compiled program per question."""

    symmetric: bool = False
    """Uniform sampling under replace-one (the upper curve), instead of Poisson sampling."""
    largest_group: int = 1
    """Groups of up to so many; above 1 their size is an argument, after the steps."""
    finite: bool = False
    """Whether there are events of bounded loss, further arguments."""


POISSON = Family()


def _prepare(family: Family, values: tuple[Array, ...]) -> tuple[Run, Array, Array]:
    """The run, whether anything is revealed, and whether its p was raised to the smallest that is computed with."""
    sigma, prob, steps, *others = (jnp.atleast_1d(value) for value in values)
    size = jnp.broadcast_to(others.pop(0), steps.shape) if family.largest_group > 1 else jnp.ones_like(steps)
    finite = Finite(*others) if family.finite else None
    active = jnp.any((prob > 0) & (steps > 0))
    if finite is not None:
        active = active | jnp.any((finite.num_steps > 0) & (finite.bound > 0))
    steps = jnp.where(prob > 0, steps, 0.0)
    raised = jnp.any((steps > 0) & (prob < _SMALLEST_PROB))
    prob = jnp.maximum(prob, _SMALLEST_PROB)
    steps = jnp.where(active, steps, 1.0)
    made = Step(sigma, prob, steps, jnp.ones_like(steps), size, family.largest_group, family.symmetric)
    return Run(made, finite), active, raised


def _epsilon_core(run: Run, delta: Array) -> Bounds:
    answer = _driver.epsilon_of_run(run, jnp.log(delta))
    form = _closed.closed_form(run)
    exact = _closed.epsilon(form, delta)
    applies = form.applies & (exact.upper < jnp.inf)
    lower = jnp.where(applies, jnp.fmax(answer.lower, exact.lower), answer.lower)
    # With sampling the steps reveal less than without.
    # Near zero delta fixes epsilon only absolutely.
    gaussian = gdp_epsilon(delta, _run.gaussian_mu(run)) * (1.0 + 1e-10) + 1e-12 + _run.largest_finite_loss(run)
    upper = jnp.fmin(answer.upper, jnp.where(applies, jnp.fmin(gaussian, exact.upper), gaussian))
    nothing = delta >= _run.chance_of_leaking(run)
    return Bounds(jnp.where(nothing, 0.0, lower), jnp.where(nothing, 0.0, upper))


def _estimate_core(run: Run, delta: Array) -> Array:
    estimate = _driver.estimate_of_run(run, jnp.log(delta))
    form = _closed.closed_form(run)
    exact = _closed.epsilon(form, delta)
    middle = jnp.where(exact.lower > 0, 0.5 * (exact.lower + exact.upper), 0.0)
    estimate = jnp.where(form.applies & (exact.upper < jnp.inf), middle, estimate)
    return jnp.where(delta >= _run.chance_of_leaking(run), 0.0, estimate)


def _delta_core(run: Run, epsilon: Array) -> Bounds:
    answer = _driver.log_delta_of_run(run, epsilon)
    form = _closed.closed_form(run)
    exact = _closed.delta(form, epsilon)
    upper, lower = jnp.exp(answer.upper) * (1.0 + 1e-12), jnp.exp(answer.lower) * (1.0 - 1e-12)
    upper = jnp.fmin(upper, _run.chance_of_leaking(run))
    upper = jnp.where(form.applies, jnp.fmin(upper, exact.upper), upper)
    lower = jnp.where(form.applies, jnp.fmax(lower, exact.lower), lower)
    return Bounds(jnp.maximum(lower - _TINY, 0.0), jnp.minimum(upper + _TINY, 1.0))


def _tradeoff_core(run: Run, alpha: Array) -> Bounds:
    bounds = _tradeoff.tradeoff_of_run(run, jnp.clip(alpha, _SMALLEST_ALPHA, 1.0 - 1e-16))
    # The curve falls, so below the smallest alpha only the lower bound at it holds.
    bounds = bounds._replace(upper=jnp.where(alpha < _SMALLEST_ALPHA, 1.0, bounds.upper))
    ends = (alpha == 0) | (alpha == 1)
    return Bounds(jnp.where(ends, 1.0 - alpha, bounds.lower), jnp.where(ends, 1.0 - alpha, bounds.upper))


def _mu_core(run: Run, failure: Array) -> Bounds:
    # The whole run has this mu whatever the sampling. For the smallest noises the search takes minutes and finds little
    # better.
    trivial = _run.trivial_mu(run)
    return jax.lax.cond(
        jnp.min(run.steps.noise_multiplier) < _SMALLEST_NOISE_SEARCHED,
        lambda: Bounds(jnp.zeros_like(trivial), trivial),
        lambda: _dominating.mu_of_run(run, failure),
    )


class _Question(NamedTuple):
    """A core, the name and domain of what it is asked at, and its answer where nothing is revealed."""

    core: Callable[[Run, Array], Any]
    argument: str
    domain: checks.Domain
    nothing: Callable[[Array], Array]


_QUESTIONS = {
    "epsilon": _Question(_epsilon_core, "delta", checks.OPEN_UNIT, jnp.zeros_like),
    "estimate": _Question(_estimate_core, "delta", checks.OPEN_UNIT, jnp.zeros_like),
    "delta": _Question(_delta_core, "epsilon", checks.NONNEGATIVE, jnp.zeros_like),
    "tradeoff": _Question(_tradeoff_core, "alpha", checks.UNIT, lambda alpha: 1.0 - alpha),
    "mu": _Question(_mu_core, "failure", checks.OPEN_UNIT, jnp.zeros_like),
}


def _core(question: _Question, family: Family) -> Callable[..., Any]:
    def core(*values: Array) -> Any:
        run, active, raised = _prepare(family, values[:-1])
        answer = question.core(run, values[-1])
        nothing = question.nothing(values[-1])
        if isinstance(answer, Bounds):  # of a run with a larger p, so nothing at all is the other end
            lower, upper = jnp.minimum(answer.lower, nothing), jnp.maximum(answer.upper, nothing)
            answer = Bounds(jnp.where(raised, lower, answer.lower), jnp.where(raised, upper, answer.upper))
        return jax.tree.map(lambda leaf: jnp.where(active, leaf, nothing), answer)

    return core


@functools.cache
def of_runs(name: str, family: Family = POISSON) -> Callable[..., Any]:
    """The question ``name`` for broadcasting arrays of runs, ``at`` and, in groups, their sizes."""
    question = _QUESTIONS[name]
    domains = {**_RUN, **(_GROUP if family.largest_group > 1 else {}), question.argument: question.domain}
    return batched(_core(question, family), **domains)  # pyright: ignore


@functools.cache
def of_phases(name: str, family: Family = POISSON) -> Callable[..., Any]:
    """The question ``name`` for runs in phases, which are the last axis of every argument but ``at``."""
    question = _QUESTIONS[name]
    domains = {**_PHASES, **(_GROUP if family.largest_group > 1 else {}), **(_FINITE if family.finite else {})}
    groups = (3, *((1,) if family.largest_group > 1 else ()), *((3,) if family.finite else ()))
    domains[question.argument] = question.domain
    return batched(_core(question, family), phase_groups=groups, **domains)  # pyright: ignore


def _profile_core(run: Run, epsilon: Array, width: Array) -> Bounds:
    """Brackets on delta at many epsilon [n], of which a few neighbours share a contour."""
    form = _closed.closed_form(run)

    def on_contours() -> Bounds:
        groups = epsilon.reshape(-1, PROFILE_SHARING)
        answer = jax.lax.map(lambda group: _driver.log_deltas_of_run(run, group, width), groups)
        lower, upper = answer.lower.reshape(-1), answer.upper.reshape(-1)
        return Bounds(jnp.exp(lower) * (1.0 - 1e-12), jnp.exp(upper) * (1.0 + 1e-12))

    def in_closed_form() -> Bounds:
        return jax.lax.map(lambda one: _closed.delta(form, one), epsilon)

    answer = jax.lax.cond(form.applies, in_closed_form, on_contours)
    upper = jnp.fmin(answer.upper, _run.chance_of_leaking(run))
    return Bounds(jnp.maximum(answer.lower - _TINY, 0.0), jnp.minimum(upper + _TINY, 1.0))


@functools.cache
def profile_of_phases(family: Family = POISSON) -> Callable[..., Any]:
    """delta at a vector of epsilon, its length a multiple of `PROFILE_SHARING`, to a relative width that may differ.

    Called as `of_phases`, with the vector of epsilon and the width at the end. The answer has the vector's axis last.
    """

    def core(*values: Array) -> Bounds:
        run, active, raised = _prepare(family, values[:-2])
        answer = _profile_core(run, *values[-2:])
        lower = jnp.where(active & ~raised, answer.lower, 0.0)
        return Bounds(lower, jnp.where(active, answer.upper, 0.0))

    domains = {**_PHASES, **(_GROUP if family.largest_group > 1 else {}), **(_FINITE if family.finite else {})}
    groups = (3, *((1,) if family.largest_group > 1 else ()), *((3,) if family.finite else ()), 1)
    domains = {**domains, "epsilon": checks.NONNEGATIVE, "width": checks.OPEN_UNIT}
    return batched(core, phase_groups=groups, **domains)  # pyright: ignore
