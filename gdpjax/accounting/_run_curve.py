"""The certified curve of a run, which `certified` returns and the functions of `_certified` ask.

    curve = certified(1.0, 0.01, 1000)        # noise multiplier, sampling probability, steps
    curve = certified(plan.event)             # or a Ledger, or one of its events
    curve.epsilon(1e-5), curve.mu(), curve.tpr(0.01), curve.regret()

A run is described once; each question is then one call of `_numeric`, which computes on the host (`RunCurve`). Other
classes stand around such curves:

* `CurveWithLostMass` pays for a small probability of failure or overflow.
* `TruncatedCurve` and `ShuffledCurve` lie between the curves of two runs with simpler sampling.
* `AllocationCurve` and `GaussianCurve` ask other accountants.

The table `_CURVES` chooses among them.

**Neighbours.** Poisson sampling goes with ADD_OR_REMOVE_ONE, or with REPLACE_SPECIAL, which has the same curve: the
mixture (1 - p) N(0, s^2) + p N(1, s^2) against N(0, s^2), and the reverse.

Uniform sampling without replacement goes with REPLACE_ONE. The *upper* bound is that of the T-fold composition of
C_p(G_{1/s}), the *lower* bound the pair of Poisson sampling, which some data attain. The truth may be anywhere in
between, so the bracket is wide by nature (a ratio of 1.1 to 1.3 in epsilon is usual): docs/accounting.md says why.

Other pairs are refused.
"""

import abc
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from gdpjax._core.arguments import check_flag, check_instance, check_number, check_relation
from gdpjax._core.checks import (
    COUNT,
    EXTENDED_NONNEGATIVE,
    HALF_OPEN_UNIT,
    NONNEGATIVE,
    OPEN_UNIT,
    POSITIVE,
    UNIT,
    Domain,
    check,
    check_broadcast,
    check_scalar,
    is_traced,
)
from gdpjax._core.shown import shown
from gdpjax._core.types import FAILURE, Array, Bounds, NeighboringRelation
from gdpjax.accounting import _correlated, _numeric, _overflow, _shuffled, _truncated
from gdpjax.accounting._allocated import Allocated
from gdpjax.accounting._ledgers import Described, describe, events_of, hint_for
from gdpjax.accounting._numeric import Family
from gdpjax.accounting._overflow import Lost
from gdpjax.ledger import (
    AllocationEvent,
    AnyEvent,
    CorrelatedGaussianEvent,
    CyclicPoissonEvent,
    Event,
    Ledger,
    ShuffledEvent,
    TruncatedPoissonEvent,
    UniformEvent,
    event_type_of,
    resolve_relation,
)
from gdpjax.tradeoff import CertifiedCurve, CurveBounds, Gaussian

RTOL = 1e-3
"""The relative width at which the search for an epsilon or a delta stops, if nothing is said."""
_COARSE = 1e-4
"""At this relative width and above, brackets without a closed form are far wider than the rounding of a record."""
_RTOL = Domain("a number from 1e-6 to 1e-2", lambda x: (x >= 1e-6) & (x <= 1e-2))


def checked_group_size(group_size: int) -> int:
    """Return the group size as an int, or raise ValueError."""
    check("group_size", group_size, COUNT)
    if np.ndim(group_size) != 0:
        raise ValueError(f"group_size must be one whole number, got {shown(group_size)}")
    return int(group_size)  # 2.0 is a whole number, too


def family_of_runs(
    sampling: str,
    neighboring_relation: NeighboringRelation | None,
    group_size: int,
) -> Family:
    """Return the kind of homogeneous run that a call with arrays describes."""
    event_type = event_type_of(sampling)
    resolve_relation(event_type, neighboring_relation)
    is_uniform = event_type is UniformEvent
    if is_uniform and group_size > 1:
        raise ValueError(f"group_size > 1 is available for poisson sampling, got {sampling}")
    return Family(symmetric=is_uniform, groups=group_size > 1)


