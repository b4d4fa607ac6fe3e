"""Private optimizers: chains of the transforms and nothing else."""

from typing import Any

import optax

from gdpjax._core.arguments import check_flag
from gdpjax._core.checks import NONNEGATIVE, REAL, UNIT, check_scalar
from gdpjax._core.types import Array, NeighboringRelation, PyTree
from gdpjax.sampling import Poisson
from gdpjax.transforms import clip_and_sum, privatize


def _private_front(
    l2_clip_norm: Any, clipped_by: Any, trainable: PyTree | None, max_batch_size: int | None, **private: Any
) -> list[optax.GradientTransformation]:
    if (l2_clip_norm is None) == (clipped_by is None):
        raise ValueError(
            "give exactly one of l2_clip_norm (the chain takes per-example gradients and clips them) and clipped_by "
            "(a gdpjax.clipped_grad function; the chain takes its sum); got "
            f"{'neither' if clipped_by is None else 'both'}"
        )
    if clipped_by is not None:
        if trainable is not None or max_batch_size is not None:
            raise ValueError(
                "with clipped_by, trainable and max_batch_size belong to the gdpjax.clipped_grad function; drop them"
            )
        return [privatize(clipped_by, **private)]
    clip = clip_and_sum(l2_clip_norm, trainable=trainable, max_batch_size=max_batch_size)
    return [clip, privatize(clip, **private)]


def _check_learning_rate(learning_rate: Any) -> None:
    if not callable(learning_rate):
        check_scalar("learning_rate", learning_rate, REAL)


def dpsgd(
    learning_rate: Any,
    l2_clip_norm: Any = None,
    *,
    clipped_by: Any = None,
    noise_multiplier: Any,
    key: Array,
    batches: Poisson | None = None,
    sampling_prob: Array | None = None,
    expected_batch_size: Array | None = None,
    overflow_per_step: Array | None = None,
    trainable: PyTree | None = None,
    momentum: float | None = None,
    nesterov: bool = False,
    sampling: str = "poisson",
    neighboring_relation: NeighboringRelation | None = None,
    max_batch_size: int | None = None,
) -> optax.GradientTransformation:
    """Return DP-SGD: clip, add noise, divide, step. The private part is `privatize`; the rest is `optax.sgd`.

    Args:
      learning_rate: a number, a traced scalar or an optax schedule.
      l2_clip_norm: clip per-example gradients given to ``update``; or
      clipped_by: the `clipped_grad` function whose sum is given to ``update``. Exactly one of the two.
      noise_multiplier, key, batches, sampling_prob, expected_batch_size, overflow_per_step, sampling,
        neighboring_relation: as in `privatize`.
      trainable, max_batch_size: with l2_clip_norm, as in `clip_and_sum`.
      momentum, nesterov: as in `optax.sgd`.

    Raises:
      ValueError: as `privatize`; both or neither of l2_clip_norm and clipped_by.

    Reference: Abadi et al., arXiv:1607.00133, algorithm 1.

    >>> import gdpjax, jax, jax.numpy as jnp
    >>> batches = gdpjax.sampling.Poisson(num_examples=100, expected_batch_size=10, num_steps=20)
    >>> tx = dpsgd(0.1, 1.0, noise_multiplier=1.0, batches=batches, key=jax.random.key(0))
    >>> params = jnp.zeros(2)
    >>> updates, state = jax.jit(tx.update)(jnp.ones((batches.capacity, 2)), tx.init(params), params)
    >>> updates.shape
    (2,)
    """
    front = _private_front(
        l2_clip_norm,
        clipped_by,
        trainable,
        max_batch_size,
        noise_multiplier=noise_multiplier,
        key=key,
        batches=batches,
        sampling_prob=sampling_prob,
        expected_batch_size=expected_batch_size,
        overflow_per_step=overflow_per_step,
        sampling=sampling,
        neighboring_relation=neighboring_relation,
    )
    _check_learning_rate(learning_rate)
    if momentum is not None:
        check_scalar("momentum", momentum, NONNEGATIVE)
    return optax.chain(*front, optax.sgd(learning_rate, momentum, check_flag("nesterov", nesterov)))


def dpadam(
    learning_rate: Any,
    l2_clip_norm: Any = None,
    *,
    clipped_by: Any = None,
    noise_multiplier: Any,
    key: Array,
    batches: Poisson | None = None,
    sampling_prob: Array | None = None,
    expected_batch_size: Array | None = None,
    overflow_per_step: Array | None = None,
    trainable: PyTree | None = None,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    sampling: str = "poisson",
    neighboring_relation: NeighboringRelation | None = None,
    max_batch_size: int | None = None,
) -> optax.GradientTransformation:
    """Return DP-Adam: clip, add noise, divide, then `optax.adam`, which is post-processing.

    Args:
      learning_rate, b1, b2, eps: as in `optax.adam`.
      l2_clip_norm, clipped_by, trainable, max_batch_size: as in `dpsgd`.
      noise_multiplier, key, batches, sampling_prob, expected_batch_size, overflow_per_step, sampling,
        neighboring_relation: as in `privatize`.

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
    front = _private_front(
        l2_clip_norm,
        clipped_by,
        trainable,
        max_batch_size,
        noise_multiplier=noise_multiplier,
        key=key,
        batches=batches,
        sampling_prob=sampling_prob,
        expected_batch_size=expected_batch_size,
        overflow_per_step=overflow_per_step,
        sampling=sampling,
        neighboring_relation=neighboring_relation,
    )
    _check_learning_rate(learning_rate)
    check_scalar("b1", b1, UNIT)
    check_scalar("b2", b2, UNIT)
    check_scalar("eps", eps, NONNEGATIVE)
    return optax.chain(*front, optax.adam(learning_rate, b1=b1, b2=b2, eps=eps))
