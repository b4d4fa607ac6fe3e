"""The strategies agree on every pattern: the same sums and norms as one gradient after the other."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gdpjax
from tests.clipping import patterns_custom, patterns_derived  # noqa: F401 - their patterns
from tests.clipping.patterns import PATTERNS, B, make, with_slow_ones

SLOW = pytest.mark.slow
FAST = {"xla_backend_optimization_level": 0}
"""Compiling is nearly all the time that these tests take."""
PADDING = np.arange(B) == 3


def is_floating(leaf):
    return jnp.issubdtype(leaf.dtype, jnp.floating)


def compiled(function, *args):
    """Return the answer of a function, compiled as a whole."""
    return jax.jit(function, compiler_options=FAST)(*args)


def sum_and_gradients(name, dtype, **options):
    """The clipped sum and its info, and the gradient of each example by JAX alone: ((sum, info), gradients)."""
    loss, params, rows = make(name, dtype)
    batch_argnums = tuple(range(1, 1 + len(rows)))
    grad_fn = gdpjax.clipped_grad(loss, 1.0, batch_argnums=batch_argnums, return_info=True, **options)

    def gradient(params, rows):
        # Leaves of integers are no part of what is differentiated.
        return jax.grad(lambda params: loss(params, *rows), allow_int=True)(params)

    def both(params, rows):
        clipped_sum = grad_fn(params, *rows, is_padding=PADDING)
        return clipped_sum, jax.vmap(gradient, in_axes=(None, 0))(params, rows)

    return compiled(both, params, rows)


def assert_is_definition(name, dtype, tolerance, **options):
    """The norms and the sum are those of the gradients one after the other, each clipped to the lowered bound."""
    (clipped_sum, info), gradients = sum_and_gradients(name, dtype, **options)
    sums = [leaf for leaf in jax.tree.leaves(clipped_sum) if is_floating(leaf)]
    rows = [np.asarray(leaf, np.float64) for leaf in jax.tree.leaves(gradients) if is_floating(leaf)]
    squares = sum((leaf.reshape(B, -1) ** 2).sum(axis=1) for leaf in rows)
    norms = np.sqrt(squares) * ~PADDING
    np.testing.assert_allclose(info.norms, norms, rtol=tolerance)

    # The slack for rounding, by which the bound is lowered, is below the tolerance.
    factors = np.minimum(1, 1 / np.where(norms > 0, norms, 1)) * ~PADDING
    for found, gradient in zip(sums, rows, strict=True):
        assert found.dtype == jnp.promote_types(dtype, jnp.float32)
        expected = np.tensordot(factors, gradient, 1)
        np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)


RUN_BELOW = {"dense_layers", "merged_lora", "rules_in_scans_and_checkpoints"}
"""In float32 or in chunks, by default."""
NAMES = with_slow_ones(name for name in PATTERNS if name not in RUN_BELOW)
NAMES += [pytest.param(name, marks=SLOW) for name in sorted(RUN_BELOW)]


@pytest.mark.parametrize("name", NAMES)
def test_taps_give_the_definition(name):
    """Gradients that are held in factors have the sum and the norms of those that are formed."""
    with jax.enable_x64(True):
        assert_is_definition(name, jnp.float64, 1e-12, strategy="ghost")


CHUNKED = ["embedding", "convolution", "branch_on_data", "rules_in_scans_and_checkpoints"]


@pytest.mark.parametrize("name", CHUNKED)
def test_chunks_give_the_definition(name):
    """Also where a chunk of two rows is filled up."""
    with jax.enable_x64(True):
        assert_is_definition(name, jnp.float64, 1e-12, strategy="auto", microbatch_size=2)


PRECISIONS = [
    (jnp.float32, 1e-4),
    pytest.param(jnp.bfloat16, 3e-2, marks=SLOW),
    pytest.param(jnp.float16, 3e-3, marks=SLOW),
]


@pytest.mark.parametrize("name", ["l2_over_the_tree", "dense_layers", "merged_lora"])
@pytest.mark.parametrize(("dtype", "tolerance"), PRECISIONS)
def test_lower_precision(name, dtype, tolerance):
    """To the precision of the dtype."""
    assert_is_definition(name, dtype, tolerance, strategy="ghost")
