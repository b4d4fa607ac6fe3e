"""Cuts: numbers made of parameters alone, by whatever function, that the loss uses like one more parameter.

An L2 term is one number u = lam ||W||^2, and weight normalisation divides the columns of V by as many norms u. The loss
is then L(W, u(W), x): with u taken for a parameter of its own, which is what a cut does, W meets data in products as
usual, one example's gradient of u is formed (it is small), and

    dL/dW = (what the products give) + sum over the cuts of (du/dW)^T dL/du.

The last term needs no rule for u: where every entry of W moves one entry of u at most (a number; or a number for each
column, of that column), it is M, the sum of the rows of du/dW, which is the same for all examples, times the entries of
dL/du spread over the axes that belong to them. Which axes those are is read off the equations (`_axis_map`).

Where a value of parameters alone meets data and is not a linear image of them, it becomes a cut if it is small, or else
what it is made of does, back through products and quotients (`_steps`): V / ||V|| is cut at ||V||.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.extend.core as jex
import jax.numpy as jnp

from gdpjax._core.types import Array
from gdpjax.clipping._ghost import _steps
from gdpjax.clipping._ghost._jaxpr import Frame, needed
from gdpjax.clipping._ghost._replay import parameter_values

LARGE = 2**10
"""Entries above which the gradient of a parameter is worth keeping apart."""
_SHARE = 4
"""A cut has at most this part of the entries of the largest parameter that it depends on."""
_REDUCTIONS = frozenset({"reduce_sum", "reduce_max", "reduce_min", "reduce_prod"})
_MOVES = frozenset({"reshape", "expand_dims"})

AxisMap = dict[int, int]
"""Axes of a parameter, and those of a value of which an entry depends on the same index there only."""


class Cut(NamedTuple):
    """A value that is taken for a parameter, and the parameters that it depends on."""

    variable: Any
    leaves: dict[int, AxisMap]


class _Body(NamedTuple):
    """What is used of a jaxpr."""

    constvars: Sequence[Any]
    invars: Sequence[Any]
    eqns: Sequence[Any]
    outvars: Sequence[Any]


def cuts_of(frame: Frame, num_params: int) -> list[Cut]:
    """The cuts of a frame whose first inputs are the parameters, and whose first output is the loss."""
    return _Search(frame, num_params).cuts()


def without(frame: Frame, num_params: int, cuts: Sequence[Cut]) -> Frame:
    """The frame with the cuts as inputs after the parameters."""
    made = {cut.variable for cut in cuts}
    jaxpr = frame.jaxpr
    kept = [index for index, eqn in enumerate(jaxpr.eqns) if made.isdisjoint(eqn.outvars)]
    inputs = [*jaxpr.invars[:num_params], *(cut.variable for cut in cuts), *jaxpr.invars[num_params:]]
    body = _Body(jaxpr.constvars, inputs, [jaxpr.eqns[index] for index in kept], jaxpr.outvars)
    children = {new: frame.children[old] for new, old in enumerate(kept) if old in frame.children}
    return Frame(body, frame.consts, children)


def evaluated(frame: Frame, params: Sequence[Array], cuts: Sequence[Cut]) -> tuple[list[Array], list[dict[int, Array]]]:
    """The values of the cuts, and for each cut and parameter the sum of the rows of the derivative."""
    values, shared = [], []
    for cut in cuts:
        leaves = list(cut.leaves)

        def value_of(some: Sequence[Array], cut: Cut = cut, leaves: list[int] = leaves) -> Array:
            given = dict(zip(leaves, some, strict=True))
            every = [given.get(leaf, param) for leaf, param in enumerate(params)]
            return parameter_values(frame, every, {cut.variable})[cut.variable]

        value, pull = jax.vjp(value_of, [params[leaf] for leaf in leaves])
        values.append(value)
        shared.append(dict(zip(leaves, pull(jnp.ones_like(value))[0], strict=True)))
    return values, shared


def spread(coefficients: Array, axes: AxisMap, ndim: int) -> Array:
    """Gradients [N, ...] of a cut, with the axes of a parameter that they belong to, and ones elsewhere."""
    order = [axes[axis] for axis in range(ndim) if axis in axes]
    shape = coefficients.shape[1:]
    moved = jnp.transpose(coefficients, (0, *(1 + axis for axis in order), *(
        1 + axis for axis in range(len(shape)) if axis not in order)))  # fmt: skip
    return moved.reshape(-1, *(shape[axes[axis]] if axis in axes else 1 for axis in range(ndim)))


class _Search:
    """What is known of the values of the outermost frame."""

    def __init__(self, frame: Frame, num_params: int) -> None:
        self.jaxpr, self.params = frame.jaxpr, list(frame.jaxpr.invars[:num_params])
        self.made_by = {v: eqn for eqn in self.jaxpr.eqns for v in eqn.outvars}
        self.leaves: dict[Any, frozenset[int]] = {v: frozenset({i}) for i, v in enumerate(self.params)}
        self.data: set[Any] = set(self.jaxpr.invars[num_params:])
        self.linear: set[Any] = set(self.params)
        self.found: dict[Any, Cut] = {}
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
        if self._is_step(eqn) and all(v in self.linear for v in variables if self.leaves.get(v)):
            self.linear.update(eqn.outvars)

    def _is_step(self, eqn: Any) -> bool:
        linked = [i for i, v in enumerate(eqn.invars) if not isinstance(v, jex.Literal) and self.leaves.get(v)]
        return len({eqn.invars[i] for i in linked}) == len(linked) and all(_steps.passes(eqn, i) for i in linked)

    def cuts(self) -> list[Cut]:
        """Every value that is wanted where a parameter's nonlinear image meets data."""
        live = needed(self.jaxpr, self.jaxpr.outvars[:1], frozenset({"stop_gradient"}))
        for eqn in self.jaxpr.eqns:
            if live.isdisjoint(eqn.outvars) or self.data.isdisjoint(eqn.outvars):
                continue
            for v in eqn.invars:
                if not isinstance(v, jex.Literal) and v not in self.data:
                    self.found.update({cut.variable: cut for cut in self._demand(v) or ()})
        return list(self.found.values())

    def _demand(self, v: Any) -> list[Cut] | None:
        """The cuts with which this value becomes a linear image; None where there are none."""
        if isinstance(v, jex.Literal) or v in self.linear or not self.leaves.get(v):
            return []
        if v in self.found:
            return [self.found[v]]
        if (cut := self._cut(v)) is not None:
            return [cut]
        eqn = self.made_by[v]
        if not self._is_step(eqn):
            return None
        parts = [self._demand(u) for u in eqn.invars]
        return None if any(part is None for part in parts) else [cut for part in parts for cut in part or ()]

    def _cut(self, v: Any) -> Cut | None:
        eqn, size = self.made_by[v], math.prod(v.aval.shape)
        largest = max(math.prod(self.params[leaf].aval.shape) for leaf in self.leaves[v])
        if len(eqn.outvars) != 1 or largest <= LARGE or _SHARE * size > largest:
            return None
        leaves = {leaf: self._axes(leaf, v) for leaf in sorted(self.leaves[v])}
        wide = {axis for axis, length in enumerate(v.aval.shape) if length > 1}
        separate = all(wide <= set(axes.values()) for axes in leaves.values())
        return Cut(v, leaves) if separate else None

    def _axes(self, leaf: int, v: Any) -> AxisMap:
        if leaf not in self.maps:
            source = self.params[leaf]
            maps: dict[Any, AxisMap] = {source: {axis: axis for axis in range(source.aval.ndim)}}
            for eqn in self.jaxpr.eqns:
                known = [(x, maps[x]) for x in eqn.invars if not isinstance(x, jex.Literal) and x in maps]
                if known and eqn.primitive.name != "stop_gradient":
                    maps.update((out, _axis_map(eqn, known)) for out in eqn.outvars if out in self.leaves)
            self.maps[leaf] = maps
        return {mine: its for mine, its in self.maps[leaf][v].items() if v.aval.shape[its] > 1}


