"""The number of steps that a number of epochs is."""

import math

from gdpjax._core.arguments import check_number
from gdpjax._core.checks import POSITIVE


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
