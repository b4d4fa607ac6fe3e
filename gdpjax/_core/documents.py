"""Read JSON files that a crash, a full disk or a person may have damaged.

    class Chunk(msgspec.Struct, forbid_unknown_fields=True):
        first: Annotated[int, msgspec.Meta(ge=0)]
        num_steps: Annotated[int, msgspec.Meta(ge=1)]

    chunks = read_document_lines(path, Chunk)

Whatever the bytes are, the answer is a value of the type that was asked for, or one `DocumentError` that names the
file, the line of a file of lines, and the field. The type may be a `msgspec.Struct`, a `TypedDict`, a dataclass or
whatever else msgspec converts to; ``Any`` and ``dict[str, Any]`` take any JSON, still within the limits below.

JSON text can hold what later code does not expect, so this is refused before the types are looked at: text that is not
UTF-8, one name twice in an object, NaN and infinities, whole numbers beyond 64 bits, halves of surrogate pairs (which
cannot be printed), and nesting deeper than 64 (which ends in a RecursionError).
"""

import json
import math
import re
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from gdpjax._core.shown import shown

T = TypeVar("T")

DEEPEST = 64
"""Nesting of arrays and objects that is still read."""
LARGEST_INTEGER = 2**64 - 1
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
        self.source, self.field, self.problem = source, field, problem


def parse_document(text: bytes | str, kind: type[T], source: str) -> T:
    """Return the JSON document ``text`` as a value of type ``kind``.

    Args:
      text: UTF-8 bytes, or text.
      kind: any type that msgspec converts to.
      source: what the document is called in the error, such as its path.

    Raises:
      DocumentError: the text is not JSON, is beyond the limits, or has another shape than ``kind``.

    >>> parse_document('{"a": [1, 2]}', dict[str, list[int]], "numbers.json")
    {'a': [1, 2]}
    >>> parse_document('{"a": [1, "2"]}', dict[str, list[int]], "numbers.json")
    Traceback (most recent call last):
    ...
    gdpjax._core.documents.DocumentError: numbers.json: field [...][1]: expected `int`, got `str`
    """
    return convert_document(_load(text, source), kind, source)


def convert_document(value: Any, kind: type[T], source: str) -> T:
    """Return a parsed JSON ``value`` as one of type ``kind``, or DocumentError."""
    try:
        return msgspec.convert(value, kind)
    except (msgspec.ValidationError, OverflowError, RecursionError) as error:
        found = _FIELD.fullmatch(str(error))
        problem, field = (found["message"], found["field"]) if found else (str(error), "")
        raise DocumentError(source, problem[:1].lower() + problem[1:], field) from error


def read_document(path: Path, kind: type[T]) -> T:
    """Return the JSON document in the file ``path`` as a value of type ``kind``; DocumentError as `parse_document`."""
    return parse_document(read_bytes(path), kind, str(path))


def read_document_lines(path: Path, kind: type[T]) -> list[T]:
    """Return the documents of a file that has one on each line; the error says which line.

    What stands after the last end of line was cut off while it was written, and is not read.
    """
    *lines, _torn = read_bytes(path).split(b"\n")
    return [parse_document(line, kind, f"{path}, line {number}") for number, line in enumerate(lines, start=1)]


def read_bytes(path: Path) -> bytes:
    """Return what a regular file holds; DocumentError where it is missing, a directory or unreadable."""
    try:
        if path.exists() and not path.is_file():  # a pipe would wait for ever
            raise DocumentError(str(path), "expected a file, got a directory or a device")
        return path.read_bytes()
    except DocumentError:
        raise
    except (OSError, ValueError, MemoryError) as error:  # a ValueError: the path has a zero byte
        raise DocumentError(str(path), f"the file cannot be read: {getattr(error, 'strerror', error)}") from error


def _load(text: bytes | str, source: str) -> Any:
    if not isinstance(text, bytes | str):
        raise DocumentError(source, f"expected JSON text, got {type(text).__name__}")
    try:
        decoded = text.decode() if isinstance(text, bytes) else text
        value = json.loads(decoded, object_pairs_hook=_unique, parse_constant=_no_constant, parse_int=_integer)
        _check_limits(value)
    except UnicodeDecodeError as error:
        raise DocumentError(source, f"expected JSON in UTF-8, got other bytes ({error.reason})") from error
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        raise DocumentError(source, f"expected JSON, got other text: {error.msg} ({place})") from error
    except RecursionError as error:
        raise DocumentError(source, f"expected at most {DEEPEST} levels of nesting, got more") from error
    except ValueError as error:  # from the limits
        raise DocumentError(source, str(error)) from error
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"expected every name once in an object, got {shown(twice)} twice")
    return found


def _no_constant(name: str) -> Any:
    raise ValueError(f"expected finite numbers, got {name}")


def _integer(digits: str) -> int:
    if len(digits) > len(str(-LARGEST_INTEGER)) or abs(int(digits)) > LARGEST_INTEGER:
        raise ValueError(f"expected whole numbers of at most 64 bits, got one of {len(digits)} digits")
    return int(digits)


def _check_limits(document: Any) -> None:
    """Walk through the document without recursion, whatever its depth."""
    waiting = [(document, 1)]
    while waiting:
        value, depth = waiting.pop()
        if isinstance(value, dict | list):
            if depth > DEEPEST:
                raise ValueError(f"expected at most {DEEPEST} levels of nesting, got more")
            children = [*value, *value.values()] if isinstance(value, dict) else value
            waiting.extend((child, depth + 1) for child in children)
        elif isinstance(value, float):
            if not math.isfinite(value):
                raise ValueError("expected finite numbers, got one above 1.8e308")
        elif isinstance(value, str) and not value.isascii():
            try:
                value.encode()
            except UnicodeEncodeError:
                raise ValueError("expected text, got half of a surrogate pair") from None
