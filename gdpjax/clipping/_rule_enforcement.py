"""Ask a rule for its groups and coefficients, and hold it to the bound that it states.

The noise follows ``rule.l2_norm_bound``, so no mistake in a rule may let an example contribute more than that. The
engine asks rules only through the two functions below. They keep the bound, whatever the rule returns:

* The coefficient of each row is limited to bound / norm in size, so no row's contribution passes the bound.
* The coefficient is computed for one row at a time, inside `jax.vmap`, and may be made only of primitives that are
  known to act on one row alone, so it cannot depend on the other rows.
* A row whose coefficient is NaN adds nothing: otherwise the NaN in the sum would show that such a row is there. If the
  coefficient of a gradient of norm 1 is NaN too, a number of the rule is wrong, and then the whole sum is NaN.
* The bounds of the groups are together at most ``l2_norm_bound``. Rounding may take them above it by a little, so they
  are lowered by more than that.
"""

import jax
import jax.numpy as jnp
import numpy as np

from gdpjax._core.checks import is_traced
from gdpjax._core.shown import shown
from gdpjax._core.trees import power_of_two
from gdpjax._core.types import Array, PyTree
from gdpjax.clipping._clip_rule import AbstractClipRule, Groups, l2_norm_of_bounds
from gdpjax.clipping._row_independence import read_program

_ROUNDING = 2.0**-20
"""How far bounds of groups may together pass the stated one, relative to it.

Bounds that were rounded to float32 may do so. All of them are lowered by twice as much, which covers the rounding of
their sum of squares too.
"""


def bounded_coefficients(rule: AbstractClipRule, norm: Array, exponent: Array, bound: Array) -> Array:
    """Return what each row in one group of parameters is multiplied by, at most bound / norm in size.

    Args:
      rule: the rule that is asked.
      norm: Float[Array, "rows"], the norms of the rows in units of 2^exponent.
      exponent: Int[Array, "rows"].
      bound: the bound of the group; NaN gives NaN.

    Returns:
      Float[Array, "rows"]: for rows that were divided by 2^exponent, their coefficients.
    """

    def of_one_row(norm: Array) -> Array:
        coefficient = jnp.asarray(rule.coefficient(norm, bound), norm.dtype)
        if coefficient.shape != ():
            raise ValueError(
                f"the coefficient of the clipping rule {rule.rule_name} must be one number for one gradient, got the "
                f"shape {coefficient.shape}"
            )
        return coefficient

    # Like a loss, a coefficient may only use primitives that act on one row under vmap.
    scalar = jax.ShapeDtypeStruct((), norm.dtype)
    program = jax.make_jaxpr(of_one_row)(scalar)
    read_program(program, [True], f"the coefficient of the clipping rule {rule.rule_name}")

    # The rule gets the norm itself. In its unit the norm is at most 2^22, so exponents up to about 103 cannot overflow.
    # Larger ones are capped, lower still for a bound below 1, which scales the row down.
    _, exponent_of_bound = jnp.frexp(jnp.minimum(bound, 1))
    largest = exponent_of_bound + np.finfo(norm.dtype).maxexp - 25
    units = power_of_two(jnp.minimum(exponent, largest), norm.dtype)
    coefficients = units * jax.vmap(of_one_row)(norm * units)

    # A row whose coefficient is NaN gets zero, unless the coefficient is NaN for a norm of 1 too: then a number of the
    # rule is out of range, and the whole sum becomes NaN.
    is_wrong = jnp.isnan(of_one_row(jnp.ones((), norm.dtype)))
    coefficients = jnp.where(jnp.isnan(coefficients) & ~is_wrong, 0, coefficients)

    # Limit the size to bound / norm. If the bound is NaN, so is the result.
    largest = bound / jnp.where(norm > 0, norm, 1)
    return jnp.clip(coefficients, -largest, largest)


def trained_groups(rule: AbstractClipRule, params: PyTree, is_trained: tuple[bool, ...]) -> Groups:
    """Return the rule's groups with the trained parameters alone.

    Raises:
      ValueError: the groups are not those of the parameters, or their bounds are together above ``l2_norm_bound``.
    """
    structure = jax.tree.structure(params)
    groups = rule.groups(jax.tree.unflatten(structure, list(is_trained)))
    numbers = range(len(groups.bounds))
    if len(groups.of_leaf) != len(is_trained) or any(group not in numbers for group in groups.of_leaf):
        raise ValueError(
            f"groups of the clipping rule {rule.rule_name} must give each of the {len(is_trained)} parameters the "
            f"number of one of its {len(groups.bounds)} bounds, got {shown(groups.of_leaf)}"
        )

    bounds = _within_stated_bound(rule, tuple(groups.bounds))
    pairs = zip(groups.of_leaf, is_trained, strict=True)
    return Groups(tuple(group for group, trained in pairs if trained), bounds)


def _within_stated_bound(rule: AbstractClipRule, bounds: tuple[Array, ...]) -> tuple[Array, ...]:
    """Return the bounds of the groups, lowered by what rounding can do.

    If they are together above the bound that the rule states, raise a ValueError, or return NaN where they are traced.
    """
    stated = rule.l2_norm_bound
    if len(bounds) == 1 and bounds[0] is stated:
        return bounds

    together = l2_norm_of_bounds(bounds)
    if is_traced((stated, together)):
        factor = jnp.where(together <= stated * (1 + _ROUNDING), 1 - 2 * _ROUNDING, jnp.nan)
        return tuple(bound * factor for bound in bounds)
    if not together <= float(stated) * (1 + _ROUNDING):
        raise ValueError(
            f"the groups of the clipping rule {rule.rule_name} have bounds of {together:.6g} together, "
            f"sqrt(sum_g C_g^2), above its l2_norm_bound of {float(stated):.6g}"
        )
    return tuple(bound * (1 - 2 * _ROUNDING) for bound in bounds)
