"""The networks: sizes of the paper, one example at a time."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from experiments import models
from experiments.models.networks import max_pool

EXAMPLES = {
    "mlp": jax.ShapeDtypeStruct((8, 8, 1), jnp.float32),
    "paper_cnn": jax.ShapeDtypeStruct((28, 28, 1), jnp.float32),
    "paper_mlp": jax.ShapeDtypeStruct((123,), jnp.float32),
    "paper_text": jax.ShapeDtypeStruct((256,), jnp.int32),
    "paper_recommender": jax.ShapeDtypeStruct((2,), jnp.int32),
}


def count(params):
    """Number of parameters."""
    return sum(leaf.size for leaf in jax.tree.leaves(params))


def test_the_papers_networks_have_the_papers_sizes():
    sizes = {("paper_cnn", 10): 26_010, ("paper_mlp", 2): 2_018}
    sizes |= {("paper_text", 2): 160_306, ("paper_recommender", 5): 146_320}
    for (name, classes), size in sizes.items():
        model = models.build(name, classes)
        shapes = jax.eval_shape(model.init, jax.random.key(0), EXAMPLES[name])
        assert count(shapes["params"]) == size


@pytest.mark.parametrize("name", EXAMPLES)
def test_one_example_equals_a_batch_of_one(name):
    example = EXAMPLES[name]
    model = models.build(name, 10)
    image = (1000 * np.random.default_rng(1).uniform(size=example.shape)).astype(example.dtype)

    @jax.jit
    def evaluated(key):
        params = model.init(key, image)["params"]
        loss = models.example_loss(model)(params, image, jnp.int32(3))
        alone = model.apply({"params": params}, image)
        batched = model.apply({"params": params}, image[None])[0]
        return loss, alone, batched, -jax.nn.log_softmax(alone)[3]

    loss, alone, batched, expected_loss = evaluated(jax.random.key(0))
    assert loss.shape == ()
    np.testing.assert_allclose(alone, batched, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(loss, expected_loss, rtol=1e-5)


def test_max_pool_is_flaxs_with_its_gradient():
    draw = np.random.default_rng(0)
    images = draw.normal(size=(2, 7, 6, 3)).astype(np.float32)
    weights = draw.integers(1, 9, (2, 6, 5, 3)).astype(np.float32)  # sums of them are exact in any order

    def flaxs(x):
        return nn.max_pool(x, (2, 2), strides=(1, 1))

    @jax.jit
    def pooled_with_gradient(images):
        ours, ours_back = jax.vjp(max_pool, images)
        theirs, theirs_back = jax.vjp(flaxs, images)
        return ours, theirs, ours_back(weights)[0], theirs_back(weights)[0]

    ours, theirs, our_gradient, their_gradient = pooled_with_gradient(images)
    np.testing.assert_array_equal(ours, theirs)
    np.testing.assert_allclose(our_gradient, their_gradient, rtol=1e-6)
