"""The certified accountant: brackets on epsilon, delta, the trade-off curve and mu of what was run.

Each function takes either arrays (noise_multiplier, sampling_prob, num_steps, ...) that broadcast together, one
homogeneous run per element, or one `Ledger` (or `Event`) whose phases may differ. The computation is `_numeric`'s.

**Neighbours.** Poisson sampling with ADD_OR_REMOVE_ONE, or with REPLACE_SPECIAL, which has the same curve: the mixture
(1 - p) N(0, s^2) + p N(1, s^2) against N(0, s^2), and the reverse. Other pairs are refused.

**Overflow.** A run whose padded batches may overflow with probability tau (`Event.overflow`) is the ideal run except on
an event of probability at most tau that depends on the other examples alone. Condition on it: with probability 1 - tau
the run is ideal, otherwise anything may happen, and by joint convexity

    delta(epsilon) <= tau + (1 - tau) delta_ideal(epsilon),   f(alpha) >= (1 - tau) f_ideal(alpha / (1 - tau)).

Both of its output distributions are within total variation tau of the ideal ones, so

    delta(epsilon) >= delta_ideal(epsilon) - tau (1 + e^epsilon),   f(alpha) <= f_ideal(alpha - tau) + tau.

Hence epsilon is at most the ideal one at (delta - tau) / (1 - tau), infinite where delta <= tau, and at least the
ideal one at delta + tau (1 + e^{upper}). A mu statement with failure d needs the ideal one with (d - tau) / (1 - tau);
below it nothing is claimed (lower = 0).
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from gdpjax._core.checks import NONNEGATIVE, OPEN_UNIT, UNIT, Domain, check, is_traced
from gdpjax._core.types import Array, Bounds, NeighboringRelation
from gdpjax.accounting import _numeric
from gdpjax.ledger import Event, Ledger, resolve_relation


def _check_pair(sampling: str, neighboring_relation: NeighboringRelation | None) -> NeighboringRelation:
    relation = resolve_relation(sampling, neighboring_relation)
    if sampling != "poisson":
        raise ValueError(
            f"certified bounds for {sampling} sampling are not available in this version; use poisson sampling"
        )
    return relation


def _phases(ledger: Ledger | Event) -> tuple[tuple[np.ndarray, ...], float]:
    """Arrays of noise_multiplier, sampling_prob, num_steps, padded to a power of two with empty phases, and tau."""
    events = [ledger] if isinstance(ledger, Event) else list(ledger.events)
    relations = {_check_pair(event.sampling, event.neighboring_relation) for event in events}
    if len(relations) > 1:
        names = ", ".join(sorted(relation.name for relation in relations))
        raise ValueError(f"the events of a Ledger must share one neighboring relation, got {names}")
    # Each distinct number of phases compiles once, so there should be few.
    size = 1 << max(len(events) - 1, 0).bit_length()
    rows = [(event.noise_multiplier, event.sampling_prob, event.num_steps) for event in events]
    rows += [(1.0, 0.0, 0)] * (size - len(rows))
    columns = tuple(np.array(column, np.float64) for column in zip(*rows, strict=True))
    return columns, min(1.0, sum(event.overflow for event in events))


def _is_ledger(run: Any, sampling_prob: Any, num_steps: Any, query: Any, name: str) -> bool:
    """Whether ``run`` is a Ledger; ValueError unless the call is complete in the form that it then has."""
    if isinstance(run, Ledger | Event):
        if sampling_prob is not None or num_steps is not None:
            raise ValueError(f"after a Ledger give {name} as a keyword: f(ledger, {name}=...), and nothing else")
        if query is None:
            raise ValueError(f"{name} is missing: f(ledger, {name}=...)")
        return True
    values = {"noise_multiplier": run, "sampling_prob": sampling_prob, "num_steps": num_steps, name: query}
    missing = [key for key, value in values.items() if value is None]
    if missing:
        raise ValueError(f"missing {', '.join(missing)}; give all of {', '.join(values)}, or a Ledger and {name}=...")
    return False


def _check_concrete(name: str, value: Any, domain: Domain) -> None:
    if is_traced(value):
        raise ValueError(f"a Ledger with overflow is read outside compiled code, where {name} is a number")
    check(name, value, domain)


def _vectorised(rule: Callable[..., Bounds], *arrays: Array) -> Bounds:
    """Apply a host-side rule for one number to arrays, element by element."""
    broadcast = np.broadcast_arrays(*(np.asarray(array, np.float64) for array in arrays))
    flat = [rule(*(float(x) for x in row)) for row in zip(*(array.ravel() for array in broadcast), strict=True)]
    ends = [np.array([bounds[i] for bounds in flat]).reshape(broadcast[0].shape)[()] for i in (0, 1)]
    return Bounds(*ends)


def epsilon_bounds(
    noise_multiplier: Array | Ledger | Event, sampling_prob: Array | None = None, num_steps: Array | None = None,
    delta: Array | None = None, *, sampling: str = "poisson", neighboring_relation: NeighboringRelation | None = None,
) -> Bounds:  # fmt: skip
    """Certified bracket on the exact epsilon of Poisson-subsampled Gaussian steps.

    The smallest epsilon >= 0 with delta(epsilon) <= ``delta``, where delta(epsilon) is the larger of
    sup_S P(S) - e^epsilon Q(S) and sup_S Q(S) - e^epsilon P(S) for P = ((1 - p) N(0, s^2) + p N(1, s^2))^T and
    Q = N(0, s^2)^T, s = noise_multiplier, p = sampling_prob, T = num_steps.

    Args:
        noise_multiplier: stddev of the noise / sensitivity, > 0; or a `Ledger`, then only ``delta=`` follows.
        sampling_prob: probability in [0, 1] that an example takes part in a step.
        num_steps: number of steps, a whole number >= 1.
        delta: strictly between 0 and 1. All arguments broadcast.
        sampling: "poisson".
        neighboring_relation: ADD_OR_REMOVE_ONE (default) or REPLACE_SPECIAL.

    Returns:
        ``Bounds(lower, upper)`` of the broadcast shape. Certified: the truth, in exact arithmetic, lies in between.
        The relative width is about 1e-3 (or the width below 1e-6) for ordinary runs, larger in hard corners, where
        upper may be inf and lower 0.

    Raises:
        ValueError: an argument outside its range, shapes that do not broadcast, an incomplete or mixed call, a pair of
            sampling and relation without a bound.

    Reference: Dong, Roth and Su, arXiv:1905.02383 (definitions); Gopi, Lee and Wutschitz, arXiv:2106.02848 (numerical
    composition).

    >>> bounds = epsilon_bounds(1.0, 0.01, 1000, 1e-5)
    >>> bool(bounds.lower <= 1.82824 <= bounds.upper), bool(bounds.upper < 1.001 * bounds.lower)
    (True, True)
    """
    if not _is_ledger(noise_multiplier, sampling_prob, num_steps, delta, "delta"):
        _check_pair(sampling, neighboring_relation)
        return _numeric.epsilon_of_runs(noise_multiplier, sampling_prob, num_steps, delta)
    phases, tau = _phases(noise_multiplier)
    if tau == 0.0:
        return _numeric.epsilon_of_phases(*phases, delta)
    _check_concrete("delta", delta, OPEN_UNIT)

    def with_overflow(delta: float) -> Bounds:
        left = (delta - tau) / (1.0 - tau) * (1.0 - 1e-15) if delta > tau else 0.0
        upper = float(_numeric.epsilon_of_phases(*phases, left).upper) if left > 0 else np.inf
        worse = delta + tau * (1.0 + float(np.exp(min(upper, 700.0)))) * (1.0 + 1e-12)
        lower = float(_numeric.epsilon_of_phases(*phases, worse).lower) if worse < 1 else 0.0
        return Bounds(lower, upper)

    return _vectorised(with_overflow, delta)


def epsilon_estimate(
    noise_multiplier: Array | Ledger | Event, sampling_prob: Array | None = None, num_steps: Array | None = None,
    delta: Array | None = None, *, sampling: str = "poisson", neighboring_relation: NeighboringRelation | None = None,
) -> Array:  # fmt: skip
    """A fast estimate of the epsilon that `epsilon_bounds` brackets, without the bracket.

    The same contour with a thirty times coarser smoothing, whose two one-sided errors cancel to first order.

    Args:
        noise_multiplier, sampling_prob, num_steps, delta, sampling, neighboring_relation: as in `epsilon_bounds`.

    Returns:
        epsilon >= 0 of the broadcast shape. An estimate: usually good to 1e-3, on either side of the truth. The
        overflow of a Ledger is not in it.

    Raises:
        ValueError: as `epsilon_bounds`.

    Reference: Gopi, Lee and Wutschitz, arXiv:2106.02848 (numerical composition).

    >>> bool(abs(epsilon_estimate(1.0, 0.01, 1000, 1e-5) / 1.82824 - 1) < 2e-3)
    True
    """
    if _is_ledger(noise_multiplier, sampling_prob, num_steps, delta, "delta"):
        return _numeric.estimate_of_phases(*_phases(noise_multiplier)[0], delta)
    _check_pair(sampling, neighboring_relation)
    return _numeric.estimate_of_runs(noise_multiplier, sampling_prob, num_steps, delta)


def delta_bounds(
    noise_multiplier: Array | Ledger | Event, sampling_prob: Array | None = None, num_steps: Array | None = None,
    epsilon: Array | None = None, *, sampling: str = "poisson",
    neighboring_relation: NeighboringRelation | None = None,
) -> Bounds:  # fmt: skip
    """Certified bracket on the exact delta(epsilon) of Poisson-subsampled Gaussian steps.

    See `epsilon_bounds` for the definition of delta(epsilon).

    Args:
        noise_multiplier, sampling_prob, num_steps, sampling, neighboring_relation: as in `epsilon_bounds`.
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
    if not _is_ledger(noise_multiplier, sampling_prob, num_steps, epsilon, "epsilon"):
        _check_pair(sampling, neighboring_relation)
        return _numeric.delta_of_runs(noise_multiplier, sampling_prob, num_steps, epsilon)
    phases, tau = _phases(noise_multiplier)
    ideal = _numeric.delta_of_phases(*phases, epsilon)
    if tau == 0.0:
        return ideal
    _check_concrete("epsilon", epsilon, NONNEGATIVE)
    lost = tau * (1.0 + np.exp(np.minimum(np.asarray(epsilon, np.float64), 700.0))) * (1.0 + 1e-12)
    upper = np.minimum((tau + (1.0 - tau) * ideal.upper) * (1.0 + 1e-15), 1.0)
    return Bounds(np.maximum(ideal.lower - lost, 0.0), upper)


