"""The version of this package, as in pyproject.toml."""

VERSION = "0.3.0"
