"""Keep the arrays of a run on disk, by orbax: complete, or not there.

Orbax writes the arrays into a new folder; then an index, replaced in one step, names that folder and the checksum of
each of its files. Files that are not in the index do not count, so a crash at any moment leaves the previous
checkpoint. The folder holds the keys of sampling and noise: whoever has them can subtract the noise, hence its name.
It has mode 0700, and its files 0600, whatever the umask says.

With several processes the folder is shared: each writes its part of the arrays, the first writes the index.
"""

import hashlib
import json
import os
import shutil
from itertools import zip_longest
from pathlib import Path
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import msgspec

from gdpjax._core.documents import DocumentError, convert_document, read_document
from gdpjax._core.files import sync, write_atomically
from gdpjax._core.trees import leaf_names
from gdpjax._core.types import PyTree
from gdpjax.training._processes import CheckpointError, is_first_process, together

FORMAT_VERSION = 3
FOLDER = "checkpoints.NOT_FOR_RELEASE"
INDEX = "index.json"
_PATHS_ORBAX_MISREADS = ("\\", "[", ":/")


class Index(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """The content of `INDEX`: which arrays are the checkpoint, and what they belong to.

    Attributes:
      version: of the format.
      step: the number of steps done.
      saves: how many checkpoints this run has written.
      arrays: the folder that holds the arrays.
      leaves: type and shape of each array.
      sha256: of each file.
      plan: of the run.
      fingerprint: of the process that wrote it.
      key_impl: the implementation of the keys.
      journal: how many lines of the journal it covers.
      journal_sha256: the checksum that those lines end with.
      initial: digest of the state that the run began with.
    """

    version: int
    step: Annotated[int, msgspec.Meta(ge=0)]
    saves: Annotated[int, msgspec.Meta(ge=1)]
    arrays: Annotated[str, msgspec.Meta(pattern=r"^step_[0-9]+_[0-9]+$")]
    leaves: list[str]
    sha256: dict[str, str]
    plan: dict[str, Any]
    fingerprint: dict[str, Any]
    key_impl: str
    journal: Annotated[int, msgspec.Meta(ge=0)]
    journal_sha256: str
    initial: str


def _is_key(leaf: Any) -> bool:
    """Return whether a leaf is a typed PRNG key."""
    return jnp.issubdtype(jnp.asarray(leaf).dtype, jax.dtypes.prng_key)


def _flatten(tree: PyTree) -> dict[str, jax.Array]:
    """Return the leaves in order, with the data of keys in their place, by names that no spelling of types changes."""
    leaves = [jax.random.key_data(leaf) if _is_key(leaf) else jnp.asarray(leaf) for leaf in jax.tree.leaves(tree)]
    return {f"{position:05d}": leaf for position, leaf in enumerate(leaves)}


def _stored(tree: PyTree) -> dict[str, jax.Array]:
    """Return the leaves that orbax writes: all but those of size zero, which it refuses and which hold nothing."""
    return {name: array for name, array in _flatten(tree).items() if array.size > 0}


def _unflatten(template: PyTree, flat: dict[str, jax.Array]) -> PyTree:
    """Return the tree of these leaves, whose keys are of the template's implementations."""
    leaves, treedef = jax.tree.flatten(template)
    restored = list(flat.values())
    for position, leaf in enumerate(leaves):
        if _is_key(leaf):
            restored[position] = jax.random.wrap_key_data(restored[position], impl=jax.random.key_impl(leaf))
    return treedef.unflatten(restored)


def _shapes(tree: PyTree) -> list[str]:
    """Return type and shape of each leaf."""
    return [f"{leaf.dtype}{list(leaf.shape)}" for leaf in _flatten(tree).values()]


def _checksums(folder: Path) -> dict[str, str]:
    """Return the checksum of each file in a folder, by its path there."""
    checksums = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            name = path.relative_to(folder).as_posix()
            checksums[name] = hashlib.sha256(path.read_bytes()).hexdigest()
    return checksums


def _orbax() -> Any:
    """Return orbax.checkpoint; it is an extra, and slow to import."""
    try:
        import orbax.checkpoint
    except ImportError as error:
        raise ImportError(
            "checkpoints are written by orbax, the extra checkpoints: in a clone, pip install '.[checkpoints]'"
        ) from error
    return orbax.checkpoint


def _write_arrays(folder: Path, tree: PyTree) -> None:
    """Write the leaves into a new folder, and wait until they are there."""
    ocp = _orbax()
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(folder.resolve(), _stored(tree))
        checkpointer.wait_until_finished()


def make_private_folder(folder: Path) -> None:
    """Make ``folder``, or take what is there, so that only its owner can enter it."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    os.chmod(folder, 0o700)
    sync(folder.parent)


def _sync_private_tree(folder: Path) -> None:
    """Make everything below ``folder`` private and durable, and ``folder`` itself in its parent."""
    for path in folder.rglob("*"):
        os.chmod(path, 0o700 if path.is_dir() else 0o600)
        sync(path)
    os.chmod(folder, 0o700)
    sync(folder)
    sync(folder.parent)


def check_path(folder: Path) -> None:
    """Refuse a folder in which orbax writes arrays that it does not find again, or none at all.

    >>> check_path(Path("runs/a[1]"))
    Traceback (most recent call last):
    ...
    ValueError: checkpoints cannot be kept in a folder with '[' in its path, got .../runs/a[1]; choose another folder
    """
    path = os.path.realpath(folder)
    misread = () if os.name == "nt" else _PATHS_ORBAX_MISREADS
    for piece in misread:
        if piece in path + "/":
            raise ValueError(
                f"checkpoints cannot be kept in a folder with {piece!r} in its path, got {path}; choose another folder"
            )


def _check_room(folder: Path, tree: PyTree) -> None:
    """Raise OSError if the disk has no room for ``tree`` and the files that are written beside it.

    Orbax on a full disk fails in several threads at once, which print hundreds of lines before anything can be caught.
    """
    num_bytes = sum(leaf.nbytes for leaf in _flatten(tree).values())
    needed = int(1.1 * num_bytes) + 2**16
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise OSError(f"no space left on device: about {needed:,} bytes are needed, {free:,} are free")


def _in_short(error: BaseException) -> str:
    """Return the reason that an operating system gave, or else the beginning of the message."""
    text = str(error)
    for reason in ("No space left on device", "Disk quota exceeded", "Read-only file system", "Permission denied"):
        if reason in text:
            return reason
    return " ".join(text.split())[:300]


def save(folder: Path, tree: PyTree, about: dict[str, Any]) -> None:
    """Make ``tree`` the checkpoint in ``folder``, described by ``about``; CheckpointError if the disk refuses.

    The previous checkpoint is deleted when all files of the new one are on the disk.
    """
    step = about["step"]
    arrays = folder / FOLDER / _name_of(step, about["saves"])

    def prepare() -> None:
        if is_first_process():
            make_private_folder(arrays.parent)
            # A crash or a full disk may have left a part of these arrays.
            for unfinished in arrays.parent.glob(f"step_*_{about['saves']:06d}*"):
                shutil.rmtree(unfinished)
            _check_room(arrays.parent, tree)

    def finish() -> None:
        _sync_private_tree(arrays)
        if is_first_process():
            index = Index(
                version=FORMAT_VERSION,
                arrays=arrays.name,
                leaves=_shapes(tree),
                sha256=_checksums(arrays),
                **about,
            )
            text = json.dumps(msgspec.to_builtins(index), indent=1, allow_nan=False)
            write_atomically(arrays.parent / INDEX, text + "\n", 0o600)

            # From here on the other folders do not count.
            for other in arrays.parent.iterdir():
                if other.is_dir() and other.name != arrays.name:
                    shutil.rmtree(other)

    problem = ""
    try:
        together(prepare)
        _write_arrays(arrays, tree)
        together(finish)
    except (OSError, ValueError, RuntimeError) as error:
        problem = _in_short(error)
    # Outside of the handler, so that the traceback is this sentence's alone.
    if problem:
        raise CheckpointError(
            f"the checkpoint after step {step} could not be written to {arrays.parent}: {problem}. The state is "
            "intact in run.state, and the budget of these steps is on record; make room, then call run.save() and go on"
        )


def _name_of(step: int, saves: int) -> str:
    """Return the folder of the arrays; no two checkpoints of a run have the same ``saves``."""
    return f"step_{step:08d}_{saves:06d}"


def exists(folder: Path) -> bool:
    """Return whether the folder holds a checkpoint."""
    return (folder / FOLDER / INDEX).exists()


def read_index(folder: Path) -> Index:
    """Return the index of the folder's checkpoint; CheckpointError if it is missing, damaged or of another version."""
    path = folder / FOLDER / INDEX
    if not exists(folder):
        raise CheckpointError(f"nothing to resume: there is no checkpoint in {folder}")
    try:
        content = read_document(path, dict[str, Any])
        if "version" in content and content["version"] != FORMAT_VERSION:
            raise CheckpointError(
                f"the checkpoint in {folder} is of format version {content['version']!r}, and this gdpjax reads "
                f"version {FORMAT_VERSION}: resume it with the gdpjax that wrote it"
            )
        index = convert_document(content, Index, str(path))
        if index.arrays != _name_of(index.step, index.saves):
            raise DocumentError(str(path), "expected the folder of its own step and saves, got another", "arrays")
    except DocumentError as error:
        raise CheckpointError(f"the checkpoint's index is damaged: {error}; restore it from a copy") from error
    return index


def refuse_other_arrays(folder: Path, index: Index, template: PyTree) -> None:
    """Raise CheckpointError unless the checkpoint holds arrays of the template's names, shapes and types."""
    for name, then, now in zip_longest(leaf_names(template), index.leaves, _shapes(template)):
        if then != now:
            raise CheckpointError(
                f"the checkpoint in {folder} holds other arrays than this training's state, so the model or the "
                f"optimizer changed; give those of the run. The first difference is at {name or 'the end'}: "
                f"{then or 'nothing'} then, {now or 'nothing'} now"
            )


def restore(folder: Path, index: Index, template: PyTree) -> PyTree:
    """Return the tree of the checkpoint, whose arrays are like the template's, checked byte by byte."""
    ocp = _orbax()
    arrays = folder / FOLDER / index.arrays

    # Every file must be the one that was written.
    expected = index.sha256
    try:
        present = _checksums(arrays)
    except OSError as error:
        raise CheckpointError(f"the checkpoint in {arrays} cannot be read: {error.strerror}") from error
    for name in sorted(expected.keys() | present.keys()):
        if expected.get(name) != present.get(name):
            fault = "damaged" if name in present else "missing"
            raise CheckpointError(f"checkpoint file {arrays / name} is {fault}; restore it from a copy, or start again")

    try:
        with ocp.StandardCheckpointer() as checkpointer:
            stored = checkpointer.restore(arrays.resolve(), _stored(template))
    except (OSError, ValueError, RuntimeError) as error:
        raise CheckpointError(f"orbax cannot read the checkpoint in {arrays}: {_in_short(error)}") from error

    # Leaves of size zero are the template's, whose shapes are those of the checkpoint.
    return _unflatten(template, _flatten(template) | stored)
