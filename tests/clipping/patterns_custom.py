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


def dense_backward(saved, g):
    w, _b, x = saved
    return 1.5 * x.T @ g, g.sum(0), g @ w.T


def outer_backward(saved, g):
    w, x = saved
    return jnp.outer(x, 2 * g), w @ g


def rounded_to_quarters(w):
    return jnp.round(4 * w) / 4


dense = with_rule(lambda w, b, x: x @ rounded_to_quarters(w) + b, dense_backward)
outer = with_rule(product, outer_backward)
straight = with_rule(rounded_to_quarters, lambda saved, g: (g,))


def three(*shape):
    """A weight, a bias and a second weight of a network."""
    return {
        "w": normal(1, *shape),
        "b": normal(2, shape[-1]),
        "v": normal(3, shape[-1], 2),
    }


@pattern
def rule_with_bias():
    def loss(p, x):
        hidden = jnp.tanh(dense(p["w"], p["b"], x[None]))[0]
        return jnp.sum(hidden @ p["v"])

    return loss, three(3, 4), (batch(3),)


@pattern
def straight_through_weights():
    """In a layer, in a scan over layers, and in a loop with one weight."""
    params = {"w": normal(1, 3, 4), "s": normal(2, 3, 4, 4), "r": normal(3, 4, 4)}

    def loss(p, x):
        def layer(h, s):
            return jnp.tanh(h @ (2 * straight(s).T)), None

        def layer_of_one_weight(h, _):
            return jnp.tanh(h @ straight(p["r"])), None

        h = jnp.tanh(x @ straight(p["w"]))
        h, _ = lax.scan(layer, h, p["s"])
        h, _ = lax.scan(layer_of_one_weight, h, length=2)
        return jnp.sum(h)

    return loss, params, (batch(3),)


@pattern
def straight_through_by_stop_gradient():
    params = {"w": normal(1, 3, 4), "d": normal(2, 4, 2)}

    def loss(p, x):
        rounding = lax.stop_gradient(rounded_to_quarters(p["w"]) - p["w"])
        scale = lax.stop_gradient(1 + jnp.sum(p["d"] ** 2))
        return jnp.sum(jnp.tanh(x @ (p["w"] + rounding)) @ p["d"]) * scale

    return loss, params, (batch(3),)


@pattern
def surrogate_gradient():
    @jax.custom_jvp
    def spikes(w, x):
        return jnp.sign(x @ w)

    @spikes.defjvp
    def _(primals, tangents):
        w, x = primals
        dw, dx = tangents
        return spikes(w, x), (x @ dw + dx @ w) / (1 + (x @ w) ** 2)

    params = {"w": normal(1, 3, 4), "v": normal(2, 4, 4)}

    def loss(p, x):
        hidden = jnp.sin(spikes(p["w"], x[:3]))
        return jnp.sum(spikes(p["v"], x + hidden) * x)

    return loss, params, (batch(4),)


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


@pattern
def rules_under_vmap_and_cond():
    params = {"w": normal(1, 3, 4), "a": normal(2, 4, 2), "c": normal(3, 4, 2)}

    def loss(p, x):
        def first(h):
            return outer(p["a"], jnp.tanh(h))

        def second(h):
            return outer(p["c"], h) + jnp.sin(outer(p["c"], h))

        h = jax.vmap(outer, (None, 0))(p["w"], x).sum(0)
        return jnp.sum(lax.cond(x[0, 0] > 0, first, second, h))

    return loss, params, (batch(6, 3),)


@pattern
def rules_with_options():
    """A static argument, rematerialisation, and an array that the rule closes over."""
    mask = jnp.array([0.5, 1.0, 2.0])

    def power_of(power, w, x):
        return (x @ w) ** power

    def power_forward(power, w, x):
        return static(power, w, x), (w, x)

    def power_backward(power, saved, g):
        w, x = saved
        return power * jnp.outer(x, g), g @ w.T

    def sine(w, x):
        return jnp.sin(x @ w)

    def sine_forward(w, x):
        return jnp.sin(x @ w), (w, x, jnp.cos(x @ w))

    def sine_backward(saved, g):
        w, x, slope = saved
        return jnp.outer(x, g * slope), w @ (g * slope)

    def product_and_first(w, x):
        return x @ w, x[0]

    def masked_backward(saved, g):
        _w, x = saved
        of_product, of_first = g
        return jnp.outer(x, mask * of_product + of_first), None

    static = jax.custom_vjp(power_of, nondiff_argnums=(0,))
    static.defvjp(power_forward, power_backward)
    rematerialised = jax.custom_vjp(sine)
    rematerialised.defvjp(sine_forward, sine_backward, optimize_remat=True)
    two = with_rule(product_and_first, masked_backward)
    params = {"w": normal(1, 3, 3), "v": normal(2, 3, 3), "r": normal(3, 3, 3)}

    def loss(p, x):
        y, first = two(p["v"], static(2, p["w"], x))
        return jnp.sum(rematerialised(p["r"], y * first))

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
