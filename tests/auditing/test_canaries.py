"""Canaries, coins and scores, and their way through clipping."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gdpjax import auditing, clipped_grad

PARAMS = {"w": jnp.zeros((3, 5)), "b": jnp.zeros(7)}
KEY = jax.random.key(0)


def flat(canaries):
    return np.concatenate([np.asarray(leaf).reshape(leaf.shape[0], -1) for leaf in jax.tree.leaves(canaries)], axis=1)


def test_coins_are_fair_and_independent():
    coins = np.asarray(jax.vmap(lambda key: auditing.flip_coins(key, 64))(jax.random.split(KEY, 2000)))
    assert coins.dtype == bool
    assert abs(coins.mean() - 0.5) < 4 * 0.5 / np.sqrt(coins.size)
    correlations = np.corrcoef(coins.T) - np.eye(64)
    assert np.abs(correlations).max() < 5.5 / np.sqrt(2000)


def test_random_gradients_have_the_norm_and_no_preferred_direction():
    rows = flat(auditing.gradient_canaries(KEY, 4000, PARAMS, 2.5))
    assert rows.shape == (4000, 22)
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 2.5, rtol=1e-5)
    np.testing.assert_allclose(rows.T @ rows / 4000, np.eye(22) * 2.5**2 / 22, atol=0.04)


def test_coordinates_are_all_different():
    for num in (1, 10, 22):
        rows = flat(auditing.coordinate_canaries(KEY, num, PARAMS, 0.5))
        np.testing.assert_array_equal(rows @ rows.T, 0.25 * np.eye(num))
    with pytest.raises(ValueError, match="at most the 22 parameters"):
        auditing.coordinate_canaries(KEY, 23, PARAMS, 1.0)


def test_wrong_labels_are_uniform_over_the_others():
    labels = jnp.tile(jnp.arange(5, dtype=jnp.uint8), 4000)
    wrong = auditing.mislabel(KEY, labels, 5)
    assert wrong.dtype == labels.dtype
    counts = np.zeros((5, 5))
    np.add.at(counts, (np.asarray(labels), np.asarray(wrong)), 1)
    assert (np.diag(counts) == 0).all()
    np.testing.assert_allclose(counts[~np.eye(5, dtype=bool)], 1000, rtol=0.15)
    many = auditing.mislabel(KEY, jnp.full(1000, 199, jnp.uint8), 200)  # sums above 255
    assert (np.asarray(many) < 199).all()
    for labels, num_classes in ((jnp.zeros(3), 3), (jnp.zeros(3, int), 1)):
        with pytest.raises(ValueError, match="integer labels and num_classes >= 2"):
            auditing.mislabel(KEY, labels, num_classes)


def test_noise_examples_fill_their_range():
    rows = np.asarray(auditing.out_of_distribution(KEY, 500, (4, 2), low=-2.0, high=3.0))
    assert rows.shape == (500, 4, 2)
    assert -2 <= rows.min() < -1.95
    assert 2.95 < rows.max() <= 3
    with pytest.raises(ValueError, match="low < high"):
        auditing.out_of_distribution(KEY, 5, (2,), low=1.0, high=1.0)


def test_white_box_scores_are_inner_products_over_steps():
    canaries = auditing.gradient_canaries(KEY, 6, PARAMS, 1.0)
    steps = jax.tree.map(lambda leaf: jax.random.normal(KEY, (4, *leaf.shape)), PARAMS)
    expected = flat(canaries) @ flat(steps).sum(0)
    np.testing.assert_allclose(auditing.white_box_scores(steps, canaries), expected, atol=1e-5)
    np.testing.assert_allclose(jax.jit(auditing.white_box_scores)(steps, canaries), expected, atol=1e-5)
    one = jax.tree.map(lambda leaf: leaf[0], steps)
    np.testing.assert_allclose(auditing.white_box_scores(one, canaries), flat(canaries) @ flat(steps)[0], atol=1e-5)
    with pytest.raises(ValueError, match="expected a release of shape"):
        auditing.white_box_scores(jax.tree.map(lambda leaf: leaf[..., :2], one), canaries)


def test_black_box_scores():
    np.testing.assert_array_equal(auditing.black_box_scores([1.0, 2.0], [3.0, 1.0]), [2.0, -1.0])
    for losses, reference in ((1.0, 1.0), ([1.0, 2.0], [1.0])):
        with pytest.raises(ValueError, match="one loss a canary"):
            auditing.black_box_scores(losses, reference)


def test_canaries_pass_through_clipping_among_examples():
    canaries = auditing.gradient_canaries(KEY, 2, PARAMS, 3.0)
    rows = jax.tree.map(lambda leaf: jnp.concatenate([leaf, jnp.zeros((1, *leaf.shape[1:]))]), canaries)
    loss = auditing.with_gradient_canaries(lambda params, x: jnp.sum(params["b"] * x))
    grad_fn = jax.jit(clipped_grad(loss, 1.0, batch_argnums=(1, 2, 3), strategy="vmap"))
    x = jnp.zeros((3, 7)).at[2, 0].set(0.5)
    total = grad_fn(PARAMS, rows, jnp.array([True, True, False]), x)
    expected = flat(canaries).sum(0) / 3
    expected[0] += 0.5  # b comes before w
    np.testing.assert_allclose(flat(jax.tree.map(lambda leaf: leaf[None], total))[0], expected, atol=1e-4)


@pytest.mark.parametrize(
    "call",
    [
        lambda: auditing.flip_coins(KEY, 0),
        lambda: auditing.gradient_canaries(KEY, 2, PARAMS, 0.0),
        lambda: auditing.gradient_canaries(KEY, 2, PARAMS, np.nan),
        lambda: auditing.coordinate_canaries(KEY, 1.5, PARAMS, 1.0),
    ],
)
def test_bad_input(call):
    with pytest.raises(ValueError, match="must be"):
        call()


def test_no_canaries_have_no_scores():
    assert auditing.white_box_scores(jnp.ones((2, 3)), jnp.ones((0, 3))).shape == (0,)
    with pytest.raises(ValueError, match="canaries with a leading axis"):
        auditing.white_box_scores(jnp.ones(()), jnp.ones(()))
