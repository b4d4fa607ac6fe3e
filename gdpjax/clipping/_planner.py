"""Plan how the gradients of a chunk of rows are computed, and how many rows a chunk has, from static shapes alone.

    engine = engine_of(call, "auto", None, constant_work=False)
    gradients, (losses, aux) = engine.gradients(rows, positions)        # of at most engine.chunk rows

Gradients are read off the loss in factors (`_tracing`). Each form decides itself whether it stays as it is or is formed
(`compact`, in `_forms`). The size of a chunk depends on that, because gradients that are formed take memory.

What a chunk keeps should stay in a cache, but every chunk reads and writes the running sums once, which should not cost
more than its rows do. The larger of the two numbers of rows is taken. Where chunks that hold only padding are skipped,
a batch is cut into several chunks as long as that costs little. The constants are measured
(benchmarks/results/clipping_cpu.md).
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import jax

from gdpjax._core import xla
from gdpjax._core.trees import wide_dtype
from gdpjax._core.types import Array
from gdpjax.clipping._forms import AbstractFactor, Full, RowGradients, Sparse
from gdpjax.clipping._loss import Call, trace_loss
from gdpjax.clipping._row_map import map_rows, one_by_one
from gdpjax.clipping._tracing import Plan, parameter_flow, row_gradients

STRATEGIES = ("auto", "vmap", "microbatch", "sequential", "ghost")
"""``ghost`` is the older name of ``auto``."""
_FORMING = ("vmap", "microbatch", "sequential")

_MICROBATCH = 64
"""Rows that the strategies ``microbatch`` and ``sequential`` take at a time, unless they are told otherwise."""

_CPU_CACHE = 8 * 2**20
"""Bytes that a chunk may keep on a CPU."""
_ACCELERATOR_MEMORY = 2 * 2**30
"""Bytes that a chunk may keep elsewhere."""
_SUM_BYTES = 20
"""Memory traffic of one compensated addition: one term read, two parts of a sum read and written."""
_SUM_SHARE = 0.4
"""The traffic of the running sums, at most, over that of the rows of a chunk."""
_FEWEST = 4
"""Rows that a chunk has at least."""
_FORMED_BYTES = 8
"""Bytes that a chunk keeps for one entry of a formed gradient: two numbers in float32."""
_INDEX_BYTES = 4
"""Bytes of one entry of the array in which equal rows of a table are found: int32."""
_CHUNKS_TO_SKIP = 8
"""Chunks into which a batch with padding is cut, if that costs little."""


@dataclasses.dataclass(frozen=True)
class Engine:
    """The way in which the gradients of some rows of a call are computed.

    Attributes:
      gradients: (rows, positions) to the gradients, and (losses, aux).
      chunk: rows to take at a time.
      skips_padding: whether chunks that hold only padding are not computed.
      forms: the form in which each gradient of a row is kept, with shapes in place of values.
      outputs: shapes and dtypes of (loss, aux) of one example.
      plan: which gradients are read off the loss, and where.
    """

    gradients: Callable[..., tuple[list[RowGradients], Any]]
    chunk: int
    skips_padding: bool
    forms: list[AbstractFactor]
    outputs: Any
    plan: Plan


def engine_of(call: Call, strategy: str, microbatch_size: int | None, constant_work: bool) -> Engine:
    """Return the engine of a call; traces and checks its loss."""
    is_sequential = strategy == "sequential"
    trace = trace_loss(call, is_sequential)
    num_leaves = len(call.trained_leaves)
    all_formed = dict.fromkeys(range(num_leaves), "strategy") if strategy in _FORMING else {}
    plan = Plan(trace.frame, parameter_flow(trace.frame, num_leaves, all_formed))
    forms = kept_forms(plan, call.trained_leaves)

    # How rows are mapped over, and how many to take at a time.
    vmap = map_rows if trace.has_convolution else jax.vmap
    vmap = one_by_one if is_sequential else vmap
    skips = call.is_padding is not None and not constant_work
    if strategy in _FORMING:
        size = call.batch_size if strategy == "vmap" else _MICROBATCH
    else:
        size = chunk_rows(plan, forms, call.trained_leaves, call.batch_size, skips)
    chunk = max(min(microbatch_size or size, call.batch_size), 1)

    def gradients(rows: Any, positions: Array) -> tuple[list[RowGradients], Any]:
        inputs = [*jax.tree.leaves(rows), positions]
        gradients, (losses, *aux) = row_gradients(plan, call.trained_leaves, inputs, vmap)
        losses = losses.astype(wide_dtype(losses))
        return gradients, (losses, jax.tree.unflatten(trace.aux_structure, aux))

    loss, *aux = [jax.ShapeDtypeStruct(x.aval.shape, x.aval.dtype) for x in trace.frame.jaxpr.outvars]
    outputs = loss.update(dtype=wide_dtype(loss)), jax.tree.unflatten(trace.aux_structure, aux)
    return Engine(gradients, chunk, skips, forms, outputs, plan)


def kept_forms(plan: Plan, params: list[Any]) -> list[AbstractFactor]:
    """Return the form in which each gradient of a row is kept, with shapes in place of values."""
    tapped = plan.abstract_gradients()
    forms: list[AbstractFactor] = []
    for leaf, param in enumerate(params):
        gradient = tapped.get(leaf)
        if gradient is None:
            forms.append(Full(jax.ShapeDtypeStruct(param.shape, param.dtype)))
        else:
            forms.append(jax.eval_shape(functools.partial(type(gradient).compact, shape=param.shape), gradient))
    return forms


# The number of rows in a chunk.


def row_bytes(plan: Plan, forms: list[AbstractFactor], params: list[Any]) -> int:
    """Return the bytes of one row: activations, tables, and gradients that are formed."""
    formed = tables = 0
    for form, param in zip(forms, params, strict=True):
        if isinstance(form, Full):
            formed += _FORMED_BYTES * math.prod(param.shape)
        if isinstance(form, Sparse) and form.rows.shape[0] > 1:
            # Equal rows have to be found, in an array as long as the table.
            tables += _INDEX_BYTES * math.prod(param.shape[:1])
    return max(plan.num_bytes() + formed + tables, 1)


def chunk_rows(plan: Plan, forms: list[AbstractFactor], params: list[Any], batch_size: int, skips_padding: bool) -> int:
    """Return how many rows to take at a time.

    Args:
      plan: how gradients are computed.
      forms: how they are kept.
      params: the trained parameters.
      batch_size: rows of the batch.
      skips_padding: whether chunks that hold only padding are skipped.
    """
    bytes_of_row = row_bytes(plan, forms, params)
    on_cpu = xla.platform() == "cpu"

    # Rows that fit into a cache.
    cache = _CPU_CACHE if on_cpu else _ACCELERATOR_MEMORY
    cached = cache / bytes_of_row

    # Rows beside which reading and writing the running sums costs little.
    bytes_of_sums = _SUM_BYTES * sum(math.prod(param.shape) for param in params)
    amortised = bytes_of_sums / (_SUM_SHARE * bytes_of_row)

    # The larger of the two, but in a batch with padding several chunks, where that costs little.
    rows = max(cached, amortised, _FEWEST)
    if skips_padding and on_cpu:
        rows = min(rows, max(2 * batch_size / _CHUNKS_TO_SKIP, amortised, 1))

    # All rows at once, or the power of two below.
    if rows >= batch_size:
        return batch_size
    return 1 << (int(rows).bit_length() - 1)
