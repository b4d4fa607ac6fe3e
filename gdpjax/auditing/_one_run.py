r"""The audit of one training run, from scores to bounds.

The auditor sorts the m scores, guesses "included" for the highest r/2 and "excluded" for the lowest, and abstains on
the rest. What keeps the bounds honest:

* r is fixed before the scores are seen. For several r the confidence is shared among them (Bonferroni): searching for
  the best r and reporting it as if it were the only one is how null scores come to "prove" an epsilon of 3.5.
* *Ties* are broken at random, by ``key``. By position would not do: in a file sorted by ``included`` equal scores would
  be guessed right every time.
* Both bounds of one r come from the same tail event {W >= v}, so epsilon and mu hold together.
* Coins that are not independent and fair void the theorem. A split that fair coins practically never give is refused.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, PRNGKeyArray, Real, Shaped

from gdpjax._core.arguments import check_count, check_number, keyword_checked
from gdpjax._core.checks import HALF_OPEN_UNIT, NONNEGATIVE, OPEN_UNIT, WHOLE, known
from gdpjax._core.keys import as_key
from gdpjax._core.types import Array, Floats, Numbers
from gdpjax.auditing._canaries import check_scores
from gdpjax.auditing._one_run_theorems import largest_refuted_epsilon, largest_refuted_mu, p_value, refuted_each
from gdpjax.tradeoff import Curve
from gdpjax.tradeoff._abstract import check_symmetric


@dataclasses.dataclass(frozen=True, eq=False)
class RightGuesses:
    """How many guesses about the canaries of one run were right, and what that proves.

    `audit_one_run` counts them and asks; with counts of your own ask here. Bounds are empirical lower.

    Args:
        num_correct: W, right guesses; of an array every answer is an array.
        num_guesses: r >= 1, guesses made; fixed before the scores were seen (or corrected for, as `audit_one_run`
            does), and the same for every outcome.
        num_canaries: m >= r, each included by an independent fair coin.

    Raises:
        ValueError: counts that do not fit together.

    >>> guesses = RightGuesses(900, 1000, 1000)
    >>> print(f"{guesses.epsilon(1e-5):.3f} {guesses.mu():.3f}")
    2.021 0.880
    """

    num_correct: Numbers
    num_guesses: int
    num_canaries: int

    def __post_init__(self) -> None:
        correct = known("num_correct", self.num_correct, WHOLE).astype(np.int64)
        canaries = check_count("num_canaries", self.num_canaries)
        guesses = check_count("num_guesses", self.num_guesses, most=canaries)
        if (correct > guesses).any():
            raise ValueError(f"expected num_correct <= num_guesses = {guesses}, got {self.num_correct}")
        object.__setattr__(self, "num_correct", correct)
        object.__setattr__(self, "num_guesses", guesses)
        object.__setattr__(self, "num_canaries", canaries)

    @classmethod
    def count(
        cls, scores: Real[Array, " canaries"], included: Shaped[Array, " canaries"], num_guesses: int, key: PRNGKeyArray
    ) -> Self:
        """Guess "included" for the highest ceil(r/2) scores and "excluded" for the lowest floor(r/2), and count.

        Args:
            scores: m numbers, higher where membership is likelier; inf allowed, NaN refused.
            included: m fair coins.
            num_guesses: r, 1 <= r <= m.
            key: one PRNG key that breaks ties.

        Raises:
            ValueError: NaN scores, unequal lengths, r out of range.

        >>> int(RightGuesses.count([3.0, -1.0, 0.1, 0.0], [1, 0, 1, 1], 2, jax.random.key(0)).num_correct)
        2
        """
        numbers, coins = check_scores(scores, included)
        num_guesses = check_count("num_guesses", num_guesses, most=numbers.size)
        # Sort by score, and equal scores by a random number of their own.
        tie_breaks = np.asarray(jax.random.permutation(as_key(key), numbers.size))
        ascending = np.lexsort((tie_breaks, numbers))

        # Guess "included" for the highest scores and "excluded" for the lowest.
        num_included = (num_guesses + 1) // 2
        num_excluded = num_guesses - num_included
        highest = ascending[numbers.size - num_included :]
        lowest = ascending[:num_excluded]
        num_correct = coins[highest].sum() + (~coins[lowest]).sum()
        return cls(int(num_correct), num_guesses, numbers.size)

    def p_value(self, epsilon: float, delta: float) -> Floats:
        """Return the largest probability of so many right guesses about an (epsilon, delta)-private mechanism.

        Formula: P(Bin(r, q) >= W) + m delta (1 - q) A_r(q), at most 1, with q = e^epsilon / (1 + e^epsilon) and A_r(q)
        the mean of max_j P(Bin(k, q) = j) over k = 0, ..., r - 1.

        Args:
            epsilon: finite and >= 0.
            delta: in [0, 1).

        Returns:
            A p-value in [0, 1] for "the mechanism is (epsilon, delta)-DP"; an upper bound.

        Raises:
            ValueError: numbers out of range.

        Reference: Steinke, Nasr and Jagielski, arXiv:2305.08846, Theorem 3.1; the delta term is derived here.

        >>> print(f"{RightGuesses(60, 100, 100).p_value(0.0, 0.0):.4f}")
        0.0284
        """
        epsilon = check_number("epsilon", epsilon, NONNEGATIVE)
        delta = check_number("delta", delta, HALF_OPEN_UNIT)
        return p_value(self.num_correct, self.num_guesses, self.num_canaries, epsilon, delta)[()]

    def epsilon(self, delta: float, *, confidence: float = 0.95) -> Floats:
        """Return a lower bound on epsilon.

        Formula: the largest epsilon whose `p_value` is at most 1 - confidence, or 0.

        Args:
            delta: in [0, 1).
            confidence: probability in (0, 1) with which the bound holds.

        Returns:
            epsilon >= 0 in nats, float64 of the shape of ``num_correct``. Empirical lower: if the mechanism is
            (epsilon*, delta)-DP, this is at most epsilon* with probability at least ``confidence`` over the coins and
            the run.

        Raises:
            ValueError: numbers out of range.

        Reference: Steinke, Nasr and Jagielski, arXiv:2305.08846, Theorem 3.1; the delta term is derived here.
        """
        delta = check_number("delta", delta, HALF_OPEN_UNIT)
        level = 1 - check_number("confidence", confidence, OPEN_UNIT)

        def of_each(counts: np.ndarray) -> list[float]:
            sizes = self.num_guesses, self.num_canaries
            return [largest_refuted_epsilon(count, *sizes, delta, level) for count in counts]

        return self._for_each_count(of_each)

    def mu(self, *, confidence: float = 0.95) -> Floats:
        """Return a lower bound on mu.

        Formula: the largest mu whose curve G_mu is refuted, see `refutes`, or 0.

        Args:
            confidence: in (0, 1).

        Returns:
            mu >= 0, float64 of the shape of ``num_correct``. Empirical lower: a mu*-GDP mechanism gives more than mu*
            with probability at most 1 - confidence.

        Raises:
            ValueError: a confidence out of range.

        Reference: Mahloujifar, Melis and Chaudhuri, arXiv:2410.22235; derived in `_one_run_theorems`.

        >>> guesses = RightGuesses(916, 1000, 10_000)  # the usual outcome of N(0, 1) noise, mu = 1
        >>> print(f"{guesses.mu():.3f}")
        0.732
        """
        return self._with_tail(largest_refuted_mu, confidence)

    def refutes(self, curve: Curve, *, confidence: float = 0.95) -> Bool[Array, "..."]:
        """Return whether the right guesses refute "the mechanism is f-DP" for a curve f.

        Formula: whether every law of W allowed by E[W; W >= c] / m <= 1 - f(E[r - W; W >= c - 1] / m), c = 1, ..., r,
        has P(W >= num_correct) < 1 - confidence.

        Args:
            curve: one symmetric curve of `gdpjax.tradeoff` (`gdpjax.tradeoff.symmetrize` makes one).
            confidence: in (0, 1).

        Returns:
            bool of the shape of ``num_correct``. An f-DP mechanism is refuted with probability at most 1 - confidence.

        Raises:
            ValueError: a curve that is not symmetric or not one curve, a confidence out of range.

        Reference: Mahloujifar, Melis and Chaudhuri, arXiv:2410.22235; derived in `_one_run_theorems`.

        >>> from gdpjax.tradeoff import ApproximateDP
        >>> bool(RightGuesses(900, 1000, 1000).refutes(ApproximateDP(1.0, 1e-5)))
        True
        """
        curve = check_symmetric("curve", curve, "a one-run audit")
        if any(np.ndim(leaf) for leaf in curve.shapes().values()):
            raise ValueError("curve must be one curve, got an array of curves; ask about them one by one")

        def refuted(*numbers: Array) -> Array:
            wide_curve = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float64), curve)
            return refuted_each(wide_curve, *numbers)

        return self._with_tail(refuted, confidence)

    def _with_tail(self, body: Callable[[Array, Array, Array, Array], Array], confidence: Any) -> Array:
        """Return ``body(distinct counts, guesses, canaries, tail)`` in float64, in the shape of ``num_correct``."""
        tail = 1 - check_number("confidence", confidence, OPEN_UNIT)

        def of_each(counts: np.ndarray) -> np.ndarray:
            with jax.enable_x64(True):
                numbers = counts, self.num_guesses, self.num_canaries, tail
                return np.asarray(body(*(jnp.asarray(number, jnp.float64) for number in numbers)))

        return self._for_each_count(of_each)

    def _for_each_count(self, of_each: Callable[[np.ndarray], Any]) -> Array:
        """Return what a function gives for the distinct counts, in the shape of ``num_correct``."""
        distinct, index_of_distinct = np.unique(self.num_correct, return_inverse=True)
        return np.asarray(of_each(distinct))[index_of_distinct].reshape(self.num_correct.shape)[()]


class OneRunAudit(NamedTuple):
    """Lower bounds from one training run, which hold together with probability at least ``confidence``.

    Attributes:
      epsilon: lower bound on epsilon at ``delta``, in nats.
      mu: lower bound on mu.
      delta: as given.
      confidence: as given.
      num_canaries: m.
      num_guesses: r behind the larger mu.
      num_correct: right guesses among those.
      standing: "empirical lower".
    """

    epsilon: float
    mu: float
    delta: float
    confidence: float
    num_canaries: int
    num_guesses: int
    num_correct: int
    standing: str = "empirical lower"


@keyword_checked()
def audit_one_run(
    scores: Real[Array, " canaries"],
    included: Shaped[Array, " canaries"],
    *,
    key: PRNGKeyArray,
    delta: float,
    num_guesses: int | Sequence[int] | None = None,
    confidence: float = 0.95,
) -> OneRunAudit:
    """Bound epsilon and mu from below by the scores of the canaries of one training run.

    Formula: the largest ``epsilon(delta)`` and ``mu()`` of `RightGuesses.count` for each number of guesses.

    Args:
        scores: m numbers, higher where membership is likelier; inf allowed, NaN refused.
        included: m independent fair coins: whether the canary was in the training data.
        key: one PRNG key, for ties; chosen before the scores were seen.
        delta: in [0, 1), of the epsilon.
        num_guesses: r, fixed before the scores were seen, or several r among which the confidence is shared;
            by default m / 10 rounded up.
        confidence: in (0, 1).

    Returns:
        An `OneRunAudit`, empirical lower: with probability at least ``confidence`` over coins, run and ties both bounds
        are at most the truth.

    Raises:
        ValueError: NaN scores, coins that are not 0 or 1 or cannot be fair, numbers out of range.

    Reference: Steinke, Nasr and Jagielski, arXiv:2305.08846; Mahloujifar, Melis and Chaudhuri, arXiv:2410.22235.

    >>> import jax
    >>> included = jax.random.bernoulli(jax.random.key(0), 0.5, (2000,))
    >>> scores = included + jax.random.normal(jax.random.key(1), (2000,))  # a release with mu = 1
    >>> audit = audit_one_run(scores, included, key=jax.random.key(2), delta=1e-5)
    >>> 0.5 < audit.mu < 1.0 and 1.5 < audit.epsilon < 4.38
    True
    """
    numbers, coins = check_scores(scores, included)
    _check_fair(coins)
    key = as_key(key)
    delta = check_number("delta", delta, HALF_OPEN_UNIT)
    failure = 1 - check_number("confidence", confidence, OPEN_UNIT)
    num_canaries = numbers.size
    choices = _guess_counts(num_guesses, num_canaries)

    # Several numbers of guesses share the probability of failure (Bonferroni).
    shared_confidence = 1 - failure / len(choices)
    results = []
    for guesses in choices:
        right = RightGuesses.count(numbers, coins, guesses, key)
        mu = right.mu(confidence=shared_confidence)
        epsilon = right.epsilon(delta, confidence=shared_confidence)
        results.append((float(mu), float(epsilon), right.num_guesses, int(right.num_correct)))

    # All of the bounds hold together, so the largest of each kind does.
    largest_mu, _, guesses, correct = max(results)
    largest_epsilon = max(epsilon for _, epsilon, _, _ in results)
    return OneRunAudit(
        epsilon=largest_epsilon,
        mu=largest_mu,
        delta=delta,
        confidence=1 - failure,
        num_canaries=num_canaries,
        num_guesses=guesses,
        num_correct=correct,
    )


def _guess_counts(num_guesses: int | Sequence[int] | None, num_canaries: int) -> list[int]:
    """Return the different numbers of guesses to try; a tenth of the canaries by default."""
    if num_guesses is None:
        return [-(-num_canaries // 10)]
    choices = [check_count("num_guesses", guesses, most=num_canaries) for guesses in np.atleast_1d(num_guesses)]
    if not choices:
        raise ValueError("num_guesses must be a number or several, got none")
    return choices


def _check_fair(included: np.ndarray) -> None:
    """Raise ValueError for a split that independent fair coins give with probability below 1e-9 only."""
    num_canaries = included.size
    num_included = int(included.sum())
    # By Hoeffding, P(|heads - m / 2| > d) <= 2 exp(-2 d^2 / m), which is 1e-9 at this distance.
    largest_distance = np.sqrt(num_canaries * np.log(2e9) / 2)
    if abs(num_included - num_canaries / 2) > largest_distance:
        raise ValueError(
            f"included must be independent fair coins (gdpjax.auditing.flip_coins), but {num_included} of "
            f"{num_canaries} canaries "
            "were included; a one-run audit is wrong for other coins"
        )
