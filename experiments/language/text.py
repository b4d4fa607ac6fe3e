"""Text to train language models on: documents, who they belong to, and whether they are public.

    public = load_public()  # documentation that is installed with the packages
    private = read_text("letters.jsonl")  # one {"text": ..., "user": ...} a line

A `Corpus` carries its standing along. What may only be done with public text (training a tokenizer, choosing a length,
pre-training without noise) asks for it and refuses private text, so that no step outside epsilon reads it by mistake.

Three sources:

* `load_public`: Python's language reference and the docstrings of installed packages. Always there, offline.
* `load_stand_in`: docstrings of a package that `load_public` leaves out, a module playing the part of a user. It is
  public in truth, and stands in for private text where runs are tried and tested.
* `read_text`: the user's own files.
"""

import ast
import dataclasses
import importlib.metadata
import importlib.util
import os
import sys
import sysconfig
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from gdpjax.sweeps import UserError

Standing = Literal["public", "private", "evaluation"]
STANDINGS: dict[str, str] = {
    "public": "public",
    "private": "private",
    "evaluation": "taken as public, for measuring only",
}

PUBLIC_PACKAGES = ("python", "numpy", "jax", "sklearn", "matplotlib")
STAND_INS = ("scipy", "optax")
LEFT_OUT = frozenset(
    {"test", "tests", "testing", "__pycache__", "site-packages", "idlelib", "lib2to3", "externals", *STAND_INS}
)
"""Folders that are not read: tests, copies of other packages, and what documents a stand-in (``jax.scipy``)."""
MIN_WORDS = 8
"""A docstring with fewer words is no document."""


@dataclasses.dataclass(frozen=True)
class Corpus:
    """Documents in order, the user of each, and what may be done with them.

    Attributes:
      name: a name for tables.
      documents: the texts.
      users: the user that each document belongs to, or None where nobody knows.
      standing: "public"; "private"; or "evaluation", which is taken as public but must not be learned from.
      source: for the record.

    >>> letters = Corpus("letters", ("Dear all,", "Yours"), ("ann", "bob"), "private")
    >>> letters.describe()
    'letters (private)'
    """

    name: str
    documents: tuple[str, ...]
    users: tuple[str, ...] | None
    standing: Standing
    source: str = ""

    def describe(self) -> str:
        """Name, standing and source in one line, without anything that was counted in it."""
        details = [STANDINGS[self.standing], self.source]
        return f"{self.name} ({'; '.join(detail for detail in details if detail)})"

    def require_public(self, purpose: str) -> None:
        """Raise a UserError unless the corpus is public; ``purpose`` is the subject of the sentence."""
        if self.standing != "public":
            raise UserError(
                f"{purpose} needs public text, but {self.name} is {STANDINGS[self.standing]}: what is learned there is "
                "not covered by epsilon"
            )


# Documentation that is installed with the packages


def load_public(packages: Sequence[str] = PUBLIC_PACKAGES) -> Corpus:
    """Return documentation that every installation has: a language reference, and docstrings.

    "python" stands for the language reference (`pydoc_data.topics`) and the docstrings of the standard library. The
    sources are parsed, never imported. A docstring that was seen before is left out. Same versions of the packages,
    same corpus: `Corpus.source` names the versions.

    Args:
      packages: of ``PUBLIC_PACKAGES``.
    """
    seen: dict[str, None] = {}  # a dict keeps the order, and each text once
    for package in packages:
        if package == "python":
            seen.update(dict.fromkeys(_language_reference()))
        for _, docstring in _docstrings(package):
            seen.setdefault(docstring)
    return Corpus(
        "documentation",
        tuple(seen),
        None,
        "public",
        f"docstrings of {', '.join(_version(package) for package in packages)}",
    )


def load_stand_in(package: str = "scipy") -> Corpus:
    """Return the docstrings of a package as if they were private, a module as the user.

    It is for trying a run and for tests: users differ in how much they wrote, from a sentence to a book. `load_public`
    does not read the package, which is one of ``STAND_INS``.
    """
    pairs = list(_docstrings(package))
    return Corpus(
        f"{package} by module",
        tuple(docstring for _, docstring in pairs),
        tuple(module for module, _ in pairs),
        "private",
        f"docstrings of {_version(package)}, public in truth, standing in for private text",
    )


