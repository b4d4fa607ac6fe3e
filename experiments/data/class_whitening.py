"""A linear map that makes the differences within a class small, found on public data.

The noise of private training is as large in every direction, so that what a linear model can learn depends on the
coordinates: two examples of one class should be close, two of different classes far apart. Features f of public data,
with their labels, give

    z = S^(-1/4) V^T (f - m),

with m the mean, V the first principal components, and S the covariance of V^T f within the classes. S^(-1/2) would make
the differences within a class as large in all directions (linear discriminant analysis); half of that power is safer
where the private data differ from the public.

The map is a function of the public data alone. It is then applied to each private example by itself.
"""

import dataclasses

import numpy as np
import scipy.linalg

POWER = -0.25
FLOOR = 1e-5
"""Added to the variances within a class, as a part of the largest."""


@dataclasses.dataclass(frozen=True)
class ClassWhitening:
    """``mean`` is ``[features]``, ``matrix`` ``[features, components]``."""

    mean: np.ndarray
    matrix: np.ndarray

    def __call__(self, features: np.ndarray) -> np.ndarray:
        """Return the coordinates of examples ``[N, features]``, ``[N, components]``."""
        return (features - self.mean) @ self.matrix


def fit_class_whitening(features: np.ndarray, labels: np.ndarray, num_components: int) -> ClassWhitening:
    """Fit the map on PUBLIC examples.

    Args:
      features: ``[N, features]``.
      labels: ``[N]``, whole numbers; each class has at least one example.
      num_components: how many principal components are kept, at most the number of features.
    """
    # The first principal components: eigenvalues are in ascending order, so that they are the last ones.
    mean = features.mean(axis=0)
    centred = features - mean
    covariance = centred.T @ centred / len(centred)
    last = len(covariance) - 1
    _, components = scipy.linalg.eigh(covariance, subset_by_index=[last + 1 - num_components, last])

    # What is left of the coordinates once each class has its own mean.
    coordinates = (centred @ components).astype(np.float64)
    classes, class_of_row = np.unique(labels, return_inverse=True)
    means = []
    for number in range(len(classes)):
        of_class = coordinates[class_of_row == number]
        means.append(of_class.mean(axis=0))
    within = coordinates - np.stack(means)[class_of_row]

    # The covariance within the classes, and its power.
    variances, axes = np.linalg.eigh(within.T @ within / len(within))
    scales = (variances + FLOOR * variances[-1]) ** POWER
    whiten = (axes * scales) @ axes.T
    matrix = components @ whiten
    return ClassWhitening(mean, matrix.astype(features.dtype))
