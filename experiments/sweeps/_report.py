"""The report of a sweep: one HTML page with everything in it, no other resource, and its figures beside it as PNG."""

import base64
import html
import itertools
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from experiments import records
from experiments.keys import SEED_NOTICE
from experiments.sweeps import _folder as folders
from experiments.sweeps._pictures import PARETO, VARIED, save_pareto, save_varied
from experiments.sweeps._results import COLUMNS, Row
from experiments.sweeps._spec import HYPERPARAMETERS
from experiments.sweeps._summary import (
    Configuration,
    best_by_target,
    configurations,
    count,
    pareto_front,
    price,
    varied,
)
from experiments.tables import lower_digits, upper_digits

REPORT, PAGE = "report", "index.html"
_COSTS = ("sampling_prob", "overflow", "mu_clt", "epsilon_clt", "epsilon_moments_accountant", "epsilon_upper")
_TEMPLATE = Path(__file__).with_name("page.html")


def write_report(folder: Path, rows: Sequence[Row]) -> Path:
    """Write the page and the figures into ``folder``/report; returns the page."""
    target = folder / REPORT
    target.mkdir(exist_ok=True)
    figures = {}
    if any(row["error"] is None for row in rows):
        save_pareto(rows, target / PARETO)
        figures["pareto"] = _figure(target / PARETO, "Test accuracy against the certified epsilon of one training")
        if save_varied(rows, target / VARIED):
            figures["varied"] = _figure(target / VARIED, "Test accuracy against each hyperparameter that was varied")
    described = folders.described(folder)
    programs = folders.read_programs(folder)
    best, front = _best(rows)
    fields = {"pareto": "", "varied": ""} | figures | {
        "title": html.escape(f"Sweep of {described['sweep']['dataset']}"),
        "summary": _summary(described, rows, programs),
        "privacy": _privacy(rows, described["sweep"].get("hold_out")),
        "best": best,
        "front": front,
        "programs": _table(list(programs[0]), (list(p.values()) for p in programs)) if programs else "<p>None.</p>",
        "failed": _failed(rows),
        "trials": _trials(rows),
        "spec": f"<pre>{html.escape((folder / folders.SPEC).read_text())}</pre>",
    }  # fmt: skip
    page = _TEMPLATE.read_text()
    for name, text in fields.items():
        page = page.replace(f"<!--{name}-->", text)
    records.write_atomically(target / PAGE, page.encode())
    return target / PAGE


def _summary(described: dict[str, Any], rows: Sequence[Row], programs: Sequence[dict[str, Any]]) -> str:
    sweep, failed = described["sweep"], sum(row["error"] is not None for row in rows)
    shapes = len({(program["num_steps"], program["batch_size"]) for program in programs})
    compiled = sum(program["num_compiled"] for program in programs)
    text = (
        f"{len(rows)} of {count(described['num_trials'], 'trial')} are over, {failed} of them failed. Data set "
        f"{sweep['dataset']}, model {sweep['model']}, optimizer {sweep['optimizer']}, {sweep['search']} search. "
        f"{count(compiled, 'compilation')} of the training program for {count(shapes, 'shape')}."
    )
    notice = f"<p class=warning>{html.escape(SEED_NOTICE)}</p>" if isinstance(sweep["seeds"], list) else ""
    return f"<p>{html.escape(text)}</p>{notice}"


def _privacy(rows: Sequence[Row], hold_out: float | None) -> str:
    """What the numbers do not cover."""
    found = price(rows)
    judged = "Test data are taken as public."
    if hold_out is not None:
        judged = f"What is called test data here is {hold_out:.0%} of the training data, held out; they are private."
    text = (
        "<p>Every epsilon in the tables and figures is that of <b>one</b> training, all its planned steps included, "
        "had its hyperparameters been fixed beforehand. <b>Choosing among trials on the same private data costs "
        "privacy too</b>, and so does publishing them, this page included: accuracies are functions of trained models. "
        f"{judged}</p>"
    )
    if found is None:
        return text
    everything, tuned = (upper_digits(bound, 3) for bound in (found.all_trials, found.best_of_random_number))
    return text + (
        f"<p>At delta = {found.delta!r}, upper bounds by the moments accountant: publishing <b>all</b> of these trials "
        f"costs epsilon = {everything}. Releasing only the best of a <i>random</i> number of runs with mean "
        f"{found.num_trials} (logarithmic distribution), each of a configuration drawn uniformly with replacement, "
        f"would cost epsilon = {tuned} (Papernot and Steinke, arXiv:2110.03620); a search "
        "that was run otherwise may not quote that number. See <code>gdpjax.accounting.tuning_epsilon</code> and "
        '"Sweeps" in the README.</p>'
    )


