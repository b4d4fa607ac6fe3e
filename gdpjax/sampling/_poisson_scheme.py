"""Poisson sampling of a run as one value, for the sampler, the private transform and the ledger alike.

    batches = Poisson(num_examples=60_000, expected_batch_size=256, num_steps=3516)
    tx = gdpjax.privatize(grad_fn, noise_multiplier=1.3, batches=batches, key=noise_key)
    *rows, is_padding = batches.sample(sample_key, t).take(x, y)     # in the compiled step t

A loop of one's own would otherwise write the sampling probability where it draws, where it adds noise and where it
accounts, and the capacity where it draws and where it computes the probability of an overflow; nothing could see that
two of them differ. Here each number is written once, and the others follow:

* p = `dyadic_probability` of expected_batch_size / num_examples, what is sampled with and what is recorded;
* the divisor of the noisy sum is expected_batch_size as it was given. It is public, so that any number is private;
  p num_examples is smaller by at most 2^-22 of itself, for p >= 2^-9;
* the capacity is the smallest whose overflow over num_steps steps is at most ``overflow``;
* each step is charged P(Bin(num_examples, p) >= capacity), and nothing where more rows fit than there are.

Every number is known before compiling. A sweep whose sampling probability is traced gives `gdpjax.privatize` the
numbers themselves.
"""

import dataclasses
from typing import final

from gdpjax._core.arguments import check_count, check_expected_batch_size, keyword_checked
from gdpjax._core.checks import is_traced
from gdpjax._core.keys import as_key, fold_in, refuse_key_of_a_loop
from gdpjax._core.types import Array
from gdpjax.sampling._batch import Batch
from gdpjax.sampling._batches import PoissonBatches
from gdpjax.sampling._padding import checked_step, where_valid
from gdpjax.sampling._poisson import choose_capacity, dyadic_probability, overflow_probability, poisson_sample

_ALLOWED_OVERFLOW = 1e-12


