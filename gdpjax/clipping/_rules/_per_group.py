"""Clip groups of parameters by themselves, each to its own norm."""

import dataclasses
from collections.abc import Mapping
from typing import ClassVar

from gdpjax._core.arguments import leaves_of
from gdpjax._core.checks import CLIP_NORM, check_scalar
from gdpjax._core.shown import shown
from gdpjax._core.trees import leaf_name
from gdpjax._core.types import Array, PyTree
from gdpjax.clipping._rules._abstract import (
    AbstractClipRule,
    Groups,
    clip_coefficient,
    l2_norm_of_bounds,
)


@dataclasses.dataclass(frozen=True, eq=False)
class PerGroup(AbstractClipRule):
    """Clip groups of parameters by themselves, each to its own bound: total bound sqrt(sum_g C_g^2).

    Args:
      groups_of: pytree prefix of the parameters with the name of each one's group, such as ``{"embed": "a",
        "layers": "b"}``; for a module of nnx, a dict by the names of its attributes.
      l2_clip_norms: group name to its bound C_g > 0 (1e-30 to 1e30), numbers or traced scalars.

    Raises:
      ValueError: a bound is not such a scalar, a group has no bound, or ``groups_of`` does not match the parameters.

    Reference: McMahan, Ramage, Talwar and Zhang, arXiv:1710.06963, section 3.1.

    >>> float(PerGroup({"w": "a", "b": "a", "head": "b"}, {"a": 3.0, "b": 4.0}).l2_norm_bound)
    5.0
    """

    _words: ClassVar[str] = "clipped group by group, to l2 norm {bound} in total"
    groups_of: PyTree
    l2_clip_norms: Mapping[str, Array]

    def __post_init__(self) -> None:
        if not isinstance(self.l2_clip_norms, Mapping) or not self.l2_clip_norms:
            raise ValueError(f"l2_clip_norms must map group names to bounds, got {shown(self.l2_clip_norms)}")
        object.__setattr__(self, "l2_clip_norms", dict(self.l2_clip_norms))
        for name, bound in self.l2_clip_norms.items():
            check_scalar(f"l2_clip_norms[{name!r}]", bound, CLIP_NORM)
        for _, name in leaves_of("groups_of", self.groups_of):
            if not isinstance(name, str) or name not in self.l2_clip_norms:
                raise ValueError(
                    f"the name of a group must be a text with a bound in l2_clip_norms, which has "
                    f"{list(self.l2_clip_norms)}; got {shown(name)}"
                )

    @property
    def l2_norm_bound(self) -> Array:
        """The largest l2 norm that one example can contribute: sqrt(sum_g C_g^2)."""
        return l2_norm_of_bounds(tuple(self.l2_clip_norms.values()))

    def groups(self, is_trained: PyTree) -> Groups:
        """Return the groups by name, in the order of ``l2_clip_norms``."""
        # The place of a parameter begins with the place of its group's name, in a dict as in any other container.
        places = leaves_of("groups_of", self.groups_of)
        found = []
        for path, _ in leaves_of("the parameters", is_trained):
            names_here = [name for place, name in places if path[: len(place)] == place]
            if not names_here:
                raise ValueError(
                    f"groups_of must be a pytree prefix of the parameters: it gives {leaf_name(path)} no group, but "
                    f"{[leaf_name(place) for place, _ in places]}"
                )
            found += names_here

        # The bound of a group without parameters would only add noise, and its name is likely a slip.
        names = list(self.l2_clip_norms)
        unused = set(names) - set(found)
        if unused:
            raise ValueError(f"l2_clip_norms has {sorted(map(str, unused))}, a group that groups_of gives no parameter")
        of_leaf = tuple(names.index(name) for name in found)
        return Groups(of_leaf, tuple(self.l2_clip_norms.values()))

    def coefficient(self, norm: Array, bound: Array) -> Array:
        """Return min(1, bound / norm) in each group."""
        return clip_coefficient(norm, bound)
