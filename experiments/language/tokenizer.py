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

import dataclasses
import json
from pathlib import Path

import numpy as np
import tokenizers

from experiments.errors import UserError
from experiments.language.text import Corpus, Standing
from gdpjax.sweeps import records

PAD, BEGIN, END = "<|pad|>", "<|begin|>", "<|end|>"
SPECIAL = (PAD, BEGIN, END)
LEAST_VOCAB_SIZE = 256 + len(SPECIAL)
"""Every byte is a token, so that any text can be written."""
MOST_VOCAB_SIZE = 1_000_000
MIN_FREQUENCY = 2
"""A pair that occurs once is not merged."""
FORMAT = "gdpjax tokenizer 1"
OWN_FIELDS = ("pad", "begin", "end", "origin")
"""What a saved file says beside the tokenizer, in the order of the arguments."""
KNOWN_PAD = (PAD, "<pad>", "[PAD]")
KNOWN_BEGIN = (BEGIN, "<s>", "<|begin_of_text|>", "<bos>", "<|endoftext|>")
KNOWN_END = (END, "</s>", "<|end_of_text|>", "<eos>", "<|endoftext|>")
DOCUMENTS_AT_ONCE = 1_000


class Tokenizer:
    """Text to token numbers and back.

    Attributes:
      vocab_size: numbers are below it.
      pad, begin, end: the numbers of padding, and of where a document begins and ends. A published tokenizer may have
        one number for two of them; padding is told by segment_ids, not by the number.
      origin: what it was trained on, in words.
    """

    def __init__(self, backend: tokenizers.Tokenizer, pad: int, begin: int, end: int, origin: str) -> None:
        # A text that spells "<|end|>" is a text, and not the end of a document.
        backend.encode_special_tokens = True
        backend.no_truncation()
        backend.no_padding()
        self._backend = backend
        self.vocab_size: int = max(backend.get_vocab(with_added_tokens=True).values()) + 1
        self.pad, self.begin, self.end = pad, begin, end
        self.origin = origin

    def encode(self, text: str) -> np.ndarray:
        """Return ``int32[n]``, the tokens of a text, without those of its begin and end.

        Raises:
          UserError: half of a surrogate pair, which is no character.
        """
        return self._encode_all([text])[0]

    def decode(self, tokens: np.ndarray) -> str:
        """Return the text of ``int[n]`` tokens, without pad, begin and end.

        Tokens that a model made may end in the middle of a character; what is no character becomes U+FFFD.
        """
        return self._backend.decode(np.asarray(tokens).tolist(), skip_special_tokens=True)

    def encode_documents(self, documents: tuple[str, ...] | list[str]) -> list[np.ndarray]:
        """Return ``int32[n]`` for each document: its begin, its text, its end."""
        encoded = []
        for start in range(0, len(documents), DOCUMENTS_AT_ONCE):
            for tokens in self._encode_all(list(documents[start : start + DOCUMENTS_AT_ONCE])):
                encoded.append(np.concatenate([[self.begin], tokens, [self.end]]).astype(np.int32))
        return encoded

    def _encode_all(self, texts: list[str]) -> list[np.ndarray]:
        for text in texts:
            try:
                text.encode()
            except UnicodeEncodeError as error:
                raise UserError(
                    f"a text holds half of a surrogate pair (at character {error.start}), which is no character and "
                    "has no bytes; repair the text"
                ) from None
        encodings = self._backend.encode_batch_fast(texts, add_special_tokens=False)
        return [np.array(encoding.ids, np.int32) for encoding in encodings]

    def save(self, path: str | Path) -> None:
        """Write one JSON file: the tokenizer as the ``tokenizers`` package writes it, and what `load` needs beside."""
        own = {name: getattr(self, name) for name in OWN_FIELDS}
        content = {"format": FORMAT, **own, "tokenizer": json.loads(self._backend.to_str())}
        records.write_atomically(Path(path), json.dumps(content, ensure_ascii=False).encode())

    @classmethod
    def load(cls, path: str | Path, *, begin: str | None = None, end: str | None = None) -> "Tokenizer":
        """Read what `save` wrote, or a published ``tokenizer.json``.

        A published tokenizer is taken as public: whether it was trained on your private text only you can know. It may
        normalise text (lower case, blanks), so that it does not come back unchanged.

        Args:
          path: the file.
          begin, end: of a published file, the tokens where a document begins and ends; those of the well-known models
            are found without.

        Raises:
          UserError: no such file, no tokenizer in it, no tokens for begin and end.
        """
        path = Path(path)
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise UserError(f"no tokenizer could be read from {path}: {error.strerror}") from None
        except ValueError:
            raise UserError(f"{path} is not JSON; a tokenizer is a file such as tokenizer.json") from None
        is_ours = isinstance(content, dict) and content.get("format") == FORMAT
        if is_ours and not {"tokenizer", *OWN_FIELDS} <= content.keys():
            raise UserError(f"{path} is incomplete: it should have {', '.join(['tokenizer', *OWN_FIELDS])}")
        described = content["tokenizer"] if is_ours else content
        if not isinstance(described, dict) or "model" not in described:
            raise UserError(f"{path} holds no tokenizer: expected a file of Tokenizer.save or a tokenizer.json")
        try:
            backend = tokenizers.Tokenizer.from_str(json.dumps(described))
        except Exception as error:  # the package raises Exception itself
            raise UserError(
                f"{path} holds no tokenizer that tokenizers {tokenizers.__version__} reads: {error}"
            ) from None
        if is_ours:
            return cls(backend, *(content[name] for name in OWN_FIELDS))
        numbers = {
            "begin": _number(backend, path, "begin", begin, KNOWN_BEGIN),
            "end": _number(backend, path, "end", end, KNOWN_END),
        }
        pads = [backend.token_to_id(token) for token in KNOWN_PAD]
        pad = next((number for number in pads if number is not None), numbers["end"])
        return cls(backend, pad, **numbers, origin=f"published file {path.name}, taken as public")