def tradeoff_bounds(
    noise_multiplier: Array | Ledger | Event, sampling_prob: Array | None = None, num_steps: Array | None = None,
    alpha: Array | None = None, *, sampling: str = "poisson", neighboring_relation: NeighboringRelation | None = None,
) -> Bounds:  # fmt: skip
    """Certified bracket on the trade-off curve f(alpha) of Poisson-subsampled Gaussian steps.

    The largest convex curve below both directions: f = min(f_rem, f_add)**, with f(alpha) the smallest type II error
    of a test of type I error alpha (and its mirror image).

    Args:
        noise_multiplier, sampling_prob, num_steps, sampling, neighboring_relation: as in `epsilon_bounds`.
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
    if not _is_ledger(noise_multiplier, sampling_prob, num_steps, alpha, "alpha"):
        _check_pair(sampling, neighboring_relation)
        return _numeric.tradeoff_of_runs(noise_multiplier, sampling_prob, num_steps, alpha)
    phases, tau = _phases(noise_multiplier)
    if tau == 0.0:
        return _numeric.tradeoff_of_phases(*phases, alpha)
    _check_concrete("alpha", alpha, UNIT)
    alpha = np.asarray(alpha, np.float64)
    # Rounding alpha towards the safe side costs nothing measurable: f decreases.
    larger = np.minimum(alpha / (1.0 - tau) * (1.0 + 1e-15), 1.0)
    smaller = np.maximum((alpha - tau) * (1.0 - 1e-15) - 1e-300, 0.0)
    lower = (1.0 - tau) * _numeric.tradeoff_of_phases(*phases, larger).lower * (1.0 - 1e-15)
    upper = np.minimum(_numeric.tradeoff_of_phases(*phases, smaller).upper + tau, 1.0 - alpha)
    return Bounds(np.minimum(lower, upper), upper)


def mu_bounds(
    noise_multiplier: Array | Ledger | Event, sampling_prob: Array | None = None, num_steps: Array | None = None,
    failure: Array = 1e-10, *, sampling: str = "poisson", neighboring_relation: NeighboringRelation | None = None,
) -> Bounds:  # fmt: skip
    """Certified bracket on the smallest mu such that the run is mu-GDP except with probability ``failure``.

    f >= G_mu (x) f_{0, failure}, i.e. delta(epsilon) <= failure + (1 - failure) delta_mu(epsilon) for all epsilon >= 0.
    Such statements compose: mus in squares, failures by union.

    Args:
        noise_multiplier, sampling_prob, num_steps, sampling, neighboring_relation: as in `epsilon_bounds`.
        failure: strictly between 0 and 1, above the overflow of a Ledger. All arguments broadcast.

    Returns:
        ``Bounds(lower, upper)`` of the broadcast shape, certified: it holds at ``upper`` and fails below ``lower``. For
        a Ledger with overflow lower is 0, and upper inf where failure does not exceed the overflow.

    Raises:
        ValueError: as `epsilon_bounds`.

    Reference: Dong, Roth and Su, arXiv:1905.02383 (mu-GDP and its dual).

    >>> bounds = mu_bounds(1.0, 0.01, 1000, 1e-10)
    >>> bool(0.3 < bounds.lower < bounds.upper < 2)
    True
    """
    if not _is_ledger(noise_multiplier, sampling_prob, num_steps, failure, "failure"):
        _check_pair(sampling, neighboring_relation)
        return _numeric.mu_of_runs(noise_multiplier, sampling_prob, num_steps, failure)
    phases, tau = _phases(noise_multiplier)
    if tau == 0.0:
        return _numeric.mu_of_phases(*phases, failure)
    _check_concrete("failure", failure, OPEN_UNIT)
    failure = np.asarray(failure, np.float64)
    left = (failure - tau) / (1.0 - tau) * (1.0 - 1e-15)
    upper = np.where(left > 0, _numeric.mu_of_phases(*phases, np.where(left > 0, left, 0.5)).upper, np.inf)[()]
    return Bounds(np.zeros_like(upper)[()], upper)
