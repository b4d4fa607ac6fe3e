"""Private optimizers: chains of the transforms and nothing else."""

from typing import Any

import optax
from jaxtyping import PRNGKeyArray

from gdpjax._core.arguments import check_flag, keyword_checked
from gdpjax._core.checks import NONNEGATIVE, REAL, UNIT, check_scalar
from gdpjax._core.types import NeighboringRelation
from gdpjax.sampling import AbstractBatches
from gdpjax.transforms import ClipAndSum, clip_and_sum, privatize


def _private_front(clip: Any, *private: Any, **options: Any) -> list[optax.GradientTransformation]:
    """Return the transforms of what ``update`` is given: a clipped sum, or gradients that are clipped here."""
    if callable(getattr(clip, "sensitivity", None)) and not isinstance(clip, ClipAndSum):
        return [privatize(clip, *private, **options)]
    clip_rows = clip if isinstance(clip, ClipAndSum) else clip_and_sum(clip)
    return [clip_rows, privatize(clip_rows, *private, **options)]


def _check_learning_rate(learning_rate: Any) -> None:
    if not callable(learning_rate):
        check_scalar("learning_rate", learning_rate, REAL)


@keyword_checked()
def dpsgd(
    learning_rate: Any,
    clip: Any,
    noise_multiplier: Any,
    batches: AbstractBatches,
    key: PRNGKeyArray,
    *,
    neighboring_relation: NeighboringRelation | None = None,
    momentum: float | None = None,
    nesterov: bool = False,
) -> optax.GradientTransformation:
    """Return DP-SGD: clip, add noise, divide, step. The private part is `privatize`; the rest is `optax.sgd`.

    Args:
      learning_rate: a number, a traced scalar or an optax schedule.
      clip: the `clipped_grad` function whose sum is given to ``update``; or a clip norm, a rule such as `PerLeaf`, or
        `clip_and_sum` of it with its options, by which per-example gradients given to ``update`` are clipped. Rows of
        padding must be zeros in these, as `per_example_grad` gives them.
      noise_multiplier, batches, key, neighboring_relation: as in `privatize`.
      momentum, nesterov: as in `optax.sgd`.

    Raises:
      ValueError: as `privatize`.

    Reference: Abadi et al., arXiv:1607.00133, algorithm 1.

    >>> import gdpjax, jax, jax.numpy as jnp
    >>> batches = gdpjax.sampling.Poisson(num_examples=100, expected_batch_size=10, num_steps=20)
    >>> tx = dpsgd(0.1, 1.0, noise_multiplier=1.0, batches=batches, key=jax.random.key(0))
    >>> params = jnp.zeros(2)
    >>> updates, state = jax.jit(tx.update)(jnp.ones((batches.capacity, 2)), tx.init(params), params)
    >>> updates.shape
    (2,)
    """
    front = _private_front(clip, noise_multiplier, batches, key, neighboring_relation=neighboring_relation)
    _check_learning_rate(learning_rate)
    if momentum is not None:
        check_scalar("momentum", momentum, NONNEGATIVE)
    return optax.chain(*front, optax.sgd(learning_rate, momentum, check_flag("nesterov", nesterov)))


@keyword_checked()
def dpadam(
    learning_rate: Any,
    clip: Any,
    noise_multiplier: Any,
    batches: AbstractBatches,
    key: PRNGKeyArray,
    *,
    neighboring_relation: NeighboringRelation | None = None,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
) -> optax.GradientTransformation:
    """Return DP-Adam: clip, add noise, divide, then `optax.adam`, which is post-processing.

    Args:
      learning_rate, b1, b2, eps: as in `optax.adam`.
      clip, noise_multiplier, batches, key, neighboring_relation: as in `dpsgd`.

    Raises:
      ValueError: as `dpsgd`.

    Reference: Bu et al., arXiv:1911.11607, section 2 (NoisyAdam).

    >>> import gdpjax, jax, jax.numpy as jnp
    >>> batches = gdpjax.sampling.Poisson(num_examples=100, expected_batch_size=10, num_steps=20)
    >>> tx = dpadam(1e-3, 1.0, noise_multiplier=1.0, batches=batches, key=jax.random.key(0))
    >>> params = jnp.zeros(2)
    >>> updates, state = jax.jit(tx.update)(jnp.ones((batches.capacity, 2)), tx.init(params), params)
    >>> updates.shape
    (2,)
    """
    front = _private_front(clip, noise_multiplier, batches, key, neighboring_relation=neighboring_relation)
    _check_learning_rate(learning_rate)
    check_scalar("b1", b1, UNIT)
    check_scalar("b2", b2, UNIT)
    check_scalar("eps", eps, NONNEGATIVE)
    return optax.chain(*front, optax.adam(learning_rate, b1=b1, b2=b2, eps=eps))
