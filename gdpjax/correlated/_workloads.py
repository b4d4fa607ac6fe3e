"""Workloads: the linear functions of the released sums that a run computes, and so the error that matters.

Training by SGD adds up the released gradients: the parameters after step t are a prefix sum. With momentum and weight
decay they are another linear function of the same gradients. A workload is the first column a_0, a_1, ... of its
lower-triangular Toeplitz matrix A, and the error of a strategy is that of A C^-1 z.
"""

import abc
import dataclasses

import numpy as np
from jaxtyping import Float

from gdpjax._core.arguments import check_count, check_instance, check_number
from gdpjax._core.checks import HALF_OPEN_UNIT
from gdpjax.correlated._series import divide, filled_up


class AbstractWorkload(abc.ABC):
    """A lower-triangular Toeplitz matrix A that is applied to the released sums."""

    @abc.abstractmethod
    def apply(self, series: Float[np.ndarray, "*steps"]) -> Float[np.ndarray, "*steps"]:
        """Return the first coefficients of a(x) times a power series, as many as are given."""

    def coefficients(self, num_steps: int) -> Float[np.ndarray, " {num_steps}"]:
        """Return the first column of A, float64 of shape [num_steps]."""
        return self.apply(filled_up([1.0], check_count("num_steps", num_steps)))


@dataclasses.dataclass(frozen=True)
class PrefixSum(AbstractWorkload):
    """The sums of the first 1, 2, ..., n releases, which is what SGD with a constant learning rate computes.

    >>> PrefixSum().coefficients(3)
    array([1., 1., 1.])
    """

    def apply(self, series: Float[np.ndarray, "*steps"]) -> Float[np.ndarray, "*steps"]:
        """Return the sums of the first 1, 2, ..., n coefficients."""
        return np.cumsum(series)


PREFIX_SUM = PrefixSum()
"""The default workload."""


@dataclasses.dataclass(frozen=True)
class MomentumSGD(AbstractWorkload):
    """The parameters of SGD with heavy-ball momentum and weight decay.

    With u_t = momentum u_{t-1} + g_t and theta_t = (1 - weight_decay) theta_{t-1} - u_t the coefficients are

        a_t = sum_{i <= t} (1 - weight_decay)^i momentum^(t - i),

    those of 1 / ((1 - (1 - weight_decay) x) (1 - momentum x)).

    Args:
        momentum: in [0, 1).
        weight_decay: the fraction that the parameters lose in a step, in [0, 1). For a coefficient w that is multiplied
            by the learning rate this is learning_rate * w.

    Raises:
        ValueError: a number outside its range.

    Reference: Kalinin and Lampert, arXiv:2405.13763.

    >>> MomentumSGD(momentum=0.5).coefficients(4)
    array([1.   , 1.5  , 1.75 , 1.875])
    """

    momentum: float = 0.0
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "momentum", check_number("momentum", self.momentum, HALF_OPEN_UNIT))
        object.__setattr__(self, "weight_decay", check_number("weight_decay", self.weight_decay, HALF_OPEN_UNIT))

    def apply(self, series: Float[np.ndarray, "*steps"]) -> Float[np.ndarray, "*steps"]:
        """Return the series divided by 1 - (1 - weight_decay) x and by 1 - momentum x."""
        decayed = divide(series, np.array([1.0, self.weight_decay - 1.0]))
        return divide(decayed, np.array([1.0, -self.momentum]))


def check_workload(value: object) -> AbstractWorkload:
    """Return ``value`` if it is a workload; ValueError with the choices otherwise."""
    return check_instance("workload", value, AbstractWorkload, "PrefixSum() or MomentumSGD(momentum, weight_decay)")
