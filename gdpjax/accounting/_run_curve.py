"""The certified curve of a run, which `certified` returns and the functions of `_certified` ask.

    curve = certified(1.0, 0.01, 1000)        # noise multiplier, sampling probability, steps
    curve = certified(plan.event)             # or a Ledger, or one of its events
    curve.epsilon(1e-5), curve.mu(), curve.tpr(0.01), curve.regret()

A run is described once; each question is then one call of `_composition`, which computes on the host (`RunCurve`).
Other classes stand around such curves or in their place; `_curve_of_ledger` chooses among them:

* `Between` lies between the curves of other runs, `Meet` is known in two ways, `WithFailure` pays for a small
  probability of failure or overflow.
* `closed_form` makes the curve of a mu-GDP run; `OutcomesCurve` is that of random allocation and of what is given by
  outcomes.

**Neighbours.** Poisson sampling goes with ADD_OR_REMOVE_ONE, or with REPLACE_SPECIAL, which has the same curve: the
mixture (1 - p) N(0, s^2) + p N(1, s^2) against N(0, s^2), and the reverse.

Under REPLACE_ONE the example is x in one data set and x' in the other, and is in a Poisson batch with probability p.
Let the largest distance of x and x', which is 2C, be 1: both lie in the ball of radius 1/2, and the noise has the
standard deviation s, the noise multiplier. A test that rejects with probability a under N(0, s^2 I), the sum without
the example, rejects with at most Phi(z_a + 1 / (2 s)) at x and with at least Phi(z_a - 1 / (2 s)) at x', where z_a =
Phi^-1(a) (Neyman and Pearson). A half-line attains both at x = 1/2 and x' = -1/2, in one dimension. So this pair of
mixtures, (1 - p) N(0, s^2) + p N(1/2, s^2) and (1 - p) N(0, s^2) + p N(-1/2, s^2), dominates (Lebeda, Regehr, Kamath
and Steinke, arXiv:2405.20769).

Uniform sampling without replacement goes with REPLACE_ONE. The *upper* bound is that of the T-fold composition of
C_p(G_{1/s}), the *lower* bound the pair of Poisson sampling, which some data attain. The truth may be anywhere in
between, so the bracket is wide by nature (a ratio of 1.1 to 1.3 in epsilon is usual): docs/accounting.md says why.

Other pairs are refused.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gdpjax._composition import (
    Family,
    has_closed_form,
    of_phases,
    of_runs,
    prepare,
    profile_of_phases,
)
from gdpjax._core.arguments import check_count, check_relation
from gdpjax._core.checks import REAL, RUN, Domain, check, check_scalar, known
from gdpjax._core.types import Array, Bounds, NeighboringRelation, Numbers
from gdpjax.accounting import _shuffled
from gdpjax.accounting._combinators import QUESTIONS, AccountedCurve, Between, between, closed_form
from gdpjax.accounting._ledgers import (
    before_rounding,
    check_form,
    check_relations,
    describe,
    events_of,
    exact_from_above,
    exact_from_below,
    may_be_rounded,
    mu_of_gaussians,
)
from gdpjax.accounting._outcomes import is_given_by_outcomes
from gdpjax.accounting._outcomes_curve import curve_of_outcomes
from gdpjax.accounting._overflow import with_failure
from gdpjax.accounting._truncated import TruncatedCurve
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
from gdpjax.tradeoff import CertifiedCurve

RTOL = 1e-3
"""The relative width at which the search for an epsilon or a delta stops, if nothing is said."""
_COARSE = 1e-4
"""At this relative width and above, brackets without a closed form are far wider than the rounding of a record."""
_RTOL = Domain("a number from 1e-6 to 1e-2", lambda x: (x >= 1e-6) & (x <= 1e-2))


def family_of_runs(
    sampling: str,
    neighboring_relation: NeighboringRelation | None,
    group_size: int,
) -> Family:
    """Return the kind of homogeneous run that a call with arrays describes."""
    event_type = event_type_of(sampling)
    relation = resolve_relation(event_type, neighboring_relation)
    is_uniform = event_type is UniformEvent
    replaces_one = relation is NeighboringRelation.REPLACE_ONE
    if replaces_one and group_size > 1:
        known = "group_size > 1 is available for poisson sampling under ADD_OR_REMOVE_ONE or REPLACE_SPECIAL"
        raise ValueError(f"{known}, got {sampling} under {relation.name}")
    return Family(symmetric=is_uniform, replaced=replaces_one and not is_uniform, groups=group_size > 1)


def check_options(
    ledger: Ledger | AnyEvent,
    sampling: str,
    relation: NeighboringRelation | None,
) -> None:
    """Raise ValueError where a keyword contradicts the events of a Ledger, which say these things themselves."""
    for event in events_of(ledger):
        is_other_relation = relation is not None and check_relation(relation) is not event.neighboring_relation
        is_other_kind = event_type_of(sampling) is not Event and not isinstance(event, event_type_of(sampling))
        if is_other_relation or is_other_kind:
            raise ValueError("leave neighboring_relation and sampling out: of a Ledger they are those of its events")


class RunCurve(AccountedCurve):
    """The certified curve of a run, or of an array of runs, by one pair of laws.

    Args:
        family: the kind of run, and how closely it is looked at.
        columns: the arrays that `_composition` takes, as runs or in phases.
        in_phases: whether the last axis of the columns is that of the phases of one run.
    """

    def __init__(self, family: Family, columns: tuple[Array, ...], *, in_phases: bool) -> None:
        self.family = family
        self.columns = columns
        self.in_phases = in_phases

    def _ask(self, question: str, at: Numbers) -> Bounds:
        if self.in_phases:
            return of_phases(QUESTIONS[question], self.family, self.columns)(at)
        return of_runs(QUESTIONS[question], self.family)(*self.columns, at)

    def _deltas(self, epsilon: np.ndarray, width: float) -> Bounds:
        columns = self.columns if self.in_phases else tuple(np.reshape(column, 1) for column in self.columns)
        return profile_of_phases(self.family, columns, epsilon, width)

    def _runs(self) -> np.ndarray:
        if self.in_phases:
            return super()._runs()
        columns = [known("every number of a run", column, REAL) for column in self.columns]
        return np.vectorize(self._run_of, otypes=[object])(*columns)

    def _run_of(self, *numbers: float) -> "RunCurve":
        return RunCurve(self.family, numbers, in_phases=False)


class UniformCurve(Between):
    """The certified curve of a run with uniform sampling, whose two ends come from two pairs of laws."""

    def _deltas(self, epsilon: np.ndarray, width: float) -> Bounds:
        return between("delta", *(curve._deltas(epsilon, width) for curve in (self.above, *self.below)))

    def _runs(self) -> np.ndarray:
        parts: list[Any] = [curve._runs() for curve in (self.above, *self.below)]  # pyright: ignore
        return np.vectorize(UniformCurve, otypes=[object])(*parts)


def _curve_of_columns(family: Family, columns: tuple[Array, ...], *, in_phases: bool) -> CertifiedCurve:
    """Return the curve of runs, or of one in phases, that loses nothing."""
    curve = RunCurve(family, columns, in_phases=in_phases)
    if not family.symmetric:
        return curve
    poisson = RunCurve(family._replace(symmetric=False), columns, in_phases=in_phases)
    return UniformCurve(curve, poisson)


def _is_zero(noise_multiplier: Any) -> bool:
    """Return whether this is the one number 0, known before compiling."""
    return isinstance(noise_multiplier, int | float | np.floating | np.integer) and bool(noise_multiplier == 0)


def _curve_of_phases(run: Ledger | AnyEvent, group_size: int = 1, rtol: float = RTOL) -> CertifiedCurve:
    """Return the curve of steps and releases that are phases, and of events of bounded loss."""
    described = describe(run, group_size)
    family = described.family._replace(rtol=rtol)
    ideal = _curve_of_columns(family, described.columns, in_phases=True)
    return with_failure(ideal, described.lost)


def _curve_of_steps(run: Ledger | AnyEvent, group_size: int, rtol: float) -> CertifiedCurve:
    """Return `_curve_of_phases`, in a bracket that allows for the rounding of recorded numbers."""
    curve = _curve_of_phases(run, group_size, rtol)
    described = describe(run, group_size)
    prepared = prepare(described.family, described.columns)
    is_narrow = rtol < _COARSE or has_closed_form(prepared.run)
    if not is_narrow or not may_be_rounded(run):
        return curve
    reveals_less = Ledger(before_rounding(event) for event in events_of(run))
    return Between(curve, _curve_of_phases(reveals_less, group_size, rtol))


def _curve_of_others(run: Ledger | AnyEvent, group_size: int, rtol: float) -> CertifiedCurve:
    """Return the curve of correlated noise, or of events that are not exact: between those of two Ledgers without."""
    if group_size > 1 and any(isinstance(event, CyclicPoissonEvent) for event in events_of(run)):
        raise ValueError("leave group_size out: the rows of a group may be in several groups of cyclic Poisson batches")
    reveals_more = exact_from_above(run)
    reveals_less = exact_from_below(run)
    mu = mu_of_gaussians(reveals_more)
    if mu is not None and mu > 0 and group_size == 1:
        return closed_form(mu_of_gaussians(reveals_less) or 0.0, mu)
    above = _curve_of_ledger(reveals_more, group_size, rtol)
    below = _curve_of_ledger(reveals_less, group_size, rtol)
    return Between(above, below)


def _curve_of_shuffled(run: Ledger | AnyEvent) -> CertifiedCurve:
    """Return the curve of a run with shuffled batches: between those of Ledgers without."""
    reveals_more = _shuffled.from_above(run)
    mu = mu_of_gaussians(reveals_more)
    above = closed_form(0.0, mu) if mu else _curve_of_ledger(reveals_more)
    below = _curve_of_ledger(_shuffled.from_below(run))
    return _shuffled.ShuffledCurve(above, below, *_shuffled.largest_sums(run))


def _of_one_example(events: Sequence[AnyEvent]) -> tuple[str, Callable[..., CertifiedCurve]] | None:
    """Return what makes the curve of events of which it is known for one example and at one relative width, if any."""
    kinds = {type(event) for event in events}
    if AllocationEvent in kinds and ShuffledEvent not in kinds:
        return "allocation batches", curve_of_outcomes
    if any(is_given_by_outcomes(event) for event in events):
        return "events that are given by outcomes", curve_of_outcomes
    if ShuffledEvent in kinds:
        return "shuffled batches", _curve_of_shuffled
    if TruncatedPoissonEvent in kinds:
        return "truncated batches", lambda run: TruncatedCurve(run, _curve_of_phases)
    return None


def _curve_of_ledger(run: Ledger | AnyEvent, group_size: int = 1, rtol: float = RTOL) -> CertifiedCurve:
    """Return the curve of a Ledger or event."""
    events = events_of(run)
    check_relations(events)
    kinds = {type(event) for event in events}
    is_exact = all(getattr(event, "is_exact", True) for event in events)
    if not is_exact or kinds & {CorrelatedGaussianEvent, CyclicPoissonEvent}:
        return _curve_of_others(run, group_size, rtol)
    found = _of_one_example(events)
    if found is not None:
        name, curve_of_kind = found
        if group_size > 1 or rtol != RTOL:
            raise ValueError(f"leave group_size and rtol out: they are for Poisson batches, got {name}")
        return curve_of_kind(run)
    return _curve_of_steps(run, group_size, rtol)


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
    group_size = check_count("group_size", group_size)
    check_scalar("rtol", rtol, _RTOL)
    rtol = float(rtol)
    if isinstance(run, Ledger | AnyEvent):
        check_options(run, sampling, neighboring_relation)
        return _curve_of_ledger(run, group_size, rtol)
    if _is_zero(run):
        # The events of a Ledger may be without noise.
        event = event_type_of(sampling)(0.0, sampling_prob, num_steps, neighboring_relation)
        return _curve_of_phases(event, group_size, rtol)
    family = family_of_runs(sampling, neighboring_relation, group_size)._replace(rtol=rtol)
    size = (group_size,) if group_size > 1 else ()
    return _curve_of_columns(family, (run, sampling_prob, num_steps, *size), in_phases=False)


def certified(
    noise_multiplier: Numbers | Ledger | AnyEvent,
    sampling_prob: Numbers | None = None,
    num_steps: Numbers | None = None,
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
        neighboring_relation: ADD_OR_REMOVE_ONE (default), REPLACE_SPECIAL or REPLACE_ONE with poisson, REPLACE_ONE with
            uniform.
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
    is_ledger = check_form(noise_multiplier, sampling_prob, num_steps)
    if not is_ledger and not _is_zero(noise_multiplier):
        for (name, domain), value in zip(RUN.items(), (noise_multiplier, sampling_prob, num_steps), strict=True):
            check(name, value, domain)
    return curve_of(noise_multiplier, sampling_prob, num_steps, sampling, neighboring_relation, group_size, rtol)


def mu_and_regret(
    noise_multiplier: Numbers,
    sampling_prob: Numbers,
    num_steps: Numbers,
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
