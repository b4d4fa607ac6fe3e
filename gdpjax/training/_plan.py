r"""The plan of a private run: every public constant, fixed before the data are looked at.

A run and its accounting can only disagree where the same quantity is written twice. A `Plan` holds each once: how
batches are drawn (`gdpjax.sampling`), how noise is drawn and how gradients are clipped are one object each, and the
`Event` follows from them. What follows from what:

* The true number of examples is *not* used where neighbours may differ in it: data of any size up to the public maximum
  are padded to it. The divisor is expected_batch_size, whatever the data.
* tau, the probability that a batch does not fit its capacity, is in the Event and so in delta. A group of k needs k - 1
  rows more: when the others fill fewer than capacity - k + 1 rows, the batch fits whatever the group does. Its bracket
  is the ideal run's at (delta - tau) / (1 - tau) above and at delta + tau below, as for one example: a run that meets
  such a batch stops and says so (`accounting._overflow`).
* Noise has a largest value z_max = 9.1 standard deviations (63-bit tails). A step whose output one data set can have
  and its neighbour cannot has a probability B, derived below, and p T B must be below a hundredth of delta. The figures
  are those of noise without a largest value; with it they hold at delta + p T B, less than 1.01 delta. A plan with less
  noise, or none, trains (as a baseline without privacy, or for an audit that is to succeed), but is not private: its
  upper bounds are infinite and its statement says so in capitals.

*The range of the noise.* Neighbours shift the mean of the d coordinates by a vector of norm at most D = k / s, in
standard deviations (groups of k, noise multiplier s). A coordinate that is shifted by u is beyond the other's range
with probability h(u) = P(z_max - u < Z <= z_max), so that B is at most the sum of h(u_i). With phi the normal density,
which falls from 0 on:

* coordinates with u_i <= 1/100: h(u) <= u phi(z_max - 1/100), and the u_i add up to at most sqrt(d) D;
* those in (1/100, 1/4], of which there are at most (100 D)^2: h(u) <= u phi(z_max - 1/4), and the u_i add up to at most
  100 D * D;
* those above 1/4: h(u) <= phi(z_max - u) / (z_max - u), so that h' / h >= z_max - u >= 2 / u up to z_max - 1/4, and
  h(u) / u^2 increases. As the u_i^2 add up to at most D^2, the sum is at most D^2 h(D) / D^2 <= P(Z > z_max - D). For
  D above z_max - 1/4 this is more than 0.4, and no plan has such a B.

B is the sum of the three for models of 2^30 trained parameters; for 64 times as many the first part is 8 times as
large, and the figures hold at less than 1.08 delta.
"""

import dataclasses
import functools
import json
import math
from typing import Any

import scipy

from gdpjax._core.arguments import check_count, check_instance, check_keywords, check_number, check_text
from gdpjax._core.checks import NONNEGATIVE, OPEN_UNIT, check_scalar, is_traced
from gdpjax._core.figures import rounded
from gdpjax._core.types import FAILURE, Bounds, NeighboringRelation
from gdpjax.accounting import certified, with_overflow
from gdpjax.clipping import as_rule
from gdpjax.correlated import AbstractNoiseStrategy
from gdpjax.ledger import StepEvent
from gdpjax.sampling import AbstractBatches
from gdpjax.tradeoff import CertifiedCurve, NoGuarantee
from gdpjax.training._statement import FORMAT_VERSION, plan_from_json, plan_to_dict, statement_of
from gdpjax.transforms import INDEPENDENT, IndependentGaussian, Release, release_of

LARGEST_NOISE = 9.1
"""Standard deviations: the largest value of the noise, P(|Z| > 9.1) = 2^-63."""
_NUM_PARAMETERS = 2**30
"""Coordinates over which a neighbour's shift may be spread, in the bound on the range of the noise."""
_SHORT = {"max_examples": "num_examples"}
"""Arguments of the short form of `make_plan`, and what sampling schemes call them."""


def _density(z: float) -> float:
    """Return the density of a standard normal number at ``z``."""
    return math.exp(-0.5 * z * z) / math.sqrt(2.0 * math.pi)


