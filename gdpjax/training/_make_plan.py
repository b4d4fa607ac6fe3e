"""`make_plan`: a plan from a noise multiplier, or from a privacy target that is met and verified.

Calibration looks for the edge of "the upper end of the certified bracket of the plan's own Event is at most the
target", by the secant search of `gdpjax.accounting.calibrate_noise_multiplier` (`gdpjax._core.roots`). At each noise
multiplier a whole plan is evaluated, because its capacity and overflow move along. The plan that is returned is one of
these, evaluated with its overflow, sampling, relation and groups, and met the target.
"""

import math
from typing import Any

import numpy as np

from gdpjax._core import roots
from gdpjax._core.arguments import check_count, check_expected_batch_size, check_number, keyword_checked
from gdpjax._core.checks import POSITIVE, Domain
from gdpjax._core.figures import rounded
from gdpjax._core.shown import shown
from gdpjax._core.types import NeighboringRelation
from gdpjax.accounting import steps_of_epochs
from gdpjax.correlated import AbstractNoiseStrategy, AbstractParticipation
from gdpjax.training._plan import FAILURE, IN_EPOCHS, Plan, steps_of_epoch

_LEAST, _MOST = 1e-2, 1e6
_NOISE = roots.Axis(_MOST, _LEAST)
_SHORT_OF_TARGET = 1e-4
"""The part of a target by which the search may miss it."""
_TARGET = Domain("a number > 0 (inf asks for no privacy)", lambda x: x > 0)
_ELSEWHERE = {
    "l2_clip_norm": "clip",
    "max_grad_norm": "clip",
    "num_examples": "max_examples",
    "batch_size": "expected_batch_size",
    "sigma": "noise_multiplier",
}
"""What other functions, the command line and other libraries call the arguments of `make_plan`."""


@keyword_checked(**_ELSEWHERE)
def make_plan(
    *,
    clip: Any,
    max_examples: int,
    expected_batch_size: float,
    delta: float,
    num_steps: int | None = None,
    epochs: float | None = None,
    noise_multiplier: float | None = None,
    epsilon: float | None = None,
    mu: float | None = None,
    sampling: str | None = None,
    capacity: int | None = None,
    num_selected: int = 1,
    bins: str = "fresh",
    correlation: AbstractNoiseStrategy | None = None,
    participation: AbstractParticipation | None = None,
    num_groups: int = 1,
    neighboring_relation: NeighboringRelation | None = None,
    group_size: int = 1,
    unit: str = "example",
    tuned: str = "not stated",
    released: str = "the final parameters",
) -> Plan:
    """Fix every public constant of a private run, before the data are looked at.

    Args:
      clip: l2 clip norm > 0, or a rule such as `gdpjax.PerLeaf`.
      max_examples: public maximum of the number of examples (of users, if a row is a user's data). Smaller data are
        padded to it and larger refused; where the number is public (REPLACE_SPECIAL, REPLACE_ONE) data must have it.
      expected_batch_size: public, 1 to max_examples; the divisor of the noisy sum. Poisson: the sampling probability
        is expected_batch_size / max_examples, rounded down to a multiple of 2^-32. Uniform: the batch size.
      delta: strictly between 0 and 1.
      num_steps: the planned maximum; or ``epochs``: round(epochs * max_examples / expected_batch_size) steps.
      noise_multiplier: stddev / sensitivity >= 0, where 0 (or too little for the finite range of noise) makes a plan
        without privacy, which says so; or a target instead:
      epsilon: the upper end of the certified bracket is at most this, at delta; ``inf`` asks for no noise; or
      mu: the same for mu, but for a failure probability of 1e-10.
      sampling: "poisson" (default), "truncated_poisson", "allocation", "shuffled" or "uniform"; with a correlation
        "shuffled" (default) or "cyclic_poisson". Allocation and shuffled batches
        have epochs of round(max_examples num_selected / expected_batch_size) steps, and run whole epochs. What is known
        of shuffled batches is a wide bracket, whose upper end is the one without sampling (docs/theory/shuffling.md).
      capacity: with "truncated_poisson" the most examples that a batch keeps; it follows from the rest elsewhere.
      num_selected, bins: with "allocation", as in `gdpjax.ledger.AllocationEvent`.
      correlation: a strategy of `gdpjax.correlated`: noise that is correlated over the steps. With "shuffled" the run
        is one Gaussian release, (1 / noise_multiplier)-GDP whatever the order of the examples; the batches are shuffled
        once and come back in the same order in each epoch. With "cyclic_poisson" the strategy has bands, and the
        privacy of its run is amplified by sampling (`gdpjax.ledger.CyclicPoissonEvent`).
      participation: with a correlation and "shuffled", the promise that the sensitivity is for; `FixedEpochs` of the
        plan's epochs unless given. With ``MinSep(k, 1)`` every epoch is shuffled anew.
      num_groups: with "cyclic_poisson", the number of groups that take turns, at least the strategy's bands.
      neighboring_relation: as in `gdpjax.Event`: poisson with ADD_OR_REMOVE_ONE (default) or REPLACE_SPECIAL, truncated
        Poisson with ADD_OR_REMOVE_ONE, uniform with REPLACE_ONE, shuffled with REPLACE_SPECIAL (default) or either.
      group_size: protect any ``group_size`` rows together (Poisson), by the group's own curve.
      unit: what one row is, in the singular, for the statement; "user" if a row holds all of a user's data.
      tuned, released: words for the statement.

    Returns:
      A frozen `Plan`: ``.event``, ``.capacity``, ``.statement()``, ``.to_json()``. Standing: certified.

    Raises:
      ValueError: values out of range, both or neither of two alternatives, a target that no noise meets, a pair of
        sampling and relation without a proved bound, an argument that it does not have.

    Reference: Abadi et al., arXiv:1607.00133; Bu et al., arXiv:1911.11607, section 2.

    >>> plan = make_plan(clip=1.0, max_examples=60_000, expected_batch_size=256, epochs=15, delta=1e-5,
    ...                  noise_multiplier=1.3)
    >>> plan.max_steps, plan.capacity
    (3516, 400)
    """
    if (num_steps is None) == (epochs is None):
        got = f"num_steps={shown(num_steps)}, epochs={shown(epochs)}"
        raise ValueError(f"give exactly one of num_steps and epochs, got {got}")
    targets = {"noise_multiplier": noise_multiplier, "epsilon": epsilon, "mu": mu}
    given = [name for name, value in targets.items() if value is not None]
    if len(given) != 1:
        got = " and ".join(given) or "none of them"
        raise ValueError(f"give exactly one of noise_multiplier, epsilon and mu, got {got}")
    if sampling is None:
        sampling = "poisson" if correlation is None else "shuffled"

    max_examples = check_count("max_examples", max_examples)
    expected_batch_size = check_expected_batch_size(expected_batch_size, max_examples)

    # Epochs as steps.
    if epochs is not None:
        epochs = check_number("epochs", epochs, POSITIVE)
        if sampling in IN_EPOCHS:
            num_selected = check_count("num_selected", num_selected)
            num_epochs = check_count("epochs", epochs)
            num_steps = num_epochs * steps_of_epoch(max_examples, expected_batch_size, num_selected)
        else:
            num_steps = steps_of_epochs(epochs, max_examples, expected_batch_size)

    # A plan for a target begins with the most noise, or with none.
    (name,) = given
    target: Any = targets[name]
    if name != "noise_multiplier":
        target = check_number(name, target, _TARGET)
        noise_multiplier = 0.0 if target == math.inf else _MOST
    plan = Plan(
        noise_multiplier=noise_multiplier,
        clip=clip,
        max_examples=max_examples,
        expected_batch_size=expected_batch_size,
        max_steps=num_steps,  # type: ignore[arg-type]
        delta=delta,
        sampling=sampling,
        neighboring_relation=neighboring_relation,
        group_size=group_size,
        unit=unit,
        tuned=tuned,
        released=released,
        truncate_at=capacity,
        num_selected=num_selected,
        bins=bins,
        correlation=correlation,
        participation=participation,
        num_groups=num_groups,
    )
    if name == "noise_multiplier" or target == math.inf:
        return plan
    return _calibrated(plan, name, target)