def _language_reference() -> list[str]:
    """Return the topics of ``help()``, in order of their names."""
    from pydoc_data.topics import topics  # a large module, only needed here

    return [topics[name].strip() for name in sorted(topics)]


def _docstrings(package: str) -> Iterator[tuple[str, str]]:
    """Pairs of module and docstring, in order of the files' names and of the lines."""
    folder = _folder(package)
    for path in _sources(folder):
        parts = path.relative_to(folder).parts
        try:
            with warnings.catch_warnings():  # of escapes in other people's strings
                warnings.simplefilter("ignore")
                tree = ast.parse(path.read_bytes())
        except (SyntaxError, ValueError):  # some packages ship files that are broken on purpose
            continue
        module = ".".join([package, *parts[:-1], path.stem]).removesuffix(".__init__")
        for docstring in _docstrings_below(tree):
            if len(docstring.split()) >= MIN_WORDS:
                yield module, docstring


def _sources(folder: Path) -> list[Path]:
    """Return the Python files below a folder, without the folders that are left out, sorted."""
    paths: list[Path] = []
    for parent, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name not in LEFT_OUT]
        paths += [Path(parent, name) for name in names if name.endswith(".py")]
    return sorted(paths)


def _docstrings_below(node: ast.AST) -> Iterator[str]:
    """Return the docstrings of a module, and of what is defined in it, however deep."""
    if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        docstring = ast.get_docstring(node)
        if docstring:
            yield docstring
    # Definitions are statements, so expressions need no visit; that is most of the tree.
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt | ast.ExceptHandler):
            yield from _docstrings_below(child)


def _folder(package: str) -> Path:
    """Return where the sources of a package lie."""
    if package == "python":
        return Path(sysconfig.get_path("stdlib"))
    found = importlib.util.find_spec(package)
    assert found is not None
    assert found.origin is not None
    return Path(found.origin).parent


def _version(package: str) -> str:
    if package == "python":
        return f"python {'.'.join(str(number) for number in sys.version_info[:3])}"
    distribution = {"sklearn": "scikit-learn"}.get(package, package)
    return f"{package} {importlib.metadata.version(distribution)}"


# The user's own files


def read_text(path: str | Path, standing: Standing = "private") -> Corpus:
    """Return the documents of a ``.jsonl`` file, a ``.txt`` file, or a folder of them.

    A ``.txt`` file is one document. A ``.jsonl`` file has one JSON object a line: ``text``, and ``user`` (a string or a
    whole number) in every line or in none; other fields are ignored. A folder is read with all folders below it, in
    order of their names, without hidden files. Text is UTF-8.

    Raises:
      UserError: nothing there, another kind of file, lines that are no such objects, users for some documents only. The
        message names file and line, never the text.
    """
    path = Path(path)
    records: list[_Record] = []
    files = [path] if path.is_file() else sorted(path.rglob("*"))
    for file in files:
        if file.is_file() and not file.name.startswith("."):
            records.extend(_records_of(file))
    if not records:
        raise UserError(f"there is no .txt or .jsonl file with text at {path}")
    users = tuple(str(record.user) for record in records if record.user is not None)
    if users and len(users) < len(records):
        raise UserError(f"{path}: only {len(users)} of {len(records)} documents name a user; name all, or none")
    documents = tuple(record.text for record in records)
    return Corpus(path.name, documents, users or None, standing, source=f"files of {path.name}")


class _Record(msgspec.Struct):
    """One document of a user."""

    text: str
    user: str | int | None = None


def _records_of(file: Path) -> Iterator[_Record]:
    """Return the documents of one file."""
    if file.suffix == ".txt":
        yield _Record(file.read_text(encoding="utf-8-sig"))
    elif file.suffix == ".jsonl":
        for number, line in enumerate(file.read_bytes().splitlines(), start=1):
            try:
                if line.strip():
                    yield msgspec.json.decode(line, type=_Record)
            except (msgspec.MsgspecError, UnicodeDecodeError):
                # Its own message may quote the text.
                raise UserError(f'{file}, line {number}: expected {{"text": ..., "user": ...}}') from None
    else:
        raise UserError(f"{file} is neither a .txt nor a .jsonl file; convert it, or move it out of the way")
