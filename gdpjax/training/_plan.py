r"""The plan of a private run: every public constant, fixed before the data are looked at.

A run and its accounting can only disagree where the same quantity is written twice. A `Plan` holds each once: the
sampling probability, the divisor, the padded batch size, the overflow probability and the `Event` follow from the
others, so that nothing can be set against them. What follows from what:

* Poisson: p = the largest multiple of 2^-32 that is at most expected_batch_size / max_examples (`dyadic_probability`).
  The number of examples is *not* used: with ADD_OR_REMOVE_ONE it is private, and data of any size up to the public
  maximum are padded to it. The divisor is expected_batch_size, whatever the data.
* The capacity is the smallest multiple of 8 whose overflow probability tau = T P(Bin(max_examples, p) >= capacity) is
  at most a thousandth of delta and 1e-12; tau is in the Event and so in delta. A group of k needs k - 1 rows more: when
  the others fill fewer than capacity - k + 1 rows, the batch fits whatever the group does. Its bracket is the ideal
  run's at (delta - tau) / (1 - tau) above and at delta + tau below, as for one example: a run that meets such a batch
  stops and says so (`accounting._overflow`).
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
import math
from typing import Any

import scipy

from gdpjax._core.arguments import check_choice, check_count, check_keywords, check_number, check_text
from gdpjax._core.checks import NONNEGATIVE, OPEN_UNIT, POSITIVE, check_scalar, is_traced
from gdpjax._core.shown import shown
from gdpjax._core.types import FAILURE, Bounds, NeighboringRelation
from gdpjax.accounting import certified, with_overflow
from gdpjax.clipping import as_rule
from gdpjax.correlated import AbstractNoiseStrategy, AbstractParticipation, BandedToeplitz, FixedEpochs
from gdpjax.ledger import (
    AllocationEvent,
    AnyEvent,
    CorrelatedGaussianEvent,
    CyclicPoissonEvent,
    Event,
    ShuffledEvent,
    TruncatedPoissonEvent,
    resolve_scheme_relation,
)
from gdpjax.sampling import (
    allocation_overflow,
    choose_capacity,
    dyadic_probability,
    overflow_probability,
    shuffled_error,
    uniform_sampling_error,
)
from gdpjax.tradeoff import CertifiedCurve, NoGuarantee
from gdpjax.training._json import plan_from_json, plan_to_json
from gdpjax.training._statement import describe_in_run, on_steps_made, statement_of
from gdpjax.transforms import resolve_correlation

LARGEST_NOISE = 9.1
"""Standard deviations: the largest value of the noise, P(|Z| > 9.1) = 2^-63."""
_NUM_PARAMETERS = 2**30
"""Coordinates over which a neighbour's shift may be spread, in the bound on the range of the noise."""
_CAPACITY_MULTIPLE = 8
_ALLOWED_OVERFLOW = 1e-12


IN_EPOCHS = ("allocation", "shuffled")
"""Schemes of whole epochs, in which each example has its steps."""


def _density(z: float) -> float:
    """Return the density of a standard normal number at ``z``."""
    return math.exp(-0.5 * z * z) / math.sqrt(2.0 * math.pi)


def steps_of_epoch(max_examples: int, expected_batch_size: float, num_selected: int) -> int:
    """Return the steps of an epoch of such a scheme, round(max_examples num_selected / expected_batch_size)."""
    num_steps = round(max_examples * num_selected / expected_batch_size)
    return max(num_steps, num_selected)


def _set(plan: "Plan", name: str, value: Any) -> None:
    """Set a field of a plan that is being made; the class is frozen."""
    object.__setattr__(plan, name, value)


