r"""The questions that every certified description of a mechanism answers: `CertifiedCurve`.

    curve = gdpjax.accounting.certified(1.0, 0.01, 1000)
    curve.epsilon(1e-5)             # Bounds(lower, upper): the truth is in between
    curve.tpr(0.01)                 # what the best attack reaches at a false positive rate of 1%

A mechanism is its trade-off curve f, and here f is known in brackets. A subclass gives four answers: epsilon at a
delta, delta at an epsilon, mu and the curve itself. What they mean for an attack follows from them, and is here, once:

* membership advantage: the largest true less false positive rate, delta(0);
* true positive rate at a false positive rate a: 1 - f(a);
* success of the Bayesian attacker with prior q of membership. An attack that guesses "member" on a set S is right with
  probability q A(S) + (1 - q) (1 - N(S)) = (1 - q) + q (A(S) - N(S) (1 - q) / q), whose largest value is
  (1 - q) + q D((1 - q) / q). For symmetric curves it is the same with q and 1 - q exchanged, so

      success(q) = max(q, 1 - q) + min(q, 1 - q) delta(|log((1 - q) / q)|);

* regret of reporting mu: `_regret`.

The two data sets of a pair of neighbours may be taken in either order. Every answer here is for the worse one: it is
about the symmetric curve, the largest convex one below both orders.
"""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np

from gdpjax._core.arguments import check_number
from gdpjax._core.checks import (
    EXTENDED_NONNEGATIVE,
    HALF_OPEN_UNIT,
    NONNEGATIVE,
    OPEN_UNIT,
    UNIT,
    check,
    is_traced,
    known,
)
from gdpjax._core.types import FAILURE, Array, Bounds, Numbers
from gdpjax.tradeoff._regret import certified_regret, narrowed_mu


