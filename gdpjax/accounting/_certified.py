"""The certified accountant: brackets on epsilon, delta, the trade-off curve and mu of what was run.

Each function takes either arrays (noise_multiplier, sampling_prob, num_steps, ...) that broadcast together, one
homogeneous run per element, or one `Ledger` (or event) whose phases may differ. Each is one question to the curve of
`certified`, in `_run_curve`, which also says between which neighbours the bounds hold.
"""

from typing import Any

from gdpjax._core.arguments import keyword_checked
from gdpjax._core.types import FAILURE, Bounds, NeighboringRelation, Numbers, certified_epsilon
from gdpjax.accounting._ledgers import check_form
from gdpjax.accounting._run_curve import RTOL, curve_of
from gdpjax.ledger import AnyEvent, Ledger
from gdpjax.tradeoff import CertifiedCurve


def _curve(run: Any, sampling_prob: Any, num_steps: Any, *options: Any, **query: Any) -> CertifiedCurve:
    """Return the curve that a call of a function below asks about.

    ``options`` are the last arguments of `_run_curve.curve_of`, from the sampling on.
    """
    check_form(run, sampling_prob, num_steps, **query)
    return curve_of(run, sampling_prob, num_steps, *options)


@keyword_checked()
def epsilon_bounds(
    noise_multiplier: Numbers | Ledger | AnyEvent,
    sampling_prob: Numbers | None = None,
    num_steps: Numbers | None = None,
    delta: Numbers | None = None,
    *,
    sampling: str = "poisson",
    neighboring_relation: NeighboringRelation | None = None,
    group_size: int = 1,
    rtol: float = RTOL,
) -> Bounds:
    """Bracket the exact epsilon of subsampled Gaussian steps, or of a whole Ledger.

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
        neighboring_relation: ADD_OR_REMOVE_ONE (default), REPLACE_SPECIAL or REPLACE_ONE with poisson, REPLACE_ONE with
            uniform.
        group_size: how many examples were all added, or all removed, >= 1, static; above 1 with poisson sampling
            only.
        rtol: relative width at which the search stops, 1e-6 to 1e-2, static. Below 1e-5 many brackets stay wider than
            it. Of allocation, truncated and shuffled batches it is the default.

    Returns:
        ``Bounds(lower, upper)`` of the broadcast shape. Certified: the truth, in exact arithmetic, lies in between.
        The relative width is at most ``rtol`` (or the width 1e-3 ``rtol``) for ordinary runs, larger in hard corners,
        where upper may be inf and lower 0. Under uniform sampling it is wide by nature: docs/accounting.md says why.

    Raises:
        ValueError: an argument outside its range, shapes that do not broadcast, an incomplete or mixed call, a pair of
            sampling and relation without a bound.

    Reference: Dong, Roth and Su, arXiv:1905.02383 (definitions); Gopi, Lee and Wutschitz, arXiv:2106.02848 (numerical
    composition).

    >>> bounds = epsilon_bounds(1.0, 0.01, 1000, 1e-5)
    >>> bool(bounds.lower <= 1.82824 <= bounds.upper), bool(bounds.upper < 1.001 * bounds.lower)
    (True, True)
    """
    options = (sampling, neighboring_relation, group_size, rtol)
    curve = _curve(noise_multiplier, sampling_prob, num_steps, *options, delta=delta)
    return curve.epsilon(delta)


@certified_epsilon.register
def _epsilon_of(ledger: Ledger, delta: float) -> Bounds:
    return epsilon_bounds(ledger, delta=delta)


def delta_bounds(
    noise_multiplier: Numbers | Ledger | AnyEvent,
    sampling_prob: Numbers | None = None,
    num_steps: Numbers | None = None,
    epsilon: Numbers | None = None,
    *,
    sampling: str = "poisson",
    neighboring_relation: NeighboringRelation | None = None,
    group_size: int = 1,
    rtol: float = RTOL,
) -> Bounds:
    """Bracket the exact delta(epsilon) of subsampled Gaussian steps, or of a whole Ledger.

    See `epsilon_bounds` for the definition of delta(epsilon).

    Args:
        noise_multiplier, sampling_prob, num_steps, sampling, neighboring_relation, group_size: as in
            `epsilon_bounds`.
        epsilon: finite and >= 0. All arguments broadcast.
        rtol: as in `epsilon_bounds`.

    Returns:
        ``Bounds(lower, upper)`` of the broadcast shape, certified. The relative width is about ``rtol`` for ordinary
        runs, larger in hard corners; below 1e-300 only the upper end says something.

    Raises:
        ValueError: as `epsilon_bounds`.

    Reference: Dong, Roth and Su, arXiv:1905.02383 (definitions); Gopi, Lee and Wutschitz, arXiv:2106.02848 (numerical
    composition).

    >>> bounds = delta_bounds(1.0, 0.01, 1000, 1.828237)
    >>> bool(bounds.lower <= 1e-5 <= bounds.upper)
    True
    """
    options = (sampling, neighboring_relation, group_size, rtol)
    curve = _curve(noise_multiplier, sampling_prob, num_steps, *options, epsilon=epsilon)
    return curve.delta(epsilon)


def tradeoff_bounds(
    noise_multiplier: Numbers | Ledger | AnyEvent,
    sampling_prob: Numbers | None = None,
    num_steps: Numbers | None = None,
    alpha: Numbers | None = None,
    *,
    sampling: str = "poisson",
    neighboring_relation: NeighboringRelation | None = None,
    group_size: int = 1,
) -> Bounds:
    """Bracket the trade-off curve f(alpha) of subsampled Gaussian steps, or of a whole Ledger.

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
    curve = _curve(noise_multiplier, sampling_prob, num_steps, *options, alpha=alpha)
    return curve.tradeoff(alpha)


def mu_bounds(
    noise_multiplier: Numbers | Ledger | AnyEvent,
    sampling_prob: Numbers | None = None,
    num_steps: Numbers | None = None,
    failure: Numbers = FAILURE,
    *,
    sampling: str = "poisson",
    neighboring_relation: NeighboringRelation | None = None,
    group_size: int = 1,
) -> Bounds:
    """Bracket the smallest mu such that the run is mu-GDP except with probability ``failure``.

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
    curve = _curve(noise_multiplier, sampling_prob, num_steps, *options, failure=failure)
    return curve.mu(failure)
