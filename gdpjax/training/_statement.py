"""The privacy statement of a plan, in the sentences that belong in a paper.

What a reader needs to judge or repeat it: mechanism, clipping, sampling, neighbouring relation, what is public, the
unit of privacy, delta and what is in it, the certified figures and who computed them, the noise generator, what was
tuned and what was released. The guarantee is for the planned maximum of steps, also if the run stops before: a run that
may stop when its privacy loss is large exceeds the epsilon of the steps that it made more often than delta allows. The
statement of such a run gives that epsilon beside the guarantee, with the condition under which it holds.
"""

import decimal
from typing import Any

from gdpjax._core.checks import is_traced
from gdpjax._core.types import NeighboringRelation
from gdpjax.correlated import (
    AbstractParticipation,
    BandedInverse,
    BandedToeplitz,
    BufferedToeplitz,
    Dense,
    FixedEpochs,
    SingleParticipation,
)

_STRATEGIES_OF_THE_PACKAGE = (BandedInverse, BandedToeplitz, BufferedToeplitz, Dense)
"""The strategies that have a JSON form."""


def _mechanism(plan: Any) -> str:
    """Return the sentence on clipping and noise."""
    doubled = ""
    if plan.neighboring_relation is NeighboringRelation.REPLACE_ONE:
        doubled = " (twice that norm)"
    return (
        f"Mechanism: the Gaussian mechanism on sums of per-{plan.unit} gradients {plan.clip.describe()}, with noise of "
        f"standard deviation {plan.noise_multiplier:.6g} times the sensitivity{doubled}, divided by the public "
        f"constant {plan.expected_batch_size:.6g}." + _correlation(plan)
    )


def _correlation(plan: Any) -> str:
    """Return the sentence that follows the mechanism where noise is correlated over the steps."""
    if plan.correlation is None:
        return ""
    strategy = plan.correlation
    family = type(strategy).__name__
    size = ""
    if hasattr(strategy, "num_bands"):
        size = f" of {strategy.num_bands} bands"

    # The factor by which the noise is larger than that of independent draws.
    schema = plan.participation
    place = "the participation below"
    if schema is None:
        schema = SingleParticipation()
        place = "one participation"
    factor = "the sensitivity"
    if not is_traced(strategy):
        sensitivity = float(strategy.sensitivity(plan.max_steps, schema))
        factor = f"{sensitivity:.6g}, the sensitivity"

    coefficients = ""
    if type(strategy) in _STRATEGIES_OF_THE_PACKAGE:
        coefficients = "; its coefficients are in the plan's JSON"
    return (
        " The noise is correlated over the steps: that of step t is row t of C^-1 applied to independent draws of that "
        f"standard deviation times {factor} of the strategy C for {place}. C is a {family}{size}{coefficients}."
    )


def describe_in_run(participation: AbstractParticipation, num_steps: int) -> str:
    """Return the schema in words, with the number of steps of the run.

    >>> from gdpjax.correlated import MinSep
    >>> describe_in_run(FixedEpochs(20), 1000)
    'once in each of 20 epochs of 50 steps (1000 steps in all), always at the same position'
    >>> describe_in_run(MinSep(4, 100), 1000)
    'in at most 4 steps, at least 100 apart (1000 steps in all)'
    """
    if isinstance(participation, FixedEpochs):
        num_epochs, steps_per_epoch = participation.limits(num_steps)
        return (
            f"once in each of {num_epochs} epochs of {steps_per_epoch} steps ({num_steps} steps in all), always at the "
            "same position"
        )
    return f"{participation.describe()} ({num_steps} steps in all)"


