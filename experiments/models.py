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


class PaperMLP(nn.Module):
    """The Adult network of arXiv:1911.11607: 16 relu units, 2,018 parameters for 123 features."""

    num_classes: int

    @nn.compact
    def __call__(self, features: jax.Array) -> jax.Array:
        """Logits ``[..., num_classes]`` of vectors ``[..., features]``."""
        x = nn.relu(nn.Dense(16, kernel_init=GLOROT)(features))
        return nn.Dense(self.num_classes, kernel_init=GLOROT)(x)


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


def build(name: str, input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """The model called ``name`` for inputs of ``input_shape``."""
    if name not in MODELS:
        raise UserError(f"model must be one of {', '.join(MODELS)}, got {name!r}")
    model, fits, expected = MODELS[name]
    if not fits(input_shape):
        others = [other for other, (_, fits, _) in MODELS.items() if fits(input_shape)]
        raise UserError(f"model {name} is for {expected}, got {input_shape}; use --model {' or '.join(others)}")
    return model(num_classes)


MODELS: dict[str, tuple[Callable[[int], nn.Module], Callable[[tuple[int, ...]], bool], str]] = {
    "mlp": (MLP, lambda shape: len(shape) == 3, "images of shape (height, width, channels)"),
    "paper_cnn": (PaperCNN, lambda shape: shape == (28, 28, 1), "images of shape (28, 28, 1)"),
    "paper_mlp": (PaperMLP, lambda shape: len(shape) == 1, "vectors of features"),
}
"""What makes each model, which inputs it is for, and that in words."""


def example_loss(model: nn.Module) -> Callable[[Any, jax.Array, jax.Array], jax.Array]:
    """``loss(params, example, label)``, the cross entropy of ONE example: no batch axis."""

    def loss(params: Any, example: jax.Array, label: jax.Array) -> jax.Array:
        logits = model.apply({"params": params}, example)
        return optax.softmax_cross_entropy_with_integer_labels(jnp.asarray(logits), label)

    return loss
