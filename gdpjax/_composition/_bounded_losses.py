"""Events whose privacy loss is bounded: randomized response, (epsilon, 0)-DP and the Laplace mechanism.

Their moments have a formula. Let e be the largest loss (`BoundedLossEvents.bound`). Randomized response with k
categories gives the true answer with probability a e^e and each of the k - 1 other answers with probability a, where
a = 1 / (e^e + k - 1), so that

    A(z) = a e^e e^{ze} + a e^{-ze} + a (k - 2).

k = 2 is the worst of all (e, 0)-DP mechanisms. The Laplace mechanism of scale sensitivity / e has

    A(z) = e^{ze} / 2 + e^{-e - ze} / 2 + e^{ze} (1 - e^{-(1 + 2z) e}) / (2 (1 + 2z)).

Both pairs of distributions are symmetric: the same for "remove" and "add".

    >>> response = BoundedLossEvents(num_steps=1.0, bound=1.0, categories=2.0)
    >>> print(log_moment(response, np.zeros(1)).round(12))  # A(0) is the total probability
    [0.]

docs/theory/contour.md derives the formulas and their rounding ("Events with bounded loss"), and the bounds that come
from the largest loss alone ("The largest loss").
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import scipy

from gdpjax._core.types import Array

LAPLACE = 0.0
"""The number of categories that stands for the Laplace mechanism."""
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(24)


class BoundedLossEvents(NamedTuple):
    """Events with bounded loss, all of one kind.

    Attributes:
        num_steps: The number of events.
        bound: The largest loss of one event.
        categories: The number of answers of a randomized response, or `LAPLACE`.
    """

    num_steps: float
    bound: float
    categories: float

    @property
    def is_laplace(self) -> bool:
        """Whether the events are Laplace mechanisms."""
        return self.categories == LAPLACE


def _log_probabilities(finite: BoundedLossEvents) -> tuple[float, float, float]:
    """Return the logs of the probabilities of the losses e, -e and 0, without Laplace's continuous part."""
    bound = finite.bound
    if finite.is_laplace:
        largest = -np.log(2.0)
        return largest, -np.log(2.0) - bound, -np.inf
    other_categories = finite.categories - 1.0
    largest = -np.log1p(other_categories * np.exp(-bound))
    smallest = largest - bound
    zero = -np.inf
    if finite.categories > 2:
        zero = largest - bound + np.log(finite.categories - 2.0)
    return largest, smallest, zero


def distribution(finite: BoundedLossEvents) -> tuple[Array, Array]:
    """Return (losses [n], log weights [n]) of a discrete approximation, for planning only."""
    bound = finite.bound
    losses = np.array([bound, -bound, 0.0])
    log_weights = np.array(_log_probabilities(finite))
    if not finite.is_laplace:
        return losses, log_weights

    # Laplace's continuous part: losses e - 2y with density e^{-y} / 2, 0 < y < e.
    y = 0.5 * bound * (1.0 + _NODES)
    log_density = np.log(0.25 * bound * _WEIGHTS) - y
    losses = np.append(losses, bound - 2.0 * y)
    log_weights = np.append(log_weights, log_density)
    return losses, log_weights


def _log_terms(finite: BoundedLossEvents, theta: Array) -> tuple[Array, Array, Array]:
    """Return the logs of the terms of A(theta) e^{-theta e} for the losses e, -e and 0."""
    bound = finite.bound
    log_largest, log_smallest, log_zero = _log_probabilities(finite)
    smallest = log_smallest - 2.0 * theta * bound
    zero = log_zero - theta * bound
    return log_largest + 0.0 * theta, smallest, zero


def log_moment(finite: BoundedLossEvents, theta: Array) -> Array:
    """Return log A(theta), theta >= 0 [points], right to (64 + 4 theta e) ulp."""
    terms = list(_log_terms(finite, theta))
    if finite.is_laplace:
        rate = 1.0 + 2.0 * theta
        rise = -np.expm1(-rate * finite.bound)
        between = rise / (2.0 * rate)
        terms.append(np.log(between))
    log_total = scipy.special.logsumexp(np.stack(terms), axis=0)
    return theta * finite.bound + log_total


