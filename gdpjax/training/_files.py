"""Files that survive a crash and are read by nobody else: replaced in one step, or appended a line at a time.

What is not for release holds keys or private statistics. It lives in a folder of mode 0700, in files of mode 0600,
whatever the umask says.
"""

import json
import os
from pathlib import Path
from typing import Any

from gdpjax._core.files import sync, write_all, write_atomically

PRIVATE_FOLDER, PRIVATE_FILE = 0o700, 0o600
PUBLIC_FILE = 0o666
"""Modes; the umask applies to the public one."""


class CheckpointError(RuntimeError):
    """A checkpoint could not be written or read. What was computed is still in memory, what was spent is on record."""


def make_private_folder(folder: Path) -> None:
    """Make ``folder``, or take what is there, so that only its owner can enter it."""
    folder.mkdir(mode=PRIVATE_FOLDER, parents=True, exist_ok=True)
    os.chmod(folder, PRIVATE_FOLDER)
    sync(folder.parent)


def sync_private_tree(folder: Path) -> None:
    """Make everything below ``folder`` private and durable, and ``folder`` itself in its parent."""
    for path in folder.rglob("*"):
        os.chmod(path, PRIVATE_FOLDER if path.is_dir() else PRIVATE_FILE)
        sync(path)
    os.chmod(folder, PRIVATE_FOLDER)
    sync(folder)
    sync(folder.parent)


def write_json(path: Path, value: Any, mode: int = PRIVATE_FILE) -> None:
    """Replace ``path`` by a JSON document, as `write_atomically`."""
    text = json.dumps(value, indent=1, allow_nan=False)
    write_atomically(path, text + "\n", mode)


def append_line(path: Path, line: str, expected_size: int) -> int:
    """Append one line to a private file, on disk before this returns the new size.

    Raises:
      CheckpointError: the file is not ``expected_size`` bytes long, so somebody else has written it.
      OSError: the disk refuses; the file is as it was.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, PRIVATE_FILE)
    try:
        size = os.fstat(descriptor).st_size
        if size != expected_size:
            raise CheckpointError(
                f"{path} has {size} bytes where this run left {expected_size}: another process has gone on with the "
                "run, or the file was changed. Nothing was run; end the other process, then call resume_run"
            )
        try:
            written = write_all(descriptor, line.encode() + b"\n")
            os.fsync(descriptor)
            sync(path.parent)
        except OSError:
            # A part of a line would spoil the next one.
            os.ftruncate(descriptor, size)
            raise
    finally:
        os.close(descriptor)
    return size + written
