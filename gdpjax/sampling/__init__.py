"""Random batches whose probabilities are the ones accounted for."""

from gdpjax.sampling._batches import BatchOverflowError, IndexBatch, PoissonBatches, UniformBatches, poisson_batches
from gdpjax.sampling._poisson import (
    PoissonSample,
    choose_capacity,
    dyadic_probability,
    overflow_probability,
    poisson_sample,
)
from gdpjax.sampling._uniform import uniform_sample, uniform_sampling_error

__all__ = [
    "BatchOverflowError",
    "IndexBatch",
    "PoissonBatches",
    "PoissonSample",
    "UniformBatches",
    "choose_capacity",
    "dyadic_probability",
    "overflow_probability",
    "poisson_batches",
    "poisson_sample",
    "uniform_sample",
    "uniform_sampling_error",
]
