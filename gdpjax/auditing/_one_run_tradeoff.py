r"""Trade-off curves and mu from one training run.

Setting. As in `_one_run_epsilon`: m fair coins S, one run, T = r guesses (r fixed in advance) and m - r abstentions; W
is the number of right guesses. Suppose the mechanism is f-DP for a symmetric trade-off curve f; let F(x) = 1 - f(x),
concave and increasing: no event of probability x under one data set has more than F(x) under a neighbouring one.

One canary. Fix the other coins, s in {0, 1}, and let E be the set of outputs that guess s for canary i and get at least
c - 1 of the others right. Under S_i = s the output lies in E iff guess i is right and W >= c; under S_i = 1 - s iff
guess i is wrong and W >= c - 1. So f-DP gives P(E | S_i = s) <= F(P(E | S_i = 1 - s)). Averaging over s, the other
coins and the m canaries, with F concave (Jensen), and with the numbers of right and wrong guesses being W and r - W,

    E[W; W >= c] / m <= F( E[r - W; W >= c - 1] / m )         for every c = 1, ..., r.                               (1)

All of them. Let p_j = P(W = j), phi = F^-1, and

    R_c = sum_{j >= c} j p_j / m,      H_c = sum_{j >= c-1} (r - j) p_j / m,      (1) reads H_c >= phi(R_c).

Given a tail tau = P(W >= v), what is the least total mass sum_j p_j that (1) allows? Moving mass from j to j - 1 lowers
R_c and raises H_c for all c <= j, leaves the constraints c > j + 1 alone and can hurt only c = j + 1. So whatever that
one does not need may move down, and all mass above v may move to v (then R_c = 0 for c > v, and phi(0) = 0). The least
mass is therefore had greedily: all of tau at v, then for j = v - 1, ..., 0 just as much p_j as makes
H_{j+1} = phi(R_{j+1}). If that mass exceeds 1 no such law exists, and so P(W >= v) < tau for every f-DP mechanism. It
grows with tau (phi is convex, phi(0) = 0), so one recursion at tau = 1 - confidence decides whether W = v refutes f.

Refuted curves. A curve above a refuted one is refuted too (its phi is larger, so is the mass), hence for G_mu the
refuted mu form an interval from 0 and bisection finds its end. For the true mu, {W : mu refuted} is a tail {W >= v} of
probability at most 1 - confidence, so the bound exceeds the truth with at most that probability.

Tightness. The bound cannot reach the truth at a fixed confidence, however many canaries there are: an f-DP mechanism
may lose all its privacy at once with a small probability, and the confidence must allow for that event. With N(0, 1)
noise and 10,000 canaries a tenth of which are guessed, it reaches 0.73 of the true mu (guessing all of them: 0.34).

This is the argument of Mahloujifar, Melis and Chaudhuri for two-sided guesses, derived here on its own, with
abstentions counted in m. The recursion runs in float64; a curve counts as refuted only if the mass exceeds 1 + 1e-9,
far above its rounding.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from gdpjax._core.types import Array
from gdpjax.tradeoff import Curve, Gaussian

_LARGEST_MASS = 1 + 1e-9
_LARGEST_MU = 64.0
_NUM_BISECTIONS = 45


class _Masses(NamedTuple):
    """The recursion of the module docstring, before the mass p_j is placed.

    Attributes:
      next_count: float64[], j.
      right: float64[], R_{j+1}.
      wrong: float64[], H_{j+1} without p_j.
      total: float64[], the mass that has been placed, the sum of p_i over i > j.
    """

    next_count: Array
    right: Array
    wrong: Array
    total: Array


def _is_refuted(curve: Curve, correct: Array, guesses: Array, canaries: Array, tail: Array) -> Array:
    """Return whether the least total mass of the module docstring exceeds 1, a bool[]; all arguments are scalars."""
    # All of the tail lies at W = correct; an outcome of W >= 0 refutes nothing.
    mass_at_correct = jnp.where(correct > 0, tail, 0.0)
    start = _Masses(
        next_count=correct - 1.0,
        right=correct * mass_at_correct / canaries,
        wrong=(guesses - correct) * mass_at_correct / canaries,
        total=mass_at_correct,
    )

    def is_unfinished(masses: _Masses) -> Array:
        return (masses.next_count >= 0) & (masses.total <= _LARGEST_MASS)

    def place_mass(masses: _Masses) -> _Masses:
        count = masses.next_count
        # H_{j+1} must reach phi(R_{j+1}), with phi(y) = F^-1(y) = f^-1(1 - y) = f(1 - y) for a symmetric f.
        needed = curve.value(1.0 - jnp.minimum(masses.right, 1.0))
        missing = jnp.maximum(needed - masses.wrong, 0.0)
        added = missing * canaries / (guesses - count)
        return _Masses(
            next_count=count - 1,
            right=masses.right + count * added / canaries,
            wrong=jnp.maximum(masses.wrong, needed),
            total=masses.total + added,
        )

    end = jax.lax.while_loop(is_unfinished, place_mass, start)
    return end.total > _LARGEST_MASS


@jax.jit
def refuted_each(curve: Curve, correct: Array, guesses: Array, canaries: Array, tail: Array) -> Array:
    """Return for each count in ``correct``, float64[n], whether it refutes the curve, bool[n]."""

    def refuted_by(count: Array) -> Array:
        return _is_refuted(curve, count, guesses, canaries, tail)

    return jax.vmap(refuted_by)(correct)


@jax.jit
def largest_refuted_mu(correct: Array, guesses: Array, canaries: Array, tail: Array) -> Array:
    """Return for each count in ``correct``, float64[n], the largest mu that it refutes, or 0, float64[n]."""

    def largest_refuted_by(count: Array) -> Array:
        def is_refuted(mu: Array) -> Array:
            return _is_refuted(Gaussian(mu), count, guesses, canaries, tail)

        def halve(_: Array, bracket: tuple[Array, Array]) -> tuple[Array, Array]:
            refuted, unrefuted = bracket
            middle = 0.5 * (refuted + unrefuted)
            refutes_middle = is_refuted(middle)
            refuted = jnp.where(refutes_middle, middle, refuted)
            unrefuted = jnp.where(refutes_middle, unrefuted, middle)
            return refuted, unrefuted

        zero = jnp.zeros(())
        bracket = (zero, jnp.full((), _LARGEST_MU))
        refuted, _ = jax.lax.fori_loop(0, _NUM_BISECTIONS, halve, bracket)
        # Where not even mu = 0 is refuted, the lower end of the bracket proves nothing.
        return jnp.where(is_refuted(zero), refuted, 0.0)

    return jax.lax.map(largest_refuted_by, correct)
