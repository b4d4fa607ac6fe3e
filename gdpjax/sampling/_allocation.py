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
from gdpjax.sampling._padding import PoissonSample, checked_rows, checked_step, padded, real_rows
from gdpjax.sampling._poisson import overflow_probability

_LONGEST_BLOCK = 2**16
_NUM_WORDS = 4
BINS = ("fresh", "fixed")


def allocation_sample(
    key: Array, step: Array, num_examples: int, steps_per_epoch: int, capacity: int, *, num_selected: int = 1,
    bins: str = "fresh", num_valid: Array | None = None,
) -> PoissonSample:  # fmt: skip
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
      A `PoissonSample` with ascending indices. If more than ``capacity`` rows have this step its ``count`` says so, and
      all rows are padding.

    Raises:
      ValueError: values out of range. Traced ones give a ``count`` that never fits.

    Reference: arXiv:2502.08202 (random allocation), arXiv:2410.06266 (balls in bins).

    >>> import jax
    >>> samples = [allocation_sample(jax.random.key(0), t, 100, 4, 100) for t in range(4)]
    >>> sum(int(sample.count) for sample in samples)
    100
    """
    num_examples, capacity = check_count("num_examples", num_examples), check_count("capacity", capacity)
    steps_per_epoch, num_selected = _checked(steps_per_epoch, num_selected, bins)
    rows = checked_rows(num_examples, num_valid)
    step, valid = checked_step(step)

    # Which block of the run the step is in, where in it, and how long that is.
    short, num_longer = divmod(steps_per_epoch, num_selected)
    epoch, within = step // steps_per_epoch, step % steps_per_epoch
    in_longer = within < num_longer * (short + 1)
    beyond = within - num_longer * (short + 1)
    block = jnp.where(in_longer, within // (short + 1), num_longer + beyond // short)
    place = jnp.where(in_longer, within % (short + 1), beyond % short)
    length = jnp.where(in_longer, short + 1, short)
    number = block if bins == "fixed" else epoch * num_selected + block

    words = bits(fold_in(key, number), (_NUM_WORDS, num_examples))
    included = _modulo(words, length.astype(jnp.uint32)) == place.astype(jnp.uint32)
    included, counted = real_rows(included, num_valid, rows)
    return padded(included, capacity, valid & counted)


def _modulo(words: Array, length: Array) -> Array:
    """A number given by its 32-bit words [words, rows], the highest first, modulo ``length`` <= 2^16, in 32 bits."""
    rest = jnp.zeros(words.shape[1:], jnp.uint32)
    for word in words:
        for half in (word >> 16, word & jnp.uint32(0xFFFF)):
            rest = ((rest << 16) | half) % length
    return rest


def allocation_error(num_steps: int) -> float:
    """What the rounding of `allocation_sample` adds to delta in ``num_steps`` steps, num_steps 2^-128; upper bound.

    >>> allocation_error(10**6) < 1e-30
    True
    """
    return check_count("num_steps", num_steps, most=2**53 - 1) * 2.0**-128 * (1 + 1e-15)


def allocation_overflow(
    num_examples: int, steps_per_epoch: int, num_steps: int, capacity: int, num_selected: int = 1
) -> float:
    """The probability that a batch of the run does not fit, with `allocation_error`, at most 1; upper bound.

    num_steps P(Bin(N, 1 / m) >= capacity) with m = floor(steps_per_epoch / num_selected), the shortest block.

    >>> allocation_overflow(1000, 10, 100, 1001) < 1e-30
    True
    """
    steps_per_epoch, num_selected = _checked(steps_per_epoch, num_selected, "fresh")
    prob = _largest_probability(steps_per_epoch, num_selected)
    return min(1.0, overflow_probability(num_examples, prob, num_steps, capacity) + allocation_error(num_steps))


def _largest_probability(steps_per_epoch: int, num_selected: int) -> float:
    return min(float(np.nextafter(1 / (steps_per_epoch // num_selected), 2.0)), 1.0)


def _checked(steps_per_epoch: int, num_selected: int, bins: str) -> tuple[int, int]:
    steps_per_epoch = int(check_count("steps_per_epoch", steps_per_epoch))
    num_selected = int(check_count("num_selected", num_selected))
    check_choice("bins", bins, BINS)
    if num_selected > steps_per_epoch:
        raise ValueError(f"num_selected must be at most steps_per_epoch={steps_per_epoch}, got {num_selected}")
    if -(-steps_per_epoch // num_selected) > _LONGEST_BLOCK:
        raise ValueError(
            f"steps_per_epoch must be at most {_LONGEST_BLOCK} times num_selected={num_selected}, got {steps_per_epoch}"
        )
    return steps_per_epoch, num_selected
