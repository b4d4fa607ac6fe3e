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
    """What is trained on, and what is measured with.

    Attributes:
      tokenizer: trained on public text, or published.
      public: what anybody can read.
      train: private units that are trained on.
      held_out: units that perplexity is measured on; none of them is trained on.
      private_name, held_out_name: for the table.
    """

    tokenizer: Tokenizer
    public: Corpus
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
    public = load_public() if config.public is None else read_text(config.public, standing="public")
    tokenizer = _tokenizer(config, public, vocab_size, folder)
    if tokenizer.vocab_size > vocab_size:
        # A token without an embedding makes its unit's gradient NaN, and gdpjax leaves such a unit out, silently.
        raise UserError(
            f"the tokenizer has {tokenizer.vocab_size} tokens and the model only {vocab_size}: they do not belong "
            "together; give the tokenizer.json of the weights"
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
    return Texts(tokenizer, public, train, held_out, private.name, f"a tenth of its {config.unit}s, not trained on")


def _private(config: LanguageConfig) -> tuple[Corpus, Corpus | None]:
    """Return the private text, and text to measure with where that is another one."""
    if config.private in STAND_INS:
        return load_stand_in(config.private), None
    if config.private == "imdb":
        imdb = load_imdb()
        return imdb.private, imdb.evaluation
    return read_text(config.private), None


def _tokenizer(config: LanguageConfig, public: Corpus, vocab_size: int, folder: Path) -> Tokenizer:
    if config.tokenizer is not None:
        return Tokenizer.load(config.tokenizer)
    path = folder / TOKENIZER
    if path.is_file():
        return Tokenizer.load(path)
    tokenizer = train_tokenizer(public, vocab_size)
    tokenizer.save(path)
    return tokenizer
