"""Canaries, coins and scores, and their way through clipping."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gdpjax import auditing, clipped_grad

PARAMS = {"w": np.zeros((3, 5), np.float32), "b": np.zeros(7, np.float32)}
KEY = jax.random.key(0)


def flat(canaries):
    """Return a row for each canary, with all its coordinates."""
    blocks = []
    for leaf in jax.tree.leaves(canaries):
        rows = np.asarray(leaf)
        blocks.append(rows.reshape(len(rows), -1))
    return np.concatenate(blocks, axis=1)


def gradient_canaries(num, norm):
    """Return random gradients, drawn in one compiled program."""
    return jax.jit(lambda key: auditing.gradient_canaries(key, num, PARAMS, norm))(KEY)


@pytest.fixture(scope="module")
def canaries():
    """Six random gradients of norm 3."""
    return gradient_canaries(6, 3.0)


def test_coins_are_fair_and_independent():
    """Neither a coin nor a pair of coins has a favourite side."""
    draw = jax.jit(jax.vmap(lambda key: auditing.flip_coins(key, 64)))
    coins = np.asarray(draw(jax.random.split(KEY, 2000)))
    assert coins.dtype == bool
    assert abs(coins.mean() - 0.5) < 4 * 0.5 / np.sqrt(coins.size)
    correlations = np.corrcoef(coins.T) - np.eye(64)
    assert np.abs(correlations).max() < 5.5 / np.sqrt(2000)


def test_random_gradients_have_the_norm_and_no_preferred_direction():
    """The norm is exact up to rounding, and the second moments are those of a sphere."""
    rows = flat(gradient_canaries(4000, 2.5))
    assert rows.shape == (4000, 22)
    norms = np.linalg.norm(rows, axis=1)
    np.testing.assert_allclose(norms, 2.5, rtol=1e-5)
    second_moments = rows.T @ rows / 4000
    np.testing.assert_allclose(second_moments, np.eye(22) * 2.5**2 / 22, atol=0.04)


def test_coordinates_are_all_different():
    """Canaries of one coordinate each are at right angles, up to as many as there are parameters."""
    for num in (1, 10, 22):
        draw = jax.jit(lambda key, num=num: auditing.gradient_canaries(key, num, PARAMS, 0.5, coordinates=True))
        rows = flat(draw(KEY))
        np.testing.assert_array_equal(rows @ rows.T, 0.25 * np.eye(num))
    with pytest.raises(ValueError, match="at most 22"):
        auditing.gradient_canaries(KEY, 23, PARAMS, 1.0, coordinates=True)


def test_wrong_labels_are_uniform_over_the_others():
    """A label is never its own wrong one, and small integers do not overflow."""
    mislabel = jax.jit(auditing.mislabel, static_argnums=2)
    labels = np.tile(np.arange(5, dtype=np.uint8), 4000)
    wrong = mislabel(KEY, labels, 5)
    assert wrong.dtype == labels.dtype
    counts = np.zeros((5, 5))
    np.add.at(counts, (labels, np.asarray(wrong)), 1)
    is_own_label = np.eye(5, dtype=bool)
    assert (counts[is_own_label] == 0).all()
    np.testing.assert_allclose(counts[~is_own_label], 1000, rtol=0.15)

    # Sums above 255.
    many = mislabel(KEY, np.full(1000, 199, np.uint8), 200)
    assert (np.asarray(many) < 199).all()
    for labels, num_classes in ((np.zeros(3), 3), (np.zeros(3, int), 1)):
        with pytest.raises(ValueError, match="must be"):
            auditing.mislabel(KEY, labels, num_classes)


def test_white_box_scores_are_inner_products_over_steps(canaries):
    """Scores are inner products with the sum of the releases, compiled or not, for several steps and for one."""
    rng = np.random.default_rng(0)
    releases = {name: rng.normal(size=(4, *leaf.shape)).astype(np.float32) for name, leaf in PARAMS.items()}
    compiled_scores = jax.jit(auditing.white_box_scores)
    expected = flat(canaries) @ flat(releases).sum(0)
    np.testing.assert_allclose(auditing.white_box_scores(releases, canaries), expected, atol=1e-5)
    np.testing.assert_allclose(compiled_scores(releases, canaries), expected, atol=1e-5)

    first_release = {name: leaf[0] for name, leaf in releases.items()}
    expected = flat(canaries) @ flat(releases)[0]
    np.testing.assert_allclose(compiled_scores(first_release, canaries), expected, atol=1e-5)

    cut_release = {name: leaf[..., :2] for name, leaf in first_release.items()}
    with pytest.raises(ValueError, match="expected a release of shape"):
        auditing.white_box_scores(cut_release, canaries)
    renamed = {f"{name} of another model": leaf for name, leaf in first_release.items()}
    with pytest.raises(ValueError, match="key"):
        auditing.white_box_scores(renamed, canaries)


def test_canaries_pass_through_clipping_among_examples(canaries):
    """Canaries that are included are clipped to norm 1 and added to the gradients of the examples."""
    rows = {}
    for name, leaf in canaries.items():
        no_canary = np.zeros((1, *leaf.shape[1:]))
        rows[name] = np.concatenate([leaf[:2], no_canary])
    is_canary = np.array([True, True, False])
    x = np.zeros((3, 7), np.float32)
    x[2, 0] = 0.5

    def loss_of_example(params, x):
        return jnp.sum(params["b"] * x)

    loss = auditing.with_gradient_canaries(loss_of_example)
    grad_fn = jax.jit(clipped_grad(loss, 1.0, batch_argnums=(1, 2, 3), strategy="vmap"))
    clipped_sum = grad_fn(PARAMS, rows, is_canary, x)

    # Two canaries of norm 3 become unit vectors, and the example's gradient is in the first coordinate of b.
    expected = flat(canaries)[:2].sum(0) / 3
    expected[0] += 0.5  # b comes before w
    with_one_row = {name: leaf[None] for name, leaf in clipped_sum.items()}
    np.testing.assert_allclose(flat(with_one_row)[0], expected, atol=1e-4)
