"""MNIST: from the folder in GDPJAX_DATA when that is set, else downloaded once into a cache; checksums always.

Its scattering features take minutes, and are kept in the cache, too: float32, 140 MB.
"""

import dataclasses
import functools
import hashlib
from pathlib import Path

import numpy as np

from experiments.data import class_whitening, deskew, public_digits, scattering
from experiments.data.dataset import Dataset
from experiments.data.files import Source, cache_folder, fetch, read_gzip

MIRRORS = (
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
)
SHA256 = {
    "train-images-idx3-ubyte.gz": "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
    "train-labels-idx1-ubyte.gz": "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
    "t10k-images-idx3-ubyte.gz": "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
    "t10k-labels-idx1-ubyte.gz": "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
}
NUM_BLOCKS = 7
NUM_COMPONENTS = 500
FEATURE_NORM = 3.0
PIECE = 5000
SOURCES = (scattering, deskew, public_digits, class_whitening)
"""What the features are computed by: the cache is for these files as they are."""


def load_mnist() -> Dataset:
    """Return 60,000 images to train on and 10,000 to test on."""
    paths = fetch(Source("MNIST", SHA256, "mnist", MIRRORS))
    train_images, train_labels, test_images, test_labels = (read_gzip(path) for path in paths)
    return Dataset(_grays(train_images), _labels(train_labels), _grays(test_images), _labels(test_labels))


def _grays(content: bytes) -> np.ndarray:
    """Return images as numbers from 0 to 1, with an axis of one channel. They follow a header of 16 bytes."""
    images = np.frombuffer(content, np.uint8, offset=16).reshape(-1, 28, 28, 1)
    return (images / np.float32(255)).astype(np.float32)


def _labels(content: bytes) -> np.ndarray:
    """Return labels, which follow a header of 8 bytes."""
    return np.frombuffer(content, np.uint8, offset=8).astype(np.int32)


def load_mnist_scattering() -> Dataset:
    """Return the same as vectors of 500 features, each vector with norm 3.

    Scattering coefficients of the deskewed image, in coordinates that scikit-learn's digits chose: public data, and
    their labels, were used. Nothing is a statistic of MNIST; the features of an image are a function of that image.
    """
    mnist = load_mnist()
    return dataclasses.replace(
        mnist,
        train_inputs=_features(mnist.train_inputs),
        test_inputs=_features(mnist.test_inputs),
    )


def _features(images: np.ndarray) -> np.ndarray:
    """Return the features of each image, from the cache if these images are there, computed as they are now."""
    # The name of the file depends on the settings, on the code, and on the images.
    settings = f"{images.shape}{NUM_BLOCKS}{NUM_COMPONENTS}{FEATURE_NORM}".encode()
    sources = b"".join(Path(str(module.__file__)).read_bytes() for module in SOURCES)
    digest = hashlib.sha256(settings + sources + images.tobytes()).hexdigest()
    path = cache_folder() / "mnist" / f"scattering-{digest[:16]}.npy"
    if path.is_file():
        return np.load(path)

    # Written under another name first: a file of that name is complete.
    features = _vectors(images[..., 0], _public_whitening())
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial.npy")
    np.save(partial, features)
    partial.replace(path)
    return features


def _vectors(images: np.ndarray, whitening: class_whitening.ClassWhitening) -> np.ndarray:
    """Return vectors of norm 3, so that the bias, whose input is 1, has a small share of a gradient's norm."""
    pieces = []
    for first in range(0, len(images), PIECE):
        piece = images[first : first + PIECE]
        pieces.append(whitening(_coefficients(piece)))
    vectors = np.concatenate(pieces)
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.float32(FEATURE_NORM) * vectors / norms


@functools.cache
def _public_whitening() -> class_whitening.ClassWhitening:
    """Return the coordinates, from digits that are not MNIST's."""
    images, labels = public_digits.load_public_digits()
    coefficients = _coefficients(images)
    return class_whitening.fit_class_whitening(coefficients, labels, NUM_COMPONENTS)


def _coefficients(images: np.ndarray) -> np.ndarray:
    """Return the scattering coefficients of deskewed images ``[N, 28, 28]``, ``float32[N, 3969]``."""
    upright = deskew.deskew(images)
    coefficients = scattering.scattering(upright, NUM_BLOCKS)
    return coefficients.reshape(len(images), -1)
