"""Cyclic Poisson sampling: the rows are in b groups, and step t draws a Poisson batch from group t mod b.

The groups are drawn once, as a random permutation of all rows, those that are not real among them, cut into b parts. An
example keeps its group and is drawn at most once in b steps. With at most num_groups bands the columns of C that one
example can touch do not overlap, so for that example the run of n steps is ceil(n / b) independent Poisson steps
(`gdpjax.ledger.CyclicPoissonEvent`): correlated noise and amplification by sampling go together.

**Why the groups are random.** Groups by the number of a row would do where neighbours differ by a null example, which
leaves all others where they are. But whoever removes an example closes the gap: the rows behind it move up by one, and
all of them would change their group. Let the N places have uniformly random groups that nobody knows. Removing row i
moves the places of rows i + 1, i + 2, ..., and the last place becomes empty: a permutation of the places. A uniform
permutation composed with a fixed one is uniform, so the groups of all remaining examples have, together, the same law
as if they had kept their places and place i were the empty one. So the two runs are mixtures, with the same weights, of
pairs of runs in which everybody else keeps the group, and joint convexity of trade-off curves gives the mixture the
bound of the pairs. The permutation is uniform but with probability `shuffled_error`.

Reference: Choquette-Choo et al., arXiv:2306.08153, algorithm 2 and theorem 4.
"""

import jax.numpy as jnp

from gdpjax._core.arguments import check_count
from gdpjax._core.keys import fold_in
from gdpjax._core.types import Array
from gdpjax.sampling._batch import Batch
from gdpjax.sampling._padding import checked_rows, checked_step, where_valid
from gdpjax.sampling._poisson import poisson_sample
from gdpjax.sampling._shuffled import shuffled_sample

_GROUPS = 2**32 - 1
"""A number that keeps the key of the groups apart from those of steps, which are below 2^31."""


def cyclic_poisson_sample(
    key: Array,
    step: Array,
    num_examples: int,
    sampling_prob: Array,
    num_groups: int,
    capacity: int,
    *,
    num_valid: Array | None = None,
) -> Batch:
    """Draw the batch of one step of cyclic Poisson sampling on the device.

    A random permutation of the rows, a function of the key, makes groups of ceil(N / num_groups) rows or one less. Each
    row of group ``step`` mod num_groups is drawn independently with probability ``sampling_prob``.

    Args:
        key: one PRNG key, the same for every step of the run.
        step: which step of the run, from 0, a number or a traced one.
        num_examples: N >= 1, static; the public maximum where the true number is private.
        sampling_prob: number or traced scalar in [0, 1], as in `poisson_sample`; expected_batch_size num_groups / N.
        num_groups: b, from 1 to num_examples, static.
        capacity: static number of slots >= 1.
        num_valid: how many of the rows are real, from 0 to num_examples, a number or a traced one; None: all of them.
            The others are dealt into the groups too.

    Returns:
        A `Batch` with ascending indices, as of `poisson_sample`.

    Raises:
        ValueError: values out of range. Traced ones give a ``count`` that never fits.

    Reference: Choquette-Choo et al., arXiv:2306.08153, algorithm 2.

    >>> import jax
    >>> draw = jax.jit(lambda key, step: cyclic_poisson_sample(key, step, 100, 1.0, num_groups=4, capacity=30))
    >>> int(draw(jax.random.key(0), 5).count)
    25
    """
    num_examples = check_count("num_examples", num_examples)
    num_groups = check_count("num_groups", num_groups, most=num_examples)
    rows = checked_rows(num_examples, num_valid)
    step, is_valid_step = checked_step(step)

    # The members of the group: one batch of an epoch that is shuffled once for all.
    num_real = jnp.asarray(num_examples if num_valid is None else num_valid)
    members = shuffled_sample(
        fold_in(key, _GROUPS), step % num_groups, num_examples, num_groups, bins="fixed", num_valid=num_valid
    )
    longest_group = -(-num_examples // num_groups)
    num_members = jnp.clip(members.count, 0, longest_group)
    sample = poisson_sample(fold_in(key, step), longest_group, sampling_prob, capacity, num_valid=num_members)

    # A step or a number of rows out of range gives a batch that never fits.
    batch = Batch(members.indices[sample.indices], sample.is_padding, sample.count, num_examples)
    return where_valid(batch, is_valid_step & rows.contains(num_real))