@dataclasses.dataclass(frozen=True)
class Plan:
    """Every public constant of a private run; made by `make_plan`, which documents the fields.

    >>> plan = Plan(noise_multiplier=1.0, clip=1.0, max_examples=1000, expected_batch_size=50, max_steps=100,
    ...             delta=1e-5)
    >>> plan.sampling, plan.capacity, plan.event.num_steps
    ('poisson', 112, 100)
    """

    noise_multiplier: Any
    clip: Any
    max_examples: int
    expected_batch_size: float
    max_steps: int
    delta: float
    sampling: str = "poisson"
    neighboring_relation: NeighboringRelation | None = None
    group_size: int = 1
    unit: str = "example"
    tuned: str = "not stated"
    released: str = "the final parameters"
    truncate_at: int | None = None
    num_selected: int = 1
    bins: str = "fresh"
    correlation: AbstractNoiseStrategy | None = None
    participation: AbstractParticipation | None = None
    num_groups: int = 1

    def __post_init__(self) -> None:
        # Each field by itself.
        check_scalar("noise_multiplier", self.noise_multiplier, NONNEGATIVE)
        for name in ("max_examples", "max_steps", "group_size", "num_selected", "num_groups"):
            count = check_count(name, getattr(self, name))
            _set(self, name, count)
        for name, domain in (("expected_batch_size", POSITIVE), ("delta", OPEN_UNIT)):
            number = check_number(name, getattr(self, name), domain)
            _set(self, name, number)
        for name in ("unit", "tuned", "released"):
            check_text(name, getattr(self, name), "words for the statement")
        _set(self, "clip", as_rule(self.clip))

        # What goes together.
        self._check_correlation()
        relation = resolve_scheme_relation(self.recorded_as, self.neighboring_relation)
        _set(self, "neighboring_relation", relation)
        check_choice("bins", self.bins, ("fresh", "fixed"))
        if self.truncate_at is not None:
            _set(self, "truncate_at", check_count("capacity", self.truncate_at))
        self._check_sizes()
        if not is_traced(self.noise_multiplier):
            _set(self, "noise_multiplier", float(self.noise_multiplier))
        self._check_delta()

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

    def _check_sizes(self) -> None:
        """Raise ValueError unless the sizes are possible under this sampling."""
        if self.expected_batch_size > self.max_examples:
            raise ValueError(
                f"expected_batch_size must be at most max_examples = {self.max_examples}, got "
                f"{self.expected_batch_size}"
            )
        if (self.sampling == "truncated_poisson") != (self.truncate_at is not None):
            raise ValueError(
                'sampling="truncated_poisson" needs a capacity, and no other sampling takes one (it follows from the '
                f"others), got sampling={self.sampling!r} and capacity={self.truncate_at}"
            )
        if self.sampling in IN_EPOCHS:
            self._check_epochs()
        if self.sampling == "cyclic_poisson" or self.correlation is not None:
            self._check_participation()
        if self.sampling != "allocation" and (self.num_selected != 1 or self.bins != "fresh"):
            raise ValueError(f'num_selected and bins belong to sampling="allocation", got sampling={self.sampling!r}')
        if self.sampling == "truncated_poisson" and self.group_size > 1:
            raise ValueError("group_size > 1 has a proved bound for Poisson sampling without truncation")
        if self.sampling == "uniform":
            if self.expected_batch_size != int(self.expected_batch_size):
                raise ValueError(f'sampling="uniform" takes batches of one whole size, got {self.expected_batch_size}')
            if self.group_size > 1:
                raise ValueError("group_size > 1 has a proved bound for Poisson sampling; give the unit's own rows")

    def _check_epochs(self) -> None:
        """Raise ValueError unless the steps are whole epochs of this scheme."""
        scheme = "allocation" if self.sampling == "allocation" else "a plan of shuffled batches"
        if self.group_size > 1:
            raise ValueError(f"group_size > 1 has a proved bound for Poisson sampling, not for {scheme}")
        if self.sampling == "shuffled" and self.steps_per_epoch > self.max_examples:
            raise ValueError(
                f"shuffled batches have at least one row, got expected_batch_size={self.expected_batch_size}"
            )
        if self.max_steps % self.steps_per_epoch:
            raise ValueError(
                f"{scheme} takes whole epochs, of {self.steps_per_epoch} steps each with this batch size, got "
                f"{self.max_steps} steps: give a multiple of that, or epochs as a whole number"
            )

    def _check_correlation(self) -> None:
        """Raise ValueError unless the noise goes with the sampling."""
        if self.correlation is None:
            if self.participation is not None:
                raise ValueError("participation belongs to correlated noise: give correlation=")
            if self.sampling == "cyclic_poisson":
                raise ValueError(
                    'sampling="cyclic_poisson" is for correlated noise: give correlation=, such as '
                    "gdpjax.correlated.BandedToeplitz, of at most num_groups bands"
                )
            return
        if not isinstance(self.correlation, AbstractNoiseStrategy):
            raise ValueError(
                "correlation must be a strategy of gdpjax.correlated, such as gdpjax.correlated.bisr(16), got "
                f"{shown(self.correlation)}"
            )
        if self.sampling not in ("shuffled", "cyclic_poisson"):
            raise ValueError(
                'correlated noise goes with sampling="shuffled" (each example once an epoch) or "cyclic_poisson", got '
                f"sampling={shown(self.sampling)}"
            )

    def _check_participation(self) -> None:
        """Raise ValueError unless the batches of this plan keep the promise that the sensitivity is for."""
        if self.group_size > 1:
            raise ValueError("group_size > 1 has a proved bound for Poisson sampling, not for correlated noise")
        if self.sampling == "cyclic_poisson":
            self._check_groups()
            return
        if self.num_groups != 1:
            raise ValueError('num_groups belongs to sampling="cyclic_poisson"')
        if self.participation is None:
            _set(self, "participation", FixedEpochs(self.num_epochs))
        if not isinstance(self.participation, AbstractParticipation):
            raise ValueError(
                "participation must be one of gdpjax.correlated, such as MinSep(max_participations=8, "
                f"min_separation=250), got {shown(self.participation)}"
            )

        # Every example takes part once an epoch; where epochs have one order, in the same step of each.
        most, separation = self.participation.limits(self.max_steps)
        is_too_often = self.num_epochs > most
        is_too_close = self.num_epochs > 1 and self.steps_per_epoch < separation
        if is_too_often or is_too_close:
            raise ValueError(
                f"with {self.num_epochs} epochs of {self.steps_per_epoch} steps every example takes part "
                f"{self.num_epochs} times, {self.steps_per_epoch} steps apart, which is not what the participation "
                f"promises: {describe_in_run(self.participation, self.max_steps)}"
            )
        if isinstance(self.participation, FixedEpochs) and self.num_epochs != self.participation.num_epochs:
            raise ValueError(f"the plan has {self.num_epochs} epochs, got participation={self.participation}")

    def _check_groups(self) -> None:
        """Raise ValueError unless the strategy goes with the groups of cyclic Poisson sampling."""
        if self.participation is not None:
            raise ValueError('sampling="cyclic_poisson" says how examples take part: leave participation out')
        if self.num_groups > self.max_examples:
            raise ValueError(f"num_groups must be at most max_examples={self.max_examples}, got {self.num_groups}")
        given = self.correlation
        if not isinstance(given, BandedToeplitz) or given.num_bands > self.num_groups:
            got = f"one of {given.num_bands}" if isinstance(given, BandedToeplitz) else shown(given)
            raise ValueError(
                f"with num_groups={self.num_groups} the strategy must be a gdpjax.correlated.BandedToeplitz of at most "
                f"that many bands, got {got}"
            )
        if self.expected_batch_size > self._longest_group:
            raise ValueError(
                f"a batch comes from one group of at most {self._longest_group} rows, got expected_batch_size="
                f"{self.expected_batch_size}"
            )

    @property
    def recorded_as(self) -> str:
        """Return what the ledger calls the steps: the sampling, or "correlated" where it does not matter."""
        if self.correlation is not None and self.sampling == "shuffled":
            return "correlated"
        return self.sampling

    @property
    def num_epochs(self) -> int:
        """Return how many epochs there are, under "allocation" and "shuffled"."""
        return self.max_steps // self.steps_per_epoch

    @property
    def order(self) -> str:
        """Return "fixed" if shuffled epochs all have the order of the first one, else "fresh".

        One order for all epochs keeps the steps of an example apart.
        """
        if self.participation is None:
            return "fresh"
        if isinstance(self.participation, FixedEpochs):
            return "fixed"
        _, separation = self.participation.limits(self.max_steps)
        return "fixed" if separation > 1 else "fresh"

    @property
    def _longest_group(self) -> int:
        """Return the rows of the longest group, under "cyclic_poisson"."""
        return -(-self.max_examples // self.num_groups)

    @property
    def is_private(self) -> bool:
        """Return whether there is enough noise for a guarantee: enough, in particular, for its finite range.

        >>> Plan(0.0, 1.0, max_examples=1000, expected_batch_size=50, max_steps=100, delta=1e-5).is_private
        False
        """
        return self.without_privacy() is None

    def _beyond(self, shift: float) -> float:
        """Return p T B of the module docstring, for a shift D."""
        # Under correlated noise every step that an example takes part in may shift the draws of all later steps.
        prob = 1.0 if self.recorded_as == "correlated" else self.sampling_prob

        # Many coordinates that are shifted by a little, fewer that are shifted by more, and one by all of it.
        by_little = _density(LARGEST_NOISE - 0.01) * math.sqrt(_NUM_PARAMETERS) * shift
        by_more = _density(LARGEST_NOISE - 0.25) * 100.0 * shift**2
        by_all = float(scipy.special.ndtr(shift - LARGEST_NOISE))
        return prob * self.max_steps * (by_little + by_more + by_all)

    def without_privacy(self) -> str | None:
        """Return why this plan guarantees nothing, as the end of a sentence; None where it guarantees something."""
        if is_traced(self.noise_multiplier):
            raise ValueError("whether a plan is private is asked of one with a concrete noise_multiplier")
        if self.noise_multiplier == 0:
            return "noise_multiplier = 0 adds no noise at all"
        beyond = self._beyond(self.group_size / self.noise_multiplier)
        if self.truncate_at is not None:
            # In a batch that lost a part one example took the place of another.
            full = overflow_probability(self.max_examples, self.sampling_prob, 1, self.truncate_at)
            beyond += full * self._beyond(2.0 / self.noise_multiplier)
        if beyond < self.delta / 100:
            return None
        chance = f"up to {beyond:.2g}" if beyond < 1 else "that may be 1"
        return (
            f"noise_multiplier = {self.noise_multiplier:.4g} is too small for finite noise: its largest value, "
            f"{LARGEST_NOISE} standard deviations, would show one {self.unit} with a probability {chance}, above "
            f"delta / 100 = {self.delta / 100:.2g}"
        )

    @property
    def steps_per_epoch(self) -> int:
        """Return in how many steps each example takes part ``num_selected`` times, under schemes of epochs.

        Those are "allocation" and "shuffled".
        """
        if self.sampling not in IN_EPOCHS:
            raise ValueError(
                f'steps_per_epoch belongs to sampling="allocation" and "shuffled", got sampling={self.sampling!r}'
            )
        return steps_of_epoch(self.max_examples, self.expected_batch_size, self.num_selected)

    @property
    def sampling_prob(self) -> float:
        """Return the probability that one example is in a batch: sampled with, and accounted for."""
        if self.sampling in IN_EPOCHS:
            return self.num_selected / self.steps_per_epoch
        if self.sampling == "cyclic_poisson":
            share_of_group = self.expected_batch_size / self._longest_group
            return dyadic_probability(share_of_group)
        share = self.expected_batch_size / self.max_examples
        if self.sampling == "uniform":
            return share
        return dyadic_probability(share)

    @functools.cached_property
    def capacity(self) -> int:
        """Return the rows of the padded batch, static."""
        # These batches have a size, or a largest one.
        if self.sampling == "uniform":
            return int(self.expected_batch_size)
        if self.sampling == "shuffled":
            return -(-self.max_examples // self.steps_per_epoch)
        if self.truncate_at is not None:
            return self.truncate_at

        # The others may have any size; one that does not fit is to be rare.
        num_rows = self.max_examples
        prob = self.sampling_prob
        if self.sampling == "cyclic_poisson":
            num_rows = self._longest_group
        if self.sampling == "allocation":
            # An example is the most likely to be in a step of the shortest block.
            shortest_block = self.steps_per_epoch // self.num_selected
            prob = min(math.nextafter(1 / shortest_block, 2.0), 1.0)
        allowed = min(_ALLOWED_OVERFLOW, self.delta / 1000)
        least = choose_capacity(num_rows, prob, self.max_steps, allowed)

        # The group fits beside the others.
        least += self.group_size - 1
        return -(-least // _CAPACITY_MULTIPLE) * _CAPACITY_MULTIPLE

    @functools.cached_property
    def overflow(self) -> float:
        """Return tau, the probability that a batch of the run does not fit, or that a draw is not uniform."""
        if self.sampling == "uniform":
            return uniform_sampling_error(self.max_examples, self.max_steps)
        if self.sampling == "cyclic_poisson":
            too_large = overflow_probability(self._longest_group, self.sampling_prob, self.max_steps, self.capacity)
            not_uniform = shuffled_error(self.max_examples, 1)
            return min(1.0, too_large + not_uniform)

        # Every batch fits, and under correlated noise the order of the rows does not matter.
        if self.recorded_as == "correlated":
            return 0.0
        if self.sampling == "shuffled":
            return shuffled_error(self.max_examples, self.num_epochs)

        # No batch is refused, and the event's own bound pays for ties.
        if self.truncate_at is not None:
            return 0.0
        if self.sampling == "allocation":
            return allocation_overflow(
                self.max_examples,
                self.steps_per_epoch,
                self.max_steps,
                self.capacity,
                self.num_selected,
            )

        # Poisson sampling: the rows that are left when the others of a group are in the batch.
        rows = self.capacity - self.group_size + 1
        return overflow_probability(self.max_examples, self.sampling_prob, self.max_steps, rows)

    @property
    def overflow_per_step(self) -> float:
        """Return each step's share of tau, enlarged by the rounding of the ledger's float32 sum of all of them."""
        share = self.overflow / self.max_steps
        return share * (1 + self.max_steps * 2.0**-23)

    @property
    def announces_overflow(self) -> bool:
        """Return whether a run of this plan may stop at a batch above its capacity, which it then says."""
        return self.sampling in ("poisson", "allocation", "cyclic_poisson")

    @property
    def scheme(self) -> dict[str, Any] | None:
        """Return what `gdpjax.privatize` records of the scheme beside noise and sampling probability."""
        if self.truncate_at is not None:
            return {"max_examples": self.max_examples, "capacity": self.truncate_at}
        if self.sampling == "allocation":
            return {
                "steps_per_epoch": self.steps_per_epoch,
                "num_selected": self.num_selected,
                "bins": self.bins,
            }
        if self.sampling == "cyclic_poisson":
            return {"num_groups": self.num_groups}
        if self.recorded_as == "shuffled":
            return {"steps_per_epoch": self.steps_per_epoch}
        return None

    @property
    def num_examples_is_public(self) -> bool:
        """Return whether neighbours have the same number of examples, which must then be max_examples."""
        return self.neighboring_relation is not NeighboringRelation.ADD_OR_REMOVE_ONE

    @property
    def event(self) -> AnyEvent:
        """Return what `max_steps` steps of this plan release."""
        if is_traced(self.noise_multiplier):
            raise ValueError(
                "a plan whose noise_multiplier is traced has no event; use plan.event outside compiled code"
            )
        if self.correlation is not None:
            return self._correlated_event()
        if self.sampling == "allocation":
            return AllocationEvent(
                self.noise_multiplier,
                self.steps_per_epoch,
                self.num_epochs,
                self.num_selected,
                self.bins,
                self.neighboring_relation,
                self.overflow,
                self.announces_overflow,
            )
        if self.sampling == "shuffled":
            return ShuffledEvent(
                self.noise_multiplier,
                self.steps_per_epoch,
                self.num_epochs,
                self.neighboring_relation,
                self.overflow,
            )
        if self.truncate_at is not None:
            return TruncatedPoissonEvent(
                self.noise_multiplier, self.sampling_prob, self.max_steps, self.max_examples, self.truncate_at
            )
        return Event(
            self.noise_multiplier,
            self.sampling_prob,
            self.max_steps,
            self.sampling,
            self.neighboring_relation,
            self.overflow,
            self.announces_overflow,
        )

    def _correlated_event(self) -> CorrelatedGaussianEvent | CyclicPoissonEvent:
        """Return the event of a plan with correlated noise."""
        if self.sampling == "cyclic_poisson":
            return CyclicPoissonEvent(
                self.noise_multiplier,
                self.sampling_prob,
                self.max_steps,
                self.num_groups,
                self.neighboring_relation,
                self.overflow,
                self.announces_overflow,
            )
        correlated = resolve_correlation(self.correlation, self.participation, self.max_steps, None, None)
        assert correlated is not None
        scheme = dict(correlated.scheme)
        is_exact = scheme.pop("is_exact") == "yes"
        return CorrelatedGaussianEvent(
            self.noise_multiplier,
            self.max_steps,
            **scheme,
            is_exact=is_exact,
            neighboring_relation=self.neighboring_relation,
        )

    @property
    def curve(self) -> CertifiedCurve:
        """Return the certified curve of all ``max_steps`` steps, for groups of ``group_size``: attacks, and mu.

        >>> plan = Plan(2.0, 1.0, max_examples=1000, expected_batch_size=50, max_steps=100, delta=1e-5)
        >>> bool(plan.curve.bayes_success(0.5).upper < 0.7)
        True
        """
        return self.curve_if(announced=self.announces_overflow)

    def curve_if(self, *, announced: bool) -> CertifiedCurve:
        """Return `curve`, of a run that does or does not say so when it stops at a batch above its capacity.

        The upper ends are the same. Of a run that does not say so the lower end of mu is 0, and nothing is computed.
        """
        if not self.is_private:
            return NoGuarantee()
        event = self.event
        if self.group_size > 1:
            alone = certified(dataclasses.replace(event, overflow=0.0), group_size=self.group_size)
            return with_overflow(alone, self.overflow, announced=announced)
        if self.announces_overflow:
            event = dataclasses.replace(event, announced=announced)
        return certified(event)

    def epsilon_bounds(self) -> Bounds:
        """Return a certified bracket on epsilon at ``delta`` for all ``max_steps`` steps and groups of ``group_size``.

        Its upper end is infinite where the plan is not private.
        """
        return self.curve.epsilon(self.delta)

    def mu_bounds(self, failure: float = FAILURE) -> Bounds:
        """Return a certified bracket on mu for all ``max_steps`` steps: mu-GDP but for probability ``failure``.

        Its upper end is infinite where the plan is not private.
        """
        return self.curve.mu(check_number("failure", failure, OPEN_UNIT))

    def replace(self, **changes: Any) -> "Plan":
        """Return the same plan but for ``changes``; what follows from them follows.

        ``noise_multiplier`` and clip norms may be traced, for a sweep in one compiled program; such a plan trains, but
        has no event, statement or JSON form.

        Raises:
          ValueError: a name that is no field of a plan.
        """
        fields = [field.name for field in dataclasses.fields(self)]
        check_keywords("Plan.replace", changes, fields, epsilon="noise_multiplier", mu="noise_multiplier")
        return dataclasses.replace(self, **changes)

    def statement(self, steps_made: int | None = None) -> str:
        """Return the sentences that belong in a paper, with the certified figures (seconds the first time).

        The guarantee is for ``max_steps`` steps. For a run that made only ``steps_made`` of them a line says so, with
        their epsilon and the condition under which it may be quoted.

        >>> plan = Plan(2.0, 1.0, max_examples=1000, expected_batch_size=50, max_steps=100, delta=1e-5)
        >>> print(plan.statement(40).splitlines()[4][:81])
        Steps: 40 of the 100 planned steps were made. The guarantee above is for all 100.
        """
        return statement_of(self, "" if steps_made is None else self.on_steps_made(steps_made))

    def on_steps_made(self, steps_made: int) -> str:
        """Return the sentences on a run that made only so many steps; an empty text if it made all of the plan's."""
        return on_steps_made(self, check_count("steps_made", steps_made, least=0, most=self.max_steps))

    def to_json(self) -> str:
        """Return the plan as JSON text: its fields, and what follows from them."""
        return plan_to_json(self)

    @classmethod
    def from_json(cls, text: str) -> "Plan":
        """Return the plan of such a text, as `to_json` gives; ValueError where the pieces disagree."""
        check_text("text", text, "the JSON text of a Plan")
        return plan_from_json(cls, text)
