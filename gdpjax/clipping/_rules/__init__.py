"""Clipping rules: how one example's gradient is bounded, and by how much.

Read `_abstract` first: it says what a rule is. The rules follow (`_rules`), and `_enforcement` last, through which the
engine asks a rule, so that a wrong one cannot break the bound it states.
"""

from gdpjax.clipping._rules._abstract import AbstractClipRule, Groups
from gdpjax.clipping._rules._enforcement import bounded_coefficients, trained_groups
from gdpjax.clipping._rules._rules import (
    AutoS,
    Flat,
    Normalize,
    PerGroup,
    PerLeaf,
    Sensitivity,
    as_rule,
    rule_sensitivity,
)

__all__ = [
    "AbstractClipRule",
    "AutoS",
    "Flat",
    "Groups",
    "Normalize",
    "PerGroup",
    "PerLeaf",
    "Sensitivity",
    "as_rule",
    "bounded_coefficients",
    "rule_sensitivity",
    "trained_groups",
]
