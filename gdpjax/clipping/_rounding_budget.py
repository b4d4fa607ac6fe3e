"""The slack by which a row is kept below the clip norm, to leave room for rounding.

    budget = rounding_budget(leaves, num_rows=256)
    threshold = clip_norm / (1 + budget.slack)

The sensitivity that `gdpjax.clipped_grad` states holds for the sums as the machine returns them. Norms, coefficients
and sums are rounded, so rows are clipped to C / (1 + slack), where

    slack = u (k + B (2 t(b) + 6.1)) <= 1%,        t(b) = (b + 1) / 2 - 1 / b.

    u  the unit roundoff of the sum (2^-24 for float32)
    k  roundings of the norm of a row
    B  rows of the batch, padding included
    b  rows that one reduction may add up plainly, in any order

The slack depends on shapes alone, never on the realised batch size, which is private. The derivation is in
docs/theory/rounding_budget.md.

Several sums may be added up (`accumulation_charge`). Each sum's own slack covers its rounding. But where an added
example moves the others from one microbatch to the next, all the sums are of other rows than before, and all their
rounding errors count together. The same page derives by how much the total can then move, in units of the clip norm C:

    (1 + u k) / (1 + slack) + sum_t R_t (per_row + 2.1 u) / (1 + slack)

for microbatches of R_t rows. The first term is the row that is added, the largest that the last sum can hold; each sum
adds one term to the second, for its own roundings and for adding it to the total. `accumulate_clipped` adds the terms
up and lets `privatize` enlarge its noise where the result is above 1.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from gdpjax._core.provenance import RecordedSum
from gdpjax._core.trees import broadcast_trainable, is_floating, most_sum_error_terms, num_elements, wide_dtype
from gdpjax._core.types import PyTree

MAX_SLACK = 0.01
"""A batch that would need a larger slack is refused."""

# How many rows one reduction may add up.

_PREFERRED_SLACK = 0.005
"""Slack up to which `_MOST_PLAIN_ROWS` rows may be added up plainly."""
_MOST_PLAIN_ROWS = 256
"""A contraction of so many rows costs what it costs without privacy."""
_PLAIN_ROWS = 128
"""Rows that are added up plainly at most where the slack would pass `_PREFERRED_SLACK`."""

_SMALL_MODEL = 2**10
"""Parameters up to which every row is added with its rounding error kept."""

# The slack, in roundings.

_NORM_ROUNDINGS = 10
"""Roundings of group bounds, the square root, the quotient and the product."""

_TABLE_TERMS = most_sum_error_terms(2**31) / 2
"""An example may look up more rows of a small table than the table has, but not more entries than can be indexed."""

_TERM_ROUNDINGS = 2
"""Roundings of a row when it is scaled and when it is multiplied in a contraction."""

_RESULT_ROUNDINGS = 2.1
"""Roundings of the compensated sum of the parts, for each row: 1.05 for each of two neighbours."""


def plain_roundings(size: int) -> float:
    """Return t(size): what adding ``size`` terms in any order costs, in roundings for each of them."""
    return (size + 1) / 2 - 1 / size


class RoundingBudget(NamedTuple):
    """The roundings that the sum of a batch may take, and the slack that is kept back for them.

    Attributes:
      slack: rows are clipped to C / (1 + slack).
      plain_rows: b, rows that may be added by one reduction.
      norm: u k, the part of the slack for the norm of one row.
      per_row: the part of the slack for the sum, for each row.
      unit: u, the unit roundoff.
    """

    slack: float
    plain_rows: int
    norm: float
    per_row: float
    unit: float

    def covers(self, num_rows: int, num_calls: int = 1) -> bool:
        """Return whether ``num_calls`` times ``num_rows`` rows, in parts of `plain_rows`, may be added up plainly."""
        rows = min(num_rows, self.plain_rows)
        parts = num_calls * -(-num_rows // rows)
        needed = plain_roundings(rows) + parts - 1
        return needed <= plain_roundings(self.plain_rows)


def rounding_budget(leaves: Sequence[Any], num_rows: int, num_devices: int = 1) -> RoundingBudget:
    """Return the budget for a batch of gradients.

    Args:
      leaves: the trained parameters, or anything with their shapes and dtypes.
      num_rows: B, rows of the batch on all devices, padding included.
      num_devices: G, devices over which the batch is spread.

    Raises:
      ValueError: the rounding of so many rows could pass 1 % of the clip norm.
    """
    unit = max(_unit_roundoff(leaf) for leaf in leaves)
    num_parameters = sum(num_elements(leaf) for leaf in leaves)
    is_large = num_parameters > _SMALL_MODEL

    # The norm: sums of squares over entries and over leaves. The square root halves their roundings, but the two
    # factors of an outer product have twice as many over entries.
    over_entries = max(most_sum_error_terms(num_parameters), _TABLE_TERMS)
    over_leaves = (most_sum_error_terms(len(leaves)) + 1) / 2
    norm = unit * (over_entries + over_leaves + _NORM_ROUNDINGS)

    # The sum, for each row: the terms and plain sums of two neighbours, and the compensated sum of the parts.
    def per_row(plain_rows: int) -> float:
        of_two_sums = 2 * plain_roundings(plain_rows) + 2 * _TERM_ROUNDINGS
        return unit * (of_two_sums + _RESULT_ROUNDINGS)

    def slack_of(plain_rows: int) -> float:
        return norm + num_rows * per_row(plain_rows)

    # Each device adds at least one row plainly, and the all-reduce adds the sums of the devices.
    fewest = 1 if num_devices == 1 else num_devices + 2

    # As many rows at a time as the slack allows.
    if not is_large:
        rows = fewest
    elif slack_of(_MOST_PLAIN_ROWS) <= _PREFERRED_SLACK:
        rows = max(_MOST_PLAIN_ROWS, fewest)
    else:
        rows = max(_PLAIN_ROWS, fewest)
    while slack_of(rows) > MAX_SLACK and rows > fewest:
        rows -= 1

    slack = slack_of(rows)
    if slack > MAX_SLACK:
        raise ValueError(
            f"a batch of {num_rows} rows is too large for the rounding of its sum to stay within 1% of the clip norm "
            f"(it could reach {slack:.1%}); use smaller logical batches, or float64 gradients"
        )

    rows_of_one_device = rows if num_devices == 1 else rows - num_devices - 1
    return RoundingBudget(slack, rows_of_one_device, norm, per_row(rows), unit)


def _unit_roundoff(leaf: Any) -> float:
    """Return the unit roundoff of the dtype in which a parameter's gradients are summed."""
    return float(np.finfo(wide_dtype(leaf)).eps) / 2


