"""Runs of any form, each as its certified curve and the words that describe it."""

import math
from pathlib import Path
from typing import Any, NamedTuple

from gdpjax._core.arguments import check_number
from gdpjax._core.checks import COUNT, NONNEGATIVE, UNIT
from gdpjax._core.documents import parse_document, read_bytes
from gdpjax._core.shown import shown
from gdpjax._core.types import NeighboringRelation
from gdpjax.accounting import certified
from gdpjax.ledger import AnyEvent, Event, Ledger
from gdpjax.tradeoff import CertifiedCurve
from gdpjax.training import Plan, num_steps_kept

PLAN_FILE = "plan.json"
NUMBERS = ("noise_multiplier", "sampling_prob", "num_steps")

_RELATIONS = {
    NeighboringRelation.ADD_OR_REMOVE_ONE: "add or remove one",
    NeighboringRelation.REPLACE_ONE: "replace one",
    NeighboringRelation.REPLACE_SPECIAL: "replace one by a null one",
}


class Described(NamedTuple):
    """One run of a report.

    Fields:
        name: what its row is called.
        scheme: what was done, in words.
        neighbours: which data sets are neighbours, in words.
        curve: its certified curve.
        facts: the same scheme and neighbours in short cells, each a label and a text.
        steps: what the other accountants are asked about.
        unasked: why they are not asked.
        not_private: why nothing is guaranteed; empty where something is.
        delta: the one that a plan was made for.
        phases: what was done, event by event.
    """

    name: str
    scheme: str
    neighbours: str
    curve: CertifiedCurve
    facts: tuple[tuple[str, str], ...] = ()
    steps: Ledger | AnyEvent | None = None
    unasked: str = ""
    not_private: str = ""
    delta: float | None = None
    phases: Ledger = Ledger()


def describe_run(run: Any, name: str | None, default: str, unit: str | None = None) -> Described:
    """The description of ``run``; ValueError for what is no run, or for a plan of another unit."""
    if isinstance(run, str | Path):
        path = Path(run)
        run = _read(path)
        described = describe_run(run, name or path.resolve().name, default, unit)
        return _with_steps_made(described, run, path) if isinstance(run, Plan) else described
    name = name or default
    if isinstance(run, Plan):
        if unit not in (None, run.unit):
            raise ValueError(f"expected the unit of the plan, {run.unit}, got {shown(unit)}: leave it out")
        return _of_plan(run, name)
    if isinstance(run, CertifiedCurve):
        facts = (("scheme", "certified curve"),)
        return Described(name, "a certified curve", "as the curve's", run, facts, unasked="a curve has no steps")
    if isinstance(run, tuple | list) and len(run) == len(NUMBERS):
        domains = (NONNEGATIVE, UNIT, COUNT)
        numbers = [check_number(*triple) for triple in zip(NUMBERS, run, domains, strict=True)]
        run = Event(numbers[0], numbers[1], int(numbers[2]))
    if isinstance(run, Ledger | AnyEvent):
        described = _of_ledger(run, name)
        return described if unit is None else _with_unit(described, unit)
    raise ValueError(
        "a report is of a Plan, a Ledger, an event, (noise_multiplier, sampling_prob, num_steps), a CertifiedCurve or "
        f"the path of a run's folder, got {shown(run)}"
    )


def _read(path: Path) -> Plan | Ledger:
    """The plan in a run's folder, or the plan or ledger in a JSON file."""
    file = path / PLAN_FILE if path.is_dir() else path
    text = read_bytes(file)
    found = parse_document(text, dict[str, Any], str(file))
    try:
        if "gdpjax_ledger" in found:
            return Ledger.from_json(text.decode())
        return Plan.from_json(text.decode())
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from error


def _with_steps_made(described: Described, plan: Plan, folder: Path) -> Described:
    """Return the description with the steps of the folder's checkpoint, if there is one to read and it has fewer."""
    steps_made = num_steps_kept(folder)
    sentences = "" if steps_made is None else plan.on_steps_made(steps_made)
    if not sentences:
        return described
    facts = (*described.facts, ("steps made", f"{steps_made} of {plan.num_steps}"))
    return described._replace(scheme=f"{described.scheme}. {sentences}", facts=facts)


def _with_unit(described: Described, unit: str) -> Described:
    """Return the description with what one row is."""
    neighbours = f"{described.neighbours} {unit}"
    return described._replace(neighbours=neighbours, facts=(*described.facts, ("unit", unit)))


def _of_plan(plan: Plan, name: str) -> Described:
    described = _of_ledger(plan.event, name)
    by_unit = _with_unit(described, plan.unit)
    if plan.group_size > 1:
        neighbours = f"add or remove one group of up to {plan.group_size} {plan.unit}s"
        facts = (*described.facts, ("unit", f"up to {plan.group_size} {plan.unit}s"))
        by_unit = described._replace(neighbours=neighbours, facts=facts)
    # The other accountants are asked about one unit.
    reason = plan.without_privacy() or ""
    unasked = "only of one unit, not of groups" if plan.group_size > 1 else reason
    steps = None if unasked else plan.event
    return by_unit._replace(curve=plan.curve, steps=steps, unasked=unasked, not_private=reason, delta=plan.delta)


def _of_ledger(run: Ledger | AnyEvent, name: str) -> Described:
    events = run.events if isinstance(run, Ledger) else (run,)
    relations = {event.neighboring_relation for event in events}
    neighbours = _RELATIONS[relations.pop()] if len(relations) == 1 else "any"  # pyright: ignore[reportArgumentType]
    scheme = Ledger(events).describe()
    bare = any(
        getattr(event, "noise_multiplier", 1.0) == 0 and getattr(event, "sampling_prob", 1.0) > 0 for event in events
    )
    reason = "noise_multiplier = 0 adds no noise at all" if bare else ""
    facts = (*_facts(events), ("neighbours", neighbours.removesuffix(" one").replace(" one by a ", " by ")))
    return Described(name, scheme, neighbours, certified(run), facts, run, not_private=reason, phases=Ledger(events))


def _facts(events: tuple[AnyEvent, ...]) -> list[tuple[str, str]]:
    """The numbers of the events, each a cell of its own."""
    if len(events) == 1:
        return events[0].facts()
    steps = f"{math.fsum(event.num_steps for event in events):.0f}"
    return [("scheme", f"{len(events)} events"), ("steps", steps)]
