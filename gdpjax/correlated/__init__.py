"""Noise that is correlated over steps: training that is exactly one Gaussian mechanism, mu = 1 / noise_multiplier."""

# What is imported under an alias is for the other parts of the library, and not public.
from gdpjax.correlated._banded_inverse import BandedInverse, bisr, lambda_cgd, optimize_banded_inverse
from gdpjax.correlated._banded_toeplitz import BandedToeplitz, optimize_banded_toeplitz
from gdpjax.correlated._buffered_toeplitz import BufferedToeplitz, optimize_buffered_toeplitz
from gdpjax.correlated._dense import Dense, optimize_dense
from gdpjax.correlated._participation import (
    AbstractParticipation,
    FixedEpochs,
    MinSep,
    ParticipationError,
    SingleParticipation,
)
from gdpjax.correlated._participation import check_batches as check_batches
from gdpjax.correlated._strategy import AbstractNoiseStrategy
from gdpjax.correlated._strategy import CoefficientStrategy as CoefficientStrategy
from gdpjax.correlated._workloads import AbstractWorkload, MomentumSGD, PrefixSum

__all__ = [
    "AbstractNoiseStrategy",
    "AbstractParticipation",
    "AbstractWorkload",
    "BandedInverse",
    "BandedToeplitz",
    "BufferedToeplitz",
    "Dense",
    "FixedEpochs",
    "MinSep",
    "MomentumSGD",
    "ParticipationError",
    "PrefixSum",
    "SingleParticipation",
    "bisr",
    "lambda_cgd",
    "optimize_banded_inverse",
    "optimize_banded_toeplitz",
    "optimize_buffered_toeplitz",
    "optimize_dense",
]
