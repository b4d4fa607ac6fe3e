"""MovieLens-1M: 1,000,209 grades from 1 to 5 that 6,040 users gave to 3,706 movies.

Four fifths, chosen by a fixed seed, are to learn from: 800,167. Users are numbered from 0, and so are movies in the
order of their numbers; who exists is taken as public. A label is the grade less one.

The original is ``ratings.dat`` in GroupLens' ``ml-1m.zip``: ``user::movie::grade::time`` a line. ``ml1m_ratings.npz``
holds the same rows in the same order without the times.
"""

import io
import zipfile
from pathlib import Path

import numpy as np

from experiments.data.dataset import Dataset
from experiments.data.files import Source, fetch, find

ORIGINAL = Source(
    "MovieLens-1M",
    {"ml-1m.zip": "a6898adb50b9ca05aa231689da44c217cb524e7ebd39d264c56e2832f2c54e20"},
    "movielens",
    ("https://files.grouplens.org/datasets/movielens/",),
)
PREPARED = Source(
    "MovieLens-1M",
    {"ml1m_ratings.npz": "65ed4cb9f6829c63a4e0109dabfd6889314269cf311d4a92cf20c7fa02509252"},
    "movielens",
    (),
)
SPLIT_SEED = 20191126  # the split is part of the data set: the same for every run, whatever its seed


def load_movielens() -> Dataset:
    """800,167 grades to train on and 200,042 to test on; inputs are pairs of a user and a movie."""
    prepared = find(PREPARED)
    users, movies, grades = read_npz(prepared[0]) if prepared else read_zip(fetch(ORIGINAL)[0])
    movie_numbers = np.unique(movies, return_inverse=True)[1]
    pairs = np.stack([users - 1, movie_numbers], axis=1).astype(np.int32)
    labels = (grades - 1).astype(np.int32)
    order = np.random.default_rng(SPLIT_SEED).permutation(len(labels))
    train, test = np.split(order, [int(0.8 * len(order))])
    return Dataset(pairs[train], labels[train], pairs[test], labels[test], graded=True)


def read_npz(path: Path) -> tuple[np.ndarray, ...]:
    """User, movie and grade of every row."""
    with np.load(path) as arrays:
        return tuple(arrays[name].astype(np.int64) for name in ("user", "movie", "rating"))


def read_zip(path: Path) -> tuple[np.ndarray, ...]:
    """Return the same from GroupLens' file."""
    text = zipfile.ZipFile(path).read("ml-1m/ratings.dat").replace(b"::", b" ")
    users, movies, grades, _ = np.loadtxt(io.BytesIO(text), dtype=np.int64, ndmin=2).T
    return users, movies, grades