class CertifiedCurve:
    """A mechanism whose trade-off curve is known between certified bounds.

    Abstract: `gdpjax.accounting.certified` makes one of a run or a `Ledger`, and `gdpjax.tradeoff.compose` one of
    curves. Every answer is `Bounds(lower, upper)` with the truth, in exact arithmetic, in between; it speaks of both
    orders of two neighbours.

    >>> from gdpjax.tradeoff import Laplace, compose
    >>> curve = compose(Laplace(0.5), times=8)
    >>> isinstance(curve, CertifiedCurve), bool(curve.advantage().lower <= curve.tpr(0.2).upper)
    (True, True)
    """

    def epsilon(self, delta: Numbers) -> Bounds:
        """Certified bracket on the smallest epsilon >= 0 with delta(epsilon) <= ``delta``, which is in (0, 1)."""
        return self._ask("epsilon", delta)

    def delta(self, epsilon: Numbers) -> Bounds:
        """Certified bracket on the smallest delta of (``epsilon``, delta)-DP, for a finite epsilon >= 0."""
        return self._ask("delta", epsilon)

    def mu(self, failure: Numbers = FAILURE) -> Bounds:
        """Certified bracket on the smallest mu such that f >= G_mu (x) f_{0, failure}, for a failure in (0, 1)."""
        return self._ask("mu", failure)

    def tradeoff(self, alpha: Numbers) -> Bounds:
        """Certified bracket on f(``alpha``), the least type II error of a test of type I error alpha in [0, 1]."""
        return self._ask("tradeoff", alpha)

    def _ask(self, question: str, at: Numbers) -> Bounds:
        """Return the answer to the question of this name, for subclasses that answer all four in one way."""
        raise NotImplementedError

    def advantage(self) -> Bounds:
        """Return the largest membership advantage: true less false positive rate of the best attack.

        Formula: delta(0), the total variation distance.

        Returns:
            ``Bounds`` in [0, 1]; certified.

        Reference: Yeom, Giacomelli, Fredrikson and Jha, arXiv:1709.01604, Definition 4.

        >>> from gdpjax.tradeoff import Laplace, compose
        >>> print(f"{compose(Laplace(0.5), times=2).advantage().upper:.4f}")
        0.2418
        """
        return self.delta(0.0)

    def tpr(self, fpr: Numbers) -> Bounds:
        """Return the largest true positive rate of an attack at a false positive rate.

        Formula: 1 - f(fpr).

        Args:
            fpr: false positive rate in [0, 1].

        Returns:
            ``Bounds`` in [0, 1] of the broadcast shape; certified.

        Raises:
            ValueError: not a rate.

        Reference: Carlini et al., arXiv:2112.03570 (the measure).

        >>> from gdpjax.tradeoff import Laplace, compose
        >>> print(f"{compose(Laplace(0.5), times=2).tpr(0.01).upper:.4f}")
        0.0272
        """
        check("fpr", fpr, UNIT)
        beta = _as_floats(self.tradeoff(fpr))
        lower = rounded_complement(beta.upper, -1.0)
        upper = rounded_complement(beta.lower, 1.0)
        return Bounds(lower, upper)

    def bayes_success(self, prior: Numbers) -> Bounds:
        """Return the largest probability of a right guess by an attacker who knows how likely membership is.

        Formula: max(q, 1 - q) + min(q, 1 - q) delta(|log((1 - q) / q)|) at q = prior.

        Args:
            prior: probability of membership, in [0, 1].

        Returns:
            ``Bounds`` in [max(q, 1 - q), 1] of the broadcast shape; certified. With prior 0 or 1 it is 1: the attacker
            knows already.

        Raises:
            ValueError: not a probability, or a traced one.

        Reference: Kaissis et al., arXiv:2406.08918, Section 3; Kulynych et al., arXiv:2407.02191.

        >>> from gdpjax.tradeoff import Laplace, compose
        >>> curve = compose(Laplace(0.5), times=2)
        >>> print(f"{curve.bayes_success(0.5).upper:.4f} {curve.bayes_success(0.0).upper:.4f}")
        0.6209 1.0000
        """
        prior = known("prior", prior, UNIT)
        # If the prior is below 1e-16, the larger part is rounded to 1. If it is above 1/2, the smaller part is exact.
        larger = np.maximum(prior, 1.0 - prior)
        smaller = np.minimum(prior, 1.0 - prior)
        is_unsure = smaller > 0

        # The rounding of the logarithm moves delta by no more than itself, since delta falls by at most 1 per epsilon.
        log_odds = np.log(larger) - np.log(np.where(is_unsure, smaller, 1.0))
        epsilon = np.where(is_unsure, np.maximum(log_odds, 0.0), 0.0)
        error = np.where(epsilon > 0, 1e-15 * (1.0 + epsilon), 0.0)
        delta = _as_floats(self.delta(epsilon))
        xp = jnp if is_traced(delta) else np
        lower_delta = xp.maximum(delta.lower - error, 0.0)
        upper_delta = xp.minimum(delta.upper + error, 1.0)

        # The attacker gains with the smaller part. The ends are moved by the rounding of these sums.
        rounding = 4.0 * float(xp.finfo(lower_delta.dtype).eps)
        lower = (larger + smaller * lower_delta) * (1.0 - rounding)
        upper = (larger + smaller * upper_delta) * (1.0 + rounding)
        lower = xp.maximum(lower, larger * (1.0 - rounding))
        upper = xp.minimum(upper, 1.0)
        lower = xp.where(is_unsure, lower, 1.0)
        upper = xp.where(is_unsure, upper, 1.0)
        return Bounds(xp.minimum(lower, upper)[()], upper[()])

    def regret(self, mu: float | None = None) -> Bounds:
        """Return the distance of the curve from G_mu, along the diagonal: the loss from reporting one number mu.

        Formula: inf { k >= 0 : f(a + k) - k <= G_mu(a) for all a } = max(0, sup_{epsilon >= 0} (delta_mu(epsilon) -
        delta(epsilon)) / (1 + e^epsilon)).

        Args:
            mu: the number that is reported, >= 0; by default the upper end of ``self.mu()``.

        Returns:
            ``Bounds`` in [0, 1/2], of one number; certified.

        Raises:
            ValueError: not one number >= 0, or traced.

        Reference: Gomez, Kulynych et al., arXiv:2503.10945 (reporting mu with its regret); the bracket:
        docs/theory/regret.md.

        >>> from gdpjax.tradeoff import Laplace, compose
        >>> curve = compose(Laplace(0.5), times=8)
        >>> lower, upper = curve.regret()
        >>> bool(0 <= lower <= upper < 0.01)
        True
        """
        mu = check_number("mu", self.mu(FAILURE).upper if mu is None else mu, EXTENDED_NONNEGATIVE)
        return certified_regret(self._deltas, mu)

    def reported_mu(self, failure: float = FAILURE) -> Bounds:
        """Return the bracket of `mu`, narrowed to about 1e-4 where that is possible, for a number that will be printed.

        Formula: as `mu`.

        Args:
            failure: failure probability of the statement, strictly between 0 and 1.

        Returns:
            ``Bounds`` inside those of ``mu(failure)``, of one number; certified.

        Raises:
            ValueError: failure outside its range, or traced.

        >>> from gdpjax.tradeoff import Laplace, compose
        >>> print(f"{compose(Laplace(0.5), times=8).reported_mu().upper:.4f}")
        1.3273
        """
        failure = check_number("failure", failure, OPEN_UNIT)
        mu = self.mu(failure)
        known = Bounds(float(mu.lower), float(mu.upper))
        end = float(self.epsilon(failure).upper)
        return narrowed_mu(self._deltas, known, failure, end)

    def _deltas(self, epsilon: np.ndarray, width: float) -> Bounds:
        """Return `delta` at an array of epsilon, with a relative width of about ``width`` where a subclass can."""
        return self.delta(epsilon)


