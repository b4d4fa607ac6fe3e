"""Networks initialised, and judged on test data."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from experiments.data import Dataset

EVALUATION_CHUNK = 5000
"""Rows of the test data that go through a network at a time."""


def initial_params(model: nn.Module, example: Any, key: jax.Array) -> Any:
    """Random weights for inputs like ``example``; works in compiled code."""
    return model.init(key, jnp.zeros(example.shape, example.dtype))["params"]


def scores_of(model: nn.Module, num_classes: int, graded: bool) -> Callable[..., dict[str, jax.Array]]:
    """``scores(params, inputs, labels)``: ``test_accuracy``, and ``test_rmse`` where labels are grades.

    The second is the root of the mean squared difference between a grade and the one that the model expects.
    """

    def totals(params: Any, inputs: jax.Array, labels: jax.Array) -> tuple[jax.Array, jax.Array]:
        logits = jnp.asarray(model.apply({"params": params}, inputs))
        expected = jax.nn.softmax(logits) @ jnp.arange(num_classes, dtype=logits.dtype)
        return jnp.sum(jnp.argmax(logits, axis=-1) == labels), jnp.sum((expected - labels) ** 2)

    def scores(params: Any, inputs: jax.Array, labels: jax.Array) -> dict[str, jax.Array]:
        count = len(labels)
        correct, squares = jnp.zeros((), jnp.int32), jnp.zeros(())
        for start in range(0, count, EVALUATION_CHUNK):
            chunk = slice(start, start + EVALUATION_CHUNK)
            more_correct, more_squares = totals(params, inputs[chunk], labels[chunk])
            correct, squares = correct + more_correct, squares + more_squares
        rmse = {"test_rmse": jnp.sqrt(squares / count)} if graded else {}
        return {"test_accuracy": correct / count} | rmse

    return scores


def make_scores(model: nn.Module, dataset: Dataset) -> Callable[[Any], dict[str, float]]:
    """``scores(params)`` on the test data of a data set, as Python numbers."""
    compiled = jax.jit(scores_of(model, dataset.num_classes, dataset.graded))

    def scores(params: Any) -> dict[str, float]:
        found = compiled(params, dataset.test_inputs, dataset.test_labels)
        return {name: float(value) for name, value in found.items()}

    return scores
