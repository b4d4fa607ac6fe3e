"""Clipping rules: how one example's gradient is bounded, and by how much.

Read `_abstract` first: it says what a rule is. The rules follow, one a file, and `_enforcement` last, through which the
engine asks a rule, so that a wrong one cannot break the bound it states.
"""

from gdpjax.clipping._rules._abstract import AbstractClipRule, Groups
from gdpjax.clipping._rules._automatic import AutoS
from gdpjax.clipping._rules._enforcement import bounded_coefficients, trained_groups
from gdpjax.clipping._rules._flat import Flat, as_rule
from gdpjax.clipping._rules._normalize import Normalize
from gdpjax.clipping._rules._per_group import PerGroup
from gdpjax.clipping._rules._per_leaf import PerLeaf

__all__ = [
    "AbstractClipRule",
    "AutoS",
    "Flat",
    "Groups",
    "Normalize",
    "PerGroup",
    "PerLeaf",
    "as_rule",
    "bounded_coefficients",
    "trained_groups",
]
