"""The clipped sum by its definition, in NumPy."""

import jax
import numpy as np


def norms_of(gradients):
    """Return the norms, float64[B], of the rows of a tree [B, ...] of gradients."""
    leaves = [np.asarray(leaf, np.float64) for leaf in jax.tree.leaves(gradients)]
    return np.sqrt(sum((leaf.reshape(len(leaf), -1) ** 2).sum(axis=1) for leaf in leaves))


def sum_of_clipped(gradients, bound):
    """Return sum_i min(1, C / |g_i|) g_i for gradients with a leading axis of examples."""
    weights = np.minimum(1, bound / np.maximum(norms_of(gradients), 1e-300))
    return jax.tree.map(lambda leaf: np.tensordot(weights, np.asarray(leaf, np.float64), 1), gradients)
