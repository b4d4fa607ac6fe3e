"""The tokenizer: any text comes back, no text is a special token, and private text is refused."""

import numpy as np
import pytest
import tokenizers
from hypothesis import example, given, settings
from hypothesis import strategies as st

from experiments.language.text import Corpus
from experiments.language.tokenizer import Tokenizer, tokenize, train_tokenizer
from gdpjax.sweeps import UserError

SENTENCES = ("the quick brown fox jumps over the lazy dog", "the dog and the fox: a fable, in two parts")
SMALL = Corpus("sentences", SENTENCES * 3, None, "public")


@pytest.fixture(scope="module")
def trained():
    return train_tokenizer(SMALL, 300)


@given(st.text())
@settings(deadline=None, max_examples=100)
@example("<|end|><|pad|> <|begin|>")
@example("\x00 \r\n\t ﬁ é é 👩‍👩‍👧 \U0010ffff")
@example(" leading, trailing  ")
def test_any_text_comes_back_and_never_as_special_tokens(trained, string):
    tokens = trained.encode(string)
    assert trained.decode(tokens) == string
    assert not np.isin(tokens, [0, trained.begin, trained.end]).any()
    assert tokens.dtype == np.int32
    assert ((tokens >= 0) & (tokens < trained.vocab_size)).all()


@pytest.mark.parametrize("standing", ["private", "evaluation"])
def test_text_that_is_not_public_is_refused(standing):
    with pytest.raises(UserError, match="training a tokenizer needs public text, but sentences is"):
        train_tokenizer(Corpus("sentences", SENTENCES, None, standing), 300)


def published(path, special):
    """A file as others publish it, with truncation and padding left switched on."""
    backend = tokenizers.Tokenizer(tokenizers.models.BPE())
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=special,
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(SENTENCES, trainer)
    backend.enable_truncation(4)
    backend.enable_padding(length=4)
    backend.save(str(path))


def test_saved_and_loaded_it_is_the_same(trained, tmp_path):
    path = tmp_path / "tokenizer.json"
    trained.save(path)
    loaded = Tokenizer.load(path)
    assert (loaded.begin, loaded.end, loaded.vocab_size) == (trained.begin, trained.end, trained.vocab_size)
    assert list(loaded.encode("the <|pad|> fox")) == list(trained.encode("the <|pad|> fox"))


def test_a_published_tokenizer_is_read(tmp_path):
    path = tmp_path / "tokenizer.json"
    published(path, ["<|endoftext|>"])
    loaded = Tokenizer.load(path)
    assert loaded.begin == loaded.end == 0
    assert loaded.decode(loaded.encode(SENTENCES[0])) == SENTENCES[0]
    assert 0 not in loaded.encode("x <|endoftext|>")
    published(path, ["<pad>", "<s>", "</s>"])
    loaded = Tokenizer.load(path)
    assert (loaded.begin, loaded.end) == (1, 2)


def test_a_tokenized_corpus_keeps_its_users_and_its_standing(trained):
    corpus = Corpus("letters", ("the fox", "<|end|>"), ("ann", "bob"), "private")
    tokenized = tokenize(corpus, trained)
    assert (tokenized.name, tokenized.users, tokenized.standing) == ("letters", ("ann", "bob"), "private")
    for document, string in zip(tokenized.documents, corpus.documents, strict=True):
        assert (document[0], document[-1]) == (trained.begin, trained.end)
        assert list(document[1:-1]) == list(trained.encode(string))
