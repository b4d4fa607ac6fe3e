"""Reductions over axes: their other axes stay what they are."""

from typing import Any, final

from gdpjax.clipping._tracing.primitives._abstract import AbstractPrimitive


@final
class Reduction(AbstractPrimitive):
    """A sum, product, or extreme value over some axes."""

    def axis_map(self, eqn: Any, operand: int) -> dict[int, int]:
        reduced = eqn.params["axes"]
        kept = [axis for axis in range(len(eqn.invars[operand].aval.shape)) if axis not in reduced]
        return {axis: place for place, axis in enumerate(kept)}
