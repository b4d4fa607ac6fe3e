r"""Discrete Laplace and discrete Gaussian noise by exact integer sampling, on the host.

The sampling uses whole numbers only: no float is ever compared with a random number, so that the released integer has
exactly the law of the theorem, for uniform random bits (here from a JAX key, expanded by its counter-based generator).

* Bernoulli(exp(-a/b)), a/b <= 1: count how many Bernoulli((a/b)/j), j = 1, 2, ... succeed in a row; true if even.
* Geometric and discrete Laplace with scale t = num/den, P(x) ~ exp(-|x| / t), from those.
* Discrete Gaussian, P(x) ~ exp(-x^2 / (2 sigma^2)): propose a discrete Laplace of scale floor(sigma) + 1, accept with
  probability exp(-(|x| - sigma^2 / t)^2 / (2 sigma^2)).

Rational parameters are exact: a float is a rational, and is taken as that rational.

*Curves.* Shifted by an integer s, both laws have likelihood ratios that are monotone in x, so the tests "x > c" are
optimal and the curve is the polygon of their errors. Discrete Laplace noise with s = 1 has losses +-epsilon only: it is
exactly f_{epsilon, 0}. A polygon holds beta near 1 to 1e-16 only, so delta and epsilon come from the masses a_j of the
shifted noise and their losses l_j. With l_i the first loss above epsilon,

    delta(epsilon) = sum_{j >= i} a_j (1 - e^(epsilon - l_j)) = delta(l_i) + W_i (1 - e^(epsilon - l_i)),
    W_i = sum_{j >= i} a_j e^(l_i - l_j),

a sum of positive terms, in which nothing cancels. Neighbouring losses differ by one number h, so that W and delta are
sums from the end: W_i = a_i + e^-h W_{i+1} and delta(l_i) = delta(l_{i+1}) + (1 - e^-h) W_{i+1}.
"""

import abc
import math
from collections.abc import Callable
from fractions import Fraction
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
import scipy
from jaxtyping import Int, Integer, PRNGKeyArray

from gdpjax._core.arguments import check_array, check_count
from gdpjax._core.checks import HALF_OPEN_UNIT, NONNEGATIVE, POSITIVE, REAL, check_scalar
from gdpjax._core.keys import bits as random_bits
from gdpjax._core.keys import fold_in
from gdpjax._core.precision import float64_function
from gdpjax._core.types import Array, Floats, NeighboringRelation, Numbers
from gdpjax.ledger import ApproximateDPEvent, OutcomesEvent
from gdpjax.mechanisms._abstract import ADDED, Mechanism
from gdpjax.tradeoff import ApproximateDP, Curve, PiecewiseLinear

_WORDS_PER_BLOCK = 4096
_LARGEST_SUPPORT = 2**20
_NEGLIGIBLE = 1e-100
"""Masses up to this are left out where the other law underflows; smaller deltas are answered by infinity then."""
LARGEST_VALUE = 2**62
"""Added to noise it stays an int64, unless the noise is as large."""

Uniform = Callable[[int], int]
"""A source of whole numbers uniform on [0, n)."""


