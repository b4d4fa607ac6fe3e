"""On which line of a TOML text each field stands: the standard parser does not say, and a message should."""

import re

_SECTION = re.compile(r"\s*\[\s*([^\[\]]+?)\s*\]\s*(#.*)?$")
_FIELD = re.compile(r"\s*([\w.\"'-]+)\s*=")


def lines_of(text: str) -> dict[tuple[str, ...], int]:
    """Line numbers from 1 of sections and fields, by path; a field of a section is (section, field).

    >>> lines_of('dataset = "adult"\\n\\n[hyperparameters]\\nepochs = 18\\n')
    {('dataset',): 1, ('hyperparameters',): 3, ('hyperparameters', 'epochs'): 4}
    """
    section: tuple[str, ...] = ()
    found: dict[tuple[str, ...], int] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if match := _SECTION.match(line):
            section = _path(match[1])
            found.setdefault(section, number)
        elif match := _FIELD.match(line):
            found.setdefault(section + _path(match[1]), number)
    return found


def _path(name: str) -> tuple[str, ...]:
    return tuple(part.strip().strip("\"'") for part in name.split("."))
