"""Per-example gradients without forming them: the taps on the jaxpr of a loss.

`plan_of` reads off the jaxpr of the loss of one example which parameters can be tapped (`_uses`); `row_gradients`
evaluates the loss with probes at the sites (`_replay`), takes one gradient for the batch by vmap, turns what the sites
saw into factors (`_sites`), and pulls them back to the parameters (`_steps`, `_factors`). No parameter gradient of a
tapped leaf is formed unless its factors are more than one outer product per example and block: then it is one batched
product of activations and cotangents, and no longer what reverse mode through a loop would have added up step by step.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from gdpjax._core.types import Array
from gdpjax.clipping._factors import (
    Factor,
    Full,
    Outer,
    Sparse,
    added,
    as_matrices,
    full_gradient,
    is_rank_one,
)
from gdpjax.clipping._ghost._jaxpr import Frame, frame_of
from gdpjax.clipping._ghost._replay import decoded, parameter_values, probes, replay
from gdpjax.clipping._ghost._steps import needs_other, pulled_back
from gdpjax.clipping._ghost._uses import Enter, Use, Uses, uses_of
from gdpjax.clipping._rows import Dense, RankOne, Rows, distinct

__all__ = ["Plan", "frame_of", "plan_of", "row_gradients"]


class Plan(NamedTuple):
    """What is done with each trained parameter: ``uses.tapped`` and ``uses.dense``."""

    frame: Frame
    uses: Uses


def plan_of(frame: Frame, num_params: int, dense: dict[int, str]) -> Plan:
    """Plan the gradient of a frame (inputs: parameters, then data); ``dense`` parameters (why) are not to be tapped."""
    return Plan(frame, uses_of(frame, num_params, dense))


def row_gradients(plan: Plan, params: Sequence[Array], data: Sequence[Array]) -> tuple[list[Rows], list[Array]]:
    """Gradients of the first output, one kind of `Rows` for each parameter, and all outputs; data has a batch axis."""
    frame, uses = plan
    dense = sorted(uses.dense)
    others = _other_values(plan, params)

    def one(data: Sequence[Array]) -> tuple[list[Factor], list[Array]]:
        def loss(values: Sequence[Array], given: Any) -> tuple[Array, list[Array]]:
            merged = list(params)
            for leaf, value in zip(dense, values, strict=True):
                merged[leaf] = value
            outputs = replay(frame, [*merged, *data], uses.sites, given)
            return outputs[0], outputs

        (gradients, seen), outputs = jax.grad(loss, argnums=(0, 1), has_aux=True)(
            [params[leaf] for leaf in dense], probes(uses.sites)
        )
        formed = dict(zip(dense, gradients, strict=True))
        factors = [
            Full(formed[leaf]) if leaf in formed else _gradient(plan, uses.tapped[leaf], seen, others, param)
            for leaf, param in enumerate(params)
        ]
        return factors, outputs

    factors, outputs = jax.vmap(one)(data)
    return [_as_rows(f, param) for f, param in zip(factors, params, strict=True)], outputs


def _other_values(plan: Plan, params: Sequence[Array]) -> dict[Any, Array]:
    """Values of the other operands of the steps that need them."""
    steps = [
        item for uses in plan.uses.tapped.values() for use in uses for item in use.path if not isinstance(item, Enter)
    ]
    others = [step.eqn.invars[1 - step.operand] for step in steps if needs_other(step.eqn)]
    wanted = {v for v in others if not hasattr(v, "val")}
    return parameter_values(plan.frame, params, wanted) if wanted else {}


def _gradient(plan: Plan, uses: Sequence[Use], seen: Any, others: dict[Any, Array], param: Array) -> Factor:
    """One example's gradient of a tapped parameter."""
    if not uses:
        return Full(jnp.zeros(param.shape, param.dtype))
    factor = added([_pull(plan, use, seen, others) for use in uses], param.shape)
    if isinstance(factor, Sparse) or is_rank_one(factor):
        return factor
    return Full(full_gradient(factor, param.shape))


def _pull(plan: Plan, use: Use, seen: Any, others: dict[Any, Array]) -> Factor:
    """The part of a parameter's gradient that comes through one use."""
    site = plan.uses.sites[use.place]

    def at_site(*seen: Array) -> Factor:
        return site.factor(decoded(site, seen))

    depth = len(site.lengths)
    factor = _over(at_site, depth)(*seen[use.place])
    for item in reversed(use.path):
        if isinstance(item, Enter):
            depth -= 1
            factor = _over(lambda f, scanned=item.scanned: _leave_scan(f, scanned), depth)(factor)
            continue
        if item.rule is not None:
            factor = _over(item.rule.onward, depth)(factor)
            continue
        other = None
        if needs_other(item.eqn):
            atom = item.eqn.invars[1 - item.operand]
            other = atom.val if hasattr(atom, "val") else others[atom]
        factor = _over(lambda f, step=item, other=other: pulled_back(f, step.eqn, step.operand, other), depth)(factor)
    return factor


def _over(function: Any, depth: int) -> Any:
    """The function, mapped over the axes of the scans that are still open."""
    for _ in range(depth):
        function = jax.vmap(function)
    return function


def _leave_scan(factor: Factor, scanned: bool) -> Factor:
    """Factors of all iterations (leading axis) as one: times of the same weight, or blocks of a scanned one."""
    if isinstance(factor, Full):
        return factor if scanned else Full(factor.gradient.sum(axis=0))
    if isinstance(factor, Sparse):
        if not scanned:
            return Sparse(factor.rows.reshape(-1), factor.values.reshape(-1, *factor.values.shape[2:]))
        raise NotImplementedError("a table that is scanned over is not tapped")  # pragma: no cover
    merge = lambda x: x.reshape(-1, *x.shape[2:])  # noqa: E731
    if not scanned:
        return Outer(merge(factor.left), merge(factor.right), factor.axes)
    swap = lambda x: jnp.swapaxes(x, 0, 1)  # noqa: E731
    axes = (("b", 0), *((kind, place + (kind == "b")) for kind, place in factor.axes))
    return Outer(swap(factor.left), swap(factor.right), axes)


def _as_rows(factor: Factor, param: Array) -> Rows:
    if isinstance(factor, Full):
        return Dense(factor.gradient)
    if isinstance(factor, Sparse):
        return distinct(factor.rows, factor.values, param.shape)
    left, right = jax.vmap(as_matrices)(factor)
    return RankOne(left[:, :, 0], right[:, :, 0], factor.axes, param.shape)
