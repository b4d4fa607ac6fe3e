"""The certified accountant: brackets on epsilon, delta, the trade-off curve and mu of what was run.

Each function takes either arrays (noise_multiplier, sampling_prob, num_steps, ...) that broadcast together, one
homogeneous run per element, or one `Ledger` (or event) whose phases may differ. The computation is `_numeric`'s.

**Neighbours.** Poisson sampling goes with ADD_OR_REMOVE_ONE, or with REPLACE_SPECIAL, which has the same curve: the
mixture (1 - p) N(0, s^2) + p N(1, s^2) against N(0, s^2), and the reverse.

Uniform sampling without replacement goes with REPLACE_ONE. No step is worse than C_p(G_{1/s}), whatever the data
(Dong, Roth and Su, arXiv:1905.02383, Section 4), and composition keeps that order: the *upper* bound is that of the
T-fold composition of its symmetric pair. Let all other examples have gradient -C and the one that is replaced C and -C
in the two data sets. The sum then differs by the sensitivity 2C if that one is in the batch, which has probability p
at every step: the pair of Poisson sampling, attained, is the *lower* bound. The truth may be anywhere in between, so
the bracket is wide by nature (a ratio of 1.1 to 1.3 in epsilon is usual).

Other pairs are refused.
"""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from gdpjax._core.arguments import check_relation
from gdpjax._core.checks import COUNT, NONNEGATIVE, OPEN_UNIT, UNIT, Domain, check, is_traced
from gdpjax._core.shown import shown
from gdpjax._core.types import Array, Bounds, NeighboringRelation
from gdpjax.accounting import _allocated, _lost_mass, _numeric, _truncated
from gdpjax.accounting._ledgers import describe, largest_group
from gdpjax.accounting._numeric import Family
from gdpjax.ledger import AnyEvent, Event, Ledger, resolve_relation

_LARGEST_GROUP = 64


def _checked_group_size(group_size: int) -> int:
    check("group_size", group_size, COUNT)
    if np.ndim(group_size) != 0 or group_size > _LARGEST_GROUP:
        raise ValueError(f"group_size must be one whole number between 1 and {_LARGEST_GROUP}, got {shown(group_size)}")
    return int(group_size)  # 2.0 is a whole number, too


def _family(sampling: str, neighboring_relation: NeighboringRelation | None, group_size: int) -> Family:
    """The kind of homogeneous run that a call with arrays describes."""
    resolve_relation(sampling, neighboring_relation)
    if sampling == "uniform" and group_size > 1:
        raise ValueError(f"group_size > 1 is available for poisson sampling, got {sampling}")
    return Family(symmetric=sampling == "uniform", largest_group=largest_group(group_size))


def _is_ledger(run: Any, sampling_prob: Any, num_steps: Any, query: Any, name: str, options: tuple[Any, Any]) -> bool:
    """Whether ``run`` is a Ledger; ValueError unless the call is complete in the form that it then has."""
    if isinstance(run, Ledger | AnyEvent):
        if sampling_prob is not None or num_steps is not None:
            raise ValueError(f"after a Ledger give {name} as a keyword: f(ledger, {name}=...), and nothing else")
        if query is None:
            raise ValueError(f"{name} is missing: f(ledger, {name}=...)")
        _check_options(run, *options)
        return True
    values = {"noise_multiplier": run, "sampling_prob": sampling_prob, "num_steps": num_steps, name: query}
    missing = [key for key, value in values.items() if value is None]
    if missing:
        raise ValueError(f"missing {', '.join(missing)}; give all of {', '.join(values)}, or a Ledger and {name}=...")
    return False


def _check_options(ledger: Ledger | AnyEvent, sampling: str, relation: NeighboringRelation | None) -> None:
    """The events of a Ledger say these themselves, so keywords can only agree or be wrong."""
    for event in ledger.events if isinstance(ledger, Ledger) else [ledger]:
        if relation is not None and check_relation(relation) is not event.neighboring_relation:
            raise ValueError(f"expected neighboring_relation to be that of the events, got {relation}: leave it out")
        if sampling != "poisson" and sampling != getattr(event, "sampling", sampling):
            raise ValueError(f"expected sampling to be that of the events, got {shown(sampling)}: leave it out")


def _bracket(lift: Callable[..., Any], question: str, family: Family, arrays: tuple[Any, ...], at: Any) -> Bounds:
    """The bracket on a run's answer, where ``lift`` is `_numeric.of_runs` or `_numeric.of_phases`."""
    answer = lift(question, family)(*arrays, at)
    if not family.symmetric:
        return answer
    poisson = lift(question, family._replace(symmetric=False))(*arrays, at)
    if question == "tradeoff":
        return Bounds(answer.lower, poisson.upper)
    return Bounds(poisson.lower, answer.upper)


