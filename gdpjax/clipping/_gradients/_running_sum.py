"""A running sum of parts, with or without the errors of its additions.

    total = RunningSum.zero(parameter, compensated=True).plus(first).plus(second)
    total.rounded()

A few parts may be added plainly: the budget of roundings covers them. More of them are added as an unevaluated sum
high + low, in which the error of each addition is kept (Knuth's `two_sum`), so that the number of parts does not
matter. Keeping it costs three times the memory traffic.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp

from gdpjax._core.trees import compensated_add, two_sum, wide_dtype
from gdpjax._core.types import Array


class RunningSum(NamedTuple):
    """The unevaluated sum high + low.

    Attributes:
      high: the sum.
      low: the errors of its additions, or None where they need not be kept.
    """

    high: Array
    low: Array | None

    @classmethod
    def zero(cls, like: Any, compensated: bool) -> "RunningSum":
        """Return the empty sum of arrays shaped like ``like``."""
        zeros = jnp.zeros(like.shape, wide_dtype(like))
        return cls(zeros, zeros if compensated else None)

    def plus(self, part: Array) -> "RunningSum":
        """Add one part."""
        if self.low is None:
            return RunningSum(self.high + part, None)
        return self.plus_pair((part, jnp.zeros_like(part)))

    def plus_pair(self, part: tuple[Array, Array]) -> "RunningSum":
        """Add an unevaluated sum."""
        if self.low is None:
            rounded_part = part[0] + part[1]
            return RunningSum(self.high + rounded_part, None)

        # Renormalising keeps ``low`` a rounding error of ``high``, so that its own rounding never builds up.
        high, low = compensated_add((self.high, self.low), part)
        return RunningSum(*two_sum(high, low))

    def rounded(self) -> Array:
        """Return the sum, rounded once."""
        if self.low is None:
            return self.high
        return self.high + self.low
