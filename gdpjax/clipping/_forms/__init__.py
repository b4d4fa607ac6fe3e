"""Gradients of one weight, in three forms: formed, outer products, and rows of a table."""

from gdpjax.clipping._forms._abstract import AbstractFactor, Full
from gdpjax.clipping._forms._outer import Outer
from gdpjax.clipping._forms._rows import RowGradients, RunningSum, formed_rows
from gdpjax.clipping._forms._scaled import RowWeights, per_row, stacked, wide
from gdpjax.clipping._forms._table import Sparse, total_of

__all__ = [
    "AbstractFactor",
    "Full",
    "Outer",
    "RowGradients",
    "RowWeights",
    "RunningSum",
    "Sparse",
    "formed_rows",
    "per_row",
    "stacked",
    "total_of",
    "wide",
]
