"""Corpora: what is public is public, whose documents are whose, and files that are not what they should be."""

import doctest
import json

import pytest

from experiments.language import packing, text, tokenizer
from experiments.language.text import Corpus, read_text
from gdpjax.sweeps import UserError


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
    assert corpus.standing == "public"
    assert sum("lambda" in document for document in corpus.documents) > 5  # the language reference


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


@pytest.mark.parametrize("standing", ["private", "evaluation"])
def test_what_needs_public_text_refuses_other_text(standing):
    Corpus("c", ("a",), None, "public").require_public("this")
    with pytest.raises(UserError, match="this needs public text, but c is"):
        Corpus("c", ("a",), None, standing).require_public("this")


def test_a_private_corpus_is_described_without_counts():
    corpus = Corpus("c", ("a b c",) * 1234, None, "private", "here")
    assert corpus.describe() == "c (private; here)"


# Files of one's own


def test_files_are_read_in_order_of_their_names_and_are_private(tmp_path):
    (tmp_path / "b.txt").write_text("one\ndocument", encoding="utf-8-sig")
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "c.txt").write_text("first")
    (tmp_path / ".hidden").write_text("no")
    corpus = read_text(tmp_path)
    assert corpus.documents == ("first", "one\ndocument")
    assert (corpus.standing, corpus.users) == ("private", None)
    assert read_text(tmp_path / "b.txt", "public").standing == "public"


def test_lines_name_their_users(tmp_path):
    lines = [{"text": "x\u2028y", "user": "ann", "more": 1}, {"text": "z", "user": 7}]
    content = "\n".join(json.dumps(line, ensure_ascii=False) for line in lines)
    (tmp_path / "d.jsonl").write_text(content + "\n\n")
    corpus = read_text(tmp_path / "d.jsonl")
    assert corpus.documents == ("x\u2028y", "z")
    assert corpus.users == ("ann", "7")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"text": "SECRET"', "line 1: expected"),
        (b'{"text": "x"}\n["SECRET"]', "line 2: expected"),
        (b'{"text": "SECRET", "user": 1.5}', "line 1: expected"),
        (b'{"text": "SECRET", "user": "a"}\n{"text": "y"}', "only 1 of 2 documents name a user"),
        (b'{"text": "SECRET \\ud800"}', "line 1: expected"),
        (b'{"text": "SECRET \xff"}', "line 1: expected"),
    ],
)
def test_bad_lines_are_named_by_number_and_not_by_what_they_hold(tmp_path, content, message):
    (tmp_path / "d.jsonl").write_bytes(content)
    with pytest.raises(UserError) as error:
        read_text(tmp_path)
    assert message in str(error.value)
    assert "SECRET" not in str(error.value)


def test_other_files_and_empty_places_are_refused(tmp_path):
    for place in (tmp_path / "absent", tmp_path):
        with pytest.raises(UserError, match=r"there is no .txt or .jsonl file"):
            read_text(place)
    (tmp_path / "d.csv").write_text("text")
    with pytest.raises(UserError, match=r"neither a \.txt nor a \.jsonl"):
        read_text(tmp_path)