# The cost of adding up several sums.


class AccumulationCharge(NamedTuple):
    """The part that one of several sums adds to the sensitivity of their total, in clip norms.

    Attributes:
      row: the largest norm of a row in it; 0 for a sum of no rows.
      rounding: what its roundings, and those of adding it to the total, can move the total by.
    """

    row: float
    rounding: float


def accumulation_charge(budget: RoundingBudget, microbatch_rows: int, num_microbatches: int) -> AccumulationCharge:
    """Return the charge for one of ``num_microbatches`` sums, from static arguments alone.

    Args:
      budget: the rounding budget that the clip used for the sum.
      microbatch_rows: rows of the sum, padding included.
      num_microbatches: how many sums of so many rows are added up.

    Raises:
      ValueError: the roundings of all of them together could pass 1% of the clip norm.
    """
    if num_microbatches == 1:
        return AccumulationCharge(1.0, 0.0)
    if microbatch_rows == 0:
        return AccumulationCharge(0.0, 0.0)

    # Rows are clipped to 1 / (1 + slack). Each counts the roundings of its sum, and of adding that to the total.
    row = (1 + budget.norm) / (1 + budget.slack)
    of_sum = microbatch_rows * (budget.per_row + _RESULT_ROUNDINGS * budget.unit) / (1 + budget.slack)
    total = row + num_microbatches * of_sum
    if total > 1 + MAX_SLACK:
        rows = num_microbatches * microbatch_rows
        raise ValueError(
            f"the rounding of {num_microbatches} sums of {rows} rows together could reach {total - 1:.1%} of the clip "
            f"norm, more than 1%; give the rows of the logical batch, such as max_batch_size={rows}, to the clip, "
            "so that it adds them up more carefully, and call it in the same jax.jit as update"
        )
    return AccumulationCharge(row, of_sum)


