"""Replace a file in one step, so that a crash leaves the old content or the new one, never a part.

    write_atomically(path, b"...", mode=0o600)

The content is on the disk, under its name, before the function returns.
"""

import os
from pathlib import Path


def write_atomically(path: Path, content: str | bytes, mode: int = 0o666) -> None:
    """Replace ``path`` by ``content`` (text as UTF-8); a new file has ``mode``, less the bits of the umask."""
    if isinstance(content, str):
        content = content.encode()
    temporary = path.with_name(path.name + ".partial")
    # A crash may have left one, perhaps with another mode.
    temporary.unlink(missing_ok=True)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        write_all(descriptor, content)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    temporary.replace(path)
    sync(path.parent)


def write_all(descriptor: int, content: bytes) -> int:
    """Write all of ``content``: a disk that fills up takes a part at first, and only then refuses."""
    num_written = 0
    while num_written < len(content):
        num_written += os.write(descriptor, content[num_written:])
    return num_written


def sync(path: Path) -> None:
    """Have the disk hold the content of a file, or the names in a folder, before this returns."""
    # Windows opens no folders, and writes their entries with the files.
    if os.name == "nt" and path.is_dir():
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
