"""Weights of our own in one file, and a tree of arrays by the paths of its leaves."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax.numpy as jnp
from safetensors import SafetensorError
from safetensors.flax import load_file, save

from experiments.errors import UserError
from gdpjax.sweeps import records


def save_params(path: str | Path, params: Mapping[str, Any], mode: int = 0o666) -> None:
    """Write nested dictionaries of arrays as one safetensors file, in one step that survives a crash.

    What is not for release has ``mode`` 0o600, so that nobody else on the machine reads it.
    """
    arrays = {name: jnp.asarray(leaf) for name, leaf in _leaves(params)}
    records.write_atomically(Path(path), save(arrays), mode)


def load_params(path: str | Path) -> dict[str, Any]:
    """Read what `save_params` wrote."""
    path = Path(path)
    try:
        # The file's own reader knows bfloat16; that of bytes in memory does not.
        arrays = load_file(path)
    except SafetensorError as error:
        raise UserError(f"{path} is damaged ({error}); remove it, and it will be made again") from None
    params: dict[str, Any] = {}
    for name, array in arrays.items():
        *parents, leaf = name.split("/")
        place = params
        for parent in parents:
            place = place.setdefault(parent, {})
        place[leaf] = array
    return params


def _leaves(params: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    """Return pairs of path and array, such as "layers/attention/query/kernel"."""
    found = []
    for name, child in params.items():
        path = f"{prefix}{name}"
        found += _leaves(child, f"{path}/") if isinstance(child, Mapping) else [(path, child)]
    return found
