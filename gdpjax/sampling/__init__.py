"""Random batches whose probabilities are the ones accounted for."""

from gdpjax.sampling._allocation import allocation_error, allocation_overflow, allocation_sample
from gdpjax.sampling._batch import Batch
from gdpjax.sampling._batches import (
    AllocationBatches,
    BatchOverflowError,
    CyclicPoissonBatches,
    IndexBatch,
    PoissonBatches,
    ShuffledBatches,
    TruncatedPoissonBatches,
    UniformBatches,
    poisson_batches,
)
from gdpjax.sampling._cyclic import cyclic_poisson_sample
from gdpjax.sampling._poisson import (
    choose_capacity,
    dyadic_probability,
    overflow_probability,
    poisson_sample,
)
from gdpjax.sampling._poisson_scheme import Poisson
from gdpjax.sampling._shuffled import shuffled_error, shuffled_sample
from gdpjax.sampling._truncated import truncated_poisson_sample
from gdpjax.sampling._uniform import uniform_sample, uniform_sampling_error

__all__ = [
    "AllocationBatches",
    "Batch",
    "BatchOverflowError",
    "CyclicPoissonBatches",
    "IndexBatch",
    "Poisson",
    "PoissonBatches",
    "ShuffledBatches",
    "TruncatedPoissonBatches",
    "UniformBatches",
    "allocation_error",
    "allocation_overflow",
    "allocation_sample",
    "choose_capacity",
    "cyclic_poisson_sample",
    "dyadic_probability",
    "overflow_probability",
    "poisson_batches",
    "poisson_sample",
    "shuffled_error",
    "shuffled_sample",
    "truncated_poisson_sample",
    "uniform_sample",
    "uniform_sampling_error",
]
