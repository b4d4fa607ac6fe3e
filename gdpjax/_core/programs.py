"""Recognise a compiled program, so that what was begun with it goes on with no other.

    digest = program_digest(jax.jit(step), state, data)

The text of the lowered program holds every constant with its bits, those of jitted functions inside it included; the
text of a jaxpr does not.
"""

import hashlib
from typing import Any


def program_digest(compiled: Any, *args: Any, **static: Any) -> str:
    """Return the SHA-256 of a jitted function's program, which other operations or other constants change."""
    text = compiled.lower(*args, **static).as_text()
    return hashlib.sha256(text.encode()).hexdigest()