def _uniform_from(key: Array) -> Uniform:
    """Return a source of uniform whole numbers: bits from the key, and rejection where n is not a power of two."""
    words: list[int] = []
    next_block = 0

    def draw_word() -> int:
        nonlocal next_block
        if not words:
            block = random_bits(fold_in(key, next_block), (_WORDS_PER_BLOCK,))
            words.extend(np.asarray(block).tolist())
            next_block += 1
        return words.pop()

    def uniform(n: int) -> int:
        num_bits = (n - 1).bit_length()
        num_words = -(-num_bits // 32)
        mask = (1 << num_bits) - 1
        while True:
            value = 0
            for _ in range(num_words):
                value = value << 32 | draw_word()
            value &= mask
            if value < n:
                return value

    return uniform


def _bernoulli_exp(gamma: Fraction, uniform: Uniform) -> bool:
    """Draw True with probability exp(-gamma), gamma >= 0."""
    # exp(-gamma) = exp(-1) exp(-(gamma - 1))
    while gamma > 1:
        if not _bernoulli_exp(Fraction(1), uniform):
            return False
        gamma -= 1

    # P(the first n trials all succeed) = gamma^n / n!, whose alternating sum is exp(-gamma).
    num_trials = 1
    while uniform(gamma.denominator * num_trials) < gamma.numerator:
        num_trials += 1
    return num_trials % 2 == 1


def _discrete_laplace(scale: Fraction, uniform: Uniform) -> int:
    """Draw a whole number x with P(x) proportional to exp(-|x| / scale)."""
    numerator = scale.numerator
    denominator = scale.denominator
    while True:
        # A geometric number with P(n) proportional to exp(-n / numerator), by its remainder and its quotient.
        remainder = uniform(numerator)
        if not _bernoulli_exp(Fraction(remainder, numerator), uniform):
            continue
        quotient = 0
        while _bernoulli_exp(Fraction(1), uniform):
            quotient += 1
        geometric = remainder + numerator * quotient

        # Divided by the denominator it has the scale that is wanted. Zero counts once only, without a sign.
        size = geometric // denominator
        is_negative = uniform(2) == 1
        if is_negative and size == 0:
            continue
        return -size if is_negative else size


def _discrete_gaussian(stddev: Fraction, uniform: Uniform) -> int:
    """Draw a whole number x with P(x) proportional to exp(-x^2 / (2 stddev^2))."""
    variance = stddev**2
    scale = Fraction(math.floor(stddev) + 1)
    while True:
        proposal = _discrete_laplace(scale, uniform)
        excess = abs(proposal) - variance / scale
        if _bernoulli_exp(excess**2 / (2 * variance), uniform):
            return proposal


class _Discrete(Mechanism):
    """Integer noise for integer queries."""

    sensitivity: int

    def __init__(self, sensitivity: int) -> None:
        self.sensitivity = check_count("sensitivity", sensitivity)

    @abc.abstractmethod
    def _draw(self, uniform: Uniform) -> int:
        """Draw one whole number of noise."""

    @abc.abstractmethod
    def _law(self) -> "_Law":
        """Return the laws of the noise and of the noise shifted by the sensitivity."""

    def tradeoff(self) -> Curve:
        """Return the polygon of the tests "x > c", without tails below 1e-300; its beta near 1 is right to 1e-16."""
        law = self._law()
        return PiecewiseLinear.from_probabilities(law.null, law.alternative)

    def event(
        self, num_steps: int = 1, *, neighboring_relation: NeighboringRelation = ADDED
    ) -> OutcomesEvent | ApproximateDPEvent:
        """Return the event of ``num_steps`` releases."""
        law = self._law()
        return OutcomesEvent(law.null.tolist(), law.alternative.tolist(), num_steps, neighboring_relation)

    def delta(self, epsilon: Numbers) -> Floats:
        """Return the smallest delta with (epsilon, delta)-DP for one release; exact to a relative 1e-11, even tiny."""
        return _delta(epsilon, *_at_losses(self._law()))

    def epsilon(self, delta: Numbers) -> Floats:
        """Return the smallest epsilon >= 0 with (epsilon, delta)-DP for one release; exact, see `delta`."""
        law = self._law()
        return _epsilon(delta, *_at_losses(law), law.is_bounded)

    def sample(self, key: PRNGKeyArray, value: Integer[Array, "*shape"] | int) -> Int[Array, "*shape"]:
        """Return ``value`` with exact integer noise, element by element; on the host, about 1e4 numbers a second.

        Args:
            key: a PRNG key, used for nothing else.
            value: integers, any shape, whose neighbours differ in one element by at most ``sensitivity``.

        Returns:
            int64 of the same shape.

        Raises:
            ValueError: traced, not integers, or larger than 2^62.
        """
        integers = np.asarray(check_array("value", value))
        if not np.issubdtype(integers.dtype, np.integer):
            raise ValueError(f"value must hold integers, got {integers.dtype}; round the query, not the answer")
        uniform = _uniform_from(key)
        if integers.size and not -LARGEST_VALUE <= integers.min() <= integers.max() <= LARGEST_VALUE:
            raise ValueError("value must hold whole numbers of at most 2^62 in size: their sum with noise is an int64")
        noise = [self._draw(uniform) for _ in range(integers.size)]
        return integers.astype(np.int64) + np.array(noise, np.int64).reshape(integers.shape)


class DiscreteLaplaceMechanism(_Discrete):
    """Adds integer noise with P(x) ~ exp(-epsilon |x| / sensitivity), sampled exactly.

    Args:
        epsilon: privacy loss, finite and > 0; the float is taken as the rational number that it is.
        sensitivity: the largest change of the integer query, a whole number >= 1.

    Returns:
        A mechanism, exact on a real computer; for sensitivity 1 its curve is `ApproximateDP(epsilon)`.

    Raises:
        ValueError: an argument outside its range.

    Reference: Ghosh, Roughgarden and Sundararajan, arXiv:0811.2841; Canonne, Kamath and Steinke, arXiv:2004.00010,
    Algorithm 2.

    >>> print(f"{DiscreteLaplaceMechanism(1.0).tradeoff()(0.1):.6f}")
    0.728172
    """

    def __init__(self, epsilon: float, sensitivity: int = 1) -> None:
        check_scalar("epsilon", epsilon, POSITIVE)
        super().__init__(sensitivity)
        self.privacy_loss = float(epsilon)

    def _draw(self, uniform: Uniform) -> int:
        scale = Fraction(self.sensitivity) / Fraction(self.privacy_loss)
        return _discrete_laplace(scale, uniform)

    def _law(self) -> "_Law":
        # All x <= 0 have one loss and all x >= sensitivity another, so each of the two tails is one outcome.
        rate = self.privacy_loss / self.sensitivity
        x = _support(0.0, self.sensitivity)
        is_tail = (x == 0) | (x == self.sensitivity)
        null = np.exp(-rate * x) * np.where(is_tail, 1.0, -np.expm1(-rate)) / (1.0 + np.exp(-rate))
        return _make_law(null, null[::-1], rate * (2.0 * x - self.sensitivity), is_bounded=True)

    def tradeoff(self) -> Curve:
        """Return `ApproximateDP(epsilon)` for sensitivity 1, else the polygon of the tests "x > c"."""
        if self.sensitivity == 1:
            return ApproximateDP(self.privacy_loss)
        return super().tradeoff()

    def event(
        self, num_steps: int = 1, *, neighboring_relation: NeighboringRelation = ADDED
    ) -> OutcomesEvent | ApproximateDPEvent:
        """Return the event of ``num_steps`` releases; of sensitivity 1 that of a pair (epsilon, 0)."""
        if self.sensitivity == 1:
            return ApproximateDPEvent(self.privacy_loss, 0.0, num_steps, neighboring_relation)
        return super().event(num_steps, neighboring_relation=neighboring_relation)


class DiscreteGaussianMechanism(_Discrete):
    """Adds integer noise with P(x) ~ exp(-x^2 / (2 stddev^2)), stddev = noise_multiplier * sensitivity, exactly.

    Args:
        noise_multiplier: stddev / sensitivity, finite and > 0; the float is taken as the rational that it is.
        sensitivity: the largest change of the integer query, a whole number >= 1.

    Returns:
        A mechanism, exact on a real computer, with nearly the curve of the Gaussian mechanism where stddev is above 1.
        The curve is for one integer; vectors in several coordinates have another one.

    Raises:
        ValueError: an argument outside its range.

    Reference: Canonne, Kamath and Steinke, arXiv:2004.00010, Algorithm 3 and Theorem 7.

    >>> print(f"{DiscreteGaussianMechanism(2.0).epsilon(1e-5):.3f}")
    2.011
    """

    def __init__(self, noise_multiplier: float, sensitivity: int = 1) -> None:
        check_scalar("noise_multiplier", noise_multiplier, POSITIVE)
        super().__init__(sensitivity)
        self.noise_multiplier = float(noise_multiplier)

    def _draw(self, uniform: Uniform) -> int:
        stddev = Fraction(self.noise_multiplier) * self.sensitivity
        return _discrete_gaussian(stddev, uniform)

    def _law(self) -> "_Law":
        stddev = self.noise_multiplier * self.sensitivity
        shift = self.sensitivity
        x = _support(37.0 * stddev, shift)
        null = np.exp(-0.5 * (x / stddev) ** 2)
        alternative = np.exp(-0.5 * ((x - shift) / stddev) ** 2)
        loss = shift * (x - 0.5 * shift) / stddev**2
        return _make_law(null / null.sum(), alternative / alternative.sum(), loss, is_bounded=False)


class _Law(NamedTuple):
    """The laws of the noise and of the shifted noise, of integers or of intervals of them.

    Attributes:
      null: float64[n], the masses of the noise.
      alternative: float64[n], the masses of the noise shifted by the sensitivity.
      loss: float64[n], the privacy losses log(alternative / null), increasing in equal steps.
      is_bounded: whether the losses have an end, or go on beyond the interval.
    """

    null: np.ndarray
    alternative: np.ndarray
    loss: np.ndarray
    is_bounded: bool


def _support(reach: float, shift: int) -> np.ndarray:
    """Return the integers from -reach to reach + shift as float64."""
    if reach + shift > _LARGEST_SUPPORT:
        raise ValueError(f"the noise spreads over {reach:.0f} integers, too many for a polygon; use continuous noise")
    return np.arange(-math.ceil(reach), math.ceil(reach) + shift + 1, dtype=np.float64)


def _make_law(null: np.ndarray, alternative: np.ndarray, loss: np.ndarray, *, is_bounded: bool) -> _Law:
    """Return the laws, or ValueError where masses under one of them underflow that matter under the other."""
    if alternative[null == 0].sum() > _NEGLIGIBLE:
        raise ValueError("expected a privacy loss of at most 700 nats, got more: it is no privacy; add more noise")
    return _Law(null, alternative, loss, is_bounded)


def _at_losses(law: _Law) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the losses l, the sums W at each of them, and delta(l), float64[n] each."""
    step = (law.loss[-1] - law.loss[0]) / (len(law.loss) - 1)
    weight = scipy.signal.lfilter([1.0], [1.0, -np.exp(-step)], law.alternative[::-1])

    # The deltas begin with 0 at the largest loss.
    sums_before = np.append(0.0, np.cumsum(weight[:-1]))
    delta = -np.expm1(-step) * sums_before
    return law.loss, weight[::-1], delta[::-1]


@float64_function(
    rounding="up", broadcast=False, epsilon=NONNEGATIVE, loss=REAL, weight=NONNEGATIVE, delta_at_loss=NONNEGATIVE
)
def _delta(epsilon: Array, loss: Array, weight: Array, delta_at_loss: Array) -> Array:
    """Return delta(epsilon), from what `_at_losses` returns."""
    first_above = jnp.searchsorted(loss, epsilon, side="right")
    # At the largest loss and beyond nothing is added to a delta of 0.
    i = jnp.minimum(first_above, len(loss) - 1)
    added = -weight[i] * jnp.expm1(epsilon - loss[i])
    return jnp.clip(delta_at_loss[i] + added, 0.0, 1.0)


@float64_function(
    rounding="up", broadcast=False, delta=HALF_OPEN_UNIT, loss=REAL, weight=NONNEGATIVE, delta_at_loss=NONNEGATIVE
)
def _epsilon(delta: Array, loss: Array, weight: Array, delta_at_loss: Array, is_bounded: bool) -> Array:
    """Return epsilon(delta), from what `_at_losses` returns."""
    # Epsilon is at most the first loss at which delta is enough, and above the one before it.
    i = jnp.searchsorted(-delta_at_loss, -delta, side="left")
    share = jnp.minimum((delta - delta_at_loss[i]) / weight[i], 1.0 - 2.0**-53)
    epsilon = jnp.maximum(loss[i] + jnp.log1p(-share), 0.0) * (1.0 + 1e-13)

    # Unbounded losses have tails beyond the interval, which only larger deltas cover.
    return jnp.where(is_bounded | (delta > 1e-280), epsilon, jnp.inf)
