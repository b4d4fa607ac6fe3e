"""The base class of families of primitives: all that the engine knows about a primitive of JAX.

A family of primitives is a subclass. This one is for a primitive ``scale`` that multiplies a weight by data:

    class Scale(AbstractPrimitive):
        def is_site(self, eqn, operand):
            return operand == 0                       # y = weight * x, entry by entry: the weight comes first

        def factor(self, eqn, operand, x, s):
            return Full(x * s)                        # the gradient of the weight, where s is the cotangent of y

    register_primitive("scale", Scale())

A family answers two questions about an equation of the traced loss. The equation has static shapes and parameters,
and no values yet:

* Can the equation be a *site*, where a weight meets data? If so, what is the gradient of the weight? (`is_site`,
  `factor`)
* Can a parameter pass through the equation, as through a linear map, before it meets data? If so, how does a gradient
  go back through it? (`is_linear`, `pull_back`)

The default answers mean "unknown". The engine then leaves the parameter to JAX, which forms its gradient for each
example. The remaining methods serve special cases, and few families override them.
"""

import abc
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from gdpjax._core.types import Array
from gdpjax.clipping._forms import AbstractFactor, Full
from gdpjax.clipping._tracing._jaxprs import evaluate_equation, shape_of


class AbstractPrimitive(abc.ABC):  # noqa: B024 - no method is abstract: each default says "unknown"
    """A family of primitives. Subclass it, override the methods you know the answer to, and register an instance.

    Every method is given an equation ``eqn``, as JAX has it in a jaxpr: ``eqn.params`` are its static parameters,
    ``eqn.invars`` its inputs and ``eqn.outvars`` its outputs. An input v has ``v.aval.shape`` and ``v.aval.dtype``.
    ``operand`` is the index of an input: ``eqn.invars[operand]``.
    """

    # First question: does a weight meet data here, and what is its gradient?

    def is_site(self, eqn: Any, operand: int) -> bool:
        """Return whether this operand can be a weight: the equation is linear in it, and `factor` has its gradient."""
        return False

    def factor(self, eqn: Any, operand: int, x: Array, s: Array) -> AbstractFactor:
        """Return one example's gradient of the weight.

        Args:
          eqn: the equation y = f(weight, x).
          operand: which input is the weight.
          x: the value of the data, which is the input `data_operand`. Integers below 0 arrive as -1.
          s: the cotangent of y.
        """
        raise NotImplementedError(f"{type(self).__name__} is no site")  # pragma: no cover

    def data_operand(self, eqn: Any, operand: int) -> int:
        """Return the index of the input that is the data.

        An equation of two inputs has one weight and one data; a longer one has its data second, after the weight.
        """
        return 1 - operand if len(eqn.invars) == 2 else 1

    def working_bytes(self, eqn: Any, operand: int) -> int:
        """Return the bytes that `factor` needs for one example, beside those of x, s and the result."""
        return 0

    def data_gradient(self, eqn: Any, operand: int, values: Sequence[Any], s: Array) -> Array:
        """Return the gradient of the data at a site, given the values of all inputs and the cotangent s.

        By default the equation is taken to be linear in the data too, and its transpose is applied.
        """
        data = self.data_operand(eqn, operand)

        def output_of(x: Array) -> Array:
            inputs = list(values)
            inputs[data] = x
            (output,) = self.evaluate(eqn, inputs)
            return output

        (gradient,) = jax.linear_transpose(output_of, shape_of(eqn.invars[data]))(s)
        return gradient

    # A family may compute an equation in another way than JAX does.

    def is_rewritten(self, eqn: Any) -> bool:
        """Return whether the engine computes the equation by `evaluate` and `differentiable`, wherever it occurs."""
        return False

    def evaluate(self, eqn: Any, values: Sequence[Any]) -> list[Any]:
        """Return the outputs of the equation at a site."""
        return evaluate_equation(eqn, values)

    def differentiable(self, eqn: Any, values: Sequence[Any]) -> list[Any]:
        """Return the outputs of the equation where it is no site, so that JAX differentiates what is returned."""
        return evaluate_equation(eqn, values)

    # Second question: can a parameter pass through, as through a linear map, before it meets data?

    def is_linear(self, eqn: Any, operand: int) -> bool:
        """Return whether the equation has one output, linear in this operand for all values of the others."""
        return False

    def pull_back(self, factor: AbstractFactor, eqn: Any, operand: int) -> AbstractFactor:
        """Return the gradient of the operand, given the gradient of the output.

        By default the gradient is formed, and JAX's transpose of the equation takes it back.

        Args:
          factor: the gradient of the output.
          eqn: the equation.
          operand: which input the gradient is taken back to.
        """
        out = eqn.outvars[0].aval

        def apply(value: Array) -> Array:
            # The other inputs are zero: with them a sum, too, is linear in the operand.
            values = [jnp.zeros(variable.aval.shape, variable.aval.dtype) for variable in eqn.invars]
            values[operand] = value
            return self.evaluate(eqn, values)[0]

        transpose = jax.linear_transpose(apply, shape_of(eqn.invars[operand]))
        (gradient,) = transpose(factor.formed(out.shape).astype(out.dtype))
        return Full(gradient)


def is_floating_output(eqn: Any) -> bool:
    """Return whether an equation has one output, of floating numbers."""
    if len(eqn.outvars) != 1:
        return False
    return jnp.issubdtype(eqn.outvars[0].aval.dtype, jnp.floating)
