"""The strategies agree on every pattern: the same sums and norms as one gradient after the other."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gdpjax
from tests.clipping.patterns import PATTERNS, B, make


def run(name, dtype, **options):
    loss, params, rows = make(name, dtype)
    grad_fn = gdpjax.clipped_grad(
        loss, 1.0, batch_argnums=tuple(range(1, 1 + len(rows))), return_info=True, **options
    )  # fmt: skip
    padding = jnp.arange(B) == 3
    return jax.jit(lambda params, rows: grad_fn(params, *rows, is_padding=padding))(params, rows)


def assert_close(got, expected, tolerance):
    np.testing.assert_allclose(got[1].norms, expected[1].norms, rtol=tolerance)
    np.testing.assert_allclose(got[1].values, expected[1].values, rtol=tolerance)
    assert jax.tree.structure(got[0]) == jax.tree.structure(expected[0])
    for left, right in zip(jax.tree.leaves(got[0]), jax.tree.leaves(expected[0]), strict=True):
        assert left.dtype == right.dtype
        np.testing.assert_allclose(left, right, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", PATTERNS)
def test_taps_agree_with_formed_gradients(name):
    with jax.enable_x64(True):
        expected = run(name, jnp.float64, strategy="vmap")
        assert_close(run(name, jnp.float64, strategy="ghost"), expected, 1e-12)
        assert_close(run(name, jnp.float64, strategy="auto", microbatch_size=2), expected, 1e-12)
