"""Runs of any form: the words that describe each, its certified curve, and its figures, each with its standing."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from gdpjax._core.documents import read_bytes
from gdpjax._core.figures import plain, rounded
from gdpjax._core.shown import shown
from gdpjax._core.types import FAILURE, Bounds, NeighboringRelation, neighbours_differ
from gdpjax.accounting import certified, gdp_epsilon, moments_accountant_epsilon
from gdpjax.ledger import AnyEvent, Event, Ledger
from gdpjax.plotting import limiting_mu
from gdpjax.tradeoff import CertifiedCurve
from gdpjax.training import Plan, num_steps_on_record

PLAN_FILE = "plan.json"
CERTIFIED = "certified"
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
        unit: what one row of the data is.
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
    unit: str = "row"


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
    first, *others = (dict(event.facts()) for event in events)
    facts = first
    if others:
        facts = {"scheme": f"{len(events)} events, see above"}
        # Steps of training, and releases of all the data.
        for label in ("steps", "releases"):
            total = sum(int(each.get(label, 0)) for each in (first, *others))
            facts |= {label: str(total)} if total else {}
    relation: Any = events[0].neighboring_relation
    facts |= {"neighbours": _SHORT[relation], "unit": unit or "not stated"}
    unit = unit or "row"
    return Described(name, curve, events.describe(), neighbours_differ(relation, unit), facts, events, unit=unit)


def _of_plan(plan: Plan, name: str, unit: str | None, folder: Path | None) -> Described:
    """Return the description of a plan, with the steps on record in the folder if there are fewer than planned."""
    if unit not in (None, plan.unit):
        raise ValueError(f"expected the unit of the plan, {plan.unit}, got {shown(unit)}: leave it out")
    unit, unasked = plan.unit, plan.without_privacy() or ""
    if plan.group_size > 1:
        unit, unasked = f"group of up to {plan.group_size} {plan.unit}s", "it is of one unit, not of groups"
    described = _of_events(Ledger([plan.event]), plan.curve, name, unit)
    size = f"{plan.max_examples}" if plan.num_examples_is_public else f"at most {plan.max_examples}"
    facts = described.facts | {"size of the data": size}
    scheme = f"{described.scheme}. Tuned: {plan.tuned}. Released: {plan.released}"
    steps_made = None if folder is None else num_steps_on_record(folder)
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
        unit=plan.unit,
    )


def figures_of(run: Described, deltas: list[float]) -> dict[str, Figure]:
    """Return all figures of one run by their names, in the order of the report."""
    curve = run.curve
    mu = curve.mu(FAILURE)
    figures = {}
    for delta in deltas:
        shown_delta = rounded(delta, 6, "up")
        figures[f"epsilon_at_delta_{shown_delta}"] = Figure(
            f"epsilon at delta {shown_delta}",
            curve.epsilon(delta),
            CERTIFIED,
        )
    figures |= {
        "mu": Figure(f"mu, failure {FAILURE:g}", mu, CERTIFIED),
        "regret": Figure("regret of reporting mu", curve.regret(float(mu.upper)), CERTIFIED),
        "advantage": Figure("membership advantage", curve.advantage(), CERTIFIED),
        "tpr_at_fpr_0.01": Figure("TPR at FPR 0.01", curve.tpr(0.01), CERTIFIED),
        "tpr_at_fpr_0.001": Figure("TPR at FPR 0.001", curve.tpr(0.001), CERTIFIED),
        "bayes_success": Figure("Bayes success, prior 0.5", curve.bayes_success(0.5), CERTIFIED),
    }

    # The other accountants, at the first delta.
    delta = deltas[0]
    return figures | {
        "epsilon_moments_accountant": _asked(
            run,
            f"moments epsilon at {rounded(delta, 6, 'up')}",
            "upper bound",
            lambda events: moments_accountant_epsilon(events, delta=delta),
        ),
        "mu_clt": _asked(run, "CLT estimate of mu", "asymptotic", limiting_mu),
        "epsilon_clt": _asked(
            run,
            "CLT estimate of epsilon",
            "asymptotic",
            lambda events: gdp_epsilon(delta, limiting_mu(events)),
        ),
    }


def _asked(run: Described, label: str, standing: str, accountant: Callable[[Any], Any]) -> Figure:
    """Return the number of an accountant, or the reason why it has none for this run."""
    if run.unasked:
        return Figure(label, None, standing, run.unasked)
    try:
        return Figure(label, float(accountant(run.events)), standing)
    except ValueError as error:
        return Figure(label, None, standing, str(error).partition(": ")[0])
