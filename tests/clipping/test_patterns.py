"""The strategies agree on every pattern: the same sums and norms as one gradient after the other."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gdpjax
from gdpjax.clipping._rounding_budget import rounding_budget
from tests.clipping.patterns import PATTERNS, B, make, with_slow_ones
from tests.clipping.patterns_shared import METHODS

FAST = {"xla_backend_optimization_level": 0}
"""Compiling is nearly all the time that these tests take."""


@functools.cache
def gradients(name, dtype):
    """Per-example gradients by JAX alone, as float64 matrices [B, d] in one array, and the parts of the leaves."""
    loss, params, rows = make(name, dtype)
    floating, merge = split(params)

    def each(floating, rows):
        return jax.grad(lambda f: loss(merge(f), *rows))(floating)

    found = compiled(jax.vmap(each, in_axes=(None, 0)), floating, rows)
    return [np.asarray(leaf, np.float64) for leaf in found], floating


def split(params):
    leaves, structure = jax.tree.flatten(params)
    which = [jnp.issubdtype(leaf.dtype, jnp.floating) for leaf in leaves]

    def merge(floating):
        values = iter(floating)
        return jax.tree.unflatten(
            structure,
            [next(values) if w else x for w, x in zip(which, leaves, strict=True)],
        )

    return [leaf for leaf, w in zip(leaves, which, strict=True) if w], merge


def compiled(function, *args):
    return jax.jit(function, compiler_options=FAST)(*args)


def run(name, dtype, **options):
    loss, params, rows = make(name, dtype)
    grad_fn = gdpjax.clipped_grad(
        loss,
        1.0,
        batch_argnums=tuple(range(1, 1 + len(rows))),
        return_info=True,
        **options,
    )
    return compiled(lambda params, rows: grad_fn(params, *rows, is_padding=PADDING), params, rows)


SLOW = pytest.mark.slow
PADDING = np.arange(B) == 3


def assert_is_definition(name, dtype, tolerance, **options):
    found, info = run(name, dtype, **options)
    rows, leaves = gradients(name, dtype)
    norms = np.sqrt(sum((g.reshape(B, -1) ** 2).sum(1) for g in rows)) * ~PADDING
    np.testing.assert_allclose(info.norms, norms, rtol=tolerance)
    bound = 1 / (1 + rounding_budget([leaf for leaf in leaves if leaf.size], B).slack)
    factor = np.minimum(1, bound / np.where(norms > 0, norms, 1)) * ~PADDING
    got = [leaf for leaf in jax.tree.leaves(found) if jnp.issubdtype(leaf.dtype, jnp.floating)]
    for left, gradient in zip(got, rows, strict=True):
        assert left.dtype == jnp.promote_types(dtype, jnp.float32)
        np.testing.assert_allclose(left, np.tensordot(factor, gradient, 1), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", with_slow_ones(PATTERNS))
def test_taps_give_the_definition(name):
    with jax.enable_x64(True):
        assert_is_definition(name, jnp.float64, 1e-12, strategy="ghost")


CHUNKED = [
    "embedding",
    "convolution",
    "branch_on_data",
    "rules_in_scans_and_checkpoints",
    # Chunks are cut before any of this is looked at.
    pytest.param("recurrent", marks=SLOW),
    pytest.param("layers_by_scan", marks=SLOW),
    pytest.param("merged_lora", marks=SLOW),
]


@pytest.mark.parametrize("name", CHUNKED)
def test_chunks_give_the_definition(name):
    with jax.enable_x64(True):
        assert_is_definition(name, jnp.float64, 1e-12, strategy="auto", microbatch_size=2)


LOW = [
    "l2_over_the_tree",
    "dense_layers",
    "merged_lora",
    "rule_with_casts_and_scales",
    # The terms of these three cancel as those of l2_over_the_tree do.
    pytest.param("embedding_with_l2", marks=SLOW),
    pytest.param("linen_weight_norm", marks=SLOW),
    pytest.param("weight_norm_and_l2", marks=SLOW),
    # Their chunks are compared in float64 above.
    pytest.param("embedding", marks=SLOW),
    pytest.param("convolution", marks=SLOW),
    pytest.param("recurrent", marks=SLOW),
]
PRECISIONS = [
    (jnp.float32, 1e-5),
    pytest.param(jnp.bfloat16, 3e-2, marks=SLOW),
    pytest.param(jnp.float16, 3e-3, marks=SLOW),
]


@pytest.mark.parametrize("name", LOW)
@pytest.mark.parametrize(("dtype", "tolerance"), PRECISIONS)
def test_lower_precision(name, dtype, tolerance):
    assert_is_definition(name, dtype, tolerance, strategy="ghost")


def test_a_written_out_loop_is_a_loop_under_vmap_and_grad():
    """Chunks of a convolution are written out on a CPU, one after the other; a sweep still shares the rows."""
    loss, params, rows = make("convolution", jnp.float32)

    def total(bound, **options):
        return jnp.sum(gdpjax.clipped_grad(loss, bound, **options)(params, *rows)["k"])

    bounds = jnp.array([0.1, 1.0])
    chunks = {"microbatch_size": 2}
    whole = {"strategy": "vmap"}

    def both(options):
        return jax.vmap(jax.value_and_grad(lambda c: total(c, **options)))(bounds)

    for got, expected in zip(compiled(lambda: both(chunks)), compiled(lambda: both(whole)), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-5)


@pytest.mark.parametrize("name", ["rule_with_bias", pytest.param("surrogate_gradient", marks=SLOW)])
def test_derivatives_of_the_sum_follow_the_rules_too(name):
    assert METHODS[name]["v"] == "outer product"
    with jax.enable_x64(True):
        loss, params, rows = make(name, jnp.float64)

        def total(params, **options):
            clipped = gdpjax.clipped_grad(loss, 1.0, **options)(params, *rows)
            return sum(jnp.sum(jnp.sin(leaf)) for leaf in jax.tree.leaves(clipped))

        def both(params, **options):
            of = functools.partial(total, **options)
            return jax.grad(of)(params), jax.jvp(of, (params,), (params,))

        got, expected = (compiled(lambda p, s=s: both(p, strategy=s), params) for s in ("ghost", "vmap"))
        for left, right in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
            np.testing.assert_allclose(left, right, rtol=1e-10, atol=1e-10)
