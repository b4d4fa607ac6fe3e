"""Convolutions in the fast layout are those of JAX, and so are their derivatives."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import gdpjax
from gdpjax.clipping._tracing.primitives import _fast_convolution as _convolution

IMAGES = ("NHWC", "HWIO", "NHWC")
CHANNELS_FIRST = ("NCHW", "OIHW", "NCHW")

CASES = {
    "stride one": ((2, 7, 6, 3), (3, 2, 3, 4), IMAGES, {"padding": "SAME"}),
    "strides": (
        (2, 7, 6, 3),
        (3, 2, 3, 4),
        IMAGES,
        {"strides": (2, 3), "padding": "VALID"},
    ),
    "negative padding": (
        (2, 7, 8, 3),
        (3, 2, 3, 4),
        IMAGES,
        {"strides": (2, 1), "padding": [(-1, 2), (3, -2)]},
    ),
    "channels first": (
        (2, 3, 7, 6),
        (4, 3, 3, 3),
        CHANNELS_FIRST,
        {"strides": (2, 1), "padding": [(1, 1), (0, 2)]},
    ),
    "dilated": (
        (2, 7, 8, 3),
        (3, 2, 3, 4),
        IMAGES,
        {"strides": (2, 2), "padding": "SAME", "rhs_dilation": (2, 3)},
    ),
    "transposed": (
        (2, 5, 4, 3),
        (3, 3, 3, 4),
        IMAGES,
        {"padding": [(1, 2), (2, 2)], "lhs_dilation": (2, 2)},
    ),
    "strided and transposed": (
        (2, 5, 4, 3),
        (3, 3, 3, 4),
        IMAGES,
        {"strides": (2, 1), "padding": [(1, 2), (2, 2)], "lhs_dilation": (2, 3)},
    ),
    "groups": (
        (2, 4, 7, 6),
        (6, 2, 3, 3),
        CHANNELS_FIRST,
        {"strides": (2, 2), "feature_group_count": 2},
    ),
    "depthwise": ((2, 7, 6, 4), (3, 3, 1, 8), IMAGES, {"feature_group_count": 4}),
    "one dimension": ((2, 9, 3), (3, 3, 4), ("NWC", "WIO", "NWC"), {"strides": (2,)}),
    "three dimensions": (
        (1, 4, 5, 3, 4),
        (2, 2, 3, 2, 2),
        ("NDHWC", "DHWIO", "NDHWC"),
        {"feature_group_count": 2},
    ),
    "a long window": (
        (1, 200, 2),
        (150, 2, 3),
        ("NWC", "WIO", "NWC"),
        {"strides": (2,)},
    ),
}


def convolution(layout, options):
    options = dict(options)
    ndim = len(layout[0]) - 2
    strides = options.pop("strides", (1,) * ndim)
    padding = options.pop("padding", "SAME")
    return lambda x, k: lax.conv_general_dilated(x, k, strides, padding, dimension_numbers=layout, **options)


def equation_of(function, *args):
    jaxpr = jax.make_jaxpr(function)(*args).jaxpr
    return next(eqn for eqn in jaxpr.eqns if eqn.primitive.name == "conv_general_dilated")


@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients_are_those_of_jax(name):
    x_shape, kernel_shape, layout, options = CASES[name]
    rng = np.random.default_rng(0)
    x, kernel = (rng.normal(size=shape).astype(np.float32) for shape in (x_shape, kernel_shape))
    plain = convolution(layout, options)
    equation = equation_of(plain, x, kernel)
    cotangent = rng.normal(size=equation.outvars[0].aval.shape).astype(np.float32)

    def with_gradients(convolve, x, kernel):
        value, pull = jax.vjp(convolve, x, kernel)
        return value, *pull(cotangent)

    @jax.jit
    def both_ways(x, kernel):
        in_fast_layout = functools.partial(_convolution.convolve, equation)
        return with_gradients(in_fast_layout, x, kernel), with_gradients(plain, x, kernel)

    for found, expected in zip(*both_ways(x, kernel), strict=True):
        assert found.dtype == expected.dtype
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5 * np.abs(expected).max())


def test_half_precision_is_added_up_in_single_precision():
    x = jnp.ones((1, 40, 40, 1), jnp.bfloat16)
    kernel = jnp.ones((1, 1, 1, 1), jnp.bfloat16)
    equation = equation_of(convolution(IMAGES, {}), x, kernel)
    layout = _convolution.layout_of(equation)
    assert _convolution.patches_times(layout, (1, 1), x, x).item() == 1600


def image_loss(params, x):
    def layer(h, kernel):
        return jnp.tanh(convolution(IMAGES, {})(h, kernel)), None

    h = jnp.tanh(convolution(IMAGES, {"strides": (2, 2)})(x[None], params["first"]))
    h, _ = lax.scan(jax.checkpoint(layer), h, params["layers"])
    h, _ = lax.scan(lambda h, _: layer(h, jnp.sin(params["formed"])), h, length=2)
    return jnp.sum(h**2)


def test_convolutions_in_loops_have_derivatives_of_every_order():
    with jax.enable_x64(True):
        rng = np.random.default_rng(0)
        shapes = {
            "first": (3, 3, 2, 3),
            "layers": (2, 3, 3, 3, 3),
            "formed": (2, 2, 3, 3),
        }
        params = {name: 0.3 * rng.normal(size=shape) for name, shape in shapes.items()}
        x = rng.normal(size=(3, 6, 6, 2))

        def clipped(params):
            return gdpjax.clipped_grad(image_loss, 1.0, strategy="ghost")(params, x)

        def by_definition(params):
            rows = jax.vmap(jax.grad(image_loss), (None, 0))(params, x)
            squares = sum(jnp.sum(leaf**2, axis=tuple(range(1, leaf.ndim))) for leaf in rows.values())
            factors = jnp.minimum(1, 1 / jnp.sqrt(squares))
            return jax.tree.map(lambda leaf: jnp.tensordot(factors, leaf, 1), rows)

        def all_of_it(clip, params):
            def total(params):
                return sum(jnp.sum(jnp.sin(leaf)) for leaf in jax.tree.leaves(clip(params)))

            value, slope = jax.jvp(total, (params,), (params,))
            return value, slope, jax.grad(total)(params)

        got, expected = (jax.jit(functools.partial(all_of_it, clip))(params) for clip in (clipped, by_definition))
        for left, right in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
            np.testing.assert_allclose(left, right, rtol=1e-9, atol=1e-9)