def ratio(finite: BoundedLossEvents, theta: float, frequency: Array) -> Array:
    """Return A(theta + it) / A(theta) at each frequency t [n]."""
    bound = finite.bound
    log_total = log_moment(finite, np.asarray(theta)) - theta * bound
    log_largest, log_smallest, log_zero = _log_terms(finite, theta)
    largest = np.exp(log_largest - log_total)
    smallest = np.exp(log_smallest - log_total)
    zero = np.exp(log_zero - log_total)

    # The atoms turn by t e, by -t e, and not at all.
    turn = frequency * bound
    cos = np.cos(turn)
    sin = np.sin(turn)
    real = (largest + smallest) * cos + zero
    imag = (largest - smallest) * sin
    atoms = real + 1j * imag
    if not finite.is_laplace:
        return atoms

    # Laplace's continuous part, a quotient without cancellation near t = 0.
    rate = 1.0 + 2.0 * theta
    rise = -complex_expm1(-rate * bound, -2.0 * turn)
    z = theta + 1j * frequency
    quotient = rise / (2.0 * (1.0 + 2.0 * z))
    rotation = cos + 1j * sin
    return atoms + quotient * np.exp(-log_total) * rotation


def ratio_error(finite: BoundedLossEvents, theta: Array, frequency: Array) -> Array:
    """Return the error of `ratio` in ulp, which includes that of dividing by A(theta)."""
    return 128.0 + (16.0 * frequency + 8.0 * theta) * finite.bound


def complex_expm1(a: Array, b: Array) -> Array:
    """Return e^{a + ib} - 1 without cancellation near zero."""
    # The real part is e^a cos b - 1 = (e^a - 1) cos b - (1 - cos b).
    cos_deficit = 2.0 * np.sin(0.5 * b) ** 2
    real = np.expm1(a) * np.cos(b) - cos_deficit
    imag = np.exp(a) * np.sin(b)
    return real + 1j * imag


def largest_loss(events: Sequence[BoundedLossEvents]) -> float:
    """Return the largest loss of all the events together."""
    total = 0.0
    for event in events:
        total += event.num_steps * event.bound
    return total * (1.0 + 1e-12)


def largest_atom(events: Sequence[BoundedLossEvents]) -> tuple[float, float]:
    """Return the largest loss L of all the events together and the log of its probability m, both rounded down."""
    loss = 0.0
    log_mass = 0.0
    for event in events:
        loss += event.num_steps * event.bound
        # An event without a loss is always at its atom 0.
        if event.bound > 0:
            log_largest, _, _ = _log_probabilities(event)
            log_mass += event.num_steps * log_largest
    rounding = 1e-12 * (1.0 + abs(log_mass))
    return loss * (1.0 - 1e-12), log_mass - rounding


def epsilon_from_atom(events: Sequence[BoundedLossEvents], log_delta: float) -> float:
    """Return a lower bound on epsilon at e^log_delta, from the largest loss alone."""
    loss, log_mass = largest_atom(events)
    # delta(x) >= m (1 - e^{x - L}), solved for x.
    rounding = 1e-13 * (1.0 + abs(log_delta))
    log_share = log_delta + rounding - log_mass
    if log_share >= 0:
        return 0.0
    below_loss = np.log(-np.expm1(log_share)) * (1.0 + 1e-12)
    return max(loss + below_loss - 1e-12, 0.0)


def delta_from_atom(events: Sequence[BoundedLossEvents], epsilon: Array) -> Array:
    """Return a lower bound on delta at epsilon, from the largest loss alone."""
    loss, log_mass = largest_atom(events)
    gain = -np.expm1(np.minimum(epsilon - loss, 0.0))
    return np.exp(log_mass) * gain * (1.0 - 1e-12)


def squared_mu(events: Sequence[BoundedLossEvents]) -> float:
    """Return an upper bound on mu^2 of all the events together."""
    total = 0.0
    for event in events:
        total += event.num_steps * _mu(event.bound) ** 2
    return total * (1.0 + 1e-12)


def _mu(bound: float) -> float:
    """Return an upper bound on the mu of an (e, 0)-DP event, -2 Phi^{-1}(1 / (1 + e^e))."""
    if bound < 1e-3:
        # mu / e rises to sqrt(pi / 2) as e falls to 0.
        return 1.2534 * bound
    if bound > 30.0:
        # Phi(-x) <= e^{-x^2 / 2} / 2.
        log_odds = np.logaddexp(bound, 0.0)
        return 2.0 * np.sqrt(2.0 * (log_odds - np.log(2.0)))
    probability = 1.0 / (1.0 + np.exp(bound))
    return -2.0 * scipy.special.ndtri(probability) * (1.0 + 1e-9)
