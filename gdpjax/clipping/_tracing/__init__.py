"""The trace of a loss of one example: where its parameters meet data, and its gradients in factors."""

from gdpjax.clipping._tracing._jaxprs import CALLS, CUSTOM, REMAT, Frame, Scan, frame_of, opened, scan_of
from gdpjax.clipping._tracing._parameter_flow import AbstractSite, Use
from gdpjax.clipping._tracing._row_gradients import Plan, plan_of, row_gradients

__all__ = [
    "CALLS",
    "CUSTOM",
    "REMAT",
    "AbstractSite",
    "Frame",
    "Plan",
    "Scan",
    "Use",
    "frame_of",
    "opened",
    "plan_of",
    "row_gradients",
    "scan_of",
]
