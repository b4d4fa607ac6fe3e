"""A plan in writing: its privacy statement, in the sentences that belong in a paper, and its JSON text.

What a reader needs to judge or repeat it: mechanism, clipping, sampling, neighbouring relation, what is public, the
unit of privacy, delta and what is in it, the certified figures and who computed them, the noise generator, what was
tuned and what was released. The guarantee is for the planned maximum of steps, also if the run stops before: a run that
may stop when its privacy loss is large exceeds the epsilon of the steps that it made more often than delta allows. The
statement of such a run gives that epsilon beside the guarantee, with the condition under which it holds.

Beside the fields the JSON text has what follows from them, so that other programs can read it. It is compared when read
back: a file whose sampling probability was edited without the batch size is refused, with both numbers.
"""

import dataclasses
from typing import Any

from gdpjax._core.checks import is_traced
from gdpjax._core.documents import convert_document, parse_document
from gdpjax._core.figures import rounded
from gdpjax._core.shown import shown
from gdpjax._core.types import NeighboringRelation, neighbours_differ
from gdpjax.clipping import AbstractClipRule
from gdpjax.correlated import AbstractNoiseStrategy, CoefficientStrategy, SingleParticipation
from gdpjax.sampling import AbstractBatches
from gdpjax.transforms import INDEPENDENT

_INDEPENDENT = {"type": "IndependentGaussian"}

FORMAT_VERSION = 2
"""Version of the JSON form; another one is refused."""
FOLLOWS = ("sampling_prob", "overflow")
"""Properties of a plan that are written and checked."""


def _mechanism(plan: Any) -> str:
    """Return the sentence on clipping and noise."""
    noise = rounded(plan.noise_multiplier, 6, "down")
    doubled = ""
    if plan.neighboring_relation is NeighboringRelation.REPLACE_ONE:
        doubled = " (twice that norm)"
    return (
        f"Mechanism: the Gaussian mechanism on sums of per-{plan.unit} gradients {plan.clip.describe()}, with noise of "
        f"standard deviation {noise} times the sensitivity{doubled}, divided by the public constant "
        f"{plan.expected_batch_size:.6g}." + _correlation(plan)
    )


def _correlation(plan: Any) -> str:
    """Return the sentence that follows the mechanism where noise is correlated over the steps."""
    strategy = plan.release.strategy
    if strategy is None:
        return ""
    family = type(strategy).__name__
    size = ""
    if hasattr(strategy, "num_bands"):
        size = f" of {strategy.num_bands} bands"

    # The factor by which the noise is larger than that of independent draws.
    is_single = isinstance(plan.release.promise, SingleParticipation)
    place = "one participation" if is_single else "the participation below"
    factor = "the sensitivity"
    if not is_traced(strategy):
        factor = f"{float(plan.release.sensitivity):.6g}, the sensitivity"

    coefficients = ""
    if isinstance(strategy, CoefficientStrategy):
        coefficients = "; its coefficients are in the plan's JSON"
    return (
        " The noise is correlated over the steps: that of step t is row t of C^-1 applied to independent draws of that "
        f"standard deviation times {factor} of the strategy C for {place}. C is a {family}{size}{coefficients}."
    )


def _neighbours(plan: Any) -> str:
    """Return the sentences on how neighbours differ, and on what is public."""
    unit = plan.unit
    if plan.group_size > 1:
        unit = f"group of up to {plan.group_size} {plan.unit}s"
    if plan.num_examples_is_public:
        public = f"The number of {plan.unit}s, {plan.max_examples}, is public"
    else:
        public = f"The number of {plan.unit}s is private; that it is at most {plan.max_examples} is public"
    return f"Neighbouring data sets {neighbours_differ(plan.neighboring_relation, unit)}. {public}, as is this plan."


def _outward(bounds: Any) -> tuple[str, str]:
    """Return a bracket in five digits: the lower end rounded down, the upper one up."""
    lower, upper = map(float, bounds)
    return rounded(lower, 5, "down"), rounded(upper, 5, "up")


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
        batch = f"a batch exceeds {plan.capacity} {plan.unit}s, in which case training stops"
        lost = f"; this includes {rounded(plan.overflow, 2, 'up')} for the event that {batch}"
    delta = rounded(plan.delta, 6, "up")
    return (
        f"Guarantee: (epsilon, delta)-DP with delta = {delta} and epsilon <= {upper} (the best epsilon of this "
        f"mechanism lies in [{lower}, {upper}]{lost}). Except with probability 1e-10 it is mu-GDP with "
        f"mu <= {mu_upper} (the best mu lies in [{mu_lower}, {mu_upper}]).{plan.caution_on_delta()}"
    )


def statement_of(plan: Any, made: str) -> str:
    """Return the statement of a plan, with sentences on the steps that were made; see `Plan.statement`."""
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
    batches = plan.batches.describe(
        plan.unit, plan.neighboring_relation, is_correlated=plan.release.strategy is not None
    )
    lines = [_mechanism(plan), batches, _neighbours(plan), _guarantee(plan), rounding, ends]
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


def plan_to_dict(plan: Any) -> dict[str, Any]:
    """Return the fields, and what follows from them, as JSON values."""
    names = [field.name for field in dataclasses.fields(plan)]
    fields = {name: getattr(plan, name) for name in names}

    # The fields that are objects.
    fields["batches"] = plan.batches.to_dict()
    fields["clip"] = plan.clip.to_dict()
    fields["noise"] = _noise_to_dict(plan.release.strategy)
    fields["neighboring_relation"] = plan.neighboring_relation.value
    following = {name: getattr(plan, name) for name in FOLLOWS}
    return fields | following


def _noise_to_dict(strategy: AbstractNoiseStrategy | None) -> dict[str, Any]:
    if strategy is None:
        return _INDEPENDENT
    if not isinstance(strategy, CoefficientStrategy):
        raise ValueError(f"only strategies of gdpjax.correlated have a JSON form, got {shown(strategy)}")
    return strategy.to_dict()


def plan_from_json(cls: Any, text: str) -> Any:
    """Return the plan of a JSON text; see `Plan.from_json`."""
    data = parse_document(text, dict[str, Any], "the JSON text of a Plan")
    if data.pop("gdpjax_plan", None) != FORMAT_VERSION:
        raise ValueError(
            f"expected the JSON text of a Plan of version {FORMAT_VERSION}, made by Plan.to_json: read it with the "
            "gdpjax that wrote it, or make the plan anew with gdpjax.make_plan"
        )

    # The fields, and what the text says follows from them.
    stated = {name: data.pop(name, None) for name in FOLLOWS}
    names = {field.name for field in dataclasses.fields(cls)}
    if data.keys() != names:
        raise ValueError(f"a Plan's fields are {sorted(names)}; missing or unknown: {sorted(names ^ data.keys())}")

    try:
        rule = convert_document(data["clip"], dict[str, Any], "field clip")
        data["clip"] = AbstractClipRule.from_dict(rule)
        batches = convert_document(data["batches"], dict[str, Any], "field batches")
        data["batches"] = AbstractBatches.from_dict(batches)
        data["noise"] = INDEPENDENT if data["noise"] == _INDEPENDENT else CoefficientStrategy.from_dict(data["noise"])
        data["neighboring_relation"] = NeighboringRelation(data["neighboring_relation"])
        plan = cls(**data)
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"the JSON text of a Plan is damaged: {error}") from error

    for name, value in stated.items():
        following = getattr(plan, name)
        if value != following:
            raise ValueError(
                f"the pieces of this plan disagree: {name} is {value!r} in the text, but its other fields give "
                f"{following!r}"
            )
    return plan
