"""Text to train language models on: documents, who they belong to, and whether they are public.

    public = load_public()  # documentation that is installed with the packages
    private = read_text("letters.jsonl")  # one {"text": ..., "user": ...} a line

A `Corpus` carries its standing along. What may only be done with public text (training a tokenizer, choosing a length,
pre-training without noise) asks for it and refuses private text, so that no step outside epsilon reads it by mistake.

Four sources:

* `load_public`: Python's language reference and the docstrings of installed packages. Always there, offline.
* `load_stand_in`: docstrings of a package that `load_public` leaves out, a module playing the part of a user. It is
  public in truth, and stands in for private text where runs are tried and tested.
* `load_imdb`: film reviews, for measuring.
* `read_text`: the user's own files.
"""

import ast
import dataclasses
import hashlib
import importlib.metadata
import importlib.util
import json
import os
import re
import sys
import sysconfig
import unicodedata
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from experiments.data.files import ENVIRONMENT_VARIABLE, find
from experiments.data.imdb import PREPARED, START
from experiments.errors import UserError

Standing = Literal["public", "private", "evaluation"]
STANDINGS: dict[str, str] = {
    "public": "public",
    "private": "private",
    "evaluation": "taken as public, for measuring only",
}

LICENCES = {
    "python": "PSF-2.0",
    "numpy": "BSD-3-Clause",
    "jax": "Apache-2.0",
    "sklearn": "BSD-3-Clause",
    "matplotlib": "PSF-based",
    "scipy": "BSD-3-Clause",
    "optax": "Apache-2.0",
}
"""Licences of the packages whose docstrings are read."""
PUBLIC_PACKAGES = ("python", "numpy", "jax", "sklearn", "matplotlib")
STAND_INS = ("scipy", "optax")
LEFT_OUT = frozenset(
    {"test", "tests", "testing", "__pycache__", "site-packages", "idlelib", "lib2to3", "externals", *STAND_INS}
)
"""Folders that are not read: tests, copies of other packages, and what documents a stand-in (``jax.scipy``)."""
MIN_WORDS = 8
"""A docstring with fewer words is no document."""
RARE_WORD = "_"
"""What is written for a word of IMDb that is not among the 20,000 most frequent."""


@dataclasses.dataclass(frozen=True)
class Corpus:
    """Documents in order, the user of each, and what may be done with them.

    Attributes:
      name: a name for tables.
      documents: the texts.
      users: the user that each document belongs to, or None where nobody knows.
      standing: "public"; "private"; or "evaluation", which is taken as public but must not be learned from.
      licence, source: for the record.

    Raises:
      UserError: another standing, or not one user for each document.

    >>> letters = Corpus("letters", ("Dear all,", "Yours"), ("ann", "bob"), "private")
    >>> letters.describe()
    'letters (private)'
    >>> letters.num_words
    3
    """

    name: str
    documents: tuple[str, ...]
    users: tuple[str, ...] | None
    standing: Standing
    licence: str = ""
    source: str = ""

    def __post_init__(self) -> None:
        if self.standing not in STANDINGS:
            raise UserError(f"standing must be one of {', '.join(STANDINGS)}, got {self.standing!r}")
        if self.users is not None and len(self.users) != len(self.documents):
            raise UserError(
                f"{self.name}: every document needs one user, got {len(self.users)} users for "
                f"{len(self.documents)} documents; leave users out (None) where they are not known"
            )

    @property
    def is_public(self) -> bool:
        """Whether something may be learned from it without noise."""
        return self.standing == "public"

    @property
    def num_words(self) -> int:
        """Number of words between blanks. Of a private corpus it is private."""
        return sum(len(document.split()) for document in self.documents)

    def describe(self) -> str:
        """Name, standing, licence and source in one line, without anything that was counted in it."""
        details = [STANDINGS[self.standing], self.licence, self.source]
        return f"{self.name} ({'; '.join(detail for detail in details if detail)})"

    def require_public(self, purpose: str) -> None:
        """Raise a UserError unless the corpus is public; ``purpose`` is the subject of the sentence."""
        if not self.is_public:
            raise UserError(
                f"{purpose} needs public text, but {self.name} is {STANDINGS[self.standing]}: what is learned there is "
                "not covered by epsilon; use public text, such as experiments.language.text.load_public()"
            )


# Documentation that is installed with the packages


