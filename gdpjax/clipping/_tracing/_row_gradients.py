"""Per-example gradients without forming them.

`plan_of` reads off the jaxpr of the loss of one example which parameters can be tapped (`_parameter_flow`);
`row_gradients` evaluates the loss with probes at the sites (`_probes`), takes one gradient for the batch by vmap, turns
what the sites saw into factors, and pulls them back to the parameters (`primitives`). No gradient of a tapped parameter
is formed, unless its factors are more than one outer product for each example and block. Then, except for a large
gradient at few positions, it is one batched product of activations and cotangents, and no longer what reverse mode
through a loop would have added up step by step. What a nonlinear function of parameters alone adds to that
(`_shared_values`) is a shared array times coefficients.
"""

import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.extend.core as jex
import jax.numpy as jnp

from gdpjax._core.trees import wide_dtype
from gdpjax._core.types import Array
from gdpjax.clipping._gradients import AbstractRowGradients, positions_pay, with_shared_terms
from gdpjax.clipping._rounding_budget import RoundingBudget
from gdpjax.clipping._tracing._factors import AbstractFactor, Full, added
from gdpjax.clipping._tracing._jaxprs import Frame
from gdpjax.clipping._tracing._parameter_flow import (
    AbstractLink,
    AbstractSite,
    LinearMap,
    ParameterFlow,
    Use,
    parameter_flow,
    pull_back_use,
)
from gdpjax.clipping._tracing._probes import decoded, parameter_values, probes, replay
from gdpjax.clipping._tracing._shared_values import (
    LARGE,
    SharedValue,
    evaluated,
    shared_values,
    spread,
    varying,
    without,
)
from gdpjax.clipping._tracing.primitives import family_of
from gdpjax.clipping._tracing.primitives._abstract import num_bytes


class Plan(NamedTuple):
    """What is done with each trained parameter.

    Attributes:
      frame: the loss of one example, with the shared values as inputs after the parameters.
      flow: which parameters are tapped and which are formed; shared values are numbered after the parameters.
      whole: the loss with the parameters and the data alone as inputs.
      num_params: how many parameters there are.
      shared: the shared values.
    """

    frame: Frame
    flow: ParameterFlow
    whole: Frame
    num_params: int
    shared: tuple[SharedValue, ...]

    def shared_by(self, leaf: int) -> list[int]:
        """Return the shared values that depend on a parameter."""
        return [number for number, value in enumerate(self.shared) if leaf in value.leaves]

    def uses_of(self, leaf: int) -> list[Use]:
        """Return the uses of a parameter; none where it is not tapped."""
        return self.flow.tapped.get(leaf, [])

    def sites_of(self, leaf: int) -> list[AbstractSite]:
        """Return the sites of a parameter, one for each use."""
        return [self.flow.sites[use.place] for use in self.uses_of(leaf)]

    def is_tapped(self, leaf: int) -> bool:
        """Return whether the gradient of a parameter is read off at sites."""
        return leaf in self.flow.tapped

    def is_looked_up(self, leaf: int) -> bool:
        """Return whether rows of a parameter are looked up."""
        return any(site.is_lookup for site in self.sites_of(leaf))

    def num_lookups(self, leaf: int) -> int:
        """Return how many rows of a parameter are looked up for an example."""
        return sum(site.num_lookups for site in self.sites_of(leaf))

    def num_positions(self, leaf: int) -> int:
        """Return how many outer products the gradient of a parameter is a sum of, lookups apart."""
        return sum(site.num_positions for site in self.sites_of(leaf) if not site.is_lookup)

    def is_formed(self, leaf: int) -> bool:
        """Return whether the gradient of a parameter is formed, as far as the plan alone can say."""
        if not self.is_tapped(leaf) or any(site.is_formed for site in self.sites_of(leaf)):
            return True
        return self.num_positions(leaf) > 1 and not self.keeps_positions(leaf)

    def keeps_positions(self, leaf: int) -> bool:
        """Return whether a gradient that is a sum of outer products stays one, as far as the plan alone can say."""
        sites = self.sites_of(leaf)
        sizes = [site.factor_sizes for site in sites if not site.is_lookup]
        first = sizes[0] if sizes else None
        if first is None or any(size != first for size in sizes):
            return False
        num_lookups = sum(site.num_lookups for site in sites)
        return positions_pay(self.num_positions(leaf) + num_lookups, *first)

    @property
    def is_scaled(self) -> bool:
        """Whether more gradients may be formed than the plan alone can say."""
        scaled = [use for uses in self.flow.tapped.values() for use in uses if use.is_scaled]
        return bool(self.shared or scaled)

    def activation_bytes(self) -> int:
        """Return the bytes of everything computed for one example: an upper guess of what backpropagation keeps."""
        return _activation_bytes(self.frame) - (self._bytes_without_data() if self.shared else 0)

    def working_bytes(self) -> int:
        """Return the bytes that making the factors needs for one example."""
        return sum(site.working_bytes for site in self.flow.sites.values())

    def _bytes_without_data(self) -> int:
        """Bytes of what is computed once for all rows."""
        data = set(self.frame.jaxpr.invars[self.num_params + len(self.shared) :])
        total = 0
        for index, eqn in enumerate(self.frame.jaxpr.eqns):
            if any(not isinstance(v, jex.Literal) and v in data for v in eqn.invars):
                data.update(eqn.outvars)
            elif index not in self.frame.children:
                total += sum(num_bytes(v.aval) for v in eqn.outvars)
        return total

    def reason(self, leaf: int) -> str:
        """Say at which primitives the gradient of a parameter is read off, or why it is formed."""
        if not self.is_tapped(leaf):
            parts = [self.flow.formed[leaf]]
        else:
            names = [site.described for site in self.sites_of(leaf)]
            parts = []
            for name in dict.fromkeys(names):
                count = names.count(name)
                parts.append(f"{count} x {name}" if count > 1 else name)
        parts = parts or ["not used"]
        makers = []
        for number in self.shared_by(leaf):
            variable = self.shared[number].variable
            makers += [eqn.primitive.name for eqn in self.whole.jaxpr.eqns if variable in eqn.outvars]
        return ", ".join([*parts, *(f"shared {name}" for name in dict.fromkeys(makers))])


