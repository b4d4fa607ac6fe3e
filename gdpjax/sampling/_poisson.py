"""Poisson sampling with the probability that is accounted for, padded to a static capacity.

Each example is in the batch independently with probability p. A float32 uniform compared with p would include it with a
larger one (7% more at p = 1e-6), so 32 random bits are compared with an integer threshold, and `dyadic_probability`
gives the p really used: threshold / 2^32, rounded down to a float32 so that every precision stores it exactly.

Where the number of examples is private the data are padded to a public maximum, which is ``num_examples`` here, and
``num_valid`` (traced) says how many rows are real: those beyond it are never drawn, and no shape depends on it. The
bits of row i are a function of (key, i): neither ``num_valid`` nor, with JAX's default bits
(jax_threefry_partitionable), ``num_examples`` moves them, so that data sets that differ by one appended example draw
the same others. tau for the public maximum covers every smaller number, as P(Bin(n, p) >= capacity) grows with n.
"""

import dataclasses

from jaxtyping import PRNGKeyArray

from gdpjax._core.arguments import check_count
from gdpjax._core.checks import HALF_OPEN_UNIT, POSITIVE, UNIT, Domain, check_scalar, checked_scalar, is_traced
from gdpjax._core.keys import coins, fold_in
from gdpjax._core.types import Array, NeighboringRelation, Scalar, Whole
from gdpjax.ledger import Event
from gdpjax.sampling._abstract import AbstractBatches
from gdpjax.sampling._batch import Batch, padded, real_rows
from gdpjax.sampling._drawn import DrawnBatches, scheme
from gdpjax.sampling._probability import dyadic_probability, overflow_probability

_SAMPLING_PROB = Domain(
    "a probability > 0 and at most 1 (64 // 1000 is 0, 64 / 1000 is not)", lambda p: (p > 0) & (p <= 1)
)


@scheme
class Poisson(DrawnBatches):
    """Poisson batches: each example is in each batch independently, with one probability.

    Args:
      num_examples, expected_batch_size, num_steps, epochs, capacity: as in `DrawnBatches`.

    Attributes:
      sampling_prob: p, the `dyadic_probability` of expected_batch_size / num_examples. The divisor of the noisy sum
        stays expected_batch_size, which is public; p num_examples is smaller by at most 2^-22 of itself, for p >= 2^-9.
      overflow: the probability that some of num_steps batches does not fit. Of a run with more steps it is more.
      overflow_per_step: its share for one step, which is recorded with each, so that a ledger is right whatever the
        number of steps that are taken.

    Raises:
      ValueError: as `DrawnBatches`.

    >>> import jax
    >>> batches = Poisson(num_examples=1000, expected_batch_size=64, num_steps=100)
    >>> batches
    Poisson(num_examples=1000, expected_batch_size=64.0, num_steps=100, capacity=136)
    >>> batches.sampling_prob <= 0.064, batches.overflow <= 1e-12
    (True, True)
    >>> sample = jax.jit(batches.sample)(jax.random.key(0), 3)
    >>> sample.indices.shape, bool(int(sample.count) == (~sample.is_padding).sum())
    ((136,), True)
    """

    relations = Event.relations

    @property
    def sampling_prob(self) -> float:
        """Return p, what is sampled with and accounted for."""
        return dyadic_probability(self.expected_batch_size / self.num_examples)

    def _law_of_sizes(self) -> tuple[int, float]:
        return self.num_examples, self.sampling_prob

    def _included(self, key: Array, step: Array) -> Array:
        return coins(fold_in(key, step), (self.num_examples,), self.sampling_prob)

    def group_overflow(self, group_size: int) -> float:
        """Return the probability that some batch has no room for a group beside the others; upper bound."""
        rows = self.capacity - group_size + 1
        return overflow_probability(self.num_examples, self.sampling_prob, self.num_steps, rows)

    def step_event(self, neighboring_relation: NeighboringRelation | None = None) -> Event:
        """Return a step of the event, with noise multiplier 1."""
        return Event(1.0, self.sampling_prob, 1, neighboring_relation)

    def describe(self, unit: str, neighboring_relation: NeighboringRelation, *, is_correlated: bool) -> str:
        """Return the sentence of a statement."""
        return (
            f"Sampling: Poisson batches: every {unit} joins each batch independently with probability "
            f"{self.sampling_prob:.8g}; {self._planned()}"
        )


