"""scikit-learn's handwritten digits: 1,797 real 8x8 images that come with the package."""

import numpy as np

from experiments.data.dataset import Dataset

NUM_TRAIN = 1437
SPLIT_SEED = 20191126  # the split is part of the data set: the same for every run, whatever its seed


def load_digits() -> Dataset:
    """1,437 images to train on and 360 to test on."""
    import sklearn.datasets

    pixels, targets = map(np.asarray, sklearn.datasets.load_digits(return_X_y=True))
    images = (pixels / 16.0).astype(np.float32).reshape(-1, 8, 8, 1)
    labels = targets.astype(np.int32)
    order = np.random.default_rng(SPLIT_SEED).permutation(len(labels))
    train, test = order[:NUM_TRAIN], order[NUM_TRAIN:]
    return Dataset(images[train], labels[train], images[test], labels[test])
