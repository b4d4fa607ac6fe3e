"""The arrays of a run on disk, through orbax: complete, or not there.

Orbax writes the arrays into a new folder; then an index, replaced in one step, names that folder and the checksum of
each of its files. Whatever is not in the index does not exist, so a crash at any moment leaves the previous
checkpoint. The folder holds the keys of sampling and noise: whoever has them can subtract the noise, hence its name.

With several processes the folder is shared: each writes its part of the arrays, the first writes the index.
"""

import hashlib
import json
import shutil
from itertools import zip_longest
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from gdpjax._core.types import PyTree
from gdpjax.training._files import CheckpointError, write_json
from gdpjax.training._processes import barrier, is_first_process

FORMAT_VERSION = 1
FOLDER = "checkpoints.NOT_FOR_RELEASE"
INDEX = "index.json"
_ENTRIES = {"version", "step", "arrays", "leaves", "sha256", "plan", "fingerprint", "key_impl", "journal"}


def _flatten(tree: PyTree) -> dict[str, jax.Array]:
    """Leaves by position, keys as plain words: independent of how the tree's types are spelled."""
    is_key = lambda leaf: jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)  # noqa: E731
    leaves = [jax.random.key_data(leaf) if is_key(leaf) else leaf for leaf in map(jnp.asarray, jax.tree.leaves(tree))]
    return {f"{i:05d}": leaf for i, leaf in enumerate(leaves)}


def _unflatten(template: PyTree, flat: dict[str, jax.Array]) -> PyTree:
    leaves, treedef = jax.tree.flatten(template)
    restored = [flat[f"{i:05d}"] for i in range(len(leaves))]
    wrapped = [
        jax.random.wrap_key_data(new, impl=jax.random.key_impl(old))
        if jnp.issubdtype(jnp.asarray(old).dtype, jax.dtypes.prng_key)
        else new
        for old, new in zip(leaves, restored, strict=True)
    ]
    return treedef.unflatten(wrapped)


def _shapes(tree: PyTree) -> list[str]:
    return [f"{leaf.dtype}{list(leaf.shape)}" for leaf in _flatten(tree).values()]


def _checksums(folder: Path) -> dict[str, str]:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def _orbax() -> Any:
    """orbax.checkpoint: slow to import, and an extra."""
    try:
        import orbax.checkpoint
    except ImportError as error:
        raise ImportError("checkpoints are written by orbax: pip install 'gdpjax[checkpoints]'") from error
    return orbax.checkpoint


def _write_arrays(folder: Path, tree: PyTree) -> None:
    ocp = _orbax()
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(folder.resolve(), _flatten(tree))
        checkpointer.wait_until_finished()


def save(folder: Path, step: int, tree: PyTree, about: dict[str, Any]) -> None:
    """Make ``tree`` the checkpoint in ``folder``, described by ``about``; CheckpointError if the disk refuses."""
    arrays = folder / FOLDER / f"step_{step:08d}_{about['journal']:06d}"
    try:
        if is_first_process():
            arrays.parent.mkdir(exist_ok=True)
            shutil.rmtree(arrays, ignore_errors=True)  # left by a crash before it was indexed
        barrier("gdpjax: the folder is ready")
        _write_arrays(arrays, tree)
        if is_first_process():
            sums = _checksums(arrays)
            described = {"version": FORMAT_VERSION, "step": step, "arrays": arrays.name, "leaves": _shapes(tree)}
            index = described | {"sha256": sums} | about
            write_json(arrays.parent / INDEX, index)
            for other in arrays.parent.iterdir():
                if other.is_dir() and other.name != arrays.name:
                    shutil.rmtree(other)
        barrier("gdpjax: the checkpoint is written")
    except (OSError, ValueError, RuntimeError) as error:
        raise CheckpointError(
            f"the checkpoint after step {step} could not be written to {arrays.parent}: {error}. The state is intact "
            "in run.state, and the budget of these steps is on record; make room, then call run.save() and go on"
        ) from error


def exists(folder: Path) -> bool:
    """Whether the folder holds a checkpoint."""
    return (folder / FOLDER / INDEX).is_file()


def read_index(folder: Path) -> dict[str, Any]:
    """The index of the folder's checkpoint; CheckpointError if there is none, it is damaged, or of another version."""
    path = folder / FOLDER / INDEX
    if not path.is_file():
        raise CheckpointError(f"nothing to resume: there is no checkpoint in {folder}")
    try:
        index = json.loads(path.read_text())
        missing = _ENTRIES - index.keys()
    except (ValueError, AttributeError) as error:
        raise CheckpointError(f"the checkpoint's index {path} is damaged: {error}") from error
    if index.get("version") != FORMAT_VERSION:
        raise CheckpointError(
            f"the checkpoint in {folder} is of format version {index.get('version')}, and this gdpjax reads version "
            f"{FORMAT_VERSION}: resume it with the gdpjax that wrote it"
        )
    if missing:
        raise CheckpointError(f"the checkpoint's index {path} is damaged: it lacks {sorted(missing)}")
    return index


def restore(folder: Path, index: dict[str, Any], template: PyTree) -> PyTree:
    """The tree of the checkpoint, checked byte by byte."""
    ocp = _orbax()
    shapes = _shapes(template)
    if index["leaves"] != shapes:
        pairs = zip_longest(index["leaves"], shapes)
        number, (then, now) = next((i, pair) for i, pair in enumerate(pairs) if pair[0] != pair[1])
        raise CheckpointError(
            f"the checkpoint in {folder} holds other arrays than this training's state: leaf {number} was {then} and "
            f"is {now} now; model and optimizer must be those of the run"
        )
    arrays = folder / FOLDER / index["arrays"]
    found, expected = _checksums(arrays), index["sha256"]
    for name in sorted(expected.keys() | found.keys()):
        if expected.get(name) != found.get(name):
            fault = "missing" if name not in found else "damaged" if name in expected else "foreign"
            raise CheckpointError(f"checkpoint file {arrays / name} is {fault}; restore it from a copy, or start again")
    with ocp.StandardCheckpointer() as checkpointer:
        return _unflatten(template, checkpointer.restore(arrays.resolve(), _flatten(template)))
