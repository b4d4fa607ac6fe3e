"""The recipes that there are, with what was published, and what was tried before the search."""

import dataclasses
from pathlib import Path

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
    published_sampling_prob: float
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


MNIST = Recipe(
    name="mnist",
    score="test_accuracy",
    published=0.98,
    published_noise_multiplier=0.5,
    published_sampling_prob=256 / 60_000,
    published_num_steps=23_438,
    tried_before=147,
    note="public digits, with their labels, chose the coordinates; beside the paper's best row, and its row of a "
    "similar epsilon, noise multiplier 1.1, has 96.6 %",
)
ADULT = Recipe(
    name="adult",
    score="test_accuracy",
    published=0.8401,
    published_noise_multiplier=0.55,
    published_sampling_prob=256 / 29_305,
    published_num_steps=2_061,
    tried_before=0,
    note="the published figure was not recovered: 84.0 % is ours with the paper's settings, the mean of three seeds",
)
IMDB = Recipe(
    name="imdb",
    score="test_accuracy",
    published=0.84,
    published_noise_multiplier=0.56,
    published_sampling_prob=512 / 25_000,
    published_num_steps=439,
    tried_before=12,
    note="whole reviews, not their last 256 words",
)
MOVIELENS = Recipe(
    name="movielens",
    score="test_rmse",
    published=0.915,
    published_noise_multiplier=0.6,
    published_sampling_prob=10_000 / 800_167,
    published_num_steps=1_600,
    tried_before=16,
    note="",
)
RECIPES = {recipe.name: recipe for recipe in (MNIST, ADULT, IMDB, MOVIELENS)}
