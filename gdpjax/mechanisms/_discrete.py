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
exactly f_{epsilon, 0}. A polygon holds beta near 1 to 1e-16 only; so delta and epsilon come from the tails themselves:
with A_i, N_i the masses of the losses above the i-th one, delta = A_i - e^epsilon N_i between two losses.
"""

import math
import numbers
from collections.abc import Callable
from fractions import Fraction
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from gdpjax._core.arguments import check_array, check_count
from gdpjax._core.checks import HALF_OPEN_UNIT, NONNEGATIVE, POSITIVE, REAL, check_scalar, is_traced
from gdpjax._core.keys import bits as random_bits
from gdpjax._core.keys import fold_in
from gdpjax._core.precision import float64_function
from gdpjax._core.shown import shown
from gdpjax._core.types import Array
from gdpjax.mechanisms._abstract import Mechanism
from gdpjax.tradeoff import ApproximateDP, Curve, from_probabilities

Uniform = Callable[[int], int]
"""A source of whole numbers uniform on [0, n)."""


def _uniform_from(key: Array) -> Uniform:
    """Uniform whole numbers from a key: words in blocks, and rejection where n is not a power of two."""
    words: list[int] = []
    block = 0

    def word() -> int:
        nonlocal block
        if not words:
            drawn = random_bits(fold_in(key, block), (4096,))
            words.extend(np.asarray(drawn).tolist())
            block += 1
        return words.pop()

    def uniform(n: int) -> int:
        bits = (n - 1).bit_length()
        while True:
            value = 0
            for _ in range(-(-bits // 32)):
                value = value << 32 | word()
            value &= (1 << bits) - 1
            if value < n:
                return value

    return uniform


def _bernoulli_exp(gamma: Fraction, uniform: Uniform) -> bool:
    """True with probability exp(-gamma), gamma >= 0."""
    while gamma > 1:
        if not _bernoulli_exp(Fraction(1), uniform):
            return False
        gamma -= 1
    count = 1
    while uniform(gamma.denominator * count) < gamma.numerator:
        count += 1
    return count % 2 == 1


def _discrete_laplace(scale: Fraction, uniform: Uniform) -> int:
    """P(x) proportional to exp(-|x| / scale)."""
    numerator, denominator = scale.numerator, scale.denominator
    while True:
        remainder = uniform(numerator)
        if not _bernoulli_exp(Fraction(remainder, numerator), uniform):
            continue
        quotient = 0
        while _bernoulli_exp(Fraction(1), uniform):
            quotient += 1
        size = (remainder + numerator * quotient) // denominator
        negative = uniform(2) == 1
        if not (negative and size == 0):
            return -size if negative else size


def _discrete_gaussian(stddev: Fraction, uniform: Uniform) -> int:
    """P(x) proportional to exp(-x^2 / (2 stddev^2))."""
    variance, scale = stddev**2, Fraction(math.floor(stddev) + 1)
    while True:
        proposal = _discrete_laplace(scale, uniform)
        if _bernoulli_exp((abs(proposal) - variance / scale) ** 2 / (2 * variance), uniform):
            return proposal


class _Discrete(Mechanism):
    """Integer noise for integer queries."""

    sensitivity: int

    def __init__(self, sensitivity: int) -> None:
        if not isinstance(sensitivity, numbers.Integral):
            raise ValueError(f"sensitivity must be a whole number >= 1, got {shown(sensitivity)}")
        self.sensitivity = check_count("sensitivity", sensitivity)

    def _draw(self, uniform: Uniform) -> int:
        raise NotImplementedError

    def _law(self) -> "_Law":
        raise NotImplementedError

    def tradeoff(self) -> Curve:
        """The polygon of the tests "x > c", without tails below 1e-300; its beta near 1 is right to 1e-16."""
        law = self._law()
        return from_probabilities(law.null, law.alternative)

    def delta(self, epsilon: Array) -> Array:
        """The smallest delta with (epsilon, delta)-DP for one release; exact to a relative 1e-11, also where tiny."""
        law = self._law()
        return _delta(epsilon, law.loss, _tails(law.null), _tails(law.alternative))

    def epsilon(self, delta: Array) -> Array:
        """The smallest epsilon >= 0 with (epsilon, delta)-DP for one release; exact, see `delta`."""
        law = self._law()
        return _epsilon(delta, law.loss, _tails(law.null), _tails(law.alternative), law.is_bounded)

    def sample(self, key: Array, value: Any) -> np.ndarray:
        """``value`` with exact integer noise, element by element; on the host, about 1e4 numbers a second.

        Args:
            key: a PRNG key, used for nothing else.
            value: integers, any shape, whose neighbours differ in one element by at most ``sensitivity``.

        Returns:
            int64 of the same shape.

        Raises:
            ValueError: traced or not integers.
        """
        if is_traced((key, value)):
            raise ValueError("exact integer sampling runs on the host: call it outside compiled code")
        integers = np.asarray(check_array("value", value))
        if not np.issubdtype(integers.dtype, np.integer):
            raise ValueError(f"value must hold integers, got {integers.dtype}; round the query, not the answer")
        uniform = _uniform_from(key)
        noise = np.array([self._draw(uniform) for _ in range(integers.size)], np.int64).reshape(integers.shape)
        return integers.astype(np.int64) + noise


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
        return _discrete_laplace(Fraction(self.sensitivity) / Fraction(self.privacy_loss), uniform)

    def _law(self) -> "_Law":
        rate, shift = self.privacy_loss / self.sensitivity, self.sensitivity
        x = _support(690.0 / rate, shift)
        null, alternative = (_normalised(-rate * np.abs(x - at)) for at in (0, shift))
        return _Law(null, alternative, rate * (np.abs(x) - np.abs(x - shift)), is_bounded=True)

    def tradeoff(self) -> Curve:
        """`ApproximateDP(epsilon)` for sensitivity 1, else the polygon of the tests "x > c"."""
        return ApproximateDP(self.privacy_loss) if self.sensitivity == 1 else super().tradeoff()

    def delta(self, epsilon: Array) -> Array:
        """The smallest delta with (epsilon, delta)-DP for one release; exact."""
        return Mechanism.delta(self, epsilon) if self.sensitivity == 1 else super().delta(epsilon)

    def epsilon(self, delta: Array) -> Array:
        """The smallest epsilon >= 0 with (epsilon, delta)-DP for one release; exact."""
        return Mechanism.epsilon(self, delta) if self.sensitivity == 1 else super().epsilon(delta)


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
        return _discrete_gaussian(Fraction(self.noise_multiplier) * self.sensitivity, uniform)

    def _law(self) -> "_Law":
        stddev, shift = self.noise_multiplier * self.sensitivity, self.sensitivity
        x = _support(37.0 * stddev, shift)
        null, alternative = (_normalised(-0.5 * ((x - at) / stddev) ** 2) for at in (0, shift))
        return _Law(null, alternative, shift * (x - 0.5 * shift) / stddev**2, is_bounded=False)


class _Law(NamedTuple):
    """Masses of the integers under null and alternative, their increasing losses, and whether these have an end."""

    null: np.ndarray
    alternative: np.ndarray
    loss: np.ndarray
    is_bounded: bool


def _support(reach: float, shift: int) -> np.ndarray:
    if reach + shift > 2**20:
        raise ValueError(f"the noise spreads over {reach:.0f} integers, too many for a polygon; use continuous noise")
    return np.arange(-math.ceil(reach), math.ceil(reach) + shift + 1, dtype=np.float64)


def _normalised(log_weight: np.ndarray) -> np.ndarray:
    weight = np.exp(log_weight)
    return weight / weight.sum()


def _tails(mass: np.ndarray) -> np.ndarray:
    """Sums from each index on, and 0; each relative to itself accurate."""
    return np.append(np.cumsum(mass[::-1])[::-1], 0.0)


def _gap(epsilon: Array, loss: Array, null: Array, alternative: Array) -> Array:
    above = jnp.searchsorted(loss, epsilon, side="right")
    weight = jnp.exp(jnp.minimum(epsilon, 709.0))  # no mass has a larger loss
    return jnp.clip(alternative[above] - weight * null[above], 0.0, 1.0)


_delta = float64_function(broadcast=False, epsilon=NONNEGATIVE, loss=REAL, null=NONNEGATIVE, alternative=NONNEGATIVE)(
    _gap
)


@float64_function(broadcast=False, delta=HALF_OPEN_UNIT, loss=REAL, null=NONNEGATIVE, alternative=NONNEGATIVE)
def _epsilon(delta: Array, loss: Array, null: Array, alternative: Array, is_bounded: bool) -> Array:
    """Between losses i - 1 and i, A_i - e^epsilon N_i = delta; i is the first loss at which delta is enough."""
    first = jnp.searchsorted(-_gap(loss, loss, null, alternative), -delta, side="left")
    mass = jnp.where(alternative[first] > 0, alternative[first], 1.0)
    share = jnp.minimum(delta / mass, 1.0 - 2.0**-53)
    log_null = jnp.log(jnp.where(null[first] > 0, null[first], 1.0))
    value = jnp.maximum(jnp.log(mass) - log_null + jnp.log1p(-share), 0.0) * (1.0 + 1e-13)
    value = jnp.where(_gap(jnp.zeros(()), loss, null, alternative) <= delta, 0.0, value)
    return value if is_bounded else jnp.where(delta > 1e-280, value, jnp.inf)
