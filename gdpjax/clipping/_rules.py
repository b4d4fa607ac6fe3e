"""Clipping rules: how one example's gradient is bounded, and by how much.

A rule cuts the parameters into groups, gives each group a bound C_g on the l2 norm of one example's contribution, and
says what a gradient of a given norm is multiplied by. The total bound, the sensitivity of the sum under add-or-remove,
is sqrt(sum_g C_g^2). What a rule sees of a gradient is its norm alone, so its output is a function of that example.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from gdpjax._core.arguments import check_flag, check_relation, leaves_of
from gdpjax._core.checks import Domain, check_scalar, is_traced
from gdpjax._core.shown import shown
from gdpjax._core.trees import leaf_name, power_of_two
from gdpjax._core.types import Array, NeighboringRelation, PyTree

CLIP_NORM = Domain("a number > 0, from 1e-30 to 1e30", lambda x: (x >= 1e-30) & (x <= 1e30))
"""Far from the ends of float32, so that neither a bound nor a noise in proportion to it vanishes or overflows."""


class Groups(NamedTuple):
    """The group of each parameter, and the bound of each group."""

    of_leaf: tuple[int, ...]
    bounds: tuple[Array, ...]


@dataclasses.dataclass(frozen=True, eq=False)
class _OneBound:
    """A rule with one bound on the whole gradient."""

    l2_clip_norm: Array

    def __post_init__(self) -> None:
        check_scalar("l2_clip_norm", self.l2_clip_norm, CLIP_NORM)

    @property
    def l2_norm_bound(self) -> Array:
        """The largest l2 norm one example can contribute."""
        return self.l2_clip_norm

    def groups(self, marked: PyTree) -> Groups:
        """All parameters in one group."""
        return Groups((0,) * len(jax.tree.leaves(marked)), (self.l2_clip_norm,))

    def coefficient(self, norm: Array, exponent: Array, bound: Array) -> Array:
        """What a gradient of norm ``norm`` 2^exponent, divided by 2^exponent, is multiplied by."""
        return _clipped(norm, exponent, bound)


class Flat(_OneBound):
    """Scale each example's gradient to l2 norm at most ``l2_clip_norm``: g min(1, C / ||g||).

    Args:
      l2_clip_norm: the bound C > 0 (1e-30 to 1e30), a number or a traced scalar.

    Raises:
      ValueError: the bound is not such a scalar.

    Reference: Abadi et al., arXiv:1607.00133, algorithm 1.

    >>> Flat(1.5).l2_norm_bound
    1.5
    """


class PerLeaf(_OneBound):
    """Clip each of the n trained leaves by itself, to C / sqrt(n), so that one example contributes at most C.

    Args:
      l2_clip_norm: the TOTAL bound C > 0 (1e-30 to 1e30), a number or a traced scalar.

    Raises:
      ValueError: the bound is not such a scalar.

    Reference: McMahan, Ramage, Talwar and Zhang, arXiv:1710.06963, section 3.1.

    >>> PerLeaf(1.5).l2_norm_bound
    1.5
    """

    def groups(self, marked: PyTree) -> Groups:
        """A group for each trained leaf."""
        marks = jax.tree.leaves(marked)
        count = max(sum(marks), 1)
        numbers = iter(range(count))
        bound = self.l2_clip_norm / math.sqrt(count)
        return Groups(tuple(next(numbers) if mark else 0 for mark in marks), (bound,) * count)


class Normalize(_OneBound):
    """Rescale each example's gradient to l2 norm exactly ``l2_clip_norm``: g C / ||g||, and 0 for g = 0.

    Args:
      l2_clip_norm: the norm C > 0 (1e-30 to 1e30), a number or a traced scalar.

    Raises:
      ValueError: the norm is not such a scalar.

    Reference: Das, Hashemi, Sanghavi and Dhillon, arXiv:2106.07830 (normalised instead of clipped gradients).

    >>> Normalize(1.5).l2_norm_bound
    1.5
    """

    def coefficient(self, norm: Array, exponent: Array, bound: Array) -> Array:
        """Bound over norm, whatever the norm."""
        return bound / jnp.where(norm > 0, norm, 1)


@dataclasses.dataclass(frozen=True, eq=False)
class AutoS(_OneBound):
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

    gamma: Array = 0.01  # type: ignore[assignment]

    def __post_init__(self) -> None:
        super().__post_init__()
        check_scalar("gamma", self.gamma, Domain("a number >= 0, at most 1e30", lambda x: (x >= 0) & (x <= 1e30)))

    def coefficient(self, norm: Array, exponent: Array, bound: Array) -> Array:
        """Bound over norm plus gamma, in the units of ``norm``."""
        gamma = jnp.asarray(self.gamma, norm.dtype)
        gamma = jnp.where((gamma >= 0) & (gamma <= 1e30), gamma, jnp.nan)  # a wrong traced one gives NaN
        denominator = norm + gamma * power_of_two(-exponent, norm.dtype)
        return bound / jnp.where(denominator > 0, denominator, jnp.where(denominator == 0, 1, jnp.nan))


@dataclasses.dataclass(frozen=True, eq=False)
class PerGroup:
    """Clip groups of parameters by themselves, each to its own bound: total bound sqrt(sum_g C_g^2).

    Args:
      groups_of: pytree prefix of the parameters with the name of each one's group, such as ``{"embed": "a",
        "layers": "b"}``.
      l2_clip_norms: group name to its bound C_g > 0 (1e-30 to 1e30), numbers or traced scalars.

    Raises:
      ValueError: a bound is not such a scalar, a group has no bound, or ``groups_of`` does not match the parameters.

    Reference: McMahan, Ramage, Talwar and Zhang, arXiv:1710.06963, section 3.1.

    >>> float(PerGroup({"w": "a", "b": "a", "head": "b"}, {"a": 3.0, "b": 4.0}).l2_norm_bound)
    5.0
    """

    groups_of: PyTree
    l2_clip_norms: Mapping[str, Array]

    def __post_init__(self) -> None:
        if not isinstance(self.l2_clip_norms, Mapping) or not self.l2_clip_norms:
            raise ValueError(f"l2_clip_norms must map group names to bounds, got {shown(self.l2_clip_norms)}")
        for name, bound in self.l2_clip_norms.items():
            check_scalar(f"l2_clip_norms[{name!r}]", bound, CLIP_NORM)
        for _, name in leaves_of("groups_of", self.groups_of):
            if not isinstance(name, str | int) or name not in self.l2_clip_norms:
                raise ValueError(
                    f"group {shown(name)} has no bound in l2_clip_norms, which has {list(self.l2_clip_norms)}"
                )

    @property
    def l2_norm_bound(self) -> Array:
        """The largest l2 norm one example can contribute: sqrt(sum_g C_g^2)."""
        bounds = list(self.l2_clip_norms.values())
        if any(is_traced(bound) for bound in bounds):
            # Scaled to the largest, so that the squares of a small float type neither overflow nor vanish.
            largest = jnp.max(jnp.stack([jnp.asarray(bound) for bound in bounds]))
            return largest * jnp.sqrt(sum(jnp.square(bound / largest) for bound in bounds))
        return math.hypot(*(float(bound) for bound in bounds))

    def groups(self, marked: PyTree) -> Groups:
        """The groups by name, in the order of ``l2_clip_norms``."""
        names = list(self.l2_clip_norms)
        try:
            labels = jax.tree.map(lambda name, part: jax.tree.map(lambda _: name, part), self.groups_of, marked)
        except (ValueError, TypeError) as error:
            raise ValueError(f"groups_of must be a pytree prefix of the parameters: {error}") from error
        found = jax.tree_util.tree_flatten_with_path(labels)[0]
        if len(found) != len(jax.tree.leaves(marked)):
            raise ValueError(f"groups_of names {[leaf_name(path) for path, _ in found]}, not all the parameters")
        return Groups(tuple(names.index(label) for _, label in found), tuple(self.l2_clip_norms.values()))

    def coefficient(self, norm: Array, exponent: Array, bound: Array) -> Array:
        """As `Flat`, in each group."""
        return _clipped(norm, exponent, bound)


Rule = Flat | PerLeaf | PerGroup | Normalize | AutoS


def _clipped(norm: Array, exponent: Array, bound: Array) -> Array:
    scale = power_of_two(exponent, norm.dtype)
    # For a NaN bound the comparison is False, so a wrong traced clip norm gives NaN and not a free pass.
    return jnp.where(norm * scale <= bound, scale, bound / jnp.where(norm > 0, norm, 1))


def as_rule(clip: Any) -> Rule:
    """A number means `Flat`; a rule stays itself; anything else is a ValueError."""
    if isinstance(clip, Rule):
        return clip
    if clip is None or isinstance(clip, (str, bytes, dict, list, tuple)) or callable(clip):
        raise ValueError(f"clip must be a positive l2 clip norm or a rule such as Flat(1.0), got {shown(clip)}")
    return Flat(clip)


def rule_sensitivity(rule: Rule, neighboring_relation: NeighboringRelation) -> Array:
    """Largest l2 change of the clipped sum between neighbours: the rule's bound, doubled for REPLACE_ONE."""
    relation = check_relation(neighboring_relation)
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
        for _, mark in leaves_of("trainable", self.trainable):
            check_flag("every leaf of trainable", mark)

    def sensitivity(self, neighboring_relation: NeighboringRelation) -> Array:
        """``value``, doubled for REPLACE_ONE."""
        return rule_sensitivity(Flat(self.value), neighboring_relation)
