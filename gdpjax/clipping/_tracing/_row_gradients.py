"""Compute per-example gradients in factors, without forming them where that can be avoided.

    plan = plan_of(frame_of(jaxpr), num_params, formed={})
    gradients, outputs = row_gradients(plan, params, data, budget)
    gradients[0].squared_norms(dtype)

`plan_of` reads the jaxpr of the loss of one example, and finds out which parameters can be tapped (`_parameter_flow`).
Then `row_gradients` takes these steps:

1. It evaluates the loss with probes at the sites (`_probes`), and takes one gradient, mapped over the batch by vmap.
2. It turns what the sites saw into factors, and pulls them back to the parameters (`primitives`).
3. It chooses the form of each gradient (`AbstractFactor.compact`). Where a gradient is the sum of several outer
  products
   for an example, it is formed, by one batched product of activations and cotangents. Only a large gradient with few
   positions stays in factors.
4. It adds the parts that come from nonlinear functions of parameters alone (`_shared_values`): shared arrays times
   coefficients.

A `Plan` also predicts from shapes, before anything is computed, which gradients step 3 will form (`Plan.is_formed`).
The prediction decides how many rows a chunk has, and nothing else.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from gdpjax._core.trees import wide_dtype
from gdpjax._core.types import Array
from gdpjax.clipping._gradients import AbstractRowGradients, positions_pay, wide, with_shared_terms
from gdpjax.clipping._rounding_budget import RoundingBudget
from gdpjax.clipping._tracing._factors import AbstractFactor, Full, total_of
from gdpjax.clipping._tracing._jaxprs import Frame, is_literal, makers_of, variables_of
from gdpjax.clipping._tracing._parameter_flow import (
    AbstractLink,
    AbstractSite,
    LinearMap,
    ParameterFlow,
    Use,
    parameter_flow,
    pull_back_use,
)
from gdpjax.clipping._tracing._probes import parameter_values, replay, values_seen, zero_probes
from gdpjax.clipping._tracing._shared_values import (
    LARGE,
    SharedValue,
    evaluate_shared,
    shared_values,
    spread,
    varying_axes,
    with_shared_inputs,
)
from gdpjax.clipping._tracing.primitives import family_of
from gdpjax.clipping._tracing.primitives._abstract import num_bytes


class Plan(NamedTuple):
    """The plan of a gradient: which parameters are tapped, which are formed, and which shared values there are.

    Attributes:
      frame: the loss of one example. Its inputs are the parameters, the shared values, and the data.
      flow: which inputs are tapped and which are formed. Shared values are numbered after the parameters.
      whole: the loss as it was traced, with the parameters and the data as inputs.
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
        """Return how many outer products are added up in the gradient of a parameter. Look-ups do not count."""
        return sum(site.num_positions for site in self.sites_of(leaf) if not site.is_lookup)

    def is_formed(self, leaf: int) -> bool:
        """Return whether the gradient of a parameter will be formed, as far as shapes tell (see `is_scaled`)."""
        if not self.is_tapped(leaf):
            return True
        if any(site.is_formed for site in self.sites_of(leaf)):
            return True
        return self.num_positions(leaf) > 1 and not self.keeps_positions(leaf)

    def keeps_positions(self, leaf: int) -> bool:
        """Return whether a gradient that is a sum of outer products will stay in factors, as far as shapes tell."""
        # All products need factors of the same two sizes, so that they can be joined.
        sizes = {site.factor_sizes for site in self.sites_of(leaf) if not site.is_lookup}
        if len(sizes) != 1:
            return False
        (size,) = sizes
        if size is None:
            return False
        return positions_pay(self.num_positions(leaf) + self.num_lookups(leaf), *size)

    @property
    def is_scaled(self) -> bool:
        """Whether more gradients may be formed than `is_formed` tells: not all factors can follow a scale."""
        if self.shared:
            return True
        return any(use.is_scaled for uses in self.flow.tapped.values() for use in uses)

    def activation_bytes(self) -> int:
        """Return the bytes of all values computed for one example. Backpropagation keeps at most about that much."""
        total = _activation_bytes(self.frame)
        if self.shared:
            total -= self._bytes_without_data()
        return total

    def working_bytes(self) -> int:
        """Return the bytes that the sites need to make their factors, for one example."""
        return sum(site.working_bytes for site in self.flow.sites.values())

    def _bytes_without_data(self) -> int:
        """Return the bytes of values that do not depend on data, which are computed once for all rows."""
        first_data = self.num_params + len(self.shared)
        data = set(self.frame.jaxpr.invars[first_data:])
        total = 0
        for index, eqn in enumerate(self.frame.jaxpr.eqns):
            if not data.isdisjoint(variables_of(eqn.invars)):
                data.update(eqn.outvars)
            elif index not in self.frame.children:
                total += _output_bytes(eqn)
        return total

    def reason(self, leaf: int) -> str:
        """Return the primitives at which the gradient of a parameter is read off, or why it is formed, as text."""
        if self.is_tapped(leaf):
            parts = _counted([site.described for site in self.sites_of(leaf)])
        else:
            parts = [self.flow.formed[leaf]]
        if not parts:
            parts = ["not used"]

        made_by = makers_of(self.whole.jaxpr)
        makers = []
        for number in self.shared_by(leaf):
            makers.append(made_by[self.shared[number].variable].primitive.name)
        for name in dict.fromkeys(makers):
            parts.append(f"shared {name}")
        return ", ".join(parts)