def _best(rows: Sequence[Row]) -> tuple[str, str]:
    """The best by target, and the Pareto front, in the hyperparameters that were varied."""
    found = configurations(rows)
    names = [name for name in varied(rows) if name != "epsilon"]
    several = any(one.stdev is not None for one in found)
    columns = ["certified epsilon", f"test accuracy (%){', mean and sd' if several else ''}", *names, "trial"]
    best = ([f"{target!r}", *_cells(one, names)] for target, one in best_by_target(found))
    front = (_cells(one, names) for one in pareto_front(found))
    return _table(["epsilon at most", *columns], best), _table(columns, front)


def _cells(one: Configuration, names: Sequence[str]) -> list[Any]:
    spread = "" if one.stdev is None else f" \u00b1 {100 * one.stdev:.2f}"
    settings = [one.settings[name] for name in names]
    return [
        upper_digits(one.epsilon_upper, 4),
        f"{100 * one.mean:.2f}{spread}",
        *settings,
        ", ".join(map(str, one.trials)),
    ]


def _failed(rows: Sequence[Row]) -> str:
    failed = [row for row in rows if row["error"] is not None]
    columns = ["trial", *varied(rows), "error"]
    return _table(columns, ([row[name] for name in columns] for row in failed)) if failed else "<p>None.</p>"


def _trials(rows: Sequence[Row]) -> str:
    """Every trial, what was found and what was varied first; what is the same in all is said once."""
    order = ["trial", "test_accuracy", "epsilon_upper", *varied(rows)]
    order += [name for name in COLUMNS if name not in order]
    alike = [name for name in order[3:] if len(rows) > 1 and len({row[name] for row in rows}) == 1]
    common = ", ".join(f"{_words(name)} {_text(rows[0][name], name)}" for name in alike if rows[0][name] is not None)
    columns = [name for name in order if name not in alike]
    front = {number for one in pareto_front(configurations(rows)) for number in one.trials}
    marked = ["front" if row["trial"] in front else "" for row in rows]
    table = _table(columns, ([row[name] for name in columns] for row in rows), sortable=True, classes=marked)
    return (f"<p>In all of them: {common}.</p>" if common else "") + table


def _table(
    columns: Sequence[str], rows: Iterable[Sequence[Any]], sortable: bool = False, classes: Sequence[str] = ()
) -> str:
    head = "".join(f"<th>{_words(name)}</th>" for name in columns)
    kinds = [f" class={kind}" if kind else "" for kind in classes]
    body = "\n".join(
        f"<tr{kind}>" + "".join(f"<td>{_text(*pair)}</td>" for pair in zip(row, columns, strict=True)) + "</tr>"
        for row, kind in itertools.zip_longest(rows, kinds, fillvalue="")
    )
    kind = " class=sortable" if sortable else ""
    box = "wide tall" if sortable else "wide"
    return f'<div class="{box}"><table{kind}><thead><tr>{head}</tr></thead><tbody>\n{body}</tbody></table></div>'


def _words(name: str) -> str:
    return html.escape(name.replace("_", " "))


def _text(value: Any, name: str) -> str:
    """A cell of the column ``name``: what privacy costs is rounded up, what was chosen is written in full."""
    if not isinstance(value, float):
        return "" if value is None else html.escape(str(value))
    if name in HYPERPARAMETERS or name == "delta":
        return f"{value!r}"
    if name in _COSTS and math.isfinite(value):
        return upper_digits(value, 5)
    return lower_digits(value, 5) if name == "epsilon_lower" else f"{value:.5g}"


def _figure(path: Path, text: str) -> str:
    data = base64.b64encode(path.read_bytes()).decode()
    return f'<figure><img alt="{text}" src="data:image/png;base64,{data}"><figcaption>{text}</figcaption></figure>'