def load_public(packages: Sequence[str] = PUBLIC_PACKAGES) -> Corpus:
    """Return documentation that every installation has: a language reference, and docstrings.

    "python" stands for the language reference (`pydoc_data.topics`) and the docstrings of the standard library. The
    sources are parsed, never imported. A docstring that was seen before is left out. Same versions of the packages,
    same corpus: `Corpus.source` names the versions.

    Args:
      packages: of ``PUBLIC_PACKAGES``.

    Raises:
      UserError: a package that is not among them, or not installed.
    """
    for package in packages:
        if package not in PUBLIC_PACKAGES:
            raise UserError(f"packages of public text must be of {', '.join(PUBLIC_PACKAGES)}, got {package!r}")
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
        ", ".join(f"{package} {LICENCES[package]}" for package in packages),
        f"docstrings of {', '.join(_version(package) for package in packages)}",
    )


def load_stand_in(package: str = "scipy") -> Corpus:
    """Return the docstrings of a package as if they were private, a module as the user.

    It is for trying a run and for tests: users differ in how much they wrote, from a sentence to a book. `load_public`
    does not read the package.

    Raises:
      UserError: not one of ``STAND_INS``, or not installed.
    """
    if package not in STAND_INS:
        raise UserError(f"a stand-in for private text must be one of {', '.join(STAND_INS)}, got {package!r}")
    pairs = list(_docstrings(package))
    return Corpus(
        f"{package} by module",
        tuple(docstring for _, docstring in pairs),
        tuple(module for module, _ in pairs),
        "private",
        LICENCES[package],
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
    if found is None or not found.submodule_search_locations:
        raise UserError(
            f"{package} is not installed, and its docstrings are asked for; pip install it, or leave it out"
        )
    return Path(next(iter(found.submodule_search_locations)))


def _version(package: str) -> str:
    if package == "python":
        return f"python {'.'.join(str(number) for number in sys.version_info[:3])}"
    distribution = {"sklearn": "scikit-learn"}.get(package, package)
    return f"{package} {importlib.metadata.version(distribution)}"


# IMDb


class ImdbText(NamedTuple):
    """Film reviews: those to train on privately, those to measure with, and those declared public, if any."""

    private: Corpus
    evaluation: Corpus
    public: Corpus | None


def load_imdb(declared_public: Literal["nothing", "half_of_train"] = "nothing") -> ImdbText:
    """Return 25,000 film reviews to train on and 25,000 to measure with; the unit is the review.

    The text is approximate: the words of each review in lower case, without punctuation, ``_`` for a word that is not
    among the 20,000 most frequent. The training reviews are private. The test reviews are the evaluation, taken as
    public as everywhere in these experiments; nothing may be learned from them. Who wrote a review is not known, so no
    statement about users can be made.

    Args:
      declared_public: "nothing"; or "half_of_train" to declare about half of the training reviews public, chosen review
        by review from its own words. They are then no longer in the private part, and the corpus' name says what was
        declared. Pre-training on them is an experiment about text of the same kind: reviews of one film are in both
        halves, so it flatters private fine-tuning.

    Raises:
      UserError: another choice, or no ``imdb_tokens20k.npz`` in the folder of GDPJAX_DATA. Keras' ``imdb.npz`` has no
        words; the original folder of reviews, one text file each, can be read with `read_text`.
    """
    if declared_public not in ("nothing", "half_of_train"):
        raise UserError(f"declared_public must be nothing or half_of_train, got {declared_public!r}")
    prepared = find(PREPARED)
    if prepared is None:
        raise UserError(
            f"IMDb as text needs {next(iter(PREPARED.sha256))} in the folder that {ENVIRONMENT_VARIABLE} names (or in "
            "its imdb folder); another form of the reviews, a text file each, can be read with read_text(folder)"
        )
    return read_imdb(prepared[0], declared_public)


def read_imdb(path: Path, declared_public: str) -> ImdbText:
    """From the array of word numbers, which holds the list of words too."""
    with np.load(path) as arrays:
        # A word's number is its rank (from 1 on) plus 3; of the numbers below, 2 stands for a rare word.
        words = np.array(["", "", RARE_WORD, "", *str(arrays["words"]).split("\n")], dtype=object)
        reviews = np.split(arrays["tokens"], np.cumsum(arrays["lengths"])[:-1])
        is_test = arrays["is_test"].astype(bool)
    texts = [" ".join(words[review[review != START]]) for review in reviews]
    train = [text for text, test in zip(texts, is_test, strict=True) if not test]
    source = "prepared from the Large Movie Review Dataset (Maas et al., 2011), words only"

    def corpus(name: str, documents: list[str], standing: Standing) -> Corpus:
        return Corpus(name, tuple(documents), None, standing, "no licence stated", source)

    evaluation = corpus(
        "IMDb, test reviews", [text for text, test in zip(texts, is_test, strict=True) if test], "evaluation"
    )
    if declared_public == "nothing":
        return ImdbText(corpus("IMDb, training reviews", train, "private"), evaluation, None)
    # The side of a review is a function of its own words, so that no review decides where another one goes.
    declared = [_half_of(text) == 0 for text in train]
    public = [text for text, is_declared in zip(train, declared, strict=True) if is_declared]
    private = [text for text, is_declared in zip(train, declared, strict=True) if not is_declared]
    return ImdbText(
        corpus("IMDb, the training reviews not declared public", private, "private"),
        evaluation,
        corpus("IMDb, half of the training reviews, DECLARED public", public, "public"),
    )


def _half_of(text: str) -> int:
    return hashlib.blake2b(text.encode(), digest_size=1, person=b"imdb half").digest()[0] % 2


# The user's own files


def read_text(
    path: str | Path,
    *,
    name: str | None = None,
    standing: Standing = "private",
    folders_are_users: bool = False,
    licence: str = "",
) -> Corpus:
    """Return the documents of a ``.jsonl`` file, a ``.txt`` file, or a folder of them.

    A ``.txt`` file is one document. A ``.jsonl`` file has one JSON object a line: ``text``, and ``user`` (a string or a
    whole number) in every line or in none; other fields are ignored. A folder is read with all folders below it, in
    order of their names, and hidden files are skipped. Text is UTF-8.

    Args:
      path: file or folder.
      name: for tables; the name of the file or folder unless given.
      standing: "private" unless you say otherwise.
      folders_are_users: the user of a document is the folder below ``path`` that its file is in, however deep.
      licence: for the record.

    Raises:
      UserError: nothing there, another kind of file, text that is not UTF-8, lines that are no such objects, users for
        some documents only. The message names file and line, never the text.
    """
    path = Path(path)
    files = _text_files(path)
    documents: list[str] = []
    users: list[str | None] = []
    for file in files:
        for document, user in _documents_of(file):
            documents.append(document)
            users.append(_folder_user(file, path, user) if folders_are_users else user)
    known = [user for user in users if user is not None]
    if known and len(known) < len(users):
        raise UserError(
            f"{path}: {len(known)} of {len(users)} documents name a user; name one for every document, or for none"
        )
    return Corpus(
        name or path.name, tuple(documents), tuple(known) if known else None, standing, licence, f"files of {path.name}"
    )


def _text_files(path: Path) -> list[Path]:
    """Return the file, or those of a folder, after a check of their kinds."""
    if not path.exists():
        raise UserError(f"there is no file or folder {path}")
    if path.is_file():
        files = [path]
    else:
        below = sorted(file for file in path.rglob("*") if file.is_file())
        files = [file for file in below if not any(part.startswith(".") for part in file.relative_to(path).parts)]
    if not files:
        raise UserError(f"the folder {path} holds no files; put .txt or .jsonl files there")
    for file in files:
        if file.suffix not in (".txt", ".jsonl"):
            raise UserError(f"{file} is neither a .txt nor a .jsonl file; convert it, or move it out of the way")
    return files


def _folder_user(file: Path, path: Path, user: str | None) -> str:
    """Return the first folder below ``path`` on the way to a file."""
    parts = file.relative_to(path).parts
    if len(parts) < 2:
        raise UserError(f"{file} is in no user's folder; with folders_are_users every file is in one below {path}")
    if user is not None:
        raise UserError(f"{file} names users itself; leave folders_are_users out, or the field user")
    return parts[0]


def _documents_of(file: Path) -> Iterator[tuple[str, str | None]]:
    """Pairs of document and user (or None) of one file."""
    try:
        content = file.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{file} is not UTF-8 (byte {error.start}); convert it") from None
    if file.suffix == ".txt":
        yield content, None
        return
    # Only "\n" ends a line: str.splitlines would cut inside a string that holds U+2028.
    for number, line in enumerate(content.split("\n"), start=1):
        if line.strip():
            yield _record_of(line, f"{file}, line {number}")


def _record_of(line: str, where: str) -> tuple[str, str | None]:
    """Return the text and the user of one line of a .jsonl file."""
    try:
        record = json.loads(line)
    except json.JSONDecodeError:
        raise UserError(f"{where}: not JSON; each line must be an object with the fields text and user") from None
    if not isinstance(record, dict) or not isinstance(record.get("text"), str):
        raise UserError(f'{where}: expected an object with a string in "text"')
    text, user = record["text"], record.get("user")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise UserError(f'{where}: "text" holds half of a surrogate pair, which is no character; repair it') from None
    if user is not None and (isinstance(user, bool) or not isinstance(user, str | int)):
        raise UserError(f'{where}: "user" must be a string or a whole number, got {type(user).__name__}')
    return text, None if user is None else str(user)


# Documents that are there more than once


class DuplicateWarning(UserWarning):
    """Documents of several units are copies of each other."""


@dataclasses.dataclass(frozen=True)
class Duplicates:
    """The number of documents that are copies. Counted in private text it is private, and not for release.

    Attributes:
      num_documents: of the whole corpus.
      num_copies: documents that have an equal one before them.
      num_texts_of_several_users: different texts that more than one user has (more than one document, where users are
        not known). Removing one user leaves them with the others, so epsilon says little about such a text.
      most_copies: how often the most frequent text is there.
      num_in_other: documents that are in the other corpus, too; 0 without one.
    """

    num_documents: int
    num_copies: int
    num_texts_of_several_users: int
    most_copies: int
    num_in_other: int


def find_duplicates(corpus: Corpus, other: Corpus | None = None) -> Duplicates:
    """Count documents that are the same text, whatever their case, punctuation and blanks.

    Nothing is removed. To remove a copy because *another* unit has it would make what one unit contributes depend on
    other units, and the guarantee would be gone. Copies within one unit may be removed, and so may private documents
    that are in public text (but not the other way round: which public text remains would tell what is private).

    Args:
      corpus: where copies are counted.
      other: another corpus, such as the text of pre-training, or of evaluation.

    >>> twice = Corpus("notes", ("See you!", "see  you", "No."), ("ann", "bob", "bob"), "private")
    >>> find_duplicates(twice)
    Duplicates(num_documents=3, num_copies=1, num_texts_of_several_users=1, most_copies=2, num_in_other=0)
    """
    units = corpus.users if corpus.users is not None else range(len(corpus.documents))
    owners: dict[bytes, list[object]] = {}
    for document, unit in zip(corpus.documents, units, strict=True):
        owners.setdefault(_normalised_hash(document), []).append(unit)
    elsewhere = {_normalised_hash(document) for document in other.documents} if other else set()
    counts = [len(units) for units in owners.values()]
    return Duplicates(
        num_documents=sum(counts),
        num_copies=sum(counts) - len(counts),
        num_texts_of_several_users=sum(len(set(units)) > 1 for units in owners.values()),
        most_copies=max(counts, default=0),
        num_in_other=sum(len(units) for text, units in owners.items() if text in elsewhere),
    )


def warn_of_duplicates(corpus: Corpus, other: Corpus | None = None) -> Duplicates:
    """Count as `find_duplicates` does, and warn where texts of several units are the same.

    The warning holds private counts, for the person who trains.
    """
    found = find_duplicates(corpus, other)
    unit = "document" if corpus.users is None else "user"
    if found.num_texts_of_several_users:
        warnings.warn(
            f"{corpus.name}: {found.num_texts_of_several_users} texts belong to more than one {unit} (the most "
            f"frequent text is there {found.most_copies} times). Epsilon is for one {unit}: a text that k of them hold "
            "is protected only as a group of k. (These counts are private.)",
            DuplicateWarning,
            stacklevel=2,
        )
    return found


def _normalised_hash(document: str) -> bytes:
    """Return a hash of the words alone: compatibility forms, case, punctuation and blanks do not matter."""
    words = re.findall(r"\w+", unicodedata.normalize("NFKC", document).casefold())
    return hashlib.blake2b(" ".join(words).encode("utf-8", "surrogatepass"), digest_size=16).digest()
