"""The cases that are measured: a shape of a model, what of it is trained, and the rows of a step."""

import dataclasses
from typing import NamedTuple

from experiments.language.config import PRESETS as MODELS
from experiments.language.config import ModelConfig
from experiments.language.lora import LoraConfig

FULL, LORA = "full", "lora"


class Case(NamedTuple):
    """One training of one model.

    Args:
        name: full or lora.
        title: for people.
        config: the shape of the model.
        lora: the adapters that are trained; None: all weights.
        num_units: units, which are rows, of a step.
        num_sequences: sequences of a unit.
        length: tokens of a sequence.
        sizes: how many units are taken at a time, all divisors of ``num_units``.
    """

    name: str
    title: str
    config: ModelConfig
    lora: LoraConfig | None
    num_units: int
    num_sequences: int
    length: int
    sizes: tuple[int, ...]

    @property
    def num_tokens(self) -> int:
        """Tokens of a step."""
        return self.num_units * self.num_sequences * self.length


def _cases(
    name: str,
    config: ModelConfig,
    *,
    num_units: int,
    length: int,
    sizes: tuple[int, ...],
    num_sequences: int = 1,
) -> tuple[Case, Case]:
    """Return the two trainings of one model: of all weights, and of adapters."""
    lora = LoraConfig(rank=8)
    rows = f"{num_units} units of {num_sequences} x {length:,} tokens, {config.compute_dtype}"
    full = Case(FULL, f"{name}, all weights, {rows}", config, None, num_units, num_sequences, length, sizes)
    adapters = full._replace(name=LORA, title=f"{name}, adapters of rank {lora.rank}, {rows}", lora=lora)
    return full, adapters


# Processors have no products in bfloat16.
_TINY = dataclasses.replace(MODELS["tiny"], compute_dtype="float32")
_SMALL = dataclasses.replace(MODELS["small"], compute_dtype="float32")
_SMALLEST = dataclasses.replace(
    _TINY,
    vocab_size=64,
    num_layers=2,
    model_width=16,
    num_heads=2,
    num_kv_heads=1,
    head_width=8,
    hidden_width=24,
    max_length=16,
)

PRESETS = {
    "smallest": _cases("smallest", _SMALLEST, num_units=4, length=8, sizes=(1, 2), num_sequences=2),
    "tiny": _cases("tiny", _TINY, num_units=32, length=128, sizes=(1, 4, 16)),
    "small": _cases("small", _SMALL, num_units=8, length=256, sizes=(1, 4), num_sequences=2),
}
"""``smallest`` is for tests of the code. Larger models are timed on a GPU by `benchmarks.bench_device`."""
