"""The arrays of a run on disk, through orbax: complete, or not there.

Orbax writes the arrays into a new folder; then an index, replaced in one step, names that folder and the checksum of
each of its files. Whatever is not in the index does not exist, so a crash at any moment leaves the previous
checkpoint. The folder holds the keys of sampling and noise: whoever has them can subtract the noise, hence its name.

With several processes the folder is shared: each writes its part of the arrays, the first writes the index.
"""

import contextlib
import gc
import hashlib
import logging
import os
import shutil
import sys
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import msgspec

from gdpjax._core.documents import DocumentError, convert_document, read_document
from gdpjax._core.shown import shown
from gdpjax._core.types import PyTree
from gdpjax.training._files import CheckpointError, make_private_folder, sync_private_tree, write_json
from gdpjax.training._processes import is_first_process, together

FORMAT_VERSION = 2
FOLDER = "checkpoints.NOT_FOR_RELEASE"
INDEX = "index.json"
_PATHS_ORBAX_MISREADS = ("\\", "[", ":/")


class Index(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """What `INDEX` holds: which arrays are the checkpoint, and what they belong to."""

    version: int
    step: Annotated[int, msgspec.Meta(ge=0)]
    saves: Annotated[int, msgspec.Meta(ge=1)]  # how many checkpoints this run has written
    arrays: Annotated[str, msgspec.Meta(pattern=r"^step_[0-9]+_[0-9]+$")]  # the folder that holds them
    leaves: list[str]  # type and shape of each
    sha256: dict[str, str]  # of each file
    plan: dict[str, Any]
    fingerprint: dict[str, Any]
    key_impl: str
    journal: Annotated[int, msgspec.Meta(ge=0)]  # how many lines of the journal it covers
    journal_sha256: str  # what those lines end with
    initial: str  # digest of the state that the run began with


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


def check_path(folder: Path) -> None:
    """Refuse a folder in which orbax writes arrays that it does not find again, or none at all.

    >>> check_path(Path("runs/a[1]"))
    Traceback (most recent call last):
    ...
    ValueError: checkpoints cannot be kept in a folder with '[' in its path, got .../runs/a[1]; choose another folder
    """
    path = os.path.realpath(folder)
    misread = [] if os.name == "nt" else [piece for piece in _PATHS_ORBAX_MISREADS if piece in path + "/"]
    if misread:
        raise ValueError(
            f"checkpoints cannot be kept in a folder with {misread[0]!r} in its path, got {path}; choose another folder"
        )
    try:
        path.encode()
    except UnicodeEncodeError:
        raise ValueError(f"expected a folder whose path is text, got {shown(path)}; choose another folder") from None


def _check_room(folder: Path, tree: PyTree) -> None:
    """OSError if the disk has no room for ``tree`` and what is written beside it.

    Orbax on a full disk fails in several threads at once, which print hundreds of lines before anything can be caught.
    """
    needed = int(1.1 * sum(leaf.nbytes for leaf in _flatten(tree).values())) + 2**16
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise OSError(f"no space left on device: about {needed:,} bytes are needed, {free:,} are free")


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """Keep what the threads of a failing orbax print from hiding the one sentence that says what happened."""
    loggers = [logging.getLogger(name) for name in ("absl", "asyncio")]
    drop = lambda record: record.levelno < logging.ERROR  # noqa: E731
    for logger in loggers:
        logger.addFilter(drop)
    hook, sys.unraisablehook = sys.unraisablehook, lambda unraisable: None
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeFilter(drop)
        sys.unraisablehook = hook


def _in_short(error: BaseException) -> str:
    """The reason that an operating system gave, or the first line of what a library made of it."""
    text = str(error)
    reasons = ("No space left on device", "Disk quota exceeded", "Read-only file system", "Permission denied")
    return next((reason for reason in reasons if reason in text), " ".join(text.split())[:300])


def save(folder: Path, tree: PyTree, about: dict[str, Any]) -> None:
    """Make ``tree`` the checkpoint in ``folder``, described by ``about``; CheckpointError if the disk refuses.

    The previous checkpoint is deleted when everything that the new one's checksum reads is on the disk.
    """
    step = about["step"]
    arrays = folder / FOLDER / _name_of(step, about["saves"])

    def prepare() -> None:
        if is_first_process():
            make_private_folder(arrays.parent)
            for unfinished in arrays.parent.glob(f"step_*_{about['saves']:06d}*"):  # a crash or a full disk left it
                shutil.rmtree(unfinished)
            _check_room(arrays.parent, tree)

    def finish() -> None:
        sync_private_tree(arrays)
        if is_first_process():
            described = about | {"arrays": arrays.name, "leaves": _shapes(tree), "sha256": _checksums(arrays)}
            index = Index(version=FORMAT_VERSION, **described)
            write_json(arrays.parent / INDEX, msgspec.to_builtins(index))
            for other in arrays.parent.iterdir():
                if other.is_dir() and other.name != arrays.name:
                    shutil.rmtree(other)

    problem = ""
    with _quietly():
        try:
            together(prepare)
            _write_arrays(arrays, tree)
            together(finish)
        except (OSError, ValueError, RuntimeError) as error:
            problem = _in_short(error)
        if problem:
            gc.collect()  # the futures of orbax's threads, which complain when they go
    # Outside of the handler, so that the traceback is this sentence's alone.
    if problem:
        raise CheckpointError(
            f"the checkpoint after step {step} could not be written to {arrays.parent}: {problem}. The state is "
            "intact in run.state, and the budget of these steps is on record; make room, then call run.save() and go on"
        )


def _name_of(step: int, saves: int) -> str:
    """The folder of the arrays; no two checkpoints of a run have the same ``saves``."""
    return f"step_{step:08d}_{saves:06d}"


def exists(folder: Path) -> bool:
    """Whether the folder holds a checkpoint."""
    return (folder / FOLDER / INDEX).exists()


def read_index(folder: Path) -> Index:
    """The index of the folder's checkpoint; CheckpointError if there is none, it is damaged, or of another version."""
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
        _check_key_impl(index.key_impl, str(path))
        if index.arrays != _name_of(index.step, index.saves):
            raise DocumentError(str(path), "expected the folder of its own step and saves, got another", "arrays")
    except DocumentError as error:
        raise CheckpointError(f"the checkpoint's index is damaged: {error}; restore it from a copy") from error
    return index


def _check_key_impl(name: str, source: str) -> None:
    try:
        jax.random.key(0, impl=name)
    except ValueError as error:
        raise DocumentError(
            source, f"expected the name of a key's implementation, got {shown(name)}", "key_impl"
        ) from error


def refuse_other_arrays(folder: Path, index: Index, template: PyTree) -> None:
    """CheckpointError unless the checkpoint holds arrays of the template's names, shapes and types."""
    shapes = _shapes(template)
    if index.leaves != shapes:
        pairs = zip_longest(index.leaves, shapes)
        number, (then, now) = next((i, pair) for i, pair in enumerate(pairs) if pair[0] != pair[1])
        raise CheckpointError(
            f"the checkpoint in {folder} holds other arrays than this training's state: leaf {number} was {then} and "
            f"is {now} now; model and optimizer must be those of the run"
        )


def restore(folder: Path, index: Index, template: PyTree) -> PyTree:
    """The tree of the checkpoint, checked byte by byte."""
    ocp = _orbax()
    refuse_other_arrays(folder, index, template)
    arrays = folder / FOLDER / index.arrays
    try:
        found, expected = _checksums(arrays), index.sha256
    except OSError as error:
        raise CheckpointError(f"the checkpoint in {arrays} cannot be read: {error.strerror}") from error
    for name in sorted(expected.keys() | found.keys()):
        if expected.get(name) != found.get(name):
            fault = "missing" if name not in found else "damaged" if name in expected else "foreign"
            raise CheckpointError(f"checkpoint file {arrays / name} is {fault}; restore it from a copy, or start again")
    try:
        with ocp.StandardCheckpointer() as checkpointer:
            return _unflatten(template, checkpointer.restore(arrays.resolve(), _flatten(template)))
    except (OSError, ValueError, RuntimeError) as error:
        raise CheckpointError(f"orbax cannot read the checkpoint in {arrays}: {_in_short(error)}") from error
