"""Batches on the host: step t's batch as NumPy arrays, a function of (key, t) alone.

Nothing is carried from step to step, so an iterator starts anywhere, a restarted run draws the batches that the
interrupted one would have drawn, and workers that load data in parallel need only the step. The batch of step t is the
one of the device functions with the key ``jax.random.fold_in(key, t)``.

The classes of batches have ``__len__`` (the number of steps) and ``__getitem__`` and can be pickled: all that
grain.MapDataset.source asks for. As ``sampler=`` with ``batch_size=None`` they serve a torch.utils.data.DataLoader
whose data set is indexed by whole batches. Do not shuffle, repeat or filter them: every step is to be used once, and
the same step twice would be one batch accounted as two. Where several hosts load data, each takes its share of the rows
of every batch, never every other step.

Bits are drawn on the CPU where JAX has one, so as not to wait behind the step that the accelerator is at. Worker
processes that must not touch the accelerator need JAX_PLATFORMS=cpu in their environment.
"""

import abc
import contextlib
import dataclasses
import functools
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from gdpjax._core.arguments import check_choice, check_count, check_number
from gdpjax._core.checks import OPEN_UNIT, at_once, is_traced
from gdpjax._core.keys import check_key, fold_in
from gdpjax._core.shown import shown
from gdpjax._core.types import Array, PyTree
from gdpjax.sampling._allocation import allocation_overflow, allocation_sample
from gdpjax.sampling._batch import Batch, take_rows
from gdpjax.sampling._cyclic import cyclic_poisson_sample
from gdpjax.sampling._poisson import (
    choose_capacity,
    dyadic_probability,
    overflow_probability,
    poisson_sample,
)
from gdpjax.sampling._shuffled import shuffled_error, shuffled_sample
from gdpjax.sampling._truncated import truncated_poisson_sample
from gdpjax.sampling._uniform import uniform_sample, uniform_sampling_error


class IndexBatch(NamedTuple):
    """The rows of one batch on the host.

    Attributes:
      indices: int32[size], 0 in slots of padding.
      is_padding: bool[size].
    """

    indices: np.ndarray
    is_padding: np.ndarray


class BatchOverflowError(RuntimeError):
    """A Poisson batch has more examples than the capacity, so that it cannot be run as sampled.

    Its probability over the run is at most `overflow_probability`, which is to be part of the run's delta; truncating
    or redrawing the batch would be accounted for by nothing. What was released until then stands. To train on, start
    another run with a larger capacity and a new key, and account for both.
    """


def poisson_batches(
    key: Array,
    num_examples: int,
    sampling_prob: float,
    *,
    num_steps: int,
    capacity: int | None = None,
    overflow: float = 1e-12,
    sizes: Sequence[int] | None = None,
    num_valid: int | None = None,
    start: int = 0,
) -> Iterator[IndexBatch]:
    """Iterate over Poisson batches on the host, from step ``start`` to the last.

    Args:
      key, num_examples, sampling_prob, num_steps, capacity, overflow, sizes, num_valid: as in `PoissonBatches`.
      start: first step, from 0 to num_steps; the batch of a step is the same wherever the iteration starts.

    Returns:
      An iterator over NumPy pairs (indices, is_padding).

    Raises:
      ValueError: values out of range, at once.
      BatchOverflowError: a batch is larger than the capacity, when its turn comes.

    >>> batches = poisson_batches(jax.random.key(0), 1000, 0.1, num_steps=3)
    >>> [indices.shape == is_padding.shape for indices, is_padding in batches]
    [True, True, True]
    """
    batches = PoissonBatches(
        key,
        num_examples,
        sampling_prob,
        num_steps=num_steps,
        capacity=capacity,
        overflow=overflow,
        sizes=sizes,
        num_valid=num_valid,
    )
    start = check_count("start", start, least=0)
    if start > num_steps:
        raise ValueError(f"start must be at most num_steps={num_steps}, got {start}")
    return (batches[step] for step in range(start, len(batches)))


