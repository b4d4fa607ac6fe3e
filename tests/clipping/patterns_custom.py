"""Patterns with derivative rules of their own.

The rules answer with something other than the derivative of what they compute (a factor, a rounding left out), so that
whoever differentiates the layer itself is found out.
"""

import jax
import jax.numpy as jnp
from jax import lax

from tests.clipping.patterns import batch, normal, pattern, tokens


def with_rule(forward, backward, **options):
    """A custom_vjp with forward(*inputs) and backward(inputs, cotangent)."""
    function = jax.custom_vjp(forward)
    function.defvjp(lambda *inputs: (forward(*inputs), inputs), backward, **options)
    return function


def product(w, x):
    return x @ w


def outer_backward(saved, g):
    w, x = saved
    return jnp.outer(x, 2 * g), w @ g


outer = with_rule(product, outer_backward)


@pattern
def rules_in_scans_and_checkpoints():
    params = {
        "s": normal(1, 4, 3, 3),
        "b": normal(2, 3),
        "c": normal(3, 3, 3),
        "v": normal(4, 3, 3),
    }

    def loss(p, x):
        @jax.checkpoint
        def layer(h, s):
            return jnp.tanh(outer(p["c"], outer(s, h)) + p["b"]), None

        @jax.checkpoint
        def last_layer(v, h):
            return jax.jit(outer)(v, jnp.sin(h))

        h, _ = lax.scan(layer, x, p["s"])
        return jnp.sum(last_layer(p["v"], h) ** 2)

    return loss, params, (batch(3),)


def layer_with_symbolic_zeros():
    """A product whose rule is told which inputs are not differentiated."""

    def forward(w, x):
        return x.value @ w.value, (w.value, x.value)

    def backward(saved, g):
        w, x = saved
        return jnp.outer(x, g), w @ g

    layer = jax.custom_vjp(product)
    layer.defvjp(forward, backward, symbolic_zeros=True)
    return layer


@pattern
def rules_that_are_left_to_jax():
    """Symbolic zeros, a side output of integers, something added, nothing at all, rounding, a convolution."""

    def counting_backward(saved, g):
        w, x = saved
        of_product, _ = g
        return jnp.outer(x, of_product), w @ of_product

    def decayed_backward(saved, g):
        w, x = saved
        return jnp.outer(x, g) + w, w @ g

    def coarse_backward(saved, g):
        w, x = saved
        return jnp.outer(x, g).astype(jnp.float16).astype(g.dtype), w @ g

    def silent_backward(saved, g):
        w, _x = saved
        return None, w @ g

    def convolve(k, x):
        return jnp.convolve(x, k)

    def convolve_backward(saved, g):
        _, pull = jax.vjp(convolve, *saved)
        return pull(2 * g)

    zeros = layer_with_symbolic_zeros()
    counting = with_rule(lambda w, x: (x @ w, jnp.argmax(x)), counting_backward)
    decayed = with_rule(product, decayed_backward)
    coarse = with_rule(product, coarse_backward)
    silent = with_rule(product, silent_backward)
    filtered = with_rule(convolve, convolve_backward)
    params = {name: normal(i, 3, 3) for i, name in enumerate("wvutr")}
    params["k"] = normal(9, 3)

    def loss(p, x):
        h, index = counting(p["v"], zeros(p["w"], x))
        h = silent(p["t"], decayed(p["u"], coarse(p["r"], jnp.tanh(h))))
        return jnp.sum(filtered(p["k"], h) ** 2) * index

    return loss, params, (batch(3),)


@pattern
def a_rule_with_keys_and_flags():
    def forward(w, x, key, keep):
        return jnp.where(keep, x, 0) @ w * jax.random.bernoulli(key, 0.7, (4,))

    def backward(saved, g):
        w, x, key, keep = saved
        g = 2 * g * jax.random.bernoulli(key, 0.7, (4,))
        return jnp.outer(jnp.where(keep, x, 0), g), w @ g, None, None

    dropped = with_rule(forward, backward)
    params = {"w": normal(1, 3, 4), "v": normal(2, 3)}

    def loss(p, x, t):
        y = dropped(p["w"], x * p["v"], jax.random.key(t), x > 0)
        return jnp.sum(y**2)

    return loss, params, (batch(3), tokens(0, 50))
