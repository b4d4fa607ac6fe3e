"""The strategies: how rows of gradients are computed, and how many at a time."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from gdpjax._core.trees import wide_dtype
from gdpjax._core.types import Array
from gdpjax.clipping._choose import better_formed, chunk_rows, is_scaled, unrolls
from gdpjax.clipping._ghost import Plan, frame_of, plan_of, row_gradients
from gdpjax.clipping._loss import Call, trace_loss
from gdpjax.clipping._rows import Dense
from gdpjax.clipping._terms import AnyRows, Budget
from gdpjax.clipping._vmap import example_grads

STRATEGIES = ("auto", "vmap", "microbatch", "ghost")
_MICROBATCH = 64


class Engine(NamedTuple):
    """gradients(rows, positions) gives the gradients, and (losses, aux); ``chunk`` rows are taken at a time."""

    gradients: Callable[..., tuple[list[AnyRows], Any]]
    chunk: int
    unrolls: Callable[[int], bool]


def engine_of(call: Call, strategy: str, microbatch_size: int | None, budget: Budget) -> Engine:
    """The engine of a call; traces and checks its loss."""
    plan, structure = plan_for(call, strategy, budget)
    chunk = lambda size: max(min(microbatch_size or size, call.batch_size), 1)  # noqa: E731
    if strategy in ("vmap", "microbatch"):
        size = call.batch_size if strategy == "vmap" else _MICROBATCH
        return Engine(functools.partial(_by_vmap, call), chunk(size), lambda chunks: False)

    def gradients(rows: Any, positions: Array, trained: list[Array] | None = None) -> tuple[list[AnyRows], Any]:
        leaves = call.trained_leaves if trained is None else trained
        found, outputs = row_gradients(plan, leaves, [*jax.tree.leaves(rows), positions], budget)
        values = outputs[0].astype(wide_dtype(outputs[0]))
        return found, (values, jax.tree.unflatten(structure, outputs[1:]))

    # Not all factors can follow what is scaled, and then the plan alone does not say what is formed.
    kinds = [type(r) for r in abstract_rows(call, gradients)] if is_scaled(plan) else []
    formed = [leaf for leaf, kind in enumerate(kinds) if kind is Dense]
    size = chunk_rows(plan, call.trained_leaves, call.batch_size, formed)
    return Engine(gradients, chunk(size), lambda chunks: unrolls(plan, chunks))


def abstract_rows(call: Call, gradients: Callable[..., Any]) -> list[AnyRows]:
    """The gradients of one row, without values."""
    rows: list[AnyRows] = []

    def one_row(trained: list[Array], batch: Any) -> None:
        rows.extend(gradients(batch, jnp.zeros(1, jnp.int32), trained)[0])

    batch = [call.args[number] for number in call.spec.batch_argnums]
    one = jax.tree.map(lambda x: jax.ShapeDtypeStruct((1, *jnp.shape(x)[1:]), jnp.result_type(x)), batch)
    jax.eval_shape(one_row, [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in call.trained_leaves], one)
    return rows


def plan_for(call: Call, strategy: str, budget: Budget) -> tuple[Plan, Any]:
    """The plan of a strategy, and the structure of the loss's aux."""
    trace = trace_loss(call)
    count, frame = len(call.trained_leaves), frame_of(trace.jaxpr)
    if strategy in ("vmap", "microbatch"):
        return plan_of(frame, count, dict.fromkeys(range(count), "strategy")), trace.aux_structure
    plan = plan_of(frame, count, {}, budget.most_terms)
    if strategy == "auto" and (formed := better_formed(plan)):
        plan = plan_of(frame, count, plan.uses.dense | formed, budget.most_terms)
    return plan, trace.aux_structure


def _by_vmap(call: Call, rows: Any, positions: Array, trained: list[Array] | None = None) -> tuple[list[AnyRows], Any]:
    del trained  # the leaves of the call
    grads = example_grads(call, rows, positions)
    return [Dense(jnp.asarray(leaf)) for leaf in grads.leaves], (grads.values, grads.aux)
