"""The recipes that there are; `published.toml` has what was published, and what was tried before the search."""

import dataclasses
from pathlib import Path

import msgspec

HERE = Path(__file__).parent


@dataclasses.dataclass(frozen=True)
class Recipe:
    """The two sweeps of a recipe are files; the rest is what they cannot know.

    ``tried_before`` counts the configurations that were tried on held-out training data before the search was written
    down: they are part of what was chosen from. ``published`` says what is to be beaten, and at which noise.
    """

    name: str
    score: str
    published: float
    published_noise_multiplier: float
    published_batch_size: int
    published_num_examples: int
    published_num_steps: int
    tried_before: int
    note: str

    @property
    def search(self) -> Path:
        """The sweep that was searched."""
        return HERE / f"{self.name}.toml"

    @property
    def winner(self) -> Path:
        """Its best configuration, on all training data."""
        return HERE / "winners" / f"{self.name}.toml"


RECIPES: dict[str, Recipe] = msgspec.toml.decode((HERE / "published.toml").read_bytes(), type=dict[str, Recipe])
