"""Per-example gradients without forming them: the taps on the jaxpr of a loss.

`plan_of` reads off the jaxpr of the loss of one example which parameters can be tapped (`_uses`); `row_gradients`
evaluates the loss with probes at the sites (`_replay`), takes one gradient for the batch by vmap, turns what the sites
saw into factors (`_sites`), and pulls them back to the parameters (`_steps`, `_factors`). No parameter gradient of a
tapped leaf is formed unless its factors are more than one outer product per example and block: then it is one batched
product of activations and cotangents, and no longer what reverse mode through a loop would have added up step by step.
What a nonlinear function of parameters alone adds to that (`_cuts`) is a shared array times coefficients (`_terms`).
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from gdpjax._core.trees import wide_dtype
from gdpjax._core.types import Array
from gdpjax.clipping._factors import (
    Factor,
    Full,
    Outer,
    Passing,
    Sparse,
    Weighted,
    added,
    as_matrices,
    full_gradient,
    is_rank_one,
)
from gdpjax.clipping._ghost._cuts import LARGE, Cut, cuts_of, evaluated, spread, varying, without
from gdpjax.clipping._ghost._jaxpr import Frame, frame_of
from gdpjax.clipping._ghost._replay import decoded, parameter_values, probes, replay
from gdpjax.clipping._ghost._steps import SCALES, needs_other, other, pulled_back, wanted
from gdpjax.clipping._ghost._uses import Enter, Step, Use, Uses, uses_of
from gdpjax.clipping._gradients import (
    AbstractRowGradients,
    FormedGradients,
    OuterProducts,
    TableRows,
    with_shared_terms,
)
from gdpjax.clipping._rounding_budget import RoundingBudget

__all__ = ["Plan", "frame_of", "plan_of", "row_gradients"]


class Plan(NamedTuple):
    """What is done with each trained parameter: ``uses.tapped`` and ``uses.dense``; cuts are numbered after them."""

    frame: Frame  # without the cuts
    uses: Uses
    whole: Frame
    num_params: int
    cuts: tuple[Cut, ...]

    def cuts_of(self, leaf: int) -> list[int]:
        """The cuts that depend on a parameter."""
        return [number for number, cut in enumerate(self.cuts) if leaf in cut.leaves]

    def made_by(self, number: int) -> str:
        """The primitive that a cut is the output of."""
        variable = self.cuts[number].variable
        return next(e.primitive.name for e in self.whole.jaxpr.eqns if variable in e.outvars)


def plan_of(frame: Frame, num_params: int, dense: dict[int, str], most_terms: int = 0) -> Plan:
    """Plan the gradient of a frame (inputs: parameters, then data); ``dense`` parameters (why) are not to be tapped.

    Up to ``most_terms`` values for each parameter are cut, where that keeps a large gradient in factors.
    """
    cuts = cuts_of(frame, num_params) if most_terms else []
    if cuts and all(sum(leaf in cut.leaves for cut in cuts) <= most_terms for leaf in range(num_params)):
        body = without(frame, num_params, cuts)
        plan = Plan(body, uses_of(body, num_params + len(cuts), dense), frame, num_params, tuple(cuts))
        if any(plan.uses.tapped.get(leaf) and _is_large(frame, leaf) for found in cuts for leaf in found.leaves):
            return plan
    given = {leaf: why for leaf, why in dense.items() if leaf < num_params}
    return Plan(frame, uses_of(frame, num_params, given), frame, num_params, ())


def _is_large(frame: Frame, leaf: int) -> bool:
    return math.prod(frame.jaxpr.invars[leaf].aval.shape) > LARGE


def row_gradients(
    plan: Plan, params: Sequence[Array], data: Sequence[Array], budget: RoundingBudget
) -> tuple[list[AbstractRowGradients], list[Array]]:
    """Gradients of the first output, one kind of rows for each parameter, and all outputs; data has a batch axis."""
    uses, count = plan.uses, len(params)
    cut_values, shared = evaluated(plan.whole, params, plan.cuts)
    inputs = [*params, *cut_values]
    dense = sorted(uses.dense)
    others = _other_values(plan, inputs)

    def one(data: Sequence[Array]) -> tuple[list[Factor], list[Array]]:
        def loss(values: Sequence[Array], given: Any) -> tuple[Array, list[Array]]:
            merged = list(inputs)
            for leaf, value in zip(dense, values, strict=True):
                merged[leaf] = value
            outputs = replay(plan.frame, [*merged, *data], uses.sites, given)
            return outputs[0], outputs

        (gradients, seen), outputs = jax.grad(loss, argnums=(0, 1), has_aux=True)(
            [inputs[leaf] for leaf in dense], probes(uses.sites)
        )
        formed = dict(zip(dense, gradients, strict=True))
        factors = [
            Full(formed[leaf]) if leaf in formed else _gradient(plan, uses.tapped[leaf], seen, others, value)
            for leaf, value in enumerate(inputs)
        ]
        of_cuts = [Full(full_gradient(f, v.shape)) for f, v in zip(factors[count:], cut_values, strict=True)]
        return [*factors[:count], *of_cuts], outputs

    factors, outputs = jax.vmap(one)(data)
    of_cuts = [f.gradient for f in factors[count:] if isinstance(f, Full)]
    rows = []
    for leaf, (factor, param) in enumerate(zip(factors, params, strict=False)):
        terms = [(_coefficients(plan, number, leaf, of_cuts[number], param), shared[number][leaf])
                 for number in plan.cuts_of(leaf)]  # fmt: skip
        plain = _as_rows(factor, param)
        rows.append(with_shared_terms(plain, terms, budget) if terms else plain)
    return rows, outputs


def _coefficients(plan: Plan, number: int, leaf: int, gradients: Array, param: Array) -> Array:
    """The gradients of a cut, along the axes of a parameter."""
    return spread(gradients, plan.cuts[number].leaves[leaf], param.ndim).astype(wide_dtype(param))


def _other_values(plan: Plan, inputs: Sequence[Array]) -> dict[Any, Array]:
    """What the steps that need the values of other operands multiply by; axes along which it is constant are of one."""
    items = [item for uses in plan.uses.tapped.values() for use in uses for item in use.path]
    steps = [step for step in items if isinstance(step, Step) and step.rule is None and needs_other(step.eqn)]
    atoms = {_key(step): wanted(step.eqn, step.operand) for step in steps}
    variables = {v for several in atoms.values() for v in several if not hasattr(v, "val")}
    values = parameter_values(plan.frame, inputs, variables) if variables else {}
    made_by = {v: eqn for eqn in plan.frame.jaxpr.eqns for v in eqn.outvars}

    def narrowed(step: Step) -> Array:
        known = [v.val if hasattr(v, "val") else values[v] for v in atoms[_key(step)]]
        found = other(step.eqn, step.operand, known)
        if step.eqn.primitive.name not in SCALES or not found.ndim:
            return found
        along = [varying(made_by, v) for v in atoms[_key(step)] if len(v.aval.shape) == found.ndim]
        return found[tuple(slice(None) if any(of) else slice(1) for of in zip(*along, strict=True))]

    return {_key(step): narrowed(step) for step in steps}


def _key(step: Step) -> tuple[int, int]:
    return id(step.eqn), step.operand


def _gradient(plan: Plan, uses: Sequence[Use], seen: Any, others: dict[Any, Array], param: Array) -> Factor:
    """One example's gradient of a tapped parameter."""
    if not uses:
        return Full(jnp.zeros(param.shape, param.dtype))
    factor = added([_pull(plan, use, seen, others, param) for use in uses], param.shape)
    if isinstance(factor, Sparse) or is_rank_one(factor):
        return factor
    return Full(full_gradient(factor, param.shape))


