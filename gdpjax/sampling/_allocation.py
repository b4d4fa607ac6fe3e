"""Random allocation: in each epoch of t steps an example takes part in exactly k, one step of each of k blocks.

The t steps are cut into k blocks of ceil(t / k) (the first ones) and floor(t / k) steps, and every example has one step
of each, all of them equally likely, independently of other examples. With bins "fresh" it is drawn anew in each epoch,
with "fixed" (balls in bins) once for all. The place of row i in a block is 128 random bits, a function of (key, number
of the block, i), modulo the length m of the block: no step depends on another one's draw, so a run can be resumed
anywhere. The first places are likelier than the others by at most m 2^-128 of 1 / m, which `allocation_error` adds up;
it is added to delta in the place of an overflow. (The ratio of probabilities is within that of 1 on either side, so
that lower bounds move by no more.)

A batch has a random size, Bin(N, 1 / m), and is padded to a static capacity as in `_poisson`: the same probability of
overflow, and the same batch of padding where it does not fit.
"""

import jax.numpy as jnp
import numpy as np

from gdpjax._core.arguments import check_choice, check_count
from gdpjax._core.keys import bits, fold_in
from gdpjax._core.types import Array
from gdpjax.sampling._batch import Batch
from gdpjax.sampling._padding import checked_rows, checked_step, padded, real_rows
from gdpjax.sampling._poisson import overflow_probability

_LONGEST_BLOCK = 2**16
_NUM_WORDS = 4
BINS = ("fresh", "fixed")


def allocation_sample(
    key: Array,
    step: Array,
    num_examples: int,
    steps_per_epoch: int,
    capacity: int,
    *,
    num_selected: int = 1,
    bins: str = "fresh",
    num_valid: Array | None = None,
) -> Batch:
    """Draw the batch of one step on the device: the rows whose turn it is.

    The event of E epochs is ``AllocationEvent(noise_multiplier, steps_per_epoch, E, num_selected, bins,
    overflow=...)`` with `allocation_overflow`.

    Args:
      key: one PRNG key, the same for every step of the run.
      step: which step of the run, from 0, a number or a traced one.
      num_examples: N >= 1, static; the public maximum where the true number is private.
      steps_per_epoch: t >= 1, static; a block of it has at most 65536 steps.
      capacity: static number of slots >= 1.
      num_selected: in how many steps of an epoch an example takes part, k from 1 to t, static.
      bins: "fresh" or "fixed".
      num_valid: how many of the rows are real, from 0 to num_examples, a number or a traced one; None: all of them.

    Returns:
      A `Batch` with ascending indices. If more than ``capacity`` rows have this step its ``count`` says so, and
      all rows are padding.

    Raises:
      ValueError: values out of range. Traced ones give a ``count`` that never fits.

    Reference: arXiv:2502.08202 (random allocation), arXiv:2410.06266 (balls in bins).

    >>> import jax
    >>> draw = jax.jit(lambda step: allocation_sample(jax.random.key(0), step, 100, 4, 100))
    >>> sum(int(draw(step).count) for step in range(4))
    100
    """
    num_examples = check_count("num_examples", num_examples)
    capacity = check_count("capacity", capacity)
    steps_per_epoch, num_selected = _checked(steps_per_epoch, num_selected, bins)
    rows = checked_rows(num_examples, num_valid)
    step, is_valid_step = checked_step(step)
    epoch = step // steps_per_epoch
    step_of_epoch = step % steps_per_epoch

    # An epoch begins with its longer blocks: in which block is the step, where in it, and how long is that?
    short, num_longer = divmod(steps_per_epoch, num_selected)
    long = short + 1
    first_of_short = num_longer * long
    is_in_long = step_of_epoch < first_of_short
    step_of_short = step_of_epoch - first_of_short
    block = jnp.where(is_in_long, step_of_epoch // long, num_longer + step_of_short // short)
    place = jnp.where(is_in_long, step_of_epoch % long, step_of_short % short)
    length = jnp.where(is_in_long, long, short)

    # The rows whose place in this block is the one of the step.
    block_of_run = block if bins == "fixed" else epoch * num_selected + block
    words = bits(fold_in(key, block_of_run), (_NUM_WORDS, num_examples))
    place_of_row = _modulo(words, length.astype(jnp.uint32))
    included = place_of_row == place.astype(jnp.uint32)
    included, is_valid_count = real_rows(included, num_valid, rows)
    return padded(included, capacity, is_valid_step & is_valid_count)


def _modulo(words: Array, length: Array) -> Array:
    """Return numbers modulo ``length`` <= 2^16, in 32 bits; they are given by their words [words, rows], highest first.

    By long division in base 2^16: a remainder and the next 16 bits together fit 32 bits.
    """
    remainder = jnp.zeros(words.shape[1:], jnp.uint32)
    for word in words:
        high_half = word >> 16
        low_half = word & jnp.uint32(0xFFFF)
        remainder = ((remainder << 16) | high_half) % length
        remainder = ((remainder << 16) | low_half) % length
    return remainder


def allocation_error(num_steps: int) -> float:
    """Return what the rounding of `allocation_sample` adds to delta, num_steps 2^-128; upper bound.

    >>> allocation_error(10**6) < 1e-30
    True
    """
    num_steps = check_count("num_steps", num_steps, most=2**53 - 1)
    return num_steps * 2.0**-128 * (1 + 1e-15)


def allocation_overflow(
    num_examples: int, steps_per_epoch: int, num_steps: int, capacity: int, num_selected: int = 1
) -> float:
    """Return the probability that a batch of the run does not fit, plus `allocation_error`, at most 1; upper bound.

    num_steps P(Bin(N, 1 / m) >= capacity) with m = floor(steps_per_epoch / num_selected), the shortest block.

    >>> allocation_overflow(1000, 10, 100, 1001) < 1e-30
    True
    """
    steps_per_epoch, num_selected = _checked(steps_per_epoch, num_selected, "fresh")
    prob = _largest_probability(steps_per_epoch, num_selected)
    overflow = overflow_probability(num_examples, prob, num_steps, capacity)
    return min(1.0, overflow + allocation_error(num_steps))


def _largest_probability(steps_per_epoch: int, num_selected: int) -> float:
    """Return the probability of a step of the shortest block, 1 / floor(t / k), rounded up."""
    shortest_block = steps_per_epoch // num_selected
    rounded_up = float(np.nextafter(1 / shortest_block, 2.0))
    return min(rounded_up, 1.0)


def _checked(steps_per_epoch: int, num_selected: int, bins: str) -> tuple[int, int]:
    """Return both numbers; ValueError for more selected steps than an epoch has, and for blocks that are too long."""
    steps_per_epoch = int(check_count("steps_per_epoch", steps_per_epoch))
    num_selected = int(check_count("num_selected", num_selected))
    check_choice("bins", bins, BINS)
    if num_selected > steps_per_epoch:
        raise ValueError(f"num_selected must be at most steps_per_epoch={steps_per_epoch}, got {num_selected}")
    longest_block = -(-steps_per_epoch // num_selected)
    if longest_block > _LONGEST_BLOCK:
        raise ValueError(
            f"steps_per_epoch must be at most {_LONGEST_BLOCK} times num_selected={num_selected}, got {steps_per_epoch}"
        )
    return steps_per_epoch, num_selected
