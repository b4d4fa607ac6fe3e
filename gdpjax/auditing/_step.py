r"""The audit of a private step: run it many times with and without one example, and attack what it releases.

The caller gives a *worst case*: a pair of neighbouring data sets, as ``release(key, included)``, all of whose
randomness comes from the key. It is run 2n times, n with the example and n without, each time with its own key, so the
releases are independent and the bounds of `_many_runs` apply to any one test that was fixed beforehand.

One test, chosen honestly. The attacks of `_statistics` have weights to fit, and there are four of them with a threshold
each; the best of many on the same data would be an optimistic one. So the runs are cut into three parts: a quarter fits
the attacks, a quarter chooses the attack, direction and threshold with the largest mu, and the remaining half judges
that single test. The whole confidence goes to it; nothing has to be shared among the attacks. Several worst cases are
several audits: give each the confidence 1 - (1 - confidence) / number of cases.

What the verdict means. ``refuted`` says that no mechanism with the claimed curve gives such counts except with
probability 1 - confidence: the step has a bug, or the claim is wrong. A sound step is refuted with at most that
probability. Passing proves nothing: an audit bounds the loss from below only.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, PRNGKeyArray

from gdpjax._core.arguments import check_count, check_number
from gdpjax._core.checks import HALF_OPEN_UNIT, OPEN_UNIT
from gdpjax._core.keys import as_key
from gdpjax._core.shown import shown
from gdpjax._core.types import Array, PyTree
from gdpjax.auditing._many_runs import ErrorRegion, best_test, judge
from gdpjax.auditing._statistics import STATISTICS, Score
from gdpjax.tradeoff import CertifiedCurve

_FEWEST = 64
_RUNS_PER_COORDINATE = 8
_CHUNK = 512


class StepAudit(NamedTuple):
    """Verdict and bounds from many runs of one step, which hold together with probability at least ``confidence``.

    Attributes:
      statistic: the attack that was chosen, see `gdpjax.auditing`.
      refuted: whether the claimed trade-off curve is refuted; None without a claim.
      epsilon: lower bound on epsilon at ``delta``, for any mechanism.
      mu: lower bound on mu.
      delta: as given.
      confidence: as given.
      alpha: observed type I error rate of the attack, an estimate.
      beta: observed type II error rate, an estimate.
      claimed_beta: type II error that the claim promises at ``alpha``; None without a claim.
      num_releases: runs that judged, both kinds together.
      standing: "empirical lower".
    """

    statistic: str
    refuted: bool | None
    epsilon: float
    mu: float
    delta: float
    confidence: float
    alpha: float
    beta: float
    claimed_beta: float | None
    num_releases: int
    standing: str = "empirical lower"


class _ChosenAttack(NamedTuple):
    """One attack with its test, chosen on other runs than those that judge it.

    Attributes:
      statistic: the name of the attack.
      score: the fitted attack, float64[n, d] to float64[n].
      threshold: the test says "in" at scores >= threshold, or <= threshold where ``low_means_in``.
      low_means_in: see there.
    """

    statistic: str
    score: Score
    threshold: float
    low_means_in: bool


@jax.jit
def _run_all(release: Callable[[Array, Array], PyTree], keys: Array, included: Array) -> list[Array]:
    """Run the release once for each key, a chunk of runs at a time; return [runs, size of the leaf] for each leaf."""
    num_runs = included.size

    def flat_leaves(run: tuple[Array, Array]) -> list[Array]:
        key, is_included = run
        leaves = jax.tree.leaves(release(key, is_included))
        return [jnp.asarray(leaf).reshape(-1) for leaf in leaves]

    # The last chunk repeats the last run: a shorter one would be compiled as another program.
    num_chunks = -(-num_runs // _CHUNK)
    num_slots = num_chunks * _CHUNK
    runs = jnp.minimum(jnp.arange(num_slots).reshape(num_chunks, _CHUNK), num_runs - 1)
    chunks = jax.lax.map(jax.vmap(flat_leaves), (keys[runs], included[runs]))
    return [leaf.reshape(num_slots, -1)[:num_runs] for leaf in chunks]


def _rows(release: Callable[[Array, Array], PyTree], key: Array, num_releases: int) -> np.ndarray:
    """Return all releases as float64[2, num_releases, d]: without the example, then with it.

    Float64 holds every number of float32 and narrower, so their bits are kept.
    """
    num_runs = 2 * num_releases
    is_partial = isinstance(release, jax.tree_util.Partial)
    partial = release if is_partial else jax.tree_util.Partial(release)
    keys = jax.random.split(key, num_runs)
    included = jnp.arange(num_runs) >= num_releases

    # Check the release before it runs; the trace is kept for the call below.
    shapes = _run_all.eval_shape(partial, keys, included)
    for leaf in shapes:
        if not any(jnp.issubdtype(leaf.dtype, kind) for kind in (jnp.bool_, jnp.integer, jnp.floating)):
            raise ValueError(f"a release must be a tree of real arrays, got a leaf of {leaf.dtype}")
    size = sum(leaf.shape[1] for leaf in shapes)
    fewest = max(_FEWEST, _RUNS_PER_COORDINATE * size)
    if not size or num_releases < fewest:
        raise ValueError(
            f"num_releases must be at least {fewest} for releases of {size} >= 1 numbers, got {num_releases}; release "
            "fewer numbers (the projection on the canary, say) or run more"
        )

    leaves = _run_all(partial, keys, included)
    wide_leaves = [np.asarray(leaf).astype(np.float64) for leaf in leaves]
    return np.concatenate(wide_leaves, axis=1).reshape(2, num_releases, -1)


def _choose(rows: np.ndarray) -> _ChosenAttack:
    """Return the attack, fitted on the first quarter of the runs, with the largest mu on the second quarter.

    Args:
        rows: float64[2, n, d], releases without the example and with it.
    """
    quarter = rows.shape[1] // 4
    fit_out, fit_in = rows[:, :quarter]
    trial = np.concatenate(rows[:, quarter : 2 * quarter])
    included = np.arange(2 * quarter) >= quarter

    # The first attack of several with the same mu stays.
    largest_mu = None
    chosen = None
    for statistic, fit in STATISTICS.items():
        score = fit(fit_out, fit_in)
        mu, threshold, low_means_in = best_test(score(trial), included)
        if largest_mu is None or mu > largest_mu:
            largest_mu = mu
            chosen = _ChosenAttack(statistic, score, threshold, low_means_in)
    assert chosen is not None
    return chosen


def audit_step(
    release: Callable[[PRNGKeyArray, Bool[Array, ""]], PyTree],
    key: PRNGKeyArray,
    *,
    delta: float,
    claimed: CertifiedCurve | Callable[[Array], Array] | None = None,
    num_releases: int = 4096,
    confidence: float = 0.95,
) -> StepAudit:
    """Attack what a private step releases, with and without one example, and bound its privacy loss from below.

    Formula: the `ErrorRegion` of one attack, chosen on other runs; then mu >= Phi^-1(1 - alpha) - Phi^-1(beta) and
    epsilon >= log((1 - delta - beta) / alpha) at its worst corner; the claim f is refuted if f(alpha) > beta at all.

    Args:
        release: ``release(key, included)``, what the step makes public (a tree of real arrays, one or several steps) on
            one of two neighbouring data sets; ``included`` is a traced bool. It runs under jit and vmap. A
            `jax.tree_util.Partial` compiles once for all the arrays it is given.
        key: one PRNG key.
        delta: in [0, 1), of the epsilon.
        claimed: the trade-off curve f that the step is said to have, alpha -> least type II error, or a lower bound of
            it: a symmetric curve of `gdpjax.tradeoff`, or a `CertifiedCurve` such as ``plan.curve`` or
            ``accounting.certified(event)``, whose lower end is then the claim.
        num_releases: n >= 64 runs of each kind, and at least 8 for each coordinate of a release.
        confidence: in (0, 1).

    Returns:
        A `StepAudit`, empirical lower. A step that has the claimed curve is refuted with probability at most
        1 - confidence, and each bound exceeds its truth with at most that, all together.

    Raises:
        ValueError: too few runs for the size of a release, a release of other things than real numbers, numbers out of
            range.

    Reference: Nasr et al., arXiv:2302.07956 (worst-case pairs, many observations); the attacks are described in
    `gdpjax.auditing._statistics`.

    >>> from gdpjax.tradeoff import Gaussian
    >>> def release(key, included):
    ...     return included + 0.5 * jax.random.normal(key)  # mu = 2
    >>> audit = audit_step(release, jax.random.key(0), delta=1e-5, claimed=Gaussian(1.0), num_releases=1000)
    >>> audit.refuted, 1.0 < audit.mu < 2.0
    (True, True)
    """
    num_releases = check_count("num_releases", num_releases)
    key = as_key(key)
    delta = check_number("delta", delta, HALF_OPEN_UNIT)
    confidence = check_number("confidence", confidence, OPEN_UNIT)
    if isinstance(claimed, CertifiedCurve):
        claimed = functools.partial(_lower_end, claimed)
    # Asked before the runs.
    if claimed is not None and not callable(claimed):
        raise ValueError(f"claimed must be a trade-off curve, alpha -> beta, got {shown(claimed)}")
    # Two quarters of the runs choose one test, and the rest judges it.
    rows = _rows(release, key, num_releases)
    attack = _choose(rows)
    judging = rows[:, 2 * (num_releases // 4) :]
    num_judging = judging.shape[1]
    included = np.arange(2 * num_judging) >= num_judging
    scores = attack.score(np.concatenate(judging))
    audit, region = judge(scores, included, attack.threshold, attack.low_means_in, delta, confidence)

    refuted = None
    claimed_beta = None
    if claimed is not None:
        refuted, claimed_beta = _refutes(claimed, region, audit.alpha)
    return StepAudit(
        statistic=attack.statistic,
        refuted=refuted,
        epsilon=audit.epsilon,
        mu=audit.mu,
        delta=delta,
        confidence=confidence,
        alpha=audit.alpha,
        beta=audit.beta,
        claimed_beta=claimed_beta,
        num_releases=audit.num_runs,
    )


def _lower_end(curve: CertifiedCurve, alpha: Array) -> Array:
    """Return the certified lower bound on the type II error at ``alpha``."""
    return curve.tradeoff(alpha).lower


def _refutes(claimed: Callable[[Array], Array], region: ErrorRegion, alpha: float) -> tuple[bool, float]:
    """Return whether the claim contradicts every corner of the region, and the type II error claimed at ``alpha``."""
    claimed_beta = np.asarray(claimed(np.append(region.alpha, alpha)), np.float64)
    in_unit_interval = (claimed_beta >= 0) & (claimed_beta <= 1)
    if claimed_beta.shape != (region.alpha.size + 1,) or not in_unit_interval.all():
        raise ValueError("claimed must map an array of alpha to type II errors in [0, 1], element by element")
    beta_at_corners = claimed_beta[:-1]
    return bool((beta_at_corners > region.beta).all()), float(claimed_beta[-1])
