"""Certified curves of runs that are made of other curves.

    Between(above, below)           # of a run that reveals at most and at least as much as two others
    closed_form(0.99, 1.0)          # of a run that is mu-GDP for a mu between two numbers

An idea about a run is a class here or in the module of its proof, with the four answers of a `CertifiedCurve`, or with
one ``_ask`` for all four. An answer "rises" if it is the larger the more a run reveals, as epsilon, delta and mu do;
the trade-off curve falls.
"""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from gdpjax._core.checks import EXTENDED_NONNEGATIVE, is_traced, known
from gdpjax._core.types import FAILURE, Array, Bounds, Numbers
from gdpjax.tradeoff import CertifiedCurve, CurveBounds, Gaussian, each

_MU_ROUNDING = 1e-14
"""More than the rounding of a sum of squares, and of its root, relative."""


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

    def _ask(self, question: str, at: Numbers) -> Bounds:
        above, *below = [getattr(curve, question)(at) for curve in (self.above, *self.below)]
        return falling(above, *below) if question == "tradeoff" else rising(above, *below)


class Meet(AccountedCurve):
    """The certified curve of a run that is known in two ways."""

    def __init__(self, *curves: CertifiedCurve) -> None:
        self.curves = curves

    def _ask(self, question: str, at: Numbers) -> Bounds:
        lower, upper = zip(*(getattr(curve, question)(at) for curve in self.curves), strict=True)
        return _ordered(functools.reduce(np.maximum, lower), functools.reduce(np.minimum, upper))


def closed_form(smaller_mu: float, larger_mu: float) -> CurveBounds:
    """Return the certified curve of a run that is mu-GDP for a mu between two numbers, up to their rounding."""
    above = Gaussian(larger_mu * (1.0 + _MU_ROUNDING))
    below = Gaussian(smaller_mu * (1.0 - _MU_ROUNDING))
    return CurveBounds(above, below)
