"""What the right guesses about one run prove, by `_one_run_theorems`."""

import dataclasses
from collections.abc import Callable
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, PRNGKeyArray, Real, Shaped

from gdpjax._core.arguments import check_number
from gdpjax._core.checks import HALF_OPEN_UNIT, NONNEGATIVE, OPEN_UNIT
from gdpjax._core.keys import as_key
from gdpjax._core.types import Array, Floats, Numbers
from gdpjax.auditing._check import check_counts, check_scores
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
        given = self.num_correct, self.num_guesses, self.num_canaries
        counts = check_counts(num_correct=given[0], num_guesses=given[1], num_canaries=given[2])
        correct, guesses, canaries = counts.values()
        if guesses.ndim or canaries.ndim:
            raise ValueError("num_guesses and num_canaries must be one number each: they are fixed before the run")
        if not (guesses >= 1 and guesses <= canaries and (correct <= guesses).all()):
            raise ValueError(
                "expected num_correct <= num_guesses <= num_canaries and num_guesses >= 1, "
                f"got {given[0]}, {given[1]} and {given[2]}"
            )
        object.__setattr__(self, "num_correct", correct)
        object.__setattr__(self, "num_guesses", int(guesses))
        object.__setattr__(self, "num_canaries", int(canaries))

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
        num_guesses = cls(0, num_guesses, numbers.size).num_guesses
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
