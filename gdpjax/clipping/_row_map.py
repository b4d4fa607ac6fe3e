"""Map a function of one example over the rows of a batch, so that no row can reach another; per-example gradients.

    gradients = map_rows(gradient_of_one, in_axes=(None, 0))(params, rows)

`example_grads` maps `jax.grad` of the loss: simple, general, and the oracle of every other strategy.

`map_rows` is `jax.vmap`, but for convolutions of two values that both depend on the example, such as that by which JAX
computes the gradient of a kernel. Under vmap they become one convolution with the rows as groups, in which XLA lets a
row that overflows reach the others: `isolated_convolution` says how, and computes them in another way.

The function is traced for one example. `read_program` finds these convolutions in its program, and the program is then
evaluated under vmap with each of them replaced. Tracing it takes time, so only losses with convolutions are mapped like
this: see `vmap_of`.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from gdpjax._core.trees import wide_dtype
from gdpjax._core.types import Array
from gdpjax.clipping._loss import Call, example_loss
from gdpjax.clipping._row_independence import inner_programs, read_program
from gdpjax.clipping._tracing import CALLS, CUSTOM, REMAT, evaluate, isolated_convolution, opened, scan_of


def vmap_of(has_convolution: bool) -> Callable[..., Any]:
    """Return the function that maps over rows: `map_rows` for a loss with convolutions, else `jax.vmap`."""
    return map_rows if has_convolution else jax.vmap


def one_by_one(function: Callable[..., Any], in_axes: tuple[int | None, ...]) -> Callable[..., Any]:
    """Return a function that computes rows one after the other, also under a `jax.vmap` around all of it.

    The function is never given more than one row, so it may be made of anything that does not keep a state.
    """
    return jax.vmap(jax.custom_batching.sequential_vmap(function), in_axes)


def map_rows(function: Callable[..., Any], in_axes: tuple[int | None, ...]) -> Callable[..., Any]:
    """Return ``jax.vmap(function, in_axes)``, with convolutions that keep the rows apart.

    Args:
      function: a function of one example.
      in_axes: for each argument 0, if its leaves have a leading axis of rows, or None.

    Raises:
      ValueError: such a convolution is inside an operation that cannot be evaluated step by step.
    """

    def mapped(*args: Any) -> Any:
        # Trace the function for one row.
        specs = []
        depends_on_rows = []
        for arg, axis in zip(args, in_axes, strict=True):
            for leaf in jax.tree.leaves(arg):
                shape = jnp.shape(leaf)
                shape = shape if axis is None else shape[1:]
                specs.append(jax.ShapeDtypeStruct(shape, jnp.result_type(leaf)))
                depends_on_rows.append(axis is not None)
        structure = jax.tree.structure(args)

        def flat(*leaves: Any) -> Any:
            return function(*jax.tree.unflatten(structure, leaves))

        closed, outputs = jax.make_jaxpr(flat, return_shape=True)(*specs)
        program = read_program(closed, depends_on_rows, "the gradient of loss_fn")
        evaluation = _Evaluation(program.row_convolutions)
        jaxpr, consts = opened(closed)

        def one_row(*leaves: Any) -> list[Any]:
            return evaluation.program(jaxpr, consts, leaves)

        axes = tuple(0 if depends else None for depends in depends_on_rows)
        results = jax.vmap(one_row, axes)(*jax.tree.leaves(args))
        return jax.tree.unflatten(jax.tree.structure(outputs), results)

    return mapped


class _Evaluation:
    """An evaluation of a program in which some convolutions are isolated.

    Attributes:
      isolated: the ids of their equations.
      has_isolated: a cache of `is_isolated_in`, by the id of the program.
    """

    def __init__(self, convolutions: Sequence[Any]) -> None:
        self.isolated = {id(eqn) for eqn in convolutions}
        self.has_isolated: dict[int, bool] = {}

    def is_isolated_in(self, eqn: Any) -> bool:
        """Return whether a program inside an equation has an isolated convolution."""
        return any(self._found_in(body) for body in inner_programs(eqn))

    def _found_in(self, body: Any) -> bool:
        jaxpr, _ = opened(body)
        if id(jaxpr) not in self.has_isolated:
            found = False
            for eqn in jaxpr.eqns:
                found = found or id(eqn) in self.isolated or self.is_isolated_in(eqn)
            self.has_isolated[id(jaxpr)] = found
        return self.has_isolated[id(jaxpr)]

    def program(self, jaxpr: Any, consts: Sequence[Any], args: Sequence[Any]) -> list[Any]:
        """Return the outputs of a program."""

        def in_place_of(index: int, eqn: Any) -> Any:
            if id(eqn) in self.isolated:
                return lambda values: [isolated_convolution(eqn, *values)]
            return functools.partial(self.nested, eqn) if self.is_isolated_in(eqn) else None

        return evaluate(jaxpr, consts, args, in_place_of)

    def body(self, closed: Any) -> Callable[..., list[Any]]:
        """Return a program inside an equation as a function."""
        jaxpr, consts = opened(closed)
        return lambda *args: self.program(jaxpr, consts, args)

    def nested(self, eqn: Any, values: list[Any]) -> Sequence[Any]:
        """Evaluate an equation that has an isolated convolution inside."""
        name = eqn.primitive.name
        scan = scan_of(eqn) if name == "scan" else None
        if scan is not None:
            consts, carried, scanned = scan.split(values)
            body = self.body(eqn.params["jaxpr"])
            return scan.evaluate(lambda carried, slices: body(*consts, *carried, *slices), carried, scanned)
        if name == "while":
            return self.while_loop(eqn, values)
        if name == "cond":
            index, *args = values
            branches = [self.body(branch) for branch in eqn.params["branches"]]
            return lax.switch(index, branches, *args)
        bodies = inner_programs(eqn)
        if name in REMAT:
            # The barrier keeps XLA from finding that all this was computed before, and from keeping it.
            return self.body(bodies[0])(*lax.optimization_barrier(values))
        if name in CALLS | CUSTOM and len(bodies) == 1:
            return self.body(bodies[0])(*values)
        raise ValueError(
            f"loss_fn convolves two values that depend on the example inside {name}, where their convolutions cannot "
            "be computed for each example by itself; take the convolution out of it"
        )

    def while_loop(self, eqn: Any, values: list[Any]) -> Sequence[Any]:
        """Evaluate a while loop."""
        num_of_condition = eqn.params["cond_nconsts"]
        num_of_body = eqn.params["body_nconsts"]
        of_condition = values[:num_of_condition]
        of_body = values[num_of_condition : num_of_condition + num_of_body]
        carried = values[num_of_condition + num_of_body :]
        condition = self.body(eqn.params["cond_jaxpr"])
        body = self.body(eqn.params["body_jaxpr"])
        return lax.while_loop(
            lambda carried: condition(*of_condition, *carried)[0],
            lambda carried: body(*of_body, *carried),
            carried,
        )


def example_grads(
    call: Call, batch: list[Any], positions: Array, map_rows: Callable[..., Any]
) -> tuple[list[Array], Any]:
    """Differentiate the loss at every example.

    Args:
      call: all that the examples share.
      batch: for each batched argument, the rows [B, ...].
      positions: int32 [B], the places of these rows in the whole batch.
      map_rows: maps a function over rows, as `jax.vmap`.

    Returns:
      For each trained leaf the gradients [B, ...], and (losses, aux): the losses [B], in float32 or wider, and all else
      that the loss returned, with a leading batch axis.
    """

    def loss(trained: list[Array], rows: list[Any], position: Array) -> tuple[Array, tuple[Array, Any]]:
        value, aux = example_loss(call, trained, rows, position)
        return value, (value, aux)

    grad = map_rows(jax.grad(loss, has_aux=True), in_axes=(None, 0, 0))
    gradients, (values, aux) = grad(call.trained_leaves, batch, positions)
    return gradients, (values.astype(wide_dtype(values)), aux)