def _counted(names: list[str]) -> list[str]:
    """Return every name once, as "3 x name" where it occurs three times."""
    parts = []
    for name in dict.fromkeys(names):
        count = names.count(name)
        parts.append(f"{count} x {name}" if count > 1 else name)
    return parts


def _activation_bytes(frame: Frame) -> int:
    """Return the bytes of all values computed in a frame, in every iteration of its scans."""
    total = 0
    for index, eqn in enumerate(frame.jaxpr.eqns):
        total += _output_bytes(eqn)
        length = eqn.params.get("length", 1)
        for body in frame.children.get(index, ()):
            total += length * _activation_bytes(body)
    return total


def _output_bytes(eqn: Any) -> int:
    """Return the bytes of the outputs of an equation."""
    return sum(num_bytes(variable.aval) for variable in eqn.outvars)


def plan_of(frame: Frame, num_params: int, formed: dict[int, str], most_shared: int = 0) -> Plan:
    """Return the plan of the gradient of a frame whose inputs are the parameters, and then the data.

    Args:
      frame: the loss of one example.
      num_params: how many parameters there are.
      formed: parameters that are not to be tapped, and why.
      most_shared: the largest number of shared values that may depend on the same parameter; 0 for no shared values.
    """
    # Use shared values if there are not too many of them, and if a large parameter that they depend on is tapped.
    shared = shared_values(frame, num_params) if most_shared else []
    if shared and _most_shared_by_one(shared, num_params) <= most_shared:
        body = with_shared_inputs(frame, num_params, shared)
        flow = parameter_flow(body, num_params + len(shared), formed)
        plan = Plan(body, flow, frame, num_params, tuple(shared))
        for value in shared:
            if any(plan.uses_of(leaf) and _is_large(frame, leaf) for leaf in value.leaves):
                return plan

    flow = parameter_flow(frame, num_params, formed)
    return Plan(frame, flow, frame, num_params, ())


def _most_shared_by_one(shared: Sequence[SharedValue], num_params: int) -> int:
    """Return the largest number of shared values that depend on the same parameter."""
    counts = [0] * num_params
    for value in shared:
        for leaf in value.leaves:
            counts[leaf] += 1
    return max(counts)


def _is_large(frame: Frame, leaf: int) -> bool:
    """Return whether a parameter has so many entries that its gradient is worth keeping in factors."""
    return math.prod(frame.jaxpr.invars[leaf].aval.shape) > LARGE


def row_gradients(
    plan: Plan,
    params: Sequence[Array],
    data: Sequence[Array],
    budget: RoundingBudget,
    map_rows: Callable[..., Any] = jax.vmap,
) -> tuple[list[AbstractRowGradients], list[Array]]:
    """Return the gradients of the first output, one `AbstractRowGradients` for each parameter, and all outputs.

    Args:
      plan: the plan.
      params: the parameters.
      data: the data, with a leading axis of examples.
      budget: what rounding may cost.
      map_rows: maps a function of one example over the rows, as `jax.vmap` does.
    """
    # Shared values are computed once, and not for each example.
    shared, row_sums = evaluate_shared(plan.whole, params, plan.shared)
    inputs = [*params, *shared]
    multipliers = _multipliers(plan, inputs)

    # Map one example's gradients over the batch. The gradients of shared values are small, and are formed.
    one_example = functools.partial(_one_example, plan, inputs, multipliers)
    factors, outputs = map_rows(one_example, in_axes=(0,))(list(data))
    of_shared = []
    for factor, value in zip(factors[plan.num_params :], shared, strict=True):
        of_shared.append(factor.formed(value.shape))

    gradients = []
    for leaf, param in enumerate(params):
        factor = jax.tree.map(functools.partial(_in_sum_dtype, param), factors[leaf])
        rows = factor.row_gradients(param.shape)

        # Each shared value adds one term: an array that all examples share, times each example's coefficients.
        terms = []
        for number in plan.shared_by(leaf):
            axes = plan.shared[number].leaves[leaf]
            coefficients = spread(of_shared[number], axes, param.ndim).astype(wide_dtype(param))
            terms.append((coefficients, row_sums[number][leaf]))
        if terms:
            rows = with_shared_terms(rows, terms, budget)
        gradients.append(rows)
    return gradients, outputs


