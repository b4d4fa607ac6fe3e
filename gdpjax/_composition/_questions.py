"""Answer a question about a run: its epsilon, delta, trade-off curve or mu, for arrays of runs and for runs in phases.

    epsilon = of_runs(EPSILON)                         # of runs with one phase, in broadcasting arrays
    bracket = epsilon(noise_multiplier, sampling_prob, num_steps, delta)

    columns = (noise_multipliers, sampling_probs, nums_steps, group_sizes)
    delta = of_phases(DELTA, Family(groups=True), columns)      # of one run in phases, the axis of the columns
    bracket = delta(epsilon)

The losses of the phases of a run add up, so K is a sum over phases. A phase without steps or with sampling_prob 0 does
nothing and is left out. Each question has a function that takes the closed form where there is one and otherwise the
contour integral, improves the answer by bounds that cost nothing, and makes it safe against underflow: epsilon of many
runs together, the others of one run.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import scipy

from gdpjax._composition import (
    _bounded_losses,
    _directions,
    _run_description,
    _tradeoff,
    _without_contour,
)
from gdpjax._composition._bounded_losses import BoundedLossEvents
from gdpjax._composition._likelihood_ratio import SubsampledGaussian
from gdpjax._composition._run_description import RunDescription
from gdpjax._core import checks
from gdpjax._core.gdp import epsilon_kernel
from gdpjax._core.precision import batched
from gdpjax._core.types import Array, Bounds

_TINY = 2.3e-308  # what underflows to zero is positive
SMALLEST_PROB = 1e-30
"""A smaller sampling probability is replaced by this one."""
_NEARLY_ALL = 0.9
"""Above this sampling probability a run reveals little less than without sampling."""
_SMALL_GROUP = 16
"""In larger groups, batches with more rows than ever come together are left out."""
_MISSED = 1e-60
"""The expected number of such batches in a run."""
_MOST_DRAWN = 256
"""Where more rows of a group may meet, the run is bounded by the one without sampling."""
_SMALLEST_EPSILON = 0.01
"""Down to this epsilon one is looked for at which delta does not underflow."""
_SMALLEST_ALPHA = 1e-300
_LARGEST_ALPHA = 1.0 - 1e-16
_SMALLEST_NOISE_SEARCHED = 0.2
"""For smaller noises the search for mu takes long and finds little better than mu without sampling."""
PROFILE_SHARING = (6, 24)
"""How many neighbouring epsilon of a profile share a contour: at least, and at most where they are close together."""
_CLOSE = 0.5
"""The ones that share a contour may span this many nats."""


class Family(NamedTuple):
    """A kind of run that is asked about, and how closely it is bracketed."""

    symmetric: bool = False
    """Uniform sampling under replace-one (the upper curve), instead of Poisson sampling."""
    replaced: bool = False
    """Poisson sampling under replace-one."""
    groups: bool = False
    """Whether the size of a group is an argument, after the steps; otherwise it is 1."""
    finite: bool = False
    """Whether there are events of bounded loss, further arguments."""
    rtol: float = _directions.RELATIVE_WIDTH
    """The relative width at which the search for an epsilon or a delta stops."""


POISSON = Family()


# ---------------------------------------------------------------------------------------------------------------------
# The run that arguments describe.


class _PreparedRun(NamedTuple):
    """A run without what does nothing, and whether a sampling probability was raised to the smallest that is used."""

    run: RunDescription
    raised: bool

    @property
    def is_nothing(self) -> bool:
        """Whether nothing is left."""
        return not self.run.steps and not self.run.finite


def prepare(family: Family, columns: tuple[Any, ...]) -> _PreparedRun:
    """Return the run that the columns [phases] describe: steps, size of the group, events of bounded loss."""
    vectors = [np.atleast_1d(np.asarray(column, np.float64)) for column in columns]
    noise_multipliers, sampling_probs, counts = vectors[:3]
    further = vectors[3:]
    if family.replaced:  # noise multipliers are relative to the distance of 2 of the two mixtures
        noise_multipliers = 2.0 * noise_multipliers
    group_size = 1.0
    if family.groups:
        (group_size,) = np.unique(further[0])
        further = further[1:]

    # Of a large group that is often sampled nothing better is known than without sampling.
    steps = []
    raised = False
    largest_draw, missed = _largest_draw(sampling_probs, counts, int(group_size))
    if largest_draw > _MOST_DRAWN:
        raised = True
        noise_multipliers = noise_multipliers / group_size
        sampling_probs = np.where(sampling_probs > 0, 1.0, 0.0)
        group_size, largest_draw, missed = 1.0, 1, np.zeros(counts.shape)
    rows = zip(noise_multipliers, sampling_probs, counts, missed, strict=True)
    for noise_multiplier, sampling_prob, count, missed_share in rows:
        if not (sampling_prob > 0 and count > 0):
            continue
        raised = raised or bool(sampling_prob < SMALLEST_PROB)
        step = SubsampledGaussian(
            noise_multiplier=noise_multiplier,
            sampling_prob=max(sampling_prob, SMALLEST_PROB),
            num_steps=count,
            group_size=largest_draw,
            symmetric=family.symmetric,
            num_rows=int(group_size),
            missed=missed_share,
            replaced=family.replaced,
        )
        steps.append(step)
    finite = _bounded_events(further) if family.finite else ()
    return _PreparedRun(RunDescription(tuple(steps), finite), raised)


def _largest_draw(sampling_probs: Array, counts: Array, size: int) -> tuple[int, Array]:
    """Return how many rows of a group are looked at in one batch, and bounds on the probabilities of more [phases]."""
    if size <= _SMALL_GROUP:
        return size, np.zeros(counts.shape)
    # At least two, since one alone would be drawn with the probability of a group of one.
    drawn = np.arange(2.0, min(size, _MOST_DRAWN + 1))[:, None]
    more = scipy.special.betainc(drawn + 1.0, size - drawn, np.maximum(sampling_probs, SMALLEST_PROB))
    is_enough = np.all(counts * more <= _MISSED, axis=1)
    if not is_enough.any():
        return size, np.zeros(counts.shape)
    first = int(np.argmax(is_enough))
    return int(drawn[first, 0]), more[first] * (1.0 + 1e-9) + _TINY


def _bounded_events(columns: list[np.ndarray]) -> tuple[BoundedLossEvents, ...]:
    """Return the events of bounded loss that the columns (count, bound, categories) describe."""
    events = []
    for count, bound, categories in zip(*columns, strict=True):
        if count > 0 and bound > 0:
            events.append(BoundedLossEvents(float(count), float(bound), float(categories)))
    return tuple(events)


# ---------------------------------------------------------------------------------------------------------------------
# The questions, about one run.


def _epsilons(runs: Sequence[RunDescription], delta: Array, rtol: float) -> list[Bounds]:
    """Return the bracket on epsilon of each of the runs, at its delta [runs]."""
    answers: list[Bounds | None] = []
    known = []
    for run, one_delta in zip(runs, delta, strict=True):
        answer, known_bounds = _epsilon_without_contour(run, one_delta, rtol)
        answers.append(answer)
        known.append(known_bounds)

    # The others by the contour, side by side.
    places = [place for place, answer in enumerate(answers) if answer is None]
    contoured = _directions.epsilons_of_runs([runs[place] for place in places], np.log(delta[places]), rtol)
    for place, lower, upper in zip(places, contoured.lower, contoured.upper, strict=True):
        bounds = Bounds(max(lower, known[place].lower), min(upper, known[place].upper))
        answers[place] = _epsilon_with_contour(runs[place], delta[place], rtol, bounds)
    return answers  # pyright: ignore[reportReturnType]


def _epsilon_without_contour(run: RunDescription, delta: float, rtol: float) -> tuple[Bounds | None, Bounds]:
    """Return the answer where it needs no contour, else None; and what is known."""
    known = Bounds(0.0, np.inf)
    if delta >= _run_description.chance_of_leaking(run):
        return Bounds(0.0, 0.0), known
    exact = _closed_form_epsilon(run, delta)
    if exact is not None:
        return Bounds(exact.lower, min(exact.upper, _epsilon_without_sampling(run, delta))), known

    # With hardly any noise the contour does not reach far.
    if _without_contour.has_little_noise(run):
        known = _without_contour.epsilon_by_number(run, delta)
        if known.upper - known.lower <= rtol * known.lower or _without_contour.number_suffices(run):
            return Bounds(known.lower, np.fmin(known.upper, _epsilon_without_sampling(run, delta))), known
    return None, known


def _epsilon_with_contour(run: RunDescription, delta: float, rtol: float, bounds: Bounds) -> Bounds:
    """Improve the bracket on epsilon that the contour gives, by bounds that cost little."""
    lower, upper = bounds
    log_delta = np.log(delta)
    if run.finite:
        lower = max(lower, _bounded_losses.epsilon_from_atom(run.finite, log_delta))

    # The bound without sampling is of use where nearly all examples are sampled, or the bracket is wide.
    nearly_all = all(step.sampling_prob > _NEARLY_ALL for step in run.steps)
    is_narrow = upper - lower <= rtol * lower
    if nearly_all or not is_narrow:
        upper = np.fmin(upper, _epsilon_without_sampling(run, delta))
    return Bounds(lower, upper)


def _closed_form_epsilon(run: RunDescription, delta: float) -> Bounds | None:
    """Return the epsilon of a run with a closed form, or None if it has none or it overflows."""
    if not _without_contour.has_closed_form(run):
        return None
    exact = _without_contour.closed_epsilon(run, delta)
    return exact if exact.upper < np.inf else None


def _epsilon_without_sampling(run: RunDescription, delta: float) -> float:
    """Return an upper bound on epsilon, since with sampling the steps reveal less.

    Near zero delta fixes epsilon only absolutely, which the 1e-12 is for.
    """
    mu = _run_description.gaussian_mu(run)
    gaussian = epsilon_kernel(np, delta, 1.0 - delta, mu)
    return gaussian * (1.0 + 1e-10) + 1e-12 + _bounded_losses.largest_loss(run.finite)


def _delta(run: RunDescription, epsilon: float, rtol: float) -> Bounds:
    """Return the bracket on delta at epsilon."""
    lower, upper = _deltas(run, np.array([epsilon]), rtol)
    return Bounds(lower[0], upper[0])


def _deltas(run: RunDescription, epsilon: Array, rtol: float) -> Bounds:
    """Return the brackets on delta at each epsilon [n], which share the work."""
    if _without_contour.has_closed_form(run):
        lower, upper = _without_contour.closed_delta(run, epsilon)
    elif _without_contour.has_little_noise(run) and _without_contour.number_suffices(run):
        lower, upper = np.array([_without_contour.delta_by_number(run, one) for one in epsilon]).T
    else:
        # As many neighbours share a contour as lie within some span.
        spacing = np.max(np.diff(epsilon), initial=1e-300)
        num_sharing = int(np.clip(_CLOSE / spacing, *PROFILE_SHARING))
        lower, upper = _directions.deltas_of_run(run, epsilon, num_sharing, rtol)
    if run.finite:
        lower = np.maximum(lower, _bounded_losses.delta_from_atom(run.finite, epsilon))
    # Delta falls, so one that underflows in the contour is at most that of a smaller epsilon.
    underflows = ~((lower > 0.0) | (upper < 1.0)) & (epsilon > _SMALLEST_EPSILON)
    if underflows.any():
        upper[underflows] = _deltas(run, epsilon[underflows] / 4.0, rtol).upper
    upper = np.fmin(upper, _run_description.chance_of_leaking(run))
    # A lower end that is not known, next to no noise, is 0.
    return Bounds(np.fmax(lower - _TINY, 0.0), np.minimum(upper + _TINY, 1.0))


def _tradeoff_at(run: RunDescription, alpha: float, _rtol: float) -> Bounds:
    """Return the bracket on the trade-off curve at alpha."""
    if alpha in (0.0, 1.0):
        return Bounds(1.0 - alpha, 1.0 - alpha)
    bounds = _tradeoff.tradeoff_of_run(run, min(max(alpha, _SMALLEST_ALPHA), _LARGEST_ALPHA))
    # The curve falls, so below the smallest alpha only the lower bound at it holds.
    if alpha < _SMALLEST_ALPHA:
        return Bounds(bounds.lower, 1.0)
    return bounds


def _mu(run: RunDescription, failure: float, _rtol: float) -> Bounds:
    """Return the bracket on mu with a failure probability."""
    # In any case the whole run has the mu of its releases without sampling.
    if any(step.noise_multiplier < _SMALLEST_NOISE_SEARCHED for step in run.steps):
        return Bounds(0.0, _run_description.trivial_mu(run))
    return _tradeoff.mu_of_run(run, failure)


def _nothing(_at: float) -> Bounds:
    return Bounds(0.0, 0.0)


class Question(NamedTuple):
    """A question about a run, the name and domain of what it is asked at, and its answer where nothing is revealed."""

    ask: Callable[[Sequence[RunDescription], Array, float], Sequence[Bounds]]
    argument: str
    domain: checks.Domain
    nothing: Callable[[float], Bounds]


def _one_by_one(ask: Callable[[RunDescription, float, float], Bounds]) -> Callable[..., list[Bounds]]:
    """Return a question about one run as one about several."""
    return lambda runs, at, rtol: [ask(run, one, rtol) for run, one in zip(runs, at, strict=True)]


EPSILON = Question(_epsilons, "delta", checks.OPEN_UNIT, _nothing)
DELTA = Question(_one_by_one(_delta), "epsilon", checks.NONNEGATIVE, _nothing)
TRADEOFF = Question(_one_by_one(_tradeoff_at), "alpha", checks.UNIT, _tradeoff.complement)
MU = Question(_one_by_one(_mu), "failure", checks.OPEN_UNIT, _nothing)


def _answers(question: Question, family: Family, runs: Sequence[_PreparedRun], at: Sequence[float]) -> list[Bounds]:
    """Return the answers about some runs, each asked at a number of its own."""
    answers = [question.nothing(one) for one in at]
    places = [place for place, run in enumerate(runs) if not run.is_nothing]
    asked = np.array([at[place] for place in places], np.float64)
    found = question.ask([runs[place].run for place in places], asked, family.rtol)
    for place, answer in zip(places, found, strict=True):
        # Of a run with a larger sampling probability than was asked about, so nothing at all is the other end.
        if runs[place].raised:
            nothing = answers[place]
            answer = Bounds(min(answer.lower, nothing.lower), max(answer.upper, nothing.upper))
        answers[place] = answer
    return answers


# ---------------------------------------------------------------------------------------------------------------------
# The questions, about arrays of runs, and about a run in phases.


@functools.cache
def of_runs(question: Question, family: Family = POISSON) -> Callable[..., Bounds]:
    """Return a question for broadcasting arrays of runs.

    Args:
        question: `EPSILON`, `DELTA`, `TRADEOFF` or `MU`.
        family: what kind of runs.

    Returns:
        a function of noise_multiplier, sampling_prob, num_steps, group_size if the family has groups, and what the
        question is asked at.
    """
    domains = dict(checks.RUN)
    if family.groups:
        domains["group_size"] = checks.COUNT
    domains[question.argument] = question.domain

    def core(configurations: list[tuple[float, ...]]) -> list[Bounds]:
        # Runs that are asked about at several numbers are prepared once.
        prepared = functools.cache(lambda *columns: prepare(family, columns))
        runs = [prepared(*columns) for *columns, _ in configurations]
        return _answers(question, family, runs, [at for *_, at in configurations])

    return batched(core, **domains)  # pyright: ignore


def of_phases(question: Question, family: Family, columns: tuple[Any, ...]) -> Callable[..., Bounds]:
    """Return a question about one run in phases.

    Args:
        question: as in `of_runs`.
        family: what kind of run.
        columns: noise_multiplier, sampling_prob and num_steps [phases], group_size if the family has groups, and count,
            bound and categories of the events of bounded loss, if it has such.

    Returns:
        a function of what the question is asked at.
    """
    run = prepare(family, columns)

    def core(configurations: list[tuple[float, ...]]) -> list[Bounds]:
        at = [one for (one,) in configurations]
        return _answers(question, family, [run] * len(at), at)

    return batched(core, **{question.argument: question.domain})  # pyright: ignore


def profile_of_phases(family: Family, columns: tuple[Any, ...], epsilon: np.ndarray, width: float) -> Bounds:
    """Return brackets on delta of one run in phases at each of many epsilon [n], which share the work.

    Args:
        family: what kind of run.
        columns: as in `of_phases`.
        epsilon: the vector of epsilon.
        width: the relative width that brackets aim at.
    """
    checks.check("epsilon", epsilon, checks.NONNEGATIVE)
    with np.errstate(all="ignore"):
        prepared = prepare(family, columns)
        if prepared.is_nothing:
            return Bounds(np.zeros(epsilon.shape), np.zeros(epsilon.shape))
        lower, upper = _deltas(prepared.run, np.asarray(epsilon, np.float64), width)
    if prepared.raised:  # the lower ends are those of a larger sampling probability
        lower = np.zeros_like(upper)
    return Bounds(lower, upper)
