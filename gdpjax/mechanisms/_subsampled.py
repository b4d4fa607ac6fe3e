"""A mechanism that runs on a Poisson sample of the examples."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray

from gdpjax._core.arguments import check_choice, check_instance
from gdpjax._core.checks import UNIT, check, checked_scalar, is_traced
from gdpjax._core.keys import split
from gdpjax._core.types import Array, NeighboringRelation, Scalar, pytree_dataclass
from gdpjax.ledger import Event, LaplaceEvent
from gdpjax.mechanisms._abstract import ADDED, Additive, check_sensitivity, coin, floating
from gdpjax.mechanisms._additive import GaussianMechanism, LaplaceMechanism
from gdpjax.tradeoff import Curve, subsample


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

    mechanism: Additive
    sampling_prob: Scalar

    def __post_init__(self) -> None:
        check_instance("mechanism", self.mechanism, Additive, "such as GaussianMechanism(1.0)")
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
        """Return the event of ``num_steps`` releases, each of a new sample."""
        if isinstance(self.mechanism, LaplaceMechanism):
            loss = self.mechanism.privacy_loss
            return LaplaceEvent(loss, num_steps, neighboring_relation, self.sampling_prob)  # type: ignore[arg-type]
        assert isinstance(self.mechanism, GaussianMechanism)
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

        is_sampled = coin(sampling_key, sampling_prob, (num_examples,))

        def sum_sampled(leaf: Any) -> Array:
            array = floating(leaf)
            other_axes = tuple(range(1, array.ndim))
            is_sampled_row = jnp.expand_dims(is_sampled, other_axes)
            return jnp.sum(jnp.where(is_sampled_row, array, 0), axis=0)

        sums = jax.tree.map(sum_sampled, value)
        return self.mechanism.sample(noise_key, sums, sensitivity)
