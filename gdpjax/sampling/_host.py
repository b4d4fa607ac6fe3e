"""Batches on the host: step t's batch as NumPy arrays, a function of (key, t) alone.

Nothing is carried from step to step, so an iterator starts anywhere, a restarted run draws the batches that the
interrupted one would have drawn, and workers that load data in parallel need only the step. Device and host draw by
the same function, ``sample`` of the scheme.

`HostBatches` has ``__len__`` (the number of steps) and ``__getitem__`` and can be pickled: all that
grain.MapDataset.source asks for. As ``sampler=`` with ``batch_size=None`` it serves a torch.utils.data.DataLoader
whose data set is indexed by whole batches. Do not shuffle, repeat or filter it: every step is to be used once, and
the same step twice would be one batch accounted as two. Where several hosts load data, each takes its share of the rows
of every batch, never every other step.

Bits are drawn on the CPU where JAX has one, so as not to wait behind the step that the accelerator is at. Worker
processes that must not touch the accelerator need JAX_PLATFORMS=cpu in their environment.
"""

import contextlib
import functools
import operator
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Bool, Int, PRNGKeyArray

from gdpjax._core.arguments import check_count
from gdpjax._core.checks import at_once
from gdpjax._core.keys import check_key
from gdpjax._core.types import Array, PyTree
from gdpjax.sampling._batch import Batch, take_rows


class IndexBatch(NamedTuple):
    """The rows of one batch on the host.

    Attributes:
      indices: int32[capacity], 0 in slots of padding.
      is_padding: bool[capacity].
    """

    indices: Int[np.ndarray, " capacity"]
    is_padding: Bool[np.ndarray, " capacity"]


class BatchOverflowError(RuntimeError):
    """A batch has more examples than the capacity, so that it cannot be run as sampled.

    Its probability over the run is at most the scheme's ``overflow``, which is to be part of the run's delta;
    truncating or redrawing the batch would be accounted for by nothing. What was released until then stands. To train
    on, start another run with a larger capacity and a new key, and account for both.

    Attributes:
      unless_stated: what such a batch means where the scheme states that there is none.
    """

    unless_stated = (
        "Where the overflow that the batches state is 0 this cannot happen: then their overflow_per_step, or the count "
        "of their sample, is wrong, and the epsilon does not hold"
    )


class HostBatches:
    """The batches of a run on the host, by step; made by ``batches.on_host(key)``.

    Args:
      scheme: how they are drawn, such as a `gdpjax.sampling.Poisson`.
      key: one PRNG key, used for nothing else.
      num_valid: how many of the rows are real, from 0 to the scheme's num_examples; None: all of them.

    Raises:
      ValueError: values out of range.

    >>> from gdpjax.sampling import Poisson
    >>> scheme = Poisson(1000, 100, num_steps=50)
    >>> host = HostBatches(scheme, jax.random.key(0))
    >>> len(host), bool((host[3].indices == jax.jit(scheme.sample)(jax.random.key(0), 3).indices).all())
    (50, True)
    """

    def __init__(self, scheme: Any, key: PRNGKeyArray, *, num_valid: int | None = None) -> None:
        self.scheme = scheme
        self._key_data, self._impl = check_key(key)
        num_examples = scheme.num_examples
        num_valid = num_examples if num_valid is None else num_valid
        self._num_valid = check_count("num_valid", num_valid, least=0, most=num_examples)

    def __len__(self) -> int:
        return self.scheme.num_steps

    def __getitem__(self, step: Any) -> IndexBatch:
        number = operator.index(step)
        if not 0 <= number < len(self):
            raise IndexError(f"step must be from 0 to {len(self) - 1}, got {number}")
        with at_once(), _where_bits_are_drawn(self._impl):
            batch = _draw(self._key_data, number, self._num_valid, self._impl, self.scheme)
            count = int(batch.count)
            if count > self.scheme.capacity:
                raise BatchOverflowError(
                    f"step {number} drew {count} examples and the capacity is {self.scheme.capacity}; the probability "
                    f"of that over the run is at most {self.scheme.overflow:.3g}. The batch must be neither truncated "
                    "nor redrawn: start another run with a larger capacity and a new key, and account for both. "
                    + BatchOverflowError.unless_stated
                )
            return IndexBatch(np.array(batch.indices), np.array(batch.is_padding))

    def __iter__(self) -> Iterator[IndexBatch]:
        return (self[step] for step in range(len(self)))

    def __repr__(self) -> str:
        return f"HostBatches({self.scheme!r})"

    def take(self, step: int, *data: PyTree) -> tuple[Any, ...]:
        """Return the rows of the batch of a step, ``*rows, is_padding``, as `Batch.take` does.

        Arrays of NumPy are read on the host. Rows that the data do not have are marked as padding.
        """
        indices, is_padding = self[step]
        return take_rows(indices, is_padding, self.scheme.num_examples, data)


@functools.partial(jax.jit, static_argnums=(3, 4))
def _draw(key_data: Array, step: Array, num_valid: Array, impl: str, scheme: Any) -> Batch:
    key = jax.random.wrap_key_data(key_data, impl=impl)
    return scheme.sample(key, step, num_valid=num_valid)


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
