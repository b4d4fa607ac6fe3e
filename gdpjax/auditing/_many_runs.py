r"""mu and epsilon from many independent runs: bounded error rates of one test.

Every run is made afresh, with the canary (in) or without it (out), and gives a score. The test that says "in" where the
score is at least t has type I error alpha = P(score >= t | out) and type II error beta = P(score < t | in). For a
threshold fixed without looking at these runs the two error counts are binomial, and Clopper and Pearson's bounds

    alpha <= alpha_upper,      beta <= beta_upper,      each except with probability (1 - confidence) / 2,

hold together at the confidence. The mechanism's trade-off curve f has f(alpha_upper) <= f(alpha) <= beta <= beta_upper,
so every claim follows from that one pair, and all claims hold together:

* f with f(alpha_upper) > beta_upper is refuted;
* mu >= Phi^-1(1 - alpha_upper) - Phi^-1(beta_upper);
* 1 - beta <= e^epsilon alpha + delta and its mirror image give
  epsilon >= log((1 - delta - beta_upper) / alpha_upper) and log((1 - delta - alpha_upper) / beta_upper), for any
  mechanism;
* if the mechanism's curve is a Gaussian one, epsilon(delta) of that mu is a lower bound on epsilon too, usually a much
  larger one: the test sees the middle of the curve and the shape of G_mu says what that means far out. It is named
  ``epsilon_if_gaussian``, because no data support the assumption.

The threshold. The best threshold on the same scores is an optimistic one. Here a random half of the runs, chosen by a
key, is used to choose it (and whether high or low scores mean "in"), and the other half to count errors.

The scores of many canaries of *one* run are not independent; they belong to `audit_one_run`.
"""

from typing import NamedTuple

import jax
import numpy as np
from scipy import special

from gdpjax._core.checks import REAL, UNIT, check, check_scalar
from gdpjax._core.types import Array
from gdpjax.accounting import gdp_epsilon
from gdpjax.auditing._check import STANDING, check_confidence, check_counts, check_delta, check_scores

_ROUNDING = 1 + 1e-9
_SMALLEST_DELTA = 1e-300


class ManyRunsAudit(NamedTuple):
    """What many independent runs show. All fields hold together with probability at least ``confidence``.

    Attributes:
      epsilon: lower bound on epsilon at ``delta``, for any mechanism.
      mu: lower bound on mu.
      epsilon_if_gaussian: lower bound on epsilon at ``delta`` of a mechanism whose trade-off curve is Gaussian.
      delta: as given.
      confidence: as given.
      alpha_upper: upper bound on the type I error of the test.
      beta_upper: upper bound on its type II error.
      threshold: the test says "in" at scores >= threshold, or <= threshold where ``low_means_in``.
      low_means_in: see there.
      num_runs: runs in which errors were counted.
      standing: "empirical lower".
    """

    epsilon: float
    mu: float
    epsilon_if_gaussian: float
    delta: float
    confidence: float
    alpha_upper: float
    beta_upper: float
    threshold: float
    low_means_in: bool
    num_runs: int
    standing: str = STANDING


def error_rate_upper(num_errors: Array, num_trials: Array, *, confidence: float) -> Array:
    """Clopper and Pearson's upper bound on a probability from a binomial count.

    Formula: the x with P(Bin(n, x) <= k) = 1 - confidence; 1 where k = n.

    Args:
        num_errors: k, whole, 0 <= k <= n.
        num_trials: n >= 0 independent trials. Both broadcast.
        confidence: in (0, 1).

    Returns:
        float64 of the broadcast shape; at least the probability, at the confidence (exact binomial law).

    Raises:
        ValueError: counts that are no counts, k > n.

    Reference: Clopper and Pearson, Biometrika 26 (1934).

    >>> print(f"{error_rate_upper(0, 100, confidence=0.95):.4f}")
    0.0295
    """
    counts = check_counts(num_errors=num_errors, num_trials=num_trials)
    errors, trials = np.broadcast_arrays(*counts.values())
    if (errors > trials).any():
        raise ValueError(f"num_errors must be at most num_trials, got {num_errors} of {num_trials}")
    rest = np.maximum(trials - errors, 1)
    bound = special.betaincinv(errors + 1, rest, check_confidence(confidence)) * _ROUNDING
    return np.where(trials > errors, np.minimum(bound, 1.0), 1.0)[()]


def mu_from_errors(alpha: Array, beta: Array) -> Array:
    """The least mu of a mechanism some test of which has at most these errors.

    Formula: max(0, Phi^-1(1 - alpha) - Phi^-1(beta)).

    Args:
        alpha, beta: (bounds on) type I and II errors in [0, 1]; they broadcast.

    Returns:
        mu in [0, inf], float64; exact for the given errors. inf where an error is 0.

    Raises:
        ValueError: an argument outside [0, 1].

    Reference: Nasr et al., arXiv:2302.07956, section 4; Dong, Roth and Su, arXiv:1905.02383, section 2.2.

    >>> print(f"{mu_from_errors(0.05, 0.740489):.4f}")
    1.0000
    """
    check("alpha", alpha, UNIT)
    check("beta", beta, UNIT)
    alpha, beta = np.broadcast_arrays(np.asarray(alpha, np.float64), np.asarray(beta, np.float64))
    possible = alpha + beta < 1
    z = special.ndtri(np.where(possible, alpha, 0.5)) + special.ndtri(np.where(possible, beta, 0.5))
    return np.maximum(-z, 0.0)[()]


