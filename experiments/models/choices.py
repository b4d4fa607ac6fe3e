"""The networks by name, which examples each is for, and the loss of one example."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn

from experiments.errors import UserError
from experiments.models.networks import MLP, Factors, Linear, PaperCNN, PaperMLP, PaperRecommender, PaperTextModel


class Choice(NamedTuple):
    """What makes a model, which examples it is for (one row of inputs), and that in words."""

    make: Callable[[int], nn.Module]
    fits: Callable[[jax.ShapeDtypeStruct], bool]
    expected: str


def _vectors(example: jax.ShapeDtypeStruct) -> bool:
    return example.ndim == 1 and jnp.issubdtype(example.dtype, jnp.floating)


def _pairs(example: jax.ShapeDtypeStruct) -> bool:
    return example.shape == (2,) and example.dtype == jnp.int32


MODELS = {
    "mlp": Choice(MLP, lambda x: x.ndim == 3, "images of shape (height, width, channels)"),
    "paper_cnn": Choice(PaperCNN, lambda x: x.shape == (28, 28, 1), "images of shape (28, 28, 1)"),
    "paper_mlp": Choice(PaperMLP, _vectors, "vectors of real features"),
    "paper_text": Choice(PaperTextModel, lambda x: x.shape == (256,) and x.dtype == jnp.int32, "256 token numbers"),
    "paper_recommender": Choice(PaperRecommender, _pairs, "pairs of a user and a movie"),
    "linear": Choice(Linear, _vectors, "vectors of real features"),
    "factors": Choice(Factors, _pairs, "pairs of a user and a movie"),
}


def build(name: str, example: jax.ShapeDtypeStruct, num_classes: int) -> nn.Module:
    """The model called ``name`` for inputs like ``example``."""
    if name not in MODELS:
        raise UserError(f"model must be one of {', '.join(MODELS)}, got {name!r}")
    choice = MODELS[name]
    if not choice.fits(example):
        others = [other for other in MODELS if MODELS[other].fits(example)]
        got = f"{example.dtype} of shape {example.shape}"
        raise UserError(f"model {name} is for {choice.expected}, got {got}; take {' or '.join(others)}")
    return choice.make(num_classes)


def example_loss(model: nn.Module) -> Callable[[Any, jax.Array, jax.Array], jax.Array]:
    """``loss(params, example, label)``, the cross entropy of ONE example: no batch axis."""

    def loss(params: Any, example: jax.Array, label: jax.Array) -> jax.Array:
        logits = model.apply({"params": params}, example)
        return optax.softmax_cross_entropy_with_integer_labels(jnp.asarray(logits), label)

    return loss
