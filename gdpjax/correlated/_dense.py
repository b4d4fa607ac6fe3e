"""Any lower-triangular C, for runs short enough that an n x n matrix is no burden; the best one for fixed epochs.

The best matrix is found by convex duality. With X = C^T C and M = A^T A the mean squared error is trace(M X^-1) / n.
The columns of C at the k participations of one example are taken to be orthogonal, and their squared norms add up to 1:
then the sensitivity is 1. X is divided in
blocks by the position r of a step in its epoch, and Lagrange multipliers are symmetric k x k blocks V_r with an equal
diagonal v_r. For V = diag(V_1, ..., V_b) = L L^T the least of trace(M X^-1) + trace(V X) is at

    X = L^-T (L^T M L)^(1/2) L^-1,

so that 2 trace (L^T M L)^(1/2) - sum_r v_r is a lower bound on trace(M X^-1) for every V. It is concave in V, with the
blocks of X for its derivative. Each of the n / k blocks V_r has k (k - 1) / 2 + 1 free numbers, together
n (k - 1) / 2 + n / k. The X of the best V is scaled, block by block, to fulfil the constraints exactly, and its error
is above the least by no more than the gap to the lower bound.
"""

import jax
import jax.numpy as jnp
import numpy as np
import scipy
from jaxtyping import Real

from gdpjax._core.arguments import check_array, check_count
from gdpjax._core.checks import REAL, check, is_traced
from gdpjax._core.shown import shown
from gdpjax._core.trees import wide_dtype
from gdpjax._core.types import Array, PyTree, Whole, pytree_dataclass
from gdpjax.correlated import _buffers
from gdpjax.correlated._minimize import Loss, minimize
from gdpjax.correlated._participation import AbstractParticipation, FixedEpochs
from gdpjax.correlated._sensitivity import dense_attained, dense_sensitivity, toeplitz_columns
from gdpjax.correlated._strategy import CoefficientStrategy, Draw, refuse_scale
from gdpjax.correlated._workloads import PREFIX_SUM, AbstractWorkload, check_workload


