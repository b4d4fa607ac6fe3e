"""Sensitivities by brute force, and matrices of strategies, with which the tests compare."""

import itertools

import numpy as np

from gdpjax.correlated import Dense, FixedEpochs


def toeplitz(column, num_steps):
    """Return the lower-triangular Toeplitz matrix with this first column, continued by zeros."""
    padded = np.zeros(num_steps)
    padded[: len(column)] = column[:num_steps]
    matrix = np.zeros((num_steps, num_steps))
    for lag in range(num_steps):
        matrix += padded[lag] * np.eye(num_steps, k=-lag)
    return matrix


def matrix_of(strategy, num_steps):
    """Return C, from the definition of the family."""
    if isinstance(strategy, Dense):
        return np.asarray(strategy.matrix)[:num_steps, :num_steps]
    name = type(strategy).__name__
    if name == "BandedToeplitz":
        return toeplitz(strategy.coefficients, num_steps)
    if name == "BandedInverse":
        return np.linalg.inv(toeplitz(strategy.noising_coefficients, num_steps))
    powers = np.asarray(strategy.decay)[:, None] ** np.arange(num_steps)
    return toeplitz(np.concatenate([[1.0], np.asarray(strategy.scale) @ powers]), num_steps)


def patterns(participation, num_steps):
    """Yield every set of steps that the participation allows, the empty one aside."""
    count, separation = participation.limits(num_steps)
    if isinstance(participation, FixedEpochs):
        for place in range(separation):
            yield tuple(range(place, num_steps, separation))
        return
    for size in range(1, count + 1):
        for pattern in itertools.combinations(range(num_steps), size):
            if all(later - earlier >= separation for earlier, later in itertools.pairwise(pattern)):
                yield pattern


def brute_force(matrix, participation):
    """Return the largest |C x| over all patterns and signs. Vectors x_t may do better where C^T C is negative."""
    gram = matrix.T @ matrix
    largest = 0.0
    for pattern in patterns(participation, len(matrix)):
        block = gram[np.ix_(pattern, pattern)]
        if (block >= 0).all():
            largest = max(largest, block.sum())
            continue
        for signs in itertools.product((1.0, -1.0), repeat=len(pattern) - 1):
            x = np.array([1.0, *signs])
            largest = max(largest, x @ block @ x)
    return np.sqrt(largest)
