"""Weights of our own in one file: nested dictionaries of arrays, by the paths of their leaves."""

from pathlib import Path

from safetensors.flax import load_file, save

from experiments.language.lora import Params, flat, nested
from gdpjax.sweeps import records


def save_params(path: str | Path, params: Params, mode: int = 0o666) -> None:
    """Write nested dictionaries of arrays as one safetensors file, in one step that survives a crash.

    What is not for release has ``mode`` 0o600, so that nobody else on the machine reads it.
    """
    records.write_atomically(Path(path), save(flat(params)), mode)


def load_params(path: str | Path) -> Params:
    """Read what `save_params` wrote."""
    return nested(load_file(path))
