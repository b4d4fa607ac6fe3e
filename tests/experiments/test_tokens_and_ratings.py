"""IMDb and MovieLens give the same examples from either file, and damaged or absent files are named."""

import hashlib
import io
import zipfile

import numpy as np
import pytest

from experiments import data
from experiments.data import imdb, movielens
from experiments.data.files import Source
from gdpjax.sweeps import UserError

RATINGS = np.array([[1, 10, 5, 978300760], [2, 7, 1, 978300761], [2, 10, 3, 978300762], [1, 7, 4, 978300763]])
REVIEWS = ([1, 5, 9_999, 10_000, 19_999], [1, *range(3, 303)], [1, 4], [1, 4, 6])


def assert_equal(first, second):
    """Check that two data sets hold the same examples."""
    for name in ("train_inputs", "train_labels", "test_inputs", "test_labels"):
        np.testing.assert_array_equal(getattr(first, name), getattr(second, name))


def write_source(folder, monkeypatch, module, name, content, source, expected_content=None):
    """Write a file into GDPJAX_DATA, and let a source of the module expect the checksum of its content, or another."""
    (folder / name).write_bytes(content)
    monkeypatch.setenv("GDPJAX_DATA", str(folder))
    if expected_content is None:
        expected_content = content
    checksum = hashlib.sha256(expected_content).hexdigest()
    monkeypatch.setattr(module, source, Source("The data", {name: checksum}, "sub", ()))


def packed(**arrays):
    """Return the bytes of an npz file."""
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=True, **arrays)
    return buffer.getvalue()


def zipped(text):
    """Return the bytes of a zip file with one member."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("ml-1m/ratings.dat", text)
    return buffer.getvalue()


def test_movielens_from_either_file(tmp_path, monkeypatch):
    """MovieLens' own file and the prepared one give the same pairs of user and movie, and the same grades."""
    lines = ["{}::{}::{}::{}\n".format(*row) for row in RATINGS.tolist()]
    zip_file = zipped("".join(lines))
    write_source(tmp_path, monkeypatch, movielens, "ml-1m.zip", zip_file, "ORIGINAL")
    original = data.load("movielens")

    user, movie, rating, _ = RATINGS.T
    npz_file = packed(user=user, movie=movie, rating=rating)
    write_source(tmp_path, monkeypatch, movielens, "small.npz", npz_file, "PREPARED")
    prepared = data.load("movielens")
    assert_equal(original, prepared)

    assert original.num_examples == 3
    assert len(original.test_labels) == 1
    assert original.graded is True

    # Movies 7 and 10 are numbers 0 and 1.
    pairs = np.concatenate([original.train_inputs, original.test_inputs])
    labels = np.concatenate([original.train_labels, original.test_labels])
    examples = np.column_stack([pairs, labels]).tolist()
    assert sorted(examples) == [[0, 0, 3], [0, 1, 4], [1, 0, 0], [1, 1, 2]]
    assert pairs.dtype == np.int32


def keras_file(reviews, labels):
    """Return IMDb as Keras has it, where reviews have neither the start nor the three reserved numbers."""
    words = np.empty(4, object)
    for number, review in enumerate(reviews):
        words[number] = [word - 3 for word in review[1:]]
    return packed(x_train=words[:2], y_train=labels[:2], x_test=words[2:], y_test=labels[2:])


def prepared_file(reviews, labels):
    """Return IMDb as one array of tokens with the lengths of the reviews, the last two of which are for testing."""
    tokens = np.concatenate(reviews).astype(np.uint16)
    lengths = np.array([len(review) for review in reviews])
    is_test = np.array([0, 0, 1, 1], np.uint8)
    return packed(tokens=tokens, lengths=lengths, label=labels, is_test=is_test)


def test_imdb_from_either_file(tmp_path, monkeypatch):
    """Keras' file and the prepared one give the same reviews, of 256 tokens each."""
    labels = np.array([0, 1, 1, 0], np.uint8)
    write_source(tmp_path, monkeypatch, imdb, "imdb.npz", keras_file(REVIEWS, labels), "ORIGINAL")
    original = data.load("imdb")
    write_source(tmp_path, monkeypatch, imdb, "small.npz", prepared_file(REVIEWS, labels), "PREPARED")
    prepared = data.load("imdb")
    assert_equal(prepared, original)

    assert original.train_inputs.shape == (2, 256)
    assert original.train_inputs.dtype == np.int32
    assert original.train_labels.tolist() == [0, 1]

    # Padding comes first, and all rare words are one.
    short, long = original.train_inputs
    assert short[:251].tolist() == [0] * 251
    assert short[251:].tolist() == [1, 5, 9_999, 2, 2]

    # The end of a long review is kept.
    assert long.tolist() == list(range(47, 303))


@pytest.mark.parametrize(("name", "module"), [("movielens", movielens), ("imdb", imdb)])
def test_another_file_and_an_absent_one(tmp_path, monkeypatch, name, module):
    """A file with another checksum is refused, and for an absent one the user is told where it is looked for."""
    write_source(tmp_path, monkeypatch, module, "small.npz", b"cut", "PREPARED", b"whole")
    with pytest.raises(UserError, match=r"small\.npz is not the original file"):
        data.load(name)

    (tmp_path / "small.npz").unlink()
    advice = r"set GDPJAX_DATA to a folder that holds .*or leave it unset and allow the download"
    with pytest.raises(UserError, match=advice):
        data.load(name)
