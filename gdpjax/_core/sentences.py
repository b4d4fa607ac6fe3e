"""The words that statements share: of plans, of ledgers and of budgets."""

import functools
from typing import Any

from gdpjax._core.types import Bounds, NeighboringRelation


@functools.singledispatch
def certified_epsilon(ledger: Any, delta: float) -> Bounds:
    """Return the certified bracket on epsilon of what was run.

    The statement of a ledger asks for it, and the accountants, which stand above ledgers, define it.
    """
    raise NotImplementedError(f"no accountant for {type(ledger).__name__}")


def neighbours_differ(relation: NeighboringRelation, unit: str) -> str:
    """Return how neighbouring data sets differ, as the end of a sentence about them.

    >>> neighbours_differ(NeighboringRelation.REPLACE_ONE, "patient")
    'differ by replacing one patient by any other (REPLACE_ONE)'
    """
    changes = {
        NeighboringRelation.ADD_OR_REMOVE_ONE: f"by adding or removing one {unit}",
        NeighboringRelation.REPLACE_ONE: f"by replacing one {unit} by any other",
        NeighboringRelation.REPLACE_SPECIAL: f"by replacing one {unit} by a null one that contributes nothing",
    }
    return f"differ {changes[relation]} ({relation.name})"