def _upper(plan: Plan, name: str) -> float:
    """Return the upper end of epsilon or mu, without the search for a lower end where that takes long."""
    if not plan.is_private:
        return math.inf
    if name == "epsilon" and plan.recorded_as != "shuffled":
        return float(plan.epsilon_bounds().upper)
    curve: Any = plan.curve_if(announced=False)
    if plan.recorded_as == "shuffled":
        curve = curve.above
    bounds = curve.epsilon(plan.delta) if name == "epsilon" else curve.mu(FAILURE)
    return float(bounds.upper)


def _calibrated(plan: Plan, name: str, target: float) -> Plan:
    """Return the plan with (nearly) the least noise multiplier whose epsilon or mu is at most ``target``."""
    if _upper(plan, name) > target:
        raise ValueError(f"the target {name} = {target} cannot be met: even noise_multiplier = {_MOST:g} exceeds it")

    # From 1 on, so that the slow ends of the accountant's range are only visited if they must be.
    state = roots.begin(_NOISE, np.ones(1), np.ones(1))
    reached = 0.0
    with np.errstate(all="ignore"):
        while not state.done.all():
            value = _upper(plan.replace(noise_multiplier=float(state.point[0])), name)
            if value <= target:
                reached = value
            excess = np.log(np.array([value]) / target)
            meets_target = np.array([value <= target])
            state = roots.advance(_NOISE, state, excess, meets_target)
    least, too_little = float(state.holds[0]), float(state.fails[0])
    if least == _LEAST:
        raise ValueError(f"the target {name} = {target} asks for nothing: even noise_multiplier = {_LEAST} meets it")

    # Otherwise the plan would silently have another epsilon.
    ends_at_range = not plan.replace(noise_multiplier=too_little).is_private
    if ends_at_range and reached < target * (1 - _SHORT_OF_TARGET):
        raise ValueError(
            f"the target {name} = {target} cannot be reached: the largest is {rounded(reached, 4, 'down')}, at "
            f"noise_multiplier = {rounded(least, 4, 'up')}; with less noise its finite range is too small for a "
            "guarantee. Pass at most that, or noise_multiplier (0 for a run without privacy)"
        )
    return plan.replace(noise_multiplier=least)
