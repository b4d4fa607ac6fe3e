"""A sampling scheme as one value: what draws the batches, the private transform and the ledger have to agree on.

    batches = Poisson(num_examples=60_000, expected_batch_size=256, epochs=15)
    tx = gdpjax.privatize(grad_fn, noise_multiplier=1.3, batches=batches, key=noise_key)
    *rows, is_padding = batches.sample(sample_key, t).take(x, y)     # in the compiled step t
    indices, is_padding = batches.on_host(sample_key)[t]             # the same rows, for a data loader

A loop of one's own would otherwise write the sampling probability where it draws, where it adds noise and where it
accounts, and the capacity where it draws and where it computes the probability of an overflow; nothing could see that
two of them differ. Here each number is written once, and nobody but the class knows what kind of scheme it is.

A scheme holds no key and no data. It is a static pytree without leaves, so that it passes through jit; equal ones draw
equal batches from equal keys.

A compiled step needs a static batch size. A batch of more than ``capacity`` examples cannot be run as sampled, whatever
is done about it (truncated, redrawn, refused), and that event is itself observable; with probability at most
tau = T P(Bin(N, p) >= capacity) over T steps it must be paid for: delta <= tau + (1 - tau) delta_ideal. The comparison
is >= so that the one example by which neighbours differ always fits beside the others. `DrawnBatches` chooses the
smallest capacity, a multiple of 8, with which tau is at most 1e-12.
"""

import abc
import dataclasses
import typing
from typing import Any, ClassVar, Self, TypeVar

import jax
from jaxtyping import Bool, PRNGKeyArray

from gdpjax._core.arguments import check_count, check_expected_batch_size, keyword_checked
from gdpjax._core.checks import is_traced
from gdpjax._core.epochs import steps_of_epochs
from gdpjax._core.keys import as_key, refuse_key_of_a_loop
from gdpjax._core.shown import shown
from gdpjax._core.types import Array, NeighboringRelation, Whole
from gdpjax.correlated import AbstractNoiseStrategy, AbstractParticipation
from gdpjax.ledger import CorrelatedGaussianEvent, StepEvent
from gdpjax.sampling._batch import Batch
from gdpjax.sampling._host import HostBatches
from gdpjax.sampling._padding import checked_rows, checked_step, padded, real_rows
from gdpjax.sampling._probability import choose_capacity, overflow_probability

_CAPACITY_MULTIPLE = 8
_ALLOWED_OVERFLOW = 1e-12
_ATTAINED = 1e-8
"""How far above a value that is attained a sensitivity is still called exact; lower ends allow for it."""


T = TypeVar("T")
_CLASSES: dict[str, Any] = {}


