"""Replace a file in one step, and keep a folder of a run or of a sweep to one process at a time.

    write_atomically(path, b"...", mode=0o600)

A crash leaves the old content or the new one, never a part. The new one is on the disk, under its name, before the
function returns.

    lock = lock_folder(folder)      # FolderIsLocked where another process holds it
    lock.give_to(run)               # of the objects of this process, the one that may write there

Two processes that go on with one run take the same steps with the same noise, and delete each other's checkpoints. The
operating system's lock on a file in the folder keeps the second one out, and is released when the first one ends,
however it ends. Within one process a lock has one owner.
"""

import errno
import os
import socket
import threading
import warnings
import weakref
from pathlib import Path
from typing import Any

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None
    import msvcrt

LOCK = "lock"
_MODE = 0o600
_HELD_BY_ANOTHER = {errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES, errno.EDEADLK}


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


class FolderIsLocked(RuntimeError):
    """Another process holds the lock; the message says which, in parentheses, or is empty."""


class FolderLock:
    """The lock of one folder, held until it is closed or deleted, or the process ends; made by `lock_folder`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._owner: Any = lambda: None
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT, _MODE)
        try:
            _lock(self._descriptor, path)
            _write_holder(self._descriptor)
        except BaseException:
            os.close(self._descriptor)
            raise
        self._close = weakref.finalize(self, os.close, self._descriptor)
        _OPEN.add(self)

    def give_to(self, owner: object) -> None:
        """Make ``owner`` the one object of this process that may write in the folder."""
        self._owner = weakref.ref(owner)

    def owner(self) -> object | None:
        """Return the object that the lock was given to last, or None where there is none any more."""
        return self._owner()

    def is_in_place(self) -> bool:
        """Return whether the locked file is still the one in the folder, which may have been deleted and made again."""
        if not self._close.alive:
            return False
        try:
            locked = os.fstat(self._descriptor)
            in_folder = os.stat(self.path)
        except OSError:
            return False
        return os.path.samestat(locked, in_folder)

    def close(self) -> None:
        """Release the lock; in a forked child only the parent can, and this forgets it there."""
        self._close()


_OPEN: "weakref.WeakSet[FolderLock]" = weakref.WeakSet()
_HELD: "weakref.WeakValueDictionary[str, FolderLock]" = weakref.WeakValueDictionary()
_GUARD = threading.Lock()


def lock_folder(folder: Path) -> FolderLock:
    """Lock ``folder``, which exists, or take over this process's lock on it.

    Raises:
      FolderIsLocked: another process holds the lock.
      OSError: the lock file cannot be opened.
    """
    path = folder.resolve() / LOCK
    with _GUARD:
        lock = _HELD.get(str(path))
        if lock is None or not lock.is_in_place():
            lock = FolderLock(path)
            _HELD[str(path)] = lock
        return lock


def _lock(descriptor: int, path: Path) -> None:
    """Lock an open file, or warn that its file system has no locks; FolderIsLocked if another process has it."""
    try:
        if fcntl is not None:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        else:
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined]
    except OSError as error:
        if error.errno not in _HELD_BY_ANOTHER:
            warnings.warn(
                f"the file system of {path} has no locks ({error.strerror}): nothing keeps a second process from "
                "resuming what is in the folder, so see to it that there is none",
                stacklevel=4,
            )
            return
        raise FolderIsLocked(_holder(path)) from None


def _write_holder(descriptor: int) -> None:
    """Say who holds the lock, for the message that another process gets."""
    content = f"{os.getpid()} on {socket.gethostname()}\n".encode()
    try:
        os.ftruncate(descriptor, 0)
        if hasattr(os, "pwrite"):
            os.pwrite(descriptor, content, 0)
        else:
            os.write(descriptor, content)
    except OSError:
        # The disk is full; the lock holds all the same.
        return


def _holder(path: Path) -> str:
    """Return who holds the lock, in parentheses, or nothing where the file does not tell."""
    try:
        content = path.read_text(errors="replace")[:100].strip()
    except OSError:
        # Windows locks the content too.
        return ""
    if not content:
        return ""
    return f" ({content})"


def _forget_all() -> None:
    """Give up all locks of the parent, in a forked child, which would hold them for as long as it lives."""
    global _GUARD
    # Another thread of the parent may have held it.
    _GUARD = threading.Lock()
    for lock in list(_OPEN):
        lock.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_all)