def _sampling(plan: Any) -> str:
    """Return the sentence on who is in a batch, and on the number of steps."""
    if plan.recorded_as == "correlated":
        described = describe_in_run(plan.participation, plan.max_steps)
        order = "once and come back in that order in every epoch" if plan.order == "fixed" else "anew in every epoch"
        assumed = "Nothing is assumed about the randomness of that order"
        if plan.neighboring_relation is NeighboringRelation.ADD_OR_REMOVE_ONE:
            # Removing a row moves those behind it; a random order of all places makes up for that.
            assumed = f"The order is a secret random one of {plan.max_examples} places, empty ones among them"
        return (
            f"Participation: every {plan.unit} takes part {described}, which the "
            f"batches of this plan keep: the rows are shuffled {order}, {plan.num_epochs} of "
            f"{plan.steps_per_epoch} steps. {assumed}, and the whole run is one Gaussian release (the statement is for "
            "all its steps; stopping earlier does not make it smaller)."
        )
    if plan.sampling == "cyclic_poisson":
        return (
            f"Sampling: cyclic Poisson batches: the {plan.unit}s are dealt at random into {plan.num_groups} groups, "
            f"once for the run, and every {plan.unit} of group t mod {plan.num_groups} joins the batch of step t "
            f"independently with probability {plan.sampling_prob:.8g}; {plan.max_steps} steps, fixed before training "
            "(the statement holds for this maximum, however many were run)."
        )
    if plan.sampling == "poisson":
        return (
            f"Sampling: Poisson batches: every {plan.unit} joins each batch independently with probability "
            f"{plan.sampling_prob:.8g}; {plan.max_steps} steps, fixed before training (the statement holds for this "
            "maximum, however many were run)."
        )
    if plan.sampling == "allocation":
        selected = "one step"
        if plan.num_selected > 1:
            selected = f"{plan.num_selected} steps, one in each of as many blocks,"
        drawn = "in each epoch anew" if plan.bins == "fresh" else "once for all epochs"
        return (
            f"Sampling: random allocation: every {plan.unit} takes part in exactly {selected} of the "
            f"{plan.steps_per_epoch} steps of an epoch, drawn uniformly and independently of other {plan.unit}s, "
            f"{drawn}; {plan.max_steps} steps in {plan.num_epochs} epochs, fixed before training "
            "(the statement holds for this maximum, however many were run)."
        )
    if plan.sampling == "shuffled":
        sizes = sorted({plan.max_examples // plan.steps_per_epoch, plan.capacity})
        rows = " or ".join(str(size) for size in sizes)
        null = ""
        if not plan.num_examples_is_public:
            null = f", null {plan.unit}s among them,"
        return (
            f"Sampling: shuffled batches: in each epoch the {plan.max_examples} {plan.unit}s{null} are permuted anew "
            f"and cut into {plan.steps_per_epoch} batches of {rows}, so that every {plan.unit} takes part in exactly "
            f"one step of an epoch; {plan.max_steps} steps in {plan.num_epochs} epochs, fixed "
            "before training (the statement holds for this maximum, however many were run). Its upper bounds are those "
            "of the Gaussian mechanism without amplification by sampling, one release an epoch; no better ones are "
            "proved."
        )
    if plan.sampling == "truncated_poisson":
        return (
            f"Sampling: truncated Poisson batches: every {plan.unit} is drawn for each batch independently with "
            f"probability {plan.sampling_prob:.8g}, and of more than {plan.capacity} drawn {plan.unit}s a uniformly "
            f"random {plan.capacity} are kept; {plan.max_steps} steps, fixed before training (the statement holds for "
            "this maximum, however many were run)."
        )
    return (
        f"Sampling: batches of {plan.capacity} drawn uniformly without replacement, anew at each of {plan.max_steps} "
        "steps, fixed before training."
    )


def _neighbours(plan: Any) -> str:
    """Return the sentences on how neighbours differ, and on what is public."""
    unit = plan.unit
    if plan.group_size > 1:
        unit = f"group of up to {plan.group_size} {plan.unit}s"
    changes = {
        NeighboringRelation.ADD_OR_REMOVE_ONE: f"by adding or removing one {unit}",
        NeighboringRelation.REPLACE_ONE: f"by replacing one {unit} by any other",
        NeighboringRelation.REPLACE_SPECIAL: f"by replacing one {unit} by a null one that contributes nothing",
    }
    change = changes[plan.neighboring_relation]
    if plan.num_examples_is_public:
        public = f"The number of {plan.unit}s, {plan.max_examples}, is public"
    else:
        public = f"The number of {plan.unit}s is private; that it is at most {plan.max_examples} is public"
    return f"Neighbouring data sets differ {change} ({plan.neighboring_relation.name}). {public}, as is this plan."


def _outward(bounds: Any) -> tuple[str, str]:
    """Return a bracket in five digits: the lower end rounded down, the upper one up."""
    lower, upper = map(float, bounds)
    downward = decimal.Context(prec=5, rounding=decimal.ROUND_FLOOR)
    upward = decimal.Context(prec=5, rounding=decimal.ROUND_CEILING)
    return str(downward.create_decimal_from_float(lower)), str(upward.create_decimal_from_float(upper))


def _guarantee(plan: Any) -> str:
    """Return the sentence with the certified figures, or the one that says that there are none."""
    reason = plan.without_privacy()
    if reason is not None:
        return (
            "Guarantee: NONE. THIS RUN IS NOT PRIVATE: no epsilon is claimed, and what is released may show every "
            f"{plan.unit} exactly, because {reason}."
        )
    lower, upper = _outward(plan.epsilon_bounds())
    mu_lower, mu_upper = _outward(plan.mu_bounds())
    lost = ""
    if plan.announces_overflow and plan.overflow:
        batch = f"a batch exceeds {plan.capacity} rows, in which case training stops"
        lost = f"; this includes {plan.overflow:.2g} for the event that {batch}"
    caution = ""
    if plan.delta * plan.max_examples >= 1:
        caution = (
            f" THIS DELTA IS LARGE: it is not below 1 / {plan.max_examples}, and whoever publishes one {plan.unit} at "
            "random meets such a delta, too."
        )
    return (
        f"Guarantee: (epsilon, delta)-DP with delta = {plan.delta:g} and epsilon <= {upper} (the best epsilon of this "
        f"mechanism lies in [{lower}, {upper}]{lost}). Except with probability 1e-10 it is mu-GDP with "
        f"mu <= {mu_upper} (the best mu lies in [{mu_lower}, {mu_upper}]).{caution}"
    )


def on_steps_made(plan: Any, steps_made: int) -> str:
    """Return the sentences of `Plan.on_steps_made`."""
    if steps_made >= plan.max_steps:
        return ""
    planned = plan.max_steps
    made = f"{steps_made} of the {planned} planned steps were made. The guarantee above is for all {planned}"
    # Correlated noise of later steps is missing: the steps that were made cost what the whole run does.
    if steps_made == 0 or not plan.is_private or plan.recorded_as == "correlated":
        return f"{made}."
    num_steps = steps_made
    if plan.sampling in ("allocation", "shuffled"):
        num_steps += -steps_made % plan.steps_per_epoch
    _, upper = _outward(plan.replace(max_steps=num_steps).epsilon_bounds())
    return (
        f"{made}. The steps that were made have epsilon <= {upper} at the same delta; quote this only if the decision "
        "to stop depended neither on the data nor on anything computed from them, such as the model or its scores."
    )


def statement_of(plan: Any, made: str) -> str:
    """Return the statement of a plan, with sentences on the steps that were made; see `Plan.statement`."""
    if is_traced(plan.noise_multiplier):
        raise ValueError("a plan with a traced noise_multiplier states nothing; ask one configuration's plan")
    rounding = (
        "Accountant: gdpjax, certified composition by contour integration, lower and upper bounds. Noise: inverse "
        "normal tail at 63 random bits from jax.random, in float32 or wider, a new key for every step and parameter; "
        "the guarantee is for real arithmetic and for keys that stay secret, and does not cover the low bits of "
        "floating-point noise."
    )
    if not plan.is_private:
        rounding = "Accountant: none; THE RUN IS NOT PRIVATE, whatever an accountant of real numbers says."
    ends = (
        f"Tuned: {plan.tuned}. Released: {plan.released}; training losses, gradient norms and the times of single "
        "steps are not covered."
    )
    lines = [_mechanism(plan), _sampling(plan), _neighbours(plan), _guarantee(plan), rounding, ends]
    if made:
        lines.insert(4, f"Steps: {made}")
    return "\n".join(lines)


def with_scale(statement: str) -> str:
    """Return a statement with a sentence on the factors behind its mechanism.

    >>> print(with_scale("Mechanism: ...\\nSampling: ..."))  # doctest: +ELLIPSIS
    Mechanism: ... Before they are clipped, ...
    Sampling: ...
    """
    mechanism, rest = statement.split("\n", 1)
    return (
        f"{mechanism} Before they are clipped, gradients are multiplied, coordinate by coordinate, by positive factors "
        "that are computed from the noisy means of earlier steps alone, and the noisy mean is divided by them "
        f"(scale-then-privatize); clip norm and noise are those of the scaled gradients.\n{rest}"
    )
