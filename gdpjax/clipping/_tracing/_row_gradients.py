"""Compute per-example gradients in factors, without forming them where that can be avoided.

    frame = frame_of(jaxpr)
    plan = Plan(frame, parameter_flow(frame, num_params, formed={}))
    gradients, outputs = row_gradients(plan, params, data, jax.vmap)
    gradients[0].squared_norms(dtype)

`parameter_flow` reads the jaxpr of the loss of one example, and finds out which parameters can be tapped.
Then `row_gradients` takes these steps:

1. It evaluates the loss with probes at the sites (`_probes`), and takes one gradient, mapped over the batch by vmap.
2. It turns what the sites saw into factors, and pulls them back to the parameters (`primitives`).
3. It chooses the form of each gradient (`AbstractFactor.compact`). Where a gradient is the sum of several outer
   products for an example, it is formed, by one batched product of activations and cotangents.

A `Plan` also says from shapes, before anything is computed, what step 2 gives (`Plan.abstract_gradients`): on that
depend the size of a chunk, and which small gradients are put together.
"""

import collections
import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from gdpjax._core.trees import wide_dtype
from gdpjax._core.types import Array
from gdpjax.clipping._forms import AbstractFactor, Full, RowGradients, total_of, wide
from gdpjax.clipping._tracing._jaxprs import Frame, Place, num_bytes
from gdpjax.clipping._tracing._parameter_flow import ParameterFlow, pull_back_use
from gdpjax.clipping._tracing._probes import replay, values_seen, zero_probes


class Plan(NamedTuple):
    """The plan of a gradient: which parameters are tapped and which are formed.

    Attributes:
      frame: the loss of one example. Its inputs are the parameters, and then the data.
      flow: which parameters are tapped and which are formed.
    """

    frame: Frame
    flow: ParameterFlow

    def gradients(self, params: Sequence[Any], seen: dict[Place, list[Array]]) -> dict[int, AbstractFactor]:
        """Return one example's gradients of the tapped parameters, each added up over its uses.

        Args:
          params: all parameters, or their shapes.
          seen: the values that each site carries.
        """
        gradients: dict[int, AbstractFactor] = {}
        for leaf, uses in self.flow.tapped.items():
            param = params[leaf]
            parts = []
            for use in uses:
                parts.append(pull_back_use(self.flow.sites[use.place], use, seen[use.place]))
            gradients[leaf] = total_of(parts, param.shape) if parts else Full(jnp.zeros(param.shape, param.dtype))
        return gradients

    def abstract_gradients(self) -> dict[int, AbstractFactor]:
        """Return what `gradients` returns, with shapes in place of values."""

        def gradients() -> dict[int, AbstractFactor]:
            probes = zero_probes(self.flow.sites)
            seen = {place: values_seen(site, probes[place]) for place, site in self.flow.sites.items()}
            return self.gradients([variable.aval for variable in self.frame.jaxpr.invars], seen)

        return jax.eval_shape(gradients)

    def num_bytes(self) -> int:
        """Return the bytes of one example: of all values computed, about what is kept at most, and to make factors."""
        return _activation_bytes(self.frame) + sum(site.working_bytes for site in self.flow.sites.values())

    def reason(self, leaf: int) -> str:
        """Return the primitives at which the gradient of a parameter is read off, or why it is formed, as text."""
        if leaf in self.flow.formed:
            return self.flow.formed[leaf]
        counts = collections.Counter(self.flow.sites[use.place].kind for use in self.flow.tapped[leaf])
        kinds = [f"{count} x {kind}" if count > 1 else kind for kind, count in counts.items()]
        return ", ".join(kinds) or "not used"


def _activation_bytes(frame: Frame) -> int:
    """Return the bytes of all values computed in a frame, in every iteration of its scans."""
    total = 0
    for index, eqn in enumerate(frame.jaxpr.eqns):
        total += sum(num_bytes(variable.aval) for variable in eqn.outvars)
        length = eqn.params.get("length", 1)
        for body in frame.children.get(index, ()):
            total += length * _activation_bytes(body)
    return total


def row_gradients(
    plan: Plan,
    params: Sequence[Array],
    data: Sequence[Array],
    map_rows: Callable[..., Any],
) -> tuple[list[RowGradients], list[Array]]:
    """Return the gradients of the first output, one `RowGradients` for each parameter, and all outputs.

    Args:
      plan: the plan.
      params: the parameters.
      data: the data, with a leading axis of examples.
      map_rows: maps a function of one example over the rows, as `jax.vmap` does.
    """
    one_example = functools.partial(_one_example, plan, params)
    factors, outputs = map_rows(one_example)(list(data))
    gradients = []
    for factor, param in zip(factors, params, strict=True):
        factor = jax.tree.map(functools.partial(_in_sum_dtype, param), factor)
        gradients.append(RowGradients(factor, param.shape))
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
    plan: Plan, params: Sequence[Array], data: Sequence[Array]
) -> tuple[list[AbstractFactor], list[Array]]:
    """Return one example's gradients of the parameters, and the outputs of the loss.

    Args:
      plan: the plan.
      params: the parameters.
      data: the example.
    """
    flow = plan.flow
    formed = sorted(flow.formed)

    # The loss as a function of the parameters that JAX differentiates, and of the probes.
    def loss(formed_values: Sequence[Array], probes: Any) -> tuple[Array, list[Array]]:
        merged = list(params)
        for leaf, value in zip(formed, formed_values, strict=True):
            merged[leaf] = value
        outputs = replay(plan.frame, [*merged, *data], flow.sites, probes)
        return outputs[0], outputs

    # One derivative gives the gradients that JAX forms, and what every site saw.
    formed_values = [params[leaf] for leaf in formed]
    differentiate = jax.grad(loss, argnums=(0, 1), has_aux=True)
    (gradients, answers), outputs = differentiate(formed_values, zero_probes(flow.sites))
    gradient_of = dict(zip(formed, gradients, strict=True))
    seen = {place: values_seen(flow.sites[place], answer) for place, answer in answers.items()}

    # What the sites saw gives the gradients of the others.
    tapped = plan.gradients(params, seen)
    factors: list[AbstractFactor] = []
    for leaf, param in enumerate(params):
        if leaf in tapped:
            factors.append(tapped[leaf].compact(param.shape))
        else:
            factors.append(Full(gradient_of[leaf]))
    return factors, outputs
