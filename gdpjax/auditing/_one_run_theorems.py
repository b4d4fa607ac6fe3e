r"""What right guesses about one training run prove: the theorems behind `RightGuesses`.

Setting. S_1, ..., S_m are independent fair coins: canary i is included iff S_i = 1. The mechanism M runs once, and from
its output alone an auditor makes r guesses: T in {include, exclude, abstain}^m with r entries that do not abstain. r is
fixed in advance. W is the number of right guesses. Flipping one coin adds or removes one canary, so T as a function of
S is (epsilon, delta)-DP in every coin (post-processing). Write q = e^epsilon / (1 + e^epsilon).

**Epsilon: how many guesses an (epsilon, delta)-private mechanism lets anybody get right.**

One coin. Let p+ and p- be the laws of T given S_i = 1 and S_i = 0 and any event A of other coins, a mixture over the
rest. Given T = t and A, S_i = 1 has probability p+(t) / (p+(t) + p-(t)). By how much that exceeds q, on average:

    E [P(S_i = 1 | T, A) - q]_+ = 1/2 int [(1 - q) p+ - q p-]_+
                                = (1 - q)/2 int [p+ - e^epsilon p-]_+ <= (1 - q) delta / 2.

The same holds for S_i = 0; each t guesses one side only, so if e_i(t) is the excess for the side that t guesses,

    sum over t of P(t) e_i(t) <= (1 - q) delta.                                                                      (1)

The integrand [.]_+ is convex, so averaging over fewer known coins only makes it smaller: pointwise in t the excess is
at most f_i(t), the one with *all* other coins known, whatever is revealed, and f_i satisfies (1).

All coins. Given T = t, reveal the r guessed coins one by one in a uniformly random order. Let c be the number of right
ones among the first k - 1 and G_k(c) = P(c + Bin(r - k, q) >= v). Then G_{k-1}(c) = q G_k(c + 1) + (1 - q) G_k(c), so
the potential G grows in step k, in expectation, by at most

    (P(right | past) - q) (G_k(c + 1) - G_k(c)) <= e_k P(Bin(r - k, q) = v - c - 1) <= e_k max_j P(Bin(r - k, q) = j).

The first value is G_0(0) = P(Bin(r, q) >= v) and the last 1[W >= v]. Each guessed coin is equally likely to have any of
the r places, so with (1) and m coins

    P(W >= v) <= P(Bin(r, q) >= v) + m delta (1 - q) A_r(q),  A_r(q) = 1/r sum_{k=0}^{r-1} max_j P(Bin(k, q) = j).   (2)

The first term is attained by randomized response. The statement is that of Steinke, Nasr and Jagielski (Theorem 3.1),
with a delta term of our own: theirs is 2 m delta max_i P(v > Bin(r, q) >= v - i) / i, of the same order, without the
factor 1 - q that makes ours smaller at large epsilon. A_r is about 0.8 / sqrt(r q (1 - q)).

The bound. epsilon is refuted at the confidence if (2) with v = W is at most 1 - confidence. The lower bound is a
refuted epsilon. Let epsilon* be the truth: (epsilon, delta) holds for every epsilon >= epsilon*, each of those is
refuted on an event {W >= v(epsilon)} of probability at most 1 - confidence, and the union of these nested events is one
of them. So the bound exceeds the truth with probability at most 1 - confidence, whichever refuted epsilon is reported.

**Trade-off curves and mu.**

Suppose the mechanism is f-DP for a symmetric trade-off curve f; let F(x) = 1 - f(x), concave and increasing: no event
of probability x under one data set has more than F(x) under a neighbouring one.

One canary. Fix the other coins, s in {0, 1}, and let E be the set of outputs that guess s for canary i and get at least
c - 1 of the others right. Under S_i = s the output lies in E iff guess i is right and W >= c; under S_i = 1 - s iff
guess i is wrong and W >= c - 1. So f-DP gives P(E | S_i = s) <= F(P(E | S_i = 1 - s)). Averaging over s, the other
coins and the m canaries, with F concave (Jensen), and with the numbers of right and wrong guesses being W and r - W,

    E[W; W >= c] / m <= F( E[r - W; W >= c - 1] / m )         for every c = 1, ..., r.                               (3)

All of them. Let p_j = P(W = j), phi = F^-1, and

    R_c = sum_{j >= c} j p_j / m,      H_c = sum_{j >= c-1} (r - j) p_j / m,      (3) reads H_c >= phi(R_c).

Given a tail tau = P(W >= v), what is the least total mass sum_j p_j that (3) allows? Moving mass from j to j - 1 lowers
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
import numpy as np
import scipy

from gdpjax._core.roots import bisect, bisect_on_host, middle
from gdpjax._core.types import Array
from gdpjax.tradeoff import Curve, Gaussian

_LARGEST_EPSILON = 60.0
_EPSILON_BISECTIONS = 50
_ROUNDING = 1 + 1e-9  # incomplete beta and gamma functions are good to about 1e-11
_LARGEST_MASS = 1 + 1e-9
_LARGEST_MU = 64.0
_MU_BISECTIONS = 45


# ---------------------------------------------------------------------------------------------------------------------
# Epsilon.


def _mean_highest_mass(num_guesses: int, epsilon: float) -> float:
    """Return A_r(q) of (2): the largest probability of Bin(k, q), averaged over k = 0, ..., r - 1."""
    num_trials = np.arange(num_guesses)

    # The mode of Bin(k, q) is floor((k + 1) q), and k at most.
    mode = np.floor((num_trials + 1) * scipy.special.expit(epsilon))
    mode = np.minimum(mode, num_trials)
    num_misses = num_trials - mode

    # log P(Bin(k, q) = mode) = log choose(k, mode) + mode log q + (k - mode) log(1 - q)
    log_choose = (
        scipy.special.gammaln(num_trials + 1) - scipy.special.gammaln(mode + 1) - scipy.special.gammaln(num_misses + 1)
    )
    log_prob = scipy.special.log_expit(epsilon)
    log_complement = scipy.special.log_expit(-epsilon)
    log_mass = log_choose + mode * log_prob + num_misses * log_complement

    highest_mass = np.minimum(np.exp(log_mass) * _ROUNDING, 1.0)
    return float(highest_mass.mean())


def p_value(correct: np.ndarray, guesses: int, canaries: int, epsilon: float, delta: float) -> np.ndarray:
    """Return the right side of (2), in the shape of ``correct``, or 1 if that is smaller."""
    # P(Bin(r, q) >= W) as an incomplete beta function, whose arguments must be positive; W >= 0 is certain.
    at_least_one = np.maximum(correct, 1)
    truth_prob = scipy.special.expit(epsilon)
    tail = scipy.special.betainc(at_least_one, guesses - at_least_one + 1, truth_prob)
    tail = np.where(correct > 0, tail, 1.0)

    # m delta (1 - q) A_r(q)
    delta_term = 0.0
    if delta:
        lie_prob = scipy.special.expit(-epsilon)
        delta_term = canaries * delta * lie_prob * _mean_highest_mass(guesses, epsilon)

    return np.minimum(tail * _ROUNDING + delta_term, 1.0)


def largest_refuted_epsilon(correct: np.ndarray, guesses: int, canaries: int, delta: float, level: float) -> float:
    """Return the largest epsilon whose `p_value` is at most ``level``, from below, or 0; ``correct`` is one count."""

    def is_refuted(epsilon: float) -> bool:
        return bool(p_value(correct, guesses, canaries, epsilon, delta) <= level)

    if not is_refuted(0.0):
        return 0.0
    refuted, _ = bisect_on_host(is_refuted, 0.0, _LARGEST_EPSILON, num_iterations=_EPSILON_BISECTIONS)
    return float(refuted)


# ---------------------------------------------------------------------------------------------------------------------
# Trade-off curves and mu.


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

        ends = jnp.zeros(()), jnp.full((), _LARGEST_MU)
        # The lower end, 0, proves nothing.
        refuted, _ = bisect(is_refuted, *ends, midpoint=middle, num_iterations=_MU_BISECTIONS)
        return refuted

    return jax.lax.map(largest_refuted_by, correct)
