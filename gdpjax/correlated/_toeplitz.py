"""Strategies with a lower-triangular Toeplitz matrix: their sensitivity and error from two columns.

A Toeplitz C is given by its first column c, and C^-1 is the Toeplitz matrix of the power series 1 / c(x).
"""

import abc
from typing import Any

import numpy as np
from jaxtyping import Float

from gdpjax._core.arguments import check_array, check_count
from gdpjax._core.checks import REAL, check, is_traced
from gdpjax._core.types import Scalar
from gdpjax.correlated._participation import AbstractParticipation, check_participation
from gdpjax.correlated._sensitivity import toeplitz_attained, toeplitz_sensitivity
from gdpjax.correlated._series import CertifiedSeries
from gdpjax.correlated._strategy import AbstractNoiseStrategy, check_error, of_coefficients
from gdpjax.correlated._workloads import PREFIX_SUM, AbstractWorkload, check_workload


class AbstractToeplitzStrategy(AbstractNoiseStrategy):
    """A strategy whose C is Toeplitz."""

    @abc.abstractmethod
    def column(self, num_steps: int) -> CertifiedSeries:
        """Return the first column of C, each coefficient with a bound on its rounding error."""

    @abc.abstractmethod
    def inverse_column(self, num_steps: int) -> Float[np.ndarray, " {num_steps}"]:
        """Return the first column of C^-1, float64 of shape [num_steps]."""

    def sensitivity(self, num_steps: int, participation: AbstractParticipation) -> Scalar:
        """Return a certified upper bound on the sensitivity; see `AbstractNoiseStrategy.sensitivity`.

        It is exact but for a relative 1e-9 if the coefficients of C do not increase and are not negative, if C has no
        more bands than participations are steps apart, and for a single participation.
        """
        num_steps = check_count("num_steps", num_steps)
        check_participation(participation).limits(num_steps)

        def compute(strategy: AbstractToeplitzStrategy) -> float:
            return toeplitz_sensitivity(strategy.column(num_steps), participation)

        return of_coefficients(self, compute, rounding="up")

    def attained(self, num_steps: int, participation: AbstractParticipation) -> Scalar:
        """Return |C x| for an x of ones at the earliest allowed steps: a lower bound on the sensitivity."""
        num_steps = check_count("num_steps", num_steps)
        check_participation(participation)

        def compute(strategy: AbstractToeplitzStrategy) -> float:
            return toeplitz_attained(strategy.column(num_steps), participation)

        return of_coefficients(self, compute, rounding="down")

    def error(
        self,
        num_steps: int,
        error: str = "mean",
        *,
        workload: AbstractWorkload = PREFIX_SUM,
    ) -> Scalar:
        """Return the mean or largest squared error of the workload; see `AbstractNoiseStrategy.error`.

        With h the first column of A C^-1 the squared error of output t is h_0^2 + ... + h_t^2.
        """
        num_steps = check_count("num_steps", num_steps)
        check_error(error)
        check_workload(workload)

        def compute(strategy: AbstractToeplitzStrategy) -> float:
            column = workload.apply(strategy.inverse_column(num_steps))
            return squared_error(column, error)

        return of_coefficients(self, compute, rounding="nearest")


def squared_error(column: np.ndarray, error: str) -> float:
    """Return the mean or the largest squared row norm of the Toeplitz matrix with this first column."""
    squares = column * column
    if error == "max":
        return float(squares.sum())
    # Coefficient s is in n - s of the n rows.
    num_rows = np.arange(len(column), 0, -1)
    return float(squares @ num_rows) / len(column)


def length_of(name: str, array: Any) -> int:
    """Return how many coefficients there are; ValueError for those of several strategies in one array."""
    shape = np.shape(array)
    if len(shape) != 1:
        raise ValueError(
            f"{name} must have one axis, got shape {shape}; use several strategies at a time under jax.vmap"
        )
    return shape[0]


def checked_coefficients(name: str, value: Any) -> Any:
    """Return coefficients as float64, or as they are if traced; the first one must be positive."""
    array = check_array(name, value, ndim=1)
    check(name, array, REAL)
    if is_traced(array):
        return array
    array = np.array(array, np.float64)
    if not (array[:1] > 0).any():
        raise ValueError(f"{name} must begin with a number > 0, so that C can be inverted; got {array[:1]}")
    refuse_scale(name, array[0], array)
    array.setflags(write=False)
    return array


def refuse_scale(name: str, diagonal: Any, entries: np.ndarray) -> None:
    """ValueError for a matrix whose products would leave the range of float32; a multiple of it does as well.

    Args:
        name: the argument that the numbers come from.
        diagonal: the numbers on the diagonal of C, or of its inverse.
        entries: all of them.
    """
    if np.min(diagonal) < 1.0 / _LARGEST or np.max(np.abs(entries)) > _LARGEST:
        raise ValueError(
            f"{name} must have a diagonal of at least {1.0 / _LARGEST:g} and no number above {_LARGEST:g} in size: "
            "noise in float32 would lose digits. A multiple of C is the same mechanism: divide by the first number"
        )


_LARGEST = 1e15
"""Squares of these numbers, and of their reciprocals, are far inside of the range of float32."""
