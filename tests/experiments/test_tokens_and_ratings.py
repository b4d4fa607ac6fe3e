"""IMDb and MovieLens: from either file, the same examples; damaged or absent files are named."""

import hashlib
import io
import os
import zipfile

import numpy as np
import pytest

from experiments import data
from experiments.data import imdb, movielens
from experiments.data.files import Source
from experiments.errors import UserError

RATINGS = np.array([[1, 10, 5, 978300760], [2, 7, 1, 978300761], [2, 10, 3, 978300762], [1, 7, 4, 978300763]])
REVIEWS = ([1, 5, 9_999, 10_000, 19_999], [1, *range(3, 303)], [1, 4], [1, 4, 6])


def assert_equal(ours, theirs):
    """Two data sets hold the same."""
    for name in ("train_inputs", "train_labels", "test_inputs", "test_labels"):
        np.testing.assert_array_equal(getattr(ours, name), getattr(theirs, name))


def put(folder, monkeypatch, module, name, content, which, honest=None):
    """A file in GDPJAX_DATA, expected with the checksum of its honest content."""
    (folder / name).write_bytes(content)
    monkeypatch.setenv("GDPJAX_DATA", str(folder))
    checksum = hashlib.sha256(content if honest is None else honest).hexdigest()
    monkeypatch.setattr(module, which, Source("The data", {name: checksum}, "sub", ()))


def packed(**arrays):
    """The bytes of an npz file."""
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=True, **arrays)
    return buffer.getvalue()


def zipped(text, name="ml-1m/ratings.dat"):
    """The bytes of a zip file with one member."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr(name, text)
    return buffer.getvalue()


def test_movielens_from_either_file(tmp_path, monkeypatch):
    text = "".join("::".join(map(str, row)) + "\n" for row in RATINGS)
    put(tmp_path, monkeypatch, movielens, "ml-1m.zip", zipped(text), "ORIGINAL")
    original = data.load("movielens")
    user, movie, rating, _ = RATINGS.T
    put(tmp_path, monkeypatch, movielens, "small.npz", packed(user=user, movie=movie, rating=rating), "PREPARED")
    prepared = data.load("movielens")
    assert_equal(original, prepared)
    assert (original.num_examples, len(original.test_labels), original.graded) == (3, 1, True)
    pairs = np.concatenate([original.train_inputs, original.test_inputs])
    labels = np.concatenate([original.train_labels, original.test_labels])
    # Movies 7 and 10 are numbers 0 and 1.
    found = sorted((*pair, label) for pair, label in zip(pairs.tolist(), labels.tolist(), strict=True))
    assert found == [(0, 0, 3), (0, 1, 4), (1, 0, 0), (1, 1, 2)]
    assert pairs.dtype == np.int32


def test_imdb_from_either_file(tmp_path, monkeypatch):
    test, labels = np.array([0, 0, 1, 1], np.uint8), np.array([0, 1, 1, 0], np.uint8)
    # Keras' file has neither the start nor the three reserved numbers.
    raw = np.empty(4, object)
    raw[:] = [[word - 3 for word in review[1:]] for review in REVIEWS]
    keras = packed(x_train=raw[:2], y_train=labels[:2], x_test=raw[2:], y_test=labels[2:])
    put(tmp_path, monkeypatch, imdb, "imdb.npz", keras, "ORIGINAL")
    original = data.load("imdb")
    tokens = np.concatenate(REVIEWS).astype(np.uint16)
    ours = packed(tokens=tokens, lengths=np.array([len(r) for r in REVIEWS]), label=labels, is_test=test)
    put(tmp_path, monkeypatch, imdb, "small.npz", ours, "PREPARED")
    assert_equal(data.load("imdb"), original)
    assert original.train_inputs.shape == (2, 256)
    assert original.train_inputs.dtype == np.int32
    short, long = original.train_inputs
    assert short[:251].tolist() == [0] * 251
    assert short[251:].tolist() == [1, 5, 9_999, 2, 2]  # rare words are one
    assert long.tolist() == list(range(47, 303))  # the end of a long review
    assert original.train_labels.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("name", "module", "file", "content", "message"),
    [
        ("movielens", movielens, "ml-1m.zip", b"no zip", "ml-1m.zip is not MovieLens-1M"),
        ("movielens", movielens, "ml-1m.zip", zipped("1::2\n"), "ml-1m.zip is not MovieLens-1M"),
        ("movielens", movielens, "ml-1m.zip", zipped("", "other"), "ml-1m.zip is not MovieLens-1M"),
    ],
    ids=["not a zip", "two columns", "another member"],
)
def test_damaged_files_are_named(tmp_path, monkeypatch, name, module, file, content, message):
    put(tmp_path, monkeypatch, module, file, content, "ORIGINAL")
    with pytest.raises(UserError, match=message):
        data.load(name)


@pytest.mark.parametrize(("name", "module"), [("movielens", movielens), ("imdb", imdb)])
def test_another_file_and_an_absent_one(tmp_path, monkeypatch, name, module):
    put(tmp_path, monkeypatch, module, "small.npz", b"cut", "PREPARED", b"whole")
    with pytest.raises(UserError, match=r"small\.npz is not the original file"):
        data.load(name)
    (tmp_path / "small.npz").unlink()
    with pytest.raises(
        UserError, match=r"set GDPJAX_DATA to a folder that holds .*or leave it unset and allow the download"
    ):
        data.load(name)


@pytest.mark.skipif("GDPJAX_DATA" not in os.environ, reason="needs the files in GDPJAX_DATA")
def test_the_real_files():
    imdb, movielens = data.load("imdb"), data.load("movielens")
    assert imdb.train_inputs.shape == imdb.test_inputs.shape == (25_000, 256)
    assert imdb.train_labels.mean() == imdb.test_labels.mean() == 0.5
    assert (imdb.train_inputs.min(), imdb.train_inputs.max()) == (0, 9_999)
    assert movielens.num_examples == 800_167
    assert movielens.train_inputs.max(axis=0).tolist() == [6039, 3705]
    assert sorted(np.bincount(np.concatenate([movielens.train_labels, movielens.test_labels])).tolist()) == sorted(
        [56174, 107557, 261197, 348971, 226310]
    )
