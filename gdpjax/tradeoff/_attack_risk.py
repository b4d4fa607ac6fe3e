r"""The risk of an attack under a trade-off curve: advantage, true positive rate, Bayes error, reconstruction.

    true_positive_rate(Gaussian(1.0), 0.01)     # what the best attack reaches at a false positive rate of 1%

An attacker who must tell two neighbouring data sets apart runs a test: false positive rate alpha, true positive rate at
most 1 - f(alpha). Everything else is a property of that region. An asymmetric curve speaks of one order of the two data
sets; symmetrize it for a statement about both.
"""

import jax.numpy as jnp

from gdpjax._core.checks import OPEN_UNIT, UNIT
from gdpjax._core.types import Array
from gdpjax.tradeoff._abstract import Curve, curve_function


@curve_function()
def _advantage(f: Curve) -> Array:
    distance = f.profile(jnp.zeros(()))
    return jnp.clip(distance, 0.0, 1.0)


def attack_advantage(f: Curve) -> Array:
    """Return the largest membership advantage of any attack: true minus false positive rate.

    Formula: sup_alpha (1 - alpha - f(alpha)) = delta(0), the total variation distance.

    Args:
        f: any trade-off curve.

    Returns:
        advantage in [0, 1], of the shape of the parameters; exact.

    Raises:
        ValueError: not a curve.

    Reference: Yeom, Giacomelli, Fredrikson and Jha, arXiv:1709.01604, Definition 4 (advantage); Kaissis et al.,
    arXiv:2406.08918 (its place in f-DP).

    >>> from gdpjax.tradeoff import Gaussian
    >>> print(f"{attack_advantage(Gaussian(1.0)):.6f}")
    0.382925
    """
    return _advantage(f)


@curve_function(false_positive_rate=UNIT)
def true_positive_rate(f: Curve, false_positive_rate: Array) -> Array:
    """Return the largest true positive rate of an attack with a given false positive rate.

    Formula: 1 - f(alpha) at alpha = false_positive_rate.

    Args:
        f: any trade-off curve.
        false_positive_rate: in [0, 1].

    Returns:
        rate in [0, 1], of the broadcast shape; exact (absolute accuracy 1e-16).

    Raises:
        ValueError: not a curve, or not a rate.

    Reference: Carlini et al., arXiv:2112.03570 (the measure); Dong, Roth and Su, arXiv:1905.02383, Definition 2.1.

    >>> from gdpjax.tradeoff import Gaussian
    >>> print(f"{true_positive_rate(Gaussian(1.0), 0.01):.6f}")
    0.092362
    """
    largest_error = 1.0 - false_positive_rate
    false_negative_rate = f.value(false_positive_rate)
    return 1.0 - jnp.clip(false_negative_rate, 0.0, largest_error)


@curve_function(prior=OPEN_UNIT)
def bayes_error(f: Curve, prior: Array) -> Array:
    """Return the least probability of error of an attacker who knows how likely the null hypothesis is.

    Formula: min_alpha (pi alpha + (1 - pi) f(alpha)) = (1 - pi) (1 - D(log(pi / (1 - pi)))), D the profile of f.

    Args:
        f: any trade-off curve.
        prior: probability pi of the null hypothesis, strictly between 0 and 1.

    Returns:
        probability of error, of the broadcast shape; exact. At prior 1/2 it is (1 - advantage) / 2.

    Raises:
        ValueError: not a curve, or prior outside its range.

    Reference: Kaissis et al., arXiv:2406.08918, Section 3; Dong, Roth and Su, arXiv:1905.02383, Section 2.3.

    >>> from gdpjax.tradeoff import Gaussian
    >>> print(f"{bayes_error(Gaussian(1.0), 0.5):.6f}")
    0.308538
    """
    log_odds = jnp.log(prior) - jnp.log1p(-prior)
    error = (1.0 - prior) * (1.0 - f.profile(log_odds))
    # An attacker who ignores the release errs no more often than this.
    without_release = jnp.minimum(prior, 1.0 - prior)
    return jnp.clip(error, 0.0, without_release)


@curve_function(baseline=UNIT)
def reconstruction_robustness(f: Curve, baseline: Array) -> Array:
    """Return the largest probability of reconstructing a record to a given accuracy.

    An attacker without the release succeeds with probability at most kappa, the baseline (for the best constant guess
    under the prior on records). Guessing right is an event whose probability the release can raise to at most

    Formula: sup {A(S) : N(S) <= kappa} = 1 - f(kappa).

    Args:
        f: trade-off curve; symmetrize an asymmetric one first, since either data set may be the true one.
        baseline: kappa in [0, 1], the success probability without the release.

    Returns:
        success probability in [0, 1], of the broadcast shape; an upper bound, from an exact curve.

    Raises:
        ValueError: not a curve, or not a probability.

    Reference: Hayes, Mahloujifar and Balle, arXiv:2302.07225, Theorem 2; Kaissis, Hayes, Ziller and Rueckert,
    arXiv:2307.03928.

    >>> from gdpjax.tradeoff import Gaussian
    >>> print(f"{reconstruction_robustness(Gaussian(1.0), 0.001):.6f}")
    0.018298
    """
    largest_error = 1.0 - baseline
    error = f.value(baseline)
    return 1.0 - jnp.clip(error, 0.0, largest_error)
