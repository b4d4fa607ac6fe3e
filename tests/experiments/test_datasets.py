"""Where the data comes from, with checksums, and what happens when it does not come."""

import gzip
import hashlib
import http.server
import os
import threading

import numpy as np
import pytest

from experiments import datasets
from experiments.datasets import _mnist
from experiments.errors import UserError
from tests.experiments.test_idx import encode


@pytest.fixture
def fake_files(monkeypatch):
    """Four small files under MNIST's names, with their checksums expected."""
    rng = np.random.default_rng(0)
    arrays = [rng.integers(0, 256, (20, 28, 28)), np.arange(20) % 10, rng.integers(0, 256, (10, 28, 28)), np.arange(10)]
    files = {
        name: gzip.compress(encode(array.astype(np.uint8)), mtime=0)
        for name, array in zip(_mnist.SHA256, arrays, strict=True)
    }
    monkeypatch.setattr(_mnist, "SHA256", {name: hashlib.sha256(data).hexdigest() for name, data in files.items()})
    return files


def write(folder, files):
    """Put files into a folder, made if need be."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        (folder / name).write_bytes(data)


def test_digits_split_is_fixed_and_scaled():
    data, again = datasets.load("digits"), datasets.load("digits")
    assert data.train_images.shape == (1437, 8, 8, 1)
    assert data.test_images.shape == (360, 8, 8, 1)
    assert (data.train_images.min(), data.train_images.max()) == (0, 1)
    assert data.train_images.dtype == np.float32
    assert data.num_classes == 10
    assert data.digest() == again.digest()
    together = np.concatenate([data.train_images, data.test_images]).reshape(1797, -1)
    assert len(np.unique(together, axis=0)) == 1797


def test_unknown_dataset_is_refused():
    with pytest.raises(UserError, match="digits, mnist"):
        datasets.load("cifar")


@pytest.mark.parametrize("folder", ["mnist", "."])
def test_mnist_from_the_folder(tmp_path, monkeypatch, fake_files, folder):
    write(tmp_path / folder, fake_files)
    monkeypatch.setenv("GDPJAX_DATA", str(tmp_path))
    data = datasets.load("mnist")
    assert data.train_images.shape == (20, 28, 28, 1)
    assert data.train_images.dtype == np.float32
    assert 0 <= data.train_images.min() <= data.train_images.max() <= 1
    np.testing.assert_array_equal(data.test_labels, np.arange(10))


def test_mnist_wrong_checksum_names_the_file(tmp_path, monkeypatch, fake_files):
    write(tmp_path, fake_files)
    damaged = tmp_path / "t10k-labels-idx1-ubyte.gz"
    damaged.write_bytes(damaged.read_bytes()[:-1])
    monkeypatch.setenv("GDPJAX_DATA", str(tmp_path))
    with pytest.raises(UserError, match=r"t10k-labels-idx1-ubyte\.gz is not the original"):
        datasets.load("mnist")


def test_mnist_absent_says_both_ways(tmp_path, monkeypatch):
    monkeypatch.setenv("GDPJAX_DATA", str(tmp_path))
    with pytest.raises(UserError, match=r"set GDPJAX_DATA.*or allow the download"):
        datasets.load("mnist")


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
    monkeypatch.setattr(_mnist, "MIRRORS", (address + "absent/", address))
    assert len(datasets.load("mnist").train_labels) == 20
    monkeypatch.setattr(_mnist, "MIRRORS", ("http://127.0.0.1:9/",))
    assert len(datasets.load("mnist").train_labels) == 20


def test_mnist_download_of_a_damaged_file_names_it(no_folder, monkeypatch, fake_files, mirror):
    served, address = mirror
    write(served, fake_files | {"train-labels-idx1-ubyte.gz": b"damaged"})
    monkeypatch.setattr(_mnist, "MIRRORS", (address,))
    with pytest.raises(UserError, match=r"train-labels-idx1-ubyte\.gz.*set GDPJAX_DATA"):
        datasets.load("mnist")


def test_mnist_without_folder_or_network_says_both_ways(no_folder, monkeypatch):
    monkeypatch.setattr(_mnist, "MIRRORS", ("http://127.0.0.1:9/", "http://127.0.0.1:9/again/"))
    with pytest.raises(UserError, match=r"set GDPJAX_DATA.*or allow the download"):
        datasets.load("mnist")


@pytest.mark.skipif("GDPJAX_DATA" not in os.environ, reason="needs the MNIST files in GDPJAX_DATA")
def test_real_mnist():
    data = datasets.load("mnist")
    assert data.train_images.shape == (60000, 28, 28, 1)
    assert data.test_images.shape == (10000, 28, 28, 1)
    assert round(float(data.train_images.mean()), 4) == 0.1307
    assert np.bincount(data.test_labels).tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
