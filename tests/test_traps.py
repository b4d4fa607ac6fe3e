"""The ways in which private training can lie, the tests that guard each, and how those were seen to fail.

They are in `tests/data/traps.toml`, of which ``python -m tests.test_traps`` makes `docs/traps.md`. ``broken_by`` says
what was broken, for a moment and in a copy of the library, when tests of ``guarded_by`` were seen to fail; "in the
test" where a test contains its own broken version. What was not tried, or cannot be, is said there too.
"""

import ast
import functools
import pathlib
import re
import tomllib
from typing import NamedTuple

ROOT = pathlib.Path(__file__).parents[1]
PAGE = ROOT / "docs" / "traps.md"
TABLE = ROOT / "tests" / "data" / "traps.toml"
SLOW = (ROOT / "tests" / "data" / "slow.txt").read_text().splitlines()


class Trap(NamedTuple):
    """One trap: what goes wrong, the node ids of the tests that would see it, and the mutations that they did see."""

    what: str
    guarded_by: list[str]
    broken_by: str


TRAPS = {int(number): Trap(**fields) for number, fields in tomllib.loads(TABLE.read_text()).items()}


def is_slow(node: str) -> bool:
    """Return whether a test is left out of the default suite: whole in the list of slow ones, or marked so."""
    file, _, name = node.partition("::")
    marked = re.search(rf"@pytest\.mark\.slow\n(@.*\n)*def {name}\(", (ROOT / file).read_text())
    return node in SLOW or marked is not None


@functools.cache
def names_in(file: str) -> set[str]:
    """Return the functions and classes that a test file defines, methods as Class::method."""
    names = set()
    for node in ast.parse((ROOT / file).read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            methods = [inner.name for inner in node.body if isinstance(inner, ast.FunctionDef)]
            names.update(f"{node.name}::{method}" for method in methods)
    return names


def page() -> str:
    """Return the text of docs/traps.md, where the rows of its table are made anew."""
    head, _, rest = PAGE.read_text().partition(ROWS_BEGIN)
    _, _, foot = rest.partition(ROWS_END)
    rows = []
    for number, trap in TRAPS.items():
        files = ", ".join(files_of(trap))
        rows.append(f"| {number} | {trap.what} | {files} |\n")
    return head + ROWS_BEGIN + "".join(rows) + ROWS_END + foot


ROWS_BEGIN = "|---|---|---|\n"
ROWS_END = "\n## "


def files_of(trap: Trap) -> list[str]:
    """Return the test files of a trap, each once, as they are written on the page."""
    files = []
    for node in trap.guarded_by:
        file = f"`{node.split('::')[0].removeprefix('tests/')}`"
        if file not in files:
            files.append(file)
    return files


def test_every_trap_is_guarded():
    """Traps are numbered from one, and each says what goes wrong, what guards it and how that was seen."""
    assert list(TRAPS) == list(range(1, len(TRAPS) + 1))
    for number, trap in TRAPS.items():
        assert trap.what, number
        assert trap.guarded_by, number
        assert trap.broken_by, number


def test_every_guard_exists():
    """A guard is the name of a test that its file defines."""
    for number, trap in TRAPS.items():
        for node in trap.guarded_by:
            file, _, name = node.partition("::")
            assert name.split("::")[-1].startswith("test_"), (number, node)
            assert name in names_in(file), (number, node)


def test_every_trap_is_guarded_in_the_default_suite():
    for number, trap in TRAPS.items():
        assert not all(is_slow(node) for node in trap.guarded_by), number


def test_every_slow_test_exists():
    """The examples of a docstring have the dotted name of what they are of."""
    for node in SLOW:
        file, _, name = node.partition("[")[0].partition("::")
        assert name.rpartition(".")[2] in names_in(file), node


def test_the_page_is_the_table():
    """The page is the one that this module would write, and has words on what no test can see."""
    assert PAGE.read_text() == page(), "run python -m tests.test_traps"
    assert PAGE.read_text().count("\n- **") >= 5, "what no test can see is written by hand, below the table"


if __name__ == "__main__":
    PAGE.write_text(page())
