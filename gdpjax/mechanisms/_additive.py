"""The Gaussian and the Laplace mechanism, and either one on a Poisson sample of the examples.

Laplace noise: with t uniform on (0, 1), -log t is exponential; a random sign makes it Laplace. t has 63 random bits, so
that the tail is right to 43 scales, and values near 0, where t is near 1, come from 1 - t, computed from the same bits.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray

from gdpjax._core.arguments import check_choice, check_instance
from gdpjax._core.checks import POSITIVE, UNIT, check, checked_scalar, is_traced
from gdpjax._core.keys import bits, coins, split
from gdpjax._core.noise import standard_normals
from gdpjax._core.precision import float64_function
from gdpjax._core.trees import leaf_keys
from gdpjax._core.types import Array, Floats, NeighboringRelation, Numbers, Scalar, pytree_dataclass
from gdpjax.ledger import Event, GaussianEvent, LaplaceEvent
from gdpjax.mechanisms._abstract import ADDED, Additive, check_sensitivity, floating, not_above, own_key, scale_in
from gdpjax.tradeoff import Curve, Gaussian, Laplace, subsample


@pytree_dataclass
class GaussianMechanism(Additive):
    """Adds N(0, stddev^2) to every coordinate, stddev = noise_multiplier * sensitivity.

    It is exactly mu-GDP with mu = 1 / noise_multiplier, in any dimension: only the l2 distance of two values matters.

    Args:
        noise_multiplier: stddev / l2 sensitivity, finite and > 0.

    Returns:
        A mechanism whose curve is G_mu, exact in real arithmetic (see `_abstract` on floats).

    Raises:
        ValueError: noise_multiplier not a finite number > 0.

    Reference: Dong, Roth and Su, arXiv:1905.02383, Theorem 2.7.

    >>> print(GaussianMechanism(2.0).mu, f"{GaussianMechanism(2.0).epsilon(1e-5):.4f}")
    0.5 1.9931
    """

    noise_multiplier: Numbers

    def __post_init__(self) -> None:
        check("noise_multiplier", self.noise_multiplier, POSITIVE)

    @property
    def mu(self) -> Floats:
        """The Gaussian privacy parameter, 1 / noise_multiplier; exact, and rounded up where it is float32."""
        return _mu(self.noise_multiplier)

    def tradeoff(self) -> Curve:
        """Return G_mu with mu = 1 / noise_multiplier; exact."""
        return Gaussian(self.mu)

    def event(self, num_steps: int = 1, *, neighboring_relation: NeighboringRelation = ADDED) -> GaussianEvent:
        """Return the event of ``num_steps`` releases."""
        return GaussianEvent(self.noise_multiplier, num_steps, neighboring_relation)

    def sample(self, key: PRNGKeyArray, value: Any, sensitivity: Scalar) -> Any:
        """Return ``value`` with noise.

        Args:
            key: a PRNG key, used for nothing else.
            value: a scalar, an array or a pytree of arrays.
            sensitivity: the largest l2 distance of two neighbours' values, over all leaves together, >= 0.

        Returns:
            The same structure in float32 or wider; the noise is right in its tail to 9 standard deviations.

        Raises:
            ValueError: sensitivity negative, NaN or not one number; complex values.
        """
        noise_multiplier = checked_scalar("noise_multiplier", self.noise_multiplier, POSITIVE)
        stddev = noise_multiplier * check_sensitivity(sensitivity)

        leaves, structure = jax.tree.flatten(jax.tree.map(floating, value))
        key, is_own = own_key(key, leaves, stddev)
        keys = jax.tree.leaves(leaf_keys(key, value))
        noise = standard_normals(keys, [leaf.shape for leaf in leaves], [leaf.dtype for leaf in leaves])
        released = []
        for leaf, draw in zip(leaves, noise, strict=True):
            released.append(leaf + scale_in(leaf.dtype, stddev, sensitivity) * is_own.astype(leaf.dtype) * draw)
        return jax.tree.unflatten(structure, released)


@float64_function(rounding="up", noise_multiplier=POSITIVE)
def _mu(noise_multiplier: Array) -> Array:
    return 1.0 / noise_multiplier


@pytree_dataclass
class LaplaceMechanism(Additive):
    """Adds Laplace noise of scale sensitivity / epsilon to every coordinate.

    Args:
        epsilon: privacy loss, finite and > 0: l1 sensitivity / scale.

    Returns:
        A mechanism whose curve is `Laplace(epsilon)`: exact for a scalar, and for a vector where one coordinate may
        change by the whole sensitivity (the worst case; a change spread over coordinates is more private).

    Raises:
        ValueError: epsilon not a finite number > 0.

    Reference: Dwork, McSherry, Nissim and Smith, TCC 2006; Dong, Roth and Su, arXiv:1905.02383, Section 2.1.

    >>> print(f"{LaplaceMechanism(1.0).delta(0.5):.6f}")
    0.221199
    """

    privacy_loss: Numbers  # the epsilon; that name is the method's

    def __init__(self, epsilon: Numbers) -> None:
        check("epsilon", epsilon, POSITIVE)
        object.__setattr__(self, "privacy_loss", epsilon)

    def tradeoff(self) -> Curve:
        """Return `Laplace(epsilon)`; exact."""
        return Laplace(self.privacy_loss)

    def event(self, num_steps: int = 1, *, neighboring_relation: NeighboringRelation = ADDED) -> LaplaceEvent:
        """Return the event of ``num_steps`` releases."""
        return LaplaceEvent(self.privacy_loss, num_steps, neighboring_relation)

    def sample(self, key: PRNGKeyArray, value: Any, sensitivity: Scalar) -> Any:
        """Return ``value`` with noise.

        Args:
            key: a PRNG key, used for nothing else.
            value: a scalar, an array or a pytree of arrays.
            sensitivity: the largest l1 distance of two neighbours' values, over all leaves together, >= 0.

        Returns:
            The same structure in float32 or wider.

        Raises:
            ValueError: sensitivity negative, NaN or not one number; complex values.
        """
        scale = check_sensitivity(sensitivity) / checked_scalar("epsilon", self.privacy_loss, POSITIVE)

        arrays = jax.tree.map(floating, value)
        key, is_own = own_key(key, arrays, scale)

        def add_noise(array: Array, leaf_key: Array) -> Array:
            noise = standard_laplace(leaf_key, array.shape, array.dtype)
            return array + scale_in(array.dtype, scale, sensitivity) * is_own.astype(array.dtype) * noise

        return jax.tree.map(add_noise, arrays, leaf_keys(key, value))


def standard_laplace(key: Array, shape: tuple[int, ...], dtype: Any) -> Array:
    """Draw Laplace noise of scale 1, from 64 random bits a coordinate."""
    high_word, low_word = bits(key, (2, *shape))

    # One bit is the sign. The other 63 are t = (high + low) 2^-31, with low in (0, 1).
    sign = jnp.where(high_word >> 31, -1, 1).astype(dtype)
    largest_high = jnp.uint32(0x7FFFFFFF)
    high = high_word & largest_high
    low = (low_word.astype(dtype) + np.asarray(0.5, dtype)) * np.asarray(2.0**-32, dtype)
    unit = np.asarray(2.0**-31, dtype)
    t = (high.astype(dtype) + low) * unit

    # 1 - t from the same bits, without cancellation.
    complement = ((largest_high - high).astype(dtype) + (1 - low)) * unit

    # log t, by way of 1 - t where t is at least a half.
    is_large = high >= jnp.uint32(1 << 30)
    log_of_large = jnp.log1p(-jnp.where(is_large, complement, 0.5))
    log_t = jnp.where(is_large, log_of_large, jnp.log(t))
    return -sign * log_t


@pytree_dataclass
class PoissonSubsampled(Additive):
    """Sums the values of examples that each take part with a given probability, and adds the mechanism's noise.

    Args:
        mechanism: `GaussianMechanism` or `LaplaceMechanism`.
        sampling_prob: p in [0, 1]. The sampler rounds it down to a multiple of 2^-32, so that the curve holds.

    Returns:
        A mechanism for neighbours that differ by adding or removing one example; exact curve of one step.

    Raises:
        ValueError: another kind of mechanism, or not a probability.

    Reference: Dong, Roth and Su, arXiv:1905.02383, Section 4; Bu, Dong, Long and Su, arXiv:1911.11607, Section 3.

    >>> from gdpjax.mechanisms import GaussianMechanism
    >>> print(f"{PoissonSubsampled(GaussianMechanism(1.0), 0.01).epsilon(1e-5):.4f}")
    0.1995
    """

    mechanism: GaussianMechanism | LaplaceMechanism
    sampling_prob: Scalar

    def __post_init__(self) -> None:
        kinds = GaussianMechanism | LaplaceMechanism
        check_instance("mechanism", self.mechanism, kinds, "such as GaussianMechanism(1.0)")
        check("sampling_prob", self.sampling_prob, UNIT)

    def tradeoff(self, direction: str | None = None) -> Curve:
        """Return the exact curve of one step.

        Args:
            direction: static; "remove": f_p = p f + (1 - p) Id (the null hypothesis is the data without the example),
                "add": its inverse, None: both together, C_p(f). For several steps compose one direction, `compose`
                then takes care of the other.
        """
        both = subsample(self.mechanism.tradeoff(), self.sampling_prob)
        if direction is None:
            return both
        check_choice("direction", direction, ("remove", "add", None))
        removing = both.one_direction
        if direction == "remove":
            return removing
        return removing.inverse()

    def event(self, num_steps: int = 1, *, neighboring_relation: NeighboringRelation = ADDED) -> Event | LaplaceEvent:
        """Return the event of ``num_steps`` releases, each of a new sample; ValueError under REPLACE_ONE.

        There an example that is replaced moves the sum by twice the norm that `sample` is given.
        """
        if neighboring_relation is NeighboringRelation.REPLACE_ONE:
            raise ValueError("PoissonSubsampled is for ADD_OR_REMOVE_ONE or REPLACE_SPECIAL, got REPLACE_ONE")
        if isinstance(self.mechanism, LaplaceMechanism):
            loss = self.mechanism.privacy_loss
            return LaplaceEvent(loss, num_steps, neighboring_relation, self.sampling_prob)  # type: ignore[arg-type]
        return Event(self.mechanism.noise_multiplier, self.sampling_prob, num_steps, neighboring_relation)  # type: ignore[arg-type]

    def sample(self, key: PRNGKeyArray, value: Any, sensitivity: Scalar) -> Any:
        """Return the noisy sum over a random sample of the examples.

        Args:
            key: a PRNG key, used for nothing else.
            value: per-example values, an array or a pytree of arrays with a leading axis of examples.
            sensitivity: the largest norm (of the mechanism's kind) of one example's values, >= 0. It is not enforced:
                clip first.

        Returns:
            The sum without the leading axis, with noise, in float32 or wider.

        Raises:
            ValueError: no leaf or no common leading axis, or what the mechanism refuses.
        """
        leaves = jax.tree.leaves(value)
        sizes = {np.shape(leaf)[:1] for leaf in leaves}
        if len(sizes) != 1 or () in sizes:
            raise ValueError(f"per-example values must share a leading axis of examples, got {sorted(sizes)}")
        ((num_examples,),) = sizes
        sampling_key, noise_key = split(key)

        # A traced probability out of range is NaN, which must reach the result.
        sampling_prob = checked_scalar("sampling_prob", self.sampling_prob, UNIT)
        if is_traced(sampling_prob):
            sensitivity = jnp.where(sampling_prob >= 0, check_sensitivity(sensitivity), jnp.nan)

        is_sampled = coins(sampling_key, (num_examples,), not_above(sampling_prob))

        def sum_sampled(leaf: Any) -> Array:
            array = floating(leaf)
            other_axes = tuple(range(1, array.ndim))
            is_sampled_row = jnp.expand_dims(is_sampled, other_axes)
            return jnp.sum(jnp.where(is_sampled_row, array, 0), axis=0)

        sums = jax.tree.map(sum_sampled, value)
        return self.mechanism.sample(noise_key, sums, sensitivity)
