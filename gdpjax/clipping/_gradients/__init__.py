"""The gradients of one parameter for a batch of examples, with one class for each form in which they are held."""

from gdpjax.clipping._gradients._abstract import AbstractRowGradients
from gdpjax.clipping._gradients._formed import FormedGradients
from gdpjax.clipping._gradients._outer_products import OuterProducts
from gdpjax.clipping._gradients._position_products import PositionProducts, positions_pay
from gdpjax.clipping._gradients._running_sum import RunningSum
from gdpjax.clipping._gradients._scaled import RowWeights, ScaledSquares, stacked, wide
from gdpjax.clipping._gradients._table_rows import TableRows
from gdpjax.clipping._gradients._tied_table import TiedTable

__all__ = [
    "AbstractRowGradients",
    "FormedGradients",
    "OuterProducts",
    "PositionProducts",
    "RowWeights",
    "RunningSum",
    "ScaledSquares",
    "TableRows",
    "TiedTable",
    "positions_pay",
    "stacked",
    "wide",
]
