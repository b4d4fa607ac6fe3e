"""Files that survive a crash: replaced in one step, or appended a line at a time."""

import json
import os
from pathlib import Path
from typing import Any


class CheckpointError(RuntimeError):
    """A checkpoint could not be written or read. What was computed is still in memory, what was spent is on record."""


def _sync_folder(folder: Path) -> None:
    """Make a renaming inside ``folder`` durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_json(path: Path, value: Any) -> None:
    """Replace ``path`` in one step: it holds the old content or the new, never a part."""
    temporary = path.with_name(path.name + ".partial")
    with temporary.open("w") as file:
        file.write(json.dumps(value, indent=1) + "\n")
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    _sync_folder(path.parent)


def append_line(path: Path, value: Any) -> None:
    """Append one JSON line, on disk before this returns."""
    length = path.stat().st_size if path.exists() else 0
    try:
        with path.open("a") as file:
            file.write(json.dumps(value) + "\n")
            file.flush()
            os.fsync(file.fileno())
    except OSError:
        os.truncate(path, length)  # a part of a line would spoil the next one
        raise
    _sync_folder(path.parent)


def read_lines(path: Path) -> list[Any]:
    """The JSON lines of a file; a last line cut off by a crash was never promised, and is dropped."""
    if not path.is_file():
        return []
    *whole, last = path.read_text().split("\n")
    try:
        lines = [json.loads(line) for line in whole]
    except json.JSONDecodeError as error:
        raise CheckpointError(f"{path} is damaged: {error}") from error
    if last:
        temporary = path.with_name(path.name + ".partial")
        temporary.write_text("".join(line + "\n" for line in whole))
        temporary.replace(path)
    return lines
