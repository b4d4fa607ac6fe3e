"""Data sets by name, as NumPy arrays with images in [0, 1]."""

from experiments.datasets._digits import load_digits
from experiments.datasets._mnist import load_mnist
from experiments.datasets._types import Dataset
from experiments.errors import UserError

LOADERS = {"digits": load_digits, "mnist": load_mnist}


def load(name: str) -> Dataset:
    """Load a data set, or say why it cannot be."""
    if name not in LOADERS:
        raise UserError(f"dataset must be one of {', '.join(LOADERS)}, got {name!r}")
    return LOADERS[name]()


__all__ = ["LOADERS", "Dataset", "load"]
