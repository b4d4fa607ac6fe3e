"""A plan as JSON text: its fields, and beside them what follows from them.

What follows is written so that other programs can read it, and compared when read back: a file whose sampling
probability was edited without the batch size is refused, with both numbers.
"""

import dataclasses
import json
from typing import Any

from gdpjax._core.checks import is_traced
from gdpjax._core.documents import DocumentError, convert_document, parse_document
from gdpjax._core.shown import shown
from gdpjax._core.types import NeighboringRelation
from gdpjax.clipping import AutoS, Flat, Normalize, PerGroup, PerLeaf

FORMAT_VERSION = 1
"""Version of the JSON form; another one is refused."""
FOLLOWS = ("sampling_prob", "capacity", "overflow")
"""Properties of a plan that are written and checked."""
_RULES = {rule.__name__: rule for rule in (Flat, PerLeaf, PerGroup, Normalize, AutoS)}


def rule_to_dict(rule: Any) -> dict[str, Any]:
    """A clipping rule as its name and its fields."""
    fields = {field.name: getattr(rule, field.name) for field in dataclasses.fields(rule)}
    if is_traced(fields):
        raise ValueError("a plan with a traced clip norm has no JSON form; write the plan of one configuration")
    plain = {name: _plain(value) for name, value in fields.items()}
    return {"rule": type(rule).__name__, **plain}


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(name): _plain(item) for name, item in value.items()}
    if isinstance(value, str | int) or value is None:
        return value
    try:
        return float(value)
    except (TypeError, ValueError) as error:
        raise ValueError(f"a clipping rule with {value!r} has no JSON form; use numbers, names and dicts") from error


def plan_to_dict(plan: Any) -> dict[str, Any]:
    """The fields, and what follows from them, as JSON values."""
    if is_traced(plan.noise_multiplier):
        raise ValueError("a plan with a traced noise_multiplier has no JSON form; write the plan of one configuration")
    fields = {field.name: getattr(plan, field.name) for field in dataclasses.fields(plan)}
    fields["clip"] = rule_to_dict(plan.clip)
    fields["neighboring_relation"] = plan.neighboring_relation.value
    return fields | {name: getattr(plan, name) for name in FOLLOWS}


def plan_to_json(plan: Any) -> str:
    """See `Plan.to_json`."""
    return json.dumps({"gdpjax_plan": FORMAT_VERSION, **plan_to_dict(plan)}, indent=2) + "\n"


def plan_from_json(cls: Any, text: str) -> Any:
    """See `Plan.from_json`."""
    try:
        data = parse_document(text, dict[str, Any], "the JSON text of a Plan")
    except DocumentError as error:
        raise ValueError(f"{error}; give what Plan.to_json made") from error
    if "gdpjax_plan" not in data:
        raise ValueError("expected the JSON text of a Plan (made by Plan.to_json), got other JSON")
    if data.pop("gdpjax_plan") != FORMAT_VERSION:
        raise ValueError(f"expected a Plan of version {FORMAT_VERSION}; read it with the gdpjax that wrote it")
    stated = {name: data.pop(name, None) for name in FOLLOWS}
    names = {field.name for field in dataclasses.fields(cls)}
    if data.keys() != names:
        raise ValueError(f"a Plan's fields are {sorted(names)}; missing or unknown: {sorted(names ^ data.keys())}")
    data["clip"] = _rule_of(data["clip"])
    try:
        data["neighboring_relation"] = NeighboringRelation(data["neighboring_relation"])
        plan = cls(**data)
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"the JSON text of a Plan is damaged: {error}") from error
    for name, value in stated.items():
        if value != getattr(plan, name):
            raise ValueError(
                f"the pieces of this plan disagree: {name} is {value!r} in the text, but its other fields give "
                f"{getattr(plan, name)!r}"
            )
    return plan


def _rule_of(stated: Any) -> Any:
    """The clipping rule that `rule_to_dict` wrote."""
    try:
        fields = convert_document(stated, dict[str, Any], "the JSON text of a Plan: field clip")
        kind = fields.pop("rule", None)
        if not isinstance(kind, str) or kind not in _RULES:
            raise ValueError(f"the clipping rule must be one of {', '.join(_RULES)}, got {shown(kind)}")
        return _RULES[kind](**fields)
    except (TypeError, AttributeError, OverflowError) as error:
        raise ValueError(f"the JSON text of a Plan: field clip: {error}") from error
