"""Write the report of a sweep: one HTML page with all its resources in it, and its figures beside it as PNG."""

import base64
import csv
import io
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jinja2
import numpy as np

from gdpjax._core.figures import rounded, shown_score
from gdpjax._core.files import write_atomically
from gdpjax.sweeps import _folder as folders
from gdpjax.sweeps._keys import SEED_NOTICE
from gdpjax.sweeps._layout import Layout, label, shown_program
from gdpjax.sweeps._pictures import PARETO, VARIED, save_pareto, save_varied
from gdpjax.sweeps._progress import mean_and_spread
from gdpjax.sweeps._summary import (
    Configuration,
    Row,
    best_by_target,
    compilations,
    configurations,
    how_many_are_over,
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
"""Columns that are rounded up."""
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
    about = folders.described(folder)
    layout = about.layout
    sweep = about.sweep
    programs = folders.read_programs(folder)
    failed = [row for row in rows if row["error"] is not None]

    # The figures, of trials that did not fail.
    score = label(layout.score, units=False).capitalize()
    pareto_figure = None
    varied_figure = None
    if len(failed) < len(rows):
        save_pareto(rows, layout, target / PARETO)
        pareto_figure = _figure(target / PARETO, f"{score} against the certified epsilon of one training")
        if save_varied(rows, layout, target / VARIED):
            varied_figure = _figure(target / VARIED, f"{score} against each hyperparameter that was varied")

    # The sentences at the beginning.
    names = list(about.names.values())
    named = ", ".join(f"{what} {name}" for what, name in about.names.items())
    best_is = "smallest" if layout.minimize else "largest"
    summary = (
        f"{how_many_are_over(len(rows), about.num_trials)}, {len(failed)} of them failed. "
        f"{named[:1].upper()}{named[1:]}, {sweep['search']} search. The "
        f"{best_is} {label(layout.score, units=False)} is the best. "
        f"{compilations(programs)} of the training program."
    )
    hold_out = sweep.get("hold_out")

    best_table, front_table = _best(rows, layout)
    trials_table, common = _trials(rows, layout)
    template = _environment().from_string(_TEMPLATE.read_text(encoding="utf-8"))
    page = template.render(
        title=f"Sweep of {names[0] if names else 'trainings'}",
        summary=summary,
        notice=SEED_NOTICE if isinstance(sweep["seeds"], list) else None,
        hold_out=None if hold_out is None else f"{hold_out:.0%}",
        price=_price(rows),
        best=best_table,
        front=front_table,
        trials=trials_table,
        common=common,
        failed=_failed(failed, layout),
        programs=_programs(programs),
        spec=folders.spec_text(folder),
        csv=_csv(rows, layout),
        pareto=pareto_figure,
        varied=varied_figure,
    )
    write_atomically(target / PAGE, page)
    return target / PAGE


def _environment() -> jinja2.Environment:
    return jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined)


def _figure(path: Path, text: str) -> dict[str, str]:
    """Return a picture for the page, with the text that stands in for it."""
    return {"text": text, "data": base64.b64encode(path.read_bytes()).decode()}


def _price(rows: Sequence[Row]) -> dict[str, Any] | None:
    """Return as texts what choosing and publishing cost."""
    costs = price(rows)
    if costs is None:
        return None
    return {
        "delta": repr(costs.delta),
        "num_trials": costs.num_trials,
        "everything": rounded(costs.all_trials, 3, "up"),
        "tuned": rounded(costs.best_of_random_number, 3, "up"),
    }


