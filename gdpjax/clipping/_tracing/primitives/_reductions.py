"""Reductions (sum, product, extreme values): the axes that are not reduced stay what they are."""

from typing import Any, final

from gdpjax.clipping._tracing.primitives._abstract import AbstractPrimitive


@final
class Reduction(AbstractPrimitive):
    """``reduce_sum``, ``reduce_prod``, ``reduce_max`` and ``reduce_min``."""

    def axis_map(self, eqn: Any, operand: int) -> dict[int, int]:
        num_axes = len(eqn.invars[operand].aval.shape)
        kept = [axis for axis in range(num_axes) if axis not in eqn.params["axes"]]
        return {axis: place for place, axis in enumerate(kept)}
