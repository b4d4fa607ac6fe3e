"""Composable optax gradient transformations: clip, add noise, record."""

from gdpjax.transforms._accumulate import AccumulateState, accumulate_clipped
from gdpjax.transforms._adaptive import AdaptiveState, clip_norm_of, privatize_adaptive
from gdpjax.transforms._clip import ClipAndSum, clip_and_sum
from gdpjax.transforms._correlated import Correlation, resolve_correlation
from gdpjax.transforms._noise import NoiseState, PrivatizeState, add_gaussian_noise, privatize
from gdpjax.transforms._public_values import public_values

__all__ = [
    "AccumulateState",
    "AdaptiveState",
    "ClipAndSum",
    "Correlation",
    "NoiseState",
    "PrivatizeState",
    "accumulate_clipped",
    "add_gaussian_noise",
    "clip_and_sum",
    "clip_norm_of",
    "privatize",
    "privatize_adaptive",
    "public_values",
    "resolve_correlation",
]
