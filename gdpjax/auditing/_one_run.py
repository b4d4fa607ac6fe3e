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

import jax
import numpy as np

from gdpjax._core.checks import COUNT, check
from gdpjax._core.keys import as_key
from gdpjax._core.shown import shown
from gdpjax._core.types import Array
from gdpjax.auditing._check import STANDING, check_confidence, check_delta, check_fair, check_scores
from gdpjax.auditing._one_run_epsilon import check_guesses, one_run_epsilon
from gdpjax.auditing._one_run_tradeoff import one_run_mu


class OneRunAudit(NamedTuple):
    """What one training run shows. Both bounds hold together with probability at least ``confidence``.

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


def count_correct(scores: Array, included: Array, num_guesses: int, key: Array) -> int:
    """How many guesses are right: "included" for the highest ceil(r/2) scores, "excluded" for the lowest floor(r/2).

    Args:
        scores: m numbers, higher where membership is likelier; inf allowed, NaN refused.
        included: m fair coins.
        num_guesses: r, 1 <= r <= m.
        key: one PRNG key that breaks ties.

    Returns:
        The number of right guesses.

    Raises:
        ValueError: NaN scores, unequal lengths, r out of range.

    >>> count_correct([3.0, -1.0, 0.1, 0.0], [1, 0, 1, 1], 2, jax.random.key(0))
    2
    """
    numbers, coins = check_scores(scores, included)
    check_guesses(0, num_guesses, numbers.size)
    key = as_key(key)
    order = np.lexsort((np.asarray(jax.random.permutation(key, numbers.size)), numbers))
    high = (int(num_guesses) + 1) // 2
    right = int(coins[order[numbers.size - high :]].sum())
    return right + int((~coins[order[: int(num_guesses) - high]]).sum())


def audit_one_run(
    scores: Array, included: Array, *, key: Array, delta: float, num_guesses: int | Sequence[int] | None = None,
    confidence: float = 0.95,
) -> OneRunAudit:  # fmt: skip
    """Lower bounds on epsilon and mu from the scores of the canaries of one training run.

    Formula: `one_run_epsilon` and `one_run_mu` of the number of right guesses of `count_correct`.

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

    >>> included = jax.random.bernoulli(jax.random.key(0), 0.5, (2000,))
    >>> scores = included + jax.random.normal(jax.random.key(1), (2000,))  # a release with mu = 1
    >>> audit = audit_one_run(scores, included, key=jax.random.key(2), delta=1e-5)
    >>> 0.5 < audit.mu < 1.0 and 1.5 < audit.epsilon < 4.38
    True
    """
    numbers, coins = check_scores(scores, included)
    check_fair(coins)
    key = as_key(key)
    delta, level = check_delta(delta), 1 - check_confidence(confidence)
    size = numbers.size
    if num_guesses is not None:
        check("num_guesses", num_guesses, COUNT)
    several = np.atleast_1d(-(-size // 10) if num_guesses is None else np.asarray(num_guesses))
    if several.ndim != 1 or not several.size or len(set(several.tolist())) < several.size:
        raise ValueError(f"num_guesses must be a number or different numbers, got {shown(num_guesses)}")
    shared = 1 - level / several.size
    found = []
    for guesses in several.tolist():
        correct = count_correct(numbers, coins, guesses, key)
        mu = float(one_run_mu(correct, guesses, size, confidence=shared))
        epsilon = float(one_run_epsilon(correct, guesses, size, delta=delta, confidence=shared))
        found.append((mu, epsilon, int(guesses), correct))
    mu, _, guesses, correct = max(found)
    epsilon = max(row[1] for row in found)
    return OneRunAudit(epsilon, mu, delta, 1 - level, size, guesses, correct)
