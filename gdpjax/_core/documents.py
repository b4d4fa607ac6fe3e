"""Read JSON files that a crash, a full disk or a person may have damaged.

    class Chunk(msgspec.Struct, forbid_unknown_fields=True):
        first: Annotated[int, msgspec.Meta(ge=0)]
        num_steps: Annotated[int, msgspec.Meta(ge=1)]

    chunks = read_document_lines(path, Chunk)

Whatever the bytes are, the answer is a value of the type that was asked for, or one `DocumentError` that names the
file, the line of a file of lines, and the field. The type may be a `msgspec.Struct`, a `TypedDict`, a dataclass or
whatever else msgspec converts to; ``Any`` and ``dict[str, Any]`` take any JSON.

Text that is not UTF-8, NaN, infinities and endless nesting are no JSON. A name that is there twice is refused: its
second value would hide the first, such as the noise or the events of a ledger.
"""

import collections
import hashlib
import json
import re
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from gdpjax._core.shown import shown

T = TypeVar("T")

_FIELD = re.compile(r"(?P<message>.*) - at `\$\.?(?P<field>[^`]*)`", re.DOTALL)


class DocumentError(ValueError):
    """A JSON document could not be read.

    Attributes:
      source: the file, with the number of the line in a file of lines.
      field: what is wrong in it, such as ``clip.norm`` or ``[3]``; empty where it is the document as a whole.
      problem: what was expected there, and what was found.
    """

    def __init__(self, source: str, problem: str, field: str = "") -> None:
        place = f"{source}: field {field}" if field else source
        super().__init__(f"{place}: {problem}")
        self.source = source
        self.field = field
        self.problem = problem


def parse_document(text: bytes | str, kind: type[T], source: str) -> T:
    """Return the JSON document ``text`` as a value of type ``kind``.

    Args:
      text: UTF-8 bytes, or text.
      kind: any type that msgspec converts to.
      source: what the document is called in the error, such as its path.

    Raises:
      DocumentError: the text is not JSON, or has another shape than ``kind``.

    >>> parse_document('{"a": [1, 2]}', dict[str, list[int]], "numbers.json")
    {'a': [1, 2]}
    >>> parse_document('{"a": [1, "2"]}', dict[str, list[int]], "numbers.json")
    Traceback (most recent call last):
    ...
    gdpjax._core.documents.DocumentError: numbers.json: field [...][1]: expected `int`, got `str`
    """
    try:
        value = msgspec.json.decode(text)
        json.loads(text, object_pairs_hook=_refuse_repeated_names)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise DocumentError(source, f"expected JSON text: {error}") from error
    return convert_document(value, kind, source)


def _refuse_repeated_names(pairs: list[tuple[str, Any]]) -> None:
    """Raise ValueError if an object has a name twice."""
    names = [name for name, _ in pairs]
    for name, count in collections.Counter(names).items():
        if count > 1:
            raise ValueError(f"every name once in an object, got {shown(name)} twice")


def convert_document(value: Any, kind: type[T], source: str) -> T:
    """Return a parsed JSON ``value`` as one of type ``kind``; DocumentError if it has another shape."""
    try:
        return msgspec.convert(value, kind)
    except (msgspec.ValidationError, OverflowError, RecursionError) as error:
        problem = str(error)
        field = ""
        match = _FIELD.fullmatch(problem)
        if match:
            problem = match["message"]
            field = match["field"]
        raise DocumentError(source, problem[:1].lower() + problem[1:], field) from error


def digest_of_document(value: Any) -> str:
    """Return the SHA-256 of a JSON value, the same in every order of its names."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def read_document(path: Path, kind: type[T]) -> T:
    """Return the JSON document in the file ``path`` as a value of type ``kind``; DocumentError as `parse_document`."""
    return parse_document(read_bytes(path), kind, str(path))


def read_document_lines(path: Path, kind: type[T]) -> list[T]:
    """Return the documents of a file that has one on each line; the error says which line.

    What stands after the last end of line was cut off while it was written, and is not read.
    """
    *lines, _unfinished = read_bytes(path).split(b"\n")
    documents = []
    for number, line in enumerate(lines, start=1):
        documents.append(parse_document(line, kind, f"{path}, line {number}"))
    return documents


def read_bytes(path: Path) -> bytes:
    """Return the content of a file; DocumentError if it is missing, a directory or unreadable."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise DocumentError(str(path), f"the file cannot be read: {error.strerror}") from error
