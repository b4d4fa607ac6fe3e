"""Random batches whose probabilities are the ones accounted for."""

from gdpjax.sampling._allocation import allocation_error, allocation_overflow, allocation_sample
from gdpjax.sampling._batches import (
    AllocationBatches,
    BatchOverflowError,
    IndexBatch,
    PoissonBatches,
    TruncatedPoissonBatches,
    UniformBatches,
    poisson_batches,
)
from gdpjax.sampling._poisson import (
    PoissonSample,
    choose_capacity,
    dyadic_probability,
    overflow_probability,
    poisson_sample,
)
from gdpjax.sampling._truncated import truncated_poisson_sample
from gdpjax.sampling._uniform import uniform_sample, uniform_sampling_error

__all__ = [
    "AllocationBatches",
    "BatchOverflowError",
    "IndexBatch",
    "PoissonBatches",
    "PoissonSample",
    "TruncatedPoissonBatches",
    "UniformBatches",
    "allocation_error",
    "allocation_overflow",
    "allocation_sample",
    "choose_capacity",
    "dyadic_probability",
    "overflow_probability",
    "poisson_batches",
    "poisson_sample",
    "truncated_poisson_sample",
    "uniform_sample",
    "uniform_sampling_error",
]