def _in_sum_dtype(param: Array, x: Array) -> Array:
    """Return an array in the dtype in which the gradients of a parameter are summed.

    The loss may compute in another dtype. In a narrower one the sum would be rounded by more than the rounding budget
    allows, and a wider one is not what the caller expects.
    """
    dtype = wide_dtype(param)
    if not jnp.issubdtype(x.dtype, jnp.floating) or wide_dtype(x) == dtype:
        return x
    return wide(x).astype(dtype)


def _one_example(
    plan: Plan,
    inputs: Sequence[Array],
    multipliers: dict[AbstractLink, Array],
    data: Sequence[Array],
) -> tuple[list[AbstractFactor], list[Array]]:
    """Return one example's gradients of the parameters and shared values, and the outputs of the loss.

    Args:
      plan: the plan.
      inputs: the parameters and the shared values.
      multipliers: the multipliers of the linear maps that need one.
      data: the example.
    """
    flow = plan.flow
    formed = sorted(flow.formed)

    # The loss as a function of the inputs that JAX differentiates, and of the probes.
    def loss(formed_values: Sequence[Array], probes: Any) -> tuple[Array, list[Array]]:
        merged = list(inputs)
        for leaf, value in zip(formed, formed_values, strict=True):
            merged[leaf] = value
        outputs = replay(plan.frame, [*merged, *data], flow.sites, probes)
        return outputs[0], outputs

    # One derivative gives the gradients that JAX forms, and what every site saw.
    formed_values = [inputs[leaf] for leaf in formed]
    differentiate = jax.grad(loss, argnums=(0, 1), has_aux=True)
    (gradients, answers), outputs = differentiate(formed_values, zero_probes(flow.sites))
    gradient_of = dict(zip(formed, gradients, strict=True))
    seen = {place: values_seen(flow.sites[place], answer) for place, answer in answers.items()}

    factors: list[AbstractFactor] = []
    for leaf, value in enumerate(inputs):
        if leaf in gradient_of:
            factors.append(Full(gradient_of[leaf]))
            continue

        # Add up the gradients through all uses.
        parts = []
        for use in flow.tapped[leaf]:
            parts.append(pull_back_use(flow.sites[use.place], use, seen[use.place], multipliers))
        factor = total_of(parts, value.shape) if parts else Full(jnp.zeros(value.shape, value.dtype))
        is_shared = leaf >= plan.num_params
        if is_shared:
            factors.append(Full(factor.formed(value.shape)))
        else:
            factors.append(factor.compact(value.shape))
    return factors, outputs


def _multipliers(plan: Plan, inputs: Sequence[Array]) -> dict[AbstractLink, Array]:
    """Return the multipliers of all linear maps that depend on the values of their other operands.

    Args:
      plan: the plan.
      inputs: the parameters and the shared values.

    Returns:
      The multiplier of each such link. A scale has length one along axes along which its entries are all the same.
    """
    # Collect the links, each once: one link may lead to several sites.
    links: dict[LinearMap, None] = {}
    for uses in plan.flow.tapped.values():
        for use in uses:
            for link in use.path:
                if isinstance(link, LinearMap) and link.values_needed:
                    links[link] = None

    # Evaluate the values that they depend on.
    variables: set[Any] = set()
    for link in links:
        variables.update(variables_of(link.values_needed))
    values = parameter_values(plan.frame, inputs, variables) if variables else {}
    made_by = makers_of(plan.frame.jaxpr) if variables else {}

    multipliers: dict[AbstractLink, Array] = {}
    for link in links:
        family = family_of(link.eqn)
        atoms = link.values_needed
        known = [atom.val if is_literal(atom) else values[atom] for atom in atoms]
        multiplier = family.multiplier(link.eqn, link.operand, known)
        if family.is_scaling(link.eqn) and multiplier.ndim:
            multiplier = _constant_axes_cut(multiplier, atoms, made_by)
        multipliers[link] = multiplier
    return multipliers


def _constant_axes_cut(multiplier: Array, atoms: Sequence[Any], made_by: dict[Any, Any]) -> Array:
    """Return a multiplier with length one along the axes along which its entries are all the same.

    Args:
      multiplier: the multiplier.
      atoms: the variables and literals of whose values it is made.
      made_by: for each variable, the equation that makes it.
    """
    varies = [False] * multiplier.ndim
    for atom in atoms:
        if len(atom.aval.shape) == multiplier.ndim:
            for axis, varies_here in enumerate(varying_axes(made_by, atom)):
                varies[axis] = varies[axis] or varies_here
    index = tuple(slice(None) if varies_here else slice(1) for varies_here in varies)
    return multiplier[index]
