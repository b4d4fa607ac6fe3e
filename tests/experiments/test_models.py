"""The networks: sizes of the paper, one example at a time."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments import models
from experiments.errors import UserError


def count(params):
    """Number of parameters."""
    return sum(leaf.size for leaf in jax.tree.leaves(params))


def test_the_papers_networks_have_the_papers_sizes():
    for name, shape, classes, size in (("paper_cnn", (28, 28, 1), 10, 26_010), ("paper_mlp", (123,), 2, 2_018)):
        model = models.build(name, shape, classes)
        shapes = jax.eval_shape(model.init, jax.random.key(0), jnp.zeros(shape))
        assert count(shapes["params"]) == size


@pytest.mark.parametrize(("name", "shape"), [("mlp", (8, 8, 1)), ("paper_mlp", (123,)), ("paper_cnn", (28, 28, 1))])
def test_one_example_equals_a_batch_of_one(name, shape):
    model = models.build(name, shape, 10)
    image = jax.random.uniform(jax.random.key(1), shape)
    params = model.init(jax.random.key(0), image)["params"]
    loss = models.example_loss(model)(params, image, jnp.int32(3))
    assert loss.shape == ()
    alone = model.apply({"params": params}, image)
    batched = model.apply({"params": params}, image[None])[0]
    np.testing.assert_allclose(alone, batched, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(loss, -jax.nn.log_softmax(alone)[3], rtol=1e-5)


def test_paper_cnn_refuses_other_images():
    with pytest.raises(UserError, match=r"\(28, 28, 1\), got \(8, 8, 1\)"):
        models.build("paper_cnn", (8, 8, 1), 10)


def test_unknown_model_is_refused():
    with pytest.raises(UserError, match="one of mlp, paper_cnn, paper_mlp"):
        models.build("resnet", (28, 28, 1), 10)