class AbstractBatches(abc.ABC):
    """The batches of a run: how they are drawn, and what is recorded of a step.

    A scheme of one's own is a subclass: a frozen dataclass with the attributes below, `sample`, `step_event` and
    `describe`.

    Attributes:
      num_examples: N, the public maximum where the true number is private.
      expected_batch_size: public divisor of the noisy sum.
      num_steps: the length of the run, for which ``capacity`` and ``overflow`` are.
      capacity: slots of a batch; None: any number of rows is believed.
      sampling_prob: the probability that an example is in a batch, as it is recorded.
      overflow_per_step: the probability that the batch of a step does not fit ``capacity``, or that a draw is not
        uniform; upper bound. The default of 0 is a promise that neither happens.
      lost_per_step: the part of it that is for batches that do not fit.
      draws_together: whether the batches of several steps come from one draw, as those of an epoch do.
    """

    num_examples: int
    expected_batch_size: Any
    num_steps: int
    capacity: int | None
    sampling_prob: Any
    overflow_per_step: Any = 0.0
    draws_together: ClassVar[bool] = False

    def __init_subclass__(cls, *, static: bool = True, **options: Any) -> None:
        super().__init_subclass__(**options)
        known = _CLASSES.setdefault(cls.__name__, cls)
        if known.__module__ != cls.__module__:
            raise ValueError(f"{cls.__name__} is the name of other batches, of {known.__module__}: choose another one")
        _CLASSES[cls.__name__] = cls
        if "overflow" in vars(cls) and "overflow_per_step" not in vars(cls):
            raise ValueError(f"{cls.__name__} has to state overflow_per_step; overflow follows from it")
        if static:
            jax.tree_util.register_static(cls)

    @property
    def overflow(self) -> float:
        """Return the probability that a batch of the run does not fit, or that a draw is not uniform; upper bound."""
        return min(1.0, self.num_steps * self.overflow_per_step * (1 + 1e-15))

    @property
    def lost_per_step(self) -> Any:
        """Return the part of ``overflow_per_step`` that is for batches that do not fit."""
        return self.overflow_per_step

    @abc.abstractmethod
    def sample(self, key: PRNGKeyArray, step: Whole, *, num_valid: Whole | None = None) -> Batch:
        """Draw the batch of one step on the device, inside or outside jit.

        Args:
          key: one PRNG key, the same for every step of the run, used for nothing else. Two runs never share it: they
            would see the same batches, and be ONE joint event (`gdpjax.Event.joint`), not two that add up. Make it and
            the noise key from one key of the run: ``sample_key, noise_key = jax.random.split(run_key)``.
          step: which step of the run, from 0, a number or a traced one. Steps from num_steps on are drawn, too. One in
            float32 must be below 2^24, where that type begins to round whole numbers.
          num_valid: how many of the rows are real, from 0 to num_examples, a number or a traced one; None: all.

        Returns:
          A `Batch` with ascending indices. Where more than ``capacity`` examples were drawn its ``count`` says so, and
          all rows are padding.

        Raises:
          ValueError: values out of range; a key and a step that are both constants of a compiled loop, whose iterations
            would share one batch. Traced values out of range give a ``count`` that never fits.
        """

    def padded(self, included: Bool[Array, " examples"]) -> Batch:
        """Return the `Batch` of the marked rows, bool[num_examples]; it is all padding where they do not fit."""
        return padded(included, check_count("capacity", self.capacity))

    @abc.abstractmethod
    def step_event(self, neighboring_relation: NeighboringRelation | None = None) -> StepEvent:
        """Return what one step with independent noise, of noise multiplier 1, is charged as.

        It is the claim that is to be proved: the event reveals at least as much as a step of these batches.

        Raises:
          ValueError: a relation without a proved bound.
        """

    def checked_step_event(self, neighboring_relation: NeighboringRelation | None = None) -> StepEvent:
        """Return `step_event`; ValueError where it has an overflow, which would be dropped for that of the class."""
        step = self.step_event(neighboring_relation)
        overflow = getattr(step, "overflow", 0.0)
        if overflow:
            raise ValueError(
                f"the step_event of {type(self).__name__} holds an overflow of {overflow:.3g}: leave it 0 there, and "
                "state it as overflow_per_step of the class, from which that of any number of steps follows"
            )
        return step

    def event(
        self,
        noise_multiplier: float,
        num_steps: int | None = None,
        *,
        neighboring_relation: NeighboringRelation | None = None,
    ) -> Any:
        """Return what ``num_steps`` steps with independent noise release; None: all of ``self.num_steps``.

        Raises:
          ValueError: values out of range, a relation without a proved bound.
        """
        step = self.checked_step_event(neighboring_relation)
        length = check_count("num_steps", self.num_steps if num_steps is None else num_steps)
        overflow = self.overflow if num_steps is None else min(1.0, length * self.overflow_per_step)
        return step.of_steps(noise_multiplier, self.sampling_prob, length, overflow=overflow)

    @abc.abstractmethod
    def describe(self, unit: str, neighboring_relation: NeighboringRelation, *, is_correlated: bool) -> str:
        """Return the sentences of a privacy statement on who is in a batch, and on the number of steps."""

    def on_host(self, key: PRNGKeyArray, *, num_valid: int | None = None) -> HostBatches:
        """Return the batches of the run on the host, by step, for a data loader: the rows that `sample` draws.

        Args:
          key: one PRNG key, used for nothing else; that of `sample`, which two runs never share.
          num_valid: how many of the rows are real, from 0 to num_examples; None: all of them.

        Returns:
          `HostBatches`. A batch above the capacity raises `BatchOverflowError`.

        Raises:
          ValueError: values out of range.
        """
        return HostBatches(self, key, num_valid=num_valid)

    def replace(self, **changes: Any) -> Self:
        """Return the same batches but for ``changes`` of their fields."""
        return dataclasses.replace(self, **changes)  # pyright: ignore[reportArgumentType]

    def to_dict(self) -> dict[str, Any]:
        """Return the class and the fields as JSON values, for the JSON form of a plan."""
        return {"type": type(self).__name__} | dataclasses.asdict(self)  # pyright: ignore[reportArgumentType]

    @staticmethod
    def from_dict(saved: dict[str, Any]) -> "AbstractBatches":
        """Return the batches that `to_dict` made ``saved`` of; ValueError where no class of that name is defined."""
        fields = dict(saved)
        name = fields.pop("type", None)
        if not isinstance(name, str) or name not in _CLASSES:
            raise ValueError(
                f"the type of batches must be one of {', '.join(_CLASSES)}, got {shown(name)}; import the module that "
                "defines it before loading"
            )
        return _CLASSES[name](**fields)

    def limits(self) -> AbstractParticipation | None:
        """Return how often and how far apart an example takes part; None where the batches promise nothing of it."""
        return None

    def correlated_event(
        self,
        strategy: AbstractNoiseStrategy,
        neighboring_relation: NeighboringRelation | None = None,
    ) -> tuple[AbstractParticipation, StepEvent]:
        """Return the promise that correlated noise is scaled for, and a step with noise multiplier 1.

        The sensitivity is exact where two neighbours attain it.

        Raises:
          ValueError: batches that promise nothing, a strategy that does not go with them.
        """
        promise = self.limits()
        if promise is None:
            raise ValueError(
                "correlated noise goes with batches that promise how often and how far apart an example takes part, "
                "gdpjax.sampling.Shuffled or Promised, or with CyclicPoisson and as many bands as groups; got "
                f"{shown(self)}"
            )
        most, separation = promise.limits(self.num_steps)
        is_exact = False
        if not is_traced(strategy):
            attained = strategy.attained(self.num_steps, promise)
            is_exact = bool(strategy.sensitivity(self.num_steps, promise) <= attained * (1.0 + _ATTAINED))
        event = CorrelatedGaussianEvent(1.0, self.num_steps, None, most, separation, is_exact, neighboring_relation)
        return promise, event

    def group_overflow(self, group_size: int) -> float:
        """Return `overflow` for a group of examples that are to fit together; ValueError where nothing is proved."""
        if group_size > 1:
            raise ValueError(f"group_size > 1 has a proved bound for Poisson batches, not for {type(self).__name__}")
        return self.overflow

    @property
    def displacing_prob(self) -> float:
        """Return the probability that an example takes the place of another one, which is then missing; 0 but where
        batches are truncated."""
        return 0.0


