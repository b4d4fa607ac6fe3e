"""Randomized response: each person perturbs their own answer, and frequencies are estimated without bias.

With truth probability t = e^epsilon / (e^epsilon + k - 1) and every other answer with probability q = 1 / (e^epsilon +
k - 1), an answer i is observed with probability lambda_i = q + (t - q) pi_i, pi_i being its frequency. Hence
(lambda_i - q) / (t - q) is an unbiased estimate of pi_i. For people drawn at random with frequencies pi its variance is
lambda_i (1 - lambda_i) / (n (t - q)^2), which the plug-in standard error estimates.

The sampler keeps an answer with probability r = t - q, and else draws any of the k categories, the true one included.
Its coin compares 32 random bits with floor(2^32 r), so r is rounded down, by 2.4e-10 at most (6e-8 in compiled code
that holds r in float32), and is never 1. A smaller r is more private whatever k is: the curve below holds. The category
is a 64-bit number modulo k, uniform to a relative k / 2^64.
"""

import dataclasses
from typing import NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int, PRNGKeyArray, Real, Shaped

from gdpjax._core.arguments import check_array, check_count, check_number
from gdpjax._core.checks import HALF_OPEN_UNIT, NONNEGATIVE, OPEN_UNIT, POSITIVE, check, is_traced
from gdpjax._core.keys import bits, coins, split
from gdpjax._core.precision import float64_function
from gdpjax._core.types import Array, Floats, NeighboringRelation, Numbers, pytree_dataclass
from gdpjax.ledger import RandomizedResponseEvent
from gdpjax.mechanisms._abstract import ADDED, Mechanism, not_above, own_key
from gdpjax.tradeoff import ApproximateDP, Curve, PiecewiseLinear


class FrequencyEstimate(NamedTuple):
    """Unbiased estimates of frequencies (they may be negative), and their standard errors."""

    frequencies: Float[Array, "*counts categories"]
    standard_errors: Float[Array, "*counts categories"]


