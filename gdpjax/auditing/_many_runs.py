r"""mu and epsilon from many independent runs: a confidence region for the two error rates of one test.

Every run is made afresh, with the canary (in) or without it (out), and gives a score. The test that says "in" where the
score is at least t has type I error alpha = P(score >= t | out) and type II error beta = P(score < t | in). For a
threshold fixed without looking at these runs the two error counts X and Y are independent and binomial.

The region. At the true rates U = P_alpha(X' <= X) and V = P_beta(Y' <= Y), with X', Y' fresh copies, are independent
and at most as small as uniform variables are: P(U <= u) <= u. For uniform ones P(U V <= k) = k (1 - log k) (Fisher), so
with k (1 - log k) = 1 - confidence, U V > k at the confidence. Cut the values of U at k = u_0 < u_1 < ... < u_J = 1: if
u_j <= U <= u_{j+1}, then V > k / u_{j+1}, and inverting both binomial tails (Clopper and Pearson)

    alpha <= alpha_j = sup {x : P_x(X' <= X) >= u_j},      beta <= beta_j = sup {x : P_x(Y' <= Y) >= k / u_{j+1}}.

So the true (alpha, beta) lies below and left of one of the corners (alpha_j, beta_j). A bound on each rate at half of
the error would be one corner; this staircase cuts off most of it, where both rates are large at once.

A trade-off curve f of the mechanism has f(alpha_j) <= f(alpha) <= beta <= beta_j for that corner. Every claim that
holds at all corners is therefore proved, all together at the confidence:

* f is refuted if f(alpha_j) > beta_j for all j;
* mu >= min_j Phi^-1(1 - alpha_j) - Phi^-1(beta_j);
* 1 - beta <= e^epsilon alpha + delta and its mirror image give, for any mechanism, epsilon >= min_j max of
  log((1 - delta - beta_j) / alpha_j) and log((1 - delta - alpha_j) / beta_j);
* if the mechanism's curve is a Gaussian one, epsilon(delta) of that mu is a lower bound on epsilon too, usually a much
  larger one: the test sees the middle of the curve and the shape of G_mu says what that means far out. It is named
  ``epsilon_if_gaussian``, because no data support the assumption.

The threshold. The best threshold on the same scores is an optimistic one. Here a random half of the runs, chosen by a
key, is used to choose it (and whether high or low scores mean "in"), and the other half to count errors.

The scores of many canaries of *one* run are not independent; they belong to `audit_one_run`.
"""

import dataclasses
from typing import NamedTuple, Self

import jax
import numpy as np
import scipy
from jaxtyping import PRNGKeyArray, Real, Shaped

from gdpjax._core.arguments import check_number
from gdpjax._core.checks import HALF_OPEN_UNIT, OPEN_UNIT, REAL, UNIT, WHOLE, check, known
from gdpjax._core.keys import as_key
from gdpjax._core.types import Array, Floats, Number, Numbers
from gdpjax.accounting import gdp_epsilon
from gdpjax.auditing._canaries import check_scores

_ROUNDING = 1 + 1e-9
_SMALLEST_DELTA = 1e-300
_NUM_CORNERS = 128
_CHOOSING_TAIL = 1e-6


