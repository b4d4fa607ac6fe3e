"""Replace a file in one step, so that a crash leaves the old content or the new one, never a part.

    write_atomically(path, b"...", mode=0o600)

The content is on the disk, under its name, before the function returns.
"""

import os
from pathlib import Path


def write_atomically(path: Path, content: str | bytes, mode: int = 0o666) -> None:
    """Replace ``path`` by ``content`` (text as UTF-8); a new file has ``mode``, less what the umask takes."""
    content = content.encode() if isinstance(content, str) else content
    temporary = path.with_name(path.name + ".partial")
    temporary.unlink(missing_ok=True)  # a crash left it, perhaps with another mode
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        write_all(descriptor, content)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    temporary.replace(path)
    sync(path.parent)


def write_all(descriptor: int, content: bytes) -> int:
    """Write all of it: a disk that fills up takes a part at first, and only then refuses."""
    written = 0
    while written < len(content):
        written += os.write(descriptor, content[written:])
    return written


def sync(path: Path) -> None:
    """Have the disk hold what a file contains, or which names a folder contains, before this returns."""
    if os.name == "nt" and path.is_dir():
        return  # Windows opens no folders, and writes their entries with the files
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
