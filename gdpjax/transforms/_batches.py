"""The batches of a private transform: given by one `gdpjax.sampling.Poisson`, or number by number."""

from typing import Any, NamedTuple

from gdpjax._core.checks import Domain, checked_scalar
from gdpjax._core.shown import shown
from gdpjax._core.types import Array
from gdpjax.sampling import Poisson

SAMPLING_PROB = Domain(
    "a probability > 0 and at most 1 (64 // 1000 is 0, 64 / 1000 is not)", lambda p: (p > 0) & (p <= 1)
)
_EXAMPLE = "gdpjax.sampling.Poisson(num_examples=60_000, expected_batch_size=256, num_steps=3516)"


class Sampling(NamedTuple):
    """The numbers of a batch that noise and ledger are made with, by the names of the arguments of `privatize`."""

    sampling_prob: Array | None
    expected_batch_size: Array
    overflow_per_step: Array


def resolve_batches(
    batches: Any,
    *,
    sampling_prob: Array | None,
    expected_batch_size: Array | None,
    overflow_per_step: Array | None,
    sampling: str | None,
    correlated: bool = False,
) -> Sampling:
    """Return the numbers of ``batches``, or those that were given; ValueError for both, and for neither."""
    if batches is None:
        if expected_batch_size is None:
            raise ValueError(
                f"give batches=, such as {_EXAMPLE}, or expected_batch_size= with sampling_prob= and "
                "overflow_per_step=; got neither batches nor expected_batch_size"
            )
        overflow = 0.0 if overflow_per_step is None else overflow_per_step
        return Sampling(sampling_prob, expected_batch_size, overflow)

    if not isinstance(batches, Poisson):
        raise ValueError(
            f"batches must be a gdpjax.sampling.Poisson, such as {_EXAMPLE}, whose .sample(key, step) or "
            f".host_batches(key) then draws them; got {shown(batches)}"
        )
    numbers = {
        "sampling_prob": sampling_prob,
        "expected_batch_size": expected_batch_size,
        "overflow_per_step": overflow_per_step,
    }
    given = [name for name, value in numbers.items() if value is not None]
    if given:
        raise ValueError(
            "batches= stands for sampling_prob=, expected_batch_size= and overflow_per_step=: leave them out, or give "
            f"the numbers and no batches; got batches and {', '.join(given)}"
        )
    if correlated:
        raise ValueError(
            "batches=gdpjax.sampling.Poisson(...) goes with independent noise. Correlated noise assumes nothing of how "
            "batches are drawn but its participation=, or takes cyclic Poisson batches: leave batches= out and give "
            "expected_batch_size="
        )
    if sampling not in (None, "poisson"):
        raise ValueError(
            "batches=gdpjax.sampling.Poisson(...) is Poisson sampling: leave sampling= out, or give sampling_prob= and "
            f"expected_batch_size= in the place of batches=; got sampling={shown(sampling)}"
        )
    return Sampling(batches.sampling_prob, batches.expected_batch_size, batches.overflow_per_step)


def checked_sampling_prob(sampling_prob: Any, sampling: str) -> Array:
    """Return the sampling probability; 1 under correlated noise without sampling, where it says nothing."""
    if sampling == "correlated":
        if sampling_prob is not None:
            raise ValueError(
                "correlated noise assumes nothing about sampling: leave sampling_prob out, and give participation=, "
                "the promise how often and how far apart an example takes part"
            )
        return 1.0
    if sampling_prob is None:
        raise ValueError(
            f"sampling_prob must be {SAMPLING_PROB.text}, the one that is really sampled with; got None. Poisson "
            f"batches also go as batches=, such as {_EXAMPLE}"
        )
    return checked_scalar("sampling_prob", sampling_prob, SAMPLING_PROB)
