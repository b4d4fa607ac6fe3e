"""Constants of a loss that reach a derivative rule: arrays of JAX there, as they are without clipping."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gdpjax

TIMES = jnp.array([0.5, 2.0, 3.0])


def weighted(x, weights):
    """The sum of x times each weight, by a loop that indexes the weights with a traced number."""
    return jax.lax.fori_loop(0, 3, lambda i, total: total + x * weights[i], jnp.zeros_like(x))


@jax.custom_vjp
def by_vjp(x, weights):
    return weighted(x, weights)


def backward(weights, cotangent):
    return weighted(cotangent, weights), jnp.zeros_like(weights)


by_vjp.defvjp(lambda x, weights: (weighted(x, weights), weights), backward)


@jax.custom_jvp
def by_jvp(x, weights):
    return weighted(x, weights)


@by_jvp.defjvp
def derivative(primals, tangents):
    x, weights = primals
    return weighted(x, weights), weighted(tangents[0], weights)


@jax.custom_vjp
def scaled(x, scale):
    return x * scale


def scaled_backward(scale, cotangent):
    return cotangent * scale.at[()].set(3.0), jnp.zeros_like(scale)


scaled.defvjp(lambda x, scale: (x * scale, scale), scaled_backward)


def in_scan(w, x):
    def step(h, _):
        return by_vjp(w * h, jnp.array([0.1, 0.2, 0.3])), None

    return jax.lax.scan(step, x, length=2)[0]


LOSSES = {
    "vjp": lambda w, x: by_vjp(w * x, jnp.array([1.0, 2.0, 4.0])),
    "jvp": lambda w, x: by_jvp(w * x, jnp.array([1.0, 2.0, 4.0])),
    "closed over": lambda w, x: by_vjp(w * x, TIMES),
    "literal": lambda w, x: scaled(w * x, jnp.asarray(2.0)),
    "scan": in_scan,
}


@pytest.mark.parametrize("name", LOSSES)
def test_a_constant_that_reaches_a_rule_gives_the_sum_of_vmap(name):
    """Rules may do with it what they can do outside of clipping: index it with a traced number, or set its entries."""
    w = jnp.array([0.5, 1.5])
    rows = jnp.array([[1.0, 2.0], [3.0, -1.0]])

    def loss(w, x):
        return jnp.sum(jnp.sin(LOSSES[name](w, x)))

    @jax.jit
    def sums(w, rows):
        return [gdpjax.clipped_grad(loss, 1.0, strategy=strategy)(w, rows) for strategy in ("vmap", "auto")]

    by_vmap, found = sums(w, rows)
    np.testing.assert_allclose(found, by_vmap, rtol=1e-5, atol=1e-6)
