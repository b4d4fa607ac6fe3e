"""The l2 sensitivity of a clipped sum: of one that a rule bounded, and of one whose bound is stated by hand."""

import dataclasses

import jax.numpy as jnp
import numpy as np

from gdpjax._core.arguments import check_flag, check_relation, leaves_of
from gdpjax._core.checks import CLIP_NORM, POSITIVE, check_scalar, is_traced
from gdpjax._core.types import Array, NeighboringRelation, PyTree
from gdpjax.clipping._rules import AbstractClipRule, Flat


def rule_sensitivity(rule: AbstractClipRule, neighboring_relation: NeighboringRelation) -> Array:
    """Return the largest l2 change of the clipped sum between neighbours: the rule's bound, doubled for REPLACE_ONE.

    A traced bound that is not positive gives NaN, as the sum does.
    """
    relation = check_relation(neighboring_relation)
    bound = rule.l2_norm_bound
    factor = relation.sensitivity_factor
    if not is_traced(bound):
        return float(bound) * factor
    return jnp.where(POSITIVE.contains(bound), bound, jnp.nan) * factor


@dataclasses.dataclass(frozen=True, eq=False)
class Sensitivity:
    """The l2 sensitivity of a sum that something else bounded; goes where `privatize` wants what clipped.

    Args:
      value: largest l2 norm that one example can add to the sum (add or remove one), > 0.
      trainable: pytree of bool; False leaves are exact zeros and get no noise. None: all of them are trained.

    >>> Sensitivity(2.0).sensitivity(NeighboringRelation.REPLACE_ONE)
    4.0
    """

    value: Array
    trainable: PyTree | None = None

    def __post_init__(self) -> None:
        check_scalar("Sensitivity value", self.value, CLIP_NORM)
        if isinstance(self.value, np.ndarray):
            # A copy, which the caller cannot change.
            object.__setattr__(self, "value", self.value.copy())
        for _, mark in leaves_of("trainable", self.trainable):
            check_flag("every leaf of trainable", mark)

    def sensitivity(self, neighboring_relation: NeighboringRelation) -> Array:
        """Return ``value``, doubled for REPLACE_ONE."""
        return rule_sensitivity(Flat(self.value), neighboring_relation)