@pytree_dataclass
class Dense(CoefficientStrategy):
    """A lower-triangular C given in full.

        w_t = sum_{s <= t} (C^-1)[t, s] z_s

    All draws of the steps before are made again at each step, so there is no state, and n steps cost n^2 / 2 draws.
    Steps after the last row of the matrix have noise that is NaN.

    Args:
        matrix: C, lower-triangular with a positive diagonal, shape [n, n].

    Returns:
        A strategy for at most n steps. Its sensitivity is exact (to a relative 1e-9) for a single participation, for
        fixed epochs if C^T C has no negative entry, and if columns of C at participations of one example are
        orthogonal and of one norm; otherwise it is an upper bound.

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
            object.__setattr__(self, "matrix", array.astype(wide_dtype(array)))
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

    def _checked_steps(self, num_steps: int) -> int:
        return check_count("num_steps", num_steps, most=self.num_rows)

    def _beginning(self, num_steps: int) -> np.ndarray:
        return np.tril(self.matrix)[:num_steps, :num_steps]

    def _bound(self, num_steps: int, participation: AbstractParticipation) -> float:
        return dense_sensitivity(self._beginning(num_steps), participation)

    def _attained(self, num_steps: int, participation: AbstractParticipation) -> float:
        return dense_attained(self._beginning(num_steps), participation)

    def _error(self, num_steps: int, error: str, workload: AbstractWorkload) -> float:
        # A C^-1 is the transpose of the solution of C^T y = A^T.
        outputs_of_draws = toeplitz_columns(workload.coefficients(num_steps), np.arange(num_steps))
        rows = scipy.linalg.solve_triangular(self._beginning(num_steps), outputs_of_draws.T, lower=True, trans=1)
        squared = np.sum(rows * rows, axis=0)
        return float(squared.mean() if error == "mean" else squared.max())

    def init(self, like: PyTree) -> PyTree:
        """Return (), since all draws are made again."""
        return ()

    def next(self, step: Whole, draw: Draw, state: PyTree) -> tuple[PyTree, PyTree]:
        """Return w_step and ()."""
        step = jnp.asarray(step)
        if is_traced(self.matrix):
            row = self._on_host(_row_of_inverse, "nearest", step, shape=(2, self.num_rows))
        else:
            inverse = scipy.linalg.solve_triangular(self.matrix, np.eye(self.num_rows), lower=True)
            row = _buffers.split_high_and_low(inverse)[:, step]
        row = jnp.where(step < self.num_rows, row, jnp.nan)

        def add_draw(past: Array, total: PyTree) -> PyTree:
            drawn = _buffers.as_noise(draw(past))
            return _buffers.add(total, _buffers.multiply(row[:, past], drawn))

        nothing = _buffers.zeros_like_each(jax.eval_shape(draw, step))
        return jax.lax.fori_loop(0, step + 1, add_draw, nothing), ()


def _row_of_inverse(strategy: Dense, step: np.ndarray) -> np.ndarray:
    """Return a row of C^-1 as sums of two float32 numbers, [2, n]: in float32 it would be that of another C."""
    unit = (np.arange(strategy.num_rows) == step).astype(float)
    row = scipy.linalg.solve_triangular(strategy.matrix, unit, lower=True, trans=1)
    high = row.astype(np.float32)
    return np.stack([high, row - high])


_TOLERANCE = 1e-8


def optimize_dense(
    num_steps: int,
    num_epochs: int = 1,
    *,
    workload: AbstractWorkload = PREFIX_SUM,
) -> Dense:
    """Return the matrix of least mean squared error at sensitivity 1 for fixed epochs, with orthogonal participations.

    One evaluation is an n x n eigendecomposition: a second or two in all for n = 500, some minutes for 2000.

    Args:
        num_steps: n, a multiple of num_epochs.
        num_epochs: k, how many times each example takes part, every n / k steps.
        workload: what the run computes of the released sums.

    Returns:
        A `Dense` whose error is within about 1e-5, relative, of the least among matrices whose columns are orthogonal
        at the participations of one example.

    Raises:
        ValueError: num_epochs that does not divide num_steps.

    Reference: Denisov et al., arXiv:2202.08312; Choquette-Choo et al., arXiv:2211.06530.

    >>> strategy = optimize_dense(16)
    >>> f"{strategy.sensitivity(16, FixedEpochs(1)):.6f} {strategy.error(16):.4f}"
    '1.000000 2.8541'
    """
    num_steps = check_count("num_steps", num_steps)
    count, separation = FixedEpochs(num_epochs).limits(num_steps)
    matrix = toeplitz_columns(check_workload(workload).coefficients(num_steps), np.arange(num_steps))

    # Steps in the order of their positions, then of their epochs, so that the blocks are contiguous.
    order = np.arange(num_steps).reshape(count, separation).T.ravel()
    squared_workload = (matrix.T @ matrix)[np.ix_(order, order)]
    multipliers = _Multipliers(count, separation)

    # Begin with equal multipliers, of the size that makes the bound largest.
    sum_of_roots = float(np.sum(np.linalg.svd(matrix, compute_uv=False)))
    start = multipliers.start((sum_of_roots / separation) ** 2)
    point = minimize(_loss(squared_workload, multipliers), start, tolerance=_TOLERANCE)
    gram = _scaled(_best_gram(squared_workload, multipliers.factors(point)), count, separation)

    gram_in_step_order = np.empty_like(gram)
    gram_in_step_order[np.ix_(order, order)] = gram
    return Dense(_lower_factor(gram_in_step_order))


class _Multipliers:
    """The blocks V_r = v_r W_r, with ones on the diagonal of W_r, as free numbers: log v_r, then the W_r below it."""

    def __init__(self, count: int, separation: int):
        self.count = count
        self.separation = separation
        self.below = np.tril_indices(count, -1)

    def start(self, scale: float) -> np.ndarray:
        """Return the point with all v_r equal to ``scale`` and nothing off the diagonal."""
        num_below = self.separation * len(self.below[0])
        sizes = np.full(self.separation, np.log(scale))
        return np.concatenate([sizes, np.zeros(num_below)])

    def blocks(self, point: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return v, shape [b], and W, shape [b, k, k]."""
        sizes = np.exp(point[: self.separation])
        rows, columns = self.below
        identity = np.eye(self.count)
        correlations = np.tile(identity, (self.separation, 1, 1))
        below = point[self.separation :].reshape(self.separation, -1)
        correlations[:, rows, columns] = below
        correlations[:, columns, rows] = below
        return sizes, correlations

    def factors(self, point: np.ndarray) -> np.ndarray:
        """Return the lower factors L_r of the blocks; LinAlgError where one is not positive definite."""
        sizes, correlations = self.blocks(point)
        return np.linalg.cholesky(sizes[:, None, None] * correlations)

    def gradient(self, point: np.ndarray, gram_blocks: np.ndarray) -> np.ndarray:
        """Return the gradient of the lower bound, whose derivative by V_r is the block X_r, less 1 for v_r."""
        sizes, correlations = self.blocks(point)
        rows, columns = self.below
        gradient_by_sizes = np.sum(gram_blocks * correlations, axis=(1, 2)) - 1.0
        gradient_by_below = 2.0 * sizes[:, None] * gram_blocks[:, rows, columns]

        # The free numbers are the logarithms of the sizes.
        return np.concatenate([gradient_by_sizes * sizes, gradient_by_below.ravel()])


