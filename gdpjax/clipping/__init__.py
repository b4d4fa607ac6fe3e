"""Bound each example's gradient: transformations of a loss function.

Read `_clipped_grad` first: it goes from the loss to the clipped sum, and names the module of each step. What a
primitive does to gradients is in `_tracing/primitives`, a clip rule in `_rules`, and a form of gradients in `_forms`.
"""

# What is imported under an alias is for the other parts of the library, and not public.
from gdpjax.clipping._augmentation import average_augmentations
from gdpjax.clipping._clip_rule import AbstractClipRule, Groups
from gdpjax.clipping._clipped_grad import ClippedGrad as ClippedGrad
from gdpjax.clipping._clipped_grad import clipped_grad
from gdpjax.clipping._explain import explain
from gdpjax.clipping._explain import product_flops as product_flops
from gdpjax.clipping._forms import Full, Outer, Sparse
from gdpjax.clipping._per_example_grad import clip_rows as clip_rows
from gdpjax.clipping._per_example_grad import per_example_grad
from gdpjax.clipping._rounding_budget import AccumulationCharge as AccumulationCharge
from gdpjax.clipping._rounding_budget import accumulation_charge as accumulation_charge
from gdpjax.clipping._rounding_budget import charge_of_sum as charge_of_sum
from gdpjax.clipping._rules import AutoS, Flat, Normalize, PerGroup, PerLeaf, Sensitivity
from gdpjax.clipping._rules import as_rule as as_rule
from gdpjax.clipping._rules import rule_sensitivity as rule_sensitivity
from gdpjax.clipping._tracing import AbstractPrimitive, register_primitive

__all__ = [
    "AbstractClipRule",
    "AbstractPrimitive",
    "AutoS",
    "Flat",
    "Full",
    "Groups",
    "Normalize",
    "Outer",
    "PerGroup",
    "PerLeaf",
    "Sensitivity",
    "Sparse",
    "average_augmentations",
    "clipped_grad",
    "explain",
    "per_example_grad",
    "register_primitive",
]
