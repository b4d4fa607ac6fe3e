"""Augmentation multiplicity: the copies of an example are averaged before clipping, and count as one example."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gdpjax
from tests.clipping.compiling import fast
from tests.clipping.definition import sum_of_clipped

STRATEGIES = {"vmap": {}, "microbatch": {"strategy": "microbatch", "microbatch_size": 2}}


def loss(params, x, y):
    return (jnp.tanh(x @ params["w"]).sum() + params["b"] - y) ** 2


RNG = np.random.default_rng(0)
PARAMS = {"w": RNG.normal(size=(3, 2)).astype(np.float32), "b": np.float32(0)}
X = 2 * RNG.normal(size=(5, 4, 3)).astype(np.float32)
Y = np.arange(5, dtype=np.float32)


def gradients_of_copies(params, x, y):
    """The gradients [B, K, ...] of all copies of all examples."""
    of_example = jax.vmap(jax.grad(loss), (None, 0, None))
    return jax.vmap(of_example, (None, 0, 0))(params, x, y)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_gradients_are_averaged_over_copies_before_clipping(strategy):
    """Whether rows are clipped or not."""
    averaged = gdpjax.average_augmentations(loss, 4, augmented_argnums=1)

    @fast
    def sum_and_gradients(bound):
        grad_fn = gdpjax.clipped_grad(averaged, bound, batch_argnums=(1, 2), **STRATEGIES[strategy])
        return grad_fn(PARAMS, X, Y), gradients_of_copies(PARAMS, X, Y)

    for bound in (0.7, 1e6):
        found, of_copies = sum_and_gradients(bound)
        means = {name: np.asarray(leaf).mean(axis=1) for name, leaf in of_copies.items()}
        expected = sum_of_clipped(means, bound)
        for name in PARAMS:
            np.testing.assert_allclose(found[name], expected[name], rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("multiplicity", [3, pytest.param(32, marks=pytest.mark.slow)])
def test_one_example_moves_the_sum_by_at_most_the_clip_norm_whatever_the_multiplicity(multiplicity):
    """Trap 26. The same copies as rows of their own would move it by K clip norms."""
    averaged = gdpjax.average_augmentations(jnp.vdot, multiplicity, augmented_argnums=1)
    grad_fn = gdpjax.clipped_grad(averaged, 1.5)
    assert grad_fn.sensitivity(gdpjax.NeighboringRelation.ADD_OR_REMOVE_ONE) == 1.5
    rng = np.random.default_rng(multiplicity)
    w = np.zeros(3, np.float32)
    call = fast(grad_fn)
    for scale in [100.0, 1.0, 0.1]:
        copies = rng.normal(size=(6, multiplicity, 3)) * scale + [50.0, 0, 0]
        copies = copies.astype(np.float32)
        whole = np.float64(call(w, copies, is_padding=np.zeros(6, bool)))
        without = np.float64(call(w, copies, is_padding=np.arange(6) == 2))
        assert 1.49 < np.linalg.norm(whole - without) <= 1.5
    as_rows = fast(gdpjax.clipped_grad(jnp.vdot, 1.5))(w, copies[2])
    assert np.linalg.norm(as_rows) > 1.4 * multiplicity


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_copies_made_from_a_key_have_distinct_keys(strategy):
    """Copy k of row i has the key that is folded with i and with k."""

    def loss_and_key(w, x, key):
        return jnp.vdot(w, x), jax.random.key_data(key)

    averaged = gdpjax.average_augmentations(loss_and_key, 4, key_argnums=2, has_aux=True)
    options = {"key_argnums": 2, "has_aux": True, "return_info": True, **STRATEGIES[strategy]}
    grad_fn = gdpjax.clipped_grad(averaged, 1.0, **options)
    key = jax.random.key(3)
    _, info = fast(grad_fn)(np.zeros(3, np.float32), X[:, 0], key)
    assert info.aux.shape == (5, 4, 2)
    assert len(np.unique(np.asarray(info.aux).reshape(20, 2), axis=0)) == 20
    first_of_second = jax.random.fold_in(jax.random.fold_in(key, 1), 0)
    np.testing.assert_array_equal(info.aux[1, 0], jax.random.key_data(first_of_second))
