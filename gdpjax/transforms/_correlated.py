"""Noise that is correlated over the steps, for `privatize`: a strategy, a participation schema and a number of steps.

    privatize(grad_fn, noise_multiplier=1.0, expected_batch_size=64, key=key, num_steps=2000,
              correlation=strategy, participation=MinSep(8, 250))

with strategy = optimize_banded_inverse(2000, 8, MinSep(8, 250)), for example.

The noise of step t is sigma Delta sens(C) w_t with w_t = sum_s C^-1[t, s] z_s. Delta is the sensitivity of one sum,
and sens(C) that of the strategy C under the participation schema. The standard normal z_s of a leaf is a function of
the noise key, the step s and the leaf's path alone, so a strategy that keeps no state draws those of earlier steps
again, and a run that is resumed goes on with the same noise.

The derivation is in docs/theory/matrix_mechanism.md.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

from gdpjax._core.arguments import check_count
from gdpjax._core.checks import is_traced
from gdpjax._core.keys import fold_in
from gdpjax._core.noise import standard_normals
from gdpjax._core.shown import shown
from gdpjax._core.trees import is_floating, keys_of_leaves, leaf_names, num_elements, wide_dtype
from gdpjax._core.types import Array, PyTree
from gdpjax.correlated import (
    AbstractNoiseStrategy,
    AbstractParticipation,
    AbstractWorkload,
    BandedToeplitz,
    SingleParticipation,
)

_MOST_STEPS = 2**31 - 1
_ROUNDING = 1e-8
"""How far above a value that is attained a sensitivity is still called exact; lower ends allow for it."""


class Correlation(NamedTuple):
    """Correlated noise as `privatize` uses it.

    Attributes:
        strategy: the strategy C.
        num_steps: the steps that ``sensitivity`` is for; there is no noise, and so no release, for a step beyond.
        sensitivity: sens(C), an upper bound; traced where the coefficients of C are.
        sampling: how the ledger calls the steps, "correlated" or "cyclic_poisson".
        scheme: what the ledger's event says of them.
    """

    strategy: AbstractNoiseStrategy
    num_steps: int
    sensitivity: Any
    sampling: str
    scheme: dict[str, Any]


def resolve_correlation(
    correlation: Any,
    participation: Any,
    num_steps: Any,
    sampling: str | None,
    scheme: Any,
) -> Correlation | None:
    """Return what the arguments of `privatize` say of correlated noise; None where the noise is independent."""
    if correlation is None:
        if participation is not None or num_steps is not None:
            raise ValueError(
                "participation and num_steps belong to correlated noise: give correlation=, such as gdpjax.correlated."
                f"optimize_banded_inverse(num_steps, 8, participation); got participation={shown(participation)} and "
                f"num_steps={shown(num_steps)}"
            )
        if sampling == "correlated":
            raise ValueError(
                'sampling="correlated" is for the noise of a strategy, and this noise is independent: leave sampling= '
                "and scheme= out, and give correlation=, num_steps= and participation="
            )
        return None
    if isinstance(correlation, Correlation):
        return correlation
    if not isinstance(correlation, AbstractNoiseStrategy):
        raise ValueError(
            "correlation must be a strategy of gdpjax.correlated, such as optimize_banded_inverse(num_steps, 8, "
            f"participation), got {shown(correlation)}"
        )
    if num_steps is None:
        raise ValueError(
            "correlated noise needs num_steps=, the most steps that the run will take: its sensitivity grows with them"
        )
    num_steps = check_count("num_steps", num_steps, most=_MOST_STEPS)
    if sampling == "cyclic_poisson":
        return _cyclic(correlation, participation, num_steps, scheme)
    if sampling not in (None, "correlated"):
        raise ValueError(
            "correlated noise takes no sampling= but the promise participation=, or sampling='cyclic_poisson', got "
            f"sampling={shown(sampling)}"
        )
    if scheme is not None:
        raise ValueError(
            "leave scheme= out: with correlation= it follows from participation and num_steps; got "
            f"scheme={shown(scheme)}"
        )
    if not isinstance(participation, AbstractParticipation):
        raise ValueError(
            "correlated noise needs participation=, how often and how far apart the loader promises to use an example, "
            f"such as gdpjax.correlated.MinSep(max_participations=8, min_separation=250); got {shown(participation)}"
        )
    _refuse_unstable(correlation, num_steps)

    # The sensitivity is exact where two neighbours attain it.
    max_participations, min_separation = participation.limits(num_steps)
    sensitivity = correlation.sensitivity(num_steps, participation)
    is_exact = False
    if not is_traced(sensitivity):
        attained = correlation.attained(num_steps, participation)
        is_exact = sensitivity <= attained * (1.0 + _ROUNDING)
    return Correlation(
        strategy=correlation,
        num_steps=num_steps,
        sensitivity=sensitivity,
        sampling="correlated",
        scheme={
            "planned_steps": num_steps,
            "max_participations": max_participations,
            "min_separation": min_separation,
            "is_exact": "yes" if is_exact else "no",
        },
    )


def _cyclic(correlation: AbstractNoiseStrategy, participation: Any, num_steps: int, scheme: Any) -> Correlation:
    """Return the correlation of banded noise under cyclic Poisson sampling."""
    if participation is not None:
        raise ValueError("sampling='cyclic_poisson' says how examples take part: leave participation= out")
    num_groups = None
    if isinstance(scheme, dict) and len(scheme) == 1:
        num_groups = scheme.get("num_groups")
    if num_groups is None:
        raise ValueError(f'sampling="cyclic_poisson" takes scheme={{"num_groups": ...}}, got {shown(scheme)}')
    num_groups = check_count("num_groups", num_groups)
    if not isinstance(correlation, BandedToeplitz) or correlation.num_bands > num_groups:
        got = f"one of {correlation.num_bands}" if isinstance(correlation, BandedToeplitz) else shown(correlation)
        raise ValueError(
            "cyclic Poisson sampling needs columns that do not overlap num_groups steps apart: give a BandedToeplitz "
            f"of at most {num_groups} bands, got {got}"
        )
    _refuse_unstable(correlation, num_steps)
    return Correlation(
        strategy=correlation,
        num_steps=num_steps,
        sensitivity=correlation.sensitivity(num_steps, SingleParticipation()),
        sampling="cyclic_poisson",
        scheme={"num_groups": num_groups},
    )


def _refuse_unstable(strategy: AbstractNoiseStrategy, num_steps: int) -> None:
    """Raise ValueError where the noise of late steps leaves float32 no digits for the fresh draw in it.

    The noise of step t has the variance sum_s C^-1[t, s]^2. Its last draw alone is what hides the step's own sum.
    """
    if is_traced(strategy):
        return
    largest = strategy.error(num_steps, "max", workload=_NOISE)
    first = strategy.error(1, "max", workload=_NOISE)
    if not largest <= _LARGEST_GROWTH**2 * first:
        raise ValueError(
            f"the noise of {shown(strategy)} grows more than {_LARGEST_GROWTH:g} times in {num_steps} steps, since its "
            "inverse is unstable: in float32 nothing would be left of the newest draw. Choose a strategy by its "
            "`error`, or with the optimize_ functions of gdpjax.correlated"
        )


class _NoiseItself(AbstractWorkload):
    """The workload whose outputs are the noise of single steps."""

    def apply(self, series: np.ndarray) -> np.ndarray:
        """Return the series as it is."""
        return series


_NOISE = _NoiseItself()
_LARGEST_GROWTH = 1e5
"""Beyond it the rounding of float32, 6e-8, is more than about a hundredth of the newest draw."""


def is_noised(leaf: Array, trained: bool) -> bool:
    """Return whether a leaf gets noise: it is trained, floating, and not empty."""
    return trained and is_floating(leaf) and num_elements(leaf) > 0


def noised_leaves(tree: PyTree, trainable: PyTree) -> dict[str, Array]:
    """Return the leaves that get noise, by their paths."""
    leaves = {}
    marks = jax.tree.leaves(trainable)
    for name, leaf, trained in zip(leaf_names(tree), jax.tree.leaves(tree), marks, strict=True):
        if is_noised(leaf, trained):
            leaves[name] = leaf
    return leaves


def draws_of(key: Array, leaves: dict[str, Array]) -> Callable[[Array], dict[str, Array]]:
    """Return the function from a step to its standard normal draws, of the shapes of ``leaves``.

    It is called in loops over earlier steps, so the key is looked at before.
    """

    def draw(step: Array) -> dict[str, Array]:
        step_key = fold_in(key, step)
        keys = keys_of_leaves(step_key, list(leaves))
        shapes = [leaf.shape for leaf in leaves.values()]
        dtypes = [wide_dtype(leaf) for leaf in leaves.values()]
        return dict(zip(leaves, standard_normals(keys, shapes, dtypes), strict=True))

    return draw