def _number(backend: tokenizers.Tokenizer, path: Path, role: str, token: str | None, known: tuple[str, ...]) -> int:
    """Return the number of the token in a role: the one that is named, or the first known one that is there."""
    for candidate in [token] if token is not None else known:
        number = backend.token_to_id(candidate)
        if number is not None:
            return number
    missing = f"no token {token!r}" if token is not None else f"none of {', '.join(known)}"
    raise UserError(f"{path} has {missing}; say which token is a document's {role}: {role}=...")


def train_tokenizer(corpus: Corpus, vocab_size: int) -> Tokenizer:
    """Train a byte-level byte-pair tokenizer on public text; the same text gives the same tokenizer.

    Args:
      corpus: public; anything else is refused.
      vocab_size: number of tokens, with 256 bytes and 3 special ones. A small corpus may give fewer.

    Raises:
      UserError: a corpus that is not public or holds no text, or a vocabulary smaller than the bytes.

    Reference: Sennrich, Haddow and Birch, arXiv:1508.07909; bytes in place of characters.

    >>> letters = Corpus("letters", ("the cat, the hat, the bat",), None, "public")
    >>> tokenizer = train_tokenizer(letters, vocab_size=264)
    >>> tokenizer.decode(tokenizer.encode("the cat — ≥ 1"))
    'the cat — ≥ 1'
    """
    corpus.require_public("training a tokenizer")
    if not LEAST_VOCAB_SIZE <= vocab_size <= MOST_VOCAB_SIZE:
        raise UserError(
            f"vocab_size must be from {LEAST_VOCAB_SIZE} (256 bytes and {len(SPECIAL)} special tokens) to "
            f"{MOST_VOCAB_SIZE}, got {vocab_size}"
        )
    if not any(corpus.documents):
        raise UserError(f"{corpus.name} holds no text to train a tokenizer on")
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
    vocabulary = backend.get_vocab()
    pad, begin, end = (vocabulary[token] for token in SPECIAL)
    return Tokenizer(backend, pad, begin, end, f"byte pairs of {corpus.describe()}")


@dataclasses.dataclass(frozen=True)
class TokenizedCorpus:
    """A corpus as token numbers, with its users and its standing.

    Attributes:
      name, users, standing: as of the `Corpus`.
      documents: ``int32[n]`` each, from begin to end.
    """

    name: str
    documents: tuple[np.ndarray, ...]
    users: tuple[str, ...] | None
    standing: Standing

    @property
    def num_tokens(self) -> int:
        """Number of tokens, begins and ends included. Of a private corpus it is private."""
        return sum(len(document) for document in self.documents)


def tokenize(corpus: Corpus, tokenizer: Tokenizer) -> TokenizedCorpus:
    """Return the documents of a corpus as tokens; nothing is learned from them."""
    return TokenizedCorpus(
        corpus.name, tuple(tokenizer.encode_documents(corpus.documents)), corpus.users, corpus.standing
    )