def check_options(
    ledger: Ledger | AnyEvent,
    sampling: str,
    relation: NeighboringRelation | None,
) -> None:
    """Raise ValueError where a keyword contradicts the events of a Ledger, which say these things themselves."""
    for event in events_of(ledger):
        if relation is not None and check_relation(relation) is not event.neighboring_relation:
            raise ValueError(f"expected neighboring_relation to be that of the events, got {relation}: leave it out")
        if event_type_of(sampling) is not Event and not isinstance(event, event_type_of(sampling)):
            raise ValueError(f"expected sampling to be that of the events, got {shown(sampling)}: leave it out")


class _CurveQuestion(NamedTuple):
    """A question that every curve answers.

    Attributes:
        name: the name of the number that it is asked at.
        domain: the domain of that number.
        with_lost_mass: the bracket on the answer after `Lost`, from the bracket of the ideal run.
    """

    name: str
    domain: Domain
    with_lost_mass: Callable[[Callable[[np.ndarray], Bounds], np.ndarray, Lost], Bounds]


_QUESTIONS = {
    "epsilon": _CurveQuestion("delta", OPEN_UNIT, _overflow.epsilon),
    "delta": _CurveQuestion("epsilon", NONNEGATIVE, _overflow.delta),
    "tradeoff": _CurveQuestion("alpha", UNIT, _overflow.tradeoff),
    "mu": _CurveQuestion("failure", OPEN_UNIT, _overflow.mu),
}


class AbstractRunCurve(CertifiedCurve):
    """The certified curve of something that was run, which is asked by the name of the question."""

    def epsilon(self, delta: Array) -> Bounds:
        """Bracket epsilon, as `epsilon_bounds` says."""
        return self._answer("epsilon", delta)

    def delta(self, epsilon: Array) -> Bounds:
        """Bracket delta, as `delta_bounds` says."""
        return self._answer("delta", epsilon)

    def mu(self, failure: Array = FAILURE) -> Bounds:
        """Bracket mu, as `mu_bounds` says."""
        return self._answer("mu", failure)

    def tradeoff(self, alpha: Array) -> Bounds:
        """Bracket the trade-off curve, as `tradeoff_bounds` says."""
        return self._answer("tradeoff", alpha)

    def regret(self, mu: Array | None = None) -> Bounds:
        """Bracket the regret of reporting mu, as `CertifiedCurve.regret`; of every run of an array."""
        if is_traced((self._arrays(), mu)):
            raise ValueError("regret is computed outside compiled code: give runs and mu as numbers")
        if mu is None:
            mu = self.mu().upper
        return self._one_by_one(CertifiedCurve.regret, mu)

    def reported_mu(self, failure: Array = FAILURE) -> Bounds:
        """Narrow the bracket of `mu`, as `CertifiedCurve.reported_mu`; of every run of an array."""
        if is_traced((self._arrays(), failure)):
            raise ValueError("a narrowed mu is computed outside compiled code: give runs and failure as numbers")
        return self._one_by_one(CertifiedCurve.reported_mu, failure)

    def _one_by_one(
        self,
        question: Callable[[CertifiedCurve, float], Bounds],
        at: Array,
    ) -> Bounds:
        """Return the answers of the single runs of an array, each at its element of ``at``."""
        check("the number asked at", at, EXTENDED_NONNEGATIVE)
        arrays = self._arrays()
        named_arrays = {f"column {i}": column for i, column in enumerate(arrays)}
        check_broadcast(**named_arrays, at=at)
        shape = np.broadcast_shapes(np.shape(at), *map(np.shape, arrays))
        if shape == ():
            return question(self, float(at))

        # Every element is a run of its own.
        at = np.broadcast_to(at, shape)
        columns = [np.broadcast_to(column, shape) for column in arrays]
        answer = Bounds(np.zeros(shape), np.zeros(shape))
        for index in np.ndindex(*shape):
            run = self._run_of(tuple(column[index] for column in columns))
            lower, upper = question(run, float(at[index]))
            answer.lower[index] = lower
            answer.upper[index] = upper
        return answer

    def _arrays(self) -> tuple[Array, ...]:
        """Return the arrays of which every element is a run of its own; none for the curve of one run."""
        return ()

    def _run_of(self, numbers: tuple[Array, ...]) -> CertifiedCurve:
        """Return the curve of the run with these elements of `_arrays`."""
        return self

    @abc.abstractmethod
    def _answer(self, question: str, at: Array) -> Bounds:
        """Return the bracket on the answer to a question of `_QUESTIONS`, asked at ``at``."""