def _best(rows: Sequence[Row], layout: Layout) -> tuple[ShownTable, ShownTable]:
    """Return the best by target, and the Pareto front, in the hyperparameters that were varied."""
    candidates = configurations(rows, layout)
    names = [name for name in varied(rows, layout) if name != "epsilon"]
    score = label(layout.score)
    if any(candidate.stdev is not None for candidate in candidates):
        score = f"{score}, mean and sd"
    columns = ["certified epsilon", score, *map(layout.label, names), "trial"]

    def cells(configuration: Configuration) -> list[str]:
        certified = rounded(configuration.epsilon_upper, 4, "up")
        score = mean_and_spread(layout, configuration.mean, configuration.stdev)
        settings = [text_of(configuration.settings[name], name, layout) for name in names]
        trials = ", ".join(str(number) for number in configuration.trials)
        return [certified, score, *settings, trials]

    # One row for each winner, at the smallest target at which it wins.
    best = []
    previous = None
    for target, configuration in best_by_target(candidates, layout):
        if configuration is not previous:
            best.append(ShownRow([rounded(target, 4, "up"), *cells(configuration)]))
        previous = configuration
    front = [ShownRow(cells(configuration)) for configuration in pareto_front(candidates, layout)]
    return ShownTable(["epsilon at most", *columns], best), ShownTable(columns, front)


def _failed(failed: Sequence[Row], layout: Layout) -> ShownTable:
    """Return the trials that failed, and why."""
    names = ["trial", *varied(failed, layout), "error"]
    return _table(names, failed, layout)


def _programs(programs: Sequence[dict[str, Any]]) -> ShownTable:
    """Return the compiled programs, in all columns that any of them has."""
    shown = [shown_program(program) for program in programs]
    labels: dict[str, None] = {}
    for program in shown:
        labels |= dict.fromkeys(program)
    rows = []
    for program in shown:
        cells = [program.get(column, "") for column in labels]
        rows.append(ShownRow(cells))
    return ShownTable(list(labels), rows)


def _trials(rows: Sequence[Row], layout: Layout) -> tuple[ShownTable, str]:
    """Return a table of every trial; and, in words, the columns in which all of them are alike.

    The columns begin with the score, the certified epsilon, and the hyperparameters that were varied.
    """
    first = ["trial", layout.score, "epsilon_upper", *varied(rows, layout)]
    names = list(dict.fromkeys([*first, *layout.columns]))

    # A column with one value is told once. The first three always stay.
    columns = names[:3]
    common = []
    for name in names[3:]:
        is_alike = len(rows) > 1 and len({row[name] for row in rows}) == 1
        if not is_alike:
            columns.append(name)
        elif rows[0][name] is not None:
            common.append(f"{layout.label(name)} {text_of(rows[0][name], name, layout)}")

    on_front: set[int] = set()
    for configuration in pareto_front(configurations(rows, layout), layout):
        on_front.update(configuration.trials)
    return _table(columns, rows, layout, on_front), ", ".join(common)


def _table(names: Sequence[str], rows: Iterable[Row], layout: Layout, on_front: Iterable[int] = ()) -> ShownTable:
    """Return some columns of rows as texts; ``on_front`` are the trials to mark."""
    shown = []
    for row in rows:
        cells = [text_of(row[name], name, layout) for name in names]
        shown.append(ShownRow(cells, row["trial"] in on_front))
    return ShownTable([layout.label(name) for name in names], shown)


def text_of(value: Any, name: str, layout: Layout) -> str:
    """Return a cell of the column ``name``: costs of privacy, and noise, are rounded up, other settings are in full."""
    if value is None:
        return ""
    if not isinstance(value, float):
        return str(value)
    if name == "noise_multiplier":
        # A number of float32, which is above the one that was given: in its own digits first.
        return rounded(float(str(np.float32(value))), 5, "up")
    if name in layout.hyperparameters or name == "delta":
        return repr(value)
    if name in _UPPER_BOUNDS and math.isfinite(value):
        return rounded(value, 5, "up")
    if name == "epsilon_lower":
        return rounded(value, 5, "down")
    return f"{shown_score(name, value):.5g}"


def _csv(rows: Sequence[Row], layout: Layout) -> str:
    """Return all rows as comma-separated values."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(layout.columns), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
