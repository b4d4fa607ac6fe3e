"""The abstract clipping rule, which every rule subclasses, and the names under which rules are saved.

    @dataclasses.dataclass(frozen=True, eq=False)
    class Smooth(AbstractClipRule):
        l2_clip_norm: float

        def coefficient(self, norm, bound):
            return bound / jnp.hypot(norm, bound)

A rule divides the parameters into groups and gives each group g a bound C_g on the l2 norm of one example's
contribution. Its coefficient says what a gradient of a given norm is multiplied by. The total bound sqrt(sum_g C_g^2)
is the sensitivity of the clipped sum under add-or-remove.

A rule is given the norm of one gradient and nothing else, so its coefficient is a function of that example. The engine
sees to the range of numbers, and does not trust the coefficient to keep the bound: see `_rule_enforcement`.
"""

import copy
import dataclasses
import math
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from gdpjax._core.checks import CLIP_NORM, check_scalar, is_traced
from gdpjax._core.shown import shown
from gdpjax._core.trees import bounded_sum
from gdpjax._core.types import Array, PyTree, Scalar


class Groups(NamedTuple):
    """The groups of parameters that a rule clips by themselves.

    Attributes:
      of_leaf: the number of each parameter's group, in the order of the leaves.
      bounds: the bound C_g on the l2 norm of each group.
    """

    of_leaf: tuple[int, ...]
    bounds: tuple[Scalar, ...]


class AbstractClipRule:
    """Bound one example's gradient: a rule says what it is multiplied by, and how large the result can be.

    A rule is a frozen dataclass. A subclass has a field ``l2_clip_norm``, or else defines `l2_norm_bound`. One that
    does not clip defines `coefficient`; one that clips parts of the gradient by themselves defines `groups`. The fields
    are numbers, names, and dicts of those, so that a rule can be saved with a plan. Numbers may be traced: a sweep over
    them compiles once. Two rules are equal if they are saved as the same: define the dataclass with ``eq=False``, or it
    compares field by field, which fails for arrays.

    A rule is saved under `rule_name`, which is the name of its class unless the class sets another. Two classes with
    the same name could not both be loaded, so the second one is refused when it is defined.

    Raises:
      ValueError: another class has the name already.
    """

    rule_name: ClassVar[str]
    """The name under which rules of this class are saved."""

    _words: ClassVar[str] = "scaled by the rule {name}, to l2 norm at most {bound}"
    """The text of `describe`."""

    l2_clip_norm: Scalar
    """The bound C > 0 of a rule that has one."""

    def __post_init__(self) -> None:
        name = "l2_clip_norm" if hasattr(self, "l2_clip_norm") else "l2_norm_bound"
        check_scalar(name, self.l2_norm_bound, CLIP_NORM)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.rule_name = cls.__dict__.get("rule_name", cls.__name__)
        registered = _CLASSES.get(cls.rule_name, cls)
        # A notebook cell that is run again defines the same class again.
        if (registered.__module__, registered.__qualname__) != (cls.__module__, cls.__qualname__):
            raise ValueError(
                f"the clipping rule {registered.__module__}.{registered.__qualname__} is saved under the name "
                f'{cls.rule_name!r} already; give {cls.__qualname__} another one: rule_name = "mylab.{cls.__name__}"'
            )
        _CLASSES[cls.rule_name] = cls

    @property
    def l2_norm_bound(self) -> Scalar:
        """The largest l2 norm that one example can contribute to the sum, over all groups: ``l2_clip_norm``."""
        return self.l2_clip_norm

    def coefficient(self, norm: Scalar, bound: Scalar) -> Scalar:
        """Return the number that one example's gradient in one group is multiplied by: by default min(1, bound / norm).

        Args:
          norm: the l2 norm of the gradient, a scalar >= 0. A gradient whose norm is above 1e31 times the bound (or
            1e31, if that is less) is first scaled down to about there, by a power of two, so that nothing overflows.
          bound: the bound of the group, lowered by the slack for rounding.
        """
        # For a NaN bound the comparison is False, so a wrong traced clip norm gives NaN and not a free pass.
        return jnp.where(norm <= bound, 1, bound / jnp.where(norm > 0, norm, 1))

    def groups(self, is_trained: PyTree) -> Groups:
        """Return the groups of the parameters. By default there is one group, with the bound `l2_norm_bound`.

        Args:
          is_trained: a tree like the parameters that holds True for each one that is trained.
        """
        return Groups((0,) * len(jax.tree.leaves(is_trained)), (self.l2_norm_bound,))

    def __eq__(self, other: object) -> bool:
        """Whether the other rule is of the same class and has the same values; a traced one equals only itself."""
        if self is other:
            return True
        if type(self) is not type(other) or is_traced((vars(self), vars(other))):
            return False
        assert isinstance(other, AbstractClipRule)
        return self.to_dict() == other.to_dict()

    def __hash__(self) -> int:
        return hash(self.rule_name)

    def describe(self) -> str:
        """Return what the rule does to gradients, as words that follow "sums of gradients" in a plan's statement."""
        return self._words.format(name=self.rule_name, bound=f"{float(self.l2_norm_bound):.6g}")

    def to_dict(self) -> dict[str, Any]:
        """Return the rule's name and fields as JSON values.

        Raises:
          ValueError: a field is traced, or has no JSON form.
        """
        names = [field.name for field in dataclasses.fields(self)]  # pyright: ignore[reportArgumentType]
        fields = {name: getattr(self, name) for name in names}
        return {"rule": self.rule_name} | {name: _json_value(value) for name, value in fields.items()}

    @staticmethod
    def from_dict(saved: dict[str, Any]) -> "AbstractClipRule":
        """Return the rule that `to_dict` made ``saved`` of.

        Raises:
          ValueError: no class of that name is defined.
        """
        fields = dict(saved)
        name = fields.pop("rule", None)
        if not isinstance(name, str) or name not in _CLASSES:
            raise ValueError(
                f"the clipping rule must be one of {', '.join(_CLASSES)}, got {shown(name)}; import the module that "
                "defines it before loading"
            )
        return _CLASSES[name](**fields)


