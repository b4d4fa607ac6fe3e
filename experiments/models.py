"""Small networks in flax, and the loss of one example.

None of them mixes examples (no batch normalisation): the gradient of one example must be its own.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn

from experiments.errors import UserError

# Keras' initial weights, which the paper's scripts used; flax's own default is lecun_normal.
GLOROT = nn.initializers.glorot_uniform()


class MLP(nn.Module):
    """One hidden layer of tanh units; tanh keeps gradients bounded, which suits clipping."""

    num_classes: int
    width: int = 64

    @nn.compact
    def __call__(self, images: jax.Array) -> jax.Array:
        """Logits ``[..., num_classes]`` of images ``[..., height, width, channels]``."""
        x = images.reshape(*images.shape[:-3], -1)
        x = nn.tanh(nn.Dense(self.width)(x))
        return nn.Dense(self.num_classes)(x)


class PaperCNN(nn.Module):
    """The MNIST network of arXiv:1911.11607: 26,010 parameters for 28x28 images."""

    num_classes: int

    @nn.compact
    def __call__(self, images: jax.Array) -> jax.Array:
        """Logits ``[..., num_classes]`` of images ``[..., 28, 28, 1]``."""
        x = nn.relu(nn.Conv(16, (8, 8), strides=2, padding="SAME", kernel_init=GLOROT)(images))
        x = nn.max_pool(x, (2, 2), strides=(1, 1))
        x = nn.relu(nn.Conv(32, (4, 4), strides=2, padding="VALID", kernel_init=GLOROT)(x))
        x = nn.max_pool(x, (2, 2), strides=(1, 1))
        x = x.reshape(*x.shape[:-3], -1)
        x = nn.relu(nn.Dense(32, kernel_init=GLOROT)(x))
        return nn.Dense(self.num_classes, kernel_init=GLOROT)(x)


def build(name: str, image_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """The model called ``name`` for images of ``image_shape``."""
    if name == "mlp":
        return MLP(num_classes)
    if name == "paper_cnn":
        if image_shape != (28, 28, 1):
            raise UserError(f"model paper_cnn is for images of shape (28, 28, 1), got {image_shape}; use --model mlp")
        return PaperCNN(num_classes)
    raise UserError(f"model must be mlp or paper_cnn, got {name!r}")


def example_loss(model: nn.Module) -> Callable[[Any, jax.Array, jax.Array], jax.Array]:
    """``loss(params, image, label)``, the cross entropy of ONE example: no batch axis."""

    def loss(params: Any, image: jax.Array, label: jax.Array) -> jax.Array:
        logits = model.apply({"params": params}, image)
        return optax.softmax_cross_entropy_with_integer_labels(jnp.asarray(logits), label)

    return loss
