"""Compile the accounting programs in half the time, and recognise a compiled program.

Half of what compiling an accounting program costs is spent in XLA's newer code generator for fusions on the CPU, and
the code is no faster for it. `jit` here is `jax.jit` with that generator turned off:

    compiled = xla.jit(body, static_argnames=("sampling",))

The option exists below jaxlib 0.11 and concerns the CPU only, and JAX takes compiler options at the outermost
`jax.jit` alone. Inside another transformation, on another device and with another jaxlib this is plain `jax.jit`.

    digest = xla.program_digest(jax.jit(step), state, data)

What was begun with a program is resumed with no other. The text of the lowered program holds every constant with its
bits, those of jitted functions inside it included; the text of a jaxpr does not.
"""

import functools
import hashlib
import platform as machines
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jaxlib.version
import numpy as np
from jax.core import Tracer

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
_INSTRUCTIONS = "s?sse|avx|fma|f16c|amx|bmi|abm|adx|movbe|popcnt|asimd|sve|sme|fp|bf16|i8mm|atomics"
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
