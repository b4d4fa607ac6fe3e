"""The table that `explain` returns: how each parameter's gradients are held, why, and what that costs.

    print(explain(loss_fn, params, batch))

The loss is traced and planned exactly as `clipped_grad` does it, with shapes in place of values. So is the clipped sum,
whose products and convolutions are counted, beside those of the gradient without privacy: they are nearly all of the
operations. XLA's own count takes the body of a loop once, however often it goes around. Here a loop is counted as often
as it is run, and of a branch the longer side. Results that nobody reads are not counted, as no compiler computes them.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, Literal, jaxprs_in_params
from jaxtyping import Bool

from gdpjax._core.arguments import check_instance
from gdpjax._core.figures import text_table
from gdpjax._core.trees import leaf_name, wide_dtype
from gdpjax._core.types import Array, PyTree
from gdpjax.clipping._clipped_grad import ClippedGrad, clipped_grad
from gdpjax.clipping._forms import Outer
from gdpjax.clipping._loss import Call, flatten_call, prepare
from gdpjax.clipping._planner import engine_of
from gdpjax.clipping._rounding_budget import rounding_budget
from gdpjax.clipping._tracing import Frame, evaluate, scan_of

_LARGE_GRADIENT = 2**20
"""Bytes for one example from which a formed gradient is named below the table."""


def explain(
    loss_fn: Callable[..., Any],
    params: PyTree,
    batch: Any,
    *args: Any,
    batch_argnums: int | tuple[int, ...] = 1,
    key_argnums: int | tuple[int, ...] = (),
    keep_batch_dim: bool = False,
    has_aux: bool = False,
    trainable: PyTree | None = None,
    strategy: str = "auto",
    microbatch_size: int | None = None,
    shared_argnums: int | tuple[int, ...] = (),
    shared_argnames: str | tuple[str, ...] = (),
    is_padding: Bool[Array, " batch"] | None = None,
    constant_work: bool = False,
    **loss_kwargs: Any,
) -> "Explanation":
    """Return how `clipped_grad` would treat each parameter of a loss, and compute nothing.

    Args:
      loss_fn, batch_argnums, key_argnums, keep_batch_dim, has_aux, trainable, strategy, microbatch_size,
        shared_argnums, shared_argnames, constant_work: as in `clipped_grad`, with the parameters at argument 0.
      params: the parameters; those that are trained may be `jax.ShapeDtypeStruct`.
      batch: argument 1: with a leading batch axis where 1 is in batch_argnums; with several batch_argnums that start at
        1, a tuple of those arguments.
      args: the remaining arguments of ``loss_fn``, in order.
      is_padding: as the function that `clipped_grad` returns takes it. Batches with padding go in smaller chunks, so
        that chunks of padding alone can be skipped.

    Returns:
      An `Explanation`: for each parameter whether its gradients are kept as outer products or table rows, or formed,
      why, what that takes for one example and what it would take formed; how many rows are taken at a time, what the
      gradients of so many take, and the operations of the batch. Printing it names large formed gradients.

    Raises:
      ValueError: as `clipped_grad`.

    >>> import jax.numpy as jnp
    >>> loss = lambda p, x: jnp.sum(jnp.tanh(x @ p["w"] + p["b"]))
    >>> print(explain(loss, {"b": jnp.zeros(100), "w": jnp.zeros((200, 100))}, jnp.zeros((32, 200))))
    parameter       shape  per example  if formed       gradient  because
    ['b']           [100]        400 B      400 B         formed  add
    ['w']      [200, 100]        1 KiB     78 KiB  outer product  dot_general
    all                          2 KiB     79 KiB
    32 of 32 rows at a time, whose gradients take 50 KiB
    80 thousand operations in products for each example, 1.00 times those of its ordinary gradient
    """
    clip = clipped_grad(
        loss_fn,
        1.0,
        batch_argnums=batch_argnums,
        key_argnums=key_argnums,
        keep_batch_dim=keep_batch_dim,
        has_aux=has_aux,
        trainable=trainable,
        strategy=strategy,
        microbatch_size=microbatch_size,
        return_info=True,
        shared_argnums=shared_argnums,
        shared_argnames=shared_argnames,
        constant_work=constant_work,
    )
    batches = batch if len(clip.spec.batch_argnums) > 1 and isinstance(batch, tuple) else (batch,)
    call = prepare(clip.spec, (params, *batches, *args), loss_kwargs, is_padding)

    # Plan the call as `clipped_grad` does, and describe the plan.
    engine = engine_of(call, clip.strategy, clip.microbatch_size, clip.constant_work)
    plan = engine.plan

    tapped = plan.abstract_gradients()
    forms = iter(enumerate(engine.forms))
    leaves = []
    paths_and_leaves = jax.tree_util.tree_flatten_with_path(call.params)[0]
    for (path, param), is_trained in zip(paths_and_leaves, call.is_trained, strict=True):
        name, shape = leaf_name(path), tuple(param.shape)
        if not is_trained:
            leaves.append(LeafPlan(name, shape, "not trained", "frozen, empty or not floating", 0, 0))
            continue
        number, form = next(forms)
        reason = plan.reason(number)
        factor = tapped.get(number)
        if isinstance(factor, Outer) and factor.num_products > 1:
            reason = f"{reason}, a sum of {factor.num_products} outer products"
        num_bytes = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(form))
        formed_bytes = math.prod(shape) * wide_dtype(param).itemsize
        leaves.append(LeafPlan(name, shape, form.method, reason, num_bytes, formed_bytes))
    return Explanation(
        tuple(leaves),
        clip.strategy,
        engine.chunk,
        call.batch_size,
        _clipped_flops(clip, call),
        _ordinary_flops(call, plan.frame),
    )


@dataclasses.dataclass(frozen=True)
class LeafPlan:
    """How the gradient of one parameter is held for each example.

    Attributes:
      name: the parameter's path.
      shape: its shape.
      method: "outer product", "table rows", "formed", or "not trained".
      why: where its factors were read off, or why JAX differentiates it.
      num_bytes: memory for one example.
      formed_bytes: memory for one example, were the gradient formed.
    """

    name: str
    shape: tuple[int, ...]
    method: str
    why: str
    num_bytes: int
    formed_bytes: int


@dataclasses.dataclass(frozen=True)
class Explanation:
    """The answer of `explain`; ``print`` it for a table.

    Attributes:
      leaves: one `LeafPlan` for each parameter.
      strategy: the strategy that was explained.
      chunk: rows taken at a time.
      batch_size: rows of the batch.
      flops: operations of the matrix products and convolutions of the batch's clipped sum, an addition and a
        multiplication as two; None where a loop does not tell how often it goes around.
      ordinary_flops: those of the batch's gradient without privacy.
    """

    leaves: tuple[LeafPlan, ...]
    strategy: str
    chunk: int
    batch_size: int
    flops: float | None
    ordinary_flops: float | None

    def __str__(self) -> str:
        num_bytes = sum(leaf.num_bytes for leaf in self.leaves)
        formed_bytes = sum(leaf.formed_bytes for leaf in self.leaves)
        table = [("parameter", "shape", "per example", "if formed", "gradient", "because")]
        for leaf in self.leaves:
            sizes = _in_bytes(leaf.num_bytes), _in_bytes(leaf.formed_bytes)
            table.append((leaf.name, str(list(leaf.shape)), *sizes, leaf.method, leaf.why))
        table.append(("all", "", _in_bytes(num_bytes), _in_bytes(formed_bytes), "", ""))

        lines = [text_table(table, width=120)]
        chunk_bytes = _in_bytes(self.chunk * num_bytes)
        lines.append(f"{self.chunk} of {self.batch_size} rows at a time, whose gradients take {chunk_bytes}")
        if self.flops and self.ordinary_flops:
            each, ratio = _in_words(self.flops / self.batch_size), self.flops / self.ordinary_flops
            lines.append(
                f"{each} operations in products for each example, {ratio:.2f} times those of its ordinary gradient"
            )
        large = [leaf.name for leaf in self.leaves if leaf.method == "formed" and leaf.num_bytes >= _LARGE_GRADIENT]
        if large:
            lines.append(f"large gradients formed for each example: {', '.join(large)}")
        return "\n".join(lines)


def _in_bytes(num_bytes: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if num_bytes < 1024:
            return f"{num_bytes:.0f} {unit}"
        num_bytes = num_bytes / 1024
    return f"{num_bytes:.1f} GiB"


def _in_words(count: float) -> str:
    for unit in ("", " thousand", " million"):
        if count < 1000:
            return f"{count:.3g}{unit}"
        count = count / 1000
    return f"{count:,.0f} billion"


def _clipped_flops(clip: ClippedGrad, call: Call) -> float | None:
    """Return the operations in products of the clipped sum of a call."""
    budget = rounding_budget(call.trained_leaves, max(call.batch_size, 1))
    flat = flatten_call(call, jnp.arange(call.batch_size, dtype=jnp.int32))

    def sums(arrays: list[Array]) -> list[Array]:
        traced, positions = flat.rebuild(arrays)
        return clip.sum_rows(traced, budget, positions)[0]

    shapes = [jax.ShapeDtypeStruct(x.shape, jnp.result_type(x)) for x in flat.arrays]
    return product_flops(jax.make_jaxpr(sums)(shapes))


def _ordinary_flops(call: Call, frame: Frame) -> float | None:
    """Return the operations in products of the gradient of the same rows without privacy."""
    num_trained = len(call.trained_leaves)
    shapes = [jax.ShapeDtypeStruct(variable.aval.shape, variable.aval.dtype) for variable in frame.jaxpr.invars]

    def gradient(trained: list[Array], others: list[Array]) -> list[Array]:
        return jax.grad(lambda leaves: evaluate(frame.jaxpr, frame.consts, [*leaves, *others])[0])(trained)

    flops = product_flops(jax.make_jaxpr(gradient)(shapes[:num_trained], shapes[num_trained:]))
    return None if flops is None else call.batch_size * flops


# The operations of a program.


def product_flops(jaxpr: Any) -> float | None:
    """Return the operations of the products and convolutions of a program, an addition and a multiplication as two.

    Args:
      jaxpr: what `jax.make_jaxpr` returns for the program.

    Returns:
      The operations, or None: there are products in a loop of which nobody knows beforehand how often it goes around.

    >>> import jax
    >>> import jax.numpy as jnp
    >>> program = jax.make_jaxpr(lambda a, b: jax.lax.fori_loop(0, 5, lambda _, x: x @ b, a))
    >>> product_flops(program(jnp.zeros((2, 3)), jnp.zeros((3, 3))))  # 5 rounds of 2 x 2 x 3 x 3
    180.0
    """
    closed = check_instance("jaxpr", jaxpr, ClosedJaxpr, "made by jax.make_jaxpr(function)(*arguments)")
    return _flops_of_results(closed.jaxpr, None)


def _flops_of_results(jaxpr: Any, is_read: Sequence[bool] | None) -> float | None:
    """Return the operations behind the results that somebody reads; all of them without ``is_read``."""
    read = set()
    for number, result in enumerate(jaxpr.outvars):
        if not isinstance(result, Literal) and (is_read is None or is_read[number]):
            read.add(result)

    # Backwards, from the results to what they are made of.
    total = 0.0
    for equation in reversed(jaxpr.eqns):
        marks = [result in read for result in equation.outvars]
        if not any(marks):
            continue
        flops = _flops_of(equation, marks)
        if flops is None:
            return None
        total += flops
        read.update(value for value in equation.invars if not isinstance(value, Literal))
    return total


def _flops_of(equation: Any, is_read: list[bool]) -> float | None:
    """Return the operations of one equation, whose results are read or not."""
    # Two for each entry of the result of a product, and each pair that is summed into it.
    name, params = equation.primitive.name, equation.params
    if name == "dot_general":
        (contracted, _), _ = params["dimension_numbers"]
        shape = equation.invars[0].aval.shape
        return 2.0 * equation.outvars[0].aval.size * math.prod(shape[axis] for axis in contracted)
    if name == "conv_general_dilated":
        kernel = equation.invars[1].aval.shape
        output_axis = params["dimension_numbers"].rhs_spec[0]
        return 2.0 * equation.outvars[0].aval.size * math.prod(kernel) / kernel[output_axis]

    # What a loop carries is read by its next round.
    num_rounds = 1
    if name == "scan":
        scan = scan_of(equation)
        if scan is None:
            return None
        num_rounds = scan.length
        is_read = [True] * scan.num_carry + is_read[scan.num_carry :]

    inner = []
    for body in jaxprs_in_params(params):
        has_these_results = len(body.outvars) == len(is_read)
        flops = _flops_of_results(body, is_read if has_these_results else None)
        if flops is None:
            return None
        inner.append(flops)
    if name == "while" and any(inner):
        return None
    if name == "cond":
        return max(inner)
    return num_rounds * sum(inner)
