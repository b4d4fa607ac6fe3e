"""Layers with a derivative of their own (custom_vjp, custom_jvp): factors read off what their rule computes.

Such a layer is never looked into: its rule may answer with anything, as a straight-through estimator does. Instead the
rule is traced, to a jaxpr from the layer's inputs and the cotangents of its outputs to the cotangents of its inputs (a
`Pull`), and the cotangent that it gives a parameter is followed backwards through casts, transposes, reshapes and
scales. Where it comes from a product of two values or from rows added to a table of zeros, those two values are the
factors of the gradient, whatever they are (`Ruled`). Where it is the cotangent of the output itself, as in a quantiser
of weights that passes gradients straight through, the layer is a step to which factors can answer. A rule that computes
anything else, or cannot be traced, leaves the parameter to JAX.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.extend.core as jex
import jax.numpy as jnp
from jax import lax

from gdpjax._core.trees import wide_dtype
from gdpjax._core.types import Array
from gdpjax.clipping._factors import Axis, Factor, Full, Outer, Sparse, full_gradient
from gdpjax.clipping._ghost._jaxpr import Env, Frame, evaluate, frame_of, leading_to, needed
from gdpjax.clipping._ghost._steps import regrouped

_CASTS = frozenset({"convert_element_type", "copy", "copy_p"})
_MOVES = frozenset({"transpose", "reshape", "squeeze", "expand_dims", "broadcast_in_dim"})


class Pull(NamedTuple):
    """The derivative rule of an equation: (inputs, cotangents of outputs) to (outputs, cotangents of some inputs)."""

    frame: Frame
    eqn: Any
    operands: tuple[int, ...]  # the inputs that have cotangents

    def outputs(self) -> list[Any]:
        """Variables of the outputs."""
        return list(self.frame.jaxpr.outvars[: len(self.eqn.outvars)])

    def arriving(self) -> list[Any]:
        """Variables of the cotangents of the outputs."""
        return list(self.frame.jaxpr.invars[len(self.eqn.invars) :])

    def cotangent(self, operand: int) -> Any:
        """The variable (or literal) of the cotangent of an input."""
        return self.frame.jaxpr.outvars[len(self.eqn.outvars) + self.operands.index(operand)]


def pull_of(eqn: Any) -> Pull | None:
    """The rule of a custom_vjp or custom_jvp equation, or None where it has to be left to JAX."""
    avals = [v.aval for v in (*eqn.invars, *eqn.outvars)]
    if eqn.params.get("symbolic_zeros") or any(0 in a.shape for a in avals) or not all(map(_real, eqn.outvars)):
        return None
    closed_over = eqn.params.get("num_consts", 0)  # for which there is no rule
    operands = tuple(
        i for i, v in enumerate(eqn.invars)
        if i >= closed_over and jnp.issubdtype(v.aval.dtype, jnp.inexact) and not isinstance(v, jex.Literal)
    )  # fmt: skip

    def both(inputs: list[Any], cotangents: list[Any]) -> Any:
        def outputs(*values: Any) -> list[Any]:
            given = dict(zip(operands, values, strict=True))
            return evaluate(eqn, [given.get(i, value) for i, value in enumerate(inputs)])

        found, pull = jax.vjp(outputs, *(inputs[i] for i in operands))
        return found, pull(cotangents)

    specs = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in avals]
    try:
        traced = jax.make_jaxpr(both)(specs[: len(eqn.invars)], specs[len(eqn.invars) :])
    except Exception:  # user code: JAX may need less of the rule than this, and else will say what is wrong with it
        return None
    return None if traced.effects else Pull(frame_of(traced), eqn, operands)


def halves(pull: Pull, wanted: Sequence[Any]) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """The rule cut in two: (inputs, constants) to (outputs, saved), and (saved, cotangents) to what is ``wanted``."""
    jaxpr = pull.frame.jaxpr
    after = set(pull.arriving())
    late = []
    for eqn in jaxpr.eqns:
        if any(not isinstance(v, jex.Literal) and v in after for v in eqn.invars):
            after.update(eqn.outvars)
            late.append(eqn)
    useful = needed(jaxpr, wanted)
    late = [eqn for eqn in late if not useful.isdisjoint(eqn.outvars)]
    read = [*wanted, *(v for eqn in late for v in eqn.invars)]
    saved = list(dict.fromkeys(v for v in read if not isinstance(v, jex.Literal) and v not in after))
    early = leading_to(jaxpr, [*pull.outputs(), *saved])
    nothing = [None] * len(jaxpr.constvars)

    def forward(inputs: Sequence[Any], consts: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        env = Env(jaxpr, consts, [*inputs, *(None for _ in pull.arriving())])
        env.run(early)
        return env.read_all(pull.outputs()), env.read_all(saved)

    def backward(values: Sequence[Any], cotangents: Sequence[Any]) -> list[Any]:
        env = Env(jaxpr, nothing, [*(None for _ in pull.eqn.invars), *cotangents])
        env.write(saved, values)
        env.run(late)
        return env.read_all(wanted)

    return forward, backward


class Ruled(NamedTuple):
    """How a rule makes the cotangent of a parameter: ``atoms`` go into ``base``, and from there through ``steps``."""

    pull: Pull
    base: Any  # the equation that multiplies or scatters; None: the cotangent of the output itself
    steps: tuple[tuple[Any, Any], ...]  # (equation, scale or None)
    atoms: tuple[Any, ...]  # all values of the rule that are needed

    def factor(self, values: Sequence[Array]) -> Factor:
        """The gradient, given the values of the atoms."""
        known = dict(zip(self.atoms, values, strict=True))
        first, second = values[:2]
        return self.onward(_PRODUCTS[self.base.primitive.name](self.base, first, second), known)

    def onward(self, factor: Factor, known: dict[Any, Array] | None = None) -> Factor:
        """The gradient after the steps."""
        for eqn, scale in self.steps:
            value = scale if scale is None else scale.val if isinstance(scale, jex.Literal) else (known or {})[scale]
            factor = _after(factor, eqn, value)
        return factor

    def times(self) -> int:
        """Outer products of one evaluation."""
        factor = self.abstract()
        return factor.left.shape[0] if isinstance(factor, Outer) else 1

    def abstract(self) -> Factor:
        """The factor, without values."""
        return jax.eval_shape(self.factor, [jax.ShapeDtypeStruct(a.aval.shape, a.aval.dtype) for a in self.atoms])


def ruled(pull: Pull, operand: int) -> Ruled | None:
    """How the rule makes the cotangent of an input, or None where that is nothing that factors can follow."""
    if operand not in pull.operands:
        return None
    made_by = {v: eqn for eqn in pull.frame.jaxpr.eqns for v in eqn.outvars}
    atom, steps, atoms = pull.cotangent(operand), [], []
    while not isinstance(atom, jex.Literal) and (eqn := made_by.get(atom)) is not None:
        if not all(_real(v) for v in (*eqn.invars, *eqn.outvars)) and eqn.primitive.name != "scatter-add":
            return None
        step = _linear(eqn)
        if step is None:
            return _produced(pull, eqn, steps, atoms, made_by)
        if _narrows(eqn, pull.eqn.invars[operand]):
            return None
        source, scale = step
        steps.append((eqn, scale))
        atoms += [scale] if scale is not None and not isinstance(scale, jex.Literal) else []
        atom = eqn.invars[source]
    passes = not isinstance(atom, jex.Literal) and pull.arriving() == [atom] and not atoms
    return Ruled(pull, None, tuple(reversed(steps)), ()) if passes else None


def _produced(pull: Pull, eqn: Any, steps: list[Any], atoms: list[Any], made_by: dict[Any, Any]) -> Ruled | None:
    if eqn.primitive.name not in _PRODUCTS or not _is_product(eqn, made_by):
        return None
    found = Ruled(pull, eqn, tuple(reversed(steps)), tuple(dict.fromkeys((*_sources(eqn), *atoms))))
    repeated = len(set(_sources(eqn))) < len(_sources(eqn))
    rounds = any(_narrows(eqn, v) for v in _sources(eqn) if jnp.issubdtype(v.aval.dtype, jnp.floating))
    return None if repeated or rounds or isinstance(found.abstract(), Full) else found


def _real(variable: Any) -> bool:
    """Floating, and of a precision to which rounding may be left out."""
    dtype = variable.aval.dtype
    return jnp.issubdtype(dtype, jnp.floating) and dtype.itemsize >= 2


def _narrows(eqn: Any, than: Any) -> bool:
    """Whether it rounds to less than the precision of that variable; such rounding is part of the rule."""
    dtype = eqn.outvars[0].aval.dtype
    return jnp.promote_types(dtype, than.aval.dtype) != dtype


def _linear(eqn: Any) -> tuple[int, Any] | None:
    """(operand, scale) of an equation that casts, moves or scales that operand."""
    name, out = eqn.primitive.name, eqn.outvars[0].aval
    if name == "neg" or name in _CASTS or name in _MOVES:
        plain = name != "reshape" or eqn.params["dimensions"] is None
        return (0, None) if plain and math.prod(eqn.invars[0].aval.shape) == math.prod(out.shape) else None
    if name == "mul" or name == "div":
        for source in (0,) if name == "div" else (0, 1):
            scale = eqn.invars[1 - source]
            if eqn.invars[source].aval.shape == out.shape and math.prod(scale.aval.shape) == 1:
                return source, scale
    return None


def _after(factor: Factor, eqn: Any, scale: Any) -> Factor:
    """The gradient after a step, in factors where they can follow."""
    name, old, new = eqn.primitive.name, eqn.invars[0].aval.shape, eqn.outvars[0].aval.shape
    if name in _CASTS:
        return factor
    if name in ("neg", "mul", "div"):
        scale = jnp.asarray(-1.0) if scale is None else jnp.asarray(scale).reshape(())
        return _scaled(factor, 1 / scale.astype(wide_dtype(scale)) if name == "div" else scale)
    if isinstance(factor, Outer):
        if name == "transpose":
            return Outer(factor.left, factor.right, tuple(factor.axes[axis] for axis in eqn.params["permutation"]))
        moved = regrouped(factor, new, old)
        if moved is not None:
            return moved
    gradient = full_gradient(factor, old)
    return Full(jnp.transpose(gradient, eqn.params["permutation"]) if name == "transpose" else gradient.reshape(new))


def _scaled(factor: Factor, scale: Array) -> Factor:
    times = lambda x: x.astype(wide_dtype(x)) * scale.astype(wide_dtype(x))  # noqa: E731
    if isinstance(factor, Outer):
        return Outer(factor.left, times(factor.right), factor.axes)
    return factor._replace(values=times(factor.values)) if isinstance(factor, Sparse) else Full(times(factor.gradient))


def _sources(eqn: Any) -> tuple[Any, ...]:
    """The two values that are multiplied, or the indices and the rows."""
    return tuple(eqn.invars[1:] if eqn.primitive.name == "scatter-add" else eqn.invars)


def _is_product(eqn: Any, made_by: dict[Any, Any]) -> bool:
    if any(isinstance(v, jex.Literal) for v in _sources(eqn)):
        return False
    if eqn.primitive.name == "mul":  # of a column and a row; entry by entry there is nothing to keep apart
        kinds = [kind for kind, _ in _product_axes(eqn)]
        return "l" in kinds and "r" in kinds
    return eqn.primitive.name == "dot_general" or _adds_rows(eqn, made_by.get(eqn.invars[0]))


def _adds_rows(eqn: Any, table: Any) -> bool:
    """zeros.at[index].add(rows), with whole rows of the first axis."""
    numbers, shape = eqn.params["dimension_numbers"], eqn.outvars[0].aval.shape
    of_zeros = table is not None and table.primitive.name == "broadcast_in_dim" and _is_zero(table.invars[0])
    whole = tuple(eqn.invars[2].aval.shape[axis] for axis in numbers.update_window_dims) == tuple(shape[1:])
    first = tuple(numbers.inserted_window_dims) == tuple(numbers.scatter_dims_to_operand_dims) == (0,)
    return of_zeros and whole and first and not numbers.operand_batching_dims and _real(eqn.invars[2])


def _is_zero(atom: Any) -> bool:
    return isinstance(atom, jex.Literal) and not jnp.ndim(atom.val) and atom.val == 0


def _product_axes(eqn: Any) -> tuple[Axis, ...]:
    """Which factor of an elementwise product has each axis; the factors keep the others, of length one."""
    first, second = (v.aval.shape for v in eqn.invars)
    kinds = ["b" if a > 1 and b > 1 else "r" if b > 1 else "l" for a, b in zip(first, second, strict=True)]
    return tuple((kind, kinds[:axis].count(kind)) for axis, kind in enumerate(kinds))


def _of_mul(eqn: Any, u: Array, v: Array) -> Outer:
    axes = _product_axes(eqn)
    size = lambda kinds: [n for n, (k, _) in zip(eqn.outvars[0].aval.shape, axes, strict=True) if k in kinds]  # noqa: E731
    order = sorted(range(u.ndim), key=lambda axis: axes[axis][0] != "b")
    left, right = (
        jnp.transpose(x, order).reshape(1, *size("b"), *size(kind)) for kind, x in zip("lr", (u, v), strict=True)
    )
    return Outer(left, right, axes)


def _of_dot(eqn: Any, u: Array, v: Array) -> Outer:
    contract, batch = eqn.params["dimension_numbers"]
    factors, axes = [], [("b", i) for i in range(len(batch[0]))]
    for kind, x, summed, blocks in zip("lr", (u, v), contract, batch, strict=True):
        free = [axis for axis in range(x.ndim) if axis not in (*summed, *blocks)]
        moved = jnp.transpose(x, (*summed, *blocks, *free))
        factors.append(moved.reshape(math.prod(moved.shape[: len(summed)]), *moved.shape[len(summed) :]))
        axes += [(kind, i) for i in range(len(free))]
    left, right = factors
    return Outer(left, right, tuple(axes))


def _of_scatter(eqn: Any, index: Array, rows: Array) -> Sparse:
    shape, window = eqn.outvars[0].aval.shape, eqn.params["dimension_numbers"].update_window_dims
    rows = jnp.transpose(rows, (*(axis for axis in range(rows.ndim) if axis not in window), *window))
    index = index.reshape(-1)
    if eqn.params["mode"] == lax.GatherScatterMode.CLIP:
        index = jnp.clip(index, 0, shape[0] - 1)
    return Sparse(jnp.where(index < 0, shape[0], index), rows.reshape(-1, *shape[1:]))


_PRODUCTS: dict[str, Callable[[Any, Array, Array], Factor]] = {
    "dot_general": _of_dot, "mul": _of_mul, "scatter-add": _of_scatter,
}  # fmt: skip
