"""Results as tables and pages in Markdown, and the files they are written to.

The columns of a table are data: a line ``title | path | form`` for each. A path is the keys that lead to a value of a
row, with points between them. A form is the name of one in `FORMS` or
`UNITS`, or what `format` takes; of a dictionary or a list, a template of its entries.
"""

import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any


def table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Return a heading and rows as a table.

    >>> print(table(("a", "b"), [("1", 2.0)]))
    | a | b |
    | --- | --- |
    | 1 | 2 |
    """
    lines = [columns, ["---"] * len(columns)]
    lines += [[cell(value) for value in row] for row in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def table_of(columns: str, rows: Iterable[dict[str, Any]], **words: Any) -> str:
    """Return a table of rows, whose columns are lines of text; ``words`` fill the braces of titles.

    >>> rows = named({"a": {"seconds": {"median": 1}}})
    >>> print(table_of("step | name\\n{unit} | seconds.median | .2f", rows, unit="s"))
    | step | s |
    | --- | --- |
    | a | 1.00 |
    """
    fields = []
    for line in columns.strip().splitlines():
        title, path, form, *_ = (*line.split("|"), "")
        fields.append((title.strip().format(**words), path.strip(), form.strip()))
    cells = [[_shown(_at(row, path), form) for _, path, form in fields] for row in rows]
    return table([title for title, _, _ in fields], cells)


def named(results: dict[str, Any]) -> list[dict[str, Any]]:
    """Return results by name as rows."""
    return [{"name": name, **result} for name, result in results.items()]


def cell(value: Any) -> str:
    """Return a value as it stands in a table: a number to three digits, nothing for None.

    >>> [cell(value) for value in (None, 0.00123, 1.2345, 12345.6, "text")]
    ['', '1.23e-03', '1.23', '12,346', 'text']
    """
    if value is None:
        return ""
    if not isinstance(value, float):
        return str(value)
    if value != 0 and abs(value) < 0.01:
        return f"{value:.2e}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def milliseconds(seconds: float) -> str:
    """Return seconds as milliseconds: three digits, and all of the whole ones from a second on."""
    return f"{1e3 * seconds:,.3g}" if seconds < 1 else f"{1e3 * seconds:,.0f}"


def _quartiles(seconds: dict[str, Any]) -> str:
    """Return the quartiles that `turns.spread` gave, in milliseconds."""
    return f"{milliseconds(seconds['q1'])} to {milliseconds(seconds['q3'])}"


FORMS = {
    "ms": milliseconds,
    "quartiles": _quartiles,
    "met": lambda met: "met" if met else "MISSED",
}
UNITS = {"milli": 1e-3, "MiB": 2**20, "mega": 1e6, "giga": 1e9}
"""What a number is divided by."""


def _at(row: Any, path: str) -> Any:
    """Return what the keys of a path lead to; None where one of them is missing."""
    for key in path.split("."):
        row = row.get(key) if isinstance(row, dict) else None
    return row


def _shown(value: Any, form: str) -> Any:
    if value is None or not form or isinstance(value, str):
        return value
    if form in FORMS:
        return FORMS[form](value)
    if form in UNITS:
        return value / UNITS[form]
    if isinstance(value, dict):
        return form.format(**value)
    return form.format(*value) if isinstance(value, list) else format(value, form)


# ---- Pages ----


def document(title: str, paragraphs: Sequence[str], sections: Iterable[tuple[str, str]]) -> str:
    """Return a page; a section without a body is left out."""
    parts = [f"# {title}", *paragraphs]
    parts += [f"## {name}\n\n{body}" for name, body in sections if body]
    return "\n\n".join(parts) + "\n"


def setting(result: dict[str, Any]) -> str:
    """Return machine, versions, load and command, in one paragraph."""
    machine, settings = result["machine"], result["settings"]
    parts = [
        f"{machine['cpu']}, {machine['cpu_cores_used']} core(s), {settings['threads']} thread(s)",
        machine["device"],
        versions(machine),
        f"load average {result['load_average_before']} before, {result['load_average_after']} after",
        f"{settings['repetitions']} rounds",
        f"{result['total_seconds']:.0f} s in all",
    ]
    return f"{'; '.join(parts)}. Made by `{result['command']}`."


def versions(machine: dict[str, Any]) -> str:
    """Return the packages that were there."""
    return ", ".join(f"{name} {version}" for name, version in machine["versions"].items() if version)


TARGETS = """
{heading} | name
wanted | wanted
measured | measured
beside | beside
met | met | met
"""


def targets_table(result: dict[str, Any], heading: str = "target") -> str:
    """Return what was aimed at beside what was measured; "" without targets."""
    rows = named(result["targets"])
    for row in rows:
        row["wanted"] = f"{'>=' if row['at_least'] else '<='} {row['target']:g}"
    return table_of(TARGETS, rows, heading=heading) if rows else ""


def bullets(reasons: dict[str, str]) -> str:
    """Return names and reasons as a list."""
    return "\n".join(f"- {name}: {reason}" for name, reason in reasons.items())


def refusals(contenders: dict[str, Any]) -> str:
    """Return which contenders refused which microbatch sizes, and why; "" where none did."""
    refused = {}
    for name, contender in contenders.items():
        for size, reason in contender["refused"].items():
            refused[f"{name}, microbatch {size}" if size != "None" else name] = reason
    return "Not available:\n\n" + bullets(refused) if refused else ""


def paragraphs(*parts: str) -> str:
    """Return the parts that are not empty, one under the other."""
    return "\n\n".join(filter(None, parts))


def mean_and_stdev(values: Sequence[float]) -> dict[str, float | None]:
    """Return the mean and the sample standard deviation, which one value does not have.

    >>> mean_and_stdev([1.0, 3.0])
    {'mean': 2.0, 'stdev': 1.4142135623730951}
    """
    stdev = statistics.stdev(values) if len(values) > 1 else None
    return {"mean": statistics.fmean(values), "stdev": stdev}


def write_json(path: Path, result: dict[str, Any]) -> None:
    """Write a result whole or not at all."""
    from gdpjax.sweeps import records  # it imports JAX, which benchmarks import once they have chosen their cores

    path.parent.mkdir(parents=True, exist_ok=True)
    records.write_json(path, result)


def write_with_table(path: Path, result: dict[str, Any], markdown: str) -> None:
    """Write a result as JSON at ``path``, and its table as Markdown beside it, each whole or not at all."""
    from gdpjax.sweeps import records

    write_json(path, result)
    records.write_atomically(path.with_suffix(".md"), markdown)