_QUESTIONS = {
    "epsilon": ("delta", OPEN_UNIT, _lost_mass.epsilon),
    "delta": ("epsilon", NONNEGATIVE, _lost_mass.delta),
    "tradeoff": ("alpha", UNIT, _lost_mass.tradeoff),
    "mu": ("failure", OPEN_UNIT, _lost_mass.mu),
}
"""What each question is asked at, and what lost mass does to its answer."""


def _answer(
    question: str, run: Any, sampling_prob: Any, num_steps: Any, at: Any, sampling: str,
    neighboring_relation: NeighboringRelation | None, group_size: int,
) -> Bounds:  # fmt: skip
    name, domain, with_lost_mass = _QUESTIONS[question]
    group_size = _checked_group_size(group_size)
    options = sampling, neighboring_relation
    if not _is_ledger(run, sampling_prob, num_steps, at, name, options):
        if _is_zero(run):  # the events of a Ledger may be without noise
            event = Event(0.0, sampling_prob, num_steps, *options)  # pyright: ignore[reportArgumentType]
            return _answer(question, event, None, None, at, "poisson", None, group_size)
        family = _family(sampling, neighboring_relation, group_size)
        size = (group_size,) if group_size > 1 else ()
        return _bracket(_numeric.of_runs, question, family, (run, sampling_prob, num_steps, *size), at)
    if (event := _allocated.allocated(run, group_size)) is not None:
        _check_concrete(name, at, domain)
        silent, announced = (0.0, event.overflow) if event.announced else (event.overflow, 0.0)
        ideal = functools.partial(_allocated.answer, event, question)
        if not event.overflow:
            return ideal(np.asarray(at, np.float64))
        return with_lost_mass(ideal, np.asarray(at, np.float64), _lost_mass.Lost(0.0, silent, announced=announced))
    if _truncated.has_truncated(run):
        _refuse_truncated_groups(group_size)
        _check_concrete(name, at, domain)

        def of_bound(bound: Ledger) -> Bounds:
            return _answer(question, bound, None, None, at, "poisson", None, group_size)

        return _truncated.bracket(run, question, np.asarray(at, np.float64), of_bound)
    described = describe(run, group_size)

    def ideal(at: Any) -> Bounds:
        return _bracket(_numeric.of_phases, question, described.family, described.columns, at)

    if described.lost.is_nothing:
        return ideal(at)
    _check_concrete(name, at, domain)
    if not described.releases:
        ideal = functools.partial(_of_nothing, question)
    return with_lost_mass(ideal, np.asarray(at, np.float64), described.lost)


def _of_nothing(question: str, at: np.ndarray) -> Bounds:
    """The answer for a run that releases nothing."""
    answer = 1.0 - at if question == "tradeoff" else np.zeros_like(at)
    return Bounds(answer, answer)


def _is_zero(noise_multiplier: Any) -> bool:
    """Whether this is the one number 0, known before compiling."""
    numbers = int | float | np.floating | np.integer
    return (
        isinstance(noise_multiplier, numbers)
        and not isinstance(noise_multiplier, bool | np.timedelta64)
        and bool(noise_multiplier == 0)
    )


def _check_concrete(name: str, value: Any, domain: Domain) -> None:
    if is_traced(value):
        kind = "a Ledger with overflow, truncated batches or delta"
        raise ValueError(f"{kind} is read outside compiled code, where {name} is a number")
    check(name, value, domain)


def _refuse_truncated_groups(group_size: int) -> None:
    if group_size > 1:
        raise ValueError("group_size > 1 is available for poisson sampling, got truncated_poisson")


def _refuse_uniform(family: Family) -> None:
    if family.symmetric:
        raise ValueError(
            "epsilon under uniform sampling is known only to lie in a wide bracket, so there is no estimate: use "
            "epsilon_bounds"
        )


