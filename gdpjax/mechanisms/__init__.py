"""Mechanisms: a sampler, the trade-off curve that it has, and the unit of its sensitivity.

Floating-point noise has the curve of real arithmetic, see `_abstract`; the discrete mechanisms and randomized response
are exact as implemented.
"""

from gdpjax.mechanisms._additive import GaussianMechanism, LaplaceMechanism, PoissonSubsampled
from gdpjax.mechanisms._discrete import DiscreteGaussianMechanism, DiscreteLaplaceMechanism
from gdpjax.mechanisms._randomized_response import RandomizedResponse

__all__ = [
    "DiscreteGaussianMechanism",
    "DiscreteLaplaceMechanism",
    "GaussianMechanism",
    "LaplaceMechanism",
    "PoissonSubsampled",
    "RandomizedResponse",
]
