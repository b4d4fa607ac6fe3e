"""The presets of ``python -m experiments language`` for training; the shapes of the models are in `config`."""

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType

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
      clip: clip norm of a unit's gradient.
      learning_rate: of Adam for all weights.
      lora_learning_rate: of Adam for adapters.
      compute_dtype: of matrix products; bfloat16 is slow on processors without it.
      prompt: public words that the samples begin with.
    """

    length: int
    sequences_per_unit: int
    public: PublicSchedule
    batch_size: int
    epochs: float
    clip: float = 1.0
    learning_rate: float = 1e-3
    lora_learning_rate: float = 3e-3
    compute_dtype: str = "bfloat16"
    prompt: str = "Return the"


SETTINGS: Mapping[str, Settings] = MappingProxyType(
    {
        "tiny": Settings(
            length=64,
            sequences_per_unit=1,
            # Chosen on public text alone: the docstrings of scikit-learn and SciPy in place of private text.
            public=PublicSchedule(num_steps=250, batch_size=32, learning_rate=2e-3),
            batch_size=256,
            epochs=1.75,
            learning_rate=2e-3,
            compute_dtype="float32",
        ),
        "small": Settings(
            length=256,
            sequences_per_unit=2,
            public=PublicSchedule(num_steps=1_000, batch_size=32, learning_rate=1e-3),
            batch_size=512,
            epochs=5,
            compute_dtype="float32",
        ),
        "124M": Settings(
            length=512,
            sequences_per_unit=2,
            public=PublicSchedule(num_steps=5_000, batch_size=64, learning_rate=6e-4),
            batch_size=1_024,
            epochs=5,
            learning_rate=2e-4,
        ),
        "355M": Settings(
            length=512,
            sequences_per_unit=2,
            public=PublicSchedule(num_steps=5_000, batch_size=64, learning_rate=3e-4),
            batch_size=1_024,
            epochs=5,
            learning_rate=1e-4,
        ),
        "1B": Settings(
            length=512,
            sequences_per_unit=2,
            public=PublicSchedule(num_steps=5_000, batch_size=64, learning_rate=2e-4),
            batch_size=1_024,
            epochs=5,
            learning_rate=5e-5,
            lora_learning_rate=1e-3,
        ),
    }
)
