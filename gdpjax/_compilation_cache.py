"""A cache of compiled programs on disk, so that the next process starts in seconds.

Compiling the certified accountant takes some seconds of processor time, and a training a few more, in every process.
JAX can keep compiled programs in a folder; `use_compilation_cache` gives it one that belongs to this user alone:

    import gdpjax
    gdpjax.use_compilation_cache()  # before the first computation

The commands ``gdpjax`` and ``python -m experiments`` call it, ``import gdpjax`` does not. A folder that JAX has already
been given (``JAX_COMPILATION_CACHE_DIR``) is left as it is.

What is in such a folder is code that runs later. Nobody else may write there: a folder that we make has permissions
0700, and one that belongs to somebody else, or that others can write to, is not used. Compiled code is for one kind of
processor, and home folders travel between machines, so each kind has a folder of its own.
"""

import hashlib
import os
import pathlib
import platform
import stat
import sys
import warnings

import jax
from jax.experimental.compilation_cache import compilation_cache

from gdpjax._core.xla import processor

VARIABLE = "GDPJAX_COMPILATION_CACHE"
OFF = ("off", "no", "false", "0")
LARGEST = 2**30
"""Bytes in the folder beyond which the oldest programs are removed."""
_UNUSABLE = "Error (reading|writing) persistent compilation cache entry"


def use_compilation_cache(folder: str | os.PathLike[str] | None = None) -> pathlib.Path | None:
    """Keep compiled programs on disk, and take them from there in this process and in later ones.

    Call it before the first computation. It never fails: where the folder cannot be made, or is not safe, programs are
    compiled as usual, and a full disk or a damaged file costs only time.

    Args:
        folder: where to keep them. Default: the environment variable GDPJAX_COMPILATION_CACHE, which may also be "off";
            then the user's cache folder (XDG_CACHE_HOME or ~/.cache, ~/Library/Caches, %LOCALAPPDATA%). It must belong
            to you, and nobody else may be able to write to it: what is in it is code.

    Returns:
        The folder in use, which is JAX's own setting where there is one (JAX_COMPILATION_CACHE_DIR); None without one.

    >>> folder = use_compilation_cache()
    """
    already = jax.config.jax_compilation_cache_dir  # pyright: ignore[reportAttributeAccessIssue]
    if already:
        return pathlib.Path(already)
    named = os.environ.get(VARIABLE) if folder is None else os.fspath(folder)
    if named is not None and named.strip().lower() in OFF:
        return None
    base = pathlib.Path(named).expanduser() if named else _user_cache_folder()
    # Of the same name where processors can run each other's programs.
    kind = hashlib.sha256(f"{platform.machine()} {processor()}".encode()).hexdigest()[:16]
    found = _private_folder(base / kind) if base is not None and _private_folder(base) else None
    if found is None:
        if named:
            warnings.warn(
                f"compiled programs are not kept: {named} must be a folder that belongs to you and that nobody else "
                "can write to",
                stacklevel=2,
            )
        return None
    _remove_oldest(found)
    warnings.filterwarnings("ignore", message=_UNUSABLE, category=UserWarning)
    # Most programs of a command compile in less than the second below which JAX does not keep them.
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_compilation_cache_dir", str(found))
    compilation_cache.reset_cache()  # what is compiled already must not have decided that there is none
    return found


def _user_cache_folder() -> pathlib.Path | None:
    """The folder for gdpjax among this user's caches, by the conventions of the platform; None without a home."""
    try:
        home = pathlib.Path.home()
    except RuntimeError:
        return None
    if sys.platform == "win32":
        return pathlib.Path(os.environ.get("LOCALAPPDATA") or home / "AppData" / "Local") / "gdpjax" / "Cache"
    if sys.platform == "darwin":
        return home / "Library" / "Caches" / "gdpjax"
    chosen = os.environ.get("XDG_CACHE_HOME", "")
    return (pathlib.Path(chosen) if os.path.isabs(chosen) else home / ".cache") / "gdpjax"


def _private_folder(path: pathlib.Path) -> pathlib.Path | None:
    """``path`` once it is a folder in which only this user can write; None where that cannot be had."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.mkdir(mode=0o700, exist_ok=True)
        found = path.stat()
    except OSError:
        return None
    if os.name == "posix":
        others_write = found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        if found.st_uid != os.getuid() or others_write:
            return None
    return path if os.access(path, os.W_OK | os.X_OK) else None


def _remove_oldest(folder: pathlib.Path) -> None:
    """Bring a folder that has grown beyond `LARGEST` down to half of that, the oldest programs first."""
    try:
        entries = [(entry.stat(), entry.path) for entry in os.scandir(folder) if entry.is_file()]
        total = sum(status.st_size for status, _ in entries)
        if total <= LARGEST:
            return
        for status, path in sorted(entries, key=lambda entry: entry[0].st_mtime):
            os.unlink(path)
            total -= status.st_size
            if total <= LARGEST // 2:
                return
    except OSError:  # another process is at it, too
        return
