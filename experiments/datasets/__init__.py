"""Data sets by name, as NumPy arrays."""

from experiments.datasets._adult import load_adult
from experiments.datasets._digits import load_digits
from experiments.datasets._files import ENVIRONMENT_VARIABLE, read_gzip
from experiments.datasets._imdb import load_imdb, load_imdb_words
from experiments.datasets._mnist import load_mnist, load_mnist_scattering
from experiments.datasets._movielens import load_movielens
from experiments.datasets._types import Dataset
from experiments.errors import UserError

LOADERS = {
    "digits": load_digits,
    "mnist": load_mnist,
    "adult": load_adult,
    "imdb": load_imdb,
    "movielens": load_movielens,
    "mnist_scattering": load_mnist_scattering,
    "imdb_words": load_imdb_words,
}


def load(name: str) -> Dataset:
    """Load a data set, or say why it cannot be."""
    if name not in LOADERS:
        raise UserError(f"dataset must be one of {', '.join(LOADERS)}, got {name!r}")
    return LOADERS[name]()


__all__ = ["ENVIRONMENT_VARIABLE", "LOADERS", "Dataset", "load", "read_gzip"]
