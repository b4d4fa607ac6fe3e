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
"""The deepest nesting of arrays and objects that is read."""
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
    """Return the content of a regular file; DocumentError if it is missing, a directory or unreadable."""
    # Opening a path with a zero byte is a ValueError.
    try:
        # Reading a pipe would wait for ever.
        if path.exists() and not path.is_file():
            raise DocumentError(str(path), "expected a file, got a directory or a device")
        return path.read_bytes()
    except DocumentError:
        raise
    except (OSError, ValueError, MemoryError) as error:
        raise DocumentError(str(path), f"the file cannot be read: {getattr(error, 'strerror', error)}") from error


def _load(text: bytes | str, source: str) -> Any:
    """Return parsed JSON within the limits of the module docstring; DocumentError for anything else."""
    if not isinstance(text, bytes | str):
        raise DocumentError(source, f"expected JSON text, got {type(text).__name__}")
    try:
        decoded = text.decode() if isinstance(text, bytes) else text
        value = json.loads(
            decoded, object_pairs_hook=_object_of, parse_constant=_refuse_constant, parse_int=_checked_integer
        )
        _check_limits(value)
    except UnicodeDecodeError as error:
        raise DocumentError(source, f"expected JSON in UTF-8, got other bytes ({error.reason})") from error
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        raise DocumentError(source, f"expected JSON, got other text: {error.msg} ({place})") from error
    except RecursionError as error:
        raise DocumentError(source, f"expected at most {DEEPEST} levels of nesting, got more") from error
    except ValueError as error:
        # One of the functions below has refused something.
        raise DocumentError(source, str(error)) from error
    return value


def _object_of(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object; ValueError if it has a name twice."""
    content = dict(pairs)
    if len(content) == len(pairs):
        return content
    names = [name for name, _ in pairs]
    repeated = [name for name in names if names.count(name) > 1]
    raise ValueError(f"expected every name once in an object, got {shown(repeated[0])} twice")


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"expected finite numbers, got {name}")


def _checked_integer(digits: str) -> int:
    # Very long texts are refused by their length, since reading them takes long.
    has_too_many_digits = len(digits) > len(str(-LARGEST_INTEGER))
    if has_too_many_digits or abs(int(digits)) > LARGEST_INTEGER:
        raise ValueError(f"expected whole numbers of at most 64 bits, got one of {len(digits)} digits")
    return int(digits)


def _check_limits(document: Any) -> None:
    """Raise ValueError for what is beyond the limits; without recursion, so that any depth can be walked through."""
    waiting = [(document, 1)]
    while waiting:
        value, depth = waiting.pop()
        if isinstance(value, dict | list):
            if depth > DEEPEST:
                raise ValueError(f"expected at most {DEEPEST} levels of nesting, got more")
            children = list(value)
            if isinstance(value, dict):
                children += value.values()
            waiting.extend((child, depth + 1) for child in children)
        elif isinstance(value, float):
            if not math.isfinite(value):
                raise ValueError("expected finite numbers, got one above 1.8e308")
        elif isinstance(value, str) and not value.isascii():
            try:
                value.encode()
            except UnicodeEncodeError:
                raise ValueError("expected text, got half of a surrogate pair") from None
