"""Certified accounting of random allocation: each example takes part in a fixed number of steps of an epoch.

The method, in the order in which it is derived: `_law` (the law of a likelihood ratio from both sides, that of one
step, and the delta and epsilon of one release), `_average` (the steps of an epoch), `_bounds` (epochs and blocks). Any
question, beside other events: `gdpjax.accounting._outcomes_curve`.
"""

from gdpjax.accounting._allocation._bounds import Sides

__all__ = ["Sides"]