def charge_of_sum(
    clip: Any,
    clipped_sum: PyTree,
    recorded: RecordedSum | None,
    microbatch_rows: int | None,
    num_microbatches: int,
) -> AccumulationCharge:
    """Return the charge for a sum that ``clip`` made.

    The number of rows is ``microbatch_rows``, or else that of the record, or else the clip's ``max_batch_size``.

    Args:
      clip: the `clipped_grad` function or the `clip_and_sum` transformation.
      clipped_sum: the sum, for the shapes and dtypes of its leaves.
      recorded: the clip's record of the sum; None for one that was made in another trace.
      microbatch_rows: rows of each microbatch, padding included, if they were told.
      num_microbatches: how many sums are added up.

    Raises:
      ValueError: the sum has more rows than were told; nothing says how many rows it has; as `accumulation_charge`.
    """
    if num_microbatches == 1:
        return AccumulationCharge(1.0, 0.0)
    if recorded is not None and microbatch_rows is not None and recorded.num_rows > microbatch_rows:
        raise ValueError(
            f"the clip made a sum of {recorded.num_rows} rows, more than microbatch_rows={microbatch_rows} of "
            "gdpjax.accumulate_clipped; give it the rows of each microbatch, padding included"
        )
    known_rows = clip.max_batch_size if recorded is None else recorded.num_rows
    charged_rows = known_rows if microbatch_rows is None else microbatch_rows
    if charged_rows is None:
        raise ValueError(
            "of how many rows the accumulated sum is cannot be seen, as it was made outside this compiled function "
            "(or inside another); call the clip and update in the same jax.jit, or give max_batch_size to the clip or "
            "microbatch_rows to gdpjax.accumulate_clipped"
        )
    if known_rows == 0:
        return AccumulationCharge(0.0, 0.0)

    # The clip lowered its threshold for so many rows; without a record and a limit, for the rows that were told.
    rows_of_slack = clip.max_batch_size or known_rows or charged_rows
    # A sum that was made in another trace can have been spread over any number of devices.
    charges = []
    for num_devices in range(1, jax.device_count() + 1) if recorded is None else [recorded.num_devices]:
        budget = _budget_or_none(clip, clipped_sum, rows_of_slack, num_devices)
        if budget is not None:
            charges.append(accumulation_charge(budget, charged_rows, num_microbatches))
    row = max(charge.row for charge in charges)
    return AccumulationCharge(row, max(charge.rounding for charge in charges))


def _budget_or_none(clip: Any, clipped_sum: PyTree, num_rows: int, num_devices: int) -> RoundingBudget | None:
    """Return the budget of a sum of the clip, or None where the clip refuses so many rows on so many devices."""
    leaves = jax.tree.leaves(clipped_sum)
    marks = jax.tree.leaves(broadcast_trainable(clip.trainable, clipped_sum))
    pairs = zip(leaves, marks, strict=True)
    trained = [leaf for leaf, mark in pairs if mark and is_floating(leaf) and num_elements(leaf)]
    try:
        return rounding_budget(trained, num_rows, num_devices)
    except ValueError:
        if num_devices == 1:
            raise
        return None
