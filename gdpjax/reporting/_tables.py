"""A report as text, Markdown, LaTeX and HTML: one table, from the same cells.

One run is a table of its figures, a line each, with both ends of every bracket and its standing. Several runs are a
line each, and a column for every figure; a cell is then the upper end, what privacy costs at most. In LaTeX, where a
page is narrow, figures are lines always and runs are columns, `SIDE_BY_SIDE` of them and then again from the top; what
was done is a few short cells, and in full a comment. Lower ends are rounded down and upper ends up, so that whatever is
copied is true.
"""

import html
import math
from collections.abc import Sequence

from gdpjax._core.figures import rounded
from gdpjax._core.types import Bounds
from gdpjax.reporting._figures import CERTIFIED, COMPARISON, ESTIMATE, UPPER_BOUND, Figure
from gdpjax.reporting._runs import Described

DIGITS = 4
UNKNOWN = "-"
NOT_PRIVATE = "NOT PRIVATE"
GIVEN, NO_GUARANTEE = "given", "no guarantee"
SIDE_BY_SIDE = 3
_MANY_RUNS = {
    CERTIFIED: "Certified figures are upper ends of brackets, rounded up: the truth is at most this.",
    UPPER_BOUND: "The moments accountant is an upper bound.",
    ESTIMATE: "CLT figures are asymptotic estimates and may understate.",
    COMPARISON: '"epsilon less the CLT\'s" is the smallest and the largest difference that is possible.',
}
"""What the cells of several runs are, by standing."""
_STANDINGS = {
    CERTIFIED: "certified: the truth is in between",
    UPPER_BOUND: "upper bound: a guarantee, not tight",
    ESTIMATE: "asymptotic estimate: may understate; not a guarantee",
}
_SHORT = {CERTIFIED: "certified", UPPER_BOUND: "upper bound", ESTIMATE: "estimate", COMPARISON: "certified"}
_LATEX = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "$": r"\$", "&": r"\&", "#": r"\#", "_": r"\_", "%": r"\%",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}",
    "|": r"\textbar{}", "[": "{[}", "]": "{]}", '"': r"\textquotedbl{}",
}  # fmt: skip

Rows = list[list[str]]


def interval(value: Bounds | float | None) -> str:
    """A figure in full: one number where both ends round to it, else both."""
    if value is None:
        return UNKNOWN
    if not isinstance(value, Bounds):
        return rounded(float(value), DIGITS, "up")
    lower, upper = rounded(value.lower, DIGITS, "down"), rounded(value.upper, DIGITS, "up")
    return lower if lower == upper else f"[{lower}, {upper}]"


def cell(figure: Figure) -> str:
    """A figure of one of several runs."""
    value = figure.value
    if isinstance(value, Bounds) and figure.standing == CERTIFIED:
        return rounded(value.upper, DIGITS, "up")
    return interval(value)


def rows_of(runs: Sequence[Described], figures: Sequence[Sequence[Figure]]) -> Rows:
    """The cells, the head first."""
    if len(runs) == 1:
        run = runs[0]
        lines = [["scheme", run.scheme, GIVEN], ["neighbours", run.neighbours, GIVEN]]
        if run.not_private:
            lines.insert(0, [NOT_PRIVATE, f"{NO_GUARANTEE}, since {run.not_private}", NO_GUARANTEE])
        lines += [[figure.label, interval(figure.value), _standing(run, figure)] for figure in figures[0]]
        return [["quantity", run.name, "standing"], *lines]
    head = ["run", "scheme", "neighbours", *(figure.label for figure in figures[0])]
    lines = []
    for run, own in zip(runs, figures, strict=True):
        scheme = f"{NOT_PRIVATE}: {run.scheme}" if run.not_private else run.scheme
        lines.append([run.name, scheme, run.neighbours, *map(cell, own)])
    return [head, *lines]


def note_of(figures: Sequence[Sequence[Figure]]) -> str:
    """What the cells of several runs are; nothing for one run, whose lines say it."""
    if len(figures) == 1:
        return ""
    standings = {figure.standing for figure in figures[0]}
    return " ".join(sentence for standing, sentence in _MANY_RUNS.items() if standing in standings)


