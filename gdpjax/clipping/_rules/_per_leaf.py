"""Clip each parameter's gradient by itself."""

import dataclasses
import math
from typing import ClassVar

import jax

from gdpjax._core.types import Array, PyTree
from gdpjax.clipping._rules._abstract import AbstractClipRule, Groups, clip_coefficient


@dataclasses.dataclass(frozen=True, eq=False)
class PerLeaf(AbstractClipRule):
    """Clip each of the n trained leaves by itself, to C / sqrt(n), so that one example contributes at most C.

    Args:
      l2_clip_norm: the TOTAL bound C > 0 (1e-30 to 1e30), a number or a traced scalar.

    Raises:
      ValueError: the bound is not such a scalar.

    Reference: McMahan, Ramage, Talwar and Zhang, arXiv:1710.06963, section 3.1.

    >>> PerLeaf(1.5).l2_norm_bound
    1.5
    """

    _words: ClassVar[str] = "clipped leaf by leaf, to l2 norm {bound} in total"
    l2_clip_norm: Array

    def groups(self, is_trained: PyTree) -> Groups:
        """Return a group for each trained leaf; the others, which have no gradient, are put into the first."""
        of_leaf = []
        num_groups = 0
        for trained in jax.tree.leaves(is_trained):
            of_leaf.append(num_groups if trained else 0)
            num_groups += bool(trained)

        num_groups = max(num_groups, 1)
        bound = self.l2_clip_norm / math.sqrt(num_groups)
        return Groups(tuple(of_leaf), (bound,) * num_groups)

    def coefficient(self, norm: Array, bound: Array) -> Array:
        """Return min(1, bound / norm)."""
        return clip_coefficient(norm, bound)
