"""Certified accounting of random allocation: each example takes part in a fixed number of steps of an epoch.

The method, in the order in which it is derived: `_law` (the law of a likelihood ratio from both sides), `_lognormal`
(one step), `_average` (the steps of an epoch), `_one_run` (one epoch's delta and epsilon), `_bounds` (epochs and
blocks, and the public functions), `_ledger` (any question, beside other events).
"""

from gdpjax.accounting._allocation._bounds import allocation_delta_bounds, allocation_epsilon_bounds, make_scheme
from gdpjax.accounting._allocation._ledger import of_allocation

__all__ = ["allocation_delta_bounds", "allocation_epsilon_bounds", "make_scheme", "of_allocation"]
