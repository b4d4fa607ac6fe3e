"""Gradients that are a sum of terms keep the promise of the clip, by however many digits the terms cancel."""

import functools
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gdpjax
from gdpjax.clipping import _mixed
from gdpjax.clipping._clip import rounding

ADD = gdpjax.NeighboringRelation.ADD_OR_REMOVE_ONE
REPLACE = gdpjax.NeighboringRelation.REPLACE_ONE
SHAPE = (40, 30)
BLOCK = 40
"""Rows of a batch that are left out together, so that few programs have to be compiled."""


def with_l2(w, a, s, c):
    """Its gradient at (a, s, c) is a s^T + c w."""
    return jnp.sum((a @ w) * s) + c * jnp.sum(w**2) / 2


def with_columns(w, a, s, c):
    """Its gradient is that of the first term, less its part along each column of w, for c = 1."""
    return jnp.sum((a @ (w / jnp.linalg.norm(w, axis=0))) * s) + 0 * c


def fast(function):
    return jax.jit(function, compiler_options={"xla_backend_optimization_level": 0})


def summed(loss, w, rule, num_rows):
    """A compiled function of rows and padding, and what was bound."""
    grad_fn = gdpjax.clipped_grad(loss, rule, batch_argnums=(1, 2, 3), strategy="ghost", return_info=True)
    found = gdpjax.explain(loss, w, (np.zeros((num_rows, w.shape[0])), np.zeros((num_rows, w.shape[1])), np.zeros(
        num_rows)), batch_argnums=(1, 2, 3), strategy="ghost")  # fmt: skip
    assert found.leaves[0].method == "outer product"
    return fast(lambda a, s, c, padding: grad_fn(w, a, s, c, is_padding=padding)), grad_fn


def near_the_weight(seed, num_rows, left, dtype=jnp.float32):
    """w = u v^T, and rows of which L2 term and data cancel but for the part ``left``, all in one direction."""
    rng = np.random.default_rng(seed)
    u, v = np.abs(rng.normal(size=SHAPE[0])) + 0.5, np.abs(rng.normal(size=SHAPE[1])) + 0.5
    size = 2.0 ** rng.uniform(-3, 3, size=num_rows)
    a = u * size[:, None] * (1 + rng.uniform(0, 1e-3 * left, size=(num_rows, 1)))
    s = np.broadcast_to(v, (num_rows, SHAPE[1])) * 100
    c = -100 * size * (1 - left)
    return jnp.asarray(np.outer(u, v), dtype), *(jnp.asarray(x, dtype) for x in (a, s, c))


def exact_gradients(loss, w, a, s, c):
    """Gradients of the arrays as they are, in float64."""
    with jax.enable_x64(True):
        wide = [jnp.asarray(np.asarray(x, np.float64)) for x in (w, a, s, c)]
        return np.asarray(jax.vmap(jax.grad(loss), in_axes=(None, 0, 0, 0))(*wide))


@pytest.mark.parametrize("loss", [with_l2, with_columns])
@pytest.mark.parametrize("left", [1.0, 1e-2, 1e-4, 1e-6, 0.0])
def test_norms_are_never_understated(loss, left):
    num_rows = 64
    w, a, s, c = near_the_weight(0, num_rows, left)
    run, _ = summed(loss, w, 1.0, num_rows)
    exact = np.linalg.norm(exact_gradients(loss, w, a, s, c).reshape(num_rows, -1), axis=1)
    _, info = run(a, s, c, np.zeros(num_rows, bool))
    # w / ||w|| and the scales of its columns are computed in float32: what they are is what is clipped.
    off = 0 if loss is with_l2 else 2e-6 * np.linalg.norm(a, axis=1) * np.linalg.norm(s, axis=1)
    assert (np.float64(info.norms) >= exact * (1 - 1e-6) - off).all()


def changes(run, rows, num_rows):
    """How far the sum moves for each row that is left out, of blocks of rows alone and of all of them."""
    every = np.zeros(num_rows, bool)
    others = [every, ~every]
    many = fast(jax.vmap(lambda padding: run(*rows, padding)[0]))
    found = []
    for padding in others:
        base = np.float64(run(*rows, padding)[0])
        for start in range(0, num_rows, BLOCK):
            index = np.arange(start, min(start + BLOCK, num_rows))
            flipped = padding[None] ^ (np.arange(num_rows) == index[:, None])
            found.append(np.linalg.norm((np.float64(many(flipped)) - base).reshape(len(index), -1), axis=1))
    return np.concatenate(found)


@pytest.mark.parametrize("left", [1e-1, 1e-5])
def test_no_row_moves_a_sum_by_more_than_the_sensitivity(left):
    num_rows = 160
    w, *rows = near_the_weight(1, num_rows, left)
    run, grad_fn = summed(with_l2, w, 1.0, num_rows)
    assert changes(run, rows, num_rows).max() <= grad_fn.sensitivity(ADD)


def alone(loss, w, rule, rows):
    """The largest contribution of any row, in a batch of them with all others left out."""
    num_rows = rows[0].shape[0]
    run, _ = summed(loss, w, rule, num_rows)
    each = fast(lambda keep: jax.lax.map(lambda padding: run(*rows, padding)[0], keep))
    return np.linalg.norm(np.float64(each(~np.eye(num_rows, dtype=bool))).reshape(num_rows, -1), axis=1)


RULES = [gdpjax.Flat(1.0), gdpjax.Normalize(1.0), gdpjax.AutoS(1.0), gdpjax.PerLeaf(1.0)]


def search(dtype, loss):
    """Rows over the whole range of the dtype, of which the terms cancel exactly, nearly and not at all."""
    w, a, s, c = near_the_weight(2, 1, 0.0, jnp.float32)
    sizes = np.float64([1e-4, 1.0, 1e4, float(jnp.finfo(dtype).max) / 1e4])
    left = [-1.0, 0.0, 1e-7, 1e-6, 1e-4, 1e-2, 0.5, 2.0, np.inf]
    grid = [(x, y) for x in sizes for y in left]
    factor, rest = (np.array(column) for column in zip(*grid, strict=True))
    rows = (
        np.broadcast_to(np.float64(a), (len(grid), SHAPE[0])), np.float64(s) / 100 * factor[:, None],
        np.float64(c) / 100 * factor * (1 + rest),
    )  # fmt: skip
    return w.astype(dtype), [jnp.asarray(x, dtype) for x in rows]


@pytest.mark.parametrize("rule", RULES[:2], ids=lambda rule: type(rule).__name__)
@pytest.mark.parametrize("loss", [with_l2, with_columns])
def test_a_search_over_rows(rule, loss):
    assert alone(loss, *search(jnp.float32, loss)[:1], rule, search(jnp.float32, loss)[1]).max() <= 1.0


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.float16])
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: type(rule).__name__)
@pytest.mark.parametrize("loss", [with_l2, with_columns])
def test_a_search_over_rows_rules_and_dtypes(rule, loss, dtype):
    w, rows = search(dtype, loss)
    assert alone(loss, w, rule, rows).max() <= 1.0
