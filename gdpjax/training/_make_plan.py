"""`make_plan`: a plan from a noise multiplier, or from a privacy target that is met and verified.

Calibration looks for the edge of "the upper end of the certified bracket of the plan's own Event is at most the
target", by the secant search of `gdpjax.accounting.calibrate_noise_multiplier` (`gdpjax._core.roots`). At each noise
multiplier a whole plan is evaluated, because its capacity and overflow move along. The plan that is returned is one of
these, evaluated with its overflow, sampling, relation and groups, and met the target. With what is left of a budget
for the target, the event is composed with those that were spent.
"""

import math
from collections.abc import Callable
from typing import Any, TypedDict, Unpack

from gdpjax._core.arguments import check_count, check_number, keyword_checked
from gdpjax._core.checks import OPEN_UNIT, Domain
from gdpjax._core.figures import rounded
from gdpjax._core.types import NeighboringRelation
from gdpjax.correlated import AbstractNoiseStrategy
from gdpjax.sampling import AbstractBatches, Poisson, padded_capacity
from gdpjax.training._budget import MOST, Rest, least_noise
from gdpjax.training._plan import FAILURE, Plan
from gdpjax.transforms import INDEPENDENT, IndependentGaussian

_ALLOWED_OVERFLOW = 1e-12
_LEAST_OVERFLOW = 1e-300
_SHORT_OF_TARGET = 1e-4
"""The part of a target by which the search may miss it."""
_TARGET = Domain("a number > 0 (inf asks for no privacy)", lambda x: x > 0)


class _PoissonNumbers(TypedDict, total=False):
    """The short form of Poisson batches."""

    max_examples: int
    expected_batch_size: float
    num_steps: int
    epochs: float


@keyword_checked("max_examples", "expected_batch_size", "num_steps", "epochs")
def make_plan(
    batches: AbstractBatches | None = None,
    *,
    clip: Any,
    delta: float | None = None,
    noise_multiplier: float | None = None,
    epsilon: float | Rest | None = None,
    mu: float | None = None,
    noise: IndependentGaussian | AbstractNoiseStrategy = INDEPENDENT,
    neighboring_relation: NeighboringRelation | None = None,
    group_size: int = 1,
    unit: str | None = None,
    tuned: str = "not stated",
    released: str = "the final parameters",
    **poisson: Unpack[_PoissonNumbers],
) -> Plan:
    """Fix every public constant of a private run, before the data are looked at.

    Args:
      batches: how the batches are drawn, one of `gdpjax.sampling`; or the short form of Poisson batches:
      max_examples: public maximum of the number of examples (of users, if a row is a user's data). Smaller data are
        padded to it and larger refused; where the number is public (REPLACE_SPECIAL, REPLACE_ONE) data must have it.
      expected_batch_size: public, 1 to max_examples; the divisor of the noisy sum.
      num_steps: the planned maximum; or ``epochs``: round(epochs * max_examples / expected_batch_size) steps.
        The capacity is the least multiple of 8 that a batch exceeds with probability at most delta / 1000 and 1e-12.
      clip: l2 clip norm > 0, or a rule such as `gdpjax.PerLeaf`.
      delta: strictly between 0 and 1; left out with a budget.
      noise_multiplier: stddev / sensitivity >= 0, where 0 (or too little for the finite range of noise) makes a plan
        without privacy, which says so; or a target instead:
      epsilon: the upper end of the certified bracket is at most this, at delta; ``inf`` asks for no noise. Or
        ``budget.rest()`` of a `gdpjax.Budget`: the run fits into what is left of it, whose delta, unit and neighbouring
        relation it has; or
      mu: the same for mu, but for a failure probability of 1e-10.
      noise: `gdpjax.IndependentGaussian`, or a strategy of `gdpjax.correlated`: noise that is correlated over the
        steps. With `gdpjax.sampling.Shuffled` the run is one Gaussian release, (1 / noise_multiplier)-GDP whatever the
        order of the examples; with `CyclicPoisson` it is amplified by sampling.
      neighboring_relation: one with a proved bound for these batches (their ``relations``); None: the first of them.
      group_size: protect any ``group_size`` rows together (Poisson), by the group's own curve.
      unit: what one row is, in the singular, for the statement (default "example"); "user" if a row holds all of a
        user's data.
      tuned, released: words for the statement.

    Returns:
      A frozen `Plan`: ``.event``, ``.capacity``, ``.statement()``, ``.to_json()``. Standing: certified.

    Raises:
      ValueError: values out of range, both or neither of two alternatives, a target that no noise meets, a relation
        without a proved bound, noise that does not go with the batches, an argument that it does not have.

    Reference: Abadi et al., arXiv:1607.00133; Bu et al., arXiv:1911.11607, section 2.

    >>> plan = make_plan(clip=1.0, max_examples=60_000, expected_batch_size=256, epochs=15, delta=1e-5,
    ...                  noise_multiplier=1.3)
    >>> plan.num_steps, plan.capacity
    (3516, 400)
    """
    targets = {"noise_multiplier": noise_multiplier, "epsilon": epsilon, "mu": mu}
    given = [name for name, value in targets.items() if value is not None]
    if len(given) != 1:
        got = " and ".join(given) or "none of them"
        raise ValueError(f"give exactly one of noise_multiplier, epsilon and mu, got {got}")
    rest = epsilon if isinstance(epsilon, Rest) else None
    if rest is not None:
        delta = rest.delta if delta is None else delta
        unit = rest.unit if unit is None else unit
        neighboring_relation = neighboring_relation or rest.neighboring_relation
    if delta is None:
        raise ValueError("give delta, strictly between 0 and 1")
    if batches is None:
        batches = _poisson_batches(dict(poisson), delta, group_size)
    elif poisson:
        raise ValueError(f"batches= says how batches are drawn: leave {', '.join(poisson)} out")

    # A plan for a target begins with the most noise, or with none.
    (name,) = given
    target: Any = targets[name]
    if name != "noise_multiplier":
        target = rest.target if rest is not None else check_number(name, target, _TARGET)
        noise_multiplier = 0.0 if target == math.inf else MOST
    plan = Plan(
        batches=batches,
        clip=clip,
        delta=delta,
        noise_multiplier=noise_multiplier,
        noise=noise,
        neighboring_relation=neighboring_relation,
        group_size=group_size,
        unit="example" if unit is None else unit,
        tuned=tuned,
        released=released,
    )
    if name == "noise_multiplier" or target == math.inf:
        return plan
    if rest is not None:
        return _calibrated(plan, rest.upper, target, rest.name)
    return _calibrated(plan, lambda plan: _upper(plan, name), target, f"{name} = {target}")