def epsilon_bounds(
    noise_multiplier: Array | Ledger | AnyEvent, sampling_prob: Array | None = None, num_steps: Array | None = None,
    delta: Array | None = None, *, sampling: str = "poisson", neighboring_relation: NeighboringRelation | None = None,
    group_size: int = 1,
) -> Bounds:  # fmt: skip
    """Certified bracket on the exact epsilon of subsampled Gaussian steps, or of a whole Ledger.

    The smallest epsilon >= 0 with delta(epsilon) <= ``delta``, where delta(epsilon) is the larger of
    sup_S P(S) - e^epsilon Q(S) and sup_S Q(S) - e^epsilon P(S) for P = ((1 - p) N(0, s^2) + p N(1, s^2))^T and
    Q = N(0, s^2)^T, s = noise_multiplier, p = sampling_prob, T = num_steps.

    Args:
        noise_multiplier: stddev of the noise / sensitivity, > 0, or the one number 0 for a run without privacy; or a
            `Ledger` or one of its events, then only ``delta=`` follows.
        sampling_prob: probability in [0, 1] that an example takes part in a step.
        num_steps: number of steps, a whole number >= 1.
        delta: strictly between 0 and 1. All arguments broadcast.
        sampling: "poisson", or "uniform" for batches of a fixed size without replacement. The events of a Ledger say it
            themselves.
        neighboring_relation: ADD_OR_REMOVE_ONE (default) or REPLACE_SPECIAL with poisson, REPLACE_ONE with uniform.
        group_size: how many examples were all added, or all removed, 1 to 64, static; above 1 with poisson sampling
            only.

    Returns:
        ``Bounds(lower, upper)`` of the broadcast shape. Certified: the truth, in exact arithmetic, lies in between.
        The relative width is about 1e-3 (or the width below 1e-6) for ordinary runs, larger in hard corners, where
        upper may be inf and lower 0. Under uniform sampling it is wide by nature (see the module's docstring).

    Raises:
        ValueError: an argument outside its range, shapes that do not broadcast, an incomplete or mixed call, a pair of
            sampling and relation without a bound.

    Reference: Dong, Roth and Su, arXiv:1905.02383 (definitions); Gopi, Lee and Wutschitz, arXiv:2106.02848 (numerical
    composition).

    >>> bounds = epsilon_bounds(1.0, 0.01, 1000, 1e-5)
    >>> bool(bounds.lower <= 1.82824 <= bounds.upper), bool(bounds.upper < 1.001 * bounds.lower)
    (True, True)
    """
    options = (sampling, neighboring_relation, group_size)
    return _answer("epsilon", noise_multiplier, sampling_prob, num_steps, delta, *options)


def epsilon_estimate(
    noise_multiplier: Array | Ledger | AnyEvent, sampling_prob: Array | None = None, num_steps: Array | None = None,
    delta: Array | None = None, *, sampling: str = "poisson", neighboring_relation: NeighboringRelation | None = None,
    group_size: int = 1,
) -> Array:  # fmt: skip
    """A fast estimate of the epsilon that `epsilon_bounds` brackets, without the bracket.

    The same contour with a thirty times coarser smoothing, whose two one-sided errors cancel to first order.

    Args:
        noise_multiplier, sampling_prob, num_steps, delta, sampling, neighboring_relation, group_size: as in
            `epsilon_bounds`.

    Returns:
        epsilon >= 0 of the broadcast shape. An estimate: usually good to 1e-3, on either side of the truth; inf where
        no certified upper end within 20% confirms it, as at tiny noise. Of a Ledger with overflow it estimates what can
        be guaranteed.

    Raises:
        ValueError: as `epsilon_bounds`; uniform sampling.

    Reference: Gopi, Lee and Wutschitz, arXiv:2106.02848 (numerical composition).

    >>> bool(abs(epsilon_estimate(1.0, 0.01, 1000, 1e-5) / 1.82824 - 1) < 2e-3)
    True
    """
    group_size = _checked_group_size(group_size)
    if _is_ledger(noise_multiplier, sampling_prob, num_steps, delta, "delta", (sampling, neighboring_relation)):
        if _allocated.allocated(noise_multiplier, group_size) is not None:  # pyright: ignore[reportArgumentType]
            raise ValueError("random allocation has a certified bracket and no estimate beside it: use epsilon_bounds")
        if _truncated.has_truncated(noise_multiplier):  # pyright: ignore[reportArgumentType]
            _refuse_truncated_groups(group_size)
            _check_concrete("delta", delta, OPEN_UNIT)
            bound = _truncated.from_above(noise_multiplier, float(np.min(delta)))  # pyright: ignore
            return epsilon_estimate(bound, delta=delta)
        described = describe(noise_multiplier, group_size)  # pyright: ignore[reportArgumentType]
        _refuse_uniform(described.family)
        estimate = functools.partial(_numeric.of_phases("estimate", described.family), *described.columns)
        if described.lost.is_nothing:
            return estimate(delta)
        _check_concrete("delta", delta, OPEN_UNIT)
        return _lost_mass.epsilon_estimate(estimate, np.asarray(delta, np.float64), described.lost)
    family = _family(sampling, neighboring_relation, group_size)
    _refuse_uniform(family)
    size = (group_size,) if group_size > 1 else ()
    return _numeric.of_runs("estimate", family)(noise_multiplier, sampling_prob, num_steps, *size, delta)