class RunCurve(AbstractRunCurve):
    """The certified curve of a run, or of an array of runs; made by `certified`, which says what it holds.

    Attributes:
        family: the kind of run, and how closely it is looked at.
        columns: the arrays that `_numeric` takes, as runs or in phases.
        in_phases: whether the last axis of the columns is that of the phases of one run.
        releases: whether there is anything that is released.
    """

    def __init__(
        self,
        family: Family,
        columns: tuple[Array, ...],
        *,
        in_phases: bool,
        releases: bool = True,
    ) -> None:
        self.family = family
        self.columns = columns
        self.in_phases = in_phases
        self.releases = releases

    def _arrays(self) -> tuple[Array, ...]:
        return () if self.in_phases else self.columns

    def _run_of(self, numbers: tuple[Array, ...]) -> CertifiedCurve:
        if self.in_phases:
            return self
        return RunCurve(self.family, numbers, in_phases=False, releases=self.releases)

    def _answer(self, question: str, at: Array) -> Bounds:
        if not self.releases and not is_traced(at):
            name, domain, _ = _QUESTIONS[question]
            check(name, at, domain)
            return _of_nothing(question, np.asarray(at, np.float64))

        def ask(family: Family) -> Bounds:
            ask_runs = _numeric.of_phases if self.in_phases else _numeric.of_runs
            return ask_runs(question, family)(*self.columns, at)

        return self._bracket(question, ask)

    def _deltas(self, epsilon: np.ndarray, width: float) -> Bounds:
        """Bracket delta of one run at many epsilon, which share the work, to a given relative width."""
        if not self.releases:
            return _of_nothing("delta", epsilon)
        columns = self.columns if self.in_phases else _as_phases(self.columns)

        def ask(family: Family) -> Bounds:
            return _numeric.profile_of_phases(family)(*columns, epsilon, width)

        return self._bracket("delta", ask)

    def _bracket(self, question: str, ask: Callable[[Family], Bounds]) -> Bounds:
        """Return the bracket that ``ask`` gives for this kind of run."""
        answer = ask(self.family)
        if not self.family.symmetric:
            return answer

        # Under uniform sampling the two ends come from two different pairs of laws.
        poisson = ask(self.family._replace(symmetric=False))
        if question == "tradeoff":
            return Bounds(answer.lower, poisson.upper)
        return Bounds(poisson.lower, answer.upper)


class _LedgerCurve(AbstractRunCurve):
    """The certified curve of a Ledger that is asked outside compiled code."""

    def _answer(self, question: str, at: Array) -> Bounds:
        name, domain, _ = _QUESTIONS[question]
        check_concrete(name, at, domain)
        return self._concrete_answer(question, np.asarray(at, np.float64))

    @abc.abstractmethod
    def _concrete_answer(self, question: str, at: np.ndarray) -> Bounds:
        """Return the bracket on the answer to ``question``, at numbers in its domain."""


class CurveWithLostMass(_LedgerCurve):
    """The certified curve of a run that may fail, or overflow, from that of the run that does not: see `_overflow`.

    Attributes:
        ideal: the curve of the run if nothing is lost.
        lost: the probabilities of failure and overflow.
    """

    def __init__(self, ideal: CertifiedCurve, lost: Lost) -> None:
        self.ideal = ideal
        self.lost = lost

    def _concrete_answer(self, question: str, at: np.ndarray) -> Bounds:
        ideal = getattr(self.ideal, question)
        return _QUESTIONS[question].with_lost_mass(ideal, at, self.lost)

    def _deltas(self, epsilon: np.ndarray, width: float) -> Bounds:
        def ideal(epsilon: np.ndarray) -> Bounds:
            return self.ideal._deltas(epsilon, width)

        return _overflow.delta(ideal, epsilon, self.lost)


class TruncatedCurve(_LedgerCurve):
    """The certified curve of a Ledger with truncated Poisson batches: between those of two Ledgers without.

    Attributes:
        run: the Ledger, or its one event.
    """

    def __init__(self, run: Ledger | AnyEvent) -> None:
        self.run = run

    def _concrete_answer(self, question: str, at: np.ndarray) -> Bounds:
        def of_bound(bound: Ledger) -> Bounds:
            curve = of_description(describe(bound, 1))
            return getattr(curve, question)(at)

        return _truncated.bracket(self.run, question, at, of_bound)


