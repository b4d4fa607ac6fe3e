"""The IDX format of MNIST: two zero bytes, a type byte (8 = unsigned bytes), the rank, big-endian sizes, then data."""

import math
import struct
from pathlib import Path

import numpy as np

from experiments.data.files import read_gzip
from experiments.errors import UserError

UNSIGNED_BYTE = 8


def read_idx(path: Path) -> np.ndarray:
    """Return the ``uint8`` array in a gzipped IDX file, or a UserError that names the file."""
    return parse_idx(read_gzip(path), str(path))


def parse_idx(content: bytes, name: str) -> np.ndarray:
    """Return the array in the bytes of an IDX file; ``name`` is for messages."""
    if len(content) < 4 or content[:2] != b"\0\0" or content[2] != UNSIGNED_BYTE:
        raise UserError(f"{name} is not an IDX file of unsigned bytes: it begins with {content[:4]!r}")
    rank = content[3]
    start = 4 + 4 * rank
    if len(content) < start:
        raise UserError(f"{name} is truncated: its header of {start} bytes is incomplete")
    shape = struct.unpack(f">{rank}I", content[4:start])
    if len(content) - start != math.prod(shape):
        raise UserError(f"{name} is damaged: expected {math.prod(shape)} bytes for {shape}, got {len(content) - start}")
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)