def _pull(plan: Plan, use: Use, seen: Any, others: dict[Any, Array], param: Array) -> Factor:
    """The part of a parameter's gradient that comes through one use."""
    site = plan.uses.sites[use.place]

    def at_site(*seen: Array) -> Factor:
        return site.factor(decoded(site, seen))

    depth = len(site.lengths)
    factor: Passing = _over(at_site, depth)(*seen[use.place])
    for item in reversed(use.path):
        if isinstance(item, Enter):
            depth -= 1
            factor = _over(lambda f, scanned=item.scanned: _leave_scan(f, scanned), depth)(factor)
            continue
        if item.rule is not None:
            if isinstance(factor, Weighted):  # outside of every scan, as the values of other operands are known
                factor = Full(full_gradient(factor, item.eqn.outvars[0].aval.shape))
            factor = _over(item.rule.onward, depth)(factor)
            continue
        value = others.get(_key(item))
        factor = _over(lambda f, step=item, value=value: pulled_back(f, step.eqn, step.operand, value), depth)(factor)
    return Full(full_gradient(factor, param.shape)) if isinstance(factor, Weighted) else factor


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


def _as_rows(factor: Factor, param: Array) -> AbstractRowGradients:
    factor = jax.tree.map(lambda x: _no_wider(x, wide_dtype(param)), factor)
    if isinstance(factor, Full):
        return FormedGradients(factor.gradient)
    if isinstance(factor, Sparse):
        return TableRows.of_lookups(factor.rows, factor.values, param.shape)
    left, right = jax.vmap(as_matrices)(factor)
    return OuterProducts(left[:, :, 0], right[:, :, 0], factor.axes, param.shape)


def _no_wider(x: Array, dtype: Any) -> Array:
    """Floating numbers in at most this dtype: data may be wider than the parameter, and its gradient is not."""
    is_wider = jnp.issubdtype(x.dtype, jnp.floating) and jnp.promote_types(x.dtype, dtype) != dtype
    return x.astype(dtype) if is_wider else x
