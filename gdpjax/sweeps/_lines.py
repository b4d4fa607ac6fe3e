"""Find the line of each field of a TOML text, for messages: the standard parser does not tell."""

import re

_SECTION = re.compile(r"\s*\[\s*([^\[\]]+?)\s*\]\s*(#.*)?$")
_FIELD = re.compile(r"\s*([\w\"'-]+(?:\s*\.\s*[\w\"'-]+)*)\s*=")


def lines_of(text: str) -> dict[tuple[str, ...], int]:
    """Return the line numbers, from 1, of sections and fields, by path; a field of a section is (section, field).

    >>> lines_of('dataset = "adult"\\n\\n[hyperparameters]\\nepochs = 18\\n')
    {('dataset',): 1, ('hyperparameters',): 3, ('hyperparameters', 'epochs'): 4}
    """
    section: tuple[str, ...] = ()
    lines: dict[tuple[str, ...], int] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        section_match = _SECTION.match(line)
        field_match = _FIELD.match(line)
        if section_match:
            section = _path(section_match[1])
            _set(lines, section, number)
        elif field_match:
            _set(lines, section + _path(field_match[1]), number)
    return lines


def _set(lines: dict[tuple[str, ...], int], field: tuple[str, ...], number: int) -> None:
    """Keep the first line of a field, and of each table that its name opens."""
    for length in range(1, len(field) + 1):
        lines.setdefault(field[:length], number)


def _path(name: str) -> tuple[str, ...]:
    return tuple(part.strip().strip("\"'") for part in name.split("."))
