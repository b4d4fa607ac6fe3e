"""Figures of another implementation, and the optimisers beside them.

The losses are sensitivity^2 times the squared error of prefix sums, of jax_privacy's optimisers (8967688, float64);
the sensitivities of small cases are by brute force over all patterns.
"""

import numpy as np
import pytest

from gdpjax.correlated import (
    BandedInverse,
    BufferedToeplitz,
    FixedEpochs,
    MinSep,
    MomentumSGD,
    SingleParticipation,
    bisr,
    optimize_banded_inverse,
    optimize_banded_toeplitz,
    optimize_buffered_toeplitz,
    optimize_dense,
)

SINGLE = SingleParticipation()
NO_WORSE = 1 + 1e-3


def loss_of(strategy, num_steps, participation, error):
    return strategy.sensitivity(num_steps, participation) ** 2 * strategy.error(num_steps, error)


# (number of steps, bands, error, loss)
TOEPLITZ = [
    (16, 1, "mean", 8.5),
    (16, 1, "max", 16.0),
    (16, 4, "max", 5.936933717251725),
    (16, 8, "max", 4.465672490726437),
    (64, 4, "max", 18.92470523518312),
    (64, 8, "max", 11.72575368897956),
    (256, 2, "mean", 66.36218655315132),
    (256, 8, "max", 37.78357288429061),
    (256, 16, "mean", 13.23194332709246),
    (1000, 4, "max", 256.92294668474057),
    (1000, 32, "mean", 24.115187091644405),
    (2048, 4, "max", 520.7137811965523),
    (2048, 16, "max", 141.2074687404078),
]

# (steps, (participations, separation), bands, squared sensitivity, mean and max error of BISR, optimised loss)
INVERSE = [
    (64, (4, 16), 2, 5.333455404577156, 8.875, 16.75, 26.156470782923275),
    (64, (4, 16), 4, 6.606767524112627, 4.26776123046875, 7.34765625, 24.1769172965721),
    (64, (4, 16), 8, 8.787277540758346, 2.7807537503540516, 4.175591707229614, 23.94972293706843),
    (256, (8, 32), 4, 12.983233408596785, 13.645553588867188, 26.09765625, 87.66461037383756),
    (256, (8, 32), 8, 15.432535601838394, 7.002609913237393, 12.600320100784302, 84.89379871361338),
    (512, (8, 64), 2, 10.666666666666666, 64.875, 128.75, 135.382481317299),
    (2048, (8, 256), 2, 10.666666666666666, 256.875, 512.75, None),
    (1000, (10, 100), 2, 13.333333333333334, 125.875, 250.75, 232.52037151086475),
    (1000, (1000, 1), 8, 22536.712828325577, 23.327875183343888, 45.246142625808716, 505264.1225652496),
]


# (number of steps, participation, error, buffers, decay, scale, loss)
BUFFERED = [
    (
        1000,
        SINGLE,
        "max",
        [0.9989518465560219, 0.9782308989499152, 0.7415551943817767],
        [0.04487089939239248, 0.1211070145522085, 0.3107930246870812],
        10.692362457615383,
    ),
    (
        1000,
        MinSep(10, 100),
        "max",
        [0.9860718691674673, 0.6231442595883986],
        [0.23131855414241548, 0.2725380606304801],
        223.5914589173585,
    ),
    (
        1000,
        MinSep(10, 100),
        "mean",
        [0.9816634886431399, 0.5777682737719445],
        [0.25023503765357996, 0.25734545918340535],
        148.690016002684,
    ),
]

# (number of steps, epochs, mean error at sensitivity 1)
DENSE = [
    (16, 1, 2.854093634852262),
    (64, 1, 4.409448444858723),
    (128, 4, 23.083334292681478),
]


@pytest.mark.parametrize(("num_steps", "num_bands", "error", "reference"), TOEPLITZ)
def test_banded_toeplitz(num_steps, num_bands, error, reference):
    strategy = optimize_banded_toeplitz(num_steps, num_bands, error)
    assert np.linalg.norm(strategy.coefficients) == pytest.approx(1.0, rel=1e-12)
    assert np.all(np.diff(strategy.coefficients) <= 0)
    assert strategy.coefficients[-1] >= 0
    assert loss_of(strategy, num_steps, SINGLE, error) <= reference * NO_WORSE