class NoGuarantee(CertifiedCurve):
    """The curve of a mechanism about which nothing is claimed: every bracket is as wide as can be.

    >>> NoGuarantee().epsilon(1e-5)
    Bounds(lower=0.0, upper=inf)
    """

    def epsilon(self, delta: Numbers) -> Bounds:
        """Return [0, inf]."""
        return _anything(known("delta", delta, HALF_OPEN_UNIT), np.inf)

    def delta(self, epsilon: Numbers) -> Bounds:
        """Return [0, 1]."""
        return _anything(known("epsilon", epsilon, NONNEGATIVE), 1.0)

    def mu(self, failure: Numbers = FAILURE) -> Bounds:
        """Return [0, inf]."""
        return _anything(known("failure", failure, HALF_OPEN_UNIT), np.inf)

    def tradeoff(self, alpha: Numbers) -> Bounds:
        """Return [0, 1 - alpha]."""
        alpha = known("alpha", alpha, UNIT)
        return _anything(alpha, 1.0 - alpha)


def _anything(at: np.ndarray, largest: Any) -> Bounds:
    """Return the brackets from 0 to ``largest``."""
    if not at.ndim:
        return Bounds(0.0, float(largest))
    return Bounds(np.zeros(at.shape), np.full(at.shape, largest))


def each(ask: Callable[..., Bounds], *values: Any) -> Bounds:
    """Return the brackets that ``ask`` gives at every element of arrays that broadcast together."""
    elements = np.broadcast(*values)
    answers = [ask(*element) for element in elements]
    ends = np.array(answers, np.float64).reshape(*elements.shape, 2)
    return Bounds(ends[..., 0][()], ends[..., 1][()])


def _as_floats(bounds: Bounds) -> Bounds:
    """Return ``bounds`` as float64 arrays, or as they are where they are traced."""
    if is_traced(bounds):
        return bounds
    lower = np.asarray(bounds.lower, np.float64)
    upper = np.asarray(bounds.upper, np.float64)
    return Bounds(lower, upper)


def rounded_complement(share: Array, side: float) -> Any:
    """Return 1 - share, rounded to the given side; it is exact for 0 and from 1/2 on."""
    xp = jnp if is_traced(share) else np
    rest = 1.0 - share
    is_exact = (share == 0) | (share >= 0.5)
    rounded = xp.nextafter(rest, side * np.inf)
    rest = xp.where(is_exact, rest, rounded)
    return xp.clip(rest, 0.0, 1.0)[()]
