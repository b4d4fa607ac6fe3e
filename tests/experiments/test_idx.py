"""The IDX parser accepts what is whole and names the file otherwise."""

import gzip
import struct

import numpy as np
import pytest

from experiments.data.idx import parse_idx, read_idx
from experiments.errors import UserError


def encode(array):
    """The bytes of an IDX file of unsigned bytes."""
    return struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes()


def test_round_trip(tmp_path):
    array = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
    path = tmp_path / "images.gz"
    path.write_bytes(gzip.compress(encode(array)))
    np.testing.assert_array_equal(read_idx(path), array)


WHOLE = encode(np.zeros((2, 3), np.uint8))


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"", "not an IDX file"),
        (b"PNG" + WHOLE, "not an IDX file"),
        (b"\0\0\x0d\x01" + WHOLE[4:], "not an IDX file of unsigned bytes"),
        (WHOLE[:9], "truncated"),
        (WHOLE[:-1], "damaged"),
        (WHOLE + b"\0", "damaged"),
    ],
)
def test_damaged_content_is_refused(content, complaint):
    with pytest.raises(UserError, match=complaint) as error:
        parse_idx(content, "the-file")
    assert "the-file" in str(error.value)


@pytest.mark.parametrize("content", [b"plain text", gzip.compress(WHOLE)[:-6], b""], ids=["plain", "cut", "empty"])
def test_damaged_compression_is_refused(tmp_path, content):
    path = tmp_path / "labels.gz"
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"labels\.gz"):
        read_idx(path)
