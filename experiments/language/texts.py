"""The texts of one command: public, private, held out, as tokens and as units."""

import dataclasses
from pathlib import Path

import jax

from experiments.config import LanguageConfig
from experiments.errors import UserError
from experiments.language.packing import Units, pack_units, split_units
from experiments.language.presets import Settings
from experiments.language.text import STAND_INS, Corpus, load_imdb, load_public, load_stand_in, read_text
from experiments.language.tokenizer import Tokenizer, tokenize, train_tokenizer

TOKENIZER = "tokenizer.json"
HELD_OUT = 0.1
"""The part of the private units that perplexity is measured on, where no other text is given for it."""

KNOWN_MAX_UNITS = {
    ("scipy", "document"): 4_000,
    ("scipy", "user"): 500,
    ("imdb", "document"): 25_000,
}
"""Public bounds on the number of units of the texts that come with these experiments."""


@dataclasses.dataclass(frozen=True)
class Texts:
    """The texts to train on, and those to measure with.

    Attributes:
      tokenizer: trained on public text, or published.
      public: text for the tokenizer and for pre-training; None where published weights take their place.
      train: private units that are trained on.
      held_out: units that perplexity is measured on; none of them is trained on.
      private_name, held_out_name: for the table.
    """

    tokenizer: Tokenizer
    public: Corpus | None
    train: Units
    held_out: Units
    private_name: str
    held_out_name: str


def max_units(config: LanguageConfig) -> int:
    """Return the public bound on the number of private units."""
    if config.max_units is not None:
        return config.max_units
    known = KNOWN_MAX_UNITS.get((config.private, config.unit))
    if known is None:
        raise UserError(
            f"give --max-units, a public bound on the number of {config.unit}s: how many there are is private"
        )
    return known


def read_texts(config: LanguageConfig, settings: Settings, vocab_size: int, folder: Path) -> Texts:
    """Read the texts, train or load the tokenizer, and pack.

    The tokenizer is trained on public text and kept in ``folder``. Nothing about the private text is printed.
    """
    public = _public(config)
    tokenizer = _tokenizer(config, public, vocab_size, folder)
    if tokenizer.vocab_size > vocab_size:
        # A token without an embedding makes its unit's gradient NaN, and gdpjax leaves such a unit out, silently.
        raise UserError(
            f"expected a tokenizer of at most the {vocab_size} tokens of the model, got {tokenizer.vocab_size}: "
            "--tokenizer is not the one of --checkpoint"
        )
    private, evaluation = _private(config)

    def packed(corpus: Corpus) -> Units:
        return pack_units(
            tokenize(corpus, tokenizer),
            unit=config.unit,
            length=settings.length,
            sequences_per_unit=settings.sequences_per_unit,
        )

    units = packed(private)
    if evaluation is not None:
        return Texts(tokenizer, public, units, packed(evaluation), private.name, evaluation.name)
    # The split is by unit and by each unit's own content: no user is on both sides.
    train, held_out = split_units(units, HELD_OUT, jax.random.key(0))
    held_out_name = f"about a tenth of the {config.unit}s of {private.name}, not trained on"
    return Texts(tokenizer, public, train, held_out, private.name, held_out_name)


def _public(config: LanguageConfig) -> Corpus | None:
    """Return the public text, or None where published weights and their tokenizer need none."""
    if config.checkpoint is not None:
        return None
    return load_public() if config.public is None else read_text(config.public, standing="public")


def _private(config: LanguageConfig) -> tuple[Corpus, Corpus | None]:
    """Return the private text, and text to measure with where that is another one."""
    if config.private in STAND_INS:
        return load_stand_in(config.private), None
    if config.private == "imdb":
        imdb = load_imdb()
        return imdb.private, imdb.evaluation
    return read_text(config.private), None


def _tokenizer(config: LanguageConfig, public: Corpus | None, vocab_size: int, folder: Path) -> Tokenizer:
    if public is None:
        assert config.tokenizer is not None  # _check of the command: published weights come with it
        return Tokenizer.load(config.tokenizer)
    path = folder / TOKENIZER
    if path.is_file():
        return Tokenizer.load(path)
    tokenizer = train_tokenizer(public, vocab_size)
    tokenizer.save(path)
    return tokenizer
