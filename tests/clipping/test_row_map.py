"""A row whose gradient overflows leaves what the other rows add as it is, in convolutions of every kind."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import gdpjax
from gdpjax.clipping._tracing import isolated_convolution

NUMBERS = ("NHWC", "HWIO", "NHWC")


def convolve(x, kernel, groups=1, batch_groups=1):
    return lax.conv_general_dilated(
        x,
        kernel,
        (1, 1),
        "SAME",
        dimension_numbers=NUMBERS,
        feature_group_count=groups,
        batch_group_count=batch_groups,
    )


def of_kernel(groups, kernel, x):
    return jnp.sum(convolve(x[None], kernel, groups) ** 4)


@jax.custom_vjp
def layer(kernel, x):
    return convolve(x[None], kernel, 4)


def layer_backward(saved, cotangent):
    kernel, x = saved
    (gradient,) = jax.vjp(lambda kernel: convolve(x[None], kernel, 4), kernel)[1](cotangent)
    return jnp.clip(gradient, -0.5, 0.5), jnp.zeros_like(x)


layer.defvjp(lambda kernel, x: (layer(kernel, x), (kernel, x)), layer_backward)


def in_a_derivative_rule(kernel, x):
    return jnp.sum(layer(kernel, x) ** 2)


def of_an_image(image, x):
    """The parameter is the image, and the data is the kernel."""
    return jnp.sum(convolve(image[None], x[:3, :3].reshape(3, 3, 2, 2), 2) ** 2)


def of_two_data(scale, x):
    """Both operands of the convolution come from the example, in a scan, a branch and a checkpoint."""

    kernel = x[:2, :4].reshape(2, 2, 2, 4) * scale

    @jax.checkpoint
    def step(y, _):
        return lax.cond(y[0, 0, 0, 0] < 1e30, lambda y: convolve(y, kernel, 2), lambda y: y, y), None

    y, _ = lax.scan(step, x[None], length=2)
    return jnp.sum(y**2)


def in_a_branch(params, x):
    """The example chooses the branch, so that vmap gives the kernel, which all examples share, an axis of rows."""
    scale, kernel = params[:4], params[4:].reshape(2, 1, 8)

    def branch(factor, x, kernel):
        numbers = ("NWC", "WIO", "NWC")
        return factor * lax.conv_general_dilated(x, kernel, (1,), "SAME", None, None, numbers, feature_group_count=4)

    y = lax.cond(x[0, 0, 0] > 0, functools.partial(branch, 1), functools.partial(branch, 2), x * scale, kernel)
    return jnp.sum(y**2)


def of_batch_groups(kernel, x):
    return jnp.sum(convolve(jnp.stack([x, 2 * x]), kernel, batch_groups=2) ** 2)


LOSSES = {
    "plain": (functools.partial(of_kernel, 1), (2, 2, 4, 4)),
    "grouped": (functools.partial(of_kernel, 4), (2, 2, 1, 8)),
    "in_a_derivative_rule": (in_a_derivative_rule, (2, 2, 1, 8)),
    "of_an_image": (of_an_image, (5, 5, 4)),
    "of_two_data": (of_two_data, (4,)),
    "in_a_branch": (in_a_branch, (20,)),
    "of_batch_groups": (of_batch_groups, (2, 2, 4, 4)),
}


DTYPES_LOSSES_STRATEGIES = [
    # Where rows reach each other if their convolutions are not isolated: not in every compiled program.
    (np.float32, "grouped", "vmap"),
    (np.float32, "in_a_derivative_rule", "microbatch"),
    (np.float64, "plain", "microbatch"),
    (np.float64, "of_an_image", "vmap"),
    (np.float64, "of_batch_groups", "microbatch"),
    (np.float64, "in_a_branch", "vmap"),
    # The strategy that is chosen by itself, and a convolution within other operations.
    (np.float32, "plain", "auto"),
    (np.float32, "of_batch_groups", "auto"),
    (np.float32, "of_two_data", "auto"),
    (np.float32, "of_two_data", "vmap"),
]


@pytest.mark.parametrize(("dtype", "name", "strategy"), DTYPES_LOSSES_STRATEGIES)
def test_a_row_that_overflows_is_dropped_alone(name, strategy, dtype):
    """A row that overflows changes nothing of what the other rows add, as an example and as padding."""
    loss, shape = LOSSES[name]
    rng = np.random.default_rng(0)
    with jax.enable_x64(dtype == np.float64):
        params = rng.normal(size=shape).astype(dtype)
        rows = rng.normal(size=(4, 5, 5, 4)).astype(dtype)
        spoiled = rows.copy()
        spoiled[2] = np.nan
        padding = np.array([False, False, True, False])

        # The row is an example in one call, and padding in the other.
        grad_fn = gdpjax.clipped_grad(loss, 1.0, strategy=strategy, return_info=True)
        compiled = jax.jit(grad_fn, compiler_options={"xla_backend_optimization_level": 0})
        expected, _ = compiled(params, rows, is_padding=padding)
        dropped, info = compiled(params, spoiled, is_padding=np.zeros(4, bool))
        ignored, _ = compiled(params, spoiled, is_padding=padding)
        np.testing.assert_array_equal(info.is_dropped, padding)
        np.testing.assert_allclose(dropped, expected, rtol=1e-6)
        np.testing.assert_allclose(ignored, expected, rtol=1e-6)
        assert np.linalg.norm(expected) > 0.5


def test_a_row_that_overflows_in_the_gradient_is_dropped_alone():
    """A finite row whose gradient overflows is dropped alone."""
    rng = np.random.default_rng(0)
    kernel = rng.normal(size=(3, 3, 1, 8)).astype(np.float32)
    rows = rng.normal(size=(6, 8, 8, 4)).astype(np.float32)
    rows[3] = 1e13
    loss = functools.partial(of_kernel, 4)
    grads = np.asarray(jax.jit(gdpjax.per_example_grad(loss))(kernel, rows))
    np.testing.assert_array_equal(np.isfinite(grads).all(axis=(1, 2, 3, 4)), np.arange(6) != 3)


@pytest.mark.parametrize(
    ("groups", "batch_groups", "stride", "dilations", "padding"),
    [
        (1, 1, 1, (1, 1), "SAME"),
        (2, 1, 2, (1, 2), ((1, 2), (0, 1))),
        (1, 2, 2, (1, 2), ((1, 1), (2, 0))),
        (3, 1, 1, (2, 1), ((1, -1), (0, 0))),
        (1, 3, 1, (1, 1), "VALID"),
    ],
)
def test_isolated_convolutions_agree_with_those_of_jax(groups, batch_groups, stride, dilations, padding):
    """Groups, strides, dilations and padding are those of the equation."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(6, 9, 8, 12)).astype(np.float32)
    kernel = rng.normal(size=(3, 2, 12 // groups, 12)).astype(np.float32)

    def of_jax(x, kernel):
        return lax.conv_general_dilated(
            x,
            kernel,
            (stride, stride),
            padding,
            lhs_dilation=(dilations[0],) * 2,
            rhs_dilation=(dilations[1],) * 2,
            dimension_numbers=NUMBERS,
            feature_group_count=groups,
            batch_group_count=batch_groups,
        )

    eqn = jax.make_jaxpr(of_jax)(x, kernel).eqns[-1]
    both_ways = jax.jit(lambda x, kernel: (isolated_convolution(eqn, x, kernel), of_jax(x, kernel)))
    isolated, plain = both_ways(x, kernel)
    np.testing.assert_allclose(isolated, plain, atol=2e-5)


def test_what_cannot_be_kept_apart_is_refused():
    """With what to do about it."""

    def loss(w, x):
        def matvec(v):
            return v + jnp.sum(convolve(x[None], jnp.broadcast_to(v, (1, 1, 4, 4))))

        return w * lax.custom_linear_solve(matvec, lax.stop_gradient(x[0, 0, 0]), lambda _, b: b)

    rows = np.ones((2, 3, 3, 4), np.float32)
    with pytest.raises(ValueError, match=r"inside custom_linear_solve, .* take the convolution out of it"):
        gdpjax.clipped_grad(loss, 1.0, strategy="vmap")(jnp.ones(()), rows)