@pytree_dataclass
class RandomizedResponse(Mechanism):
    """Answers truthfully with probability e^epsilon / (e^epsilon + k - 1), else with another category at random.

    Args:
        epsilon: privacy loss, finite and > 0.
        num_categories: k >= 2, static.

    Returns:
        A mechanism whose curve is exactly `ApproximateDP(epsilon)` for k = 2, and strictly above it for k > 2.

    Raises:
        ValueError: epsilon or num_categories out of range.

    Reference: Warner, JASA 1965; Kairouz, Bonawitz and Ramage, arXiv:1602.07387 (k categories).

    >>> print(f"{RandomizedResponse.two_coins().privacy_loss:.6f}")
    1.098612
    """

    privacy_loss: Numbers  # the epsilon; that name is the method's
    num_categories: int = dataclasses.field(default=2, metadata={"static": True})

    def __init__(self, epsilon: Numbers, num_categories: int = 2) -> None:
        check("epsilon", epsilon, POSITIVE)
        num_categories = check_count("num_categories", num_categories, least=2)
        object.__setattr__(self, "privacy_loss", epsilon)
        object.__setattr__(self, "num_categories", num_categories)

    @classmethod
    def two_coins(cls) -> Self:
        """Return Warner's two fair coins, epsilon = ln 3.

        On heads of the first one answers truthfully, on tails one says what the second shows.
        """
        return cls(float(np.log(3.0)))

    @classmethod
    def with_truth_probability(cls, truth_probability: float, num_categories: int = 2) -> Self:
        """Return the mechanism that tells the truth with a given probability, above 1 / k and below 1."""
        truth_probability = check_number("truth_probability", truth_probability, OPEN_UNIT)
        num_categories = check_count("num_categories", num_categories, least=2)
        # e^epsilon is how much likelier the truth is than any other answer.
        odds = truth_probability * (num_categories - 1) / (1.0 - truth_probability)
        if not odds > 1:
            raise ValueError(f"truth_probability must exceed 1 / {num_categories}, got {truth_probability}")
        return cls(float(np.log(odds)), num_categories)

    @property
    def truth_probability(self) -> Floats:
        """e^epsilon / (e^epsilon + k - 1), below 1 and rounded down where it is float32."""
        return _truth_probability(self.privacy_loss, self.num_categories)

    def tradeoff(self) -> Curve:
        """Return the exact curve: f_{epsilon, 0} for two categories.

        For more categories it has three pieces, of slope -e^epsilon, -1 and -e^-epsilon.
        """
        if self.num_categories == 2:
            return ApproximateDP(self.privacy_loss)
        # The probability of one lie, and of any; the latter not as 1 - truth, which cancels.
        lie_prob = 1.0 / (np.exp(np.float64(self.privacy_loss)) + self.num_categories - 1)
        any_lie_prob = (self.num_categories - 1) * lie_prob
        alpha = np.array([0.0, lie_prob, any_lie_prob, 1.0])
        beta = np.array([1.0, any_lie_prob, lie_prob, 0.0])
        return PiecewiseLinear(alpha, beta)

    def delta(self, epsilon: Numbers) -> Floats:
        """Return the smallest delta with (epsilon, delta)-DP for one release; exact, also where both are tiny."""
        return _delta(epsilon, self.privacy_loss, self.num_categories)

    def epsilon(self, delta: Numbers) -> Floats:
        """Return the smallest epsilon >= 0 with (epsilon, delta)-DP for one release; exact, see `delta`."""
        return _epsilon(delta, self.privacy_loss, self.num_categories)

    def event(
        self, num_steps: int = 1, *, neighboring_relation: NeighboringRelation = ADDED
    ) -> RandomizedResponseEvent:
        """Return the event of ``num_steps`` releases."""
        return RandomizedResponseEvent(self.privacy_loss, self.num_categories, num_steps, neighboring_relation)

    def sample(self, key: PRNGKeyArray, value: Shaped[Array, "*shape"] | int) -> Int[Array, "*shape"]:
        """Return perturbed answers.

        Args:
            key: a PRNG key, used for nothing else.
            value: categories, integers (or booleans) in [0, k), any shape; each element is perturbed independently.

        Returns:
            Categories of the same shape, int32.

        Raises:
            ValueError: not integers, or concrete ones outside [0, k). Traced ones are taken modulo k.
        """
        answers = jnp.asarray(check_array("value", value, kinds="biuf"))
        if not (jnp.issubdtype(answers.dtype, jnp.integer) or answers.dtype == jnp.bool_):
            raise ValueError(f"value must hold categories as integers, got {answers.dtype}")
        if not is_traced(answers) and answers.size:
            known = np.asarray(answers)
            if known.min() < 0 or known.max() >= self.num_categories:
                raise ValueError(f"value must hold categories from 0 to {self.num_categories - 1}")

        key, is_own = own_key(key, answers, self.privacy_loss)
        keep_key, category_key = split(key)
        keep_prob = _keep_probability(not_above(self.privacy_loss), self.num_categories)
        is_kept = coins(keep_key, answers.shape, keep_prob) & (is_own > 0)
        own = jnp.mod(answers.astype(jnp.int32), self.num_categories)
        return jnp.where(is_kept, own, _uniform_categories(category_key, answers.shape, self.num_categories))

    def estimate(self, counts: Real[Array, "*counts categories"]) -> FrequencyEstimate:
        """Estimate the frequencies of the true categories without bias, from counts of the perturbed ones.

        Formula: pi_i = (c_i / n - q) / (t - q), standard error sqrt(l_i (1 - l_i) / n) / (t - q), l_i = c_i / n.

        Args:
            counts: how often each category was observed, shape [..., k].

        Returns:
            `FrequencyEstimate(frequencies, standard_errors)` of that shape; the frequencies unbiased, sum 1, possibly
            negative; the errors plug-in estimates for people drawn at random.

        Raises:
            ValueError: a negative count, not k of them, or no answer at all.

        Reference: Warner, JASA 1965; Kairouz, Bonawitz and Ramage, arXiv:1602.07387, Section 4.

        >>> frequencies, errors = RandomizedResponse.two_coins().estimate([400, 600])
        >>> print(frequencies, errors.round(4))
        [0.3 0.7] [0.031 0.031]
        """
        counts = check_array("counts", counts)
        if np.ndim(counts) < 1 or np.shape(counts)[-1] != self.num_categories:
            raise ValueError(
                f"counts must have {self.num_categories} entries in its last axis, got shape {np.shape(counts)}"
            )
        if not is_traced(counts) and np.any(np.sum(counts, axis=-1) == 0):
            raise ValueError("counts must hold at least one answer, got none")
        frequencies, standard_errors = _estimate(counts, self.privacy_loss, self.num_categories)
        return FrequencyEstimate(frequencies, standard_errors)