class AllocationCurve(_LedgerCurve):
    """The certified curve of a Ledger with random allocation, alone or with other events, if nothing is lost.

    Attributes:
        run: the Ledger, split.
    """

    def __init__(self, run: Allocated) -> None:
        self.run = run

    def _concrete_answer(self, question: str, at: np.ndarray) -> Bounds:
        return self.run.answer(question, at)


class GaussianCurve(_LedgerCurve):
    """The curve of the Gaussian mechanism that is worse than a run of nothing but shuffled batches.

    Attributes:
        events: the shuffled batches.
    """

    def __init__(self, events: Sequence[ShuffledEvent]) -> None:
        self.events = events

    def _concrete_answer(self, question: str, at: np.ndarray) -> Bounds:
        return _shuffled.gaussian(self.events, question, at)


class CurveBetween(AbstractRunCurve):
    """The certified curve of a Ledger that lies between those of two others.

    Attributes:
        above, below: the curves of runs that reveal at least and at most as much.
    """

    def __init__(self, above: CertifiedCurve, below: CertifiedCurve) -> None:
        self.above = above
        self.below = below

    def _answer(self, question: str, at: Array) -> Bounds:
        above = getattr(self.above, question)(at)
        below = getattr(self.below, question)(at)
        if question == "tradeoff":
            return Bounds(above.lower, below.upper)
        return Bounds(below.lower, above.upper)


class GaussianReleases(_LedgerCurve):
    """The certified curve of a run that is mu-GDP, in closed form.

    Attributes:
        curve: the curves of a larger and of a smaller mu.
    """

    def __init__(self, smaller_mu: float, larger_mu: float) -> None:
        above = Gaussian(smaller_mu * (1.0 - _MU_ROUNDING))
        below = Gaussian(larger_mu * (1.0 + _MU_ROUNDING))
        self.curve = CurveBounds(below, above)

    def _concrete_answer(self, question: str, at: np.ndarray) -> Bounds:
        if question != "mu" or not at.ndim:
            return getattr(self.curve, question)(at)
        answers = [self.curve.mu(failure) for failure in at.ravel()]
        lower = np.array([answer.lower for answer in answers]).reshape(at.shape)
        upper = np.array([answer.upper for answer in answers]).reshape(at.shape)
        return Bounds(lower, upper)


_MU_ROUNDING = 1e-14
"""More than the rounding of a sum of squares, and of its root, relative."""


class ShuffledCurve(_LedgerCurve):
    """The certified curve of a Ledger with shuffled batches: between those of Ledgers without.

    Attributes:
        above, below: the curves of runs that reveal at least and at most as much.
        sums: the attacks on the largest noisy sums of the epochs, which prove more than ``below`` may; or None.
    """

    def __init__(self, run: Ledger | AnyEvent) -> None:
        shuffled_events = _shuffled.only_shuffled(run)
        if shuffled_events:
            overflow = min(math.fsum(event.overflow for event in shuffled_events), 1.0)
            lost = Lost(failure=0.0, silent=overflow)
            self.above = with_lost_mass(GaussianCurve(shuffled_events), lost)
        else:
            self.above = _curve_of_ledger(_shuffled.from_above(run))
        self.below = _curve_of_ledger(_shuffled.from_below(run))
        self.sums = _shuffled.largest_sums(run)

    def reported_mu(self, failure: float = FAILURE) -> Bounds:
        """Return the bracket of `mu`: the truth may be anywhere in it, and no narrower one is known."""
        return self.mu(failure)

    def _concrete_answer(self, question: str, at: np.ndarray) -> Bounds:
        below = getattr(self.below, question)(at)
        above = getattr(self.above, question)(at)
        if question == "tradeoff":
            upper = _shuffled.bounded_from_below(question, at, below.upper, self.sums)
            return Bounds(np.minimum(above.lower, upper), upper)
        lower = _shuffled.bounded_from_below(question, at, below.lower, self.sums)
        return Bounds(np.minimum(lower, above.upper), above.upper)


