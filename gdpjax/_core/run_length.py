"""Equal consecutive steps share a row: the run-length record that compiled loops keep of what they ran.

    step = next_row(noise_multipliers, sampling_probs, used, noise_multiplier, sampling_prob)
    noise_multipliers = jnp.where(step.row, step.noise_multiplier, noise_multipliers)

The rows are on the last axis, of a static capacity. When they run out, the last one takes the smaller noise multiplier
and the larger sampling probability of what it covers, which can only overstate the privacy loss.
"""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from gdpjax._core.types import Array


class NextRow(NamedTuple):
    """Where a step is recorded, and what the row there says afterwards; arrays of [..., capacity] and [..., 1]."""

    row: Array  # bool, true at one place
    noise_multiplier: Array
    sampling_prob: Array
    is_new: Array  # bool [..., 1], whether the row was empty
    is_merged: Array  # bool [..., 1], whether an unequal step shares the last row


def next_row(
    noise_multipliers: Array, sampling_probs: Array, used: Array, noise_multiplier: Array, sampling_prob: Array
) -> NextRow:
    """The row of one more step: rows [..., capacity], of which ``used`` [..., 1] are in use, and a step [..., 1]."""
    capacity = noise_multipliers.shape[-1]
    place = np.arange(capacity)
    last = place == used - 1
    is_equal = last & (noise_multipliers == noise_multiplier) & (sampling_probs == sampling_prob)
    is_same = jnp.any(is_equal, axis=-1, keepdims=True)
    is_merged = ~is_same & (used >= capacity)
    is_new = ~(is_same | is_merged)
    return NextRow(
        row=jnp.where(is_new, place == used, last),
        noise_multiplier=jnp.where(is_merged, jnp.minimum(noise_multipliers, noise_multiplier), noise_multiplier),
        sampling_prob=jnp.where(is_merged, jnp.maximum(sampling_probs, sampling_prob), sampling_prob),
        is_new=is_new,
        is_merged=is_merged,
    )
