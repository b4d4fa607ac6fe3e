"""Events whose privacy loss is bounded: randomized response, (epsilon, 0)-DP and the Laplace mechanism, in closed form.

With e = `bound`, the largest loss, and k categories, randomized response tells the truth with probability a e^e and
each of the k - 1 other answers with probability a, a = 1 / (e^e + k - 1). For two inputs the loss is e, -e, or 0:

    A(z) = a e^e e^{ze} + a e^{-ze} + a (k - 2);

k = 2 is the worst of all (e, 0)-DP mechanisms. The Laplace mechanism of scale sensitivity / e has the loss |x| - |x -
e| (in units of the scale), x standard Laplace about e under P: e with probability 1/2, -e with e^{-e} / 2, and e - 2y
with density e^{-y} / 2 in between, 0 < y < e:

    A(z) = e^{ze} / 2 + e^{-e - ze} / 2 + e^{ze} (1 - e^{-(1 + 2z) e}) / (2 (1 + 2z)).

Both pairs are symmetric: the same for "remove" and "add".

**Rounding.** Divided by e^{theta e}, each term at z = theta + it has at most its modulus at theta, so a few ulp of
itself and of the phase t e are within (64 + 16 t e) ulp of A(theta) e^{-theta e}. That holds for the last quotient
too, whose complex expm1 is right to 8 (1 + t e) ulp of 1 + |(1 + 2z) e|, since A(theta) e^{-theta e} >= 1/2.

**The largest loss.** With n events of one kind the loss is n e with probability m = P(one has loss e)^n: an atom. The
test "the loss is the largest, L" alone gives delta(x) >= m (1 - e^{x - L}), so epsilon at delta < m is at least L +
log(1 - delta / m). At a tiny delta this is within delta / m of the truth, where the contour sees nothing: its smoothing
is wider than what is left below L. Whatever else the run releases, it reveals no less.

**Without composition.** (e, 0)-DP implies G_mu with Phi(-mu / 2) = 1 / (1 + e^e): G_mu is convex and passes through the
corner of f_{e, 0}. As e -> 0 mu -> sqrt(pi / 2) e, from below since logistic tails are heavier than normal ones.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.special import logsumexp, ndtri

from gdpjax._core.types import Array

LAPLACE = 0.0
"""The number of categories that stands for the Laplace mechanism."""
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(24)


class Finite(NamedTuple):
    """Events with bounded loss, all of one kind."""

    num_steps: float
    bound: float
    categories: float

    @property
    def is_laplace(self) -> bool:
        return self.categories == LAPLACE


def _log_terms(finite: Finite) -> tuple[float, float, float]:
    """Logs of the probabilities of the losses e, -e and 0, without Laplace's continuous part."""
    e, k = finite.bound, finite.categories
    if finite.is_laplace:
        return -np.log(2.0), -np.log(2.0) - e, -np.inf
    truth = -np.log1p((k - 1.0) * np.exp(-e))
    return truth, truth - e, (truth - e + np.log(k - 2.0) if k > 2 else -np.inf)


def distribution(finite: Finite) -> tuple[Array, Array]:
    """(losses, log weights) of a discrete approximation: for planning only."""
    e = finite.bound
    losses, log_weights = np.array([e, -e, 0.0]), np.array(_log_terms(finite))
    if not finite.is_laplace:
        return losses, log_weights
    y = 0.5 * e * (1.0 + _NODES)
    between = np.log(0.25 * e * _WEIGHTS) - y
    return np.append(losses, e - 2.0 * y), np.append(log_weights, between)


def log_moment(finite: Finite, theta: Array) -> Array:
    """log A(theta), theta >= 0 [points], right to (64 + 4 theta e) ulp."""
    truth, lie, other = _log_terms(finite)
    e = finite.bound
    terms = [truth + 0.0 * theta, lie - 2.0 * theta * e, other - theta * e]
    if finite.is_laplace:
        terms.append(np.log(-np.expm1(-(1.0 + 2.0 * theta) * e) / (2.0 * (1.0 + 2.0 * theta))))
    return theta * e + logsumexp(np.stack(terms), axis=0)


def ratio(finite: Finite, theta: float, frequency: Array) -> Array:
    """A(theta + it) / A(theta)."""
    truth, lie, other = _log_terms(finite)
    e = finite.bound
    total = log_moment(finite, np.asarray(theta)) - theta * e
    truth, lie, other = (np.exp(x - total) for x in (truth, lie - 2.0 * theta * e, other - theta * e))
    turn = frequency * e
    cos, sin = np.cos(turn), np.sin(turn)
    atoms = (truth + lie) * cos + other + 1j * (truth - lie) * sin
    if not finite.is_laplace:
        return atoms
    quotient = -complex_expm1(-(1.0 + 2.0 * theta) * e, -2.0 * turn) / (2.0 * (1.0 + 2.0 * (theta + 1j * frequency)))
    return atoms + quotient * np.exp(-total) * (cos + 1j * sin)


def ratio_error(finite: Finite, theta: Array, frequency: Array) -> Array:
    """The error of `ratio` in ulp, that of dividing by A(theta) included."""
    return 128.0 + (16.0 * frequency + 8.0 * theta) * finite.bound


def complex_expm1(a: Array, b: Array) -> Array:
    """e^{a + ib} - 1 without cancellation near zero."""
    real = np.expm1(a) * np.cos(b) - 2.0 * np.sin(0.5 * b) ** 2
    return real + 1j * (np.exp(a) * np.sin(b))


def largest_loss(events: Sequence[Finite]) -> float:
    """The largest loss of all the events together."""
    return sum(event.num_steps * event.bound for event in events) * (1.0 + 1e-12)


def largest_atom(events: Sequence[Finite]) -> tuple[float, float]:
    """(L, log m) of the module docstring for all the events together, both rounded down."""
    # Without a loss the atom at 0 is everything.
    log_mass = sum(event.num_steps * _log_terms(event)[0] for event in events if event.bound > 0)
    loss = sum(event.num_steps * event.bound for event in events)
    return loss * (1.0 - 1e-12), log_mass - 1e-12 * (1.0 + abs(log_mass))


def epsilon_from_atom(events: Sequence[Finite], log_delta: float) -> float:
    """A lower bound on epsilon at e^log_delta, from the largest loss alone."""
    loss, log_mass = largest_atom(events)
    share = log_delta + 1e-13 * (1.0 + abs(log_delta)) - log_mass
    if share >= 0:
        return 0.0
    return max(loss + np.log(-np.expm1(share)) * (1.0 + 1e-12) - 1e-12, 0.0)


def delta_from_atom(events: Sequence[Finite], epsilon: float) -> float:
    """A lower bound on delta at epsilon, from the largest loss alone."""
    loss, log_mass = largest_atom(events)
    return np.exp(log_mass) * -np.expm1(min(epsilon - loss, 0.0)) * (1.0 - 1e-12)


def squared_mu(events: Sequence[Finite]) -> float:
    """An upper bound on mu^2 of all the events together."""
    return sum(event.num_steps * _mu(event.bound) ** 2 for event in events) * (1.0 + 1e-12)


def _mu(bound: float) -> float:
    """An upper bound on the mu of an (e, 0)-DP event."""
    if bound < 1e-3:
        return 1.2534 * bound
    if bound > 30.0:  # Phi(-x) <= e^{-x^2 / 2} / 2
        return 2.0 * np.sqrt(2.0 * (np.logaddexp(bound, 0.0) - np.log(2.0)))
    return -2.0 * ndtri(1.0 / (1.0 + np.exp(bound))) * (1.0 + 1e-9)
