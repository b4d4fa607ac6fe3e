"""Clip the whole gradient to one norm, which is what a number in the place of a rule means."""

import dataclasses
from typing import Any, ClassVar

from gdpjax._core.checks import POSITIVE, check_scalar
from gdpjax._core.shown import shown
from gdpjax._core.types import Array
from gdpjax.clipping._rules._abstract import AbstractClipRule, clip_coefficient, own_copy


@dataclasses.dataclass(frozen=True, eq=False)
class Flat(AbstractClipRule):
    """Scale each example's gradient to l2 norm at most ``l2_clip_norm``: g min(1, C / ||g||).

    Args:
      l2_clip_norm: the bound C > 0 (1e-30 to 1e30), a number or a traced scalar.

    Raises:
      ValueError: the bound is not such a scalar.

    Reference: Abadi et al., arXiv:1607.00133, algorithm 1.

    >>> Flat(1.5).l2_norm_bound
    1.5
    """

    _words: ClassVar[str] = "clipped to l2 norm {bound}"
    l2_clip_norm: Array

    def coefficient(self, norm: Array, bound: Array) -> Array:
        """Return min(1, bound / norm)."""
        return clip_coefficient(norm, bound)


def as_rule(clip: Any) -> AbstractClipRule:
    """Return a copy of ``clip`` if it is a rule, and `Flat` of it if it is a number; anything else is a ValueError."""
    if isinstance(clip, AbstractClipRule):
        rule = own_copy(clip)
        check_scalar(f"the l2_norm_bound of the clipping rule {rule.rule_name}", rule.l2_norm_bound, POSITIVE)
        return rule
    if clip is None or isinstance(clip, (str, bytes, dict, list, tuple)) or callable(clip):
        raise ValueError(
            "clip must be a positive l2 clip norm or a rule such as Flat(1.0); for a norm of each group of parameters "
            f"PerGroup(groups_of, l2_clip_norms); got {shown(clip)}"
        )
    return own_copy(Flat(clip))
