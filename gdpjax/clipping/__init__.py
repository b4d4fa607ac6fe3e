"""Bounding each example's gradient: transformations of a loss function."""

from gdpjax.clipping._augmentation import average_augmentations
from gdpjax.clipping._clipped_grad import ClipInfo, ClippedGrad, clipped_grad
from gdpjax.clipping._explain import explain
from gdpjax.clipping._per_example_grad import per_example_grad
from gdpjax.clipping._rules import AbstractClipRule, AutoS, Flat, Groups, Normalize, PerGroup, PerLeaf, as_rule
from gdpjax.clipping._sensitivity import Sensitivity

__all__ = [
    "AbstractClipRule",
    "AutoS",
    "ClipInfo",
    "ClippedGrad",
    "Flat",
    "Groups",
    "Normalize",
    "PerGroup",
    "PerLeaf",
    "Sensitivity",
    "as_rule",
    "average_augmentations",
    "clipped_grad",
    "explain",
    "per_example_grad",
]
