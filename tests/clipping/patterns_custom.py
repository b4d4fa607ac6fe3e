"""Patterns with derivative rules of their own; `METHODS` says how each of their gradients is held.

The rules answer with something other than the derivative of what they compute (a factor, a rounding left out), so that
whoever differentiates the layer itself is found out.
"""

import functools

import jax
import jax.numpy as jnp
from jax import lax

from tests.clipping.patterns import batch, normal, pattern, tokens

METHODS = {}
OUTER = "outer product"
ROWS = "table rows"
FORMED = "formed"


def held(**methods):
    """A pattern whose gradients are held like this under the strategy "ghost"."""

    def register(function):
        METHODS[function.__name__] = methods
        return pattern(function)

    return register


def with_rule(forward, backward, **options):
    """A custom_vjp with forward(*inputs) and backward(inputs, cotangent)."""
    function = jax.custom_vjp(forward)
    function.defvjp(lambda *inputs: (forward(*inputs), inputs), backward, **options)
    return function


dense = with_rule(
    lambda w, b, x: x @ jnp.round(4 * w) / 4 + b,
    lambda saved, g: (1.5 * saved[2].T @ g, g.sum(0), g @ saved[0].T),
)
outer = with_rule(lambda w, x: x @ w, lambda saved, g: (jnp.outer(saved[1], 2 * g), saved[0] @ g))
straight = with_rule(lambda w: jnp.round(4 * w) / 4, lambda saved, g: (g,))


def three(*shape):
    return {
        "w": normal(1, *shape),
        "b": normal(2, shape[-1]),
        "v": normal(3, shape[-1], 2),
    }


@held(w=OUTER, b=FORMED, v=OUTER)
def rule_with_bias():
    def loss(p, x):
        return jnp.sum(jnp.tanh(dense(p["w"], p["b"], x[None]))[0] @ p["v"])

    return loss, three(3, 4), (batch(3),)


@held(w=FORMED, b=FORMED, v=FORMED)
def rule_on_a_sequence():
    def loss(p, x):
        return jnp.sum(jnp.tanh(dense(p["w"], p["b"], x)) @ p["v"])

    return loss, three(3, 4), (batch(6, 3),)


@held(w=OUTER, v=OUTER)
def rule_with_casts_and_scales():
    def backward(saved, g):
        w, x = saved
        scale = 1 / (1 + jnp.sum(x**2))

        def wide(v):
            return v.astype(jnp.promote_types(v.dtype, jnp.float32))

        by_output = wide(g)[:, None] * wide(jnp.round(4 * x)) / 3
        by_input = jnp.squeeze(by_output[None].T, 2).reshape(3, 1, 4)[:, 0] * scale
        return -by_input.astype(w.dtype), w @ g

    layer = with_rule(lambda w, x: x @ w, backward)
    params = {"w": normal(1, 3, 4), "v": normal(3, 4, 2)}

    def loss(p, x):
        return jnp.sum(jnp.tanh(layer(p["w"].T.T, x)) @ p["v"])

    return loss, params, (batch(3),)


@held(w=OUTER, s=OUTER, r=FORMED)
def straight_through_weights():
    params = {"w": normal(1, 3, 4), "s": normal(2, 3, 4, 4), "r": normal(3, 4, 4)}

    def loss(p, x):
        h = jnp.tanh(x @ straight(p["w"]))
        h = lax.scan(lambda h, s: (jnp.tanh(h @ (2 * straight(s).T)), None), h, p["s"])[0]
        return jnp.sum(lax.scan(lambda h, _: (jnp.tanh(h @ straight(p["r"])), None), h, length=2)[0])

    return loss, params, (batch(3),)


@held(e=ROWS, k=FORMED, m=FORMED)
def straight_through_others():
    """A table, a kernel, and an estimator that masks."""
    masked = with_rule(
        lambda w: jnp.round(w),
        lambda saved, g: (jnp.where(jnp.abs(saved[0]) < 0.5, g, 0),),
    )
    params = {"e": normal(1, 7, 3), "k": normal(2, 2, 3, 4), "m": normal(3, 4, 4)}

    def loss(p, t):
        x = straight(p["e"])[t]
        y = lax.conv_general_dilated(
            x[None],
            straight(p["k"]),
            (1,),
            "SAME",
            dimension_numbers=("NWC", "WIO", "NWC"),
        )
        return jnp.sum(jnp.tanh(jnp.tanh(y[0].mean(0)) @ masked(p["m"])))

    return loss, params, (tokens(5, 7),)


