"""Patterns whose loss makes something of parameters alone: penalties, and weights that are normalised."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.clipping.patterns import batch, normal, pattern, tokens


def network(w, p, x):
    return jnp.sum(jnp.tanh(x @ w + p["b"]) @ p["c"]) ** 2


def parameters(**more):
    return {"w": normal(1, 40, 30), "b": normal(2, 30), "c": normal(3, 30, 2), **more}


def squares(tree):
    return sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(tree))


def rows(*shape):
    return jnp.asarray(np.asarray(batch(*shape)) / 4)


@pattern
def l2_over_the_tree():
    def loss(p, x):
        return 3 * (network(p["w"], p, x) + 0.1 * squares(p))

    return loss, parameters(), (rows(40),)


def normalised(v, axis=None, keepdims=False):
    return v / jnp.linalg.norm(v, axis=axis, keepdims=keepdims)


@pattern
def weight_norm_by_column():
    def loss(p, x):
        weight = p["g"] * p["w"] / jnp.linalg.norm(p["w"], axis=0)
        return network(weight, p, x)

    return loss, parameters(g=normal(4, 30)), (rows(40),)


@pattern
def layers_normalised_before_a_scan():
    params = {"w": normal(1, 3, 20, 20), "c": normal(3, 20)}

    def loss(p, x):
        layers = normalised(p["w"], 1, True)

        def layer(h, w):
            return jnp.tanh(h @ w), None

        h, _ = lax.scan(layer, x, layers)
        return jnp.sin(h @ p["c"])

    return loss, params, (rows(20),)


@pattern
def embedding_with_l2():
    params = {"e": normal(1, 90, 15), "c": normal(3, 15)}

    def loss(p, t):
        return jnp.sin(p["e"][t].sum(0) @ p["c"]) + 0.02 * squares(p)

    return loss, params, (tokens(6, 90),)


@pattern
def several_products_and_l2():
    params = parameters(k=normal(4, 3, 40, 12))

    def loss(p, x):
        kernel = normalised(p["k"], (0, 1))
        y = lax.conv_general_dilated(x[None], kernel, (1,), "SAME", dimension_numbers=("NWC", "WIO", "NWC"))
        return network(p["w"], p, x) + jnp.sum(jnp.tanh(y)) + 0.1 * squares(p)

    return loss, params, (rows(4, 40),)


@pattern
def two_outputs_without_data():
    """One of them is multiplied by data, and the other one chooses which data."""

    def loss(p, x):
        values, order = lax.top_k(p["w"], 3)
        return jnp.sum(jnp.tanh(x[order] * values))

    return loss, {"w": normal(1, 7)}, (batch(7),)


@pattern
def no_data_at_all():
    def loss(p, x):
        return squares(p)

    return loss, {"w": normal(1, 7)}, (batch(7),)


@pattern
def of_one_another():
    """Values made of parameters alone in several steps; one of them no gradient reaches."""

    def loss(p, x):
        scale = jnp.exp(p["s"])
        kernel = (scale * p["w"]).T
        frozen = lax.stop_gradient(jnp.sum(kernel))
        first = x @ (kernel.T + 0.5 * p["w"][:, ::-1])
        return jnp.sum(jnp.sin(first) * scale) * frozen + jnp.max(kernel) * x[0]

    return loss, {"w": normal(1, 5, 4), "s": normal(2)}, (batch(5),)
