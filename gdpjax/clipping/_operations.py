"""The operations of a traced program: those of its matrix products and convolutions, which are nearly all of them.

XLA's own count takes the body of a loop once, however often it goes around. Here a loop is counted as often as it is
run, and of a branch the longer side. Results that nobody reads are not counted, as no compiler computes them.
"""

import math
from collections.abc import Sequence
from typing import Any

from jax.extend.core import ClosedJaxpr, Literal, jaxprs_in_params

from gdpjax._core.arguments import check_instance
from gdpjax.clipping._tracing import scan_of


def product_flops(jaxpr: Any) -> float | None:
    """Return the operations of the products and convolutions of a program, an addition and a multiplication as two.

    Args:
      jaxpr: what `jax.make_jaxpr` returns for the program.

    Returns:
      The operations, or None: there are products in a loop of which nobody knows beforehand how often it goes around.

    >>> import jax
    >>> import jax.numpy as jnp
    >>> program = jax.make_jaxpr(lambda a, b: jax.lax.fori_loop(0, 5, lambda _, x: x @ b, a))
    >>> product_flops(program(jnp.zeros((2, 3)), jnp.zeros((3, 3))))  # 5 rounds of 2 x 2 x 3 x 3
    180.0
    """
    closed = check_instance("jaxpr", jaxpr, ClosedJaxpr, "made by jax.make_jaxpr(function)(*arguments)")
    return _flops_of_results(closed.jaxpr, None)


def _flops_of_results(jaxpr: Any, is_read: Sequence[bool] | None) -> float | None:
    """Return the operations behind the results that somebody reads; all of them without ``is_read``."""
    read = set()
    for number, result in enumerate(jaxpr.outvars):
        if not isinstance(result, Literal) and (is_read is None or is_read[number]):
            read.add(result)

    # Backwards, from the results to what they are made of.
    total = 0.0
    for equation in reversed(jaxpr.eqns):
        marks = [result in read for result in equation.outvars]
        if not any(marks):
            continue
        flops = _flops_of(equation, marks)
        if flops is None:
            return None
        total += flops
        read.update(value for value in equation.invars if not isinstance(value, Literal))
    return total


def _flops_of(equation: Any, is_read: list[bool]) -> float | None:
    """Return the operations of one equation, whose results are read or not."""
    name = equation.primitive.name
    if name == "dot_general":
        return _flops_of_product(equation)
    if name == "conv_general_dilated":
        return _flops_of_convolution(equation)

    # What a loop carries is read by its next round.
    num_rounds = 1
    if name == "scan":
        scan = scan_of(equation)
        if scan is None:
            return None
        num_rounds = scan.length
        is_read = [True] * scan.num_carry + is_read[scan.num_carry :]

    inner = []
    for body in jaxprs_in_params(equation.params):
        has_these_results = len(body.outvars) == len(is_read)
        flops = _flops_of_results(body, is_read if has_these_results else None)
        if flops is None:
            return None
        inner.append(flops)
    if name == "while" and any(inner):
        return None
    if name == "cond":
        return max(inner)
    return num_rounds * sum(inner)


def _flops_of_product(equation: Any) -> float:
    """Two operations for each entry of the result and each pair that is summed into it."""
    (contracted, _), _ = equation.params["dimension_numbers"]
    shape = equation.invars[0].aval.shape
    return 2.0 * equation.outvars[0].aval.size * math.prod(shape[axis] for axis in contracted)


def _flops_of_convolution(equation: Any) -> float:
    """Two operations for each entry of the result and each entry of the kernel that goes into it."""
    kernel = equation.invars[1].aval.shape
    output_axis = equation.params["dimension_numbers"].rhs_spec[0]
    return 2.0 * equation.outvars[0].aval.size * math.prod(kernel) / kernel[output_axis]
