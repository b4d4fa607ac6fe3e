"""The report of a sweep: one HTML page with everything in it, no other resource, and its figures beside it as PNG."""

import base64
import csv
import io
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jinja2

from gdpjax._core.figures import rounded
from gdpjax._core.files import write_atomically
from gdpjax.sweeps import _folder as folders
from gdpjax.sweeps._keys import SEED_NOTICE
from gdpjax.sweeps._layout import Layout, label, shown_program, shown_score
from gdpjax.sweeps._pictures import PARETO, VARIED, save_pareto, save_varied
from gdpjax.sweeps._progress import mean_and_spread
from gdpjax.sweeps._summary import (
    Configuration,
    Row,
    best_by_target,
    compilations,
    configurations,
    count,
    pareto_front,
    price,
    varied,
)

REPORT, PAGE = "report", "index.html"
_UPPER_BOUNDS = (
    "sampling_prob",
    "overflow",
    "mu_clt",
    "epsilon_clt",
    "epsilon_moments_accountant",
    "epsilon_upper",
)
_TEMPLATE = Path(__file__).with_name("page.html")


class ShownRow(NamedTuple):
    """A row of a table, as texts."""

    cells: list[str]
    on_front: bool = False


class ShownTable(NamedTuple):
    """A table, as texts."""

    columns: list[str]
    rows: list[ShownRow]


def write_report(folder: Path, rows: Sequence[Row]) -> Path:
    """Write the page and the figures into ``folder``/report; returns the page."""
    target = folder / REPORT
    target.mkdir(exist_ok=True)
    about, programs = folders.described(folder), folders.read_programs(folder)
    layout, sweep = about.layout, about.sweep
    failed = [row for row in rows if row["error"] is not None]
    names = list(about.names.values())

    figures: dict[str, dict[str, str] | None] = {"pareto": None, "varied": None}
    score = label(layout.score, units=False).capitalize()
    if len(failed) < len(rows):
        save_pareto(rows, layout, target / PARETO)
        figures["pareto"] = _figure(target / PARETO, f"{score} against the certified epsilon of one training")
        if save_varied(rows, layout, target / VARIED):
            text = f"{score} against each hyperparameter that was varied"
            figures["varied"] = _figure(target / VARIED, text)

    best, front = _best(rows, layout)
    trials, common = _trials(rows, layout)
    told = ", ".join(f"{what} {name}" for what, name in about.names.items())
    summary = (
        f"{len(rows)} of {count(about.num_trials, 'trial')} are over, {len(failed)} of them failed. "
        f"{told[:1].upper()}{told[1:]}, {sweep['search']} search. The "
        f"{'smallest' if layout.minimize else 'largest'} {label(layout.score, units=False)} is the best. "
        f"{compilations(programs)} of the training program."
    )
    hold_out = sweep.get("hold_out")
    page = (
        _environment()
        .from_string(_TEMPLATE.read_text(encoding="utf-8"))
        .render(
            title=f"Sweep of {names[0] if names else 'trainings'}",
            summary=summary,
            notice=SEED_NOTICE if isinstance(sweep["seeds"], list) else None,
            hold_out=None if hold_out is None else f"{hold_out:.0%}",
            price=_price(rows),
            best=best,
            front=front,
            trials=trials,
            common=common,
            failed=_failed(failed, layout),
            programs=_programs(programs),
            spec=folders.spec_text(folder),
            csv=_csv(rows, layout),
            **figures,
        )
    )
    write_atomically(target / PAGE, page)
    return target / PAGE


def _environment() -> jinja2.Environment:
    return jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined)


def _figure(path: Path, text: str) -> dict[str, str]:
    return {"text": text, "data": base64.b64encode(path.read_bytes()).decode()}


def _price(rows: Sequence[Row]) -> dict[str, Any] | None:
    """What choosing and publishing cost, as texts."""
    found = price(rows)
    if found is None:
        return None
    return {
        "delta": repr(found.delta),
        "num_trials": found.num_trials,
        "everything": rounded(found.all_trials, 3, "up"),
        "tuned": rounded(found.best_of_random_number, 3, "up"),
    }


def _best(rows: Sequence[Row], layout: Layout) -> tuple[ShownTable, ShownTable]:
    """The best by target, and the Pareto front, in the hyperparameters that were varied."""
    found = configurations(rows, layout)
    names = [name for name in varied(rows, layout) if name != "epsilon"]
    several = any(one.stdev is not None for one in found)
    score = label(layout.score) + (", mean and sd" if several else "")
    columns = ["certified epsilon", score, *map(label, names), "trial"]

    def cells(one: Configuration) -> list[str]:
        settings = [text_of(one.settings[name], name, layout) for name in names]
        score = mean_and_spread(layout, one.mean, one.stdev)
        return [rounded(one.epsilon_upper, 4, "up"), score, *settings, ", ".join(map(str, one.trials))]

    best = [ShownRow([repr(target), *cells(one)]) for target, one in best_by_target(found, layout)]
    front = [ShownRow(cells(one)) for one in pareto_front(found, layout)]
    return ShownTable(["epsilon at most", *columns], best), ShownTable(columns, front)


def _failed(failed: Sequence[Row], layout: Layout) -> ShownTable:
    names = ["trial", *varied(failed, layout), "error"]
    return _table(names, failed, layout)


def _programs(programs: Sequence[dict[str, Any]]) -> ShownTable:
    shown = [shown_program(program) for program in programs]
    names = list(dict.fromkeys(name for program in shown for name in program))
    rows = [ShownRow([str(program.get(name, "")) for name in names]) for program in shown]
    return ShownTable([label(name) for name in names], rows)


def _trials(rows: Sequence[Row], layout: Layout) -> tuple[ShownTable, str]:
    """Every trial, what was found and what was varied first; and, in words, what is the same in all of them."""
    first = ["trial", layout.score, "epsilon_upper", *varied(rows, layout)]
    order = list(dict.fromkeys([*first, *layout.columns]))
    alike = [name for name in order[3:] if len(rows) > 1 and len({row[name] for row in rows}) == 1]
    told = [f"{label(name)} {text_of(rows[0][name], name, layout)}" for name in alike if rows[0][name] is not None]
    front = {number for one in pareto_front(configurations(rows, layout), layout) for number in one.trials}
    table = _table([name for name in order if name not in alike], rows, layout, front)
    return table, ", ".join(told)


def _table(names: Sequence[str], rows: Iterable[Row], layout: Layout, front: Iterable[int] = ()) -> ShownTable:
    shown = []
    for row in rows:
        cells = [text_of(row[name], name, layout) for name in names]
        shown.append(ShownRow(cells, row["trial"] in front))
    return ShownTable([label(name) for name in names], shown)


def text_of(value: Any, name: str, layout: Layout) -> str:
    """Return a cell of the column ``name``: what privacy costs is rounded up, what was chosen is written in full."""
    if value is None or not isinstance(value, float):
        return "" if value is None else str(value)
    if name in layout.hyperparameters or name == "delta":
        return repr(value)
    if name in _UPPER_BOUNDS and math.isfinite(value):
        return rounded(value, 5, "up")
    if name == "epsilon_lower":
        return rounded(value, 5, "down")
    return f"{shown_score(name, value):.5g}"


def _csv(rows: Sequence[Row], layout: Layout) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(layout.columns), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
