"""Composable optax gradient transformations: clip, add noise, record."""

# What is imported under an alias is for the other parts of the library, and not public.
from gdpjax.transforms._accumulate import AccumulateState as AccumulateState
from gdpjax.transforms._accumulate import accumulate_clipped
from gdpjax.transforms._adaptive import AdaptiveState as AdaptiveState
from gdpjax.transforms._adaptive import clip_norm_of, privatize_adaptive
from gdpjax.transforms._clip import ClipAndSum as ClipAndSum
from gdpjax.transforms._clip import clip_and_sum
from gdpjax.transforms._noise import NoiseState as NoiseState
from gdpjax.transforms._noise import PrivatizeState as PrivatizeState
from gdpjax.transforms._noise import add_gaussian_noise, privatize
from gdpjax.transforms._noise import private_transform as private_transform
from gdpjax.transforms._public_values import public_values
from gdpjax.transforms._release import INDEPENDENT as INDEPENDENT
from gdpjax.transforms._release import IndependentGaussian
from gdpjax.transforms._release import Release as Release
from gdpjax.transforms._release import release_of as release_of

__all__ = [
    "IndependentGaussian",
    "accumulate_clipped",
    "add_gaussian_noise",
    "clip_and_sum",
    "clip_norm_of",
    "privatize",
    "privatize_adaptive",
    "public_values",
]
