r"""Epsilon from one training run: how many guesses an (epsilon, delta)-private mechanism lets anybody get right.

Setting. S_1, ..., S_m are independent fair coins: canary i is included iff S_i = 1. The mechanism M runs once, and from
its output alone an auditor makes r guesses: T in {include, exclude, abstain}^m with r entries that do not abstain. r is
fixed in advance. W is the number of right guesses. Flipping one coin adds or removes one canary, so T as a function of
S is (epsilon, delta)-DP in every coin (post-processing). Write q = e^epsilon / (1 + e^epsilon).

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
"""

import numpy as np
import scipy

_LARGEST_EPSILON = 60.0
_NUM_BISECTIONS = 50
_ROUNDING = 1 + 1e-9  # incomplete beta and gamma functions are good to about 1e-11


def _mean_highest_mass(num_guesses: int, epsilon: float) -> float:
    """Return A_r(q) of the module docstring: the largest probability of Bin(k, q), averaged over k = 0, ..., r - 1."""
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
    refuted = 0.0
    unrefuted = _LARGEST_EPSILON
    for _ in range(_NUM_BISECTIONS):
        middle = 0.5 * (refuted + unrefuted)
        if is_refuted(middle):
            refuted = middle
        else:
            unrefuted = middle
    return refuted
