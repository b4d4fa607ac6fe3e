"""A byte-pair tokenizer, trained on public text, and corpora as token numbers.

    tokenizer = train_tokenizer(load_public(), vocab_size=4096)
    tokenizer.decode(tokenizer.encode("any text")) == "any text"
    tokenized = tokenize(corpus, tokenizer)

Which strings become tokens is learned from text and is published with the model, number by number: a name that occurs
often enough in private text would be a token, with no noise anywhere. Therefore `train_tokenizer` takes public text
only. A tokenizer that was published by others is loaded with `Tokenizer.load`.

The work is done by the ``tokenizers`` package. The tokenizer is byte-level: every text is a sequence of its tokens, and
comes back unchanged. Documents begin and end with tokens of their own, which no text can spell.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import tokenizers

from experiments.language.text import Corpus, Standing
from gdpjax.sweeps import UserError, records

SPECIAL = ("<|pad|>", "<|begin|>", "<|end|>")
LEAST_VOCAB_SIZE = 256 + len(SPECIAL)
"""Every byte is a token, so that any text can be written."""
MIN_FREQUENCY = 2
"""A pair that occurs once is not merged."""
KNOWN_BEGIN = ("<|begin|>", "<s>", "<|begin_of_text|>", "<bos>", "<|endoftext|>")
KNOWN_END = ("<|end|>", "</s>", "<|end_of_text|>", "<eos>", "<|endoftext|>")


class Tokenizer:
    """Text to token numbers and back.

    Attributes:
      vocab_size: numbers are below it.
      begin, end: the numbers of where a document begins and ends, which may be one. Padding is told by segment_ids.
    """

    def __init__(self, backend: tokenizers.Tokenizer) -> None:
        # A text that spells "<|end|>" is a text, and not the end of a document.
        backend.encode_special_tokens = True
        backend.no_truncation()
        backend.no_padding()
        self._backend = backend
        self.vocab_size: int = max(backend.get_vocab(with_added_tokens=True).values()) + 1
        self.begin = self._number_of(KNOWN_BEGIN)
        self.end = self._number_of(KNOWN_END)

    def _number_of(self, known: Sequence[str]) -> int:
        """Return the number of the first of these tokens that is there."""
        for token in known:
            number = self._backend.token_to_id(token)
            if number is not None:
                return number
        raise UserError(f"expected a tokenizer with one of the tokens {', '.join(known)}")

    def encode(self, text: str) -> np.ndarray:
        """Return ``int32[n]``, the tokens of a text, without those of its begin and end."""
        return np.array(self._backend.encode(text, add_special_tokens=False).ids, np.int32)

    def decode(self, tokens: np.ndarray) -> str:
        """Return the text of ``int[n]`` tokens, without pad, begin and end.

        Tokens that a model made may end in the middle of a character; what is no character becomes U+FFFD.
        """
        return self._backend.decode(np.asarray(tokens).tolist(), skip_special_tokens=True)

    def save(self, path: str | Path) -> None:
        """Write one JSON file, as the ``tokenizers`` package does."""
        records.write_atomically(Path(path), self._backend.to_str().encode())

    @classmethod
    def load(cls, path: str | Path) -> "Tokenizer":
        """Read what `save` wrote, or a published ``tokenizer.json``.

        A published tokenizer is taken as public: whether it was trained on your private text only you can know. It may
        normalise text (lower case, blanks), so that it does not come back unchanged.

        Raises:
          UserError: no such file, no tokenizer in it, no known tokens for begin and end.
        """
        try:
            backend = tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:  # the package raises Exception itself
            raise UserError(f"no tokenizer could be read from {path}: {error}") from None
        return cls(backend)


def train_tokenizer(corpus: Corpus, vocab_size: int) -> Tokenizer:
    """Train a byte-level byte-pair tokenizer on public text; the same text gives the same tokenizer.

    Args:
      corpus: public; anything else is refused.
      vocab_size: number of tokens, with 256 bytes and 3 special ones. A small corpus may give fewer.

    Raises:
      UserError: a corpus that is not public, or a vocabulary smaller than the bytes.

    Reference: Sennrich, Haddow and Birch, arXiv:1508.07909; bytes in place of characters.

    >>> letters = Corpus("letters", ("the cat, the hat, the bat",), None, "public")
    >>> tokenizer = train_tokenizer(letters, vocab_size=264)
    >>> tokenizer.decode(tokenizer.encode("the cat — ≥ 1"))
    'the cat — ≥ 1'
    """
    corpus.require_public("training a tokenizer")
    if vocab_size < LEAST_VOCAB_SIZE:
        raise UserError(f"expected a vocab_size of at least {LEAST_VOCAB_SIZE}, for all bytes, got {vocab_size}")
    backend = tokenizers.Tokenizer(tokenizers.models.BPE())
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=MIN_FREQUENCY,
        special_tokens=list(SPECIAL),
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(corpus.documents, trainer, length=len(corpus.documents))
    return Tokenizer(backend)


class TokenizedCorpus(NamedTuple):
    """A corpus as token numbers, with its users and its standing.

    Attributes:
      name, users, standing: as of the `Corpus`.
      documents: ``int32[n]`` each, from begin to end.
    """

    name: str
    documents: tuple[np.ndarray, ...]
    users: tuple[str, ...] | None
    standing: Standing


def tokenize(corpus: Corpus, tokenizer: Tokenizer) -> TokenizedCorpus:
    """Return the documents of a corpus as tokens, each between its begin and its end; nothing is learned from them."""
    documents = []
    for text in corpus.documents:
        tokens = [tokenizer.begin, *tokenizer.encode(text), tokenizer.end]
        documents.append(np.array(tokens, np.int32))
    return TokenizedCorpus(corpus.name, tuple(documents), corpus.users, corpus.standing)
