"""The shape every data set has."""

import dataclasses
from typing import NamedTuple

import jax
import numpy as np

from gdpjax.sweeps import Examples


class Facts(NamedTuple):
    """The number of labels, and whether they are grades, one above the other."""

    num_classes: int
    graded: bool = False


@dataclasses.dataclass(frozen=True)
class Dataset:
    """Inputs and labels ``int32[N]``; the test part is public.

    Inputs are images ``float32[N, height, width, channels]`` in [0, 1], vectors of features ``float32[N, features]``,
    or numbers of things ``int32[N, how many]``. Where labels are grades, one above the other, ``graded`` is
    true, and a model is also judged by the error of the grade it expects.
    """

    train_inputs: np.ndarray
    train_labels: np.ndarray
    test_inputs: np.ndarray
    test_labels: np.ndarray
    graded: bool = False

    @property
    def example(self) -> jax.ShapeDtypeStruct:
        """Shape and type of one row of the inputs."""
        return jax.ShapeDtypeStruct(self.train_inputs.shape[1:], self.train_inputs.dtype)

    @property
    def num_examples(self) -> int:
        """Number of training examples, taken as public."""
        return len(self.train_labels)

    @property
    def num_classes(self) -> int:
        """Number of labels, from the public test part."""
        return int(self.test_labels.max()) + 1

    def hold_out(self, fraction: float) -> "Dataset":
        """Return the training data alone, a ``fraction`` of them, always the same, in the place of the test data.

        What is chosen by such results has not seen the test data.
        """
        train, test = (self.train_inputs, self.train_labels), (self.test_inputs, self.test_labels)
        held = Examples(train, test).hold_out(fraction)
        return Dataset(*held.train, *held.evaluation, graded=self.graded)
