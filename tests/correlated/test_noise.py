"""The noise of the steps is C^-1 z, eager, under jit and vmap, with any memory, and continues from its state."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gdpjax.correlated import (
    BandedInverse,
    BandedToeplitz,
    BufferedToeplitz,
    Dense,
    SingleParticipation,
    bisr,
    lambda_cgd,
)
from tests.correlated.matrices import matrix_of, toeplitz
from tests.eight_devices import report_of

NUM_STEPS = 23
LIKE = {"w": jax.ShapeDtypeStruct((3, 2), jnp.float32), "b": jax.ShapeDtypeStruct((4,), jnp.bfloat16)}
DENSE = np.tril(np.random.default_rng(0).normal(size=(NUM_STEPS, NUM_STEPS)) * 0.1, -1) + np.eye(NUM_STEPS)
STRATEGIES = {
    "banded_toeplitz": BandedToeplitz([0.8, 0.5, 0.3]),
    "one_band": BandedToeplitz([2.0]),
    "regenerate": BandedInverse([1.0, -0.5, -0.2], memory="regenerate"),
    "buffer": BandedInverse([1.0, -0.5, -0.2], memory="buffer"),
    "one_draw": BandedInverse([0.5], memory="buffer"),
    "lambda_cgd": lambda_cgd(0.9),
    "bisr": bisr(9, 0.9, 0.01),
    "buffered": BufferedToeplitz([0.99, 0.5], [0.3, 0.2]),
    "dense": Dense(DENSE),
}


RANDOM = np.random.default_rng(1)
DRAWN = {
    "w": RANDOM.normal(size=(NUM_STEPS, 3, 2)).astype(np.float32),
    "b": RANDOM.normal(size=(NUM_STEPS, 4)).astype(np.float32),
}


def draw(step):
    """The draws of a step, from a table: random numbers would take the compiler longer than what is tested here."""
    return {name: jnp.asarray(drawn)[step] for name, drawn in DRAWN.items()}


def draws():
    return {name: drawn.astype(np.float64).reshape(NUM_STEPS, -1) for name, drawn in DRAWN.items()}


def run(strategy, wrap, num_steps):
    """The noise of some steps, {leaf: [num_steps, ...]}."""

    def advance(step, state):
        return strategy.next(step, draw, state)

    advance = wrap(advance)
    state, noises = strategy.init(LIKE), []
    for step in range(num_steps):
        noise, state = advance(np.int32(step), state)
        noises.append(noise)
    return jax.tree.map(lambda *leaves: np.stack(leaves), *noises)


@functools.cache
def compiled_run(name):
    """The noise of a whole run by a compiled step."""
    return run(STRATEGIES[name], jax.jit, NUM_STEPS)


def as_it_is(function):
    return function


@pytest.mark.parametrize(
    "make",
    [
        lambda: BandedToeplitz([1e-20]),
        lambda: BandedToeplitz([1.0, 1e16]),
        lambda: BandedInverse([2e-38, -1e-38]),
        lambda: BandedInverse([1e20]),
        lambda: Dense(np.eye(3) * 1e-30),
        lambda: Dense(np.diag([1.0, 1e30])),
        lambda: BufferedToeplitz([0.5], [1e30]),
    ],
)
def test_scales_that_float32_does_not_hold_are_refused(make):
    """Products below 1e-38 are flushed to zero, and a part of the coordinates would have no noise."""
    with pytest.raises(ValueError, match="A multiple of C is the same mechanism"):
        make()


@pytest.mark.parametrize("coefficients", [[-1.0, 0.5], [0.0, 0.5], [1e-30, 0.0], [jnp.nan, 0.0]])
@pytest.mark.parametrize("family", [BandedToeplitz, BandedInverse])
def test_traced_coefficients_that_are_wrong_have_no_sensitivity(family, coefficients):
    found = jax.jit(lambda values: family(values).sensitivity(5, SingleParticipation()))(jnp.array(coefficients))
    assert np.isnan(found)


@pytest.mark.parametrize("name", STRATEGIES)
def test_noise_is_the_inverse_matrix_times_the_draws(name):
    strategy = STRATEGIES[name]
    noise, drawn = compiled_run(name), draws()
    for leaf in ("w", "b"):
        truth = np.linalg.solve(matrix_of(strategy, NUM_STEPS), drawn[leaf])
        assert noise[leaf].dtype == np.float32
        np.testing.assert_allclose(noise[leaf].reshape(NUM_STEPS, -1), truth, atol=2e-6)


@pytest.mark.parametrize("name", ["banded_toeplitz", "regenerate", "buffer", "buffered", "dense"])
def test_eager_noise_is_that_of_jit(name):
    num_steps = 4
    eager, compiled = run(STRATEGIES[name], as_it_is, num_steps), compiled_run(name)
    for leaf in ("w", "b"):
        np.testing.assert_allclose(eager[leaf], compiled[leaf][:num_steps], atol=1e-6)


@pytest.mark.parametrize(
    "build",
    [
        lambda c: BandedToeplitz(jnp.array([1.0, 0.5, 0.2]) * c),
        lambda c: BandedInverse(jnp.array([1.0, -0.5, -0.2]) * c, memory="buffer"),
        lambda c: BufferedToeplitz(jnp.array([0.9, 0.5]) * c, jnp.array([0.3, 0.2]) * c),
        lambda c: Dense(jnp.asarray(DENSE, jnp.float32) * c),
    ],
    ids=["banded_toeplitz", "banded_inverse", "buffered", "dense"],
)
def test_traced_coefficients(build):
    def third_noise(factor):
        strategy = build(factor)
        state = strategy.init(LIKE)
        for step in range(3):
            noise, state = strategy.next(step, draw, state)
        return noise

    factors = np.float32([0.5, 1.0])
    swept, alone = jax.jit(jax.vmap(third_noise))(factors), jax.jit(third_noise)
    for row, factor in enumerate(factors):
        np.testing.assert_allclose(swept["w"][row], alone(factor)["w"], atol=2e-6)


def test_a_traced_matrix_has_the_noise_that_its_sensitivity_is_for():
    """Inverted in float32, a matrix whose noise grows 10^4 times would be another one."""
    matrix = np.float32(toeplitz(np.array([1.0, 1.9, 0.1]), 15))
    with jax.enable_x64(True):
        units = jnp.eye(len(matrix))
        row = jax.jit(lambda matrix, step: Dense(matrix).next(step, lambda past: units[past], ())[0])
        inverse = np.stack([row(matrix, step) for step in range(len(matrix))])
    np.testing.assert_allclose(inverse @ matrix.astype(float), np.eye(len(matrix)), atol=1e-9)


def test_steps_beyond_a_dense_matrix_show():
    noise, _ = Dense(np.eye(3)).next(3, draw, ())
    assert np.isnan(noise["w"]).all()


def test_a_mesh_has_the_noise_of_one_device_where_the_parameters_lie():
    """No array of a leaf's size goes between devices, for correlated noise as for independent noise."""
    reports = report_of("tests.correlated.on_a_mesh", "--xla_backend_optimization_level=0")
    assert len(reports) == 2
    for name, report in reports.items():
        assert report["difference"] <= 1e-6, name
        assert report["outputs_in_place"], name
        assert report["buffers_in_place"], name
        # An array that is gathered whole would have 1 or more.
        assert report["communicates"] < 0.05, name
        assert report["num_buffers"] == 2 * (name != "drawn_again"), name