def epsilon_from_errors(alpha: Array, beta: Array, delta: Array) -> Array:
    """The least epsilon at ``delta`` of a mechanism some test of which has at most these errors.

    Formula: max(0, log((1 - delta - beta) / alpha), log((1 - delta - alpha) / beta)).

    Args:
        alpha, beta: (bounds on) type I and II errors in [0, 1].
        delta: in [0, 1]. All broadcast.

    Returns:
        epsilon in [0, inf], float64; exact for the given errors.

    Raises:
        ValueError: an argument outside [0, 1].

    Reference: Kairouz, Oh and Viswanath, arXiv:1311.0776, Theorem 2.1.

    >>> print(f"{epsilon_from_errors(0.01, 0.5, 1e-5):.4f}")
    3.9120
    """
    for name, value in (("alpha", alpha), ("beta", beta), ("delta", delta)):
        check(name, value, UNIT)
    alpha, beta, delta = np.broadcast_arrays(*(np.asarray(v, np.float64) for v in (alpha, beta, delta)))
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = np.fmax((1 - delta - beta) / alpha, (1 - delta - alpha) / beta)
        return np.where(ratios > 1, np.log(np.fmax(ratios, 1.0)), 0.0)[()]


def best_threshold(scores: np.ndarray, included: np.ndarray, confidence: float) -> tuple[float, bool]:
    """(threshold, low_means_in) with the largest mu on these scores; to be judged on other ones."""
    best = (-np.inf, 0.0, False)
    for low_means_in in (False, True):
        signed = -scores if low_means_in else scores
        out, inside = np.sort(signed[~included]), np.sort(signed[included])
        cuts = np.unique(signed)
        alpha = error_rate_upper(out.size - np.searchsorted(out, cuts), out.size, confidence=confidence)
        beta = error_rate_upper(np.searchsorted(inside, cuts), inside.size, confidence=confidence)
        z = special.ndtri(alpha) + special.ndtri(beta)  # minus mu, also where that is negative
        at = int(np.argmin(z))
        best = max(best, (-z[at], float(-cuts[at] if low_means_in else cuts[at]), low_means_in))
    return best[1], best[2]


def judge(
    scores: np.ndarray, included: np.ndarray, threshold: float, low_means_in: bool, delta: float, confidence: float
) -> ManyRunsAudit:
    """The audit by one test that was chosen without looking at these scores."""
    says_in = scores <= threshold if low_means_in else scores >= threshold
    one_side = 0.5 * (1 + confidence)
    alpha = float(error_rate_upper((says_in & ~included).sum(), (~included).sum(), confidence=one_side))
    beta = float(error_rate_upper((~says_in & included).sum(), included.sum(), confidence=one_side))
    mu = float(mu_from_errors(alpha, beta))
    gaussian = float(gdp_epsilon(max(delta, _SMALLEST_DELTA), mu)) if mu else 0.0
    return ManyRunsAudit(
        float(epsilon_from_errors(alpha, beta, delta)), mu, gaussian, delta, confidence, alpha, beta, threshold,
        low_means_in, scores.size,
    )  # fmt: skip


def audit_many_runs(
    scores: Array, included: Array, *, delta: float, threshold: float | None = None, key: Array | None = None,
    confidence: float = 0.95,
) -> ManyRunsAudit:  # fmt: skip
    """Lower bounds on mu and epsilon from one score of each of many independent runs.

    Formula: Clopper-Pearson bounds on the errors of the test "in where score >= threshold", then `mu_from_errors` and
    `epsilon_from_errors`.

    Args:
        scores: one number for each run; inf allowed, NaN refused.
        included: for each run, whether the canary was in; any design that does not look at the scores.
        delta: in [0, 1), of the epsilons.
        threshold: fixed before these scores were seen. Exactly one of threshold and key.
        key: one PRNG key: a random half of the runs chooses threshold and direction, the other half is judged.
        confidence: in (0, 1).

    Returns:
        A `ManyRunsAudit`, empirical lower: all of it holds with probability at least ``confidence``.

    Raises:
        ValueError: both or none of threshold and key, NaN scores, unequal lengths, numbers out of range.

    Reference: Nasr et al., arXiv:2302.07956, section 4.

    >>> included = np.arange(4000) % 2 == 1
    >>> scores = included + np.asarray(jax.random.normal(jax.random.key(0), (4000,)))  # each run has mu = 1
    >>> audit = audit_many_runs(scores, included, delta=1e-5, key=jax.random.key(1))
    >>> 0.7 < audit.mu < 1.0 and audit.epsilon <= audit.epsilon_if_gaussian < 4.38
    True
    """
    numbers, coins = check_scores(scores, included)
    delta, confidence = check_delta(delta), check_confidence(confidence)
    if (threshold is None) == (key is None):
        raise ValueError(
            "give exactly one of threshold (fixed before the scores were seen) and key (a random half of the runs "
            "chooses it)"
        )
    if key is None:
        check_scalar("threshold", threshold, REAL)
        return judge(numbers, coins, float(threshold or 0.0), False, delta, confidence)
    order = np.asarray(jax.random.permutation(key, numbers.size))
    choose, rest = np.split(order, [numbers.size // 2])
    threshold, low = best_threshold(numbers[choose], coins[choose], confidence) if choose.size else (0.0, False)
    return judge(numbers[rest], coins[rest], threshold, low, delta, confidence)