def _poisson_batches(numbers: dict[str, Any], delta: float, group_size: int) -> Poisson:
    """Return the batches of the short form, which have room for a group."""
    for name in ("max_examples", "expected_batch_size"):
        if name not in numbers:
            raise ValueError(
                f"give batches=, or of Poisson batches max_examples=, expected_batch_size= and epochs=; no {name}"
            )
    batches = Poisson(num_examples=numbers.pop("max_examples"), **numbers)
    # At a delta that no plan can have, the plan says so.
    allowed = max(min(_ALLOWED_OVERFLOW, check_number("delta", delta, OPEN_UNIT) / 1000), _LEAST_OVERFLOW)
    spare_rows = check_count("group_size", group_size) - 1
    law = (batches.num_examples, batches.sampling_prob, batches.num_steps)
    capacity = padded_capacity(*law, allowed, spare_rows)
    return batches if capacity == batches.capacity else batches.replace(capacity=capacity)


def _upper(plan: Plan, name: str) -> float:
    """Return the upper end of epsilon or mu, without the search for a lower end where that takes long."""
    if not plan.is_private:
        return math.inf
    curve: Any = plan.curve_if(announced=name == "epsilon")
    curve = getattr(curve, "above", curve)
    bounds = curve.epsilon(plan.delta) if name == "epsilon" else curve.mu(FAILURE)
    return float(bounds.upper)


def _calibrated(plan: Plan, upper: Callable[[Plan], float], target: float, name: str) -> Plan:
    """Return the plan with (nearly) the least noise multiplier at which ``upper`` of it is at most ``target``."""
    edge = least_noise(lambda noise: upper(plan.replace(noise_multiplier=noise)), target, name)

    # Otherwise the plan would silently have another epsilon.
    ends_at_range = not plan.replace(noise_multiplier=edge.fails).is_private
    if ends_at_range and edge.reached < target * (1 - _SHORT_OF_TARGET):
        raise ValueError(
            f"the target {name} cannot be reached: the largest is {rounded(edge.reached, 4, 'down')}, at "
            f"noise_multiplier = {rounded(edge.holds, 4, 'up')}; with less noise its finite range is too small for a "
            "guarantee. Pass at most that, or noise_multiplier (0 for a run without privacy)"
        )
    return plan.replace(noise_multiplier=edge.holds)
