"""The networks by name, and the loss of one example."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import optax
from flax import linen as nn
from jaxtyping import Array, Float, Int, Shaped

from experiments.models.networks import MLP, Factors, Linear, PaperCNN, PaperMLP, PaperRecommender, PaperTextModel

Loss = Callable[[Any, Shaped[Array, "..."], Int[Array, ""]], Float[Array, ""]]
"""``loss(params, example, label)``, of ONE example: no batch axis."""


MODELS = {
    "mlp": MLP,
    "paper_cnn": PaperCNN,
    "paper_mlp": PaperMLP,
    "paper_text": PaperTextModel,
    "paper_recommender": PaperRecommender,
    "linear": Linear,
    "factors": Factors,
}


def build(name: str, num_classes: int) -> nn.Module:
    """Return the network called ``name``."""
    return MODELS[name](num_classes)


def example_loss(model: nn.Module) -> Loss:
    """Return the cross entropy of one example, as a function of parameters, example and label."""

    def loss(params: Any, example: Shaped[Array, "..."], label: Int[Array, ""]) -> Float[Array, ""]:
        logits = model.apply({"params": params}, example)
        return optax.softmax_cross_entropy_with_integer_labels(jnp.asarray(logits), label)

    return loss