@pytest.mark.parametrize(
    ("num_steps", "limits", "num_bands", "squared", "mean_error", "max_error", "reference"), INVERSE
)
def test_banded_inverse(num_steps, limits, num_bands, squared, mean_error, max_error, reference):
    participation = MinSep(*limits)
    closed = bisr(num_bands)
    assert closed.sensitivity(num_steps, participation) ** 2 == pytest.approx(squared, rel=1e-9)
    assert closed.error(num_steps) == pytest.approx(mean_error, rel=1e-12)
    assert closed.error(num_steps, "max") == pytest.approx(max_error, rel=1e-12)

    optimised = optimize_banded_inverse(num_steps, num_bands, participation)
    loss = loss_of(optimised, num_steps, participation, "mean")
    assert loss <= squared * mean_error * (1 + 1e-9)
    if reference is not None:
        assert loss <= reference * NO_WORSE


@pytest.mark.parametrize(("num_steps", "participation", "error", "decay", "scale", "reference"), BUFFERED)
def test_buffered_toeplitz(num_steps, participation, error, decay, scale, reference):
    theirs = BufferedToeplitz(decay, scale)
    assert loss_of(theirs, num_steps, participation, error) == pytest.approx(reference, rel=1e-9)
    same_memory = optimize_buffered_toeplitz(num_steps, participation, error, max_buffers=len(decay))
    assert loss_of(same_memory, num_steps, participation, error) <= reference * NO_WORSE
    more = optimize_buffered_toeplitz(num_steps, participation, error)
    assert loss_of(more, num_steps, participation, error) <= reference * NO_WORSE
    assert np.all(more.scale > 0)
    assert np.all(more.decay > 0)
    assert np.sum(more.scale) < 1


@pytest.mark.parametrize(("num_steps", "num_epochs", "reference"), DENSE)
def test_dense(num_steps, num_epochs, reference):
    strategy = optimize_dense(num_steps, num_epochs)
    assert strategy.sensitivity(num_steps, FixedEpochs(num_epochs)) == pytest.approx(1.0, rel=1e-10)
    assert strategy.error(num_steps) <= reference * NO_WORSE


def test_no_family_beats_the_dense_optimum():
    """For a single participation it is the least of all mean errors at sensitivity 1."""
    least = optimize_dense(64).error(64)
    others = [
        optimize_banded_toeplitz(64, 64),
        optimize_banded_inverse(64, 64, SINGLE),
        optimize_buffered_toeplitz(64, SINGLE, "mean"),
    ]
    for strategy in others:
        assert least <= loss_of(strategy, 64, SINGLE, "mean") <= 1.1 * least


def test_workloads_with_momentum_are_optimised_too():
    """Each optimiser improves on, or equals, what is best for prefix sums."""
    workload, participation = MomentumSGD(0.9, 0.01), MinSep(4, 25)

    def loss(strategy):
        return strategy.sensitivity(100, participation) ** 2 * strategy.error(100, workload=workload)

    inverse = optimize_banded_inverse(100, 4, participation, workload=workload)
    assert loss(inverse) < loss(optimize_banded_inverse(100, 4, participation)) * (1 - 1e-3)
    buffered = optimize_buffered_toeplitz(100, participation, "mean", workload=workload)
    assert loss(buffered) < loss(optimize_buffered_toeplitz(100, participation, "mean")) * (1 + 1e-9)
    banded = optimize_banded_toeplitz(100, 25, workload=workload)
    assert loss(banded) < loss(optimize_banded_toeplitz(100, 25)) * (1 - 1e-3)
    dense = optimize_dense(40, workload=workload)
    assert dense.error(40, workload=workload) < optimize_dense(40).error(40, workload=workload) * (1 - 1e-3)


@pytest.mark.parametrize("num_steps", [1, 2, 3])
def test_the_shortest_runs(num_steps):
    for strategy in (
        optimize_banded_toeplitz(num_steps, num_steps),
        optimize_banded_inverse(num_steps, num_steps, SINGLE, "max"),
        optimize_buffered_toeplitz(num_steps, SINGLE),
        optimize_dense(num_steps, num_steps),
        BandedInverse([1.0]),
    ):
        assert strategy.sensitivity(num_steps, SINGLE) > 0
        assert strategy.error(num_steps) > 0
