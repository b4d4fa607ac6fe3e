"""Adult (a9a): the census of 1994 as 123 binary features, to tell an income above 50,000 dollars from one below.

The split is the paper's (arXiv:1911.11607): the first nine of ten contiguous folds of the 32,561 training rows to learn
from, the last fold to test on. The file is LIBSVM's text: a label of -1 or +1, then ``index:1`` for each feature that
is on, indices from 1.
"""

import numpy as np

from experiments.data.dataset import Dataset
from experiments.data.files import Source, fetch

MIRRORS = (
    "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/binary/",
    "https://raw.githubusercontent.com/dtera/fl_xgboost/0abd2e16afeea63f53ff249f4e0ad15a8e5d663c/data/",
)
SHA256 = {"a9a": "7ba53cccb27e2e525f0fb173e1f446d49856e3fb007eb43be4ec6d0f5b3335ca"}
NUM_FEATURES = 123
NUM_TRAIN = 29_305


def load_adult() -> Dataset:
    """29,305 people to train on and 3,256 to test on."""
    import sklearn.datasets

    (path,) = fetch(Source("Adult", SHA256, "adult", MIRRORS))
    sparse, signs = sklearn.datasets.load_svmlight_file(str(path), n_features=NUM_FEATURES)[:2]
    features = np.asarray(sparse.toarray(), np.float32)
    labels = (signs > 0).astype(np.int32)
    return Dataset(features[:NUM_TRAIN], labels[:NUM_TRAIN], features[NUM_TRAIN:], labels[NUM_TRAIN:])
