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
"""

import abc
import dataclasses
from typing import Any, ClassVar, Self

import jax
from jaxtyping import Bool, PRNGKeyArray

from gdpjax._core.arguments import check_count
from gdpjax._core.checks import is_traced
from gdpjax._core.shown import shown
from gdpjax._core.types import Array, NeighboringRelation, Whole
from gdpjax.correlated import AbstractNoiseStrategy, AbstractParticipation
from gdpjax.ledger import CorrelatedGaussianEvent, StepEvent
from gdpjax.sampling._batch import Batch, padded
from gdpjax.sampling._host import HostBatches

_ATTAINED = 1e-8
"""How far above a value that is attained a sensitivity is still called exact; lower ends allow for it."""
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
          step: which step of the run, from 0, a whole number, traced or not. Steps from num_steps on are drawn, too.
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
        """Return the batches that `to_dict` made ``saved`` of.

        Raises:
          ValueError: no class of that name is defined, or a field is missing, whose default might cost less.
        """
        fields = dict(saved)
        name = fields.pop("type", None)
        if not isinstance(name, str) or name not in _CLASSES:
            raise ValueError(
                f"the type of batches must be one of {', '.join(_CLASSES)}, got {shown(name)}; import the module that "
                "defines it before loading"
            )
        missing = [field.name for field in dataclasses.fields(_CLASSES[name]) if field.name not in fields]
        if missing:
            raise ValueError(f"expected all fields of {name}, got none for {', '.join(missing)}: give those of to_dict")
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
