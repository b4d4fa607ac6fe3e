"""The whole computation for one run, lifted to arrays of runs and to runs in phases.

The losses of the phases of a run add up, so K is a sum over phases; a phase without steps or with sampling_prob 0 does
nothing.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from gdpjax._core import checks
from gdpjax._core.gdp import epsilon_kernel
from gdpjax._core.precision import batched
from gdpjax._core.types import Array, Bounds
from gdpjax.accounting._numeric import (
    _bounded_losses,
    _closed_forms,
    _directions,
    _dominating,
    _run_description,
    _tradeoff,
)
from gdpjax.accounting._numeric._bounded_losses import Finite
from gdpjax.accounting._numeric._likelihood_ratio import Step
from gdpjax.accounting._numeric._run_description import Run

_RUN = {"noise_multiplier": checks.POSITIVE, "sampling_prob": checks.UNIT, "num_steps": checks.COUNT}
_PHASES = {**_RUN, "num_steps": checks.WHOLE}
_FINITE = {"count": checks.WHOLE, "bound": checks.NONNEGATIVE, "categories": checks.NONNEGATIVE}
_GROUP = {"group_size": checks.COUNT}
_TINY = 2.3e-308
_SMALLEST_PROB = 1e-30
_NEARLY_ALL = 0.9
"""Above this sampling probability a run reveals little less than without sampling."""
_SMALLEST_ALPHA = 1e-300
_SMALLEST_NOISE_SEARCHED = 0.2
PROFILE_SHARING = (6, 24)
"""How many neighbouring epsilon of a profile share a contour: at least, and at most where they are close together."""
_CLOSE = 0.5  # nats that the ones that share a contour may span


class Family(NamedTuple):
    """What kind of run is asked about, and how closely."""

    symmetric: bool = False
    """Uniform sampling under replace-one (the upper curve), instead of Poisson sampling."""
    groups: bool = False
    """Whether the size of a group is an argument, after the steps; otherwise it is 1."""
    finite: bool = False
    """Whether there are events of bounded loss, further arguments."""
    rtol: float = _directions.RELATIVE_WIDTH
    """The relative width at which the search for an epsilon or a delta stops."""


POISSON = Family()


class _Prepared(NamedTuple):
    """A run without what does nothing, and whether one of its p was raised to the smallest that is computed with."""

    run: Run
    raised: bool


def _prepare(family: Family, values: tuple[Any, ...]) -> _Prepared:
    """The run that the columns describe."""
    sigma, prob, steps, *others = (np.atleast_1d(value) for value in values)
    sizes = np.broadcast_to(others.pop(0), steps.shape) if family.groups else np.ones_like(steps)
    phases = [row for row in zip(sigma, prob, steps, sizes, strict=True) if row[1] > 0 and row[2] > 0]
    made = tuple(Step(s, max(p, _SMALLEST_PROB), t, 1.0, int(k), family.symmetric) for s, p, t, k in phases)
    events = zip(*others, strict=True) if family.finite else ()
    finite = tuple(Finite(*map(float, event)) for event in events if event[0] > 0 and event[1] > 0)
    return _Prepared(Run(made, finite), any(p < _SMALLEST_PROB for _, p, _, _ in phases))


def _epsilon_core(run: Run, delta: float, rtol: float) -> Bounds:
    if delta >= _run_description.chance_of_leaking(run):
        return Bounds(0.0, 0.0)
    if _closed_forms.has_closed_form(run):
        exact = _closed_forms.epsilon(run, delta)
        if exact.upper < np.inf:
            return Bounds(exact.lower, min(exact.upper, _epsilon_without_sampling(run, delta)))
    lower, upper, _ = _directions.epsilon_of_run(run, np.log(delta), rtol)
    if run.finite:
        lower = max(lower, _bounded_losses.epsilon_from_atom(run.finite, np.log(delta)))
    nearly_all = all(step.sampling_prob > _NEARLY_ALL for step in run.steps)
    if nearly_all or not upper - lower <= rtol * lower:
        upper = np.fmin(upper, _epsilon_without_sampling(run, delta))
    return Bounds(lower, upper)


def _epsilon_without_sampling(run: Run, delta: float) -> float:
    """An upper bound, since with sampling the steps reveal less; near zero delta fixes epsilon only absolutely."""
    gaussian = epsilon_kernel(np, delta, 1.0 - delta, _run_description.gaussian_mu(run))
    return gaussian * (1.0 + 1e-10) + 1e-12 + _bounded_losses.largest_loss(run.finite)


def _estimate_core(run: Run, delta: float, _rtol: float) -> float:
    if delta >= _run_description.chance_of_leaking(run):
        return 0.0
    if _closed_forms.has_closed_form(run):
        exact = _closed_forms.epsilon(run, delta)
        if exact.upper < np.inf:
            return 0.5 * (exact.lower + exact.upper) if exact.lower > 0 else 0.0
    return _directions.estimate_of_run(run, np.log(delta))


def _delta_core(run: Run, epsilon: float, rtol: float) -> Bounds:
    leaking = _run_description.chance_of_leaking(run)
    if _closed_forms.has_closed_form(run):
        lower, upper = _closed_forms.delta(run, epsilon)
    else:
        answer = _directions.log_delta_of_run(run, epsilon, rtol)
        lower, upper = np.exp(answer.lower) * (1.0 - 1e-12), np.exp(answer.upper) * (1.0 + 1e-12)
    if run.finite:
        lower = max(lower, _bounded_losses.delta_from_atom(run.finite, epsilon))
    upper = np.fmin(upper, leaking)
    return Bounds(max(lower - _TINY, 0.0), min(upper + _TINY, 1.0))


def _tradeoff_core(run: Run, alpha: float, _rtol: float) -> Bounds:
    if alpha in (0.0, 1.0):
        return Bounds(1.0 - alpha, 1.0 - alpha)
    bounds = _tradeoff.tradeoff_of_run(run, min(max(alpha, _SMALLEST_ALPHA), 1.0 - 1e-16))
    # The curve falls, so below the smallest alpha only the lower bound at it holds.
    return bounds._replace(upper=1.0) if alpha < _SMALLEST_ALPHA else bounds


def _mu_core(run: Run, failure: float, _rtol: float) -> Bounds:
    # The whole run has this mu whatever the sampling. For the smallest noises the search takes long and finds little
    # better.
    if any(step.noise_multiplier < _SMALLEST_NOISE_SEARCHED for step in run.steps):
        return Bounds(0.0, _run_description.trivial_mu(run))
    return _dominating.mu_of_run(run, failure)


class _Question(NamedTuple):
    """A core, the name and domain of what it is asked at, and its answer where nothing is revealed."""

    core: Callable[[Run, float, float], Any]
    argument: str
    domain: checks.Domain
    nothing: Callable[[float], Bounds]


def _none(_at: float) -> Bounds:
    return Bounds(0.0, 0.0)


_QUESTIONS = {
    "epsilon": _Question(_epsilon_core, "delta", checks.OPEN_UNIT, _none),
    "estimate": _Question(_estimate_core, "delta", checks.OPEN_UNIT, _none),
    "delta": _Question(_delta_core, "epsilon", checks.NONNEGATIVE, _none),
    "tradeoff": _Question(_tradeoff_core, "alpha", checks.UNIT, _tradeoff.complement),
    "mu": _Question(_mu_core, "failure", checks.OPEN_UNIT, _none),
}


def _core(question: _Question, family: Family) -> Callable[..., Any]:
    def core(*values: Any) -> Any:
        run, raised = _prepare(family, values[:-1])
        nothing = question.nothing(values[-1])
        if not run.steps and not run.finite:
            return nothing if question.core is not _estimate_core else nothing.upper
        answer = question.core(run, values[-1], family.rtol)
        if raised and isinstance(answer, Bounds):  # of a run with a larger p, so nothing at all is the other end
            return Bounds(min(answer.lower, nothing.lower), max(answer.upper, nothing.upper))
        return answer

    return core


@functools.cache
def of_runs(name: str, family: Family = POISSON) -> Callable[..., Any]:
    """The question ``name`` for broadcasting arrays of runs, ``at`` and, in groups, their sizes."""
    question = _QUESTIONS[name]
    domains = {**_RUN, **(_GROUP if family.groups else {}), question.argument: question.domain}
    return batched(_core(question, family), bounds=name != "estimate", **domains)  # pyright: ignore


def _of_phases(family: Family) -> tuple[dict[str, checks.Domain], tuple[int, ...]]:
    """The arguments that describe a run in phases, and how many of them share a last axis."""
    domains = {**_PHASES, **(_GROUP if family.groups else {}), **(_FINITE if family.finite else {})}
    return domains, (3, *((1,) if family.groups else ()), *((3,) if family.finite else ()))


@functools.cache
def of_phases(name: str, family: Family = POISSON) -> Callable[..., Any]:
    """The question ``name`` for runs in phases, which are the last axis of every argument but ``at``."""
    question = _QUESTIONS[name]
    domains, groups = _of_phases(family)
    domains = {**domains, question.argument: question.domain}
    return batched(_core(question, family), phase_groups=groups, bounds=name != "estimate", **domains)  # pyright: ignore


@functools.cache
def profile_of_phases(family: Family = POISSON) -> Callable[..., Bounds]:
    """delta of one run in phases at a vector of epsilon, which share the work, to a relative width that may differ.

    Called as `of_phases`, with the vector of epsilon and the width at the end, and with numbers only.
    """
    domains, _ = _of_phases(family)

    def profile(*values: Any) -> Bounds:
        *columns, epsilon, width = values
        for (name, domain), column in zip(domains.items(), columns, strict=True):
            checks.check(name, column, domain)
        checks.check("epsilon", epsilon, checks.NONNEGATIVE)
        with np.errstate(all="ignore"):
            return _profile(family, columns, np.asarray(epsilon, np.float64), width)

    return profile


def _profile(family: Family, columns: list[Any], epsilon: Array, width: float) -> Bounds:
    run, raised = _prepare(family, tuple(np.asarray(column, np.float64) for column in columns))
    if not run.steps and not run.finite:
        return Bounds(np.zeros(epsilon.shape), np.zeros(epsilon.shape))
    if _closed_forms.has_closed_form(run):
        lower, upper = np.array([_closed_forms.delta(run, one) for one in epsilon]).T
    else:
        spacing = np.max(np.diff(epsilon), initial=1e-300)
        sharing = int(np.clip(_CLOSE / spacing, *PROFILE_SHARING))
        groups = [epsilon[i : i + sharing] for i in range(0, epsilon.size, sharing)]
        answers = [_directions.log_deltas_of_run(run, group, width) for group in groups]
        lower = np.exp(np.concatenate([answer.lower for answer in answers])) * (1.0 - 1e-12)
        upper = np.exp(np.concatenate([answer.upper for answer in answers])) * (1.0 + 1e-12)
    upper = np.minimum(np.fmin(upper, _run_description.chance_of_leaking(run)) + _TINY, 1.0)
    return Bounds(np.zeros_like(upper) if raised else np.maximum(lower - _TINY, 0.0), upper)