def _as_phases(columns: tuple[Array, ...]) -> tuple[np.ndarray, ...]:
    """Return the columns of one homogeneous run as those of a run with one phase."""
    return tuple(np.reshape(np.asarray(column, np.float64), 1) for column in columns)


def _of_nothing(question: str, at: np.ndarray) -> Bounds:
    """Return the answer for a run that releases nothing."""
    if question == "tradeoff":
        return _numeric.complement(at)
    return Bounds(np.zeros_like(at)[()], np.zeros_like(at)[()])


def _is_zero(noise_multiplier: Any) -> bool:
    """Return whether this is the one number 0, known before compiling."""
    if isinstance(noise_multiplier, bool | np.timedelta64):
        return False
    if not isinstance(noise_multiplier, int | float | np.floating | np.integer):
        return False
    return bool(noise_multiplier == 0)


def check_concrete(name: str, value: Any, domain: Domain) -> None:
    """Raise ValueError unless the value is known before compiling and in its domain."""
    if is_traced(value):
        kind = "a Ledger with overflow, truncated or shuffled batches, allocation or delta"
        raise ValueError(f"{kind} is read outside compiled code, where {name} is a number")
    check(name, value, domain)


def with_lost_mass(ideal: CertifiedCurve, lost: Lost) -> CertifiedCurve:
    """Return the curve of a run that may fail or overflow, from that of the run that does not."""
    if lost.is_nothing:
        return ideal
    return CurveWithLostMass(ideal, lost)


def of_description(described: Described, rtol: float = RTOL) -> CertifiedCurve:
    """Return the curve of a Ledger that was described."""
    family = described.family._replace(rtol=rtol)
    ideal = RunCurve(family, described.columns, in_phases=True, releases=described.releases)
    return with_lost_mass(ideal, described.lost)


def _between(run: Ledger | AnyEvent, group_size: int, rtol: float) -> CertifiedCurve:
    """Return the curve of correlated noise, or of events that are not exact: between those of two Ledgers without."""
    reveals_more = _correlated.from_above(run)
    reveals_less = _correlated.from_below(run)
    mu = _correlated.mu_of_gaussians(reveals_more)
    if mu is not None and mu > 0 and group_size == 1:
        return GaussianReleases(_correlated.mu_of_gaussians(reveals_less) or 0.0, mu)
    above = _curve_of_ledger(reveals_more, group_size, rtol)
    below = _curve_of_ledger(reveals_less, group_size, rtol)
    return CurveBetween(above, below)


def _of_allocation(run: Ledger | AnyEvent) -> CertifiedCurve:
    """Return the curve of a run with random allocation."""
    allocated = Allocated(run)
    return with_lost_mass(AllocationCurve(allocated), allocated.lost)


def _alone(curve: Callable[[Ledger | AnyEvent], CertifiedCurve]) -> Callable[..., CertifiedCurve]:
    """Return the function of a curve that is known for one example, and at one relative width."""

    def checked(run: Ledger | AnyEvent, group_size: int, rtol: float) -> CertifiedCurve:
        name = curve.__name__.strip("_").removeprefix("of_").removesuffix("Curve").lower()
        if group_size > 1:
            raise ValueError(f"group_size > 1 is available for poisson sampling, got {name} batches")
        if rtol != RTOL:
            raise ValueError(f"rtol is available for poisson and uniform sampling, got {name} batches: leave it out")
        return curve(run)

    return checked


_CURVES: dict[type, Callable[..., CertifiedCurve]] = {
    CorrelatedGaussianEvent: _between,
    CyclicPoissonEvent: _between,
    ShuffledEvent: _alone(ShuffledCurve),
    AllocationEvent: _alone(_of_allocation),
    TruncatedPoissonEvent: _alone(TruncatedCurve),
}
"""What makes the curve of a run that has such an event; the first that is there counts. All other events are phases."""


