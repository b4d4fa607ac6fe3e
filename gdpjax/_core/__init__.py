"""Private foundations: types, checks, numerics and pytree helpers. Imported by every layer, re-exported by none."""
