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
    """The row where a step is recorded, and its content afterwards.

    Attributes:
      row: bool[..., capacity], true at one place.
      noise_multiplier: float[..., capacity], the content at that place.
      sampling_prob: float[..., capacity], the content at that place.
      is_new: bool[..., 1], whether the row was empty.
      is_merged: bool[..., 1], whether an unequal step shares the last row.
    """

    row: Array
    noise_multiplier: Array
    sampling_prob: Array
    is_new: Array
    is_merged: Array


def next_row(
    noise_multipliers: Array, sampling_probs: Array, used: Array, noise_multiplier: Array, sampling_prob: Array
) -> NextRow:
    """Return the row of one more step.

    Args:
      noise_multipliers: float[..., capacity], of the rows so far.
      sampling_probs: float[..., capacity], of the rows so far.
      used: int[..., 1], the number of rows in use.
      noise_multiplier: float[..., 1], of the step.
      sampling_prob: float[..., 1], of the step.
    """
    capacity = noise_multipliers.shape[-1]
    place = np.arange(capacity)

    # A step like those of the last row joins it; any other step takes a new row, as long as there is one.
    is_last = place == used - 1
    is_equal = is_last & (noise_multipliers == noise_multiplier) & (sampling_probs == sampling_prob)
    is_same = jnp.any(is_equal, axis=-1, keepdims=True)
    is_merged = ~is_same & (used >= capacity)
    is_new = ~(is_same | is_merged)

    # A row that unequal steps share holds the less private of their parameters.
    row = jnp.where(is_new, place == used, is_last)
    smaller_noise = jnp.minimum(noise_multipliers, noise_multiplier)
    recorded_noise = jnp.where(is_merged, smaller_noise, noise_multiplier)
    larger_prob = jnp.maximum(sampling_probs, sampling_prob)
    recorded_prob = jnp.where(is_merged, larger_prob, sampling_prob)
    return NextRow(row, recorded_noise, recorded_prob, is_new, is_merged)