def _curve_of_ledger(
    run: Ledger | AnyEvent,
    group_size: int = 1,
    rtol: float = RTOL,
) -> CertifiedCurve:
    """Return the curve of a Ledger or event, by the table of events."""
    events = events_of(run)
    if not all(getattr(event, "is_exact", True) for event in events):
        return _between(run, group_size, rtol)
    kinds = {type(event) for event in events}
    for kind, curve in _CURVES.items():
        if kind in kinds:
            return curve(run, group_size, rtol)

    # Steps and releases that are phases, and events of bounded loss.
    described = describe(run, group_size)
    curve = of_description(described, rtol)
    prepared = _numeric.prepare(described.family, described.columns)
    is_narrow = rtol < _COARSE or _numeric.has_closed_form(prepared.run)
    if not is_narrow or not _correlated.may_be_rounded(run):
        return curve

    # A bracket this narrow allows for the rounding of recorded numbers.
    before_rounding = Ledger(_correlated.before_rounding(event) for event in events)
    below = of_description(describe(before_rounding, group_size), rtol)
    return CurveBetween(curve, below)


def curve_of(
    run: Any,
    sampling_prob: Any,
    num_steps: Any,
    sampling: str,
    neighboring_relation: NeighboringRelation | None,
    group_size: int,
    rtol: float = RTOL,
) -> CertifiedCurve:
    """Return the curve of `certified`, after the checks of its form; arrays are checked when they are used.

    Args:
        run: the noise multiplier of arrays, or a Ledger or event.
        sampling_prob, num_steps, sampling, neighboring_relation, group_size, rtol: as in `certified`.
    """
    group_size = checked_group_size(group_size)
    check_scalar("rtol", rtol, _RTOL)
    rtol = float(rtol)
    if isinstance(run, Ledger | AnyEvent):
        check_options(run, sampling, neighboring_relation)
        return _curve_of_ledger(run, group_size, rtol)
    if _is_zero(run):
        # The events of a Ledger may be without noise.
        event = event_type_of(sampling)(0.0, sampling_prob, num_steps, neighboring_relation)
        return of_description(describe(event, group_size), rtol)
    family = family_of_runs(sampling, neighboring_relation, group_size)._replace(rtol=rtol)
    size = (group_size,) if group_size > 1 else ()
    return RunCurve(family, (run, sampling_prob, num_steps, *size), in_phases=False)


def certified(
    noise_multiplier: Array | Ledger | AnyEvent,
    sampling_prob: Array | None = None,
    num_steps: Array | None = None,
    *,
    sampling: str = "poisson",
    neighboring_relation: NeighboringRelation | None = None,
    group_size: int = 1,
    rtol: float = RTOL,
) -> CertifiedCurve:
    """Return the certified trade-off curve of subsampled Gaussian steps, or of a whole Ledger, to ask anything about.

    Args:
        noise_multiplier: stddev of the noise / sensitivity, > 0, or the one number 0 for a run without privacy; or a
            `Ledger` or one of its events, then nothing else follows.
        sampling_prob: probability in [0, 1] that an example takes part in a step.
        num_steps: number of steps, a whole number >= 1. Arrays broadcast: one run an element.
        sampling: "poisson", or "uniform" for batches of a fixed size without replacement. The events of a Ledger say it
            themselves.
        neighboring_relation: ADD_OR_REMOVE_ONE (default) or REPLACE_SPECIAL with poisson, REPLACE_ONE with uniform.
        group_size: how many examples were all added, or all removed, >= 1, static; above 1 with poisson sampling
            only.
        rtol: relative width of the brackets on epsilon and delta at which the search for them stops, 1e-6 to 1e-2,
            static. Below 1e-5 many brackets stay wider than it. Of allocation, truncated and shuffled batches it is the
            default.

    Returns:
        A `gdpjax.tradeoff.CertifiedCurve`, whose answers are certified brackets: epsilon, delta, mu, tradeoff, and what
        follows from them, regret, advantage, tpr and bayes_success. The four that have a function of their own in
        `gdpjax.accounting` give exactly its answer.

    Raises:
        ValueError: as `epsilon_bounds`.

    Reference: Dong, Roth and Su, arXiv:1905.02383 (trade-off functions); Gopi, Lee and Wutschitz, arXiv:2106.02848
    (numerical composition).

    >>> curve = certified(1.0, 0.01, 1000)
    >>> epsilon, success = curve.epsilon(1e-5), curve.bayes_success(0.5)
    >>> bool(epsilon.lower <= 1.82824 <= epsilon.upper), bool(0.5 < success.lower < success.upper < 0.7)
    (True, True)
    """
    group_size = checked_group_size(group_size)
    if isinstance(noise_multiplier, Ledger | AnyEvent):
        if sampling_prob is not None or num_steps is not None:
            raise ValueError("after a Ledger nothing else follows: certified(ledger)")
    else:
        _check_arrays(noise_multiplier, sampling_prob, num_steps)
    return curve_of(
        noise_multiplier,
        sampling_prob,
        num_steps,
        sampling,
        neighboring_relation,
        group_size,
        rtol,
    )


