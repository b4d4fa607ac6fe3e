"""The base class of families of primitives: all that the engine knows about a primitive of JAX.

A family of primitives is a subclass. This one says that a weight of a primitive ``scale`` is multiplied by its data:

    class Scale(AbstractPrimitive):
        def is_site(self, eqn, operand):
            return operand == 0                       # y = weight * x, one number for each entry

        def factor(self, eqn, operand, x, s):
            return Full(x * s)                        # the gradient of the weight, for the cotangent s of y

    register_primitive("scale", Scale())

A family answers three questions about an equation of the traced loss, all from static shapes and parameters:

* Can the equation be a *site*, where a weight meets data? What is then the gradient of the weight? (`is_site`,
  `factor`)
* Is the equation a linear map that a parameter passes before it meets data? How do gradients go back through it?
  (`is_linear`, `pull_back`)
* Which axes of the output belong to which axes of an operand? (`axis_map`)

The default answers mean "unknown". The parameter is then left to JAX, which forms its gradient for each example. The
remaining methods serve special cases, and few families override them.
"""

import abc
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from gdpjax._core.types import Array
from gdpjax.clipping._tracing._factors import AbstractFactor, Full
from gdpjax.clipping._tracing._jaxprs import evaluate_equation, shape_of


class AbstractPrimitive(abc.ABC):  # noqa: B024 - every default is an answer: unknown
    """A family of primitives. Subclass it, override what is known, and register an instance.

    An equation ``eqn`` has ``eqn.params``, ``eqn.invars`` and ``eqn.outvars``; of a variable v, ``v.aval.shape`` and
    ``v.aval.dtype`` are known. ``operand`` counts the inputs.

    Attributes:
      is_lookup: whether `factor` returns a `Sparse`, so that the weight is a table.
      acts_on_one_example: whether `jax.vmap` applies the primitive to every row by itself. By True you vouch for it: a
        rule for vmap that mixes the rows of a batch makes every privacy statement wrong.
    """

    is_lookup: bool = False
    acts_on_one_example: bool = True

    # First question: a weight meets data.

    def is_site(self, eqn: Any, operand: int) -> bool:
        """Return whether the equation is linear in this operand, the weight, and `factor` knows its gradient."""
        return False

    def factor(self, eqn: Any, operand: int, x: Array, s: Array) -> AbstractFactor:
        """Return one example's gradient of the weight.

        Args:
          eqn: the equation y = f(weight, x).
          operand: which input is the weight.
          x: the value of the `data_operand`; of integers, those below 0 are given as -1.
          s: the cotangent of y.
        """
        raise NotImplementedError(f"{type(self).__name__} is no site")  # pragma: no cover

    def data_operand(self, eqn: Any, operand: int) -> int:
        """Return the input that `factor` is given: the other one of two, or else the second."""
        return 1 - operand if len(eqn.invars) == 2 else 1

    def working_bytes(self, eqn: Any, operand: int) -> int:
        """Return the bytes that `factor` needs for one example, beside those of x, s and the result."""
        return 0

    def data_gradient(self, eqn: Any, operand: int, values: Sequence[Any], s: Array) -> Array:
        """Return the gradient of the `data_operand`, given the values of all inputs and the cotangent s."""
        place = self.data_operand(eqn, operand)

        def output(x: Array) -> Array:
            return self.evaluate(eqn, [*values[:place], x, *values[place + 1 :]])[0]

        _, pull_back = jax.vjp(output, values[place])
        (gradient,) = pull_back(s)
        return gradient

    # The engine may compute an equation in another way than JAX does.

    def is_rewritten(self, eqn: Any) -> bool:
        """Return whether `evaluate` and `differentiable` take the place of the equation wherever it occurs."""
        return False

    def evaluate(self, eqn: Any, values: Sequence[Any]) -> list[Any]:
        """Return the outputs of the equation at a site, where nothing is differentiated."""
        return evaluate_equation(eqn, values)

    def differentiable(self, eqn: Any, values: Sequence[Any]) -> list[Any]:
        """Return the outputs of an equation that is no site, and that JAX differentiates."""
        return evaluate_equation(eqn, values)

    # Second question: a parameter passes before it meets data.

    def is_linear(self, eqn: Any, operand: int) -> bool:
        """Return whether the only output is linear in this operand, whatever the values of the others."""
        return False

    def values_needed(self, eqn: Any, operand: int) -> list[Any]:
        """Return the inputs whose values `multiplier` needs."""
        return []

    def multiplier(self, eqn: Any, operand: int, values: Sequence[Array]) -> Array:
        """Return what `pull_back` needs to know of the values of `values_needed`."""
        return jnp.asarray(values[0])

    def is_scaling(self, eqn: Any) -> bool:
        """Return whether the multiplier holds one number for each entry of the output."""
        return False

    def pull_back(self, factor: AbstractFactor, eqn: Any, operand: int, multiplier: Array | None) -> AbstractFactor:
        """Return the gradient of the operand, given that of the output: by default formed, by JAX's transpose."""
        out = eqn.outvars[0].aval

        def apply(value: Array) -> Array:
            values = []
            for place, variable in enumerate(eqn.invars):
                if place == operand:
                    values.append(value)
                elif multiplier is None:
                    values.append(jnp.zeros(variable.aval.shape, variable.aval.dtype))
                else:
                    values.append(multiplier)
            return self.evaluate(eqn, values)[0]

        transpose = jax.linear_transpose(apply, shape_of(eqn.invars[operand]))
        (gradient,) = transpose(factor.formed(out.shape).astype(out.dtype))
        return Full(gradient)

    # Third question: which entries depend on which.

    def axis_map(self, eqn: Any, operand: int) -> dict[int, int]:
        """Return, for some axes of the operand, the axis of the (first) output that belongs to it.

        An entry of the output depends on those entries of the operand alone that have the same index there.
        """
        return {}

    def varying_axes(self, eqn: Any, varying: Callable[[int], tuple[bool, ...]]) -> tuple[bool, ...]:
        """Return for each axis of the output whether entries may differ along it; ``varying`` tells of an operand."""
        return tuple(size > 1 for size in eqn.outvars[0].aval.shape)

    # Within a derivative rule that was written by hand.

    def moved_operand(self, eqn: Any) -> tuple[int, Any] | None:
        """Return (operand, scale) of an equation that casts, moves or scales all entries of an operand.

        The scale is a variable or literal of one entry, or None.
        """
        return None

    def follow(self, factor: AbstractFactor, eqn: Any, scale: Array | None) -> AbstractFactor:
        """Return the gradient after an equation that moves it, given the value of its scale."""
        raise NotImplementedError(f"{type(self).__name__} moves nothing")  # pragma: no cover

    def multiplied(self, eqn: Any, made_by: dict[Any, Any]) -> list[Any] | None:
        """Return the two variables that `product` makes a gradient of, or None; ``made_by`` has their equations."""
        return None

    def product(self, eqn: Any, first: Array, second: Array) -> AbstractFactor:
        """Return the output of the equation as a gradient in factors."""
        raise NotImplementedError(f"{type(self).__name__} multiplies nothing")  # pragma: no cover


def is_floating_output(eqn: Any) -> bool:
    """Return whether an equation has one output, of floating numbers."""
    if len(eqn.outvars) != 1:
        return False
    return jnp.issubdtype(eqn.outvars[0].aval.dtype, jnp.floating)


def num_bytes(aval: Any) -> int:
    """Return the bytes of an array of this type."""
    size = math.prod(getattr(aval, "shape", ()))
    return size * getattr(aval.dtype, "itemsize", 8)
