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

from collections.abc import Callable, Iterable, Iterator
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

NUM_WORDS = 10_000
LENGTH = 256
START = 1
RARE = 2
FIRST = 3
"""The number of the start, that of a rare word, and the number from which on the ranks of words are counted."""
NUM_FEATURES = 2_000

Review = np.ndarray | list[int]
Encoding = Callable[[Iterable[Review], int], np.ndarray]
"""From reviews, and how many there are, to the inputs of a model."""


def load_imdb() -> Dataset:
    """Return 25,000 reviews to train on and 25,000 to test on, as token numbers."""
    return _load(pad)


def load_imdb_words() -> Dataset:
    """Return the same reviews, as vectors of 2,000 features."""
    return _load(words)


def _load(encode: Encoding) -> Dataset:
    """Read the prepared file if it is there, else the original one."""
    prepared = find(PREPARED)
    if prepared:
        return read_prepared(prepared[0], encode)
    (original,) = fetch(ORIGINAL)
    return read_keras(original, encode)


def read_prepared(path: Path, encode: Encoding) -> Dataset:
    """Read one array of tokens and the length of each review."""
    with np.load(path) as arrays:
        lengths = arrays["lengths"]
        is_test = arrays["is_test"].astype(bool)
        labels = arrays["label"].astype(np.int32)

        # One review begins where the one before it ends.
        ends = np.cumsum(lengths)
        reviews = np.split(arrays["tokens"], ends[:-1])
        inputs = encode(reviews, len(lengths))
    return Dataset(inputs[~is_test], labels[~is_test], inputs[is_test], labels[is_test])


def read_keras(path: Path, encode: Encoding) -> Dataset:
    """Read Keras' lists of words. They are pickled, which is safe only because the checksum of the file is known."""
    with np.load(path, allow_pickle=True) as arrays:
        inputs = {}
        for name in ("x_train", "x_test"):
            lists = arrays[name]
            inputs[name] = encode(_tokens_of_keras(lists), len(lists))
        train_labels = arrays["y_train"].astype(np.int32)
        test_labels = arrays["y_test"].astype(np.int32)
    return Dataset(inputs["x_train"], train_labels, inputs["x_test"], test_labels)


def _tokens_of_keras(lists: Iterable[list[int]]) -> Iterator[list[int]]:
    """Yield each review's token numbers: the start, and each of Keras' numbers with three added."""
    for words_of_review in lists:
        yield [START, *(word + FIRST for word in words_of_review)]


def pad(reviews: Iterable[Review], count: int) -> np.ndarray:
    """Return ``int32[count, 256]``: the end of every review, padded in front, rare words as one."""
    padded = np.zeros((count, LENGTH), np.int32)
    for row, review in zip(padded, reviews, strict=True):
        end = np.asarray(review[-LENGTH:], np.int32)
        start = LENGTH - len(end)
        row[start:] = np.where(end < NUM_WORDS, end, RARE)
    return padded


def words(reviews: Iterable[Review], count: int) -> np.ndarray:
    """Return ``float32[count, 2000]``: which of the most frequent words occur, with norm 1 (0 where none does).

    >>> words([[1, 4, 7, 4, 2], [1, 2]], 2)[:, :4]
    array([[0.4472136, 0.       , 0.       , 0.8944272],
           [0.       , 0.       , 0.       , 0.       ]], dtype=float32)
    """
    vectors = np.zeros((count, NUM_FEATURES), np.float32)
    for vector, review in zip(vectors, reviews, strict=True):
        # The most frequent word has rank 1.
        ranks = np.unique(review).astype(np.int64) - FIRST
        is_feature = (ranks >= 1) & (ranks <= NUM_FEATURES)
        ranks = ranks[is_feature]
        vector[ranks - 1] = np.sqrt(ranks)
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors / np.maximum(norms, 1e-12)
