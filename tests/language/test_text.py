"""Corpora: what is public is public, whose documents are whose, and files that are not what they should be."""

import doctest
import hashlib
import json

import numpy as np
import pytest

from experiments.data import imdb as imdb_files
from experiments.data.files import Source
from experiments.errors import UserError
from experiments.language import packing, text, tokenizer
from experiments.language.text import Corpus, DuplicateWarning, find_duplicates, read_text, warn_of_duplicates


@pytest.mark.parametrize("module", [text, tokenizer, packing], ids=lambda module: module.__name__)
def test_the_examples_in_docstrings_run(module):
    result = doctest.testmod(module, optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    assert result.attempted
    assert not result.failed


def test_the_stand_in_has_modules_as_users_and_is_treated_as_private():
    corpus = text.load_stand_in("optax")
    assert corpus == text.load_stand_in("optax")
    assert corpus.standing == "private"
    assert len(set(corpus.users)) > 50
    assert corpus.num_words > 30_000
    assert all(user.startswith("optax.") or user == "optax" for user in corpus.users)
    assert "optax " in corpus.describe()


def test_public_text_is_documentation_without_the_stand_ins_and_without_repeats(monkeypatch):
    read = []
    monkeypatch.setattr(
        text, "_docstrings", lambda package: read.append(package) or iter([("m", "a" * 9), ("n", "a" * 9)])
    )
    corpus = text.load_public()
    assert not set(read) & set(text.STAND_INS)
    assert len(set(corpus.documents)) == len(corpus.documents)
    assert corpus.is_public
    assert sum("lambda" in document for document in corpus.documents) > 5  # the language reference
    for package in ("scipy", "os.path"):
        with pytest.raises(UserError, match="must be of python, numpy"):
            text.load_public([package])


def test_the_walk_leaves_out_tests_and_stand_ins_and_finds_inner_docstrings(tmp_path, monkeypatch):
    words = "these are more than the eight words that are asked for in"
    for name in ("b", "a", "tests/c", "scipy/d"):
        path = tmp_path / f"{name}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(
            f'"""{words} {name}."""\nif True:\n    class A:\n        def f(self):\n            """{words} f."""\n'
        )
    (tmp_path / "broken.py").write_text('"""never closed')
    (tmp_path / "short.py").write_text('"""Short."""')
    monkeypatch.setattr(text, "_folder", lambda package: tmp_path)
    expected = [("p.a", f"{words} a."), ("p.a", f"{words} f."), ("p.b", f"{words} b."), ("p.b", f"{words} f.")]
    assert list(text._docstrings("p")) == expected


def test_a_corpus_is_checked():
    with pytest.raises(UserError, match="got 1 users for 2 documents"):
        Corpus("c", ("a", "b"), ("u",), "private")
    with pytest.raises(UserError, match="standing must be one of public, private, evaluation"):
        Corpus("c", ("a",), None, "secret")
    Corpus("c", ("a",), None, "public").require_public("this")
    for standing in ("private", "evaluation"):
        with pytest.raises(UserError, match="this needs public text, but c is"):
            Corpus("c", ("a",), None, standing).require_public("this")


def test_a_private_corpus_is_described_without_counts():
    corpus = Corpus("c", ("a b c",) * 1234, None, "private", "none", "here")
    assert corpus.describe() == "c (private; none; here)"


# IMDb


@pytest.fixture
def imdb(tmp_path, monkeypatch):
    """600 reviews in a file like the prepared one: words a, b, c, d; the last 200 are the test reviews."""
    rng = np.random.default_rng(0)
    reviews = [np.r_[1, rng.choice([2, 4, 5, 6, 7], rng.integers(5, 12))] for _ in range(600)]
    np.savez(
        tmp_path / "imdb_tokens20k.npz",
        tokens=np.concatenate(reviews).astype(np.uint16),
        lengths=np.array([len(review) for review in reviews], np.int32),
        is_test=(np.arange(600) >= 400).astype(np.uint8),
        words=np.array("a\nb\nc\nd"),
    )
    checksum = hashlib.sha256((tmp_path / "imdb_tokens20k.npz").read_bytes()).hexdigest()
    monkeypatch.setenv("GDPJAX_DATA", str(tmp_path))
    monkeypatch.setattr(text, "PREPARED", Source("IMDb", {"imdb_tokens20k.npz": checksum}, "imdb", ()))
    assert imdb_files.FIRST == 3
    letters = np.array(["", "", "_", "", "a", "b", "c", "d"])
    return [" ".join(letters[review[1:]]) for review in reviews]


def test_imdb_reviews_are_their_words_and_the_test_part_is_for_measuring_only(imdb):
    loaded = text.load_imdb()
    assert list(loaded.private.documents) == imdb[:400]
    assert list(loaded.evaluation.documents) == imdb[400:]
    assert (loaded.private.standing, loaded.evaluation.standing, loaded.public) == ("private", "evaluation", None)
    assert loaded.private.users is None