def _activation_bytes(frame: Frame) -> int:
    total = 0
    for index, eqn in enumerate(frame.jaxpr.eqns):
        children = frame.children.get(index, ())
        total += eqn.params.get("length", 1) * sum(_activation_bytes(child) for child in children)
        total += sum(num_bytes(v.aval) for v in eqn.outvars)
    return total


def plan_of(frame: Frame, num_params: int, formed: dict[int, str], most_shared: int = 0) -> Plan:
    """Plan the gradient of a frame whose inputs are parameters, then data.

    Args:
      frame: the loss of one example.
      num_params: how many parameters there are.
      formed: parameters that are not to be tapped, and why.
      most_shared: up to how many values are shared for a parameter, where that keeps a large gradient in factors.
    """
    shared = shared_values(frame, num_params) if most_shared else []
    is_few = all(sum(leaf in value.leaves for value in shared) <= most_shared for leaf in range(num_params))
    if shared and is_few:
        body = without(frame, num_params, shared)
        flow = parameter_flow(body, num_params + len(shared), formed)
        plan = Plan(body, flow, frame, num_params, tuple(shared))
        if any(plan.uses_of(leaf) and _is_large(frame, leaf) for value in shared for leaf in value.leaves):
            return plan
    given = {leaf: why for leaf, why in formed.items() if leaf < num_params}
    return Plan(frame, parameter_flow(frame, num_params, given), frame, num_params, ())


def _is_large(frame: Frame, leaf: int) -> bool:
    return math.prod(frame.jaxpr.invars[leaf].aval.shape) > LARGE


