"""The choice of the number of bands of correlated noise, which competes with amplification by sampling.

More bands take back more of the noise of earlier steps, and leave less to amplification: with b bands an example is
drawn from one group of b, with b times the probability, in one of b steps. The best number of bands meets the target
with the least error, and 1 is Poisson sampling with independent noise.
"""

import inspect
import math
from collections.abc import Sequence
from typing import Any

from gdpjax._core.arguments import check_choice, check_count, check_keywords
from gdpjax.correlated import optimize_banded_toeplitz
from gdpjax.sampling import CyclicPoisson
from gdpjax.training._make_plan import make_plan
from gdpjax.training._plan import Plan

_FOLLOWING = ("batches", "noise")
"""The arguments of `make_plan` that follow from the number of bands."""
_SIZES = ("max_examples", "expected_batch_size", "num_steps", "epochs")
"""Its short form, which says how large the batches are."""


def choose_bands(
    *,
    num_bands: Sequence[int] | None = None,
    error: str = "mean",
    **arguments: Any,
) -> tuple[Plan, dict[int, float]]:
    """Choose the number of bands of cyclic Poisson sampling that meets a privacy target with the least error.

    Formula: the error of b bands is s_b |c| sqrt(L_b) / expected_batch_size, for the noise multiplier s_b that meets
    the target, the column norm |c| of `optimize_banded_toeplitz`, and its mean or largest squared error L_b of the
    prefix sums: the root mean square error of the sum of all steps until now, in units of the clip norm.

    Args:
        num_bands: the candidates; 1, 2, 4, ... as long as a batch fits its group if None.
        error: "mean" or "max" over the steps.
        **arguments: of `make_plan`, with a target epsilon or mu, and without what follows from the number of bands
            (batches and noise); the batches are those of ``max_examples``, ``expected_batch_size`` and the length.

    Returns:
        (plan, errors): the best plan, and the error of each number of bands that can meet the target.

    Raises:
        ValueError: as `make_plan`, or candidates none of which can meet the target.

    Reference: Choquette-Choo et al., arXiv:2306.08153, section 5.

    >>> plan, errors = choose_bands(clip=1.0, max_examples=10_000, expected_batch_size=100, epochs=2, delta=1e-5,
    ...                             epsilon=8.0, num_bands=[1, 8])
    >>> plan.batches.num_groups, errors[8] < errors[1]
    (8, True)
    """
    check_choice("error", error, ("mean", "max"))
    for name in _FOLLOWING:
        if name in arguments:
            raise ValueError(f"{name} follows from the number of bands: leave it out")
    known = (*_SIZES, *inspect.signature(make_plan).parameters)
    check_keywords("choose_bands", arguments, known)

    # Plan for each number of bands, and keep why some have no plan.
    plans: dict[int, Plan] = {}
    reasons = []
    for bands in _candidates(num_bands, arguments):
        try:
            plans[bands] = _banded_plan(bands, error, arguments)
        except ValueError as reason:
            reasons.append(f"{bands}: {reason}")
    if not plans:
        listing = "; ".join(reasons)
        raise ValueError(f"no number of bands gives a plan; {listing}")

    # Of equal errors the first is the one with the fewest bands.
    errors = {}
    for bands, plan in plans.items():
        errors[bands] = _error_of(plan, error)
    best = min(errors, key=errors.__getitem__)
    return plans[best], errors


def _candidates(num_bands: Sequence[int] | None, arguments: dict[str, Any]) -> list[int]:
    """Return the numbers of bands to try, ascending."""
    if num_bands is not None:
        return sorted({check_count("num_bands", bands) for bands in num_bands})
    batch_size = arguments.get("expected_batch_size", math.inf)
    max_examples = arguments.get("max_examples", 0)

    # The powers of two, as long as a batch fits its group.
    powers = []
    bands = 1
    while bands * batch_size <= max_examples:
        powers.append(bands)
        bands *= 2
    return powers or [1]


def _banded_plan(bands: int, error: str, arguments: dict[str, Any]) -> Plan:
    """Return the plan that meets the target with so many bands."""
    sizes = {name: value for name, value in arguments.items() if name in _SIZES}
    others = {name: value for name, value in arguments.items() if name not in _SIZES}
    batches = CyclicPoisson(num_examples=sizes.pop("max_examples", None), **sizes, num_groups=bands)

    # The best strategy for that many steps.
    num_steps = batches.num_steps
    strategy = optimize_banded_toeplitz(num_steps, min(bands, num_steps), error)
    return make_plan(batches, noise=strategy, **others)


def _error_of(plan: Plan, error: str) -> float:
    """Return the root mean square error of the prefix sums, in units of the clip norm."""
    strategy = plan.release.strategy
    assert strategy is not None
    squared = float(strategy.error(plan.num_steps, error))
    return plan.noise_multiplier * float(plan.release.sensitivity) * math.sqrt(squared) / plan.expected_batch_size
