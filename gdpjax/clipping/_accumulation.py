"""The cost, in rounding, of adding up several clipped sums.

    accumulation_charge(budget, microbatch_rows=64, num_microbatches=16)

Each sum's own slack covers its rounding. But where an added example moves the others from one microbatch to the next,
all the sums are of other rows than before, and all their rounding errors count together. docs/theory/rounding_budget.md
derives by how much the total can then move, in units of the clip norm C:

    (1 + u k) / (1 + slack) + sum_t R_t (per_row + 2.1 u) / (1 + slack)

for microbatches of R_t rows. The first term is the row that is added, the largest that the last sum can hold; each sum
adds one term to the second, for its own roundings and for adding it to the total. `accumulate_clipped` adds the terms
up and lets `privatize` enlarge its noise where the result is above 1.
"""

from typing import Any, NamedTuple

import jax

from gdpjax._core.provenance import RecordedSum
from gdpjax._core.trees import broadcast_trainable, is_floating, num_elements
from gdpjax._core.types import PyTree
from gdpjax.clipping._rounding_budget import MAX_SLACK, RoundingBudget, rounding_budget


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

    row, of_sum = budget.accumulated(microbatch_rows)
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
    charges = []
    for num_devices in _possible_devices(recorded):
        budget = _budget_or_none(clip, clipped_sum, rows_of_slack, num_devices)
        if budget is not None:
            charges.append(accumulation_charge(budget, charged_rows, num_microbatches))
    row = max(charge.row for charge in charges)
    return AccumulationCharge(row, max(charge.rounding for charge in charges))


def _possible_devices(recorded: RecordedSum | None) -> range:
    """Return the numbers of devices that the rows of a sum can have been spread over."""
    if recorded is None:
        return range(1, jax.device_count() + 1)
    return range(recorded.num_devices, recorded.num_devices + 1)


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
