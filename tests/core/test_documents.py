"""Damaged JSON files: a value of the right type, or one error that names file and field."""

from typing import Annotated, Any

import msgspec
import pytest

from gdpjax._core.documents import parse_document, read_document


class Chunk(msgspec.Struct, forbid_unknown_fields=True):
    first: Annotated[int, msgspec.Meta(ge=0)]
    num_steps: Annotated[int, msgspec.Meta(ge=1)]
    sums: dict[str, str] = {}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "f.json: expected JSON text: Input data was truncated"),
        ('{"first": 0,}', r"expected JSON text: .*\(byte 12\)"),
        ('{"first": 0}', "missing required field `num_steps`"),
        ('{"first": 0, "num_steps": 1, "x": 1}', "unknown field `x`"),
        ('{"first": 0, "num_steps": "1"}', "f.json: field num_steps: expected `int`, got `str`"),
        ('{"first": 0, "num_steps": 0}', "field num_steps: expected `int` >= 1"),
        ('{"first": 0, "num_steps": 1, "sums": {"a": 1}}', r"field sums\[...\]: expected `str`, got `int`"),
        ('{"first": 0, "first": 7, "num_steps": 1}', "got 'first' twice"),
        ('{"first": NaN, "num_steps": 1}', "invalid character"),
        ('{"first": 1e999, "num_steps": 1}', "out of range"),
        ("[" * 100_000, "recursion depth"),
    ],
)
def test_every_fault_names_file_and_field(text, message):
    with pytest.raises(ValueError, match=message) as caught:
        parse_document(text, Chunk, "f.json")
    assert str(caught.value).startswith("f.json: ")
    assert len(str(caught.value)) < 200


def test_files_that_are_no_files(tmp_path):
    for path in (tmp_path, tmp_path / "missing", tmp_path / ("x" * 5000)):
        with pytest.raises(ValueError, match="the file cannot be read"):
            read_document(path, Any)