_CLASSES: dict[str, type[AbstractClipRule]] = {}
"""The rules that can be loaded, by name."""


def own_copy(rule: AbstractClipRule) -> AbstractClipRule:
    """Return the rule with values of its own, which nobody else can change.

    The noise is scaled to the bound that a rule has at one time, and sums are clipped to the one it has at another.
    """
    copied = copy.copy(rule)
    for name, value in getattr(rule, "__dict__", {}).items():
        object.__setattr__(copied, name, _own_value(value))
    return copied


def _own_value(value: Any) -> Any:
    """Return a copy of arrays of NumPy and of dicts and lists, with all that is in them; other values as they are."""
    if isinstance(value, np.ndarray):
        return value.copy()
    if type(value) is dict:
        return {name: _own_value(item) for name, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_own_value(item) for item in value)
    return value


def l2_norm_of_bounds(bounds: tuple[Array, ...]) -> Array:
    """Return sqrt(sum_g C_g^2), a float where all bounds are known numbers."""
    if not is_traced(bounds):
        return math.hypot(*(float(bound) for bound in bounds))
    # The bounds are divided by the largest, so that the squares of a small float type neither overflow nor vanish.
    stacked = jnp.stack([jnp.asarray(bound) for bound in bounds])
    largest = jnp.max(stacked)
    return largest * jnp.sqrt(bounded_sum(jnp.square(stacked / largest)))


def _json_value(value: Any) -> Any:
    """Return a field as JSON has it: texts and whole numbers as they are, other numbers as floats, dicts of those."""
    if isinstance(value, dict):
        return {str(name): _json_value(item) for name, item in value.items()}
    if isinstance(value, str | int) or value is None:
        return value
    try:
        return float(value)
    except (TypeError, ValueError) as error:
        raise ValueError(f"a clipping rule with {value!r} has no JSON form; use numbers, names and dicts") from error
