"""Certified curves of runs that are made of other curves.

    Between(above, below)           # of a run that reveals at most and at least as much as two others
    ClosedForm(0.99, 1.0)           # of a run that is mu-GDP for a mu between two numbers

An idea about a run is a class here or in the module of its proof, with the four answers of a `CertifiedCurve`. An
answer "rises" if it is the larger the more a run reveals, as epsilon, delta and mu do; the trade-off curve falls.
"""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from gdpjax._core.checks import EXTENDED_NONNEGATIVE, NONNEGATIVE, OPEN_UNIT, UNIT, is_traced, known
from gdpjax._core.types import FAILURE, Array, Bounds, Numbers
from gdpjax.tradeoff import CertifiedCurve, CurveBounds, Gaussian

_MU_ROUNDING = 1e-14
"""More than the rounding of a sum of squares, and of its root, relative."""


def each(ask: Callable[..., Bounds], *values: Any) -> Bounds:
    """Return the brackets that ``ask`` gives at every element of arrays that broadcast together."""
    elements = np.broadcast(*values)
    answers = [ask(*element) for element in elements]
    ends = np.array(answers, np.float64).reshape(*elements.shape, 2)
    return Bounds(ends[..., 0][()], ends[..., 1][()])


def rising(above: Bounds, *below: Bounds) -> Bounds:
    """Return the bracket of an answer that rises, from those of runs that reveal more and less."""
    lower = functools.reduce(np.maximum, [bracket.lower for bracket in below])
    return _ordered(lower, above.upper)


def falling(above: Bounds, *below: Bounds) -> Bounds:
    """Return the bracket of an answer that falls, from those of runs that reveal more and less."""
    upper = functools.reduce(np.minimum, [bracket.upper for bracket in below])
    return _ordered(above.lower, upper)


def _ordered(lower: Array, upper: Array) -> Bounds:
    """Return the bracket. The ends of two runs that are almost the same may cross by their rounding."""
    if not is_traced((lower, upper)):
        lower = np.minimum(lower, upper)
    return Bounds(lower, upper)


class AccountedCurve(CertifiedCurve):
    """The certified curve of something that was run, or of each of an array of runs."""

    def regret(self, mu: Array | None = None) -> Bounds:
        """Bracket the regret of reporting mu, as `CertifiedCurve.regret`; of every run of an array."""
        if mu is None:
            mu = self.mu().upper
        return self._one_by_one(CertifiedCurve.regret, mu)

    def reported_mu(self, failure: Array = FAILURE) -> Bounds:
        """Narrow the bracket of `mu`, as `CertifiedCurve.reported_mu`; of every run of an array."""
        return self._one_by_one(CertifiedCurve.reported_mu, failure)

    def _one_by_one(self, question: Callable[[Any, float], Bounds], at: Array) -> Bounds:
        """Return the answers of the single runs, each at its element of ``at``."""
        runs = self._runs()
        at = known("the mu or failure asked at", at, EXTENDED_NONNEGATIVE)
        return each(question, runs, at)

    def _runs(self) -> np.ndarray:
        """Return the curves of the single runs."""
        return np.array(self, object)


class Between(AccountedCurve):
    """The certified curve of a run that lies between other runs.

    Args:
        above: the curve of a run that reveals at least as much.
        below: the curves of one or several runs that reveal at most as much.
    """

    def __init__(self, above: CertifiedCurve, *below: CertifiedCurve) -> None:
        self.above = above
        self.below = below

    def epsilon(self, delta: Numbers) -> Bounds:
        """Bracket epsilon."""
        return rising(self.above.epsilon(delta), *[curve.epsilon(delta) for curve in self.below])

    def delta(self, epsilon: Numbers) -> Bounds:
        """Bracket delta."""
        return rising(self.above.delta(epsilon), *[curve.delta(epsilon) for curve in self.below])

    def mu(self, failure: Numbers = FAILURE) -> Bounds:
        """Bracket mu."""
        return rising(self.above.mu(failure), *[curve.mu(failure) for curve in self.below])

    def tradeoff(self, alpha: Numbers) -> Bounds:
        """Bracket the trade-off curve."""
        return falling(self.above.tradeoff(alpha), *[curve.tradeoff(alpha) for curve in self.below])


class Meet(AccountedCurve):
    """The certified curve of a run that is known in two ways."""

    def __init__(self, *curves: CertifiedCurve) -> None:
        self.curves = curves

    def epsilon(self, delta: Numbers) -> Bounds:
        """Bracket epsilon."""
        return self._in_all(lambda curve: curve.epsilon(delta))

    def delta(self, epsilon: Numbers) -> Bounds:
        """Bracket delta."""
        return self._in_all(lambda curve: curve.delta(epsilon))

    def mu(self, failure: Numbers = FAILURE) -> Bounds:
        """Bracket mu."""
        return self._in_all(lambda curve: each(curve.mu, failure))

    def tradeoff(self, alpha: Numbers) -> Bounds:
        """Bracket the trade-off curve."""
        return self._in_all(lambda curve: curve.tradeoff(alpha))

    def _in_all(self, ask: Callable[[CertifiedCurve], Bounds]) -> Bounds:
        lower, upper = zip(*map(ask, self.curves), strict=True)
        return _ordered(functools.reduce(np.maximum, lower), functools.reduce(np.minimum, upper))


class ClosedForm(AccountedCurve):
    """The certified curve of a run that is mu-GDP, in closed form.

    Args:
        smaller_mu, larger_mu: two numbers with mu in between, but for their rounding.
    """

    def __init__(self, smaller_mu: float, larger_mu: float) -> None:
        above = Gaussian(larger_mu * (1.0 + _MU_ROUNDING))
        below = Gaussian(smaller_mu * (1.0 - _MU_ROUNDING))
        self.curve = CurveBounds(above, below)

    def epsilon(self, delta: Numbers) -> Bounds:
        """Bracket epsilon."""
        return self.curve.epsilon(known("delta", delta, OPEN_UNIT))

    def delta(self, epsilon: Numbers) -> Bounds:
        """Bracket delta."""
        return self.curve.delta(known("epsilon", epsilon, NONNEGATIVE))

    def mu(self, failure: Numbers = FAILURE) -> Bounds:
        """Bracket mu."""
        return each(self.curve.mu, known("failure", failure, OPEN_UNIT))

    def tradeoff(self, alpha: Numbers) -> Bounds:
        """Bracket the trade-off curve."""
        return self.curve.tradeoff(known("alpha", alpha, UNIT))
