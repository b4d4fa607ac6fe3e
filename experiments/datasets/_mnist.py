"""MNIST: from the folder in GDPJAX_DATA when that is set, else downloaded once into a cache; checksums always."""

import hashlib
import os
from pathlib import Path

import numpy as np

from experiments.datasets._idx import read_idx
from experiments.datasets._types import Dataset
from experiments.errors import UserError

ENVIRONMENT_VARIABLE = "GDPJAX_DATA"
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
BOTH_WAYS = (
    f"either set {ENVIRONMENT_VARIABLE} to a folder that holds the four files (in it or in its mnist folder), "
    f"or allow the download from {MIRRORS[0]} or {MIRRORS[1]}"
)


def load_mnist() -> Dataset:
    """60,000 images to train on and 10,000 to test on."""
    arrays = [read_idx(path) for path in _paths()]
    for part, images, labels in (("train", *arrays[:2]), ("test", *arrays[2:])):
        if images.ndim != 3 or labels.shape != images.shape[:1]:
            raise UserError(f"MNIST {part}: expected as many labels as images, got {labels.shape} and {images.shape}")
    images = [(array / np.float32(255)).astype(np.float32)[..., None] for array in arrays[::2]]
    labels = [array.astype(np.int32) for array in arrays[1::2]]
    return Dataset(images[0], labels[0], images[1], labels[1])


def _paths() -> list[Path]:
    folder = os.environ.get(ENVIRONMENT_VARIABLE)
    return [_local(Path(folder), name) for name in SHA256] if folder else _download()


def _local(folder: Path, name: str) -> Path:
    for path in (folder / "mnist" / name, folder / name):
        if path.is_file():
            got = hashlib.sha256(path.read_bytes()).hexdigest()
            if got != SHA256[name]:
                raise UserError(f"{path} is not the original file: its sha256 should be {SHA256[name]} but is {got}")
            return path
    raise UserError(f"MNIST: no {name} in {folder} or {folder / 'mnist'} ({ENVIRONMENT_VARIABLE}): {BOTH_WAYS}")


def _download() -> list[Path]:
    import pooch  # only needed here

    pooch.get_logger().setLevel("WARNING")
    failures = []
    for mirror in MIRRORS:
        # pooch checks the sha256 of a cached file too, and downloads a damaged one again
        cache = pooch.create(path=pooch.os_cache("gdpjax") / "mnist", base_url=mirror, registry=SHA256)
        try:
            return [Path(cache.fetch(name)) for name in SHA256]
        except OSError as error:  # requests' errors are OSErrors too; their text is long and says no more
            failures.append(f"{mirror}: {type(error).__name__}")
        except ValueError as error:  # a wrong checksum; the text names the file
            failures.append(f"{mirror}: {error}")
    raise UserError(f"MNIST could not be loaded ({'; '.join(failures)}): {BOTH_WAYS}")