@held(w=OUTER, d=OUTER)
def straight_through_by_stop_gradient():
    params = {"w": normal(1, 3, 4), "d": normal(2, 4, 2)}

    def loss(p, x):
        quantised = p["w"] + lax.stop_gradient(jnp.round(4 * p["w"]) / 4 - p["w"])
        return jnp.sum(jnp.tanh(x @ quantised) @ p["d"]) * lax.stop_gradient(1 + jnp.sum(p["d"] ** 2))

    return loss, params, (batch(3),)


@held(w=OUTER, v=OUTER)
def surrogate_gradient():
    @jax.custom_jvp
    def spikes(w, x):
        return jnp.sign(x @ w)

    @spikes.defjvp
    def _(primals, tangents):
        (w, x), (dw, dx) = primals, tangents
        return spikes(w, x), (x @ dw + dx @ w) / (1 + (x @ w) ** 2)

    params = {"w": normal(1, 3, 4), "v": normal(2, 4, 4)}

    def loss(p, x):
        return jnp.sum(spikes(p["v"], x + jnp.sin(spikes(p["w"], x[:3]))) * x)

    return loss, params, (batch(4),)


@held(e=ROWS, f=ROWS, n=FORMED, w=FORMED)
def rule_of_an_embedding():
    def backward(mode, saved, g):
        e, t = saved
        return jnp.zeros_like(e).at[t].add(3 * g, mode=mode) / 7, None

    not_zeros = with_rule(
        lambda n, t: n[t],
        lambda saved, g: (jnp.ones_like(saved[0]).at[saved[1]].add(g), None),
    )
    params = {
        "e": normal(1, 7, 3),
        "f": normal(2, 5, 3),
        "n": normal(4, 9, 3),
        "w": normal(3, 3, 3),
    }

    def loss(p, t):
        def look(e, t):
            return jnp.take(e, t, axis=0, mode="clip")

        dropped, clipped = (with_rule(look, functools.partial(backward, mode)) for mode in ("drop", "clip"))
        h = lax.scan(
            lambda h, i: (jnp.tanh(h @ p["w"] + dropped(p["e"], i)), None),
            jnp.ones(3, p["w"].dtype),
            t,
        )[0]
        return jnp.sum(h * clipped(p["f"], t).sum(0) * not_zeros(p["n"], t[0])) + jnp.sum(dropped(p["e"], t[None]))

    return loss, params, (tokens(6, 13) - 3,)


@held(s=OUTER, b=FORMED, c=FORMED, v=OUTER)
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

        h = lax.scan(layer, x, p["s"])[0]
        return jnp.sum(jax.checkpoint(lambda v, h: jax.jit(outer)(v, jnp.sin(h)))(p["v"], h) ** 2)

    return loss, params, (batch(3),)


@held(w=FORMED, a=OUTER, c=FORMED)
def rules_under_vmap_and_cond():
    params = {"w": normal(1, 3, 4), "a": normal(2, 4, 2), "c": normal(3, 4, 2)}

    def loss(p, x):
        h = jax.vmap(outer, (None, 0))(p["w"], x).sum(0)

        def first(h):
            return outer(p["a"], jnp.tanh(h))

        return jnp.sum(
            lax.cond(
                x[0, 0] > 0,
                first,
                lambda h: outer(p["c"], h) + jnp.sin(outer(p["c"], h)),
                h,
            )
        )

    return loss, params, (batch(6, 3),)


@held(w=OUTER, g=OUTER)
def rules_of_blocks():
    by_product = with_rule(
        lambda w, x: jnp.einsum("hd,hde->he", x, w),
        lambda saved, g: (jnp.einsum("hd,he->hde", saved[1], g), None),
    )
    by_entries = with_rule(
        lambda w, x: jnp.einsum("hd,ehd->eh", x, w),
        lambda saved, g: (2 * g[:, :, None] * saved[1][None], None),
    )
    params = {"w": normal(1, 3, 4, 2), "g": normal(2, 2, 3, 4)}

    def loss(p, x):
        return jnp.sum(by_product(p["w"], x).T * by_entries(p["g"], x) ** 2)

    return loss, params, (batch(3, 4),)


@held(a=OUTER, b=OUTER, w=OUTER)
def rule_after_steps():
    params = {"a": normal(1, 5, 2), "b": normal(2, 2, 4), "w": normal(3, 3, 5)}

    def loss(p, x):
        return jnp.sum(outer(straight(p["a"] @ p["b"]), outer(p["w"], x)) ** 2)

    return loss, params, (batch(3),)


