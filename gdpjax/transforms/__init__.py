"""Composable optax gradient transformations: clip, add noise, record."""

from gdpjax.transforms._clip import ClipAndSum, clip_and_sum
from gdpjax.transforms._noise import NoiseState, PrivatizeState, add_gaussian_noise, privatize

__all__ = ["ClipAndSum", "NoiseState", "PrivatizeState", "add_gaussian_noise", "clip_and_sum", "privatize"]