class _Batches(abc.ABC):
    """Random access to the batches of a run by step."""

    _on_device: str
    """The function that draws the same batches in compiled code."""

    _shown: tuple[str, ...]
    """The attributes that ``repr`` shows."""

    capacity: int
    overflow: float
    _numbers: tuple[Any, ...]
    """The numbers of the scheme, as `_sample` takes them."""

    def __init__(
        self, key: Array, num_examples: int, sampling_prob: float, num_steps: int, num_valid: int | None
    ) -> None:
        self.num_examples = check_count("num_examples", num_examples)
        self.num_steps = check_count("num_steps", num_steps)
        self.sampling_prob = sampling_prob
        self._key_data, self._impl = check_key(key)
        if num_valid is None:
            num_valid = self.num_examples
        self._num_valid = check_count("num_valid", num_valid, least=0, most=self.num_examples)

    @staticmethod
    @abc.abstractmethod
    def _sample(key: Array, step: Array, num_valid: Array, *numbers: Any) -> Batch:
        """Draw the batch of a step that is in range."""

    def __len__(self) -> int:
        return self.num_steps

    def __getitem__(self, step: Any) -> IndexBatch:
        if is_traced(step):
            raise ValueError(
                f"{type(self).__name__} draws batches on the host, where the step is a number, got {shown(step)}: in "
                f"compiled code call gdpjax.sampling.{self._on_device}"
            )
        try:
            if isinstance(step, bool | np.bool_):
                raise TypeError("a truth value is no step")
            number = operator.index(step)
        except TypeError as error:
            raise ValueError(f"step must be a whole number, got {shown(step)}") from error
        if not 0 <= number < self.num_steps:
            raise IndexError(f"step must be from 0 to {self.num_steps - 1}, got {shown(step)}")
        with at_once(), _where_bits_are_drawn(self._impl):
            batch = _draw(self._key_data, number, self._num_valid, self._impl, self._sample, self._numbers)
            count = int(batch.count)
            if count > self.capacity:
                raise BatchOverflowError(
                    f"step {number} drew {count} examples and the capacity is {self.capacity}; the probability of that "
                    f"over the run is at most {self.overflow:.3g}. The batch must be neither truncated nor redrawn: "
                    "start another run with a larger capacity and a new key, and account for both"
                )
            return IndexBatch(np.array(batch.indices), np.array(batch.is_padding))

    def __iter__(self) -> Iterator[IndexBatch]:
        return (self[step] for step in range(self.num_steps))

    def __repr__(self) -> str:
        described = [f"{name}={getattr(self, name)!r}" for name in self._shown]
        return f"{type(self).__name__}({', '.join(described)})"

    def take(self, step: int, *data: PyTree) -> tuple[Any, ...]:
        """Return the rows of the batch of a step, ``*rows, is_padding``, as `Batch.take` does.

        Arrays of NumPy are read on the host. Rows that the data do not have are marked as padding.
        """
        indices, is_padding = self[step]
        return take_rows(indices, is_padding, self.num_examples, data)


@functools.partial(jax.jit, static_argnums=(3, 4, 5))
def _draw(
    key_data: Array, step: Array, num_valid: Array, impl: str, sample: Callable[..., Batch], numbers: tuple[Any, ...]
) -> Batch:
    key = jax.random.wrap_key_data(key_data, impl=impl)
    return sample(key, step, num_valid, *numbers)


class PoissonBatches(_Batches):
    """The Poisson batches of a run, by step, padded to a static size.

    ``batches[t]`` has the rows of ``poisson_sample(fold_in(key, t), num_examples, sampling_prob, capacity)``.

    Args:
      key: one PRNG key, used for nothing else.
      num_examples: N >= 1; the public maximum where the true number is private.
      sampling_prob: number in [0, 1]; its `dyadic_probability` is used, and is the attribute ``sampling_prob``.
      num_steps: length of the run, a whole number >= 1.
      capacity: slots of a batch; by default the fewest with which the run overflows with probability at most overflow.
      overflow: that probability, in (0, 1); the attribute ``overflow`` is the one of the capacity, for the `Event`.
      sizes: a few ascending sizes, the last of them the capacity: a batch is padded to the smallest that it fits in.
        None, one size, is the safe choice. A compiler may compute the same row's gradient differently in programs of
        different sizes, so that a neighbour of another size is off by more than the sensitivity; and the size itself
        is private, and shows in the time of a step. With several give ``max_batch_size=capacity`` to `clipped_grad`.
      num_valid: how many of the rows are real, from 0 to num_examples; None: all of them.

    Raises:
      ValueError: values out of range; sizes that do not ascend, or do not end with the capacity.

    >>> batches = PoissonBatches(jax.random.key(0), 1000, 0.1, num_steps=50)
    >>> len(batches), batches[49].indices.shape == (batches.capacity,), batches.overflow <= 1e-12
    (50, True, True)
    """

    _on_device = "poisson_sample with jax.random.fold_in(key, step)"
    _shown = ("num_examples", "sampling_prob", "num_steps", "sizes")

    def __init__(
        self,
        key: Array,
        num_examples: int,
        sampling_prob: float,
        *,
        num_steps: int,
        capacity: int | None = None,
        overflow: float = 1e-12,
        sizes: Sequence[int] | None = None,
        num_valid: int | None = None,
    ) -> None:
        super().__init__(key, num_examples, dyadic_probability(sampling_prob), num_steps, num_valid)
        if sizes is not None:
            sizes = _ascending(sizes, capacity)
            capacity = sizes[-1]
        elif capacity is None:
            capacity = choose_capacity(self.num_examples, self.sampling_prob, self.num_steps, overflow)
        self.capacity = check_count("capacity", capacity)
        check_number("overflow", overflow, OPEN_UNIT)
        self.sizes = sizes or (self.capacity,)
        self.overflow = overflow_probability(self.num_examples, self.sampling_prob, self.num_steps, self.capacity)
        self._numbers = (self.num_examples, self.sampling_prob, self.capacity)

    @staticmethod
    def _sample(key: Array, step: Array, num_valid: Array, *numbers: Any) -> Batch:
        return poisson_sample(fold_in(key, step), *numbers, num_valid=num_valid)

    def __getitem__(self, step: Any) -> IndexBatch:
        indices, is_padding = super().__getitem__(step)
        count = np.sum(~is_padding)
        smallest_size = next(size for size in self.sizes if count <= size)
        return IndexBatch(indices[:smallest_size], is_padding[:smallest_size])


