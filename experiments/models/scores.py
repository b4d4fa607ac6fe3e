"""Networks initialised, and judged on test data."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float, Int, Shaped

from experiments.data import Dataset

EVALUATION_CHUNK = 5000
"""Rows of the test data that go through a network at a time."""

Inputs = Shaped[Array, "rows ..."]
Labels = Int[Array, " rows"]
Scores = Callable[[Any, Inputs, Labels], dict[str, Float[Array, ""]]]
"""``scores(params, inputs, labels)``, by name."""


def initial_params(model: nn.Module, example: jax.ShapeDtypeStruct, key: jax.Array) -> Any:
    """Draw random weights for inputs like ``example``; works in compiled code."""
    zeros = jnp.zeros(example.shape, example.dtype)
    return model.init(key, zeros)["params"]


def scores_of(model: nn.Module, num_classes: int, is_graded: bool) -> Scores:
    """Return what judges parameters: ``test_accuracy``, and ``test_rmse`` where labels are grades.

    The second is the root of the mean squared difference between a grade and the one that the model expects.
    """

    def totals(params: Any, inputs: Inputs, labels: Labels) -> tuple[Int[Array, ""], Float[Array, ""]]:
        """Count the right answers, and add up the squared errors of the expected grade."""
        logits = jnp.asarray(model.apply({"params": params}, inputs))
        is_correct = jnp.argmax(logits, axis=-1) == labels

        # The mean grade of the model's distribution.
        grades = jnp.arange(num_classes, dtype=logits.dtype)
        expected = jax.nn.softmax(logits) @ grades
        return jnp.sum(is_correct), jnp.sum((expected - labels) ** 2)

    def scores(params: Any, inputs: Inputs, labels: Labels) -> dict[str, Float[Array, ""]]:
        num_rows = len(labels)
        num_correct = jnp.zeros((), jnp.int32)
        squares = jnp.zeros(())
        for start in range(0, num_rows, EVALUATION_CHUNK):
            chunk = slice(start, start + EVALUATION_CHUNK)
            more_correct, more_squares = totals(params, inputs[chunk], labels[chunk])
            num_correct += more_correct
            squares += more_squares

        by_name = {"test_accuracy": num_correct / num_rows}
        if is_graded:
            by_name["test_rmse"] = jnp.sqrt(squares / num_rows)
        return by_name

    return scores


def make_scores(model: nn.Module, dataset: Dataset) -> Callable[[Any], dict[str, float]]:
    """Return ``scores(params)`` on the test data of a data set, as Python numbers."""
    compiled = jax.jit(scores_of(model, dataset.num_classes, dataset.graded))

    def scores(params: Any) -> dict[str, float]:
        values = compiled(params, dataset.test_inputs, dataset.test_labels)
        return {name: float(value) for name, value in values.items()}

    return scores