def _uniform_categories(key: Array, shape: tuple[int, ...], num_categories: int) -> Array:
    """Return uniform categories, int32 of this shape, from 64 random bits each."""
    high, low = bits(key, (2, *shape))

    def with_next_bit(i: Array, remainder: Array) -> Array:
        bit = (low >> (31 - i).astype(jnp.uint32)) & 1
        return (2 * remainder + bit) % num_categories

    # (2^32 high + low) modulo k, one bit of low at a time: twice a remainder fits 32 bits, and a product may not.
    remainder = jax.lax.fori_loop(0, 32, with_next_bit, high % num_categories)
    return remainder.astype(jnp.int32)


def _gap(epsilon: Array, num_categories: int) -> Array:
    """Return r = t - q = (1 - e^-epsilon) / (1 + (k - 1) e^-epsilon), without cancellation and overflow."""
    return -jnp.expm1(-epsilon) / (1.0 + (num_categories - 1) * jnp.exp(-epsilon))


@float64_function(rounding="down", epsilon=POSITIVE)
def _keep_probability(epsilon: Array, num_categories: int) -> Array:
    """Return r, or less where it is close to 1: with r = 1 nobody would ever lie."""
    return jnp.minimum(_gap(epsilon, num_categories), 1.0 - 2.0**-32)


@float64_function(rounding="down", epsilon=POSITIVE)
def _truth_probability(epsilon: Array, num_categories: int) -> Array:
    """Return t = r + (1 - r) / k of the r that the sampler has."""
    keep_prob = jnp.minimum(_gap(epsilon, num_categories), 1.0 - 2.0**-32)
    return keep_prob + (1.0 - keep_prob) / num_categories


def _truth(epsilon: Array, num_categories: int) -> Array:
    """Return t of the formula."""
    return 1.0 / (1.0 + (num_categories - 1) * jnp.exp(-epsilon))


@float64_function(rounding="up", epsilon=NONNEGATIVE, loss=POSITIVE)
def _delta(epsilon: Array, loss: Array, num_categories: int) -> Array:
    """Return t - e^epsilon q = t (1 - e^(epsilon - loss)), or 0."""
    return jnp.maximum(-_truth(loss, num_categories) * jnp.expm1(epsilon - loss), 0.0)


@float64_function(rounding="up", delta=HALF_OPEN_UNIT, loss=POSITIVE)
def _epsilon(delta: Array, loss: Array, num_categories: int) -> Array:
    """Return the epsilon of that delta, or 0."""
    share = jnp.minimum(delta / _truth(loss, num_categories), 1.0 - 2.0**-53)
    return jnp.maximum(loss + jnp.log1p(-share), 0.0) * (1.0 + 1e-15)


@float64_function(broadcast=False, counts=NONNEGATIVE, epsilon=POSITIVE)
def _estimate(counts: Array, epsilon: Array, num_categories: int) -> tuple[Array, Array]:
    """Return the frequencies and their standard errors, both [..., k]."""
    total = jnp.sum(counts, axis=-1, keepdims=True)
    observed = counts / total

    lie_prob = 1.0 / (jnp.exp(epsilon) + num_categories - 1)
    gap = _gap(epsilon, num_categories)
    frequencies = (observed - lie_prob) / gap
    standard_errors = jnp.sqrt(observed * (1.0 - observed) / total) / gap
    return frequencies, standard_errors