class CyclicPoissonBatches(_Batches):
    """The batches of a run of cyclic Poisson sampling, by step, padded to ``capacity`` rows.

    ``batches[t]`` has the rows of ``cyclic_poisson_sample(key, t, num_examples, sampling_prob, num_groups, capacity)``.

    Args:
      key: one PRNG key, used for nothing else.
      num_examples: N >= 1; the public maximum where the true number is private.
      sampling_prob: number in [0, 1]; its `dyadic_probability` is used, and is the attribute ``sampling_prob``.
      num_groups: from 1 to num_examples.
      num_steps: length of the run, a whole number >= 1.
      capacity: slots of a batch, a whole number >= 1.
      num_valid: how many of the rows are real, from 0 to num_examples; None: all of them.

    Attributes:
      overflow: for the `gdpjax.ledger.CyclicPoissonEvent`, the probability that a batch does not fit.

    Raises:
      ValueError: values out of range.

    >>> batches = CyclicPoissonBatches(jax.random.key(0), 100, 1.0, 4, num_steps=8, capacity=30)
    >>> bool((batches[6].indices == batches[2].indices).all())
    True
    """

    _on_device = "cyclic_poisson_sample with the key and the step"
    _shown = ("num_examples", "sampling_prob", "num_groups", "num_steps", "capacity")

    def __init__(
        self,
        key: Array,
        num_examples: int,
        sampling_prob: float,
        num_groups: int,
        *,
        num_steps: int,
        capacity: int,
        num_valid: int | None = None,
    ) -> None:
        super().__init__(key, num_examples, dyadic_probability(sampling_prob), num_steps, num_valid)
        self.num_groups = check_count("num_groups", num_groups, most=self.num_examples)
        self.capacity = check_count("capacity", capacity)
        self._numbers = (self.num_examples, self.sampling_prob, self.num_groups, self.capacity)

        # A batch does not fit, or the permutation that makes the groups is not uniform.
        longest_group = -(-self.num_examples // self.num_groups)
        batch_too_large = overflow_probability(longest_group, self.sampling_prob, self.num_steps, self.capacity)
        self.overflow = min(1.0, batch_too_large + shuffled_error(self.num_examples, 1))

    @staticmethod
    def _sample(key: Array, step: Array, num_valid: Array, *numbers: Any) -> Batch:
        return cyclic_poisson_sample(key, step, *numbers, num_valid=num_valid)


class AllocationBatches(_Batches):
    """The batches of a run of random allocation, by step, padded to ``capacity`` rows.

    ``batches[t]`` has the rows of ``allocation_sample(key, t, num_examples, steps_per_epoch, capacity, ...)``.

    Args:
      key: one PRNG key, used for nothing else.
      num_examples: N >= 1; the public maximum where the true number is private.
      steps_per_epoch: t, a whole number >= 1.
      num_epochs: length of the run in epochs, a whole number >= 1.
      capacity: slots of a batch, a whole number >= 1.
      num_selected: in how many steps of an epoch an example takes part, from 1 to steps_per_epoch.
      bins: "fresh" or "fixed".
      num_valid: how many of the rows are real, from 0 to num_examples; None: all of them.

    Attributes:
      overflow: for the `gdpjax.ledger.AllocationEvent`, `allocation_overflow` of the run.

    Raises:
      ValueError: values out of range.

    >>> batches = AllocationBatches(jax.random.key(0), 1000, 10, num_epochs=3, capacity=200)
    >>> len(batches), batches[29].indices.shape, batches.overflow < 1e-9
    (30, (200,), True)
    """

    _on_device = "allocation_sample with the key and the step"
    _shown = ("num_examples", "steps_per_epoch", "num_steps", "num_selected", "bins", "capacity")

    def __init__(
        self,
        key: Array,
        num_examples: int,
        steps_per_epoch: int,
        *,
        num_epochs: int,
        capacity: int,
        num_selected: int = 1,
        bins: str = "fresh",
        num_valid: int | None = None,
    ) -> None:
        self.steps_per_epoch = check_count("steps_per_epoch", steps_per_epoch)
        num_steps = self.steps_per_epoch * check_count("num_epochs", num_epochs)
        self.capacity = check_count("capacity", capacity)
        self.num_selected = check_count("num_selected", num_selected)
        self.overflow = allocation_overflow(
            num_examples, self.steps_per_epoch, num_steps, self.capacity, self.num_selected
        )
        super().__init__(key, num_examples, self.num_selected / self.steps_per_epoch, num_steps, num_valid)
        self.bins = check_choice("bins", bins, ("fresh", "fixed"))
        self._numbers = (self.num_examples, self.steps_per_epoch, self.capacity, self.num_selected, self.bins)

    @staticmethod
    def _sample(key: Array, step: Array, num_valid: Array, *numbers: Any) -> Batch:
        *sizes, num_selected, bins = numbers
        return allocation_sample(key, step, *sizes, num_selected=num_selected, bins=bins, num_valid=num_valid)


class ShuffledBatches(_Batches):
    """The batches of shuffled epochs, by step: each row in exactly one step of an epoch, in a new order in each.

    ``batches[t]`` has the rows of ``shuffled_sample(key, t, num_examples, steps_per_epoch)``.

    Args:
      key: one PRNG key, used for nothing else.
      num_examples: N >= 1; the public maximum where the true number is private.
      steps_per_epoch: number t of batches in an epoch, from 1 to num_examples.
      num_epochs: length of the run in epochs, a whole number >= 1.
      bins: "fresh" or "fixed", as in `shuffled_sample`.
      num_valid: how many of the rows are real, from 0 to num_examples; None: all of them.

    Attributes:
      capacity: slots of a batch, ceil(N / t); batches have ceil(N / t) or floor(N / t) rows.
      overflow: for the `gdpjax.ledger.ShuffledEvent`, `shuffled_error` of the run.

    Raises:
      ValueError: values out of range.

    >>> batches = ShuffledBatches(jax.random.key(0), 10, 3, num_epochs=2)
    >>> len(batches), sorted(int(row) for t in range(3) for row in batches[t].indices[~batches[t].is_padding])
    (6, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9])
    """

    _on_device = "shuffled_sample with the key and the step"
    _shown = ("num_examples", "steps_per_epoch", "num_steps")

    def __init__(
        self,
        key: Array,
        num_examples: int,
        steps_per_epoch: int,
        *,
        num_epochs: int,
        bins: str = "fresh",
        num_valid: int | None = None,
    ) -> None:
        num_examples = check_count("num_examples", num_examples)
        self.steps_per_epoch = check_count("steps_per_epoch", steps_per_epoch, most=num_examples)
        self.bins = check_choice("bins", bins, ("fresh", "fixed"))
        num_epochs = check_count("num_epochs", num_epochs)
        super().__init__(key, num_examples, 1 / self.steps_per_epoch, self.steps_per_epoch * num_epochs, num_valid)
        self.capacity = -(-num_examples // self.steps_per_epoch)
        self.overflow = shuffled_error(num_examples, num_epochs)
        self._numbers = (self.num_examples, self.steps_per_epoch, self.bins)

    @staticmethod
    def _sample(key: Array, step: Array, num_valid: Array, num_examples: int, steps_per_epoch: int, bins: str) -> Batch:
        return shuffled_sample(key, step, num_examples, steps_per_epoch, bins=bins, num_valid=num_valid)


class TruncatedPoissonBatches(_Batches):
    """The truncated Poisson batches of a run, by step, padded to ``capacity`` rows.

    ``batches[t]`` has the rows of ``truncated_poisson_sample(fold_in(key, t), num_examples, sampling_prob, capacity)``.

    Args:
      key: one PRNG key, used for nothing else.
      num_examples: N >= 1; the public maximum where the true number is private.
      sampling_prob: number in [0, 1]; its `dyadic_probability` is used, and is the attribute ``sampling_prob``.
      num_steps: length of the run, a whole number >= 1.
      capacity: the most rows that a batch keeps, a whole number >= 1.
      num_valid: how many of the rows are real, from 0 to num_examples; None: all of them.

    Raises:
      ValueError: values out of range.

    >>> batches = TruncatedPoissonBatches(jax.random.key(0), 1000, 0.1, num_steps=50, capacity=80)
    >>> batches[3].indices.shape, batches[3].is_padding.any()
    ((80,), np.False_)
    """

    _on_device = "truncated_poisson_sample with jax.random.fold_in(key, step)"
    _shown = ("num_examples", "sampling_prob", "num_steps", "capacity")

    def __init__(
        self,
        key: Array,
        num_examples: int,
        sampling_prob: float,
        *,
        num_steps: int,
        capacity: int,
        num_valid: int | None = None,
    ) -> None:
        super().__init__(key, num_examples, dyadic_probability(sampling_prob), num_steps, num_valid)
        self.capacity = check_count("capacity", capacity)
        self._numbers = (self.num_examples, self.sampling_prob, self.capacity)

    @staticmethod
    def _sample(key: Array, step: Array, num_valid: Array, *numbers: Any) -> Batch:
        batch = truncated_poisson_sample(fold_in(key, step), *numbers, num_valid=num_valid)
        # More may be drawn than are kept.
        return dataclasses.replace(batch, count=jnp.minimum(batch.count, batch.indices.size))


class UniformBatches(_Batches):
    """The fixed-size batches of a run, by step: ``uniform_sample(fold_in(key, t), num_examples, batch_size)``.

    Args:
      key: one PRNG key, used for nothing else.
      num_examples: N >= 1, public.
      batch_size: from 1 to num_examples.
      num_steps: length of the run, a whole number >= 1.

    Attributes:
      sampling_prob, overflow: for ``Event(..., sampling="uniform")``: batch_size / num_examples and
        `uniform_sampling_error`.

    Raises:
      ValueError: values out of range.

    >>> batches = UniformBatches(jax.random.key(0), 1000, 8, num_steps=50)
    >>> batches[3].indices.shape, batches[3].is_padding.any(), batches.sampling_prob
    ((8,), np.False_, 0.008)
    """

    _on_device = "uniform_sample with jax.random.fold_in(key, step)"
    _shown = ("num_examples", "batch_size", "num_steps")

    def __init__(self, key: Array, num_examples: int, batch_size: int, *, num_steps: int) -> None:
        num_examples = check_count("num_examples", num_examples)
        self.batch_size = check_count("batch_size", batch_size, most=num_examples)
        super().__init__(key, num_examples, self.batch_size / num_examples, num_steps, None)
        self.overflow = uniform_sampling_error(self.num_examples, self.num_steps)
        self.capacity = self.batch_size
        self._numbers = (self.num_examples, self.batch_size)

    @staticmethod
    def _sample(key: Array, step: Array, num_valid: Array, num_examples: int, batch_size: int) -> Batch:
        indices = uniform_sample(fold_in(key, step), num_examples, batch_size)
        return Batch(indices, jnp.zeros(batch_size, bool), jnp.int32(batch_size), num_examples)


def _ascending(sizes: Sequence[int], capacity: int | None) -> tuple[int, ...]:
    """Return the sizes; ValueError unless they ascend and end with the capacity, if that is given."""
    if not isinstance(sizes, Sequence):
        raise ValueError(f"sizes must be a few whole numbers, got {shown(sizes)}")
    checked = tuple(check_count("sizes", size) for size in sizes)
    if not checked or list(checked) != sorted(set(checked)):
        raise ValueError(f"sizes must be ascending whole numbers, got {shown(sizes)}")
    if capacity is not None and capacity != checked[-1]:
        raise ValueError(f"the last of sizes is the capacity; got sizes={sizes!r} and capacity={capacity!r}")
    return checked


def _where_bits_are_drawn(impl: str) -> contextlib.AbstractContextManager[Any]:
    """Return a context in which the bits of this kind of key are drawn: on the CPU, where JAX has one.

    Only threefry draws the same bits on every device. The bits of other kinds are to be those of the device.
    """
    if impl != "threefry2x32":
        return contextlib.nullcontext()
    try:
        cpus = jax.local_devices(backend="cpu")
    except RuntimeError:  # JAX_PLATFORMS names no CPU
        return contextlib.nullcontext()
    return jax.default_device(cpus[0])
