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

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import PRNGKeyArray, Real, Shaped

from gdpjax._core.arguments import check_number, keyword_checked
from gdpjax._core.checks import COUNT, HALF_OPEN_UNIT, OPEN_UNIT, check
from gdpjax._core.keys import as_key
from gdpjax._core.types import Array
from gdpjax.auditing._check import STANDING, check_scores
from gdpjax.auditing._right_guesses import RightGuesses


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
    standing: str = STANDING


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
    check("num_guesses", num_guesses, COUNT)
    return np.atleast_1d(num_guesses).tolist()


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