@held(w=OUTER, u=OUTER)
def rules_within_rules():
    inner = with_rule(
        lambda w, x: jnp.sin(outer(w, x)),
        lambda saved, g: jax.vjp(outer, *saved)[1](5 * g),
    )
    params = {"w": normal(1, 3, 3), "u": normal(2, 3, 3)}

    def loss(p, x):
        return jnp.sum(inner(p["u"], inner(p["w"], x)))

    return loss, params, (batch(3),)


@held(w=OUTER, v=OUTER, r=OUTER)
def rules_with_options():
    static = jax.custom_vjp(lambda power, w, x: (x @ w) ** power, nondiff_argnums=(0,))
    static.defvjp(
        lambda power, w, x: (static(power, w, x), (w, x)),
        lambda power, saved, g: (power * jnp.outer(saved[1], g), g @ saved[0].T),
    )
    rematerialised = jax.custom_vjp(lambda w, x: jnp.sin(x @ w))
    rematerialised.defvjp(
        lambda w, x: (jnp.sin(x @ w), (w, x, jnp.cos(x @ w))),
        lambda saved, g: (jnp.outer(saved[1], g * saved[2]), saved[0] @ (g * saved[2])),
        optimize_remat=True,
    )
    two = with_rule(
        lambda w, x: (x @ w, x[0]),
        lambda saved, g: (jnp.outer(saved[1], mask * g[0] + g[1]), None),
    )
    params = {"w": normal(1, 3, 3), "v": normal(2, 3, 3), "r": normal(3, 3, 3)}
    mask = jnp.array([0.5, 1.0, 2.0])  # closed over

    def loss(p, x):
        y, first = two(p["v"], static(2, p["w"], x))
        return jnp.sum(rematerialised(p["r"], y * first))

    return loss, params, (batch(3),)


@held(w=FORMED, v=FORMED, u=FORMED, t=FORMED, r=FORMED, k=FORMED)
def rules_that_are_left_to_jax():
    """Symbolic zeros, a side output of integers, something added, nothing at all, rounding, a convolution."""

    def symbolic(saved, g):
        return jnp.outer(saved[1], g), saved[0] @ g

    zeros = jax.custom_vjp(lambda w, x: x @ w)

    def forward(w, x):
        return (x.value @ w.value, (w.value, x.value))

    zeros.defvjp(forward, symbolic, symbolic_zeros=True)
    counting = with_rule(
        lambda w, x: (x @ w, jnp.argmax(x)),
        lambda saved, g: (jnp.outer(saved[1], g[0]), saved[0] @ g[0]),
    )
    decayed = with_rule(
        lambda w, x: x @ w,
        lambda saved, g: (jnp.outer(saved[1], g) + saved[0], saved[0] @ g),
    )

    def rounded(x, g):
        return jnp.outer(x, g).astype(jnp.float16).astype(g.dtype)

    coarse = with_rule(lambda w, x: x @ w, lambda saved, g: (rounded(saved[1], g), saved[0] @ g))
    silent = with_rule(lambda w, x: x @ w, lambda saved, g: (None, saved[0] @ g))

    def convolve(k, x):
        return jnp.convolve(x, k)

    filtered = with_rule(convolve, lambda saved, g: jax.vjp(convolve, *saved)[1](2 * g))
    params = {name: normal(i, 3, 3) for i, name in enumerate("wvutr")} | {"k": normal(9, 3)}

    def loss(p, x):
        h, index = counting(p["v"], zeros(p["w"], x))
        h = silent(p["t"], decayed(p["u"], coarse(p["r"], jnp.tanh(h))))
        return jnp.sum(filtered(p["k"], h) ** 2) * index

    return loss, params, (batch(3),)


@held(w=FORMED, v=FORMED, u=FORMED)
def rules_of_a_value_with_itself():
    """The same weight twice, a weight and itself transposed, and a weight with no data at all."""
    both = with_rule(
        lambda a, b, x: x @ a @ b,
        lambda saved, g: (
            jnp.outer(saved[2], g),
            3 * jnp.outer(saved[2], g),
            saved[0] @ g,
        ),
    )
    cube = with_rule(lambda a: a @ a @ a, lambda saved, g: (saved[0] @ g,))
    params = {"w": normal(1, 3, 3), "v": normal(2, 3, 3), "u": normal(3, 3, 3)}

    def loss(p, x):
        return jnp.sum(jnp.sin(both(p["w"], p["w"], x) + both(p["v"], p["v"].T, x) + x @ cube(p["u"])))

    return loss, params, (batch(3),)


@held(w=OUTER, v=FORMED)
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
        return jnp.sum(dropped(p["w"], x * p["v"], jax.random.key(t), x > 0) ** 2)

    return loss, params, (batch(3), tokens(0, 50))