def _axis_map(eqn: Any, inputs: Sequence[tuple[Any, AxisMap]]) -> AxisMap:
    """The map of an output, given those of the inputs that depend on the parameter; empty where nothing is known."""
    name, out = eqn.primitive.name, eqn.outvars[0].aval.shape
    if name in _steps.ELEMENTWISE:
        kept = [{a: b for a, b in axes.items() if len(v.aval.shape) == len(out) and v.aval.shape[b] == out[b]}
                for v, axes in inputs]  # fmt: skip
        return {a: b for a, b in kept[0].items() if all(other.get(a) == b for other in kept)}
    (source, axes), *others = inputs
    if others:
        return {}
    shape = source.aval.shape
    if name == "broadcast_in_dim":
        to = eqn.params["broadcast_dimensions"]
        return {a: to[b] for a, b in axes.items() if shape[b] == out[to[b]]}
    if name in _REDUCTIONS:
        gone = eqn.params["axes"]
        return {a: b - sum(axis < b for axis in gone) for a, b in axes.items() if b not in gone}
    if name == "transpose":
        return {a: eqn.params["permutation"].index(b) for a, b in axes.items()}
    if name == "squeeze" or (name in _MOVES and eqn.params.get("dimensions") is None):
        old, new = ([axis for axis, size in enumerate(s) if size > 1] for s in (shape, out))
        if [shape[axis] for axis in old] == [out[axis] for axis in new]:
            return {a: new[old.index(b)] for a, b in axes.items() if b in old}
    return {}


def varying(made_by: dict[Any, Any], v: Any) -> tuple[bool, ...]:
    """For each axis of a value whether its entries may differ along it."""
    own = tuple(size > 1 for size in v.aval.shape)
    eqn = None if isinstance(v, jex.Literal) else made_by.get(v)
    if eqn is None:
        return own
    if eqn.primitive.name == "broadcast_in_dim":
        source, to = varying(made_by, eqn.invars[0]), eqn.params["broadcast_dimensions"]
        return tuple(axis in to and source[to.index(axis)] for axis in range(len(own)))
    if eqn.primitive.name not in _steps.ELEMENTWISE:
        return own
    each = [varying(made_by, x) for x in eqn.invars if len(x.aval.shape) == len(own)]
    return tuple(any(of[axis] for of in each) for axis in range(len(own)))
