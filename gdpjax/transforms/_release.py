"""What a step of a private transform adds and records: from its batches, its noise and its relation.

    privatize(grad_fn, 1.3, Poisson(60_000, 256, epochs=15), key)                               # independent noise
    privatize(grad_fn, 1.0, Shuffled(60_000, 256, epochs=15, order="fixed"), key, noise=bisr(16))

With a strategy C of `gdpjax.correlated` the noise of step t is sigma Delta sens(C) w_t with
w_t = sum_s C^-1[t, s] z_s. Delta is the sensitivity of one sum, and sens(C) that of the strategy under the
participation that the batches promise. The standard normal z_s of a leaf is a function of the noise key, the step s and
the leaf's path alone, so a strategy that keeps no state draws those of earlier steps again, and a run that is resumed
goes on with the same noise.

The derivation is in docs/theory/matrix_mechanism.md.
"""

import dataclasses
import hashlib
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from gdpjax._core.arguments import check_flag, check_instance
from gdpjax._core.checks import is_traced
from gdpjax._core.shown import shown
from gdpjax._core.types import NeighboringRelation
from gdpjax.correlated import AbstractNoiseStrategy, AbstractParticipation, AbstractWorkload
from gdpjax.ledger import StepEvent
from gdpjax.sampling import AbstractBatches


@dataclasses.dataclass(frozen=True)
class IndependentGaussian:
    """Noise that is drawn anew at each step.

    >>> IndependentGaussian()
    IndependentGaussian()
    """


INDEPENDENT = IndependentGaussian()


class Release(NamedTuple):
    """What every step of a private transform adds and records.

    Attributes:
      batches: where the sum comes from.
      step: the event of one step with noise multiplier 1.
      sampling_prob, overflow_per_step: the numbers that the ledger is given of each step.
      strategy: the strategy C; None where the noise is independent.
      sensitivity: sens(C), an upper bound; traced where the coefficients of C are; 1 for independent noise.
      promise: the participation that it is for.
    """

    batches: AbstractBatches
    step: StepEvent
    sampling_prob: Any
    overflow_per_step: Any
    strategy: AbstractNoiseStrategy | None = None
    sensitivity: Any = 1.0
    promise: AbstractParticipation | None = None

    @property
    def relation(self) -> NeighboringRelation:
        """Return the neighbouring relation that the steps are private under."""
        assert self.step.neighboring_relation is not None
        return self.step.neighboring_relation

    @property
    def strategy_digest(self) -> str:
        """Return a text that tells strategies apart: a run that went on with another one would take back other noise.

        It is empty without a strategy, and one text for all that are traced.
        """
        if self.strategy is None or is_traced(self.strategy):
            return "" if self.strategy is None else "traced"
        numbers = [np.asarray(leaf, np.float64).tobytes() for leaf in jax.tree.leaves(self.strategy)]
        return hashlib.sha256(b"".join([type(self.strategy).__name__.encode(), *numbers])).hexdigest()


def release_of(
    batches: Any,
    noise: Any = INDEPENDENT,
    neighboring_relation: NeighboringRelation | None = None,
    announced: bool = False,
) -> Release:
    """Return what a step adds and records; ValueError where batches, noise and relation do not go together."""
    if not isinstance(batches, AbstractBatches):
        raise ValueError(
            "batches must be a sampling scheme, such as gdpjax.sampling.Poisson(num_examples=60_000, "
            "expected_batch_size=256, num_steps=3516), or gdpjax.sampling.PoissonNumbers(sampling_prob, "
            f"expected_batch_size) of batches that are drawn elsewhere; got {shown(batches)}"
        )
    check_instance("noise", noise, IndependentGaussian | AbstractNoiseStrategy, "such as gdpjax.correlated.bisr(16)")
    strategy = promise = None
    sensitivity = 1.0
    if isinstance(noise, IndependentGaussian):
        step = batches.checked_step_event(neighboring_relation)
    else:
        strategy = noise
        promise, step = batches.correlated_event(strategy, neighboring_relation)
        sensitivity = _one_if_stable(strategy, batches.num_steps) * strategy.sensitivity(batches.num_steps, promise)

    # Whatever the event cannot hold would not be accounted for. Correlated noise assumes nothing of the draws, or under
    # ADD_OR_REMOVE_ONE a secret order: that it is not uniform is far less likely than what noise of floats may show.
    fields = {field.name for field in dataclasses.fields(step)}
    overflow = batches.overflow_per_step
    if "overflow" not in fields:
        lost = overflow if strategy is None else batches.lost_per_step
        if is_traced(lost) or lost > 0:
            raise ValueError(f"a {type(step).__name__} holds no overflow, and these batches have one: {shown(batches)}")
        overflow = 0.0
    if check_flag("announced", announced):
        if "announced" not in fields:
            raise ValueError(f"a {type(step).__name__} does not hold whether an overflow is announced: leave it out")
        step = dataclasses.replace(step, announced=True)  # pyright: ignore[reportCallIssue]
    return Release(
        batches=batches,
        step=step,
        sampling_prob=batches.sampling_prob if "sampling_prob" in fields or "steps_per_epoch" in fields else 1.0,
        overflow_per_step=overflow,
        strategy=strategy,
        sensitivity=sensitivity,
        promise=promise,
    )


def _one_if_stable(strategy: AbstractNoiseStrategy, num_steps: int) -> Any:
    """Return 1, or where the noise of late steps leaves float32 no digits for the fresh draw in it NaN or ValueError.

    The noise of step t has the variance sum_s C^-1[t, s]^2. Its last draw alone is what hides the step's own sum.
    """
    largest = strategy.error(num_steps, "max", workload=_NOISE)
    first = strategy.error(1, "max", workload=_NOISE)
    is_stable = largest / first <= _LARGEST_GROWTH**2
    if is_traced(is_stable):
        return jnp.where(is_stable, 1.0, jnp.nan)
    if not is_stable:
        raise ValueError(
            f"the noise of {shown(strategy)} grows more than {_LARGEST_GROWTH:g} times in {num_steps} steps, since its "
            "inverse is unstable: in float32 nothing would be left of the newest draw. Choose a strategy by its "
            "`error`, or with the optimize_ functions of gdpjax.correlated"
        )
    return 1.0


class _NoiseItself(AbstractWorkload):
    """The workload whose outputs are the noise of single steps."""

    def apply(self, series: np.ndarray) -> np.ndarray:
        """Return the series as it is."""
        return series


_NOISE = _NoiseItself()
_LARGEST_GROWTH = 1e5
"""Beyond it the rounding of float32, 6e-8, is more than about a hundredth of the newest draw."""
