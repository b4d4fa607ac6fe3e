"""Runs of any form, each as its certified curve and the words that describe it."""

from pathlib import Path
from typing import Any, NamedTuple

from gdpjax._core.documents import read_bytes
from gdpjax._core.figures import plain
from gdpjax._core.sentences import neighbours_differ
from gdpjax._core.shown import shown
from gdpjax._core.types import Bounds, NeighboringRelation
from gdpjax.accounting import certified
from gdpjax.ledger import AnyEvent, Event, Ledger
from gdpjax.tradeoff import CertifiedCurve
from gdpjax.training import Plan, num_steps_kept

PLAN_FILE = "plan.json"
_SHORT = {
    NeighboringRelation.ADD_OR_REMOVE_ONE: "add or remove",
    NeighboringRelation.REPLACE_ONE: "replace",
    NeighboringRelation.REPLACE_SPECIAL: "replace by null",
}


class Figure(NamedTuple):
    """One line of a report.

    Fields:
        label: what it is called in a table; the plain text form.
        value: `Bounds` of two numbers, or one number, or None where it is not known.
        standing: what kind of number it is.
        reason: why there is no value.
    """

    label: str
    value: Any
    standing: str
    reason: str = ""

    def in_json(self) -> Any:
        """Return the value for JSON: [lower, upper], one number, or null; infinities are texts."""
        return list(map(plain, self.value)) if isinstance(self.value, Bounds) else plain(self.value)


class Described(NamedTuple):
    """One run of a report.

    Fields:
        name: what its column is called.
        curve: its certified curve.
        scheme: what was done, in sentences.
        neighbours: how neighbouring data sets differ, the end of a sentence.
        facts: what was done in short cells, by their labels.
        events: what was released, and what the other accountants are asked about.
        unasked: why they are not asked.
        not_private: why nothing is guaranteed; empty where something is.
        delta: the one that a plan was made for.
        figures: its lines in the report, each a `Figure`, by their names in JSON, the same for every run.
    """

    name: str
    curve: CertifiedCurve
    scheme: str
    neighbours: str
    facts: dict[str, str]
    events: Ledger = Ledger()
    unasked: str = ""
    not_private: str = ""
    delta: float | None = None
    figures: Any = None


def describe_run(run: Any, name: str | None, default: str, unit: str | None = None) -> Described:
    """Return the description of ``run``; ValueError for what is no run, or for a plan of another unit."""
    path = None
    if isinstance(run, str | Path):
        path = Path(run)
        run, default = _read(path), path.resolve().name
    name = " ".join((name or default).split())
    if isinstance(run, Plan):
        return _of_plan(run, name, unit, path)
    if isinstance(run, CertifiedCurve):
        return Described(
            name,
            run,
            scheme="a certified curve",
            neighbours="are those of the curve",
            facts={"scheme": "certified curve"},
            unasked="a curve has no steps",
        )
    if isinstance(run, tuple | list) and len(run) == 3:
        run = Event(*run)
    if not isinstance(run, Ledger | AnyEvent) or run == Ledger():
        raise ValueError(
            "a report is of a Plan, a Ledger of at least one event, an event, (noise_multiplier, sampling_prob, "
            f"num_steps), a CertifiedCurve or the path of a run's folder, got {shown(run)}"
        )
    events = run if isinstance(run, Ledger) else Ledger([run])
    described = _of_events(events, certified(run), name, unit)
    for event in events:
        if getattr(event, "noise_multiplier", 1) == 0 < getattr(event, "sampling_prob", 1):
            return described._replace(not_private="noise_multiplier = 0 adds no noise at all")
    return described


def _read(path: Path) -> Plan | Ledger:
    """Return the plan in a run's folder, or the plan or ledger in a JSON file."""
    file = path / PLAN_FILE if path.is_dir() else path
    text = read_bytes(file)
    kind = Ledger if b"gdpjax_ledger" in text else Plan
    try:
        return kind.from_json(text.decode())
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from error


def _of_events(events: Ledger, curve: CertifiedCurve, name: str, unit: str | None) -> Described:
    """Return the description of what was released."""
    facts = {"scheme": f"{len(events)} releases, see above", "steps": str(events.num_steps)}
    if len(events) == 1:
        facts = dict(events[0].facts())
    relation: Any = events[0].neighboring_relation
    facts |= {"neighbours": _SHORT[relation], "unit": unit or "not stated"}
    return Described(name, curve, events.describe(), neighbours_differ(relation, unit or "row"), facts, events)


def _of_plan(plan: Plan, name: str, unit: str | None, folder: Path | None) -> Described:
    """Return the description of a plan, with the steps of the folder's checkpoint if there are fewer than planned."""
    if unit not in (None, plan.unit):
        raise ValueError(f"expected the unit of the plan, {plan.unit}, got {shown(unit)}: leave it out")
    unit, unasked = plan.unit, plan.without_privacy() or ""
    if plan.group_size > 1:
        unit, unasked = f"group of up to {plan.group_size} {plan.unit}s", "it is of one unit, not of groups"
    described = _of_events(Ledger([plan.event]), plan.curve, name, unit)
    facts = described.facts | {"size of the data": f"at most {plan.max_examples}"}
    scheme = f"{described.scheme}. Tuned: {plan.tuned}. Released: {plan.released}"
    steps_made = None if folder is None else num_steps_kept(folder)
    if steps_made is not None and steps_made < plan.num_steps:
        facts["steps made"] = f"{steps_made} of {plan.num_steps}"
        scheme = f"{scheme}. {plan.on_steps_made(steps_made)}".removesuffix(".")
    scheme = f"{scheme}.{plan.caution_on_delta()}".removesuffix(".")
    return described._replace(
        scheme=scheme,
        facts=facts,
        unasked=unasked,
        not_private=plan.without_privacy() or "",
        delta=plan.delta,
    )
