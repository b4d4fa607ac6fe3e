"""A report as text, Markdown, LaTeX and HTML: one table, from the same cells.

Figures are lines and runs are columns, `SIDE_BY_SIDE` of them and further ones in tables below; as text, as many as fit
into 80 columns. A line has its standing at the end. One run has both ends of every bracket. Several runs have the end
that can be relied on: the upper one of what privacy costs, and the lower one of how much another accountant understates
it. Lower ends are rounded down and upper ends up, so that whatever is copied is true. What was done stands in short
cells, and in full in the notes.
"""

import html
import math
import textwrap
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from gdpjax._core.figures import rounded
from gdpjax._core.types import Bounds
from gdpjax.reporting._figures import CERTIFIED, COMPARISON, ESTIMATE, UPPER_BOUND, Figure
from gdpjax.reporting._runs import Described

DIGITS = 4
UNKNOWN = "-"
NOT_PRIVATE = "NOT PRIVATE"
GIVEN, NO_GUARANTEE = "given", "no guarantee"
SIDE_BY_SIDE = 3
_WIDTH = 80
_MEANINGS = {
    UPPER_BOUND: "Upper bound: a guarantee, not tight.",
    ESTIMATE: "Estimate: asymptotic, may understate, and is no guarantee.",
}
_CERTIFIED = {
    1: "Certified: the truth is between the two ends, which are rounded outwards.",
    2: "Certified, upper: the truth is at most this. Certified, lower: it is at least this.",
}
_LATEX = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "$": r"\$", "&": r"\&", "#": r"\#", "_": r"\_", "%": r"\%",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}",
    "|": r"\textbar{}", "[": "{[}", "]": "{]}", '"': r"\textquotedbl{}",
}  # fmt: skip


class Line(NamedTuple):
    """One line of the table.

    Attributes:
      label: what it is.
      cells: its value for each run.
      standing: what kind of number it is.
    """

    label: str
    cells: tuple[str, ...]
    standing: str

    def of_runs(self, runs: slice) -> "Line":
        """Return the line of some of the runs."""
        return self._replace(cells=self.cells[runs])


class Table(NamedTuple):
    """A report as cells.

    Attributes:
      lines: the lines, the head first.
      notes: sentences on the runs and on the standings.
    """

    lines: tuple[Line, ...]
    notes: tuple[str, ...]

    @property
    def num_runs(self) -> int:
        """The number of runs."""
        return len(self.lines[0].cells)

    def blocks(self, side_by_side: int = SIDE_BY_SIDE) -> Iterator[list[Line]]:
        """Yield the lines of the runs that stand side by side, one group after the other."""
        for start in range(0, self.num_runs, side_by_side):
            yield [line.of_runs(slice(start, start + side_by_side)) for line in self.lines]


def table_of(runs: Sequence[Described], figures: Sequence[Sequence[Figure]]) -> Table:
    """Return the table of some figures of the runs."""
    names = [f"{run.name} ({NOT_PRIVATE})" if run.not_private else run.name for run in runs]
    lines = [Line("quantity", tuple(names), "standing")]
    facts = [dict(run.facts) for run in runs]
    for label in dict.fromkeys(label for own in facts for label in own):
        lines.append(Line(label, tuple(own.get(label, UNKNOWN) for own in facts), GIVEN))
    for own in zip(*figures, strict=True):
        cells = tuple(_cell(figure, len(runs)) for figure in own)
        lines.append(Line(own[0].label, cells, _standing(runs, own)))
    printable = [Line(_one_line(a), tuple(map(_one_line, b)), c) for a, b, c in lines]
    return Table(tuple(printable), tuple(map(_one_line, _notes(runs, figures, printable))))


def _cell(figure: Figure, num_runs: int) -> str:
    """Return a figure: in full for one run, and the end that can be relied on of one of several."""
    value = figure.value
    if value is None:
        return UNKNOWN
    if not isinstance(value, Bounds):
        return rounded(float(value), DIGITS, "up")
    lower, upper = rounded(value.lower, DIGITS, "down"), rounded(value.upper, DIGITS, "up")
    if num_runs > 1:
        return lower if figure.standing == COMPARISON else upper
    return lower if lower == upper else f"[{lower}, {upper}]"


def _standing(runs: Sequence[Described], figures: Sequence[Figure]) -> str:
    """Return what kind of number a figure of the runs is."""
    known = [(run, figure) for run, figure in zip(runs, figures, strict=True) if figure.value is not None]
    if not known:
        return "not known"
    if all(_is_vacuous(run, figure) for run, figure in known):
        return NO_GUARANTEE
    standing = known[0][1].standing
    if standing in (UPPER_BOUND, ESTIMATE):
        return standing.partition(":")[0]
    if len(runs) == 1:
        return "certified"
    return "certified, lower" if standing == COMPARISON else "certified, upper"


def _is_vacuous(run: Described, figure: Figure) -> bool:
    """Return whether a figure of a run that is not private excludes nothing. The regret is that of an infinite mu."""
    if not run.not_private or figure.value is None:
        return False
    if not isinstance(figure.value, Bounds):
        return figure.value == math.inf
    if figure.standing != CERTIFIED:
        return False
    return figure.key == "regret" or figure.value.upper >= 1


