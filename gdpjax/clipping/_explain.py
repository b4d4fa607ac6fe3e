"""What the engine does with each parameter, and what that costs: the table that `explain` returns."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax

from gdpjax._core.shown import shown
from gdpjax._core.trees import leaf_name
from gdpjax._core.types import PyTree
from gdpjax.clipping._loss import Call, LossSpec, prepare, traced
from gdpjax.clipping._planner import STRATEGIES, abstract_rows, engine_of, plan_for
from gdpjax.clipping._rounding_budget import rounding_budget

_LARGE = 2**20
"""Bytes for one example from which a formed gradient is named."""


@dataclasses.dataclass(frozen=True)
class LeafPlan:
    """How the gradient of one parameter is held for each example.

    Attributes:
      name: the parameter's path.
      shape: its shape.
      method: "outer product", "table rows", "formed", or "not trained".
      why: where its factors were read off, or why JAX differentiates it.
      num_bytes: memory for one example.
    """

    name: str
    shape: tuple[int, ...]
    method: str
    why: str
    num_bytes: int


@dataclasses.dataclass(frozen=True)
class Explanation:
    """What `explain` found; ``print`` it for a table.

    Attributes:
      leaves: one `LeafPlan` for each parameter.
      strategy: the strategy that was explained.
      chunk: rows taken at a time.
      batch_size: rows of the batch.
    """

    leaves: tuple[LeafPlan, ...]
    strategy: str
    chunk: int
    batch_size: int

    def __str__(self) -> str:
        rows = [("parameter", "shape", "per example", "gradient", "because")]
        rows += [(p.name, str(list(p.shape)), _size(p.num_bytes), p.method, p.why) for p in self.leaves]
        widths = [max(len(row[i]) for row in rows) for i in range(4)]
        lines = ["  ".join([*(cell.ljust(w) for cell, w in zip(row, widths, strict=False)), row[4]]) for row in rows]
        lines.append(f"{self.chunk} of {self.batch_size} rows at a time")
        large = [p.name for p in self.leaves if p.method == "formed" and p.num_bytes >= _LARGE]
        if large:
            lines.append(f"large gradients formed for each example: {', '.join(large)}")
        return "\n".join(lines)


def _size(num_bytes: int) -> str:
    for unit in ("B", "KiB", "MiB"):
        if num_bytes < 1024:
            return f"{num_bytes:.0f} {unit}"
        num_bytes = num_bytes / 1024  # type: ignore[assignment]
    return f"{num_bytes:.1f} GiB"


def explain(
    loss_fn: Callable[..., Any], params: PyTree, batch: Any, *args: Any,
    batch_argnums: int | tuple[int, ...] = 1, key_argnums: int | tuple[int, ...] = (), keep_batch_dim: bool = False,
    has_aux: bool = False, trainable: PyTree | None = None, strategy: str = "auto",
    microbatch_size: int | None = None, shared_argnums: int | tuple[int, ...] = (),
    shared_argnames: str | tuple[str, ...] = (), **loss_kwargs: Any,
) -> Explanation:  # fmt: skip
    """How `clipped_grad` would treat each parameter of a loss; computes nothing.

    Args:
      loss_fn, batch_argnums, key_argnums, keep_batch_dim, has_aux, trainable, strategy, microbatch_size,
        shared_argnums, shared_argnames: as in `clipped_grad`, with the parameters at argument 0.
      params: the parameters; those that are trained may be `jax.ShapeDtypeStruct`.
      batch: argument 1: with a leading batch axis where 1 is in batch_argnums; with several batch_argnums that start at
        1, a tuple of those arguments.
      args: the remaining arguments of ``loss_fn``, in order.

    Returns:
      An `Explanation`: for each parameter whether its gradients are kept as outer products or table rows, or formed,
      and why; and how many rows are taken at a time. Printing it names large formed gradients.

    Raises:
      ValueError: as `clipped_grad`.

    >>> import jax.numpy as jnp
    >>> loss = lambda p, x: jnp.sum(jnp.tanh(x @ p["w"] + p["b"]))
    >>> print(explain(loss, {"b": jnp.zeros(100), "w": jnp.zeros((200, 100))}, jnp.zeros((32, 200))))
    parameter  shape       per example  gradient       because
    ['b']      [100]       400 B        formed         add
    ['w']      [200, 100]  1 KiB        outer product  dot_general
    32 of 32 rows at a time
    """
    if strategy not in STRATEGIES:
        raise ValueError(f"strategy must be one of {STRATEGIES}, got {shown(strategy)}")
    spec = LossSpec.create(
        loss_fn, argnums=0, batch_argnums=batch_argnums, key_argnums=key_argnums, keep_batch_dim=keep_batch_dim,
        has_aux=has_aux, trainable=trainable, shared_argnums=shared_argnums, shared_argnames=shared_argnames,
    )  # fmt: skip
    try:
        return _explanation(spec, params, batch, args, loss_kwargs, strategy, microbatch_size)
    except Exception as error:
        if len(spec.batch_argnums) == 1 and isinstance(batch, tuple) and len(batch) == 1:
            error.add_note(
                "batch is a tuple of one, and so is the argument that loss_fn was given; where one argument is batched "
                "give that itself: explain(loss_fn, params, rows)"
            )
        raise


def _explanation(
    spec: LossSpec, params: PyTree, batch: Any, args: tuple[Any, ...], loss_kwargs: dict[str, Any], strategy: str,
    microbatch_size: int | None,
) -> Explanation:  # fmt: skip
    several = len(spec.batch_argnums) > 1 and isinstance(batch, tuple)
    call = prepare(spec, (params, *(batch if several else (batch,)), *args), loss_kwargs, None)
    budget = rounding_budget(call.trained_leaves, max(call.batch_size, 1))
    plan = plan_for(call, traced(call), strategy, budget)
    engine = engine_of(call, strategy, microbatch_size, budget, constant_work=False)
    reasons = [_reason(plan, leaf) for leaf in range(len(call.trained_leaves))]
    return Explanation(tuple(_leaves(call, engine.gradients, reasons)), strategy, engine.chunk, call.batch_size)


def _leaves(call: Call, gradients: Callable[..., Any], reasons: list[str]) -> list[LeafPlan]:
    rows = abstract_rows(call, gradients)
    found = iter(zip(rows, reasons, strict=True))
    plans = []
    for (path, leaf), mark in zip(jax.tree_util.tree_flatten_with_path(call.params)[0], call.which, strict=True):
        name, shape = leaf_name(path), tuple(leaf.shape)
        if not mark:
            plans.append(LeafPlan(name, shape, "not trained", "frozen, empty or not floating", 0))
            continue
        held, reason = next(found)
        plans.append(LeafPlan(name, shape, held.method, reason, held.num_bytes))
    return plans


def _reason(plan: Any, leaf: int) -> str:
    shared = [plan.made_by(number) for number in plan.cuts_of(leaf)]
    return ", ".join([_uses(plan, leaf), *(f"shared {name}" for name in dict.fromkeys(shared))])


def _uses(plan: Any, leaf: int) -> str:
    if leaf in plan.uses.dense:
        return plan.uses.dense[leaf]
    sites = [plan.uses.sites[use.place] for use in plan.uses.tapped[leaf]]
    names = [s.kind if s.rule is None else f"{s.kind} in {s.eqn.primitive.name}" for s in sites]
    if not names:
        return "not used"
    counted = [f"{names.count(name)} x {name}" if names.count(name) > 1 else name for name in dict.fromkeys(names)]
    return ", ".join(counted)
