"""Participation schemas: the sets of steps in which one example may take part.

    MinSep(max_participations=8, min_separation=100)      at most 8 steps, each at least 100 after the one before

Each step with the example is one participation. The loader promises to keep to the schema, and the sensitivity of a
strategy is the largest change of the run over all sets of steps in it. A run whose batches leave the schema has no
guarantee.
"""

import abc
import dataclasses

from gdpjax._core.arguments import check_count, check_instance


class AbstractParticipation(abc.ABC):
    """A participation schema: the sets of steps in which one example may take part."""

    @abc.abstractmethod
    def limits(self, num_steps: int) -> tuple[int, int]:
        """Return the largest number of participations in ``num_steps`` steps, and the least separation of two of them.

        The number is at most 1 + (num_steps - 1) // separation, the most that fit.
        """

    @abc.abstractmethod
    def describe(self) -> str:
        """Return the schema as a clause that completes "each example takes part ..."."""


@dataclasses.dataclass(frozen=True)
class SingleParticipation(AbstractParticipation):
    """Each example takes part in at most one step of the run, as in a stream or in a single epoch.

    >>> SingleParticipation().describe()
    'in at most one step'
    """

    def limits(self, num_steps: int) -> tuple[int, int]:
        """Return (1, num_steps)."""
        return 1, check_count("num_steps", num_steps)

    def describe(self) -> str:
        """Return the schema in words."""
        return "in at most one step"


@dataclasses.dataclass(frozen=True)
class MinSep(AbstractParticipation):
    """Each example takes part in at most k steps, and any two of them are at least b steps apart.

    Args:
        max_participations: k >= 1.
        min_separation: b >= 1; steps t and t + b may both have the example, t and t + b - 1 may not.

    Raises:
        ValueError: a number that is not whole, or below 1.

    Reference: Choquette-Choo et al., arXiv:2306.08153.

    >>> MinSep(max_participations=4, min_separation=100).limits(250)
    (3, 100)
    """

    max_participations: int
    min_separation: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "max_participations", check_count("max_participations", self.max_participations))
        object.__setattr__(self, "min_separation", check_count("min_separation", self.min_separation))

    def limits(self, num_steps: int) -> tuple[int, int]:
        """Return k, or the most participations that fit if those are fewer, and b."""
        num_steps = check_count("num_steps", num_steps)
        most_that_fit = 1 + (num_steps - 1) // self.min_separation
        return min(self.max_participations, most_that_fit), self.min_separation

    def describe(self) -> str:
        """Return the schema in words."""
        return f"in at most {self.max_participations} steps, at least {self.min_separation} apart"


@dataclasses.dataclass(frozen=True)
class FixedEpochs(AbstractParticipation):
    """Each example takes part once in each of ``num_epochs`` epochs, always at the same position.

    With n steps an epoch has b = n / num_epochs of them, and an example at position r takes part in steps r, r + b,
    r + 2 b, .... It may skip some of them; that never raises the sensitivity.

    Args:
        num_epochs: at least 1.

    Raises:
        ValueError: num_epochs that is not a whole number >= 1; later, a num_steps that it does not divide.

    Reference: Choquette-Choo et al., arXiv:2211.06530 ("(k, b)-participation").

    >>> FixedEpochs(4).limits(100)
    (4, 25)
    """

    num_epochs: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "num_epochs", check_count("num_epochs", self.num_epochs))

    def limits(self, num_steps: int) -> tuple[int, int]:
        """Return num_epochs and the number of steps in an epoch."""
        num_steps = check_count("num_steps", num_steps)
        if num_steps % self.num_epochs:
            raise ValueError(
                f"num_steps must be a multiple of num_epochs={self.num_epochs}, got {num_steps}; pass a whole number "
                "of epochs, or MinSep for a run that stops in the middle of one"
            )
        return self.num_epochs, num_steps // self.num_epochs

    def describe(self) -> str:
        """Return the schema in words."""
        return f"once in each of {self.num_epochs} epochs, always at the same position"


def check_participation(value: object) -> AbstractParticipation:
    """Return ``value`` if it is a participation schema; ValueError with the choices otherwise."""
    hint = "one of SingleParticipation(), MinSep(max_participations, min_separation), FixedEpochs(num_epochs)"
    return check_instance("participation", value, AbstractParticipation, hint)
