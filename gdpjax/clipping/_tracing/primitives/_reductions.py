"""Reductions (sums, products, largest and smallest values): the axes that are not reduced remain, in order."""

from typing import Any, final

from gdpjax.clipping._tracing.primitives._abstract import AbstractPrimitive


@final
class Reduction(AbstractPrimitive):
    """``reduce_sum``, ``reduce_prod``, ``reduce_max`` and ``reduce_min``."""

    def axis_map(self, eqn: Any, operand: int) -> dict[int, int]:
        num_axes = len(eqn.invars[operand].aval.shape)
        out_axes = {}
        for axis in range(num_axes):
            if axis not in eqn.params["axes"]:
                out_axes[axis] = len(out_axes)
        return out_axes
