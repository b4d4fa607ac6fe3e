"""Errors, workloads, closed forms, and refusals."""

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
    optimize_banded_inverse,
    optimize_banded_toeplitz,
    optimize_buffered_toeplitz,
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
    num_steps = 20
    outputs = toeplitz(workload.coefficients(num_steps), num_steps) @ np.linalg.inv(matrix_of(strategy, num_steps))
    squared = (outputs**2).sum(axis=1)
    assert strategy.error(num_steps, workload=workload) == pytest.approx(squared.mean(), rel=1e-10)
    assert strategy.error(num_steps, "max", workload=workload) == pytest.approx(squared.max(), rel=1e-10)


def test_the_workload_of_momentum_is_what_sgd_does():
    """Heavy-ball SGD with weight decay, on gradients of one step each."""
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
    """Its square times the workload is 1."""
    root = bisr(40, momentum, decay).noising_coefficients
    square = np.convolve(root, root)[:40]
    one = np.convolve(square, MomentumSGD(momentum, decay).coefficients(40))[:40]
    np.testing.assert_allclose(one, np.eye(40)[0], atol=1e-12)


def test_lambda_cgd_is_independent_noise_at_zero():
    strategy = lambda_cgd(0.0)
    assert strategy.sensitivity(100, MinSep(4, 10)) == pytest.approx(2.0, rel=1e-12)
    assert strategy.error(100) == 50.5


def test_participations():
    assert SingleParticipation().limits(10) == (1, 10)
    assert MinSep(3, 4).limits(8) == (2, 4)
    assert MinSep(3, 4).limits(9) == (3, 4)
    assert FixedEpochs(3).limits(9) == (3, 3)
    assert MinSep(3, 4) == MinSep(3, 4)
    for participation in (SingleParticipation(), MinSep(3, 4), FixedEpochs(3)):
        assert participation.describe()


REFUSED = {
    "max_participations": lambda: MinSep(0, 3),
    "min_separation": lambda: MinSep(2, 1.5),
    "num_epochs": lambda: FixedEpochs("2"),
    "multiple of num_epochs": lambda: bisr(2).sensitivity(10, FixedEpochs(3)),
    "participation must be": lambda: bisr(2).sensitivity(10, (3, 4)),
    "coefficients must begin": lambda: BandedToeplitz([0.0, 1.0]),
    "coefficients must be": lambda: BandedToeplitz([1.0, np.nan]),
    "noising_coefficients must be": lambda: BandedInverse([[1.0]]),
    "noising_coefficients must have": lambda: BandedInverse([]),
    "memory": lambda: BandedInverse([1.0], memory="regenrate"),
    "decay must be": lambda: BufferedToeplitz([1.5], [0.1]),
    "one number each": lambda: BufferedToeplitz([0.5], [0.1, 0.2]),
    "square": lambda: Dense(np.ones((2, 3))),
    "lower-triangular": lambda: Dense(np.ones((2, 2))),
    "num_steps must be at most 2": lambda: Dense(np.eye(2)).error(3),
    "num_steps": lambda: bisr(2).error(0),
    "did you mean 'mean'": lambda: bisr(2).error(5, "meen"),
    "workload": lambda: bisr(2).error(5, workload="momentum"),
    "lam": lambda: lambda_cgd(1.5),
    "momentum": lambda: bisr(3, momentum=1.0),
    "weight_decay": lambda: MomentumSGD(0.5, -0.1),
    "num_bands": lambda: bisr(0),
    "num_bands must be": lambda: optimize_banded_toeplitz(4, 5),
    "num_bands ": lambda: optimize_banded_inverse(4, 5, SingleParticipation()),
    "max_buffers": lambda: optimize_buffered_toeplitz(4, SingleParticipation(), max_buffers=0),
    "error must be": lambda: optimize_buffered_toeplitz(4, SingleParticipation(), "least"),
    "multiple": lambda: optimize_dense(10, 3),
}


@pytest.mark.parametrize("message", REFUSED)
def test_wrong_arguments_are_refused_by_name(message):
    with pytest.raises(ValueError, match=message):
        REFUSED[message]()


@pytest.mark.parametrize("transform", [jax.jit, jax.vmap, lambda f: jax.jit(jax.vmap(f))])
def test_traced_coefficients_are_certified_on_the_host(transform):
    """As float32 numbers, rounded upwards; one program for a whole sweep."""
    participation = MinSep(3, 7)
    lams = jnp.array([0.0, 0.3, 0.9], jnp.float32)
    function = transform(lambda lam: lambda_cgd(lam).sensitivity(50, participation))
    swept = jnp.stack([function(lam) for lam in lams]) if transform is jax.jit else function(lams)
    for lam, value in zip(lams, swept, strict=True):
        known = lambda_cgd(float(lam)).sensitivity(50, participation)
        assert known <= float(value) <= known * (1 + 2e-7)
    matrix = jnp.eye(3) + jnp.tril(jnp.ones((3, 3)))
    known = Dense(matrix)
    assert float(jax.jit(lambda c: Dense(c).sensitivity(3, participation))(matrix)) >= known.sensitivity(
        3, participation
    )
    assert float(jax.jit(lambda c: Dense(c).error(3))(matrix)) == pytest.approx(known.error(3))


def test_several_strategies_in_one_are_refused():
    """What jax.vmap makes of a constructor is to be used under jax.vmap."""
    swept = jax.vmap(lambda_cgd)(jnp.array([0.1, 0.5, 0.9]))
    with pytest.raises(ValueError, match="noising_coefficients must be an array of numbers with 1 axes"):
        swept.sensitivity(10, SingleParticipation())
    with pytest.raises(ValueError, match=r"under jax\.vmap"):
        swept.next(0, lambda _: jnp.ones(2), ())
    each = jax.vmap(lambda strategy: strategy.sensitivity(10, SingleParticipation()))(swept)
    assert np.all(np.diff(each) > 0)


def test_wrong_traced_coefficients_show():
    """The exception of known ones is NaN."""
    explodes = jax.jit(lambda c: BandedInverse(jnp.stack([1.0, c])).sensitivity(1000, SingleParticipation()))
    assert np.isnan(explodes(-3.0))
    outside = jax.jit(lambda lam: lambda_cgd(lam).sensitivity(10, SingleParticipation()))
    assert np.isnan(outside(1.5))


def test_a_traced_lambda_outside_its_range_shows():
    noise = jax.jit(lambda lam: lambda_cgd(lam).next(0, lambda _: jnp.ones(2), ())[0])(jnp.float32(1.5))
    assert np.isnan(noise).all()
