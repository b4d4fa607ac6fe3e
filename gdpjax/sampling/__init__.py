"""Random batches whose probabilities are the ones accounted for: a sampling scheme is one value."""

# What is imported under an alias is for the other parts of the library, and not public.
from gdpjax.sampling._abstract import AbstractBatches
from gdpjax.sampling._allocation import RandomAllocation
from gdpjax.sampling._batch import Batch as Batch
from gdpjax.sampling._cyclic import CyclicPoisson
from gdpjax.sampling._host import BatchOverflowError
from gdpjax.sampling._host import HostBatches as HostBatches
from gdpjax.sampling._host import IndexBatch as IndexBatch
from gdpjax.sampling._poisson import Poisson, PoissonNumbers, poisson_sample
from gdpjax.sampling._probability import choose_capacity as choose_capacity
from gdpjax.sampling._probability import dyadic_probability as dyadic_probability
from gdpjax.sampling._probability import overflow_probability as overflow_probability
from gdpjax.sampling._probability import padded_capacity as padded_capacity
from gdpjax.sampling._probability import steps_of_epochs as steps_of_epochs
from gdpjax.sampling._promised import Promised
from gdpjax.sampling._shuffled import Shuffled
from gdpjax.sampling._truncated import TruncatedPoisson
from gdpjax.sampling._without_replacement import WithoutReplacement

__all__ = [
    "AbstractBatches",
    "BatchOverflowError",
    "CyclicPoisson",
    "Poisson",
    "PoissonNumbers",
    "Promised",
    "RandomAllocation",
    "Shuffled",
    "TruncatedPoisson",
    "WithoutReplacement",
    "poisson_sample",
]
