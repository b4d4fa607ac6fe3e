"""All that the engine knows about the primitives of JAX: families, one kind a file, and one registry of them.

To find what is known about a primitive, look its name up at the end of `_registry`: that names its family. `_abstract`
says which questions a family answers.
"""

from gdpjax.clipping._tracing.primitives._abstract import AbstractPrimitive
from gdpjax.clipping._tracing.primitives._convolution import isolated_convolution
from gdpjax.clipping._tracing.primitives._registry import family_of, is_vouched_for, register_primitive

__all__ = [
    "AbstractPrimitive",
    "family_of",
    "is_vouched_for",
    "isolated_convolution",
    "register_primitive",
]