@dataclasses.dataclass(frozen=True)
class Plan:
    """Every public constant of a private run; made by `make_plan`, which documents the fields.

    What the batches know is an attribute of the plan, too: ``max_examples``, ``expected_batch_size``, ``num_steps``,
    ``capacity``, ``sampling_prob``.

    >>> from gdpjax.sampling import Poisson
    >>> plan = Plan(Poisson(1000, 50, num_steps=100), clip=1.0, delta=1e-5, noise_multiplier=1.0)
    >>> plan.capacity, plan.event.num_steps, plan.replace(num_steps=10).num_steps
    (112, 100, 10)
    """

    batches: AbstractBatches
    clip: Any
    delta: float
    noise_multiplier: Any
    noise: IndependentGaussian | AbstractNoiseStrategy = INDEPENDENT
    neighboring_relation: NeighboringRelation | None = None
    group_size: int = 1
    unit: str = "example"
    tuned: str = "not stated"
    released: str = "the final parameters"

    def __post_init__(self) -> None:
        # Each field by itself.
        check_instance("batches", self.batches, AbstractBatches, "such as gdpjax.sampling.Poisson(...)")
        if self.batches.capacity is None:
            raise ValueError(f"a plan's batches are drawn by their scheme, got {self.batches!r}")
        check_scalar("noise_multiplier", self.noise_multiplier, NONNEGATIVE)
        if not is_traced(self.noise_multiplier):
            self._set("noise_multiplier", float(self.noise_multiplier))
        self._set("group_size", check_count("group_size", self.group_size))
        self._set("delta", check_number("delta", self.delta, OPEN_UNIT))
        for name in ("unit", "tuned", "released"):
            check_text(name, getattr(self, name), "words for the statement")
        self._set("clip", as_rule(self.clip))

        # What goes together.
        self._set("neighboring_relation", self.release.relation)
        if self.group_size > 1 and not isinstance(self.noise, IndependentGaussian):
            raise ValueError("group_size > 1 has a proved bound for Poisson batches, not for correlated noise")
        self._check_delta()

    def _set(self, name: str, value: Any) -> None:
        """Set a field of a plan that is being made; the class is frozen."""
        object.__setattr__(self, name, value)

    def _check_delta(self) -> None:
        """Raise ValueError for a delta that the finite range of noise, or the overflow, uses up."""
        has_noise = is_traced(self.noise_multiplier) or self.noise_multiplier > 0
        least = 100 * self._beyond(0.0)
        if has_noise and not least < self.delta:
            raise ValueError(
                f"delta must exceed {least:.2g}, got {self.delta}: noise has a largest value, {LARGEST_NOISE} standard "
                "deviations, and no amount of it is private for a smaller delta"
            )
        if not self.overflow < self.delta:
            raise ValueError(f"delta must exceed the overflow probability {self.overflow:.2g}, got {self.delta}")

    @functools.cached_property
    def release(self) -> Release:
        """Return what every step adds and records."""
        release = release_of(self.batches, self.noise, self.neighboring_relation)
        if not hasattr(release.step, "announced"):
            return release
        step = dataclasses.replace(release.step, announced=True)  # pyright: ignore[reportCallIssue]
        return release._replace(step=step)

    @property
    def max_examples(self) -> int:
        """Return the public maximum of the number of examples."""
        return self.batches.num_examples

    @property
    def expected_batch_size(self) -> float:
        """Return the public divisor of the noisy sum."""
        return self.batches.expected_batch_size

    @property
    def num_steps(self) -> int:
        """Return the planned maximum of steps."""
        return self.batches.num_steps

    @property
    def capacity(self) -> int:
        """Return the rows of the padded batch, static."""
        assert self.batches.capacity is not None
        return self.batches.capacity

    @property
    def sampling_prob(self) -> float:
        """Return the probability that one example is in a batch: sampled with, and accounted for."""
        return self.batches.sampling_prob

    @property
    def overflow(self) -> float:
        """Return tau, the probability that a batch of the run does not fit, or that a draw is not uniform.

        It is 0 where the event does not depend on it.
        """
        overflow = self.batches.group_overflow(self.group_size)
        return overflow if hasattr(self.release.step, "overflow") else 0.0

    @property
    def announces_overflow(self) -> bool:
        """Return whether a run of this plan may stop at a batch above its capacity, which it then says."""
        return hasattr(self.release.step, "announced")

    @property
    def is_private(self) -> bool:
        """Return whether there is enough noise for a guarantee: enough, in particular, for its finite range.

        >>> from gdpjax.sampling import Poisson
        >>> Plan(Poisson(1000, 50, num_steps=100), clip=1.0, delta=1e-5, noise_multiplier=0.0).is_private
        False
        """
        return self.without_privacy() is None

    def _beyond(self, shift: float) -> float:
        """Return p T B of the module docstring, for a shift D."""
        # Under correlated noise every step that an example takes part in may shift the draws of all later steps.
        prob = self.release.sampling_prob

        # Many coordinates that are shifted by a little, fewer that are shifted by more, and one by all of it.
        by_little = _density(LARGEST_NOISE - 0.01) * math.sqrt(_NUM_PARAMETERS) * shift
        by_more = _density(LARGEST_NOISE - 0.25) * 100.0 * shift**2
        by_all = float(scipy.special.ndtr(shift - LARGEST_NOISE))
        return prob * self.num_steps * (by_little + by_more + by_all)

    def without_privacy(self) -> str | None:
        """Return why this plan guarantees nothing, as the end of a sentence; None where it guarantees something."""
        if self.noise_multiplier == 0:
            return "noise_multiplier = 0 adds no noise at all"
        beyond = self._beyond(self.group_size / self.noise_multiplier)
        # Where a batch lost a part, one example took the place of another.
        beyond += self.batches.displacing_prob * self._beyond(2.0 / self.noise_multiplier)
        if beyond < self.delta / 100:
            return None
        chance = f"up to {beyond:.2g}" if beyond < 1 else "that may be 1"
        return (
            f"noise_multiplier = {self.noise_multiplier:.4g} is too small for finite noise: its largest value, "
            f"{LARGEST_NOISE} standard deviations, would show one {self.unit} with a probability {chance}, above "
            f"delta / 100 = {self.delta / 100:.2g}"
        )

    @property
    def num_examples_is_public(self) -> bool:
        """Return whether neighbours have the same number of examples, which must then be max_examples."""
        return self.neighboring_relation is not NeighboringRelation.ADD_OR_REMOVE_ONE

    @property
    def event(self) -> StepEvent:
        """Return what all steps of this plan release."""
        return self.event_of(self.num_steps)

    def event_of(self, num_steps: int) -> StepEvent:
        """Return what so many steps of this plan release."""
        overflow = self.overflow * (num_steps / self.num_steps)
        prob = self.release.sampling_prob
        return self.release.step.of_steps(self.noise_multiplier, prob, num_steps, overflow=overflow)

    @property
    def curve(self) -> CertifiedCurve:
        """Return the certified curve of all steps, for groups of ``group_size``: attacks, and mu.

        >>> from gdpjax.sampling import Poisson
        >>> plan = Plan(Poisson(1000, 50, num_steps=100), clip=1.0, delta=1e-5, noise_multiplier=2.0)
        >>> bool(plan.curve.bayes_success(0.5).upper < 0.7)
        True
        """
        return self.curve_if()

    def curve_if(self, *, announced: bool = True, num_steps: int | None = None) -> CertifiedCurve:
        """Return `curve`, of so many steps, of a run that does or does not say so when it stops at a batch too large.

        The upper ends are the same. Of a run that does not say so the lower end of mu is 0, and nothing is computed.
        """
        if not self.is_private:
            return NoGuarantee()
        event: Any = self.event_of(self.num_steps if num_steps is None else num_steps)
        announced = announced and self.announces_overflow
        if self.group_size > 1:
            alone = certified(dataclasses.replace(event, overflow=0.0), group_size=self.group_size)
            return with_overflow(alone, event.overflow, announced=announced)
        if self.announces_overflow:
            event = dataclasses.replace(event, announced=announced)
        return certified(event)

    def epsilon_bounds(self) -> Bounds:
        """Return a certified bracket on epsilon at ``delta`` for all steps and groups of ``group_size``.

        Its upper end is infinite where the plan is not private.
        """
        return self.curve.epsilon(self.delta)

    def mu_bounds(self, failure: float = FAILURE) -> Bounds:
        """Return a certified bracket on mu for all steps: mu-GDP but for probability ``failure``.

        Its upper end is infinite where the plan is not private.
        """
        return self.curve.mu(check_number("failure", failure, OPEN_UNIT))

    def replace(self, **changes: Any) -> "Plan":
        """Return the same plan but for ``changes``; what follows from them follows.

        A change may be of a field of the plan or of its batches, under the name that `make_plan` takes, such as
        ``num_steps``; a capacity that was chosen is chosen anew. ``noise_multiplier`` and clip norms may be traced, for
        a sweep in one compiled program; such a plan trains, but has no event, statement or JSON form.

        Raises:
          ValueError: a name that is no field.
        """
        own = {field.name for field in dataclasses.fields(self)}
        of_batches = {field.name for field in dataclasses.fields(self.batches)}  # pyright: ignore[reportArgumentType]
        known = (*own, *_SHORT, *of_batches, "epochs")
        check_keywords("Plan.replace", changes, known, epsilon="noise_multiplier", mu="noise_multiplier")
        new = {_SHORT.get(name, name): value for name, value in changes.items() if name not in own}
        fields = {name: value for name, value in changes.items() if name in own}
        if new:
            fields["batches"] = fields.get("batches", self.batches).replace(**new)
        return dataclasses.replace(self, **fields)

    def statement(self, steps_made: int | None = None) -> str:
        """Return the sentences that belong in a paper, with the certified figures (seconds the first time).

        The guarantee is for ``num_steps`` steps. For a run that made only ``steps_made`` of them a line says so, with
        their epsilon and the condition under which it may be quoted.

        >>> from gdpjax.sampling import Poisson
        >>> plan = Plan(Poisson(1000, 50, num_steps=100), clip=1.0, delta=1e-5, noise_multiplier=2.0)
        >>> print(plan.statement(40).splitlines()[4][:81])
        Steps: 40 of the 100 planned steps were made. The guarantee above is for all 100.
        """
        return statement_of(self, "" if steps_made is None else self.on_steps_made(steps_made))

    def on_steps_made(self, steps_made: int) -> str:
        """Return the sentences on a run that made only so many steps; an empty text if it made all of the plan's."""
        steps_made = check_count("steps_made", steps_made, least=0, most=self.num_steps)
        if steps_made == self.num_steps:
            return ""
        planned = self.num_steps
        made = f"{steps_made} of the {planned} planned steps were made. The guarantee above is for all {planned}."
        if steps_made == 0 or not self.is_private:
            return made

        # Steps of correlated noise cost what the whole run does, and some steps of an epoch at most as much.
        upper = self.curve_if(num_steps=steps_made).epsilon(self.delta).upper
        if not upper < self.epsilon_bounds().upper:
            return made
        return (
            f"{made} The steps that were made have epsilon <= {rounded(float(upper), 5, 'up')} at the same delta; "
            "quote this only if the decision to stop depended neither on the data nor on anything computed from them, "
            "such as the model or its scores."
        )

    def caution_on_delta(self) -> str:
        """Return a sentence where delta is not below 1 / max_examples; an empty text otherwise."""
        if self.delta * self.max_examples < 1:
            return ""
        return (
            f" THIS DELTA IS LARGE: it is not below 1 / {self.max_examples}, and whoever publishes one {self.unit} at "
            "random meets such a delta, too."
        )

    def to_json(self) -> str:
        """Return the plan as JSON text: its fields, and what follows from them."""
        return json.dumps({"gdpjax_plan": FORMAT_VERSION, **plan_to_dict(self)}, indent=2) + "\n"

    @classmethod
    def from_json(cls, text: str) -> "Plan":
        """Return the plan of such a text, as `to_json` gives; ValueError where the pieces disagree."""
        check_text("text", text, "the JSON text of a Plan")
        return plan_from_json(cls, text)
