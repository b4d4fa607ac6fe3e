"""What is kept back from the clip norm for rounding, as a function of shapes alone.

The promise is on what the machine returns, not on real arithmetic: for any two batches, padded to the same size B,
that differ by one added or removed row, the two returned sums differ by at most C in l2 norm, given that the computed
gradient of a row (for an outer product its two computed factors) is a function of that row, and one value: what its
norm is taken of is what is added (a barrier in `_clipped_sum` sees to that). So much is the compiler's: programs of
different batch sizes may compute the same row's gradient differently (a ReLU at its kink can fall on either side), so
pad to ONE static size. With u the unit roundoff of the accumulation dtype (2^-24 for float32) and d coordinates in n
leaves, the parts are, relative to C:

* Norm. Squares and their sum are off by at most sum_error_terms(d) + sum_error_terms(n) + 1 roundings, for the two
  factors of an outer product by twice that, halved by the square root; group bounds, the square root, the quotient and
  the product cost 10 more. A row may thus be scaled to C (1 + k u). No difference is taken anywhere, so nothing
  cancels; a gradient that is held as a sum of terms has its norm rounded up by what they can lose (`_shared_terms`,
  `_gram_norms`).
* Terms. c_i g_i is rounded at most twice, once when it is scaled and once in the product of a contraction: 2 u B C.
* Plain sums. At most b rows are added by one reduction or contraction, in whatever order the compiler likes: whatever
  the tree, its inner nodes hold partial sums of at most m rows, m = 2..b, so it is off by at most
  u C (2 + ... + b), that is u B C t(b) for all of them, where t(b) = (b + 1) / 2 - 1 / b.
* Sums of parts. If at most m rows are added at a time, in J parts, adding these plainly takes a row through at most
  J - 1 more additions, each off by u times a partial sum: u B C (J - 1) for all of them. So they are added plainly
  where t(m) + J - 1 <= t(b). Elsewhere they are added with the error of each addition kept (`two_sum`), off by less
  than 2 u^2 (B + 9) B C, which is below u B C / 100 up to the largest B that is accepted; the result is rounded once:
  u B C. Tables whose rows few examples touch are added in whole numbers instead, exactly (`_exact_table_sum`).
* Devices. Where the batch is spread over G devices, each adds up its own rows, and one all-reduce of those sums adds at
  most u B C t(G).

Rows that are held as a sum of terms stay within "Terms" and "Plain sums" of other rows (`_shared_terms`), in float64,
in a model of more than 1,024 parameters, within 2^10 times as much.

Neighbours differ by one row and by two such errors: rows are clipped to C / (1 + slack) with

    slack = u (k + B (2 t(b) + 6.1)) <= 1%

(there u (k + B (2^10 (2 t(b) + 4) + 2.1))). The sensitivity is then exactly C. A larger b is faster, and costs as much
more noise as it makes the slack larger. So b = 256, for which a contraction costs what it costs without privacy, where
the slack is then at most 0.5 % (float32: 318 rows), else the largest b up to 128 that keeps it at 1 %. A batch for
which even b = 1 would not (float32: 27,000 rows) is refused. In a model of up to 1,024 parameters b = 1, where it costs
little. Over G devices b is at least G + 2, of which a device adds b - G - 1 rows plainly.

The slack depends on shapes alone and is the same for every strategy. It must not follow the realised, private, batch
size: where batches are padded to several sizes it must be that of the largest (`max_batch_size`). (slack / B does not
grow with B, so that even batches of B and B + 1 rows, not padded, differ by at most C in exact arithmetic.)

Sums of several calls. Where K sums are added up (`gdpjax.accumulate_clipped`, compensated), an added row moves others
from one call to the next, so the errors of all of them count, those of call t being R_t (2 t(b) + 6.1) u for its R_t
rows, and u R_t for either neighbour, with 5 % for what the compensation loses, where the total is rounded. All are in
units of what call t clips to, C / (1 + slack_t). The total moves by at most C times

    (1 + u k) / (1 + slack) + sum_t u R_t (2 t(b) + 6.1 + 2.1) / (1 + slack_t),

where the slack is that of the last call. Calls of other sizes may clip to other thresholds, and a row that moves from
one call to the next then changes by the difference of (1 + u k) / (1 + slack_t): the difference of any two calls that
follow each other is added twice, once for what the moved row changes by and once to bound the largest of them by the
last. By that number, if it is above 1, the noise is enlarged. ``max_batch_size``, where it is given as the rows of all
calls together, makes slack_t hold nearly all of it.

A row with a NaN or an infinity contributes exact zeros, as does padding.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from gdpjax._core.trees import most_sum_error_terms, num_elements, wide_dtype

MAX_SLACK = 0.01
_PREFERRED_SLACK = 0.005
_MOST_PLAIN_ROWS = 256
_PLAIN_ROWS = 128

_TABLE_TERMS = most_sum_error_terms(2**31) / 2
"""An example may look up more rows of a small table than the table has, but not more entries than can be indexed."""

_SMALL = 2**10
"""Parameters up to which every row is added with its rounding error kept."""

_FINE = 2.0**-50
_SPARE = 2.0**10
"""With a unit roundoff below `_FINE`, a gradient of terms that cancel may be rounded so much more."""

_ORTHOGONAL = 0.7
"""Below sqrt(1/2), which is what is left of two orthogonal parts."""
_MANY = 64
_MOST_TERMS = 4


def plain_roundings(size: int) -> float:
    """Return t(size): what adding ``size`` terms in any order costs, in roundings for each of them."""
    return (size + 1) / 2 - 1 / size


class RoundingBudget(NamedTuple):
    """How many roundings the sum of a batch may take, and what is kept back for them.

    Attributes:
      slack: rows are clipped to C / (1 + slack).
      plain_rows: b, rows that may be added by one reduction.
      norm: what is needed for the norm of one row, u k.
      per_row: what is needed for the sum, for each row.
      unit: u.
      spare: allowance for terms and plain sums, in what rows of one gradient need.
    """

    slack: float
    plain_rows: int
    norm: float
    per_row: float
    unit: float
    spare: float

    def covers_plain_sum(self, rows: int, parts: int) -> bool:
        """Return whether ``parts`` sums of at most ``rows`` rows each may be added up plainly."""
        return plain_roundings(rows) + parts - 1 <= plain_roundings(self.plain_rows)

    def accumulated(self, num_rows: int) -> tuple[float, float]:
        """Return what one of several sums adds to the sensitivity of their total, in clip norms.

        Returns:
          The largest norm of a row, and what the roundings of a sum of ``num_rows`` rows and of adding it to the total
          can move the total by.
        """
        clipped_to = 1 / (1 + self.slack)
        return (1 + self.norm) * clipped_to, num_rows * (self.per_row + 2.1 * self.unit) * clipped_to

    # What gradients with shared terms may cost is derived in `_shared_terms`.

    @property
    def most_shared_terms(self) -> int:
        """Return up to how many shared terms leave orthogonal ones as they are."""
        within = [self.least_share(terms, True) <= _ORTHOGONAL for terms in range(1, _MOST_TERMS + 1)]
        return sum(within)

    def rows_with_terms(self, is_table: bool) -> tuple[int, int]:
        """Return m and J: rows with shared terms in one part, and parts that are added plainly."""
        if is_table or self.plain_rows < _MANY:
            return max(1, self.plain_rows // 4), 1
        return self.plain_rows // 8, 4

    def least_share(self, terms: int, is_table: bool) -> float:
        """Return x / z: the least norm of a gradient with shared terms, over the sum of the norms of its parts."""
        rows, parts = self.rows_with_terms(is_table)
        needed = 2 + plain_roundings(rows) + plain_roundings(parts) + terms
        return needed / (self.spare * (2 + plain_roundings(self.plain_rows)))


def rounding_budget(leaves: Sequence[Any], num_rows: int, num_devices: int = 1) -> RoundingBudget:
    """Return the budget for a batch of gradients.

    Args:
      leaves: the trained parameters, or anything with their shapes and dtypes.
      num_rows: B, rows of the batch on all devices, padding included.
      num_devices: G, devices over which the batch is spread.

    Raises:
      ValueError: the rounding of so many rows could pass 1 % of the clip norm.
    """
    unit = max(float(np.finfo(wide_dtype(leaf)).eps) / 2 for leaf in leaves)
    sizes = [num_elements(leaf) for leaf in leaves]

    # The norm: its sums of squares over entries and leaves, and ten more roundings.
    entries = max(most_sum_error_terms(sum(sizes)), _TABLE_TERMS)
    norm = unit * (entries + (most_sum_error_terms(len(leaves)) + 1) / 2 + 10)

    # The sum, for each row.
    is_large = sum(sizes) > _SMALL
    spare = _SPARE if is_large and unit < _FINE else 1.0

    def per_row(plain_rows: int) -> float:
        return unit * (spare * (2 * plain_roundings(plain_rows) + 4) + 2.1)

    def slack_of(plain_rows: int) -> float:
        return norm + num_rows * per_row(plain_rows)

    # As many rows at a time as the slack allows.
    fewest = 1 if num_devices == 1 else num_devices + 2
    if not is_large:
        rows = fewest
    elif slack_of(_MOST_PLAIN_ROWS) <= _PREFERRED_SLACK:
        rows = max(_MOST_PLAIN_ROWS, fewest)
    else:
        rows = max(_PLAIN_ROWS, fewest)
    while slack_of(rows) > MAX_SLACK and rows > fewest:
        rows -= 1
    if slack_of(rows) > MAX_SLACK:
        raise ValueError(
            f"a batch of {num_rows} rows is too large for the rounding of its sum to stay within 1% of the clip norm "
            f"(it could reach {slack_of(rows):.1%}); use smaller logical batches, or float64 gradients"
        )
    plain_rows = rows if num_devices == 1 else rows - num_devices - 1
    return RoundingBudget(slack_of(rows), plain_rows, norm, per_row(rows), unit, spare)
