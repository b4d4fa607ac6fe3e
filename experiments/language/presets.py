"""The presets of ``python -m experiments language`` for training; the shapes of the models are in `config`."""

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal

from experiments.language.pretraining import PublicSchedule


@dataclasses.dataclass(frozen=True)
class Settings:
    """Public constants of one preset.

    Attributes:
      length: tokens in a sequence.
      sequences_per_unit: sequences of one document or user; what is over is left out.
      public: training on public text.
      batch_size: expected units in a batch of private training.
      epochs: expected times that a unit takes part.
      learning_rate: of Adam for all weights.
      lora_learning_rate: of Adam for adapters.
      compute_dtype: of matrix products; bfloat16 is slow on processors without it.
      clip: clip norm of a unit's gradient.
      prompt: public words that the samples begin with.
    """

    length: int
    sequences_per_unit: int
    public: PublicSchedule
    batch_size: int
    epochs: float
    learning_rate: float
    lora_learning_rate: float = 3e-3
    compute_dtype: Literal["bfloat16", "float32"] = "bfloat16"
    clip: float = 1.0
    prompt: str = "Return the"


SETTINGS: Mapping[str, Settings] = MappingProxyType(
    {
        # Chosen on public text alone: the docstrings of scikit-learn and SciPy in place of private text.
        "tiny": Settings(64, 1, PublicSchedule(250, 32, 2e-3), 256, 1.75, 2e-3, compute_dtype="float32"),
        "small": Settings(256, 2, PublicSchedule(1_000, 32, 1e-3), 512, 5, 1e-3, compute_dtype="float32"),
        "124M": Settings(512, 2, PublicSchedule(5_000, 64, 6e-4), 1_024, 5, 2e-4),
        "355M": Settings(512, 2, PublicSchedule(5_000, 64, 3e-4), 1_024, 5, 1e-4),
        "1B": Settings(512, 2, PublicSchedule(5_000, 64, 2e-4), 1_024, 5, 5e-5, lora_learning_rate=1e-3),
    }
)
