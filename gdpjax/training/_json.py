"""A plan as JSON text: its fields, and beside them what follows from them.

What follows is written so that other programs can read it, and compared when read back: a file whose sampling
probability was edited without the batch size is refused, with both numbers.
"""

import dataclasses
import json
from typing import Any

from gdpjax._core.documents import convert_document, parse_document
from gdpjax._core.types import NeighboringRelation
from gdpjax.clipping import AbstractClipRule
from gdpjax.correlated import from_document, to_document
from gdpjax.sampling import AbstractBatches
from gdpjax.transforms import INDEPENDENT

_INDEPENDENT = {"type": "IndependentGaussian"}

FORMAT_VERSION = 2
"""Version of the JSON form; another one is refused."""
FOLLOWS = ("sampling_prob", "overflow")
"""Properties of a plan that are written and checked."""


def plan_to_dict(plan: Any) -> dict[str, Any]:
    """Return the fields, and what follows from them, as JSON values."""
    names = [field.name for field in dataclasses.fields(plan)]
    fields = {name: getattr(plan, name) for name in names}

    # The fields that are objects.
    fields["batches"] = plan.batches.to_dict()
    fields["clip"] = plan.clip.to_dict()
    fields["noise"] = _INDEPENDENT if plan.release.strategy is None else to_document(plan.noise)
    fields["neighboring_relation"] = plan.neighboring_relation.value
    following = {name: getattr(plan, name) for name in FOLLOWS}
    return fields | following


def plan_to_json(plan: Any) -> str:
    """Return the JSON text of a plan; see `Plan.to_json`."""
    document = {"gdpjax_plan": FORMAT_VERSION, **plan_to_dict(plan)}
    return json.dumps(document, indent=2) + "\n"


def plan_from_json(cls: Any, text: str) -> Any:
    """Return the plan of a JSON text; see `Plan.from_json`."""
    data = parse_document(text, dict[str, Any], "the JSON text of a Plan")
    if data.pop("gdpjax_plan", None) != FORMAT_VERSION:
        raise ValueError(
            f"expected the JSON text of a Plan of version {FORMAT_VERSION}, made by Plan.to_json: read it with the "
            "gdpjax that wrote it, or make the plan anew with gdpjax.make_plan"
        )

    # The fields, and what the text says follows from them.
    stated = {name: data.pop(name, None) for name in FOLLOWS}
    names = {field.name for field in dataclasses.fields(cls)}
    if data.keys() != names:
        raise ValueError(f"a Plan's fields are {sorted(names)}; missing or unknown: {sorted(names ^ data.keys())}")

    try:
        rule = convert_document(data["clip"], dict[str, Any], "field clip")
        data["clip"] = AbstractClipRule.from_dict(rule)
        batches = convert_document(data["batches"], dict[str, Any], "field batches")
        data["batches"] = AbstractBatches.from_dict(batches)
        data["noise"] = INDEPENDENT if data["noise"] == _INDEPENDENT else from_document(data["noise"])
        data["neighboring_relation"] = NeighboringRelation(data["neighboring_relation"])
        plan = cls(**data)
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"the JSON text of a Plan is damaged: {error}") from error

    for name, value in stated.items():
        following = getattr(plan, name)
        if value != following:
            raise ValueError(
                f"the pieces of this plan disagree: {name} is {value!r} in the text, but its other fields give "
                f"{following!r}"
            )
    return plan
