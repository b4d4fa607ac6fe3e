"""Values made of parameters alone, by whatever function, that the loss uses like one more parameter.

An L2 term is one number u = lam ||W||^2, and weight normalisation divides the columns of V by as many norms u. The loss
is then L(W, u(W), x). With u taken for a parameter of its own, W meets data in products as usual, one example's
gradient of u is formed (it is small), and

    dL/dW = (what the products give) + sum over the shared values of (du/dW)^T dL/du.

The last term needs no rule for u. Every entry of W moves one entry of u at most (a number; or a number for each column,
of that column), so the term is M, the sum of the rows of du/dW, which is the same for all examples, times the entries
of dL/du spread over the axes that belong to them. Which axes those are is read off the equations (`axis_map` of their
primitives).

Where a value of parameters alone meets data and is not a linear image of them, it becomes a shared value if it is
small. Otherwise what it is made of does, back through products and quotients: of V / ||V|| the norm is shared.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.extend.core as jex
import jax.numpy as jnp

from gdpjax._core.types import Array
from gdpjax.clipping._tracing._jaxprs import Frame, needed
from gdpjax.clipping._tracing._probes import parameter_values
from gdpjax.clipping._tracing.primitives import family_of

LARGE = 2**10
"""Entries above which the gradient of a parameter is worth keeping apart."""
_SHARE = 4
"""A shared value has at most this part of the entries of the largest parameter that it depends on."""

AxisMap = dict[int, int]
"""Axes of a parameter, and the axes of a value of which an entry depends on the same index there only."""


class SharedValue(NamedTuple):
    """A value that is taken for a parameter.

    Attributes:
      variable: the value.
      leaves: the parameters that it depends on, and for each of them which axes belong to which.
    """

    variable: Any
    leaves: dict[int, AxisMap]


class _Body(NamedTuple):
    """The parts of a jaxpr that are read."""

    constvars: Sequence[Any]
    invars: Sequence[Any]
    eqns: Sequence[Any]
    outvars: Sequence[Any]


def shared_values(frame: Frame, num_params: int) -> list[SharedValue]:
    """Find the shared values of a frame whose first inputs are the parameters, and whose first output is the loss."""
    return _Search(frame, num_params).shared_values()


def without(frame: Frame, num_params: int, shared: Sequence[SharedValue]) -> Frame:
    """Return the frame with the shared values as inputs after the parameters."""
    jaxpr = frame.jaxpr
    made = {value.variable for value in shared}
    kept = [index for index, eqn in enumerate(jaxpr.eqns) if made.isdisjoint(eqn.outvars)]
    inputs = [*jaxpr.invars[:num_params], *(value.variable for value in shared), *jaxpr.invars[num_params:]]
    body = _Body(jaxpr.constvars, inputs, [jaxpr.eqns[index] for index in kept], jaxpr.outvars)
    children = {new: frame.children[old] for new, old in enumerate(kept) if old in frame.children}
    return Frame(body, frame.consts, children)


def evaluated(
    frame: Frame, params: Sequence[Array], shared: Sequence[SharedValue]
) -> tuple[list[Array], list[dict[int, Array]]]:
    """Return the shared values, and for each of them and each parameter the sum of the rows of the derivative."""
    values, row_sums = [], []
    for each in shared:
        leaves = list(each.leaves)

        def value_of(some: Sequence[Array], each: SharedValue = each, leaves: list[int] = leaves) -> Array:
            given = dict(zip(leaves, some, strict=True))
            every = [given.get(leaf, param) for leaf, param in enumerate(params)]
            return parameter_values(frame, every, {each.variable})[each.variable]

        value, pull = jax.vjp(value_of, [params[leaf] for leaf in leaves])
        values.append(value)
        row_sums.append(dict(zip(leaves, pull(jnp.ones_like(value))[0], strict=True)))
    return values, row_sums


def spread(coefficients: Array, axes: AxisMap, ndim: int) -> Array:
    """Return gradients [N, ...] of a shared value along the axes of a parameter that they belong to; ones elsewhere."""
    shape = coefficients.shape[1:]
    order = [axes[axis] for axis in range(ndim) if axis in axes]
    others = [axis for axis in range(len(shape)) if axis not in order]
    moved = jnp.transpose(coefficients, (0, *(1 + axis for axis in (*order, *others))))
    return moved.reshape(-1, *(shape[axes[axis]] if axis in axes else 1 for axis in range(ndim)))


class _Search:
    """What is known of the values of the outermost frame."""

    def __init__(self, frame: Frame, num_params: int) -> None:
        self.jaxpr = frame.jaxpr
        self.params = list(frame.jaxpr.invars[:num_params])
        self.made_by = {v: eqn for eqn in self.jaxpr.eqns for v in eqn.outvars}
        self.leaves: dict[Any, frozenset[int]] = {v: frozenset({leaf}) for leaf, v in enumerate(self.params)}
        self.data: set[Any] = set(self.jaxpr.invars[num_params:])
        self.linear: set[Any] = set(self.params)
        self.found: dict[Any, SharedValue] = {}
        self.maps: dict[int, dict[Any, AxisMap]] = {}
        for eqn in self.jaxpr.eqns:
            self._classify(eqn)

    def _classify(self, eqn: Any) -> None:
        variables = [v for v in eqn.invars if not isinstance(v, jex.Literal)]
        if not self.data.isdisjoint(variables):
            self.data.update(eqn.outvars)
        leaves = frozenset[int]().union(*(self.leaves.get(v, frozenset()) for v in variables))
        if not leaves or eqn.primitive.name == "stop_gradient":
            return
        self.leaves.update((v, leaves) for v in eqn.outvars if jnp.issubdtype(v.aval.dtype, jnp.floating))
        if self._is_linear(eqn) and all(v in self.linear for v in variables if self.leaves.get(v)):
            self.linear.update(eqn.outvars)

    def _is_linear(self, eqn: Any) -> bool:
        """Return whether factors can go back through an equation to all parameters."""
        linked = []
        for operand, v in enumerate(eqn.invars):
            if not isinstance(v, jex.Literal) and self.leaves.get(v):
                linked.append(operand)
        is_distinct = len({eqn.invars[operand] for operand in linked}) == len(linked)
        return is_distinct and all(family_of(eqn).is_linear(eqn, operand) for operand in linked)

    def shared_values(self) -> list[SharedValue]:
        """Return every value that is needed where a parameter's nonlinear image meets data."""
        live = needed(self.jaxpr, self.jaxpr.outvars[:1], frozenset({"stop_gradient"}))
        for eqn in self.jaxpr.eqns:
            if live.isdisjoint(eqn.outvars) or self.data.isdisjoint(eqn.outvars):
                continue
            for v in eqn.invars:
                if not isinstance(v, jex.Literal) and v not in self.data:
                    for value in self._demand(v) or ():
                        self.found[value.variable] = value
        return list(self.found.values())

    def _demand(self, v: Any) -> list[SharedValue] | None:
        """Return the shared values with which this one becomes a linear image; None where there are none."""
        if isinstance(v, jex.Literal) or v in self.linear or not self.leaves.get(v):
            return []
        if v in self.found:
            return [self.found[v]]
        own = self._shared(v)
        if own is not None:
            return [own]
        eqn = self.made_by[v]
        if not self._is_linear(eqn):
            return None
        collected: list[SharedValue] = []
        for operand in eqn.invars:
            part = self._demand(operand)
            if part is None:
                return None
            collected += part
        return collected

    def _shared(self, v: Any) -> SharedValue | None:
        """Return a value as a shared one, if it is small and each of its entries depends on entries of its own."""
        size = math.prod(v.aval.shape)
        largest = max(math.prod(self.params[leaf].aval.shape) for leaf in self.leaves[v])
        if len(self.made_by[v].outvars) != 1 or largest <= LARGE or _SHARE * size > largest:
            return None
        leaves = {leaf: self._axes(leaf, v) for leaf in sorted(self.leaves[v])}
        wide = {axis for axis, length in enumerate(v.aval.shape) if length > 1}
        is_separate = all(wide <= set(axes.values()) for axes in leaves.values())
        return SharedValue(v, leaves) if is_separate else None

    def _axes(self, leaf: int, v: Any) -> AxisMap:
        """Return which axes of a parameter belong to which of a value."""
        if leaf not in self.maps:
            source = self.params[leaf]
            maps: dict[Any, AxisMap] = {source: {axis: axis for axis in range(source.aval.ndim)}}
            for eqn in self.jaxpr.eqns:
                known = {}
                for operand, x in enumerate(eqn.invars):
                    if not isinstance(x, jex.Literal) and x in maps:
                        known[operand] = maps[x]
                if known and eqn.primitive.name != "stop_gradient":
                    maps.update((out, _output_map(eqn, known)) for out in eqn.outvars if out in self.leaves)
            self.maps[leaf] = maps
        return {mine: its for mine, its in self.maps[leaf][v].items() if v.aval.shape[its] > 1}


def _output_map(eqn: Any, inputs: dict[int, AxisMap]) -> AxisMap:
    """Return the map of an output, given those of the operands that depend on the parameter; empty where unknown."""
    maps = []
    for operand, axes in inputs.items():
        onward = family_of(eqn).axis_map(eqn, operand)
        maps.append({source: onward[axis] for source, axis in axes.items() if axis in onward})
    # An entry may depend on the parameter through several operands: the axes have to agree.
    first, *others = maps
    return {source: axis for source, axis in first.items() if all(other.get(source) == axis for other in others)}


def varying(made_by: dict[Any, Any], v: Any) -> tuple[bool, ...]:
    """Return for each axis of a value whether its entries may differ along it."""
    maker = made_by.get(v) if not hasattr(v, "val") else None
    if maker is None:
        return tuple(size > 1 for size in v.aval.shape)
    return family_of(maker).varying_axes(maker, lambda operand: varying(made_by, maker.invars[operand]))