@typing.dataclass_transform(frozen_default=True)
def scheme(cls: type[T]) -> type[T]:
    """Make a class a frozen dataclass, whose wrong keywords are a ValueError with a guess."""
    made = dataclasses.dataclass(frozen=True)(cls)
    made.__init__ = keyword_checked()(made.__init__)
    return made


@dataclasses.dataclass(frozen=True)
class DrawnBatches(AbstractBatches):
    """The batches of a scheme of the package, which draws them from ``num_examples`` rows.

    Args:
      num_examples: N >= 1; the public maximum where the true number is private.
      expected_batch_size: public number >= 1, at most num_examples: the divisor of the noisy sum, as it is given.
      num_steps: length of the run, a whole number >= 1; or
      epochs: how often the run passes over the data, a number > 0: halves of a step are rounded up. Schemes
        of whole epochs take whole ones.
      capacity: slots of a batch, a whole number >= 1; by default the smallest multiple of 8 with which some batch of
        the run does not fit with probability at most 1e-12.

    Raises:
      ValueError: values out of range, traced ones, both or neither of num_steps and epochs, a batch above num_examples,
        a capacity whose overflow may be 1.
    """

    num_examples: int
    expected_batch_size: float
    num_steps: int = None  # type: ignore[assignment]
    _: dataclasses.KW_ONLY
    epochs: dataclasses.InitVar[float | None] = None
    capacity: int = None  # type: ignore[assignment]

    def __post_init__(self, epochs: float | None) -> None:
        self._set("num_examples", check_count("num_examples", self.num_examples))
        size = check_expected_batch_size(self.expected_batch_size, self.num_examples)
        self._set("expected_batch_size", size)
        self._check()

        # The length of the run.
        if (self.num_steps is None) == (epochs is None):
            raise ValueError(
                f"give exactly one of num_steps and epochs, got num_steps={shown(self.num_steps)}, "
                f"epochs={shown(epochs)}"
            )
        num_steps = check_count("num_steps", self.num_steps) if epochs is None else self._steps_of(epochs)
        self._set("num_steps", num_steps)
        self._check_length()

        # The size of a batch.
        capacity = self._largest_size() if self.capacity is None else self.capacity
        self._set("capacity", check_count("capacity", capacity))
        if self.overflow >= 1:
            raise ValueError(
                f"capacity={self.capacity} is too small for batches of {size} expected rows: one of {num_steps} may be "
                "larger with probability 1, and no epsilon would hold. Leave capacity out, and it is chosen"
            )

    def _set(self, name: str, value: Any) -> None:
        """Set a field of a value that is being made; the class is frozen."""
        object.__setattr__(self, name, value)

    def _check(self) -> None:
        """Check the fields of the subclass, before the number of steps is known."""

    def _check_length(self) -> None:
        """Check the number of steps."""

    def _steps_of(self, epochs: float) -> int:
        """Return the number of steps of so many epochs."""
        return steps_of_epochs(epochs, self.num_examples, self.expected_batch_size)

    def replace(self, **changes: Any) -> Self:
        """Return the same batches but for ``changes``, ``epochs`` among them; a capacity that was chosen is so anew."""
        unless_given: dict[str, Any] = {}
        if self.capacity == self._largest_size():
            unless_given["capacity"] = None
        if "epochs" in changes:
            unless_given["num_steps"] = None
        return dataclasses.replace(self, **unless_given | changes)

    def _law_of_sizes(self) -> tuple[int, float] | None:
        """Return n and p where the number of rows of a batch is at most Bin(n, p); None where every batch fits."""
        return None

    def _largest_size(self) -> int | None:
        """Return the capacity of a scheme that was given none; None where it has to be given."""
        law = self._law_of_sizes()
        assert law is not None
        return padded_capacity(*law, self.num_steps)

    @property
    def _not_uniform(self) -> float:
        """Return the probability that some draw of the run does not treat all rows alike."""
        return 0.0

    @property
    def overflow(self) -> float:
        """Return the probability that a batch of the run does not fit, or that a draw is not uniform; upper bound."""
        law = self._law_of_sizes()
        too_large = 0.0 if law is None else overflow_probability(*law, self.num_steps, self.capacity)
        return min(1.0, too_large + self._not_uniform)

    @property
    def overflow_per_step(self) -> float:
        """Return the share of one step in ``overflow``, rounded up."""
        return self.overflow / self.num_steps * (1 + 1e-15)

    def sample(self, key: PRNGKeyArray, step: Whole, *, num_valid: Whole | None = None) -> Batch:
        """Draw the batch of one step on the device, as `AbstractBatches.sample` says."""
        refuse_key_of_a_loop(as_key(key), step)
        rows = checked_rows(self.num_examples, num_valid)
        step, is_valid_step = checked_step(step)
        included, is_valid_count = real_rows(self._included(key, step), num_valid, rows)
        return self._batch_of(included, key, step, is_valid_step & is_valid_count)

    @abc.abstractmethod
    def _included(self, key: Array, step: Array) -> Array:
        """Return which rows are drawn in a step, bool[num_examples]."""

    def _batch_of(self, included: Array, key: Array, step: Array, is_valid: Array) -> Batch:
        """Return the batch of the real rows that are drawn; one that never fits where ``is_valid`` is false."""
        del key, step
        return padded(included, self.capacity, is_valid)

    def _planned(self) -> str:
        """Return the words on the number of steps with which the sentence of a statement ends."""
        return (
            f"{self.num_steps} steps, fixed before training (the statement holds for this maximum, however many were "
            "run)."
        )


def padded_capacity(
    num_rows: int,
    prob: float,
    num_steps: int,
    overflow: float = _ALLOWED_OVERFLOW,
    spare_rows: int = 0,
) -> int:
    """Return the least multiple of 8 with which a batch of Bin(num_rows, prob) rows and ``spare_rows`` more fits.

    Some batch of the run does not fit with probability at most ``overflow``.
    """
    least = choose_capacity(num_rows, prob, num_steps, overflow) + spare_rows
    return -(-least // _CAPACITY_MULTIPLE) * _CAPACITY_MULTIPLE