def _loss(squared_workload: np.ndarray, multipliers: _Multipliers) -> Loss:
    """Return the negative lower bound on the mean squared error."""
    num_steps = len(squared_workload)

    def loss(point: np.ndarray) -> tuple[float, np.ndarray]:
        try:
            factors = multipliers.factors(point)
        except np.linalg.LinAlgError:
            return np.inf, np.zeros_like(point)
        roots, vectors = _square_root(squared_workload, factors)
        sizes, _ = multipliers.blocks(point)
        bound = 2.0 * roots.sum() - sizes.sum()

        # The diagonal blocks of X = L^-T (L^T M L)^(1/2) L^-1.
        back_substituted = _back_substituted(factors, vectors)
        gram_blocks = (back_substituted * roots) @ back_substituted.transpose(0, 2, 1)
        gradient = multipliers.gradient(point, gram_blocks)
        return -bound / num_steps, -gradient / num_steps

    return loss


def _square_root(
    squared_workload: np.ndarray,
    factors: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the eigenvalues and vectors of (L^T M L)^(1/2)."""
    separation, count, _ = factors.shape
    shape = squared_workload.shape
    # M L, block of columns by block of columns.
    workload_times_factor = squared_workload.reshape(-1, separation, 1, count) @ factors
    workload_times_factor = workload_times_factor.reshape(separation, count, -1)

    # L^T (M L), block of rows by block of rows.
    product = (factors.transpose(0, 2, 1) @ workload_times_factor).reshape(shape)
    eigenvalues, vectors = scipy.linalg.eigh(
        product,
        driver="evd",
        overwrite_a=True,
        check_finite=False,
    )
    return np.sqrt(np.maximum(eigenvalues, 0.0)), vectors


def _best_gram(squared_workload: np.ndarray, factors: np.ndarray) -> np.ndarray:
    """Return X = L^-T (L^T M L)^(1/2) L^-1."""
    roots, vectors = _square_root(squared_workload, factors)
    back_substituted = _back_substituted(factors, vectors).reshape(vectors.shape)
    return (back_substituted * roots) @ back_substituted.T


def _back_substituted(factors: np.ndarray, vectors: np.ndarray) -> np.ndarray:
    """Return L^-T times the vectors, by blocks of rows, shape [b, k, n]."""
    separation, count, _ = factors.shape
    stacked = vectors.reshape(separation, count, -1)
    return np.linalg.solve(factors.transpose(0, 2, 1), stacked)


def _scaled(gram: np.ndarray, count: int, separation: int) -> np.ndarray:
    """Rescale X so that each block X_r becomes diagonal with trace 1: return S X S^T, with S block-diagonal.

    S_r = D_r X_r^(-1/2), and D_r^2 is the diagonal of X_r divided by its trace.
    """
    positions = np.arange(separation)
    by_block = gram.reshape(separation, count, separation, count)
    blocks = by_block[positions, :, positions, :]

    # X_r^(-1/2), by eigenvalues.
    eigenvalues, vectors = np.linalg.eigh(blocks)
    divided = vectors / np.sqrt(eigenvalues)[:, None, :]
    inverse_roots = divided @ vectors.transpose(0, 2, 1)

    # S_r: the roots of the diagonal have the root of the trace for their norm.
    diagonals = np.sqrt(np.einsum("rii->ri", blocks))
    norms = np.linalg.norm(diagonals, axis=1, keepdims=True)
    scaling = (diagonals / norms)[:, :, None] * inverse_roots

    # S X, then S (S X)^T, made symmetric to the last bit.
    shape = (separation, count, -1)
    scaled_rows = (scaling @ gram.reshape(shape)).reshape(gram.shape)
    scaled = (scaling @ scaled_rows.T.reshape(shape)).reshape(gram.shape)
    return (scaled + scaled.T) / 2.0


def _lower_factor(gram: np.ndarray) -> np.ndarray:
    """Return the lower-triangular C with C^T C = X: the Cholesky factor of X with its rows and columns reversed."""
    factor = np.linalg.cholesky(gram[::-1, ::-1])
    return np.tril(factor.T[::-1, ::-1])