class ManyRunsAudit(NamedTuple):
    """Lower bounds from many independent runs, which hold together with probability at least ``confidence``.

    Attributes:
      epsilon: lower bound on epsilon at ``delta``, for any mechanism.
      mu: lower bound on mu.
      epsilon_if_gaussian: lower bound on epsilon at ``delta`` of a mechanism whose trade-off curve is Gaussian.
      delta: as given.
      confidence: as given.
      alpha: observed type I error rate of the test, an estimate.
      beta: observed type II error rate, an estimate.
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
    alpha: float
    beta: float
    threshold: float
    low_means_in: bool
    num_runs: int
    standing: str = "empirical lower"


@dataclasses.dataclass(frozen=True, eq=False)
class ErrorRegion:
    """A staircase: the true (alpha, beta) is at most (alpha[..., j], beta[..., j]) for some corner j.

    Args:
      alpha: bounds on the type I error rate in [0, 1], with the corners as last axis; or one number.
      beta: bounds on the type II error rate; both broadcast.

    Raises:
      ValueError: rates outside [0, 1].

    >>> region = ErrorRegion.from_counts(100, 1000, 200, 1000, confidence=0.95)
    >>> print(f"{region.mu():.3f}")  # observed: 2.12; each rate at 0.975: 1.92
    1.986
    """

    alpha: Real[Array, "*#settings #corners"] | Number
    beta: Real[Array, "*#settings #corners"] | Number

    def __post_init__(self) -> None:
        check("alpha", self.alpha, UNIT)
        check("beta", self.beta, UNIT)
        rates = [np.atleast_1d(np.asarray(rate, np.float64)) for rate in (self.alpha, self.beta)]
        alpha, beta = np.broadcast_arrays(*rates)
        object.__setattr__(self, "alpha", alpha)
        object.__setattr__(self, "beta", beta)

    @classmethod
    def from_counts(
        cls, false_positives: Numbers, num_out: Numbers, false_negatives: Numbers, num_in: Numbers, *, confidence: float
    ) -> Self:
        """Return a joint confidence region for the two error rates of a test, from two independent binomial counts.

        Formula: {(alpha, beta) : P_alpha(X' <= X) P_beta(Y' <= Y) > k}, k (1 - log k) = 1 - confidence, as a staircase.

        Args:
            false_positives, num_out: X "in" among the runs without the canary.
            false_negatives, num_in: Y "out" among the runs with it. All broadcast.
            confidence: in (0, 1).

        Returns:
            A region of the broadcast shape with a last axis of 128 corners; conservative.

        Raises:
            ValueError: counts that are no counts, more errors than runs.

        Reference: Clopper and Pearson, Biometrika 26 (1934); Fisher, Statistical Methods for Research Workers (1932).
        """
        # A last axis for the corners.
        errors_out = known("false_positives", false_positives, WHOLE)[..., None]
        trials_out = known("num_out", num_out, WHOLE)[..., None]
        errors_in = known("false_negatives", false_negatives, WHOLE)[..., None]
        trials_in = known("num_in", num_in, WHOLE)[..., None]
        if (errors_out > trials_out).any() or (errors_in > trials_in).any():
            raise ValueError(f"more errors than runs: {false_positives} of {num_out}, {false_negatives} of {num_in}")

        # The cuts k = u_0 < u_1 < ... < u_J = 1 of the module docstring, in a geometric sequence.
        log_product = np.log(_fisher_product(check_number("confidence", confidence, OPEN_UNIT)))
        cuts = np.exp(np.linspace(log_product, 0.0, _NUM_CORNERS + 1))

        # Corner j: U >= u_j and V > k / u_{j+1}.
        alpha = _rate_upper(errors_out, trials_out, cuts[:-1])
        beta = _rate_upper(errors_in, trials_in, np.exp(log_product) / cuts[1:])
        return cls(alpha, beta)

    def mu(self) -> Floats:
        """Return the least mu of a mechanism some test of which has errors in the region.

        Formula: min_j max(0, Phi^-1(1 - alpha_j) - Phi^-1(beta_j)).

        Returns:
            mu in [0, inf], float64 of the shape of the region without its last axis; exact for the region, inf where
            an error is 0 at every corner.

        Reference: Nasr et al., arXiv:2302.07956, section 4; Dong, Roth and Su, arXiv:1905.02383, section 2.2.

        >>> print(f"{ErrorRegion(0.05, 0.740489).mu():.4f}")
        1.0000
        """
        # A coin has alpha + beta = 1: only tests with smaller errors prove anything.
        beats_a_coin = self.alpha + self.beta < 1
        alpha_quantile = scipy.special.ndtri(np.where(beats_a_coin, self.alpha, 0.5))
        beta_quantile = scipy.special.ndtri(np.where(beats_a_coin, self.beta, 0.5))
        mu = -(alpha_quantile + beta_quantile)
        return np.maximum(mu, 0.0).min(axis=-1)

    def epsilon(self, delta: Numbers) -> Floats:
        """Return the least epsilon at ``delta`` of a mechanism some test of which has errors in the region.

        Formula: min_j max(0, log((1 - delta - beta_j) / alpha_j), log((1 - delta - alpha_j) / beta_j)).

        Args:
            delta: in [0, 1]; broadcasts with the region without its last axis.

        Returns:
            epsilon in [0, inf], float64; exact for the region.

        Raises:
            ValueError: a delta outside [0, 1].

        Reference: Kairouz, Oh and Viswanath, arXiv:1311.0776, Theorem 2.1.

        >>> print(f"{ErrorRegion(0.01, 0.5).epsilon(1e-5):.4f}")
        3.9120
        """
        check("delta", delta, UNIT)
        rest = 1 - np.asarray(delta, np.float64)[..., None]

        # An error of 0 makes a ratio infinite, or NaN if its numerator is 0, too; `fmax` prefers the other ratio then.
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = np.fmax((rest - self.beta) / self.alpha, (rest - self.alpha) / self.beta)
            epsilon = np.log(np.fmax(ratio, 1.0))
        return np.where(ratio > 1, epsilon, 0.0).min(axis=-1)


def _rate_upper(errors: np.ndarray, trials: np.ndarray, tail: np.ndarray | float) -> np.ndarray:
    """Return sup {x : P(Bin(trials, x) <= errors) >= tail}, for 0 < tail < 1; the arguments broadcast."""
    # P(Bin(n, x) <= k) is the complement of an incomplete beta function, whose parameters must be positive.
    num_successes = np.maximum(trials - errors, 1)
    bound = scipy.special.betainccinv(errors + 1, num_successes, tail) * _ROUNDING
    return np.where(trials > errors, np.minimum(bound, 1.0), 1.0)


def _fisher_product(confidence: float) -> float:
    """Return the k with k (1 - log k) = 1 - confidence, rounded down.

    With t = log k - 1 that equation is t e^t = -(1 - confidence) / e, which Lambert's function solves.
    """
    right_side = -(1 - confidence) / np.e
    solution = scipy.special.lambertw(right_side, -1).real
    return float(np.exp(1 + solution)) / _ROUNDING


def best_test(scores: np.ndarray, included: np.ndarray) -> tuple[float, float, bool]:
    """Return (mu, threshold, low_means_in) with the largest mu on these scores; other scores must judge it.

    The rates are taken at very confident bounds: among thousands of thresholds some look good by chance, most of all
    where there are few errors, and such bounds ask more of those.
    """
    mu_high, threshold_high = _best_threshold(scores, included)
    mu_low, negated_threshold = _best_threshold(-scores, included)
    high_means_in = (mu_high, threshold_high, False)
    low_means_in = (mu_low, -negated_threshold, True)
    return max((-np.inf, 0.0, False), high_means_in, low_means_in)


def _best_threshold(scores: np.ndarray, included: np.ndarray) -> tuple[float, float]:
    """Return (mu, threshold) of the best test that says "in" at scores of at least the threshold."""
    scores_out = np.sort(scores[~included])
    scores_in = np.sort(scores[included])
    num_out = np.asarray(scores_out.size)
    num_in = np.asarray(scores_in.size)

    # Count the errors of each threshold.
    thresholds = np.unique(scores)
    false_positives = num_out - np.searchsorted(scores_out, thresholds)
    false_negatives = np.searchsorted(scores_in, thresholds)

    # Not `ErrorRegion.mu`: where no threshold is better than a coin, the best is the one that is least below.
    alpha = _rate_upper(false_positives, num_out, _CHOOSING_TAIL)
    beta = _rate_upper(false_negatives, num_in, _CHOOSING_TAIL)
    mu = -(scipy.special.ndtri(alpha) + scipy.special.ndtri(beta))
    best = int(np.argmax(mu))
    return float(mu[best]), float(thresholds[best])


def judge(
    scores: np.ndarray, included: np.ndarray, threshold: float, low_means_in: bool, delta: float, confidence: float
) -> tuple[ManyRunsAudit, ErrorRegion]:
    """Audit by one test that was chosen without looking at these scores.

    Args:
        scores: float64[runs].
        included: bool[runs].
        threshold: the test says "in" at scores >= threshold, or <= threshold where ``low_means_in``.
        low_means_in: see there.
        delta: of the epsilons.
        confidence: of the audit.

    Returns:
        The audit and the region of error rates that it stands on.
    """
    # Count the errors of the test.
    says_in = scores <= threshold if low_means_in else scores >= threshold
    num_in = int(included.sum())
    num_out = int((~included).sum())
    false_positives = int((says_in & ~included).sum())
    false_negatives = int((~says_in & included).sum())

    # Bound the privacy loss at the worst corner of their region.
    region = ErrorRegion.from_counts(false_positives, num_out, false_negatives, num_in, confidence=confidence)
    mu = float(region.mu())
    epsilon = float(region.epsilon(delta))
    epsilon_if_gaussian = 0.0
    if mu:
        epsilon_if_gaussian = float(gdp_epsilon(max(delta, _SMALLEST_DELTA), mu))

    audit = ManyRunsAudit(
        epsilon=epsilon,
        mu=mu,
        epsilon_if_gaussian=epsilon_if_gaussian,
        delta=delta,
        confidence=confidence,
        alpha=false_positives / max(num_out, 1),
        beta=false_negatives / max(num_in, 1),
        threshold=threshold,
        low_means_in=low_means_in,
        num_runs=scores.size,
    )
    return audit, region


def audit_many_runs(
    scores: Real[Array, " runs"],
    included: Shaped[Array, " runs"],
    *,
    delta: float,
    threshold: float | None = None,
    key: PRNGKeyArray | None = None,
    confidence: float = 0.95,
) -> ManyRunsAudit:
    """Bound mu and epsilon from below by one score of each of many independent runs.

    Formula: ``mu()`` and ``epsilon(delta)`` of the `ErrorRegion` of the test "in where score >= threshold".

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
    delta = check_number("delta", delta, HALF_OPEN_UNIT)
    confidence = check_number("confidence", confidence, OPEN_UNIT)
    if (threshold is None) == (key is None):
        raise ValueError(
            "give exactly one of threshold (fixed before the scores were seen) and key (a random half of the runs "
            "chooses it)"
        )
    if key is None:
        threshold = check_number("threshold", threshold, REAL)
        audit, _ = judge(numbers, coins, threshold, False, delta, confidence)
        return audit

    # A random half of the runs chooses the test, and the other half judges it.
    shuffled = np.asarray(jax.random.permutation(as_key(key), numbers.size))
    choosing, judging = np.split(shuffled, [numbers.size // 2])
    chosen_threshold, low_means_in = 0.0, False
    if choosing.size:
        _, chosen_threshold, low_means_in = best_test(numbers[choosing], coins[choosing])
    audit, _ = judge(numbers[judging], coins[judging], chosen_threshold, low_means_in, delta, confidence)
    return audit
