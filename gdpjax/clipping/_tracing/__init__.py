"""The trace of a loss of one example: where its parameters meet data, and its gradients in factors.

`_row_gradients` is the entry: it names the steps, and the module of each.
"""

from gdpjax.clipping._tracing._jaxprs import (
    CALLS,
    CUSTOM,
    REMAT,
    Frame,
    Place,
    evaluate,
    frame_of,
    is_literal,
    opened,
    scan_of,
)
from gdpjax.clipping._tracing._parameter_flow import parameter_flow
from gdpjax.clipping._tracing._probes import evaluate_replaced
from gdpjax.clipping._tracing._row_gradients import Plan, row_gradients
from gdpjax.clipping._tracing.primitives import (
    AbstractPrimitive,
    is_vouched_for,
    isolated_convolution,
    register_primitive,
)

__all__ = [
    "CALLS",
    "CUSTOM",
    "REMAT",
    "AbstractPrimitive",
    "Frame",
    "Place",
    "Plan",
    "evaluate",
    "evaluate_replaced",
    "frame_of",
    "is_literal",
    "is_vouched_for",
    "isolated_convolution",
    "opened",
    "parameter_flow",
    "register_primitive",
    "row_gradients",
    "scan_of",
]
