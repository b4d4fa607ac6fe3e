"""Random batches whose probabilities are the ones accounted for."""

from gdpjax.sampling._poisson import (
    PoissonSample,
    choose_capacity,
    dyadic_probability,
    overflow_probability,
    poisson_sample,
)

__all__ = ["PoissonSample", "choose_capacity", "dyadic_probability", "overflow_probability", "poisson_sample"]
