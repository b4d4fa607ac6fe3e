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
    "window_strides": ((2, 7, 6, 3), (3, 2, 3, 4), IMAGES, {"window_strides": (2, 3), "padding": "VALID"}),
    "negative padding": (
        (2, 7, 8, 3),
        (3, 2, 3, 4),
        IMAGES,
        {"window_strides": (2, 1), "padding": [(-1, 2), (3, -2)]},
    ),
    "channels first": (
        (2, 3, 7, 6),
        (4, 3, 3, 3),
        CHANNELS_FIRST,
        {"window_strides": (2, 1), "padding": [(1, 1), (0, 2)]},
    ),
    "dilated": (
        (2, 7, 8, 3),
        (3, 2, 3, 4),
        IMAGES,
        {"window_strides": (2, 2), "padding": "SAME", "rhs_dilation": (2, 3)},
    ),
    "transposed": ((2, 5, 4, 3), (3, 3, 3, 4), IMAGES, {"padding": [(1, 2), (2, 2)], "lhs_dilation": (2, 2)}),
    "strided and transposed": (
        (2, 5, 4, 3),
        (3, 3, 3, 4),
        IMAGES,
        {"window_strides": (2, 1), "padding": [(1, 2), (2, 2)], "lhs_dilation": (2, 3)},
    ),
    "groups": ((2, 4, 7, 6), (6, 2, 3, 3), CHANNELS_FIRST, {"window_strides": (2, 2), "feature_group_count": 2}),
    "depthwise": ((2, 7, 6, 4), (3, 3, 1, 8), IMAGES, {"feature_group_count": 4}),
    "one dimension": ((2, 9, 3), (3, 3, 4), ("NWC", "WIO", "NWC"), {"window_strides": (2,)}),
    "three dimensions": ((1, 4, 5, 3, 4), (2, 2, 3, 2, 2), ("NDHWC", "DHWIO", "NDHWC"), {"feature_group_count": 2}),
    "a long window": ((1, 200, 2), (150, 2, 3), ("NWC", "WIO", "NWC"), {"window_strides": (2,)}),
}


def convolution(layout, options):
    """A function of the operands."""
    ndim = len(layout[0]) - 2
    defaults = {"window_strides": (1,) * ndim, "padding": "SAME"}
    return functools.partial(lax.conv_general_dilated, dimension_numbers=layout, **(defaults | options))


def equation_of(function, *args):
    jaxpr = jax.make_jaxpr(function)(*args).jaxpr
    return next(eqn for eqn in jaxpr.eqns if eqn.primitive.name == "conv_general_dilated")


@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients_are_those_of_jax(name):
    """For every kind of convolution, with respect to both operands."""
    x_shape, kernel_shape, layout, options = CASES[name]
    rng = np.random.default_rng(0)
    x = rng.normal(size=x_shape).astype(np.float32)
    kernel = rng.normal(size=kernel_shape).astype(np.float32)
    plain = convolution(layout, options)
    equation = equation_of(plain, x, kernel)
    in_fast_layout = functools.partial(_convolution.convolve, _convolution.layout_of(equation))
    cotangent = rng.normal(size=equation.outvars[0].aval.shape).astype(np.float32)

    def with_gradients(convolve, x, kernel):
        value, pull = jax.vjp(convolve, x, kernel)
        return value, *pull(cotangent)

    @jax.jit
    def both_ways(x, kernel):
        return with_gradients(in_fast_layout, x, kernel), with_gradients(plain, x, kernel)

    for found, expected in zip(*both_ways(x, kernel), strict=True):
        assert found.dtype == expected.dtype
        size = np.abs(expected).max()
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5 * size)


def image_loss(params, x):
    """A strided convolution, a scan over kernels, and a loop with one kernel."""
    strided = convolution(IMAGES, {"window_strides": (2, 2)})
    same_size = convolution(IMAGES, {})

    def layer(h, kernel):
        return jnp.tanh(same_size(h, kernel)), None

    def layer_of_one_kernel(h, _):
        return layer(h, jnp.sin(params["formed"]))

    h = jnp.tanh(strided(x[None], params["first"]))
    h, _ = lax.scan(jax.checkpoint(layer), h, params["layers"])
    h, _ = lax.scan(layer_of_one_kernel, h, length=2)
    return jnp.sum(h**2)


def clipped(params, x):
    return gdpjax.clipped_grad(image_loss, 1.0, strategy="ghost")(params, x)


def clipped_by_definition(params, x):
    """The same sum from the gradients of all rows."""
    rows = jax.vmap(jax.grad(image_loss), (None, 0))(params, x)
    squares = 0
    for leaf in rows.values():
        squares += jnp.sum(leaf**2, axis=tuple(range(1, leaf.ndim)))
    factors = jnp.minimum(1, 1 / jnp.sqrt(squares))
    return jax.tree.map(lambda leaf: jnp.tensordot(factors, leaf, 1), rows)


def test_convolutions_in_loops_have_derivatives_of_every_order():
    """The clipped sum is differentiated forward and backward, and agrees with that of JAX alone."""

    def total(params, x, clip):
        return sum(jnp.sum(jnp.sin(leaf)) for leaf in clip(params, x).values())

    @jax.jit
    def both_ways(params, x):
        of_factors = functools.partial(total, x=x, clip=clipped)
        value, slope = jax.jvp(of_factors, (params,), (params,))
        return value, slope, jax.grad(of_factors)(params)

    with jax.enable_x64(True):
        rng = np.random.default_rng(0)
        shapes = {"first": (3, 3, 2, 3), "layers": (2, 3, 3, 3, 3), "formed": (2, 2, 3, 3)}
        params = {name: 0.3 * rng.normal(size=shape) for name, shape in shapes.items()}
        x = rng.normal(size=(3, 6, 6, 2))
        value, slope, gradient = both_ways(params, x)
        by_definition = functools.partial(total, clip=clipped_by_definition)
        expected, expected_gradient = jax.jit(jax.value_and_grad(by_definition))(params, x)

    np.testing.assert_allclose(value, expected, rtol=1e-9)
    for name in params:
        np.testing.assert_allclose(gradient[name], expected_gradient[name], rtol=1e-9, atol=1e-9)
    expected_slope = sum(np.vdot(params[name], expected_gradient[name]) for name in params)
    np.testing.assert_allclose(slope, expected_slope, rtol=1e-9, atol=1e-9)
