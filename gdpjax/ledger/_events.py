"""The events of a `Ledger`: inert descriptions of what was released. No privacy mathematics.

`Event` is the step of private training, a noisy sum over a random batch. The others are releases from the whole data
set: `GaussianEvent`, `LaplaceEvent`, `RandomizedResponseEvent` and, for anything else, the guarantee
`ApproximateDPEvent`. Each says under which neighbouring relation it holds.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar, Self

import numpy as np

from gdpjax._core.arguments import check_choice, check_count, check_flag, check_keywords, check_number, check_relation
from gdpjax._core.checks import COUNT, HALF_OPEN_UNIT, NONNEGATIVE, POSITIVE, UNIT, WHOLE, Domain, check
from gdpjax._core.figures import rounded
from gdpjax._core.shown import shown
from gdpjax._core.types import NeighboringRelation

_ADDED = NeighboringRelation.ADD_OR_REMOVE_ONE
_REPLACED = NeighboringRelation.REPLACE_ONE
_SPECIAL = NeighboringRelation.REPLACE_SPECIAL


def resolve_relation(
    event_type: type["_Steps"], neighboring_relation: NeighboringRelation | None
) -> NeighboringRelation:
    """Return the relation of an event: its type's default, or the given one if a bound is known for the pair.

    Raises:
      ValueError: a pair without a proved bound.
    """
    if neighboring_relation is None:
        return event_type.relations[0]
    relation = check_relation(neighboring_relation)
    if relation not in event_type.relations:
        allowed = " or ".join(r.name for r in event_type.relations)
        raise ValueError(f"a {event_type.__name__} has a proved bound under {allowed}, not under {relation.name}")
    return relation


_CATEGORIES = Domain("a whole number >= 2", lambda x: (x >= 2) & COUNT.predicate(x), COUNT.most)
_WHOLE_NUMBERS = (COUNT, WHOLE, _CATEGORIES)
_COUNTS = (
    "num_steps",
    "planned_steps",
    "steps_per_epoch",
    "num_epochs",
    "num_selected",
    "num_groups",
    "max_participations",
    "min_separation",
    "max_examples",
    "capacity",
)
_DOMAINS = {
    "noise_multiplier": NONNEGATIVE,
    "epsilon": NONNEGATIVE,
    "delta": HALF_OPEN_UNIT,
    "sampling_prob": UNIT,
    "overflow": HALF_OPEN_UNIT,
    "missing_steps": WHOLE,
    "num_categories": _CATEGORIES,
    **dict.fromkeys(_COUNTS, COUNT),
}
"""What a field of this name may be, in every event that has it."""


class _Event:
    """An event: a frozen dataclass, whose fields are checked and stored as plain numbers."""

    num_steps: Any
    neighboring_relation: Any

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):  # pyright: ignore[reportArgumentType]
            value = getattr(self, field.name)
            if field.name in _DOMAINS:
                domain = _DOMAINS[field.name]
                value = check_number(field.name, value, domain)
                value = int(value) if domain in _WHOLE_NUMBERS else value
            elif field.name in ("announced", "is_exact"):
                value = check_flag(field.name, value)
            elif field.name == "neighboring_relation":
                value = self._relation(value)
            object.__setattr__(self, field.name, value)

    def _relation(self, given: Any) -> NeighboringRelation:
        """Return the relation of an event, which may be left out."""
        return check_relation(given)


class _Steps(_Event):
    """Steps of training, which a `LedgerState` counts while they are made."""

    relations: ClassVar[tuple[NeighboringRelation, ...]]
    """The relations with a proved bound, the default one first."""
    noise_multiplier: Any
    sampling_prob: Any
    overflow: Any
    is_one_event: ClassVar[bool] = False
    """Whether all steps of a run are one event together, of the least noise that any of them had."""
    is_correlated: ClassVar[bool] = False
    """Whether the noise is correlated over the steps."""

    def _relation(self, given: Any) -> NeighboringRelation:
        return resolve_relation(type(self), given)

    def of_steps(
        self,
        noise_multiplier: float,
        sampling_prob: float,
        num_steps: int,
        *,
        overflow: float = 0.0,
        is_exact: bool = True,
    ) -> Any:
        """Return the event of ``num_steps`` steps like these that were made with the given numbers.

        A number that the event has no field for is left out.

        Raises:
          ValueError: an overflow that the event cannot hold.
        """
        known = {
            "noise_multiplier": noise_multiplier,
            "sampling_prob": sampling_prob,
            "overflow": overflow,
            "is_exact": is_exact,
            **self._length(num_steps),
        }
        names = {field.name for field in dataclasses.fields(self)}  # pyright: ignore[reportArgumentType]
        if overflow and "overflow" not in names:
            raise ValueError(f"a {type(self).__name__} holds no overflow, which would not be accounted for: {overflow}")
        fields = {name: value for name, value in known.items() if name in names}
        return dataclasses.replace(self, **fields)  # pyright: ignore[reportArgumentType]

    def _length(self, num_steps: int) -> dict[str, Any]:
        """Return the fields that say how many steps were made."""
        return {"num_steps": num_steps}

    def batches(self) -> str:
        """Return how batches were drawn, in a few words."""
        ...

    def facts(self) -> list[tuple[str, str]]:
        """Return what `describe` says as cells of a table, each a label and a text."""
        facts = [("batches", self.batches()), ("noise multiplier", f"{self.noise_multiplier:.6g}")]
        if self.is_correlated:
            facts.append(("noise", "correlated"))
        if hasattr(self, "sampling_prob"):
            facts.append(("sampling probability", f"{self.sampling_prob:.6g}"))
        facts.append(("steps", f"{self.num_steps:.0f}"))
        if getattr(self, "overflow", 0.0):
            facts.append(("overflow", rounded(self.overflow, 2, "up")))
        return facts

    def _numbers(self) -> str:
        """Return the numbers with which `describe` ends."""
        prob = f", sampling probability {self.sampling_prob:.6g}" if hasattr(self, "sampling_prob") else ""
        return f"noise multiplier {self.noise_multiplier:.6g}{prob}, {self.num_steps} steps{self._lost()}"

    def _lost(self) -> str:
        kind = "announced overflow" if getattr(self, "announced", False) else "overflow"
        overflow = getattr(self, "overflow", 0.0)
        return f", {kind} {rounded(overflow, 2, 'up')}" if overflow else ""


class _Epochs(_Steps):
    """Steps that are counted in epochs, of which the last may lack some."""

    is_one_event = True
    steps_per_epoch: int
    num_epochs: int
    missing_steps: int

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("missing_steps", self.missing_steps, least=0, most=self.steps_per_epoch - 1)

    @property
    def num_steps(self) -> int:
        """Return the number of steps that were made."""
        return self.num_epochs * self.steps_per_epoch - self.missing_steps

    def _length(self, num_steps: int) -> dict[str, Any]:
        num_epochs = -(-num_steps // self.steps_per_epoch)
        return {"num_epochs": num_epochs, "missing_steps": num_epochs * self.steps_per_epoch - num_steps}


def _check_fields(title: str, fields: dict[str, Any]) -> None:
    """Raise ValueError for a keyword that an `Event` made of several releases does not take."""
    check_keywords(title, fields, ("neighboring_relation", "overflow", "announced"))


@dataclasses.dataclass(frozen=True)
class _SampledGaussian(_Steps):
    """``num_steps`` releases of a noisy sum over a random batch, with the same public parameters."""

    noise_multiplier: float
    sampling_prob: float
    num_steps: int
    neighboring_relation: NeighboringRelation | None = None
    overflow: float = 0.0
    is_exact: bool = True

    def describe(self) -> str:
        """Return what was run as a clause of a report."""
        return f"Gaussian steps on {self.batches()} batches: {self._numbers()}"

    @classmethod
    def joint(cls, *noise_multipliers: float, sampling_prob: float, num_steps: int, **fields: Any) -> Self:
        """Return several releases from the *same* batch as one event, of noise multiplier (sum s_i^-2)^-1/2.

        Releases from one random batch are not independent events: whether an example was in it is shared by all.

        >>> round(Event.joint(1.0, 1.0, sampling_prob=0.01, num_steps=10).noise_multiplier, 4)
        0.7071
        """
        _check_fields("Event.joint", fields)
        if not noise_multipliers:
            raise ValueError("Event.joint needs at least one noise multiplier")
        for value in noise_multipliers:
            check_number("noise_multiplier", value, NONNEGATIVE)
        noise = np.asarray(noise_multipliers, np.float64)
        least = noise.min()
        # Relative to the least one, so that no square overflows; a release without noise leaves the joint one without.
        combined = float(least * np.sum((least / noise) ** 2) ** -0.5) if least > 0 else 0.0
        return cls(combined, sampling_prob, num_steps, **fields)

    @classmethod
    def quantile_clipping(
        cls, noise_multiplier: float, count_stddev: float, *, sampling_prob: float, num_steps: int, **fields: Any
    ) -> Self:
        """Return steps of adaptive clipping as one event: a noisy sum, and a noisy count of norms below the clip norm.

        The count is of bits less 1/2, so its sensitivity is 1/2 (1 under REPLACE_ONE), its noise multiplier
        2 count_stddev (count_stddev), and the two are one `joint` event.

        Reference: Andrew, Thakkar, McMahan and Ramaswamy, arXiv:1905.03871, Section 3.

        >>> round(Event.quantile_clipping(1.0, 5.0, sampling_prob=0.01, num_steps=10).noise_multiplier, 4)
        0.995
        """
        _check_fields("Event.quantile_clipping", fields)
        relation = resolve_relation(cls, fields.get("neighboring_relation"))
        count_stddev = check_number("count_stddev", count_stddev, POSITIVE)
        count = count_stddev if relation is NeighboringRelation.REPLACE_ONE else 2.0 * count_stddev
        return cls.joint(noise_multiplier, count, sampling_prob=sampling_prob, num_steps=num_steps, **fields)


@dataclasses.dataclass(frozen=True)
class Event(_SampledGaussian):
    """``num_steps`` releases of a noisy sum over a Poisson batch, with the same public parameters.

    Args:
      noise_multiplier: stddev of the noise over the sum's sensitivity under ``neighboring_relation``, >= 0; 0 is a run
        without privacy, whose epsilon is infinite.
      sampling_prob: probability in [0, 1] that a given example is in a batch, independently of others.
      num_steps: how many such releases, a whole number >= 1.
      neighboring_relation: ADD_OR_REMOVE_ONE (default), REPLACE_SPECIAL, or REPLACE_ONE, whose sensitivity is twice the
        clip norm.
      overflow: probability in [0, 1), over all the steps, that a batch did not fit its static capacity.
      is_exact: whether every step had these numbers. False where unequal steps share a row of a ledger that ran out of
        rows: they are the least noise multiplier and the largest probability then, and lower ends count nothing.
      announced: whether a run stops at a batch that does not fit and what is released says so, as `gdpjax.training`
        does. Lower bounds are tight then; otherwise they allow for anything that such a batch may have led to.

    Raises:
      ValueError: a value out of range, or a relation without a proved bound.

    >>> Event(1.0, 0.01, 100)
    Event(noise_multiplier=1.0, sampling_prob=0.01, num_steps=100,
          neighboring_relation=<NeighboringRelation.ADD_OR_REMOVE_ONE: 'add_or_remove_one'>, overflow=0.0,
          is_exact=True, announced=False)
    """

    announced: bool = False
    relations = (_ADDED, _SPECIAL, _REPLACED)

    def batches(self) -> str:
        """Return how batches were drawn, in a few words."""
        return "Poisson"


@dataclasses.dataclass(frozen=True)
class UniformEvent(_SampledGaussian):
    """``num_steps`` releases of a noisy sum over a batch of fixed size, drawn without replacement.

    Args:
      noise_multiplier: stddev of the noise over the sensitivity of replacing one example, twice the clip norm, >= 0.
      sampling_prob: batch size / number of examples, in [0, 1].
      num_steps: how many such releases, a whole number >= 1.
      neighboring_relation: REPLACE_ONE.
      overflow: probability in [0, 1), over all the steps, that not all subsets were equally likely.
      is_exact: as in `Event`.

    Raises:
      ValueError: a value out of range, or a relation without a proved bound.

    >>> UniformEvent(1.0, 0.01, 100).neighboring_relation.name
    'REPLACE_ONE'
    """

    relations = (_REPLACED,)

    def batches(self) -> str:
        """Return how batches were drawn, in a few words."""
        return "uniform"


@dataclasses.dataclass(frozen=True)
class TruncatedPoissonEvent(_Steps):
    """``num_steps`` releases of a noisy sum over a Poisson batch that loses a random part where it is too large.

    Every example is drawn independently with probability ``sampling_prob``; of more than ``capacity`` drawn examples a
    uniformly random ``capacity`` are kept (`gdpjax.sampling.TruncatedPoisson`).

    Args:
      noise_multiplier: stddev of the noise / clip norm, >= 0.
      sampling_prob: probability in [0, 1] that an example is drawn.
      num_steps: how many such releases, a whole number >= 1.
      max_examples: public maximum of the number of examples, which is private, a whole number >= 1.
      capacity: the most examples that a batch keeps, a whole number >= 1.
      neighboring_relation: ADD_OR_REMOVE_ONE, the only one with a proved bound. (A null example that takes a place in
        the batch, as under REPLACE_SPECIAL, pushes others out.)
      is_exact: as in `Event`.

    Raises:
      ValueError: a value out of range, or another relation.

    Reference: arXiv:2508.15089 (the scheme); the bound is derived in docs/theory/truncated.md.

    >>> TruncatedPoissonEvent(1.0, 0.01, 100, max_examples=10_000, capacity=120).capacity
    120
    """

    noise_multiplier: float
    sampling_prob: float
    num_steps: int
    max_examples: int
    capacity: int
    neighboring_relation: NeighboringRelation | None = None
    is_exact: bool = True
    relations = (_ADDED,)

    def batches(self) -> str:
        """Return how batches were drawn, in a few words."""
        return f"Poisson, at most {self.capacity}"

    def describe(self) -> str:
        """Return what was run as a clause of a report."""
        return (
            f"Gaussian steps on Poisson batches cut to {self.capacity} of {self.max_examples} examples: "
            f"{self._numbers()}"
        )


@dataclasses.dataclass(frozen=True)
class AllocationEvent(_Epochs):
    """Epochs of noisy sums in each of which every example takes part in exactly ``num_selected`` steps, at random.

    Args:
      noise_multiplier: stddev of the noise / clip norm, >= 0.
      steps_per_epoch: number t of steps in an epoch, a whole number >= 1.
      num_epochs: number of epochs that were begun, a whole number >= 1.
      num_selected: k from 1 to t: an epoch is cut into k blocks of ceil(t / k) or floor(t / k) steps, and an example
        takes part in one step of each, all of them equally likely.
      bins: "fresh" if the steps are drawn anew in each epoch, "fixed" if once for all (balls in bins).
      neighboring_relation: ADD_OR_REMOVE_ONE (default) or REPLACE_SPECIAL.
      overflow, announced: as in `Event`.
      missing_steps: how many steps at the end of the last epoch were not made, from 0 to t - 1.
      is_exact: as in `Event`.

    Raises:
      ValueError: a value out of range, or another relation.

    Reference: arXiv:2502.08202 (random allocation), arXiv:2410.06266 (balls in bins).

    >>> AllocationEvent(1.0, steps_per_epoch=100, num_epochs=5).num_steps
    500
    """

    noise_multiplier: float
    steps_per_epoch: int
    num_epochs: int = 1
    num_selected: int = 1
    bins: str = "fresh"
    neighboring_relation: NeighboringRelation | None = None
    overflow: float = 0.0
    announced: bool = False
    missing_steps: int = 0
    is_exact: bool = True
    relations = (_ADDED, _SPECIAL)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("bins", self.bins, ("fresh", "fixed"))
        check_count("num_selected", self.num_selected, most=self.steps_per_epoch)

    def batches(self) -> str:
        """Return how batches were drawn, in a few words."""
        return f"allocation, {self.num_selected} of {self.steps_per_epoch}"

    def facts(self) -> list[tuple[str, str]]:
        """Return what `describe` says as cells of a table, each a label and a text."""
        batches, *others = super().facts()
        return [batches, ("drawn", "in each epoch" if self.bins == "fresh" else "once"), *others]

    def describe(self) -> str:
        """Return what was run as a clause of a report."""
        steps = "one step" if self.num_selected == 1 else f"{self.num_selected} steps"
        when = "drawn in each epoch" if self.bins == "fresh" else "drawn once"
        return (
            f"Gaussian steps by random allocation: each example in {steps} of the {self.steps_per_epoch} of an epoch, "
            f"{when}: {self._numbers()}"
        )


@dataclasses.dataclass(frozen=True)
class ShuffledEvent(_Epochs):
    """Epochs of noisy sums over shuffled batches: every example takes part in exactly one step of each epoch.

    In each epoch the examples are permuted and cut into ``steps_per_epoch`` batches, whose sizes are fixed and differ
    by one at most (`gdpjax.sampling.Shuffled`). What is known of the privacy of such a run is a wide bracket,
    which holds for any permutations: shuffled anew, shuffled once, or not at all.

    Args:
      noise_multiplier: stddev of the noise over the sensitivity under ``neighboring_relation``, >= 0: the clip norm,
        or twice that under REPLACE_ONE.
      steps_per_epoch: number t of steps in an epoch, a whole number >= 1.
      num_epochs: number of epochs that were begun, a whole number >= 1.
      neighboring_relation: REPLACE_SPECIAL (default), REPLACE_ONE, or ADD_OR_REMOVE_ONE where the data are padded to a
        public number of rows that are shuffled together. Of data that are not padded an example more or less changes
        the sizes of batches, or who else is in them; nothing is known then.
      overflow: probability in [0, 1), over all the epochs, that the bits of a permutation do not treat all rows alike
        (that of `gdpjax.sampling.Shuffled`). It is for neighbours that also differ in the order of their rows; the
        upper end pays for it. 0 where every other example keeps its row.
      missing_steps: how many steps at the end of the last epoch were not made, from 0 to t - 1.
      is_exact: as in `Event`.

    Raises:
      ValueError: a value out of range.

    Reference: arXiv:2403.17673 and arXiv:2411.04205 (lower bounds); both ends are derived in docs/theory/shuffling.md.

    >>> ShuffledEvent(1.0, steps_per_epoch=100, num_epochs=5).num_steps
    500
    """

    noise_multiplier: float
    steps_per_epoch: int
    num_epochs: int = 1
    neighboring_relation: NeighboringRelation | None = None
    overflow: float = 0.0
    missing_steps: int = 0
    is_exact: bool = True
    relations = (_SPECIAL, _ADDED, _REPLACED)

    def batches(self) -> str:
        """Return how batches were drawn, in a few words."""
        return f"shuffled, {self.steps_per_epoch} an epoch"

    def describe(self) -> str:
        """Return what was run as a clause of a report."""
        return (
            f"Gaussian steps on shuffled batches: each example in one step of the {self.steps_per_epoch} of an epoch: "
            f"{self._numbers()}; the upper ends are those without amplification by sampling"
        )

    def _lost(self) -> str:
        return f", permutations uniform but for {rounded(self.overflow, 2, 'up')}" if self.overflow else ""


@dataclasses.dataclass(frozen=True)
class CorrelatedGaussianEvent(_Steps):
    """Noisy sums whose noise is correlated over the steps, as the matrix mechanism adds it: one Gaussian release.

    With the strategy C (lower triangular) step t releases g_t + sigma sens(C) sum_s C^-1[t, s] z_s, where z_s are
    standard normal, sigma is ``noise_multiplier`` times the sensitivity of one sum, and sens(C) is the largest norm of
    C x over the participations that are promised. All the steps together are one Gaussian mechanism, (1 /
    noise_multiplier)-GDP, also when gradients are chosen adaptively. Nothing is assumed about sampling.

    Args:
      noise_multiplier: sigma >= 0 of the formula above.
      num_steps: how many steps were made, a whole number from 1 to ``planned_steps``.
      planned_steps: number n of steps that sens(C) is for; None: ``num_steps``.
      max_participations: the most steps that an example takes part in, a whole number >= 1.
      min_separation: how many steps lie at least between the beginnings of two of them, a whole number >= 1.
      is_exact: whether sens(C) is attained by some example, and not only an upper bound. Lower ends are 0 where it is
        not, and where fewer steps were made than planned.
      neighboring_relation: REPLACE_SPECIAL (default), REPLACE_ONE, or ADD_OR_REMOVE_ONE where an example more or less
        leaves the steps of all others as they are.

    Raises:
      ValueError: a value out of range.

    Reference: arXiv:2202.08312 (adaptive inputs), arXiv:2306.08153 (several participations);
    docs/theory/matrix_mechanism.md.

    >>> CorrelatedGaussianEvent(2.0, 100, max_participations=4, min_separation=25).planned_steps
    100
    """

    noise_multiplier: float
    num_steps: int
    planned_steps: int | None = None
    max_participations: int = 1
    min_separation: int = 1
    is_exact: bool = True
    neighboring_relation: NeighboringRelation | None = None
    relations = (_SPECIAL, _ADDED, _REPLACED)
    is_one_event = True
    is_correlated = True

    def __post_init__(self) -> None:
        if self.planned_steps is None:
            object.__setattr__(self, "planned_steps", self.num_steps)
        super().__post_init__()
        assert self.planned_steps is not None
        # The sensitivity is for so many steps.
        check_count("num_steps", self.num_steps, most=self.planned_steps)

    def of_steps(
        self,
        noise_multiplier: float,
        sampling_prob: float,
        num_steps: int,
        *,
        overflow: float = 0.0,
        is_exact: bool = True,
    ) -> "CorrelatedGaussianEvent":
        """Return the event of such steps; those beyond the planned ones released NaN, whatever the data."""
        assert self.planned_steps is not None
        num_steps = min(num_steps, self.planned_steps)
        is_exact = is_exact and self.is_exact
        return super().of_steps(noise_multiplier, sampling_prob, num_steps, overflow=overflow, is_exact=is_exact)

    @property
    def attains_bound(self) -> bool:
        """Whether (1 / noise_multiplier)-GDP is exact, and not only an upper bound."""
        return self.is_exact and self.num_steps == self.planned_steps

    @property
    def from_above(self) -> "GaussianEvent":
        """The one Gaussian release that reveals at least as much, and exactly as much where `attains_bound`."""
        assert self.neighboring_relation is not None
        return GaussianEvent(self.noise_multiplier, 1, self.neighboring_relation)

    def batches(self) -> str:
        """Return how batches were drawn, in a few words."""
        return f"{self.max_participations} times, {self.min_separation} apart"

    def describe(self) -> str:
        """Return what was run as a clause of a report."""
        made = "" if self.attains_bound else "; lower ends are 0: the sensitivity is a bound, or steps are missing"
        return (
            f"Gaussian steps with correlated noise, one release: noise multiplier {self.noise_multiplier:.6g}, "
            f"{self.num_steps} of {self.planned_steps} steps, each example in at most {self.max_participations}, "
            f"at least {self.min_separation} apart{made}"
        )


@dataclasses.dataclass(frozen=True)
class CyclicPoissonEvent(_Steps):
    """Noisy sums over Poisson batches of one group after the other, with noise that is correlated within a cycle.

    Every example belongs to one of ``num_groups`` groups, and removing another example does not move it, or the groups
    are secret and uniformly random, as those of `gdpjax.sampling.CyclicPoisson`. Step t draws each example of
    group t mod num_groups independently with probability ``sampling_prob``. The noise is that of a banded strategy C
    with at most num_groups bands and column norms at most 1, so that the columns of an example's steps are orthogonal:
    to one example the run is ceil(num_steps / num_groups) Poisson-subsampled Gaussian steps.

    Args:
      noise_multiplier: stddev of the noise over the sensitivity of one sum and the largest column norm of C, >= 0.
      sampling_prob: probability in [0, 1] that an example of the step's group is drawn.
      num_steps: how many steps were made, a whole number >= 1.
      num_groups: number of groups, a whole number >= 1.
      neighboring_relation: ADD_OR_REMOVE_ONE (default) or REPLACE_SPECIAL.
      overflow, announced, is_exact: as in `Event`.

    Raises:
      ValueError: a value out of range, or another relation.

    Reference: arXiv:2306.08153, theorem 4.

    >>> CyclicPoissonEvent(1.0, 0.1, 100, num_groups=8).num_rounds
    13
    """

    noise_multiplier: float
    sampling_prob: float
    num_steps: int
    num_groups: int
    neighboring_relation: NeighboringRelation | None = None
    overflow: float = 0.0
    announced: bool = False
    is_exact: bool = True
    relations = (_ADDED, _SPECIAL)
    is_one_event = True
    is_correlated = True

    @property
    def num_rounds(self) -> int:
        """The most steps that an example may be drawn in, ceil(num_steps / num_groups)."""
        return -(-self.num_steps // self.num_groups)

    @property
    def from_above(self) -> Event:
        """The Poisson-subsampled steps that reveal at least as much to one example."""
        return self._rounds(self.num_rounds)

    @property
    def from_below(self) -> Event | None:
        """The Poisson-subsampled steps whose noise all columns of C bear; None if no cycle was finished.

        Columns of C that reach beyond the last step are shorter. Those of the first group do not, in all cycles that
        were finished, if C is a banded Toeplitz strategy of column norm 1.
        """
        finished = self.num_steps // self.num_groups
        return self._rounds(finished) if finished else None

    def _rounds(self, num_rounds: int) -> Event:
        return Event(
            self.noise_multiplier,
            self.sampling_prob,
            num_rounds,
            self.neighboring_relation,
            self.overflow,
            announced=self.announced,
        )

    def batches(self) -> str:
        """Return how batches were drawn, in a few words."""
        return f"cyclic Poisson, {self.num_groups} groups"

    def describe(self) -> str:
        """Return what was run as a clause of a report."""
        return (
            f"Gaussian steps with correlated noise on cyclic Poisson batches of {self.num_groups} groups: "
            f"{self._numbers()}"
        )


class _WholeDataEvent(_Event):
    """A release without sampling, under any one relation."""

    def facts(self) -> list[tuple[str, str]]:
        """Return what `describe` says as cells of a table, each a label and a text."""
        numbers = [(f"{label}, each", value) for label, value in self._numbers()]
        return [("scheme", self._kind), *numbers, ("releases", f"{self.num_steps:.0f}")]

    def describe(self) -> str:
        """Return what was released as a clause of a report."""
        releases = f"{self._kind} release" if self.num_steps == 1 else f"{self.num_steps} {self._kind} releases"
        return ", ".join([releases, *(f"{label} {value}" for label, value in self._numbers())])

    def _numbers(self) -> list[tuple[str, str]]:
        """Return the parameters of one release, each a label and a text."""
        fields = {field.name for field in dataclasses.fields(self)}  # pyright: ignore[reportArgumentType]
        names = (fields & _DOMAINS.keys()) - {"num_steps", "sampling_prob"}
        return [(name.replace("_", " "), f"{getattr(self, name):.6g}") for name in sorted(names, reverse=True)]

    @property
    def _kind(self) -> str:
        return type(self).__name__.removesuffix("Event")


@dataclasses.dataclass(frozen=True)
class GaussianEvent(_WholeDataEvent):
    """``num_steps`` releases of a statistic of all the data with Gaussian noise.

    Args:
      noise_multiplier: stddev of the noise / l2 sensitivity under ``neighboring_relation``, >= 0.
      num_steps: how many of them, a whole number >= 1.
      neighboring_relation: the relation of that sensitivity.

    Raises:
      ValueError: a value out of range.

    >>> GaussianEvent(5.0).num_steps
    1
    """

    noise_multiplier: float
    num_steps: int = 1
    neighboring_relation: NeighboringRelation = NeighboringRelation.ADD_OR_REMOVE_ONE


@dataclasses.dataclass(frozen=True)
class LaplaceEvent(_WholeDataEvent):
    """``num_steps`` releases of a sum over all the data, or over Poisson batches of them, with Laplace noise.

    Args:
      epsilon: l1 sensitivity under ``neighboring_relation`` / scale of the noise, >= 0.
      num_steps: how many of them, a whole number >= 1.
      neighboring_relation: the relation of that sensitivity; not REPLACE_ONE with Poisson batches.
      sampling_prob: probability in [0, 1] that an example takes part in a release, independently of others.

    Raises:
      ValueError: a value out of range, REPLACE_ONE with a sampling probability below 1.

    >>> LaplaceEvent(0.1).epsilon
    0.1
    """

    epsilon: float
    num_steps: int = 1
    neighboring_relation: NeighboringRelation = NeighboringRelation.ADD_OR_REMOVE_ONE
    sampling_prob: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.sampling_prob < 1 and self.neighboring_relation is _REPLACED:
            raise ValueError("sampled Laplace noise has a proved bound under ADD_OR_REMOVE_ONE, not under REPLACE_ONE")

    @property
    def _kind(self) -> str:
        return "Laplace" if self.sampling_prob == 1 else f"Laplace (sampling probability {self.sampling_prob:.6g})"


@dataclasses.dataclass(frozen=True)
class RandomizedResponseEvent(_WholeDataEvent):
    """``num_steps`` answers by randomized response about the same example.

    Args:
      epsilon: log of P(truth) / P(any one other answer), >= 0.
      num_categories: number of possible answers, a whole number >= 2.
      num_steps: how many such answers, a whole number >= 1.
      neighboring_relation: the relation between data sets whose answers differ in one example.

    Raises:
      ValueError: a value out of range.

    >>> RandomizedResponseEvent(1.0, num_categories=4).num_categories
    4
    """

    epsilon: float
    num_categories: int = 2
    num_steps: int = 1
    neighboring_relation: NeighboringRelation = NeighboringRelation.ADD_OR_REMOVE_ONE


@dataclasses.dataclass(frozen=True)
class ApproximateDPEvent(_WholeDataEvent):
    """``num_steps`` releases of which only (epsilon, delta)-DP is known.

    Args:
      epsilon: at least 0, in nats.
      delta: in [0, 1).
      num_steps: how many of them, a whole number >= 1.
      neighboring_relation: the relation under which that holds.

    Raises:
      ValueError: a value out of range.

    >>> ApproximateDPEvent(0.5, 1e-9).delta
    1e-09
    """

    epsilon: float
    delta: float
    num_steps: int = 1
    neighboring_relation: NeighboringRelation = NeighboringRelation.ADD_OR_REMOVE_ONE


@dataclasses.dataclass(frozen=True)
class OutcomesEvent(_WholeDataEvent):
    """``num_steps`` releases with finitely many outcomes, whose probabilities are known for two neighbours.

    Args:
      null, alternative: the probability of each outcome without and with the example (for the other relations: for
        either data set), equally many numbers >= 0 that sum to 1. No two neighbours may be further apart than these.
        Under REPLACE_ONE the two may change sides, and in each release anew.
      num_steps: how many such releases, a whole number >= 1.
      neighboring_relation: the relation of the two.

    Raises:
      ValueError: not probabilities, unequal lengths, a sum off 1 by more than 1e-9.

    >>> OutcomesEvent([0.5, 0.5], [0.25, 0.75]).alternative
    (0.25, 0.75)
    """

    null: Sequence[float]
    alternative: Sequence[float]
    num_steps: int = 1
    neighboring_relation: NeighboringRelation = NeighboringRelation.ADD_OR_REMOVE_ONE

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("null", "alternative"):
            masses = np.asarray(getattr(self, name))
            check(name, masses, UNIT)
            if masses.ndim != 1 or abs(masses.sum() - 1.0) > 1e-9 or masses.size != len(self.null):
                raise ValueError(
                    f"{name} must be the probabilities of the same outcomes, with sum 1, got {shown(masses)}"
                )
            object.__setattr__(self, name, tuple(masses.astype(float).tolist()))


SampledEvent = Event | UniformEvent
StepEvent = (
    SampledEvent
    | TruncatedPoissonEvent
    | AllocationEvent
    | ShuffledEvent
    | CorrelatedGaussianEvent
    | CyclicPoissonEvent
)
AnyEvent = StepEvent | GaussianEvent | LaplaceEvent | RandomizedResponseEvent | ApproximateDPEvent | OutcomesEvent
EVENT_TYPES: dict[str, type] = {
    "subsampled_gaussian": Event,
    "uniform": UniformEvent,
    "truncated_poisson": TruncatedPoissonEvent,
    "allocation": AllocationEvent,
    "shuffled": ShuffledEvent,
    "correlated": CorrelatedGaussianEvent,
    "cyclic_poisson": CyclicPoissonEvent,
    "gaussian": GaussianEvent,
    "laplace": LaplaceEvent,
    "randomized_response": RandomizedResponseEvent,
    "approximate_dp": ApproximateDPEvent,
    "outcomes": OutcomesEvent,
}
"""Names in the JSON form."""


def event_type_of(sampling: str) -> type[Event] | type[UniformEvent]:
    """Return the event of "poisson" or "uniform" sampling, as functions of arrays are told; ValueError otherwise."""
    types = {"poisson": Event, "uniform": UniformEvent}
    return types[check_choice("sampling", sampling, tuple(types))]