def _check_arrays(
    noise_multiplier: Array,
    sampling_prob: Array | None,
    num_steps: Array | None,
) -> None:
    """Raise ValueError unless all three are given, in their ranges, and broadcast."""
    given = {
        "noise_multiplier": noise_multiplier,
        "sampling_prob": sampling_prob,
        "num_steps": num_steps,
    }
    missing = [name for name, value in given.items() if value is None]
    if missing:
        alternatives = f"give all of {', '.join(given)}, or a Ledger{hint_for(noise_multiplier)}"
        raise ValueError(f"missing {', '.join(missing)}; {alternatives}")
    if _is_zero(noise_multiplier):
        return
    check("noise_multiplier", noise_multiplier, POSITIVE)
    check("sampling_prob", sampling_prob, UNIT)
    check("num_steps", num_steps, COUNT)
    check_broadcast(**given)


def with_overflow(
    curve: CertifiedCurve,
    overflow: float,
    *,
    announced: bool = False,
) -> CertifiedCurve:
    """Return the certified curve of a run whose padded batches may overflow, from that of the run without overflow.

    Formula: delta_ideal(e) - overflow <= delta(e) <= overflow + (1 - overflow) delta_ideal(e) where it is announced;
    where it is not, overflow (1 + e^e) on the left. A `Ledger` with overflow in its events needs no such call.

    Args:
        curve: of the run without overflow, as `certified` gives it.
        overflow: probability in [0, 1) that some batch of the run does not fit.
        announced: whether the run stops at such a batch and says so, as in `gdpjax.Event`.

    Returns:
        A `gdpjax.tradeoff.CertifiedCurve`; certified.

    Raises:
        ValueError: something else than a curve, or a number that is out of range or traced.

    >>> curve = certified(1.0, 0.01, 1000, group_size=2)
    >>> padded = with_overflow(curve, 1e-8, announced=True)
    >>> bool(padded.epsilon(1e-5).upper > curve.epsilon(1e-5).upper)
    True
    """
    check_instance("curve", curve, CertifiedCurve, "such as gdpjax.accounting.certified gives")
    overflow = check_number("overflow", overflow, HALF_OPEN_UNIT)
    if check_flag("announced", announced):
        lost = Lost(failure=0.0, silent=0.0, announced=overflow)
    else:
        lost = Lost(failure=0.0, silent=overflow)
    return with_lost_mass(curve, lost)


def mu_and_regret(
    noise_multiplier: Array,
    sampling_prob: Array,
    num_steps: Array,
) -> tuple[Bounds, Bounds]:
    """Bracket the mu to report for a run of Poisson-sampled Gaussian steps, and its regret.

    Formula: mu as `mu_bounds` with failure probability 1e-10, in a bracket of about 1e-4; the regret of reporting the
    upper end of it is inf { k >= 0 : f(a + k) - k <= G_mu(a) for all a }, see `gdpjax.tradeoff.CertifiedCurve.regret`.

    Args:
        noise_multiplier: stddev of the noise / sensitivity, > 0, or the one number 0.
        sampling_prob: probability in [0, 1] that an example takes part in a step.
        num_steps: number of steps, a whole number >= 1. All arguments broadcast.

    Returns:
        (mu, regret), each ``Bounds`` of the broadcast shape; certified. A regret below about 0.01 says that the two
        numbers together describe the run well.

    Raises:
        ValueError: an argument outside its range, or traced.

    Reference: Gomez, Kulynych et al., arXiv:2503.10945.

    >>> mu, regret = mu_and_regret(9.4, 0.328, 2000)
    >>> print(f"{mu.upper:.3f} {regret.upper:.4f}")
    1.569 0.0011
    """
    curve = certified(noise_multiplier, sampling_prob, num_steps)
    mu = curve.reported_mu()
    return mu, curve.regret(mu.upper)