def test_half_of_imdb_is_public_only_where_that_is_declared_and_named(imdb):
    loaded = text.load_imdb("half_of_train")
    assert "DECLARED public" in loaded.public.name
    assert loaded.public.is_public
    assert not set(loaded.public.documents) & set(loaded.private.documents)
    assert sorted(loaded.public.documents + loaded.private.documents) == sorted(imdb[:400])
    assert 120 < len(loaded.public.documents) < 280
    with pytest.raises(UserError, match="nothing or half_of_train"):
        text.load_imdb("test")


def test_imdb_without_its_file_says_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setenv("GDPJAX_DATA", str(tmp_path))
    with pytest.raises(UserError, match=r"needs imdb_tokens20k.npz in the folder that GDPJAX_DATA names"):
        text.load_imdb()


# Files of one's own


def lines(*records):
    return "\n".join(json.dumps(record) for record in records) + "\n"


def test_text_files_are_read_in_order_of_their_names(tmp_path):
    (tmp_path / "deep").mkdir()
    (tmp_path / "b.txt").write_text("second")
    (tmp_path / "a.txt").write_bytes("\ufefffirst ≥".encode())
    (tmp_path / "deep" / "c.jsonl").write_text(lines({"text": "third\u2028 line"}) + "\n" + lines({"text": ""}))
    (tmp_path / ".hidden").write_text("no")
    corpus = read_text(tmp_path)
    assert corpus.documents == ("first ≥", "second", "third\u2028 line", "")
    assert (corpus.users, corpus.standing, corpus.name) == (None, "private", tmp_path.name)


def test_users_are_fields_or_the_folders_nearest_the_top(tmp_path):
    path = tmp_path / "all.jsonl"
    path.write_text(lines({"text": "x", "user": 7}, {"text": "y", "user": "ann", "more": 1}))
    assert read_text(path).users == ("7", "ann")
    path.unlink()
    for name in ("ann/2020", "ann/2021", "bob"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "letter.txt").write_text(name)
    assert read_text(tmp_path, folders_are_users=True).users == ("ann", "ann", "bob")
    (tmp_path / "stray.txt").write_text("whose?")
    with pytest.raises(UserError, match=r"stray.txt is in no user's folder"):
        read_text(tmp_path, folders_are_users=True)
    (tmp_path / "stray.txt").unlink()
    (tmp_path / "bob" / "all.jsonl").write_text(lines({"text": "x", "user": "eve"}))
    with pytest.raises(UserError, match="names users itself"):
        read_text(tmp_path, folders_are_users=True)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"text": "SECRET"', "line 1: not JSON"),
        (b'{"text": "x"}\n["SECRET"]', 'line 2: expected an object with a string in "text"'),
        (b'{"text": 3}', 'line 1: expected an object with a string in "text"'),
        (b'{"text": "SECRET", "user": 1.5}', 'line 1: "user" must be a string or a whole number, got float'),
        (b'{"text": "SECRET", "user": true}', 'line 1: "user" must be a string or a whole number, got bool'),
        (b'{"text": "SECRET", "user": "a"}\n{"text": "y"}', "1 of 2 documents name a user"),
        (b'{"text": "SECRET \\ud800"}', "expected JSON text"),
        (b'{"text": "SECRET \xff"}', "is not UTF-8"),
    ],
)
def test_bad_lines_are_named_by_number_and_not_by_what_they_hold(tmp_path, content, message):
    (tmp_path / "d.jsonl").write_bytes(content)
    with pytest.raises(UserError) as error:
        read_text(tmp_path)
    assert message in str(error.value)
    assert "SECRET" not in str(error.value)


def test_other_files_and_empty_places_are_refused(tmp_path):
    with pytest.raises(UserError, match="there is no file or folder"):
        read_text(tmp_path / "absent")
    with pytest.raises(UserError, match="holds no files"):
        read_text(tmp_path)
    (tmp_path / "d.csv").write_text("text")
    with pytest.raises(UserError, match=r"neither a \.txt nor a \.jsonl"):
        read_text(tmp_path)


# Copies


def test_copies_are_counted_over_case_punctuation_and_blanks():
    documents = ("Hello, World!", "hello  world", "ＨＥＬＬＯ world", "hello worlds", "", "other", "other")
    corpus = Corpus("c", documents, ("a", "a", "b", "a", "b", "c", "c"), "private")
    found = find_duplicates(corpus, Corpus("p", ("Hello\nworld", "new"), None, "public"))
    assert (found.num_documents, found.num_copies, found.most_copies) == (7, 3, 3)
    assert found.num_texts_of_several_users == 1  # both copies of "other" are c's
    assert found.num_in_other == 3


def test_copies_among_users_are_warned_of_and_copies_within_a_user_are_not():
    with pytest.warns(DuplicateWarning, match="1 texts belong to more than one user .* there 2 times"):
        warn_of_duplicates(Corpus("c", ("x y", "x y", "z"), ("a", "b", "b"), "private"))
    with pytest.warns(DuplicateWarning, match="more than one document"):
        warn_of_duplicates(Corpus("c", ("x y", "x y"), None, "private"))
    warn_of_duplicates(Corpus("c", ("x y", "x y", "z"), ("a", "a", "b"), "private"))
