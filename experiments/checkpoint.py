"""Checkpoints that continue a run bit for bit, or refuse to.

Orbax writes the arrays into a new folder; then ``index.json``, replaced atomically, names that folder, the checksum of
each of its files, and the run that it belongs to. Whatever is not in the index does not exist, so a crash at any
moment leaves the previous checkpoint. The folder holds the keys of the sampling and of the noise: whoever has them
can subtract the noise, hence its name.

Repeating the steps since the last checkpoint costs no privacy, because the same keys on the same data give the same
bits. On another machine or version that would not hold, the same noise would be reused on slightly different
gradients, and so a checkpoint is refused there.
"""

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from experiments import records
from experiments.errors import UserError

FOLDER = "checkpoints.NOT_FOR_RELEASE"
INDEX = "index.json"


def _is_key(leaf: Any) -> bool:
    return hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _flatten(tree: Any) -> dict[str, jax.Array]:
    """Leaves by position, keys as plain words: independent of how the tree's types are spelled."""
    leaves = [jax.random.key_data(leaf) if _is_key(leaf) else leaf for leaf in jax.tree.leaves(tree)]
    return {f"{i:05d}": jnp.asarray(leaf) for i, leaf in enumerate(leaves)}


def _unflatten(template: Any, flat: dict[str, jax.Array]) -> Any:
    leaves, treedef = jax.tree.flatten(template)
    restored = [flat[f"{i:05d}"] for i in range(len(leaves))]
    wrapped = [
        jax.random.wrap_key_data(new, impl=jax.random.key_impl(old)) if _is_key(old) else new
        for old, new in zip(leaves, restored, strict=True)
    ]
    return treedef.unflatten(wrapped)


def _checksums(folder: Path) -> dict[str, str]:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def save(run_folder: Path, step: int, tree: Any, identity: dict[str, Any]) -> None:
    """Make ``tree`` after ``step`` steps the checkpoint of the run ``identity``."""
    import orbax.checkpoint as ocp  # slow to import

    folder = run_folder / FOLDER
    folder.mkdir(exist_ok=True)
    arrays = folder / f"step_{step:08d}"
    shutil.rmtree(arrays, ignore_errors=True)  # left by a crash before it was indexed
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(arrays.resolve(), _flatten(tree))
        checkpointer.wait_until_finished()
    index = {"step": step, "arrays": arrays.name, "sha256": _checksums(arrays), "identity": identity}
    records.write_json(folder / INDEX, index)
    for other in folder.iterdir():
        if other.is_dir() and other.name != arrays.name:
            shutil.rmtree(other)


def exists(run_folder: Path) -> bool:
    """Whether the run has a checkpoint."""
    return (run_folder / FOLDER / INDEX).is_file()


def restore(run_folder: Path, template: Any, identity: dict[str, Any]) -> tuple[int, Any]:
    """The step and the tree of the run's checkpoint. Refused with the differences unless the identity is the same."""
    import orbax.checkpoint as ocp

    index = _read_index(run_folder)
    _refuse_differences(index["identity"], json.loads(json.dumps(identity)))
    arrays = run_folder / FOLDER / index["arrays"]
    got = _checksums(arrays)
    for name in sorted(index["sha256"].keys() | got.keys()):
        if index["sha256"].get(name) != got.get(name):
            state = (
                "damaged" if name in got and name in index["sha256"] else "missing" if name not in got else "foreign"
            )
            raise UserError(f"checkpoint file {arrays / name} is {state}; start a new run with another --out")
    with ocp.StandardCheckpointer() as checkpointer:
        flat = checkpointer.restore(arrays.resolve(), _flatten(template))
    return int(index["step"]), _unflatten(template, flat)


def _read_index(run_folder: Path) -> dict[str, Any]:
    path = run_folder / FOLDER / INDEX
    if not path.is_file():
        raise UserError(f"nothing to resume: there is no checkpoint in {run_folder}")
    try:
        index = json.loads(path.read_text())
        complete = {"step", "arrays", "sha256", "identity"} <= index.keys()
    except (ValueError, AttributeError) as error:
        raise UserError(f"checkpoint file {path} is damaged ({error}); start a new run with another --out") from error
    if not complete:
        raise UserError(f"checkpoint file {path} is damaged (entries are missing); start a new run with another --out")
    return index


def _refuse_differences(saved: dict[str, Any], current: dict[str, Any]) -> None:
    names = sorted(saved.keys() | current.keys())
    differences = [
        f"{name}: {saved.get(name)!r} then, {current.get(name)!r} now"
        for name in names
        if saved.get(name) != current.get(name)
    ]
    if differences:
        raise UserError(
            "this run cannot be resumed bit for bit, because it differs from the one that was begun "
            f"({'; '.join(differences)}); restore those, or start a new run with another --out"
        )
