"""Bound each example's gradient: transformations of a loss function.

Read `_clipped_grad` first: it goes from the loss to the clipped sum, and names the module of each step. What a
primitive does to gradients is in `_tracing/primitives`, a clip rule in `_rules`, and a form of gradients in `_forms`.
"""

from gdpjax.clipping._accumulation import AccumulationCharge, accumulation_charge, charge_of_sum
from gdpjax.clipping._augmentation import average_augmentations
from gdpjax.clipping._clip_rows import ClippedRows, clip_rows
from gdpjax.clipping._clipped_grad import ClipInfo, ClippedGrad, clipped_grad
from gdpjax.clipping._explain import explain, product_flops
from gdpjax.clipping._forms import AbstractFactor, Full, Outer, Sparse
from gdpjax.clipping._per_example_grad import per_example_grad
from gdpjax.clipping._rules import (
    AbstractClipRule,
    AutoS,
    Flat,
    Groups,
    Normalize,
    PerGroup,
    PerLeaf,
    Sensitivity,
    as_rule,
    rule_sensitivity,
)
from gdpjax.clipping._tracing import AbstractPrimitive, register_primitive

__all__ = [
    "AbstractClipRule",
    "AbstractFactor",
    "AbstractPrimitive",
    "AccumulationCharge",
    "AutoS",
    "ClipInfo",
    "ClippedGrad",
    "ClippedRows",
    "Flat",
    "Full",
    "Groups",
    "Normalize",
    "Outer",
    "PerGroup",
    "PerLeaf",
    "Sensitivity",
    "Sparse",
    "accumulation_charge",
    "as_rule",
    "average_augmentations",
    "charge_of_sum",
    "clip_rows",
    "clipped_grad",
    "explain",
    "per_example_grad",
    "product_flops",
    "register_primitive",
    "rule_sensitivity",
]
