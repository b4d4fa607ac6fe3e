"""Compile the accounting programs in half the time, recognise a compiled program, and keep programs on disk.

Half of what compiling an accounting program costs is spent in XLA's newer code generator for fusions on the CPU, and
the code is no faster for it. `jit` here is `jax.jit` with that generator turned off:

    compiled = xla.jit(body, static_argnames=("sampling",))

The option exists below jaxlib 0.11 and concerns the CPU only, and JAX takes compiler options at the outermost
`jax.jit` alone. Inside another transformation, on another device and with another jaxlib this is plain `jax.jit`.

    digest = xla.program_digest(jax.jit(step), state, data)

What was begun with a program is resumed with no other. The text of the lowered program holds every constant with its
bits, those of jitted functions inside it included; the text of a jaxpr does not.

**A cache of compiled programs.** Compiling the certified accountant takes some seconds of processor time, and a
training a few more, in every process. JAX can keep compiled programs in a folder; `use_compilation_cache` gives it one
that belongs to this user alone:

    gdpjax.use_compilation_cache()  # before the first computation

The commands ``gdpjax`` and ``python -m experiments`` call it, ``import gdpjax`` does not. What is in such a folder is
code that runs later. Nobody else may write there: a folder that we make has permissions 0700, and one that belongs to
somebody else, or that others can write to, is not used. Compiled code is for one kind of processor, and home folders
travel between machines, so each kind has a folder of its own.
"""

import functools
import hashlib
import os
import platform as machines
import re
import stat
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jaxlib.version
import numpy as np
from jax.core import Tracer
from jax.experimental.compilation_cache import compilation_cache

OPTIONS = {"xla_cpu_use_fusion_emitters": False}
_KNOWN = jaxlib.version.__version_info__ < (0, 11)


def jit(function: Callable[..., Any], **settings: Any) -> Callable[..., Any]:
    """Return `jax.jit` of ``function``, with `OPTIONS` where JAX takes them; ``settings`` are those of `jax.jit`."""
    plain = jax.jit(function, **settings)
    if not _KNOWN:
        return plain
    quick = jax.jit(function, compiler_options=OPTIONS, **settings)

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if _takes_options(args, kwargs):
            return quick(*args, **kwargs)
        return plain(*args, **kwargs)

    return call


@jax.jit
def _nothing() -> Any:
    return np.int32(0)


def in_program() -> bool:
    """Return whether the caller is being compiled into a program, so that a new array is a tracer."""
    return isinstance(_nothing(), Tracer)


def platform() -> str:
    """Return the platform that programs are planned for: that of `jax.default_device`, or else JAX's default one."""
    device = jax.config.jax_default_device  # pyright: ignore[reportAttributeAccessIssue]
    if device is None:
        return jax.default_backend()
    return device if isinstance(device, str) else device.platform


def _takes_options(args: Any, kwargs: Any) -> bool:
    """Return whether this call is outermost and will run on the CPU."""
    # A new array is a tracer inside an outer jit, even if every argument is concrete; else it is on the default device.
    leaves = jax.tree.leaves((args, kwargs, _nothing()))
    for leaf in leaves:
        if isinstance(leaf, Tracer):
            return False

    devices: set[Any] = set()
    for leaf in leaves:
        if isinstance(leaf, jax.Array):
            devices |= leaf.devices()
    return all(device.platform == "cpu" for device in devices)


def program_digest(compiled: Any, *args: Any, **static: Any) -> str:
    """Return the SHA-256 of a jitted function's program, which other operations or other constants change."""
    lowered = compiled.lower(*args, **static)
    text = lowered.as_text()
    digest = hashlib.sha256(text.encode())
    # With jax_use_simplified_jaxpr_constants the constants are arguments, and the text has their types only.
    if "jax.const = true" in text:
        for constant in lowered._lowering.const_args:
            digest.update(np.asarray(constant).tobytes())
    return digest.hexdigest()


_NAMES = ("model name", "CPU implementer", "CPU part", "flags", "Features")
"""Lines by which Linux describes a processor: x86 has a model and flags, ARM has a maker's numbers and features."""
_INSTRUCTIONS = "s?sse|avx|fma|f16c|amx|bmi|abm|adx|movbe|popcnt|asimd|sve|fp|bf16|i8mm|atomics"
"""How the flags begin that a compiler looks at; others change with the kernel."""


def processor() -> str:
    """Return the model of the processor and its instructions, on which the code depends that is compiled for it."""
    described = [machines.processor()]
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        text = ""
    # The first processor stands for all.
    for name in _NAMES:
        found = re.search(rf"^{name}\s*: (.*)$", text, re.MULTILINE)
        words = found[1].split() if found else []
        if name in ("flags", "Features"):
            words = [word for word in words if re.match(_INSTRUCTIONS, word)]
        described += words
    return " ".join(described).strip()


VARIABLE = "GDPJAX_COMPILATION_CACHE"
OFF = ("off", "no", "false", "0")
LARGEST = 2**30
"""Bytes in the folder beyond which the oldest programs are removed."""
_UNUSABLE = "Error (reading|writing) persistent compilation cache entry"


def use_compilation_cache(folder: str | os.PathLike[str] | None = None) -> Path | None:
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
        return Path(already)
    named = os.environ.get(VARIABLE) if folder is None else os.fspath(folder)
    if named is not None and named.strip().lower() in OFF:
        return None
    base = Path(named).expanduser() if named else _user_cache_folder()
    # Of the same name where processors can run each other's programs.
    kind = hashlib.sha256(f"{machines.machine()} {processor()}".encode()).hexdigest()[:16]
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


def _user_cache_folder() -> Path | None:
    """The folder for gdpjax among this user's caches, by the conventions of the platform; None without a home."""
    try:
        home = Path.home()
    except RuntimeError:
        return None
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or home / "AppData" / "Local") / "gdpjax" / "Cache"
    if sys.platform == "darwin":
        return home / "Library" / "Caches" / "gdpjax"
    chosen = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(chosen) if os.path.isabs(chosen) else home / ".cache") / "gdpjax"


def _private_folder(path: Path) -> Path | None:
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


def _remove_oldest(folder: Path) -> None:
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
