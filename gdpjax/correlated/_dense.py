"""Any lower-triangular C, for runs short enough that an n x n matrix is no burden."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy
from jaxtyping import Real

from gdpjax._core.arguments import check_array, check_count
from gdpjax._core.checks import REAL, check, is_traced
from gdpjax._core.pytrees import pytree_dataclass
from gdpjax._core.shown import shown
from gdpjax._core.types import Array, PyTree, Scalar, Whole
from gdpjax.correlated import _buffers
from gdpjax.correlated._participation import AbstractParticipation, check_participation
from gdpjax.correlated._sensitivity import dense_attained, dense_sensitivity
from gdpjax.correlated._strategy import AbstractNoiseStrategy, Draw, check_error, of_coefficients
from gdpjax.correlated._toeplitz import refuse_scale
from gdpjax.correlated._workloads import PREFIX_SUM, AbstractWorkload, check_workload


@pytree_dataclass
class Dense(AbstractNoiseStrategy):
    """A lower-triangular C given in full.

        w_t = sum_{s <= t} (C^-1)[t, s] z_s

    All draws of the steps before are made again at each step, so there is no state, and n steps cost n^2 / 2 draws.
    Steps after the last row of the matrix have noise that is NaN.

    Args:
        matrix: C, lower-triangular with a positive diagonal, shape [n, n].

    Returns:
        A strategy for at most n steps. Its sensitivity is exact (to a relative 1e-9) for a single participation, for
        fixed epochs if C^T C has no negative entry, and if columns of C at participations of one example are
        orthogonal; otherwise it is an upper bound.

    Raises:
        ValueError: a matrix that is not square, lower-triangular and finite with a positive diagonal.

    Reference: Denisov et al., arXiv:2202.08312; Choquette-Choo et al., arXiv:2211.06530.

    >>> from gdpjax.correlated import SingleParticipation
    >>> strategy = Dense([[1.0, 0.0], [0.5, 1.0]])
    >>> print(f"{strategy.sensitivity(2, SingleParticipation())**2:.6f}", strategy.error(2))
    1.250000 1.125
    """

    matrix: Real[Array, "steps steps"]

    def __post_init__(self) -> None:
        array = check_array("matrix", self.matrix, ndim=2)
        check("matrix", array, REAL)
        num_rows, num_columns = array.shape
        if num_rows != num_columns or num_rows == 0:
            raise ValueError(f"matrix must be square, one row and one column per step, got {shown(self.matrix)}")
        if is_traced(array):
            return
        array = np.array(array, np.float64)
        above_diagonal = np.triu(array, 1)
        if np.any(above_diagonal) or np.any(np.diag(array) <= 0):
            raise ValueError(
                "matrix must be lower-triangular with a positive diagonal; of a Gram matrix C^T C, pass the factor C"
            )
        refuse_scale("matrix", np.diag(array), array)
        array.setflags(write=False)
        object.__setattr__(self, "matrix", array)

    @property
    def num_rows(self) -> int:
        """The number of steps that the matrix is for, n."""
        return np.shape(self.matrix)[0]

    def sensitivity(self, num_steps: int, participation: AbstractParticipation) -> Scalar:
        """Return a certified upper bound on the sensitivity; see `AbstractNoiseStrategy.sensitivity`."""
        num_steps = self._checked_steps(num_steps)
        check_participation(participation).limits(num_steps)

        def compute(strategy: Dense) -> float:
            matrix = np.tril(strategy.matrix)
            return dense_sensitivity(matrix[:num_steps, :num_steps], participation)

        return of_coefficients(self, compute, rounding="up")

    def attained(self, num_steps: int, participation: AbstractParticipation) -> Scalar:
        """Return |C x| for an x of ones at allowed steps: a lower bound on the sensitivity."""
        num_steps = self._checked_steps(num_steps)
        check_participation(participation)

        def compute(strategy: Dense) -> float:
            matrix = np.tril(strategy.matrix)
            return dense_attained(matrix[:num_steps, :num_steps], participation)

        return of_coefficients(self, compute, rounding="down")

    def error(
        self,
        num_steps: int,
        error: str = "mean",
        *,
        workload: AbstractWorkload = PREFIX_SUM,
    ) -> Scalar:
        """Return the mean or largest squared error of the workload; see `AbstractNoiseStrategy.error`."""
        num_steps = self._checked_steps(num_steps)
        check_error(error)
        coefficients = check_workload(workload).coefficients(num_steps)
        outputs_of_draws = toeplitz_matrix(coefficients)

        def compute(strategy: Dense) -> float:
            # A C^-1 is the transpose of the solution of C^T y = A^T.
            matrix = np.asarray(strategy.matrix)[:num_steps, :num_steps]
            rows = scipy.linalg.solve_triangular(matrix, outputs_of_draws.T, lower=True, trans=1)
            squared = np.sum(rows * rows, axis=0)
            return float(squared.mean() if error == "mean" else squared.max())

        return of_coefficients(self, compute, rounding="nearest")

    def _checked_steps(self, num_steps: int) -> int:
        """Return ``num_steps``, at most the size of the matrix."""
        return check_count("num_steps", num_steps, most=self.num_rows)

    def init(self, like: PyTree) -> PyTree:
        """Return (), since all draws are made again."""
        return ()

    def next(self, step: Whole, draw: Draw, state: PyTree) -> tuple[PyTree, PyTree]:
        """Return w_step and ()."""
        step = jnp.asarray(step)
        row = _buffers.split_high_and_low(self._inverse())[:, step]
        row = jnp.where(step < self.num_rows, row, jnp.nan)

        def add_draw(past: Array, total: PyTree) -> PyTree:
            drawn = _buffers.as_noise(draw(past))
            return _buffers.add(total, _buffers.multiply(row[:, past], drawn))

        nothing = _buffers.zeros_like_each(jax.eval_shape(draw, step))
        return jax.lax.fori_loop(0, step + 1, add_draw, nothing), ()

    def _inverse(self) -> Any:
        """Return C^-1, in the precision that C has."""
        if is_traced(self.matrix):
            matrix = jnp.asarray(self.matrix)
            identity = jnp.eye(self.num_rows, dtype=matrix.dtype)
            return jax.scipy.linalg.solve_triangular(matrix, identity, lower=True)
        identity = np.eye(self.num_rows)
        return scipy.linalg.solve_triangular(self.matrix, identity, lower=True)


def toeplitz_matrix(column: np.ndarray) -> np.ndarray:
    """Return the lower-triangular Toeplitz matrix with this first column."""
    size = len(column)
    lag = np.subtract.outer(np.arange(size), np.arange(size))
    return np.where(lag >= 0, column[np.maximum(lag, 0)], 0.0)
