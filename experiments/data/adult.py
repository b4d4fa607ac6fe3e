"""Adult (a9a): the census of 1994 as 123 binary features, to tell an income above 50,000 dollars from one below.

The split is the paper's (arXiv:1911.11607): the first nine of ten contiguous folds of the 32,561 training rows to learn
from, the last fold to test on. The file is LIBSVM's text: a label of -1 or +1, then ``index:1`` for each feature that
is on, indices from 1.
"""

from pathlib import Path

import numpy as np

from experiments.data.dataset import Dataset
from experiments.data.files import Source, fetch, read_gzip
from experiments.errors import UserError

MIRRORS = (
    "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/binary/",
    "https://raw.githubusercontent.com/dtera/fl_xgboost/0abd2e16afeea63f53ff249f4e0ad15a8e5d663c/data/",
)
SHA256 = {"a9a": "7ba53cccb27e2e525f0fb173e1f446d49856e3fb007eb43be4ec6d0f5b3335ca"}
NUM_FEATURES = 123
NUM_TRAIN = 29_305


def load_adult() -> Dataset:
    """29,305 people to train on and 3,256 to test on."""
    (path,) = fetch(Source("Adult", SHA256, "adult", MIRRORS))
    features, labels = read_libsvm(path)
    return Dataset(features[:NUM_TRAIN], labels[:NUM_TRAIN], features[NUM_TRAIN:], labels[NUM_TRAIN:])


def read_libsvm(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Features ``float32[n, 123]`` of 0 and 1, and labels ``int32[n]``, 1 for +1; UserError names the line."""
    content = read_gzip(path) if path.suffix == ".gz" else path.read_bytes()
    lines = content.decode("ascii", errors="replace").splitlines()
    features, labels = np.zeros((len(lines), NUM_FEATURES), np.float32), np.zeros(len(lines), np.int32)
    for row, line in enumerate(lines):
        try:
            label, *cells = line.split()
            labels[row] = {"-1": 0, "+1": 1}[label]
            for cell in cells:
                index, value = cell.split(":")
                if not 1 <= int(index) <= NUM_FEATURES or value != "1":
                    raise ValueError(cell)
                features[row, int(index) - 1] = 1
        except (KeyError, ValueError) as error:
            expected = f"-1 or +1, then index:1 with indices from 1 to {NUM_FEATURES}"
            raise UserError(f"{path}, line {row + 1}: expected {expected}, got {line[:60]!r}") from error
    return features, labels
