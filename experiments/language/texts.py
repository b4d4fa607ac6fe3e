"""The texts of one command: public, private, held out, as tokens and as units."""

import dataclasses

import jax

from experiments.config import LanguageConfig
from experiments.language.packing import Units, pack_units, split_units
from experiments.language.presets import Settings
from experiments.language.text import STAND_INS, Corpus, load_public, load_stand_in, read_text
from experiments.language.tokenizer import Tokenizer, tokenize, train_tokenizer
from gdpjax.sweeps import UserError

TOKENIZER = "tokenizer.json"
HELD_OUT = 0.1
"""The part of the private units that perplexity is measured on."""

KNOWN_MAX_UNITS = {
    ("scipy", "document"): 4_000,
    ("scipy", "user"): 500,
}
"""Public bounds on the number of units of the texts that come with these experiments."""


@dataclasses.dataclass(frozen=True)
class Texts:
    """The texts to train on, and those to measure with.

    Attributes:
      tokenizer: trained on public text, or published.
      public: text for the tokenizer and for pre-training; None where published weights take their place.
      private_name: for the table.
      train: private units that are trained on.
      held_out: private units that perplexity is measured on; none of them is trained on.
    """

    tokenizer: Tokenizer
    public: Corpus | None
    private_name: str
    train: Units
    held_out: Units


def max_units(config: LanguageConfig) -> int:
    """Return the public bound on the number of private units."""
    known = config.max_units or KNOWN_MAX_UNITS.get((config.private, config.unit))
    if known is None:
        raise UserError(
            f"give --max-units, a public bound on the number of {config.unit}s: how many there are is private"
        )
    return known


def read_texts(config: LanguageConfig, settings: Settings, vocab_size: int) -> Texts:
    """Read the texts, train or load the tokenizer, and pack.

    The tokenizer is trained on public text and kept in ``config.out``. Nothing about the private text is printed.
    """
    path = config.tokenizer or config.out / TOKENIZER
    public = None
    if config.checkpoint is None:
        public = load_public() if config.public is None else read_text(config.public, "public")
        if not path.is_file():
            train_tokenizer(public, vocab_size).save(path)
    tokenizer = Tokenizer.load(path)
    if tokenizer.vocab_size > vocab_size:
        # A token without an embedding makes its unit's gradient NaN, and gdpjax leaves such a unit out, silently.
        raise UserError(
            f"expected a tokenizer of at most the {vocab_size} tokens of the model, got {tokenizer.vocab_size}: "
            "--tokenizer is not the one of --checkpoint"
        )

    private = load_stand_in(config.private) if config.private in STAND_INS else read_text(config.private)

    units = pack_units(
        tokenize(private, tokenizer),
        unit=config.unit,
        length=settings.length,
        sequences_per_unit=settings.sequences_per_unit,
    )

    # The split is by unit and by each unit's own content: no user is on both sides.
    train, held_out = split_units(units, HELD_OUT, jax.random.key(0))
    return Texts(tokenizer, public, private.name, train, held_out)
