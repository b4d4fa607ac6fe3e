"""The numbers of batches: probabilities, capacities, and how many steps epochs are."""

import math

import numpy as np
import scipy

from gdpjax._core.arguments import check_count, check_number
from gdpjax._core.checks import OPEN_UNIT, POSITIVE, UNIT, check_scalar

_CAPACITY_MULTIPLE = 8
ALLOWED_OVERFLOW = 1e-12
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


def padded_capacity(
    num_rows: int,
    prob: float,
    num_steps: int,
    overflow: float = ALLOWED_OVERFLOW,
    spare_rows: int = 0,
) -> int:
    """Return the least multiple of 8 with which a batch of Bin(num_rows, prob) rows and ``spare_rows`` more fits.

    Some batch of the run does not fit with probability at most ``overflow``.
    """
    least = choose_capacity(num_rows, prob, num_steps, overflow) + spare_rows
    return -(-least // _CAPACITY_MULTIPLE) * _CAPACITY_MULTIPLE


def steps_of_epochs(epochs: float, num_examples: float, batch_size: float) -> int:
    """Return the number of steps that pass ``epochs`` times over the data, in expectation.

    Formula: max(1, floor(epochs num_examples / batch_size + 1/2)): to the nearest whole number, halves up. Plans, the
    command line and the experiments all count with it, so that what is priced is what is run.

    Args:
        epochs: finite number > 0.
        num_examples: finite number > 0 (with 1, batch_size is the sampling probability).
        batch_size: expected batch size, a finite number > 0.

    Returns:
        the number of steps, >= 1, of the quotient in double precision.

    Raises:
        ValueError: an argument outside its range, or 2^31 steps and more.

    >>> steps_of_epochs(15, 60_000, 256), steps_of_epochs(1, 1000, 16)
    (3516, 63)
    """
    epochs = check_number("epochs", epochs, POSITIVE)
    num_examples = check_number("num_examples", num_examples, POSITIVE)
    batch_size = check_number("batch_size", batch_size, POSITIVE)
    steps = epochs * num_examples / batch_size
    if not steps < 2**31 - 1:
        raise ValueError(f"epochs must give fewer than 2^31 steps, got {epochs}, which is {steps:.4g} steps")
    return max(1, math.floor(steps + 0.5))
