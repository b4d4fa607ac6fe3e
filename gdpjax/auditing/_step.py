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
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from gdpjax._core.arguments import check_callable, check_count
from gdpjax._core.keys import as_key
from gdpjax._core.shown import shown
from gdpjax._core.types import Array, PyTree
from gdpjax.auditing._check import STANDING, check_confidence, check_delta
from gdpjax.auditing._many_runs import ErrorRegion, best_test, judge
from gdpjax.auditing._statistics import STATISTICS
from gdpjax.tradeoff import CertifiedCurve

_FEWEST = 64
_RUNS_PER_COORDINATE = 8
_CHUNK = 512


class StepAudit(NamedTuple):
    """What many runs of one step show. All of it holds together with probability at least ``confidence``.

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
    standing: str = STANDING


@jax.jit
def _run_all(release: Any, keys: Array, included: Array) -> list[Array]:
    """Every release as one row of numbers, a chunk of runs at a time."""

    def one(run: tuple[Array, Array]) -> list[Array]:
        leaves = jax.tree.leaves(release(*run))
        return [leaf.reshape(-1) for leaf in map(jnp.asarray, leaves)]

    chunks = -(-included.size // _CHUNK)
    # Runs beyond the last are thrown away; a shorter last chunk would be compiled as another program.
    places = jnp.minimum(jnp.arange(chunks * _CHUNK).reshape(chunks, _CHUNK), included.size - 1)
    parts = jax.lax.map(jax.vmap(one), (keys[places], included[places]))
    return [part.reshape(chunks * _CHUNK, -1)[: included.size] for part in parts]


def _rows(release: Any, key: Array, num_releases: int) -> np.ndarray:
    """float64[2, num_releases, d]: without the example, then with it. Bits of float32 and narrower are kept."""
    partial = release if isinstance(release, jax.tree_util.Partial) else jax.tree_util.Partial(release)
    runs = partial, jax.random.split(key, 2 * num_releases), jnp.arange(2 * num_releases) >= num_releases
    shapes = _run_all.eval_shape(*runs)  # the trace is kept for the call below
    for part in shapes:
        if not any(jnp.issubdtype(part.dtype, kind) for kind in (jnp.integer, jnp.floating, jnp.bool_)):
            raise ValueError(f"a release must be a tree of real arrays, got a leaf of {part.dtype}")
    size = sum(part.shape[1] for part in shapes)
    fewest = max(_FEWEST, _RUNS_PER_COORDINATE * size)
    if not size or num_releases < fewest:
        raise ValueError(
            f"num_releases must be at least {fewest} for releases of {size} >= 1 numbers, got {num_releases}; release "
            "fewer numbers (the projection on the canary, say) or run more"
        )
    wide = np.concatenate([np.asarray(part).astype(np.float64) for part in _run_all(*runs)], axis=1)
    return wide.reshape(2, num_releases, -1)


def _choose(rows: np.ndarray) -> tuple[str, Any, tuple[float, bool]]:
    """(name, score, test) with the largest mu on the second quarter, fitted on the first."""
    quarter = rows.shape[1] // 4
    fit, trial = rows[:, :quarter], np.concatenate(rows[:, quarter : 2 * quarter])
    coins = np.arange(2 * quarter) >= quarter
    found = []
    for name, attack in STATISTICS.items():
        score = attack(fit[0], fit[1])
        mu, threshold, low = best_test(score(trial), coins)
        found.append((mu, name, score, (threshold, low)))
    return max(found, key=lambda row: row[0])[1:]


def audit_step(
    release: Callable[[Array, Array], PyTree],
    key: Array,
    *,
    delta: float,
    claimed: CertifiedCurve | Callable[[Array], Array] | None = None,
    num_releases: int = 4096,
    confidence: float = 0.95,
) -> StepAudit:
    """Attack what a private step releases, with and without one example, and bound its privacy loss from below.

    Formula: the `error_region` of one attack, chosen on other runs; then mu >= Phi^-1(1 - alpha) - Phi^-1(beta) and
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
    check_callable("release", release)
    key = as_key(key)
    delta, confidence = check_delta(delta), check_confidence(confidence)
    if isinstance(claimed, CertifiedCurve):
        claimed = functools.partial(_lower_end, claimed)
    if claimed is not None and not callable(claimed):
        raise ValueError(f"claimed must be a trade-off curve, alpha -> beta, got {shown(claimed)}")
    rows = _rows(release, key, num_releases)
    name, score, test = _choose(rows)
    rest = rows[:, 2 * (num_releases // 4) :]
    coins = np.arange(2 * rest.shape[1]) >= rest.shape[1]
    found, region = judge(score(np.concatenate(rest)), coins, *test, delta, confidence)
    refuted, promised = (None, None) if claimed is None else _refutes(claimed, region, found.alpha)
    return StepAudit(
        name, refuted, found.epsilon, found.mu, delta, confidence, found.alpha, found.beta, promised, found.num_runs
    )


def _lower_end(curve: CertifiedCurve, alpha: Array) -> Array:
    return curve.tradeoff(alpha).lower


def _refutes(claimed: Callable[[Array], Array], region: ErrorRegion, alpha: float) -> tuple[bool, float]:
    """Whether the claim contradicts every corner of the region, and what it promises at ``alpha``."""
    promised = np.asarray(claimed(np.append(region.alpha, alpha)), np.float64)
    if promised.shape != (region.alpha.size + 1,) or not ((promised >= 0) & (promised <= 1)).all():
        raise ValueError("claimed must map an array of alpha to type II errors in [0, 1], element by element")
    return bool((promised[:-1] > region.beta).all()), float(promised[-1])
