"""The families of strategies have the errors of their matrices, and refuse wrong coefficients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gdpjax.correlated import (
    BandedInverse,
    BandedToeplitz,
    BufferedToeplitz,
    Dense,
    FixedEpochs,
    MinSep,
    MomentumSGD,
    PrefixSum,
    SingleParticipation,
    bisr,
    lambda_cgd,
    optimize_banded_toeplitz,
    optimize_dense,
)
from tests.correlated.matrices import matrix_of, toeplitz

STRATEGIES = [
    BandedToeplitz([0.8, 0.5, 0.3]),
    BandedInverse([2.0, -0.5, 0.2]),
    BufferedToeplitz([0.99, 0.5, 0.0], [0.3, -0.2, 0.1]),
    BufferedToeplitz([], []),
    Dense(np.tril(np.ones((30, 30))) + np.eye(30)),
]


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda s: type(s).__name__)
@pytest.mark.parametrize("workload", [PrefixSum(), MomentumSGD(0.9), MomentumSGD(0.5, 0.1)], ids=repr)
def test_errors_are_those_of_the_matrices(strategy, workload):
    """The mean and the largest error are those of the rows of A C^-1."""
    num_steps = 20
    workload_matrix = toeplitz(workload.coefficients(num_steps), num_steps)
    noising_matrix = np.linalg.inv(matrix_of(strategy, num_steps))
    outputs = workload_matrix @ noising_matrix
    squared = (outputs**2).sum(axis=1)
    assert strategy.error(num_steps, workload=workload) == pytest.approx(squared.mean(), rel=1e-10)
    assert strategy.error(num_steps, "max", workload=workload) == pytest.approx(squared.max(), rel=1e-10)


def test_the_workload_of_momentum_is_what_sgd_does():
    """The coefficients are the parameters of heavy-ball SGD with weight decay after a gradient in the first step."""
    num_steps, momentum, decay = 7, 0.9, 0.1
    column = []
    velocity = theta = 0.0
    for step in range(num_steps):
        velocity = momentum * velocity + (step == 0)
        theta = (1 - decay) * theta + velocity
        column.append(theta)
    np.testing.assert_allclose(MomentumSGD(momentum, decay).coefficients(num_steps), column)
    np.testing.assert_array_equal(MomentumSGD().coefficients(5), PrefixSum().coefficients(5))


@pytest.mark.parametrize(("momentum", "decay"), [(0.0, 0.0), (0.9, 0.0), (0.9, 0.01)])
def test_bisr_is_the_inverse_square_root(momentum, decay):
    """The square of the noising coefficients, as a power series, times the workload is 1."""
    num_steps = 40
    root = bisr(num_steps, momentum, decay).noising_coefficients
    square = np.convolve(root, root)[:num_steps]
    workload = MomentumSGD(momentum, decay).coefficients(num_steps)
    product = np.convolve(square, workload)[:num_steps]
    one = np.zeros(num_steps)
    one[0] = 1
    np.testing.assert_allclose(product, one, atol=1e-12)


def test_lambda_cgd_is_independent_noise_at_zero():
    """Without correlation the sensitivity is the root of the participations, and the error the mean of 1, ..., n."""
    strategy = lambda_cgd(0.0)
    assert strategy.sensitivity(100, MinSep(4, 10)) == pytest.approx(2.0, rel=1e-12)
    assert strategy.error(100) == 50.5


REFUSED = {
    "min_separation": lambda: MinSep(2, 1.5),
    "multiple of num_epochs": lambda: bisr(2).sensitivity(10, FixedEpochs(3)),
    "participation must be": lambda: bisr(2).sensitivity(10, (3, 4)),
    "coefficients must begin": lambda: BandedToeplitz([0.0, 1.0]),
    "coefficients must be": lambda: BandedToeplitz([1.0, np.nan]),
    "decay must be": lambda: BufferedToeplitz([1.5], [0.1]),
    "square": lambda: Dense(np.ones((2, 3))),
    "lower-triangular": lambda: Dense(np.ones((2, 2))),
    "did you mean 'mean'": lambda: bisr(2).error(5, "meen"),
    "lam": lambda: lambda_cgd(1.5),
    "momentum": lambda: bisr(3, momentum=1.0),
    "num_bands must be": lambda: optimize_banded_toeplitz(4, 5),
    "multiple": lambda: optimize_dense(10, 3),
}


@pytest.mark.parametrize("message", REFUSED)
def test_wrong_arguments_are_refused_by_name(message):
    """A wrong argument raises an error that names it."""
    with pytest.raises(ValueError, match=message):
        REFUSED[message]()


@pytest.mark.parametrize("transform", [jax.jit, jax.vmap, lambda f: jax.jit(jax.vmap(f))])
def test_traced_coefficients_are_certified_on_the_host(transform):
    """The sensitivities of a sweep are float32 numbers, rounded upwards, of one program."""
    participation = MinSep(3, 7)
    lams = jnp.array([0.0, 0.3, 0.9], jnp.float32)
    sensitivity_of = transform(lambda lam: lambda_cgd(lam).sensitivity(50, participation))
    takes_one = transform is jax.jit
    swept = jnp.stack([sensitivity_of(lam) for lam in lams]) if takes_one else sensitivity_of(lams)
    for lam, traced in zip(lams, swept, strict=True):
        known = lambda_cgd(float(lam)).sensitivity(50, participation)
        assert known <= float(traced) <= known * (1 + 2e-7)

    # A matrix may be traced as well.
    matrix = jnp.eye(3) + jnp.tril(jnp.ones((3, 3)))
    known = Dense(matrix)
    traced_sensitivity = jax.jit(lambda c: Dense(c).sensitivity(3, participation))(matrix)
    assert float(traced_sensitivity) >= known.sensitivity(3, participation)
    traced_error = jax.jit(lambda c: Dense(c).error(3))(matrix)
    assert float(traced_error) == pytest.approx(known.error(3))


def test_known_coefficients_beside_traced_ones_are_not_rounded():
    """A decay that float32 rounds down would lower the sensitivity by 3e-4, while the noise has the decay as it is."""
    decay = np.array([1 - 2**-14 + 2**-25.2])
    participation = MinSep(20, 5000)

    def sensitivity(scale):
        return BufferedToeplitz(decay, scale).sensitivity(100_000, participation)

    known = sensitivity(np.array([0.5]))
    assert known <= float(jax.jit(sensitivity)(jnp.array([0.5]))) <= known * (1 + 2e-7)


@pytest.mark.parametrize("family", [BandedToeplitz, lambda c: Dense(jnp.tril(jnp.outer(c, jnp.ones(2, c.dtype))))])
def test_noise_of_coefficients_in_half_precision_is_that_of_the_same_numbers(family):
    """Computed in bfloat16, the inverse of the first coefficient would be 3e-4 too small, and all noise with it."""

    def first_noise(coefficients):
        strategy = family(coefficients)
        return strategy.next(0, lambda _: jnp.ones(1), strategy.init(jnp.zeros(1)))[0]

    coefficients = jnp.array([0.7, 0.3], jnp.bfloat16)
    expected = 1 / np.float32(coefficients[0])
    np.testing.assert_allclose(jax.jit(first_noise)(coefficients), expected, rtol=1e-6)


def test_several_strategies_in_one_are_refused():
    """Strategies that jax.vmap made together are used under jax.vmap only."""
    swept = jax.vmap(lambda_cgd)(jnp.array([0.1, 0.5, 0.9]))
    with pytest.raises(ValueError, match="noising_coefficients must be an array of numbers with 1 axes"):
        swept.sensitivity(10, SingleParticipation())
    with pytest.raises(ValueError, match=r"under jax\.vmap"):
        swept.next(0, lambda _: jnp.ones(2), ())
    each = jax.vmap(lambda strategy: strategy.sensitivity(10, SingleParticipation()))(swept)
    assert np.all(np.diff(each) > 0)


def test_wrong_traced_coefficients_show():
    """Traced coefficients for which known ones raise an error give NaN."""

    @jax.jit
    def sensitivity_of_inverse(coefficient):
        strategy = BandedInverse(jnp.stack([1.0, coefficient]))
        return strategy.sensitivity(1000, SingleParticipation())

    # The coefficients of the inverse grow beyond all numbers.
    assert np.isnan(sensitivity_of_inverse(-3.0))

    @jax.jit
    def sensitivity_of_cgd(lam):
        return lambda_cgd(lam).sensitivity(10, SingleParticipation())

    assert np.isnan(sensitivity_of_cgd(1.5))
