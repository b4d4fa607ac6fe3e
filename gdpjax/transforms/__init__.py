"""Composable optax gradient transformations: clip, add noise, record."""

from gdpjax.transforms._accumulate import AccumulateState, accumulate_clipped
from gdpjax.transforms._adaptive import AdaptiveState, clip_norm_of, privatize_adaptive
from gdpjax.transforms._clip import ClipAndSum, clip_and_sum
from gdpjax.transforms._noise import NoiseState, PrivatizeState, add_gaussian_noise, private_transform, privatize
from gdpjax.transforms._public_values import public_values
from gdpjax.transforms._release import INDEPENDENT, IndependentGaussian, Release, release_of

__all__ = [
    "INDEPENDENT",
    "AccumulateState",
    "AdaptiveState",
    "ClipAndSum",
    "IndependentGaussian",
    "NoiseState",
    "PrivatizeState",
    "Release",
    "accumulate_clipped",
    "add_gaussian_noise",
    "clip_and_sum",
    "clip_norm_of",
    "private_transform",
    "privatize",
    "privatize_adaptive",
    "public_values",
    "release_of",
]
