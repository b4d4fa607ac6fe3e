"""Write the report of a sweep: one HTML page with all its resources in it, and its figures beside it as PNG."""

import base64
import csv
import functools
import io
from collections.abc import Sequence
from pathlib import Path

import jinja2

from gdpjax._core.figures import rounded
from gdpjax._core.files import write_atomically
from gdpjax.sweeps import _folder as folders
from gdpjax.sweeps._keys import SEED_NOTICE
from gdpjax.sweeps._layout import label
from gdpjax.sweeps._pictures import PARETO, VARIED, save_pareto, save_varied
from gdpjax.sweeps._progress import mean_and_spread
from gdpjax.sweeps._summary import (
    Row,
    best_by_target,
    compilations,
    configurations,
    how_many_finished,
    pareto_front,
    price,
    varied,
)

REPORT, PAGE = "report", "index.html"
_TEMPLATE = Path(__file__).with_name("page.html")


def write_report(folder: Path, rows: Sequence[Row]) -> Path:
    """Write the page and the figures into ``folder``/report; returns the page."""
    target = folder / REPORT
    target.mkdir(exist_ok=True)
    about = folders.described(folder)
    layout = about.layout
    programs = folders.read_programs(folder)
    failed = [row for row in rows if row["error"] is not None]
    candidates = configurations(rows, layout)
    front = pareto_front(candidates, layout)

    # The figures, of trials that did not fail: each in the page, with the text that stands in for it.
    pictures = []
    if candidates:
        save_pareto(rows, layout, target / PARETO)
        pictures.append((PARETO, "the certified epsilon of one training"))
        if save_varied(rows, layout, target / VARIED):
            pictures.append((VARIED, "each hyperparameter that was varied"))
    score = label(layout.score, units=False).capitalize()
    figures = []
    for name, against in pictures:
        data = base64.b64encode((target / name).read_bytes()).decode()
        figures.append({"text": f"{score} against {against}", "data": data})

    # A column with one value is told once. The first three always stay.
    names = list(dict.fromkeys(["trial", layout.score, "epsilon_upper", *varied(rows, layout), *layout.columns]))
    common = [name for name in names[3:] if len(rows) > 1 and len({row[name] for row in rows}) == 1]
    text = io.StringIO()
    writer = csv.DictWriter(text, list(layout.columns), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)

    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    environment.filters["label"] = layout.label
    environment.filters["up"] = functools.partial(rounded, digits=4, rounding="up")
    page = environment.from_string(_TEMPLATE.read_text(encoding="utf-8")).render(
        about=about,
        layout=layout,
        score=label(layout.score, units=False),
        over=how_many_finished(len(rows), about.num_trials),
        compilations=compilations(programs),
        notice=SEED_NOTICE if isinstance(about.sweep["seeds"], list) else None,
        price=price(rows),
        settings=[name for name in varied(rows, layout) if name != "epsilon"],
        best=best_by_target(candidates, layout),
        front=front,
        on_front={number for configuration in front for number in configuration.trials},
        rows=rows,
        columns=[name for name in names if name not in common],
        common=[name for name in common if rows[0][name] is not None],
        failed=failed,
        failed_columns=["trial", *varied(failed, layout), "error"],
        programs=programs,
        spec=folders.spec_text(folder),
        csv=text.getvalue(),
        figures=figures,
        spread=functools.partial(mean_and_spread, layout),
        text=layout.text,
    )
    write_atomically(target / PAGE, page)
    return target / PAGE
