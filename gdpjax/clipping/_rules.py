"""The rules that come with the library, what a number in the place of a rule means, and the sensitivity of a sum."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from gdpjax._core.arguments import check_flag, check_relation
from gdpjax._core.checks import CLIP_NORM, POSITIVE, Domain, check_scalar, is_traced
from gdpjax._core.shown import shown
from gdpjax._core.trees import leaf_name
from gdpjax._core.types import Array, NeighboringRelation, PyTree, Scalar
from gdpjax.clipping._clip_rule import AbstractClipRule, Groups, l2_norm_of_bounds, own_copy

_GAMMA = Domain("a number >= 0, at most 1e30", lambda x: (x >= 0) & (x <= 1e30))


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
    l2_clip_norm: Scalar


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
    l2_clip_norm: Scalar

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
        object.__setattr__(self, "l2_clip_norms", dict(self.l2_clip_norms))
        for name, bound in self.l2_clip_norms.items():
            check_scalar(f"l2_clip_norms[{name!r}]", bound, CLIP_NORM)
        for _, name in jax.tree_util.tree_leaves_with_path(self.groups_of):
            if not isinstance(name, str) or name not in self.l2_clip_norms:
                raise ValueError(
                    f"the name of a group must be a text with a bound in l2_clip_norms, which has "
                    f"{list(self.l2_clip_norms)}; got {shown(name)}"
                )

    @property
    def l2_norm_bound(self) -> Scalar:
        """The largest l2 norm that one example can contribute: sqrt(sum_g C_g^2)."""
        return l2_norm_of_bounds(tuple(self.l2_clip_norms.values()))

    def groups(self, is_trained: PyTree) -> Groups:
        """Return the groups by name, in the order of ``l2_clip_norms``."""
        # The place of a parameter begins with the place of its group's name, in a dict as in any other container.
        places = jax.tree_util.tree_leaves_with_path(self.groups_of)
        found = []
        for path, _ in jax.tree_util.tree_leaves_with_path(is_trained):
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


@dataclasses.dataclass(frozen=True, eq=False)
class Normalize(AbstractClipRule):
    """Rescale each example's gradient to l2 norm exactly ``l2_clip_norm``: g C / ||g||, and 0 for g = 0.

    Args:
      l2_clip_norm: the norm C > 0 (1e-30 to 1e30), a number or a traced scalar.

    Raises:
      ValueError: the norm is not such a scalar.

    Reference: Das, Hashemi, Sanghavi and Dhillon, arXiv:2106.07830 (normalised instead of clipped gradients).

    >>> Normalize(1.5).l2_norm_bound
    1.5
    """

    _words: ClassVar[str] = "rescaled to l2 norm {bound}"
    l2_clip_norm: Scalar

    def coefficient(self, norm: Scalar, bound: Scalar) -> Scalar:
        """Return bound / norm."""
        return bound / jnp.where(norm > 0, norm, 1)


@dataclasses.dataclass(frozen=True, eq=False)
class AutoS(AbstractClipRule):
    """Automatic clipping: g C / (||g|| + gamma), of norm below C, so that no clip norm needs tuning.

    Args:
      l2_clip_norm: the bound C > 0 (1e-30 to 1e30), a number or a traced scalar; a learning rate absorbs it.
      gamma: stability constant >= 0 in the units of the gradient; 0 is `Normalize`.

    Raises:
      ValueError: the bound or gamma is not such a scalar.

    Reference: Bu, Wang, Zha and Karypis, arXiv:2206.07136, section 4 (AUTO-S; gamma = 0.01 there).

    >>> AutoS(1.0, gamma=0.01).l2_norm_bound
    1.0
    """

    _words: ClassVar[str] = "scaled automatically (AUTO-S) below l2 norm {bound}"
    l2_clip_norm: Scalar
    gamma: Scalar = 0.01

    def __post_init__(self) -> None:
        super().__post_init__()
        check_scalar("gamma", self.gamma, _GAMMA)

    def coefficient(self, norm: Scalar, bound: Scalar) -> Scalar:
        """Return bound / (norm + gamma)."""
        # A traced gamma that is out of range gives NaN.
        gamma = jnp.asarray(self.gamma, norm.dtype)
        gamma = jnp.where(_GAMMA.contains(gamma), gamma, jnp.nan)

        # With gamma = 0 a gradient that is zero has the denominator zero.
        denominator = norm + gamma
        return bound / jnp.where(denominator == 0, 1, denominator)


def as_rule(clip: Any) -> AbstractClipRule:
    """Return a copy of ``clip`` if it is a rule, and `Flat` of it if it is a number; anything else is a ValueError."""
    if isinstance(clip, AbstractClipRule):
        rule = own_copy(clip)
        check_scalar(f"the l2_norm_bound of the clipping rule {rule.rule_name}", rule.l2_norm_bound, POSITIVE)
        return rule
    return own_copy(Flat(clip))


def rule_sensitivity(rule: AbstractClipRule, neighboring_relation: NeighboringRelation) -> Scalar:
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

    value: Scalar
    trainable: PyTree | None = None

    def __post_init__(self) -> None:
        check_scalar("Sensitivity value", self.value, CLIP_NORM)
        if isinstance(self.value, np.ndarray):
            # A copy, which the caller cannot change.
            object.__setattr__(self, "value", self.value.copy())
        for mark in jax.tree.leaves(self.trainable):
            check_flag("every leaf of trainable", mark)

    def sensitivity(self, neighboring_relation: NeighboringRelation) -> Scalar:
        """Return ``value``, doubled for REPLACE_ONE."""
        return rule_sensitivity(Flat(self.value), neighboring_relation)
