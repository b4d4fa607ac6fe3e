"""Data comes from a folder or a mirror, with checksums, and where it does not come the user is told what to do."""

import gzip
import hashlib
import http.server
import struct
import threading

import numpy as np
import pytest

from experiments import data
from experiments.data import adult as adult_files
from experiments.data import mnist
from gdpjax.sweeps import UserError


def encode(array):
    """The bytes of an IDX file of unsigned bytes."""
    return struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes()


@pytest.fixture
def fake_files(monkeypatch):
    """Four small files under MNIST's names, with their checksums expected."""
    rng = np.random.default_rng(0)
    arrays = [rng.integers(0, 256, (20, 28, 28)), np.arange(20) % 10, rng.integers(0, 256, (10, 28, 28)), np.arange(10)]
    files = {
        name: gzip.compress(encode(array.astype(np.uint8)), mtime=0)
        for name, array in zip(mnist.SHA256, arrays, strict=True)
    }
    monkeypatch.setattr(mnist, "SHA256", {name: hashlib.sha256(content).hexdigest() for name, content in files.items()})
    return files


def write(folder, files):
    """Put files into a folder, made if need be."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)


def test_digits_split_is_fixed_and_scaled():
    dataset, again = data.load("digits"), data.load("digits")
    assert dataset.train_inputs.shape == (1437, 8, 8, 1)
    assert dataset.test_inputs.shape == (360, 8, 8, 1)
    assert (dataset.train_inputs.min(), dataset.train_inputs.max()) == (0, 1)
    assert dataset.train_inputs.dtype == np.float32
    assert dataset.num_classes == 10
    np.testing.assert_array_equal(dataset.train_inputs, again.train_inputs)
    together = np.concatenate([dataset.train_inputs, dataset.test_inputs]).reshape(1797, -1)
    assert len(np.unique(together, axis=0)) == 1797


@pytest.mark.parametrize("folder", ["mnist", "."])
def test_mnist_from_the_folder(tmp_path, monkeypatch, fake_files, folder):
    write(tmp_path / folder, fake_files)
    monkeypatch.setenv("GDPJAX_DATA", str(tmp_path))
    dataset = data.load("mnist")
    assert dataset.train_inputs.shape == (20, 28, 28, 1)
    assert dataset.train_inputs.dtype == np.float32
    assert 0 <= dataset.train_inputs.min() <= dataset.train_inputs.max() <= 1
    np.testing.assert_array_equal(dataset.test_labels, np.arange(10))


def test_mnist_wrong_checksum_names_the_file(tmp_path, monkeypatch, fake_files):
    write(tmp_path, fake_files)
    damaged = tmp_path / "t10k-labels-idx1-ubyte.gz"
    damaged.write_bytes(damaged.read_bytes()[:-1])
    monkeypatch.setenv("GDPJAX_DATA", str(tmp_path))
    with pytest.raises(UserError, match=r"t10k-labels-idx1-ubyte\.gz is not the original"):
        data.load("mnist")


@pytest.fixture
def no_folder(tmp_path, monkeypatch):
    """GDPJAX_DATA unset and an empty cache."""
    import pooch

    monkeypatch.delenv("GDPJAX_DATA", raising=False)
    monkeypatch.setattr(pooch, "os_cache", lambda name: tmp_path / "cache" / name)
    return tmp_path


@pytest.fixture
def mirror(tmp_path):
    """A local web server of the folder ``served``, and its address."""
    (tmp_path / "served").mkdir()

    class Handler(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *args):
            super().__init__(*args, directory=tmp_path / "served")

        def log_message(self, *args):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield tmp_path / "served", f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


def test_mnist_download_falls_back_to_the_second_mirror_and_is_cached(no_folder, monkeypatch, fake_files, mirror):
    served, address = mirror
    write(served, fake_files)
    monkeypatch.setattr(mnist, "MIRRORS", (address + "absent/", address))
    assert len(data.load("mnist").train_labels) == 20
    monkeypatch.setattr(mnist, "MIRRORS", ("http://127.0.0.1:9/",))
    assert len(data.load("mnist").train_labels) == 20


def test_mnist_without_folder_or_network_says_both_ways(no_folder, monkeypatch):
    monkeypatch.setattr(mnist, "MIRRORS", ("http://127.0.0.1:9/", "http://127.0.0.1:9/again/"))
    with pytest.raises(UserError, match=r"set GDPJAX_DATA.*or leave it unset and allow the download"):
        data.load("mnist")


PEOPLE = b"-1 3:1 123:1 \n+1 1:1 \n-1\n"


@pytest.fixture
def adult(tmp_path, monkeypatch):
    """A folder for a9a, and what writes it: two people to train on, one to test on."""
    monkeypatch.setenv("GDPJAX_DATA", str(tmp_path))
    monkeypatch.setattr(adult_files, "NUM_TRAIN", 2)

    def put(name, content, honest=PEOPLE):
        (tmp_path / name).write_bytes(content)
        monkeypatch.setattr(adult_files, "SHA256", {"a9a": hashlib.sha256(honest).hexdigest()})

    return put


@pytest.mark.parametrize(("name", "pack"), [("a9a", bytes), ("a9a.gz", gzip.compress)], ids=["plain", "gzip"])
def test_adult_is_read_packed_or_not(adult, name, pack):
    adult(name, pack(PEOPLE))
    dataset = data.load("adult")
    assert dataset.train_inputs.shape == (2, 123)
    assert np.argwhere(dataset.train_inputs).tolist() == [[0, 2], [0, 122], [1, 0]]
    assert dataset.train_labels.tolist() == [0, 1]
    assert dataset.test_inputs.sum() == 0
    assert dataset.test_labels.tolist() == [0]


@pytest.mark.parametrize(
    ("name", "content", "honest", "message"),
    [
        (
            "a9a",
            PEOPLE[:-3],
            PEOPLE,
            "a9a is not the original file.*; replace it by the original, or unset GDPJAX_DATA",
        ),
        ("a9a.gz", gzip.compress(PEOPLE)[:-9], PEOPLE, r"a9a\.gz is not a readable gzip file"),
        ("a9a.txt", PEOPLE, PEOPLE, r"Adult: no a9a in .*set GDPJAX_DATA.*or leave it unset and allow the download"),
    ],
    ids=["cut", "cut gzip", "absent"],
)
def test_adult_absent_or_damaged(adult, name, content, honest, message):
    adult(name, content, honest)
    with pytest.raises(UserError, match=message):
        data.load("adult")