def _is_vacuous(run: Described, figure: Figure) -> bool:
    """Whether a figure of a run that is not private excludes nothing. The regret is that of an infinite mu."""
    if not run.not_private or figure.value is None:
        return False
    if not isinstance(figure.value, Bounds):
        return figure.value == math.inf
    if figure.standing != CERTIFIED:
        return False
    return figure.key == "regret" or figure.value.upper >= 1


def _standing(run: Described, figure: Figure) -> str:
    if _is_vacuous(run, figure):
        return NO_GUARANTEE
    if isinstance(figure.value, Bounds) and figure.standing == COMPARISON:
        return _comparison(figure.value)
    return _STANDINGS[figure.standing] if figure.value is not None else figure.reason


def _comparison(excess: Bounds) -> str:
    if excess.lower > 0:
        return "certified: the CLT understates"
    return "certified: the CLT overstates" if excess.upper < 0 else "the CLT is inside the bracket"


def as_text(rows: Rows, note: str) -> str:
    """Columns of fixed width for a terminal."""
    rows = [[_one_line(value) for value in row] for row in rows]
    words = [] if note else [row for row in rows if row[2] == GIVEN or row[0] == NOT_PRIVATE]
    rows = [row for row in rows if row not in words]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = ["  ".join(f"{value:<{width}}" for value, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    lines.insert(1, "  ".join("-" * width for width in widths))
    above = [f"{label}: {value}" for label, value, _ in words]
    return "\n".join([*above, *([""] if above else []), *lines, *(["", note] if note else [])])


def as_markdown(rows: Rows, note: str) -> str:
    """A pipe table."""
    lines = ["| " + " | ".join(map(_markdown, row)) + " |" for row in rows]
    lines.insert(1, "|" + "---|" * len(rows[0]))
    return "\n".join([*lines, *(["", note] if note else [])])


def as_latex(runs: Sequence[Described], figures: Sequence[Sequence[Figure]]) -> str:
    """A booktabs tabular that fits a page; the preamble needs ``\\usepackage{booktabs}``."""
    width = min(len(runs), SIDE_BY_SIDE)
    columns = "lll" if width == 1 else f"l{'r' * width}l"
    comments = [*([f"% {note_of(figures)}"] if note_of(figures) else []), *map(_comment, runs)]
    blocks = []
    for start in range(0, len(runs), width):
        some = slice(start, start + width)
        blocks += [
            r"\midrule" if start else r"\toprule",
            *_latex_block(runs[some], figures[some], width, len(runs) > 1),
        ]
    # Comments are inside, so that nothing that follows the table is one.
    return "\n".join([rf"\begin{{tabular}}{{{columns}}}", *comments, *blocks, r"\bottomrule", r"\end{tabular}"])


def _comment(run: Described) -> str:
    """What was done, in full, as a line that LaTeX leaves out."""
    private = f" {NOT_PRIVATE}: {NO_GUARANTEE}, since {run.not_private}." if run.not_private else ""
    return _one_line(f"% {run.name}: {run.scheme}; neighbours: {run.neighbours}.{private}")


def _latex_block(runs: Sequence[Described], figures: Sequence[Sequence[Figure]], width: int, many: bool) -> list[str]:
    """The lines of the runs that stand side by side; columns without a run are empty."""
    names = [f"{run.name} ({NOT_PRIVATE})" if run.not_private else run.name for run in runs]
    lines = [_latex_line("quantity", names, width, "standing"), r"\midrule"]
    facts = [dict(run.facts) for run in runs]
    for label in dict.fromkeys(label for own in facts for label in own):
        texts = [own.get(label, UNKNOWN) for own in facts]
        lines.append(_latex_line(label, texts, width, GIVEN, shared=len(runs) > 1 and len(set(texts)) == 1))
    for own in zip(*figures, strict=True):
        texts = [cell(figure) if many else interval(figure.value) for figure in own]
        lines.append(_latex_line(own[0].label, texts, width, _short_standing(runs, own, many)))
    return lines


def _latex_line(label: str, texts: list[str], width: int, standing: str, *, shared: bool = False) -> str:
    cells = [latex(text) for text in texts]
    if shared:
        cells = [rf"\multicolumn{{{len(cells)}}}{{c}}{{{cells[0]}}}"]
    empty = [""] * (width - len(texts))
    return " & ".join([latex(label), *cells, *empty, standing]) + r" \\"


def _short_standing(runs: Sequence[Described], figures: Sequence[Figure], many: bool) -> str:
    known = [(run, figure) for run, figure in zip(runs, figures, strict=True) if figure.value is not None]
    if not known:
        return "not known"
    if all(_is_vacuous(run, figure) for run, figure in known):
        return NO_GUARANTEE
    figure = known[0][1]
    if many:
        return "certified, upper" if figure.standing == CERTIFIED else _SHORT[figure.standing]
    if isinstance(figure.value, Bounds) and figure.standing == COMPARISON:
        return _comparison(figure.value).removeprefix("certified: ")
    return _SHORT[figure.standing]


def as_html(rows: Rows, picture: str, note: str) -> str:
    """One page that needs nothing else: the table and the picture."""
    head = "".join(f"<th>{html.escape(value)}</th>" for value in rows[0])
    body = "\n".join("<tr>" + "".join(map(_html_cell, row)) + "</tr>" for row in rows[1:])
    paragraph = f"<p>{html.escape(note)}</p>" if note else ""
    return _PAGE.format(head=head, body=body, note=paragraph, picture=picture)


def _html_cell(text: str) -> str:
    """A cell; long ones, which are words, may break."""
    kind = ' class="words"' if len(text) > 40 else ""
    return f"<td{kind}>{html.escape(_one_line(text))}</td>"


def latex(text: str) -> str:
    """``text`` with every character that LaTeX would take for a command."""
    return "".join(_LATEX.get(character, character) for character in _one_line(text))


def _markdown(text: str) -> str:
    escaped = html.escape(_one_line(text), quote=False).replace("\\", "\\\\")
    for character in "|*_`[]":
        escaped = escaped.replace(character, "\\" + character)
    return escaped


def _one_line(text: str) -> str:
    """``text`` without line breaks and control characters, which a name may hold."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


def json_value(value: Bounds | float | None) -> object:
    """A figure for JSON: [lower, upper], one number, or null; infinities are texts."""
    if isinstance(value, Bounds):
        return [json_value(float(end)) for end in value]
    if value is None:
        return None
    return value if math.isfinite(value) else str(value)


_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Privacy report</title>
<style>
body {{ font: 15px/1.45 system-ui, sans-serif; color: #222; max-width: 100rem; margin: 2rem auto; padding: 0 1rem; }}
h1 {{ font-size: 1.4rem; }}
.table {{ overflow-x: auto; }}
table {{ border-collapse: collapse; font-variant-numeric: tabular-nums; }}
th {{ text-align: left; border-bottom: 2px solid #444; vertical-align: bottom; }}
th, td {{ padding: .3rem .8rem .3rem 0; }}
td {{ border-bottom: 1px solid #ddd; vertical-align: top; white-space: nowrap; }}
td.words {{ white-space: normal; overflow-wrap: anywhere; min-width: 15rem; }}
svg {{ max-width: 100%; height: auto; margin-top: 1.2rem; }}
svg text {{ font: 12px system-ui, sans-serif; fill: #333; }}
p {{ color: #555; max-width: 46rem; }}
</style>
</head>
<body>
<h1>Privacy report</h1>
<div class="table">
<table>
<thead><tr>{head}</tr></thead>
<tbody>
{body}
</tbody>
</table>
</div>
{note}
{picture}
<p>Each band is between certified bounds on the trade-off curve, the least type II error of an attack at a type I
error; it is often thinner than its line. The grey diagonal is perfect privacy.</p>
</body>
</html>
"""
