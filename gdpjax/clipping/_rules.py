"""Clipping rules: how one example's gradient is bounded, and by how much.

A rule turns per-example squared norms into the bound every example's contribution obeys. `Flat(C)` is the rule of
DP-SGD: g -> g min(1, C / ||g||) with the l2 norm over all trainable leaves together.
"""

import dataclasses
from typing import Any

from gdpjax._core.checks import Domain, check_scalar, is_traced
from gdpjax._core.types import Array, NeighboringRelation, PyTree

CLIP_NORM = Domain("a number > 0, from 1e-30 to 1e30", lambda x: (x >= 1e-30) & (x <= 1e30))
"""Far from the ends of float32, so that neither a bound nor a noise in proportion to it vanishes or overflows."""


@dataclasses.dataclass(frozen=True, eq=False)
class Flat:
    """Scale each example's gradient to l2 norm at most ``l2_clip_norm``: g min(1, C / ||g||).

    Args:
      l2_clip_norm: the bound C > 0 (1e-30 to 1e30), a number or a traced scalar.

    Raises:
      ValueError: the bound is not such a scalar.

    Reference: Abadi et al., arXiv:1607.00133, algorithm 1.

    >>> Flat(1.5).l2_norm_bound
    1.5
    """

    l2_clip_norm: Array

    def __post_init__(self) -> None:
        check_scalar("l2_clip_norm", self.l2_clip_norm, CLIP_NORM)

    @property
    def l2_norm_bound(self) -> Array:
        """The largest l2 norm one example can contribute."""
        return self.l2_clip_norm


def as_rule(clip: Any) -> Flat:
    """A number means `Flat`; a rule stays itself; anything else is a ValueError."""
    if isinstance(clip, Flat):
        return clip
    if clip is None or isinstance(clip, (str, bytes, dict, list, tuple)) or callable(clip):
        raise ValueError(f"clip must be a positive l2 clip norm or a rule such as Flat(1.0), got {clip!r}")
    return Flat(clip)


def rule_sensitivity(rule: Flat, neighboring_relation: NeighboringRelation) -> Array:
    """Largest l2 change of the clipped sum between neighbours: the rule's bound, doubled for REPLACE_ONE."""
    relation = NeighboringRelation(neighboring_relation)
    bound = rule.l2_norm_bound
    if not is_traced(bound):
        bound = float(bound)
    return bound * relation.sensitivity_factor


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

    def sensitivity(self, neighboring_relation: NeighboringRelation) -> Array:
        """``value``, doubled for REPLACE_ONE."""
        return rule_sensitivity(Flat(self.value), neighboring_relation)