@final
@dataclasses.dataclass(frozen=True, init=False)
class Poisson:
    """Poisson batches of a run: what the sampler, `gdpjax.privatize` and the ledger have to agree on.

    It holds no key and no data, is hashable and can be pickled. Equal values draw equal batches from equal keys.

    Args:
      num_examples: N >= 1; the public maximum where the true number is private.
      expected_batch_size: public number >= 1, at most num_examples: the divisor of the noisy sum, as it is given.
      num_steps: length of the run, a whole number >= 1. The capacity is chosen for so many steps.
      capacity: slots of a batch, a whole number >= 1; by default the fewest with which some batch of the run does not
        fit with probability at most ``overflow``.
      overflow: that probability, in (0, 1); None: 1e-12. Not beside a capacity.

    Attributes:
      num_examples, expected_batch_size, num_steps, capacity: as given, or chosen.
      sampling_prob: p, the `dyadic_probability` of expected_batch_size / num_examples.
      overflow_per_step: P(Bin(num_examples, p) >= capacity), the probability that a step's batch does not fit; 0 where
        the capacity is above num_examples. It is recorded with each step, so that a ledger is right whatever the number
        of steps that are taken.
      overflow: the probability that some of num_steps batches does not fit. Of a run with more steps it is more.

    Raises:
      ValueError: values out of range, traced ones, a batch above num_examples, a capacity and an overflow, a capacity
        whose overflow may be 1.

    >>> import jax
    >>> batches = Poisson(num_examples=1000, expected_batch_size=64, num_steps=100)
    >>> batches
    Poisson(num_examples=1000, expected_batch_size=64.0, num_steps=100, capacity=132)
    >>> batches.sampling_prob <= 0.064, batches.overflow <= 1e-12
    (True, True)
    >>> jax.jit(batches.sample)(jax.random.key(0), 3).indices.shape
    (132,)
    """

    num_examples: int
    expected_batch_size: float
    num_steps: int
    capacity: int

    @keyword_checked(batch_size="expected_batch_size")
    def __init__(
        self,
        num_examples: int,
        expected_batch_size: float,
        num_steps: int,
        *,
        capacity: int | None = None,
        overflow: float | None = None,
    ) -> None:
        if is_traced([num_examples, expected_batch_size, num_steps, capacity, overflow]):
            raise ValueError(
                "gdpjax.sampling.Poisson is known before compiling, and one of its numbers is traced: in a sweep over "
                "sampling probabilities give the transform sampling_prob=, expected_batch_size= and overflow_per_step= "
                "instead, and draw with gdpjax.sampling.poisson_sample"
            )
        num_examples = check_count("num_examples", num_examples)
        expected_batch_size = check_expected_batch_size(expected_batch_size, num_examples)
        num_steps = check_count("num_steps", num_steps)
        if expected_batch_size > num_examples:
            raise ValueError(
                f"expected_batch_size must be at most num_examples={num_examples}, got {expected_batch_size}"
            )
        if capacity is not None and overflow is not None:
            raise ValueError(
                "give capacity or overflow, not both: the overflow follows from the capacity; got "
                f"capacity={capacity} and overflow={overflow}"
            )
        sampling_prob = dyadic_probability(expected_batch_size / num_examples)
        if capacity is None:
            allowed = _ALLOWED_OVERFLOW if overflow is None else overflow
            capacity = choose_capacity(num_examples, sampling_prob, num_steps, allowed)

        # The class is frozen: its fields can only be set like this.
        object.__setattr__(self, "num_examples", num_examples)
        object.__setattr__(self, "expected_batch_size", expected_batch_size)
        object.__setattr__(self, "num_steps", num_steps)
        object.__setattr__(self, "capacity", check_count("capacity", capacity))
        if self.overflow >= 1:
            raise ValueError(
                f"capacity={self.capacity} is too small for batches of {expected_batch_size} expected rows: one of "
                f"{num_steps} may be larger with probability 1, and no epsilon would hold. Leave capacity out, and it "
                "is chosen"
            )

    @property
    def sampling_prob(self) -> float:
        """Return p, what is sampled with and accounted for."""
        return dyadic_probability(self.expected_batch_size / self.num_examples)

    @property
    def overflow_per_step(self) -> float:
        """Return the probability that the batch of one step does not fit; upper bound."""
        return overflow_probability(self.num_examples, self.sampling_prob, 1, self.capacity)

    @property
    def overflow(self) -> float:
        """Return the probability that a batch of ``num_steps`` steps does not fit; upper bound."""
        return overflow_probability(self.num_examples, self.sampling_prob, self.num_steps, self.capacity)

    def sample(self, key: Array, step: Array, *, num_valid: Array | None = None) -> Batch:
        """Draw the batch of one step on the device, inside or outside jit.

        It is ``poisson_sample(jax.random.fold_in(key, step), num_examples, sampling_prob, capacity)``, and
        ``host_batches(key)[step]`` has the same rows.

        Args:
          key: one PRNG key, the same for every step of the run, used for nothing else. Two runs never share it: they
            would see the same batches, and be ONE joint event (`gdpjax.Event.joint`), not two that add up. Make it and
            the noise key from one key of the run: ``sample_key, noise_key = jax.random.split(run_key)``.
          step: which step of the run, from 0, a number or a traced one. Steps from num_steps on are drawn, too. One in
            float32 must be below 2^24, where that type begins to round whole numbers.
          num_valid: how many of the rows are real, from 0 to num_examples, a number or a traced one; None: all.

        Returns:
          A `Batch` with ascending indices. Where more than ``capacity`` examples were drawn its ``count`` says
          so, and all rows are padding.

        Raises:
          ValueError: values out of range; a key and a step that are both constants of a compiled loop, whose iterations
            would share one batch. Traced values out of range give a ``count`` that never fits.

        >>> import jax
        >>> sample = jax.jit(Poisson(1000, 64, 100).sample)(jax.random.key(0), 3)
        >>> int(sample.count) == int((~sample.is_padding).sum())
        True
        """
        refuse_key_of_a_loop(as_key(key), step)
        step, is_valid_step = checked_step(step)
        step_key = fold_in(key, step)
        batch = poisson_sample(step_key, self.num_examples, self.sampling_prob, self.capacity, num_valid=num_valid)
        return where_valid(batch, is_valid_step)

    def host_batches(self, key: Array, *, num_valid: int | None = None) -> PoissonBatches:
        """Return the batches of the run on the host, by step, for a data loader.

        Args:
          key: one PRNG key, used for nothing else; that of `sample`, which two runs never share.
          num_valid: how many of the rows are real, from 0 to num_examples; None: all of them.

        Returns:
          `PoissonBatches` with the rows that ``sample(key, step)`` draws. A batch above the capacity raises
          `BatchOverflowError`.

        Raises:
          ValueError: values out of range.

        >>> import jax
        >>> batches = Poisson(1000, 64, 100)
        >>> indices, is_padding = batches.host_batches(jax.random.key(0))[3]
        >>> bool((indices == jax.jit(batches.sample)(jax.random.key(0), 3).indices).all())
        True
        """
        return PoissonBatches(
            key,
            self.num_examples,
            self.sampling_prob,
            num_steps=self.num_steps,
            capacity=self.capacity,
            num_valid=num_valid,
        )