def delta_bounds(
    noise_multiplier: Array | Ledger | AnyEvent, sampling_prob: Array | None = None, num_steps: Array | None = None,
    epsilon: Array | None = None, *, sampling: str = "poisson", neighboring_relation: NeighboringRelation | None = None,
    group_size: int = 1,
) -> Bounds:  # fmt: skip
    """Certified bracket on the exact delta(epsilon) of subsampled Gaussian steps, or of a whole Ledger.

    See `epsilon_bounds` for the definition of delta(epsilon).

    Args:
        noise_multiplier, sampling_prob, num_steps, sampling, neighboring_relation, group_size: as in
            `epsilon_bounds`.
        epsilon: finite and >= 0. All arguments broadcast.

    Returns:
        ``Bounds(lower, upper)`` of the broadcast shape, certified. The relative width is about 1e-2 for ordinary runs,
        larger in hard corners; below 1e-300 only the upper end says something.

    Raises:
        ValueError: as `epsilon_bounds`.

    Reference: Dong, Roth and Su, arXiv:1905.02383 (definitions); Gopi, Lee and Wutschitz, arXiv:2106.02848 (numerical
    composition).

    >>> bounds = delta_bounds(1.0, 0.01, 1000, 1.82824)
    >>> bool(bounds.lower <= 1e-5 <= bounds.upper)
    True
    """
    options = (sampling, neighboring_relation, group_size)
    return _answer("delta", noise_multiplier, sampling_prob, num_steps, epsilon, *options)


def tradeoff_bounds(
    noise_multiplier: Array | Ledger | AnyEvent, sampling_prob: Array | None = None, num_steps: Array | None = None,
    alpha: Array | None = None, *, sampling: str = "poisson", neighboring_relation: NeighboringRelation | None = None,
    group_size: int = 1,
) -> Bounds:  # fmt: skip
    """Certified bracket on the trade-off curve f(alpha) of subsampled Gaussian steps, or of a whole Ledger.

    The largest convex curve below both directions: f = min(f_rem, f_add)**, with f(alpha) the smallest type II error
    of a test of type I error alpha (and its mirror image).

    Args:
        noise_multiplier, sampling_prob, num_steps, sampling, neighboring_relation, group_size: as in
            `epsilon_bounds`.
        alpha: type I error, in [0, 1]. All arguments broadcast.

    Returns:
        ``Bounds(lower, upper)`` of the broadcast shape, certified.

    Raises:
        ValueError: as `epsilon_bounds`.

    Reference: Dong, Roth and Su, arXiv:1905.02383 (trade-off functions, duality with delta(epsilon), subsampling).

    >>> bounds = tradeoff_bounds(1.0, 0.01, 1000, 0.1)
    >>> bool(0 < bounds.lower < bounds.upper < 0.9)
    True
    """
    options = (sampling, neighboring_relation, group_size)
    return _answer("tradeoff", noise_multiplier, sampling_prob, num_steps, alpha, *options)


def mu_bounds(
    noise_multiplier: Array | Ledger | AnyEvent, sampling_prob: Array | None = None, num_steps: Array | None = None,
    failure: Array = 1e-10, *, sampling: str = "poisson", neighboring_relation: NeighboringRelation | None = None,
    group_size: int = 1,
) -> Bounds:  # fmt: skip
    """Certified bracket on the smallest mu such that the run is mu-GDP except with probability ``failure``.

    f >= G_mu (x) f_{0, failure}, i.e. delta(epsilon) <= failure + (1 - failure) delta_mu(epsilon) for all epsilon >= 0.
    Such statements compose: mus in squares, failures by union.

    Args:
        noise_multiplier, sampling_prob, num_steps, sampling, neighboring_relation, group_size: as in
            `epsilon_bounds`.
        failure: strictly between 0 and 1, above the overflow and the deltas of a Ledger. All arguments broadcast.

    Returns:
        ``Bounds(lower, upper)`` of the broadcast shape, certified: it holds at ``upper`` and fails below ``lower``. For
        a Ledger with overflow that is not announced lower is 0; upper is inf where failure does not exceed overflow and
        deltas. For noise multipliers below 0.2 it is [0, the mu without sampling].

    Raises:
        ValueError: as `epsilon_bounds`.

    Reference: Dong, Roth and Su, arXiv:1905.02383 (mu-GDP and its dual).

    >>> bounds = mu_bounds(1.0, 0.01, 1000, 1e-10)
    >>> bool(0.3 < bounds.lower < bounds.upper < 2)
    True
    """
    options = (sampling, neighboring_relation, group_size)
    return _answer("mu", noise_multiplier, sampling_prob, num_steps, failure, *options)
