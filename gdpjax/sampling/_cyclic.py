"""Cyclic Poisson sampling: the rows are in b fixed groups, and step t draws a Poisson batch from group t mod b.

An example is in the group of its row's number modulo b = num_groups, whatever the data, and is drawn at most once in b
steps. With at most num_groups bands the columns of C that one example can touch do not overlap, so for that example the
run of n steps is ceil(n / b) independent Poisson steps (`gdpjax.ledger.CyclicPoissonEvent`): correlated noise and
amplification by sampling go together.

Reference: Choquette-Choo et al., arXiv:2306.08153, algorithm 2 and theorem 4.
"""

import jax.numpy as jnp

from gdpjax._core.arguments import check_count
from gdpjax._core.keys import fold_in
from gdpjax._core.types import Array
from gdpjax.sampling._padding import PoissonSample, checked_rows, checked_step
from gdpjax.sampling._poisson import poisson_sample


def cyclic_poisson_sample(
    key: Array,
    step: Array,
    num_examples: int,
    sampling_prob: Array,
    num_groups: int,
    capacity: int,
    *,
    num_valid: Array | None = None,
) -> PoissonSample:
    """Draw the batch of one step of cyclic Poisson sampling on the device.

    Row i is in group i mod num_groups, and each row of group ``step`` mod num_groups is drawn independently with
    probability ``sampling_prob``.

    Args:
        key: one PRNG key, the same for every step of the run.
        step: which step of the run, from 0, a number or a traced one.
        num_examples: N >= 1, static; the public maximum where the true number is private.
        sampling_prob: number or traced scalar in [0, 1], as in `poisson_sample`; expected_batch_size num_groups / N.
        num_groups: b, from 1 to num_examples, static.
        capacity: static number of slots >= 1.
        num_valid: how many of the rows are real, from 0 to num_examples, a number or a traced one; None: all of them.

    Returns:
        A `PoissonSample` with ascending indices, as of `poisson_sample`.

    Raises:
        ValueError: values out of range. Traced ones give a ``count`` that never fits.

    Reference: Choquette-Choo et al., arXiv:2306.08153, algorithm 2.

    >>> import jax
    >>> sample = cyclic_poisson_sample(jax.random.key(0), 5, 100, 1.0, num_groups=4, capacity=30)
    >>> sample.indices[:3].tolist(), int(sample.count)
    ([1, 5, 9], 25)
    """
    num_examples, num_groups = checked_groups(num_examples, num_groups)
    rows = checked_rows(num_examples, num_valid)
    step, is_valid_step = checked_step(step)

    # Row i of the group is row i num_groups + group of the data.
    group = step % num_groups
    num_real = jnp.asarray(num_examples if num_valid is None else num_valid)
    rows_of_group = jnp.maximum((num_real - group + num_groups - 1) // num_groups, 0)
    longest_group = -(-num_examples // num_groups)
    sample = poisson_sample(
        fold_in(key, step), longest_group, sampling_prob, capacity, num_valid=rows_of_group.astype(jnp.int32)
    )

    # A step or a number of rows out of range gives a batch that never fits.
    is_valid = is_valid_step & rows.contains(num_real)
    is_padding = sample.is_padding | ~is_valid
    return PoissonSample(
        indices=jnp.where(is_padding, 0, sample.indices * num_groups + group.astype(sample.indices.dtype)),
        is_padding=is_padding,
        count=jnp.where(is_valid, sample.count, jnp.iinfo(jnp.int32).max),
    )


def checked_groups(num_examples: int, num_groups: int) -> tuple[int, int]:
    """Return both numbers; ValueError for more groups than rows."""
    num_examples = int(check_count("num_examples", num_examples))
    num_groups = int(check_count("num_groups", num_groups))
    if num_groups > num_examples:
        raise ValueError(
            f"num_groups must be at most num_examples={num_examples}, or groups are empty, got {num_groups}"
        )
    return num_examples, num_groups
