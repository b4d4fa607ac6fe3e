"""Data sets by name, as NumPy arrays."""

from experiments.data.adult import load_adult
from experiments.data.dataset import Dataset, Facts
from experiments.data.digits import load_digits
from experiments.data.files import ENVIRONMENT_VARIABLE, read_gzip
from experiments.data.imdb import load_imdb, load_imdb_words
from experiments.data.mnist import load_mnist, load_mnist_scattering
from experiments.data.movielens import load_movielens

LOADERS = {
    "digits": load_digits,
    "mnist": load_mnist,
    "adult": load_adult,
    "imdb": load_imdb,
    "movielens": load_movielens,
    "mnist_scattering": load_mnist_scattering,
    "imdb_words": load_imdb_words,
}

FACTS = {
    "digits": Facts(10),
    "mnist": Facts(10),
    "adult": Facts(2),
    "imdb": Facts(2),
    "movielens": Facts(5, graded=True),
    "mnist_scattering": Facts(10),
    "imdb_words": Facts(2),
}
"""What is public of each data set, whatever is in it."""


def load(name: str) -> Dataset:
    """Load a data set."""
    return LOADERS[name]()


__all__ = ["ENVIRONMENT_VARIABLE", "FACTS", "LOADERS", "Dataset", "Facts", "load", "read_gzip"]
