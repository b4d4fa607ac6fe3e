"""The networks by name, which examples each is for, and the loss of one example."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn
from jaxtyping import Array, Float, Int, Shaped

from experiments.errors import UserError
from experiments.models.networks import MLP, Factors, Linear, PaperCNN, PaperMLP, PaperRecommender, PaperTextModel

Example = jax.ShapeDtypeStruct
"""One row of the inputs, without values."""

Loss = Callable[[Any, Shaped[Array, "..."], Int[Array, ""]], Float[Array, ""]]
"""``loss(params, example, label)``, of ONE example: no batch axis."""


class Choice(NamedTuple):
    """One network.

    Attributes:
      make: makes it for a number of classes.
      fits: whether it is for such examples.
      expected: the examples that it is for, in words.
    """

    make: Callable[[int], nn.Module]
    fits: Callable[[Example], bool]
    expected: str


def _are_images(example: Example) -> bool:
    return example.ndim == 3


def _are_large_images(example: Example) -> bool:
    return example.shape == (28, 28, 1)


def _are_features(example: Example) -> bool:
    return example.ndim == 1 and jnp.issubdtype(example.dtype, jnp.floating)


def _are_tokens(example: Example) -> bool:
    return example.shape == (256,) and example.dtype == jnp.int32


def _are_pairs(example: Example) -> bool:
    return example.shape == (2,) and example.dtype == jnp.int32


MODELS = {
    "mlp": Choice(MLP, _are_images, "images of shape (height, width, channels)"),
    "paper_cnn": Choice(PaperCNN, _are_large_images, "images of shape (28, 28, 1)"),
    "paper_mlp": Choice(PaperMLP, _are_features, "vectors of real features"),
    "paper_text": Choice(PaperTextModel, _are_tokens, "256 token numbers"),
    "paper_recommender": Choice(PaperRecommender, _are_pairs, "pairs of a user and a movie"),
    "linear": Choice(Linear, _are_features, "vectors of real features"),
    "factors": Choice(Factors, _are_pairs, "pairs of a user and a movie"),
}


def build(name: str, example: Example, num_classes: int) -> nn.Module:
    """Return the network called ``name`` for inputs like ``example``."""
    if name not in MODELS:
        raise UserError(f"model must be one of {', '.join(MODELS)}, got {name!r}")
    choice = MODELS[name]
    if not choice.fits(example):
        others = [other for other in MODELS if MODELS[other].fits(example)]
        got = f"{example.dtype} of shape {example.shape}"
        take = " or ".join(others)
        raise UserError(f"model {name} is for {choice.expected}, got {got}; take {take}")
    return choice.make(num_classes)


def example_loss(model: nn.Module) -> Loss:
    """Return the cross entropy of one example, as a function of parameters, example and label."""

    def loss(params: Any, example: Shaped[Array, "..."], label: Int[Array, ""]) -> Float[Array, ""]:
        logits = model.apply({"params": params}, example)
        return optax.softmax_cross_entropy_with_integer_labels(jnp.asarray(logits), label)

    return loss