@dataclasses.dataclass(frozen=True, eq=False)
class PoissonNumbers(AbstractBatches, static=False):
    """The numbers of Poisson batches that are drawn elsewhere, or in a sweep over them; each may be traced.

        def train(sampling_prob, noise_multiplier, key):                       # jax.vmap(train)
            batches = PoissonNumbers(sampling_prob, expected_batch_size=sampling_prob * num_examples)
            tx = gdpjax.privatize(grad_fn, noise_multiplier, batches, key)

    Batches whose numbers are known before compiling are `Poisson`, which knows their capacity and its overflow.

    Args:
      sampling_prob: probability in (0, 1] that an example is in a batch; use the one really sampled with.
      expected_batch_size: public divisor > 0, usually sampling_prob * number of examples; never the realised size.
      overflow_per_step: probability in [0, 1) that a step's batch does not fit its padded size
        (`overflow_probability` with num_steps=1); recorded and added to delta. 0 states that every batch fits.

    Raises:
      ValueError: values out of range.

    >>> PoissonNumbers(0.1, expected_batch_size=10).event(1.0, 100).sampling_prob
    0.1
    """

    sampling_prob: Scalar
    expected_batch_size: Scalar
    overflow_per_step: Scalar = 0.0
    capacity = None
    num_steps = None  # type: ignore[assignment]

    def __post_init__(self) -> None:
        domains = {
            "sampling_prob": _SAMPLING_PROB,
            "expected_batch_size": POSITIVE,
            "overflow_per_step": HALF_OPEN_UNIT,
        }
        # A traced number out of range becomes NaN.
        for name, domain in domains.items():
            object.__setattr__(self, name, checked_scalar(name, getattr(self, name), domain))

    def sample(self, key: PRNGKeyArray, step: Whole, *, num_valid: Whole | None = None) -> Batch:
        """Raise ValueError: these batches have no number of examples and no capacity."""
        raise ValueError("PoissonNumbers draws no batches: call gdpjax.sampling.poisson_sample in the compiled step")

    def step_event(self, neighboring_relation: NeighboringRelation | None = None) -> Event:
        """Return a step of the event, with noise multiplier 1."""
        return Event(1.0, 1.0, 1, neighboring_relation)

    def describe(self, unit: str, neighboring_relation: NeighboringRelation, *, is_correlated: bool) -> str:
        """Return the sentence of a statement."""
        return f"Sampling: Poisson batches with probability {float(self.sampling_prob):.8g}."


def poisson_sample(
    key: PRNGKeyArray, num_examples: int, sampling_prob: Scalar, capacity: int, *, num_valid: Whole | None = None
) -> Batch:
    """Draw one Poisson batch on the device, inside or outside jit.

    Args:
      key: one PRNG key, used once.
      num_examples: N >= 1, static; the public maximum where the true number is private.
      sampling_prob: number or traced scalar in [0, 1]; use `dyadic_probability` of it in the accounting. A number is
        rounded down to that; a traced one is to be rounded so before.
      capacity: static number of slots >= 1.
      num_valid: how many of the rows are real, from 0 to num_examples, a number or a traced one; None: all of them.

    Returns:
      A `Batch` with ascending indices. If more than ``capacity`` examples were drawn its ``count`` says so, and
      all rows are padding: a part of the batch is never returned.

    Raises:
      ValueError: values out of range. Traced ones give a ``count`` that never fits.

    >>> import jax
    >>> draw = jax.jit(lambda key: poisson_sample(key, 1000, 0.1, 160))
    >>> sample = draw(jax.random.key(0))
    >>> int(sample.count) == int((~sample.is_padding).sum())
    True
    """
    num_examples = check_count("num_examples", num_examples)
    capacity = check_count("capacity", capacity)
    check_scalar("sampling_prob", sampling_prob, UNIT)
    if not is_traced(sampling_prob):
        sampling_prob = dyadic_probability(sampling_prob)

    included = coins(key, (num_examples,), sampling_prob)
    included, is_valid_count = real_rows(included, num_valid)
    return padded(included, capacity, is_valid_count & UNIT.contains(sampling_prob))