def _notes(runs: Sequence[Described], figures: Sequence[Sequence[Figure]], lines: Sequence[Line]) -> Iterator[str]:
    """Yield what was done in full, why figures are missing, and what the standings mean."""
    for run, own in zip(runs, figures, strict=True):
        private = f"{NOT_PRIVATE}: {NO_GUARANTEE}, since {run.not_private}. " if run.not_private else ""
        yield f"{run.name}: {private}{run.scheme}; neighbours: {run.neighbours}."
        missing: dict[str, list[str]] = {}
        for figure in own:
            if figure.value is None:
                missing.setdefault(figure.reason, []).append(figure.label)
        for reason, labels in missing.items():
            yield f"{run.name}: not known are {', '.join(labels)} ({reason})."

    standings = {line.standing for line in lines}
    if any(standing.startswith("certified") for standing in standings):
        yield _CERTIFIED[min(len(runs), 2)]
    for standing, meaning in _MEANINGS.items():
        if standing.partition(":")[0] in standings:
            yield meaning


# The forms.


def as_text(table: Table) -> str:
    """Return columns of fixed width for a terminal, the notes above them."""
    notes = "\n".join(textwrap.fill(note, _WIDTH, subsequent_indent="  ") for note in table.notes)
    for side_by_side in range(SIDE_BY_SIDE, 0, -1):
        blocks = list(map(_columns, table.blocks(side_by_side)))
        if max(map(len, "\n".join(blocks).splitlines())) <= _WIDTH:
            break
    return "\n\n".join([notes, *blocks])


def _columns(lines: list[Line]) -> str:
    """Return the lines as columns of fixed width."""
    rows = [[line.label, *line.cells, line.standing] for line in lines]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    rows.insert(1, ["-" * width for width in widths])
    padded = [[f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)] for row in rows]
    return "\n".join("  ".join(row).rstrip() for row in padded)


def as_markdown(table: Table) -> str:
    """Return pipe tables, the notes below them."""
    parts = []
    for lines in table.blocks():
        rows = ["| " + " | ".join(map(_markdown, [line.label, *line.cells, line.standing])) + " |" for line in lines]
        rows.insert(1, "|" + "---|" * (2 + len(lines[0].cells)))
        parts.append("\n".join(rows))
    return "\n\n".join([*parts, *map(_markdown, table.notes)])


def as_latex(table: Table) -> str:
    """Return a booktabs tabular that fits a page, with the notes as comments; it needs ``\\usepackage{booktabs}``."""
    width = min(table.num_runs, SIDE_BY_SIDE)
    columns = "lll" if width == 1 else f"l{'r' * width}l"
    rows = []
    for lines in table.blocks():
        rows.append(r"\midrule" if rows else r"\toprule")
        rows += [_latex_row(lines[0], width), r"\midrule", *(_latex_row(line, width) for line in lines[1:])]
    # Comments are inside, so that nothing that follows the table is one.
    comments = [f"% {note}" for note in table.notes]
    return "\n".join([rf"\begin{{tabular}}{{{columns}}}", *comments, *rows, r"\bottomrule", r"\end{tabular}"])


def _latex_row(line: Line, width: int) -> str:
    """Return a line of the tabular: what is given and the same for all runs once, and columns without a run empty."""
    cells = [latex(cell) for cell in line.cells]
    empty = [""] * (width - len(cells))
    if line.standing == GIVEN and len(set(cells)) == 1 < len(cells):
        cells = [rf"\multicolumn{{{len(cells)}}}{{c}}{{{cells[0]}}}"]
    return " & ".join([latex(line.label), *cells, *empty, line.standing]) + r" \\"


def as_html(table: Table, picture: str) -> str:
    """Return one page that needs nothing else: the tables, the picture and the notes."""
    tables = []
    for head, *lines in table.blocks():
        rows = ["<table>", f"<thead>{_html_row(head, 'th')}</thead>", "<tbody>"]
        tables += [*rows, *(_html_row(line, "td") for line in lines), "</tbody>", "</table>"]
    notes = [f"<p>{html.escape(note)}</p>" for note in table.notes]
    return _PAGE.format(tables="\n".join(tables), notes="\n".join(notes), picture=picture)


def _html_row(line: Line, tag: str) -> str:
    cells = [line.label, *line.cells, line.standing]
    return "<tr>" + "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in cells) + "</tr>"


def latex(text: str) -> str:
    """Return ``text`` with every character that LaTeX would take for a command written out."""
    return "".join(_LATEX.get(character, character) for character in _one_line(text))


def _markdown(text: str) -> str:
    escaped = html.escape(text, quote=False).replace("\\", "\\\\")
    for character in "|*_`[]":
        escaped = escaped.replace(character, "\\" + character)
    return escaped


def _one_line(text: str) -> str:
    """Return ``text`` without line breaks and control characters, which a name may hold."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


def json_value(value: Bounds | float | None) -> object:
    """Return a figure for JSON: [lower, upper], one number, or null; infinities are texts."""
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
body {{ font: 15px/1.45 system-ui, sans-serif; color: #222; max-width: 52rem; margin: 2rem auto; padding: 0 1rem; }}
h1 {{ font-size: 1.4rem; }}
table {{ border-collapse: collapse; font-variant-numeric: tabular-nums; margin-bottom: 1.5rem; }}
th {{ text-align: left; border-bottom: 2px solid #444; vertical-align: bottom; }}
th, td {{ padding: .3rem .8rem .3rem 0; overflow-wrap: anywhere; }}
td {{ border-bottom: 1px solid #ddd; }}
svg {{ max-width: 100%; height: auto; break-inside: avoid; }}
svg text {{ font: 12px system-ui, sans-serif; fill: #333; }}
p {{ color: #444; }}
@media print {{ body {{ margin: 0; font-size: 10pt; }} tr {{ break-inside: avoid; }} }}
</style>
</head>
<body>
<h1>Privacy report</h1>
{tables}
{notes}
{picture}
<p>Each band is between certified bounds on the trade-off curve, the least type II error of an attack at a type I
error; it is often thinner than its line. The grey diagonal is perfect privacy.</p>
</body>
</html>
"""
