"""The engine's knowledge of the primitives of JAX: one family a file, and one registry of them."""

from gdpjax.clipping._tracing.primitives._abstract import AbstractPrimitive
from gdpjax.clipping._tracing.primitives._registry import family_of, is_vouched_for, register_primitive, registered

__all__ = ["AbstractPrimitive", "family_of", "is_vouched_for", "register_primitive", "registered"]
