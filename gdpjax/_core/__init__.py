"""Private foundations: types, checks, numerics and pytree helpers. Imported by every layer, re-exported by none."""

VERSION = "0.3.0"
"""The version of the package, as in pyproject.toml."""
