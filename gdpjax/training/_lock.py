"""One process at a time in a run's folder.

Two processes that go on with one run take the same steps with the same noise, and delete each other's checkpoints. The
operating system's lock on a file in the folder keeps the second one out, and is released when the first one ends,
however it ends. Within one process the folder belongs to the `Run` that was begun or resumed last.
"""

import errno
import os
import socket
import threading
import warnings
import weakref
from pathlib import Path
from typing import Any

from gdpjax.training._files import PRIVATE_FILE, CheckpointError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None
    import msvcrt

LOCK = "lock"
_HELD_BY_ANOTHER = {errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES, errno.EDEADLK}


class FolderLock:
    """The lock of one folder, held until it is deleted or the process ends; made by `lock_folder`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._owner: Any = lambda: None
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT, PRIVATE_FILE)
        try:
            _lock(self._descriptor, path)
            _write_holder(self._descriptor)
        except BaseException:
            os.close(self._descriptor)
            raise
        self._close = weakref.finalize(self, os.close, self._descriptor)

    def give_to(self, run: object) -> None:
        """From now on only ``run`` passes `check`."""
        self._owner = weakref.ref(run)

    def is_in_place(self) -> bool:
        """Whether the file that is locked is the one in the folder, which may have been deleted and made again."""
        try:
            return self._close.alive and os.path.samestat(os.fstat(self._descriptor), os.stat(self.path))
        except OSError:
            return False

    def check(self, run: object) -> None:
        """CheckpointError unless ``run`` is still the one that may write in the folder."""
        if not self.is_in_place():
            raise CheckpointError(
                f"the folder {self.path.parent} is no longer locked by this run: it was deleted or replaced, or the "
                "process was forked. Nothing was run; call resume_run"
            )
        if self._owner() is not run:
            raise CheckpointError(
                f"the run in {self.path.parent} was resumed in this process since: go on with what resume_run "
                "returned then, or call it again"
            )

    def forget(self) -> None:
        """Close the file without releasing the lock, in a forked child: its parent holds it."""
        self._close()


_HELD: "weakref.WeakValueDictionary[str, FolderLock]" = weakref.WeakValueDictionary()
_GUARD = threading.Lock()


def lock_folder(folder: Path) -> FolderLock:
    """Lock ``folder``, which exists, or take over this process's lock on it.

    Raises:
      CheckpointError: another process holds the lock.
      OSError: the lock file cannot be opened.
    """
    path = folder.resolve() / LOCK
    with _GUARD:
        lock = _HELD.get(str(path))
        if lock is None or not lock.is_in_place():
            lock = _HELD[str(path)] = FolderLock(path)
        return lock


def _lock(descriptor: int, path: Path) -> None:
    try:
        if fcntl is not None:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        else:
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined]
    except OSError as error:
        if error.errno not in _HELD_BY_ANOTHER:
            warnings.warn(
                f"the file system of {path} has no locks ({error.strerror}): nothing keeps a second process from "
                "resuming this run, so see to it that there is none",
                stacklevel=4,
            )
            return
        raise CheckpointError(
            f"another process{_holder(path)} has the run in {path.parent} open. Two would take the same steps with "
            "the same noise: wait for it, or end it, then call resume_run"
        ) from None


def _write_holder(descriptor: int) -> None:
    """Say who holds the lock, for the message that another process gets."""
    content = f"{os.getpid()} on {socket.gethostname()}\n".encode()
    try:
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, content, 0) if hasattr(os, "pwrite") else os.write(descriptor, content)
    except OSError:
        return  # a full disk: the lock holds all the same


def _holder(path: Path) -> str:
    try:
        content = path.read_text(errors="replace")[:100].strip()
    except OSError:  # Windows locks the content too
        return ""
    return f" ({content})" if content else ""


def _forget_all() -> None:
    global _GUARD
    _GUARD = threading.Lock()  # another thread of the parent may have held it
    for lock in list(_HELD.values()):
        lock.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_all)
