"""Map a function of one example over the rows of a batch, so that no row can reach another.

    gradients = map_rows(gradient_of_one)(arrays)      # each array has a leading axis of rows

`map_rows` is `jax.vmap`, but for convolutions of two values that both depend on the example, such as that by which JAX
computes the gradient of a kernel. Under vmap they become one convolution with the rows as groups, in which XLA lets a
row that overflows reach the others: `isolated_convolution` says how, and computes them in another way.

The function is traced for one example. These convolutions are found in its program, which is then evaluated under vmap
with each of them replaced. Tracing it takes time, so only losses with convolutions are mapped like this.
"""

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from gdpjax._core.types import Array
from gdpjax.clipping._row_independence import CONVOLUTION, inner_programs
from gdpjax.clipping._tracing import (
    CALLS,
    CUSTOM,
    Frame,
    Place,
    evaluate_replaced,
    frame_of,
    is_literal,
    isolated_convolution,
    opened,
    scan_of,
)


def one_by_one(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that computes rows one after the other, also under a `jax.vmap` around all of it.

    The function is never given more than one row, so it may be made of anything that does not keep a state.
    """
    return jax.vmap(jax.custom_batching.sequential_vmap(function))


def map_rows(function: Callable[[list[Array]], Any]) -> Callable[[list[Array]], Any]:
    """Return ``jax.vmap(function)``, with convolutions that keep the rows apart.

    Args:
      function: a function of the arrays of one example.

    Raises:
      ValueError: such a convolution is inside an operation that cannot be evaluated step by step.
    """

    def mapped(rows: list[Array]) -> Any:
        # Trace the function for one row.
        row = [jax.ShapeDtypeStruct(x.shape[1:], x.dtype) for x in rows]
        closed, outputs = jax.make_jaxpr(function, return_shape=True)(row)
        frame = frame_of(closed, CALLS | CUSTOM)
        replaced = {place: functools.partial(_isolated, eqn) for place, eqn in _mixing(frame, [True] * len(row))}

        def one_row(row: list[Array]) -> list[Any]:
            return evaluate_replaced(frame, row, replaced, dict.fromkeys(replaced, ()))

        return jax.tree.unflatten(jax.tree.structure(outputs), jax.vmap(one_row)(rows))

    return mapped


def _isolated(eqn: Any, _: Any, values: list[Any]) -> list[Array]:
    """Evaluate a convolution of two values that depend on the example."""
    return [isolated_convolution(eqn, *values)]


def _mixing(frame: Frame, depends_on_rows: Sequence[bool], place: Place = ()) -> Iterator[tuple[Place, Any]]:
    """Find the convolutions in which `jax.vmap` makes groups of the rows, by their places.

    Args:
      frame: the program of one example.
      depends_on_rows: for each of its inputs, whether it depends on the example.
      place: the place of the frame.

    Raises:
      ValueError: there may be one inside an operation that cannot be evaluated step by step.
    """
    private = {variable for variable, depends in zip(frame.jaxpr.invars, depends_on_rows, strict=True) if depends}
    for index, eqn in enumerate(frame.jaxpr.eqns):
        name = eqn.primitive.name
        inputs = [not is_literal(atom) and atom in private for atom in eqn.invars]
        if name == CONVOLUTION and _makes_groups(eqn, inputs):
            yield (*place, index), eqn

        # What a scan carries may depend on the example after its first iteration.
        inside = inputs
        scan = scan_of(eqn) if name == "scan" else None
        if scan is not None:
            consts, carried, scanned = scan.split(inputs)
            inside = [*consts, *[any(inputs)] * len(carried), *scanned]
        # Where an example chooses the branch, vmap gives every input of the branches an axis of rows.
        if name == "cond":
            inside = [inputs[0] or depends for depends in inputs[1:]]

        bodies = frame.children.get(index, ())
        for number, body in enumerate(bodies):
            yield from _mixing(body, inside, (*place, index, number))
        if not bodies and any(inputs) and any(map(_has_convolution, inner_programs(eqn))):
            raise ValueError(
                f"loss_fn convolves values that depend on the example inside {name}, where their convolutions cannot "
                "be computed for each example by itself; take the convolution out of it, or compute rows one at a time "
                '(strategy="sequential")'
            )
        if any(inputs):
            private.update(eqn.outvars)


def _has_convolution(program: Any) -> bool:
    """Return whether there is a convolution in a program, or in a program inside it."""
    jaxpr, _ = opened(program)
    for eqn in jaxpr.eqns:
        if eqn.primitive.name == CONVOLUTION or any(map(_has_convolution, inner_programs(eqn))):
            return True
    return False


def _makes_groups(eqn: Any, inputs: list[bool]) -> bool:
    """Return whether vmap makes groups of the rows of a convolution, given which operands depend on the rows.

    It does where both do, or where the batch is grouped already. Integers are left out: they do not overflow to NaN.
    """
    input_depends, kernel_depends = inputs
    is_grouped = input_depends and (kernel_depends or eqn.params["batch_group_count"] > 1)
    return is_grouped and jnp.issubdtype(eqn.outvars[0].aval.dtype, jnp.inexact)