def row_gradients(
    plan: Plan, params: Sequence[Array], data: Sequence[Array], budget: RoundingBudget
) -> tuple[list[AbstractRowGradients], list[Array]]:
    """Return the gradients of the first output, one object for each parameter, and all outputs.

    Args:
      plan: the plan.
      params: the parameters.
      data: the data, with a batch axis.
      budget: what rounding may cost.
    """
    num_params = len(params)
    shared, row_sums = evaluated(plan.whole, params, plan.shared)
    inputs = [*params, *shared]
    multipliers = _multipliers(plan, inputs)

    # Factors of all examples; the gradients of shared values are formed.
    one = functools.partial(_one_example, plan, inputs, multipliers)
    factors, outputs = jax.vmap(one)(data)
    of_shared = [factor.formed(value.shape) for factor, value in zip(factors[num_params:], shared, strict=True)]

    gradients = []
    for leaf, (factor, param) in enumerate(zip(factors, params, strict=False)):
        rows = jax.tree.map(functools.partial(_no_wider, param), factor).row_gradients(param.shape)
        terms = []
        for number in plan.shared_by(leaf):
            axes = plan.shared[number].leaves[leaf]
            coefficients = spread(of_shared[number], axes, param.ndim).astype(wide_dtype(param))
            terms.append((coefficients, row_sums[number][leaf]))
        gradients.append(with_shared_terms(rows, terms, budget) if terms else rows)
    return gradients, outputs


def _no_wider(param: Array, x: Array) -> Array:
    """Cast what is wider than the sum of a parameter: data may be, and its gradient is not."""
    dtype = wide_dtype(param)
    is_wider = jnp.issubdtype(x.dtype, jnp.floating) and jnp.promote_types(x.dtype, dtype) != dtype
    return x.astype(dtype) if is_wider else x


def _one_example(
    plan: Plan, inputs: Sequence[Array], multipliers: dict[AbstractLink, Array], data: Sequence[Array]
) -> tuple[list[AbstractFactor], list[Array]]:
    """Return one example's gradients of the parameters and shared values, and the outputs of the loss."""
    flow = plan.flow
    formed = sorted(flow.formed)

    def loss(values: Sequence[Array], given: Any) -> tuple[Array, list[Array]]:
        merged = list(inputs)
        for leaf, value in zip(formed, values, strict=True):
            merged[leaf] = value
        outputs = replay(plan.frame, [*merged, *data], flow.sites, given)
        return outputs[0], outputs

    differentiate = jax.grad(loss, argnums=(0, 1), has_aux=True)
    (by_jax, answers), outputs = differentiate([inputs[leaf] for leaf in formed], probes(flow.sites))
    seen = {place: decoded(flow.sites[place], answer) for place, answer in answers.items()}
    gradients = dict(zip(formed, by_jax, strict=True))

    factors: list[AbstractFactor] = []
    for leaf, value in enumerate(inputs):
        if leaf in gradients:
            factors.append(Full(gradients[leaf]))
            continue
        parts = []
        for use in flow.tapped[leaf]:
            parts.append(pull_back_use(flow.sites[use.place], use, seen[use.place], multipliers))
        factor = added(parts, value.shape) if parts else Full(jnp.zeros(value.shape, value.dtype))
        is_shared = leaf >= plan.num_params
        factors.append(Full(factor.formed(value.shape)) if is_shared else factor.compact(value.shape))
    return factors, outputs


def _multipliers(plan: Plan, inputs: Sequence[Array]) -> dict[AbstractLink, Array]:
    """Return what the linear maps that need values of other operands multiply by.

    An axis along which all entries of a scale are the same has length one.
    """
    maps = []
    for uses in plan.flow.tapped.values():
        for use in uses:
            maps += [link for link in use.path if isinstance(link, LinearMap) and link.values_needed]
    atoms = [atom for link in maps for atom in link.values_needed]
    variables = {atom for atom in atoms if not isinstance(atom, jex.Literal)}
    values = parameter_values(plan.frame, inputs, variables) if variables else {}
    made_by = {v: eqn for eqn in plan.frame.jaxpr.eqns for v in eqn.outvars} if variables else {}

    found: dict[AbstractLink, Array] = {}
    for link in maps:
        if link in found:
            continue
        family, needed = family_of(link.eqn), link.values_needed
        known = [atom.val if isinstance(atom, jex.Literal) else values[atom] for atom in needed]
        multiplier = family.multiplier(link.eqn, link.operand, known)
        if family.is_scaling(link.eqn) and multiplier.ndim:
            marks = [varying(made_by, atom) for atom in needed if len(atom.aval.shape) == multiplier.ndim]
            along = [any(of_axis) for of_axis in zip(*marks, strict=True)]
            multiplier = multiplier[tuple(slice(None) if varies else slice(1) for varies in along)]
        found[link] = multiplier
    return found
