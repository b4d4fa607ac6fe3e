"""IMDb: 50,000 film reviews, half to learn from, to tell the good ones from the bad.

A review is 256 token numbers: 0 padding, 1 the start, 2 a rare word, and from 3 on the words, most frequent first; the
10,000 first numbers are kept. As in the paper's scripts (Keras' ``pad_sequences``) a long review keeps its end and a
short one is padded in front. Which words are frequent is taken as public, as everywhere with these data.

The original is Keras' ``imdb.npz``, whose lists of words need three added and a start. ``imdb_tokens20k.npz`` holds
numbers as above in one array, from a tokenisation of our own, near but not identical.

As features for a linear model a review is the set of its words, all of it: of the 2,000 most frequent words each that
occurs counts sqrt(its rank), and the vector has norm 1. Rare words say more; how many reviews have a word would say it
better (the inverse document frequency), but is a statistic of private data, while the rank is public already.
"""

from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np

from experiments.data.dataset import Dataset
from experiments.data.files import Source, fetch, find

ORIGINAL = Source(
    "IMDb",
    {"imdb.npz": "69664113be75683a8fe16e3ed0ab59fda8886cb3cd7ada244f7d9544e4676b9f"},
    "imdb",
    ("https://storage.googleapis.com/tensorflow/tf-keras-datasets/",),
)
PREPARED = Source(
    "IMDb",
    {"imdb_tokens20k.npz": "253eb6e723797bbdf19ea0f08431b23d9575230256a8e39ad4b9508b611c062f"},
    "imdb",
    (),
)
NUM_WORDS, LENGTH = 10_000, 256
START, RARE, FIRST = 1, 2, 3
NUM_FEATURES = 2_000
Encoding = Callable[[Iterable[np.ndarray | list[int]], int], np.ndarray]
"""From reviews, and how many there are, to the inputs of a model."""


def load_imdb() -> Dataset:
    """25,000 reviews to train on and 25,000 to test on, as token numbers."""
    return _load(pad)


def load_imdb_words() -> Dataset:
    """Return the same reviews, as vectors of 2,000 features."""
    return _load(words)


def _load(encode: Encoding) -> Dataset:
    prepared = find(PREPARED)
    return read_prepared(prepared[0], encode) if prepared else read_keras(fetch(ORIGINAL)[0], encode)


def read_prepared(path: Path, encode: Encoding) -> Dataset:
    """From one array of tokens and the length of each review."""
    with np.load(path) as arrays:
        lengths, test = arrays["lengths"], arrays["is_test"].astype(bool)
        tokens = encode(np.split(arrays["tokens"], np.cumsum(lengths)[:-1]), len(lengths))
        labels = arrays["label"].astype(np.int32)
    return Dataset(tokens[~test], labels[~test], tokens[test], labels[test])


def read_keras(path: Path, encode: Encoding) -> Dataset:
    """From Keras' lists of words. They are pickled, which is safe only because the checksum of the file is known."""
    with np.load(path, allow_pickle=True) as arrays:
        train, test = (
            encode(([START, *(word + FIRST for word in review)] for review in arrays[name]), len(arrays[name]))
            for name in ("x_train", "x_test")
        )
        labels = [arrays[name].astype(np.int32) for name in ("y_train", "y_test")]
    return Dataset(train, labels[0], test, labels[1])


def pad(reviews: Iterable[np.ndarray | list[int]], count: int) -> np.ndarray:
    """``int32[count, 256]``: the end of every review, padded in front, rare words as one."""
    padded = np.zeros((count, LENGTH), np.int32)
    for row, review in zip(padded, reviews, strict=True):
        tail = np.asarray(review[-LENGTH:], np.int32)
        row[LENGTH - len(tail) :] = np.where(tail < NUM_WORDS, tail, RARE)
    return padded


def words(reviews: Iterable[np.ndarray | list[int]], count: int) -> np.ndarray:
    """``float32[count, 2000]``: which of the most frequent words occur, by rank, with norm 1 (0 where none does).

    >>> words([[1, 4, 7, 4, 2], [1, 2]], 2)[:, :4]
    array([[0.4472136, 0.       , 0.       , 0.8944272],
           [0.       , 0.       , 0.       , 0.       ]], dtype=float32)
    """
    found = np.zeros((count, NUM_FEATURES), np.float32)
    for row, review in zip(found, reviews, strict=True):
        ranks = np.unique(review).astype(np.int64) - FIRST  # the most frequent word has rank 1
        ranks = ranks[(ranks >= 1) & (ranks <= NUM_FEATURES)]
        row[ranks - 1] = np.sqrt(ranks)
    return found / np.maximum(np.linalg.norm(found, axis=1, keepdims=True), 1e-12)
