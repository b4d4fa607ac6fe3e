"""Poisson sampling with the probability that is accounted for, padded to a static capacity.

Each example is in the batch independently with probability p. A float32 uniform compared with p would include it with a
larger one (7% more at p = 1e-6), so 32 random bits are compared with an integer threshold, and `dyadic_probability`
gives the p really used: threshold / 2^32, rounded down to a float32 so that every precision stores it exactly.

A compiled step needs a static batch size. A batch of more than ``capacity`` examples cannot be run as sampled, whatever
is done about it (truncated, redrawn, refused), and that event is itself observable; with probability at most
tau = T P(Bin(N, p) >= capacity) over T steps it must be paid for: delta <= tau + (1 - tau) delta_ideal. The comparison
is >= so that the one example by which neighbours differ always fits beside the others.

Where the number of examples is private the data are padded to a public maximum, which is ``num_examples`` here, and
``num_valid`` (traced) says how many rows are real: those beyond it are never drawn, and no shape depends on it. The
bits of row i are a function of (key, i): neither ``num_valid`` nor, with JAX's default bits
(jax_threefry_partitionable), ``num_examples`` moves them, so that data sets that differ by one appended example draw
the same others. tau for the public maximum covers every smaller number, as P(Bin(n, p) >= capacity) grows with n.
"""

import jax.numpy as jnp
import numpy as np
import scipy

from gdpjax._core.arguments import check_count, check_number
from gdpjax._core.checks import OPEN_UNIT, UNIT, check_scalar, is_traced
from gdpjax._core.keys import bits
from gdpjax._core.types import Array
from gdpjax.sampling._batch import Batch
from gdpjax.sampling._padding import checked_rows, padded, real_rows

_MOST = 2**53 - 1


def dyadic_probability(sampling_prob: float) -> float:
    """Return the probability that is really sampled with: at most ``sampling_prob``, a multiple of 2^-32.

    Raises:
      ValueError: not a number in [0, 1], or positive but below 2^-32.

    >>> dyadic_probability(0.1) <= 0.1 and dyadic_probability(0.25) == 0.25
    True
    """
    check_scalar("sampling_prob", sampling_prob, UNIT)
    exact = float(sampling_prob)

    # Round down to a float32, and then to a multiple of 2^-32.
    single = np.float32(exact)
    if float(single) > exact:
        single = np.nextafter(single, np.float32(0))
    threshold = float(np.floor(float(single) * 2.0**32))
    dyadic = threshold * 2.0**-32
    if exact > 0 and dyadic == 0:
        raise ValueError(f"sampling_prob must be 0 or at least 2^-32, got {exact}")
    return dyadic


def poisson_sample(
    key: Array, num_examples: int, sampling_prob: Array, capacity: int, *, num_valid: Array | None = None
) -> Batch:
    """Draw one Poisson batch on the device, inside or outside jit.

    Args:
      key: one PRNG key, used once.
      num_examples: N >= 1, static; the public maximum where the true number is private.
      sampling_prob: number or traced scalar in [0, 1]; use `dyadic_probability` of it in the accounting. A number is
        rounded down to that; a traced one is to be rounded so before.
      capacity: static number of slots >= 1.
      num_valid: how many of the rows are real, from 0 to num_examples, a number or a traced one; None: all of them.

    Returns:
      A `Batch` with ascending indices. If more than ``capacity`` examples were drawn its ``count`` says so, and
      all rows are padding: a part of the batch is never returned.

    Raises:
      ValueError: values out of range. Traced ones give a ``count`` that never fits.

    >>> import jax
    >>> draw = jax.jit(lambda key: poisson_sample(key, 1000, 0.1, 160))
    >>> sample = draw(jax.random.key(0))
    >>> int(sample.count) == int((~sample.is_padding).sum())
    True
    """
    num_examples = check_count("num_examples", num_examples)
    capacity = check_count("capacity", capacity)
    check_scalar("sampling_prob", sampling_prob, UNIT)
    rows = checked_rows(num_examples, num_valid)
    if not is_traced(sampling_prob):
        sampling_prob = dyadic_probability(sampling_prob)

    included = included_rows(key, num_examples, sampling_prob)
    included, is_valid_count = real_rows(included, num_valid, rows)
    return padded(included, capacity, is_valid_count & UNIT.contains(sampling_prob))


def included_rows(key: Array, num_examples: int, sampling_prob: Array) -> Array:
    """Return which rows the key includes, bool[num_examples]."""
    words = bits(key, (num_examples,))
    # p 2^32 is exact in any precision that holds p; p = 1 does not fit 32 bits and includes everything.
    threshold = jnp.floor(jnp.asarray(sampling_prob, float) * 2.0**32)
    includes_all = threshold >= 2.0**32
    threshold = jnp.where(includes_all, 0, threshold).astype(jnp.uint32)
    return includes_all | (words < threshold)


def overflow_probability(num_examples: int, sampling_prob: float, num_steps: int, capacity: int) -> float:
    """Return tau = num_steps P(Bin(num_examples, sampling_prob) >= capacity), at most 1; upper bound.

    >>> overflow_probability(1000, 0.1, 100, 1001)
    0.0
    """
    num_examples = check_count("num_examples", num_examples, most=_MOST)
    sampling_prob = check_number("sampling_prob", sampling_prob, UNIT)
    num_steps = check_count("num_steps", num_steps, most=_MOST)
    capacity = check_count("capacity", capacity, most=_MOST)
    if capacity > num_examples:
        return 0.0
    # P(Bin(n, p) >= c) = I_p(c, n - c + 1), good to about 1e-13 relative; the factor keeps the result an upper bound.
    tail = float(scipy.special.betainc(capacity, num_examples - capacity + 1, sampling_prob))
    tail_upper = tail * (1 + 1e-9)
    return min(1.0, num_steps * tail_upper)


def choose_capacity(num_examples: int, sampling_prob: float, num_steps: int, overflow: float = 1e-12) -> int:
    """Return the smallest capacity whose `overflow_probability` is at most ``overflow``.

    >>> capacity = choose_capacity(60_000, 256 / 60_000, 3516)
    >>> overflow_probability(60_000, 256 / 60_000, 3516, capacity) <= 1e-12
    True
    """
    overflow = check_number("overflow", overflow, OPEN_UNIT)
    num_examples = check_count("num_examples", num_examples, most=_MOST)
    sampling_prob = check_number("sampling_prob", sampling_prob, UNIT)
    num_steps = check_count("num_steps", num_steps, most=_MOST)
    # The probability decreases in the capacity, and a capacity of more than all examples never overflows.
    smallest = 1
    largest = num_examples + 1
    while smallest < largest:
        middle = (smallest + largest) // 2
        if overflow_probability(num_examples, sampling_prob, num_steps, middle) <= overflow:
            largest = middle
        else:
            smallest = middle + 1
    return smallest
