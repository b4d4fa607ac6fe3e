"""The target of each position of a sequence, and the loss of one unit."""

import jax
import jax.numpy as jnp


def next_tokens(tokens: jax.Array, segment_ids: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return what each position is to predict, and whether it is to predict anything.

    Args:
      tokens, segment_ids: ``int32[..., length]``.

    Returns:
      targets ``int32[..., length]``, the tokens one further on (0 in the last position), and is_target ``bool``: the
      next position is of the same document, and no padding.

    >>> targets, is_target = next_tokens(jnp.array([5, 6, 7, 8, 0]), jnp.array([1, 1, 2, 2, 0]))
    >>> targets.tolist(), is_target.tolist()
    ([6, 7, 8, 0, 0], [True, False, True, False, False])
    """
    end = [(0, 0)] * (jnp.ndim(tokens) - 1) + [(0, 1)]
    targets = jnp.pad(tokens[..., 1:], end)
    next_segments = jnp.pad(segment_ids[..., 1:], end)
    return targets, (segment_ids == next_segments) & (segment_ids > 0)


def unit_loss(token_losses: jax.Array, is_target: jax.Array, divisor: float | None = None) -> jax.Array:
    """Return the loss of ONE unit: the mean over its own targets, or their sum over a public constant.

    With l_i the losses of the targets i of the unit it is ``sum_i l_i / max(1, number of targets)``, or
    ``sum_i l_i / divisor``. A unit without targets has loss 0, and gradient 0.

    Args:
      token_losses: ``float[sequences_per_unit, length]``, finite everywhere.
      is_target: ``bool``, the same shape; of `next_tokens`.
      divisor: a public constant > 0, such as sequences_per_unit * length; None for the mean.

    >>> unit_loss(jnp.array([[1.0, 3.0, 9.0]]), jnp.array([[True, True, False]]))
    Array(2., dtype=float32)
    """
    total = jnp.sum(jnp.where(is_target, token_losses, 0.0))
    return total / (jnp.maximum(1, jnp.sum(is_target)) if divisor is None else divisor)
