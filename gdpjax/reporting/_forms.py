"""The forms of a report: how each writes a table, a sentence and the page around them."""

import html
import re
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from string import Template
from typing import NamedTuple

import numpy as np
import scipy

from gdpjax._core.figures import text_table
from gdpjax.plotting.style import COLORS
from gdpjax.reporting._runs import Described

WIDTH = 80
Rows = Sequence[Sequence[str]]


def write_text(runs: Sequence[str], tables: Sequence[Rows], notes: Sequence[str]) -> str:
    """Return a report for a terminal, from the sentences on its runs, its tables and its notes."""

    def filled(texts: Sequence[str]) -> str:
        return "\n".join(textwrap.fill(text, WIDTH, subsequent_indent="  ") for text in texts)

    return "\n\n".join([filled(runs), *map(text_table, tables), filled(notes)])


class Form(NamedTuple):
    """A notation for reports.

    Attributes:
      escape: writes a text so that nothing in it is taken for a command.
      sentence: a line of text, with {} for it.
      row: a row of a table, with {} for its cells.
      between: stands between two cells.
      column: declares a column.
      table: a table of $head and $body, with $columns.
      page: the whole of $runs, $tables and $notes, and perhaps of a $picture.
    """

    escape: Callable[[str], str]
    sentence: str
    row: str
    between: str
    column: str
    table: str
    page: str

    def write(self, runs: Sequence[str], tables: Sequence[Rows], notes: Sequence[str], picture: str = "") -> str:
        """Return a report in this form, from the sentences on its runs, its tables and its notes."""
        written = []
        for rows in tables:
            head, *body = [self.row.format(self.between.join(map(self.escape, row))) for row in rows]
            columns = self.column * len(rows[0])
            written.append(Template(self.table).substitute(head=head, columns=columns, body="\n".join(body)))
        runs, notes = ([self.sentence.format(self.escape(text)) for text in texts] for texts in (runs, notes))
        return Template(self.page).substitute(
            runs="\n".join(runs),
            tables="\n\n".join(written),
            notes="\n".join(notes),
            picture=picture,
        )


MARKDOWN = Form(
    escape=lambda text: re.sub(r"([\\|*_`\[\]])", r"\\\1", html.escape(text, quote=False)),
    sentence="{}\n",
    row="| {} |",
    between=" | ",
    column="|---",
    table="$head\n$columns|\n$body",
    page="$runs\n$tables\n\n$notes",
)

_COMMANDS = {character: f"\\{character}" for character in "{}$&#_%"}
_COMMANDS |= {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
_COMMANDS |= {"<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}"}
LATEX = Form(
    escape=lambda text: text.translate(str.maketrans(_COMMANDS)),
    sentence="% {}",
    row=r"{} \\",
    between=" & ",
    column="l",
    table=r"""\begin{tabular}{$columns}
\toprule
$head
\midrule
$body
\bottomrule
\end{tabular}""",
    page="$runs\n$notes\n$tables",
)

HTML = Form(
    escape=html.escape,
    sentence="<p>{}</p>",
    row="<tr><td>{}</td></tr>",
    between="</td><td>",
    column="",
    table="<table>\n<thead>$head</thead>\n$body\n</table>",
    page=Path(__file__).with_name("card.html").read_text(encoding="utf-8"),
)
_CURVE = """<g color="$color"><g class="unit"><polygon points="$band"/><polyline points="$line"/></g>
<path d="M250 ${y}h31"/><text x="288" y="$y" dy="4">$name</text></g>"""


def picture_of(runs: Sequence[Described]) -> str:
    """Return for each run the band between its certified bounds, a line and the name beside it, as lines of SVG."""
    # Gaussian trade-off curves are straight lines in these quantiles: every part is resolved alike.
    alpha = scipy.special.ndtr([-9.0, *np.linspace(-3.0, 3.0, 19), 9.0])
    drawn = []
    for place, run in enumerate(runs):
        lower, upper = (
            [f"{x:.5f},{y:.5f}" for x, y in zip(alpha, beta, strict=True)] for beta in run.curve.tradeoff(alpha)
        )
        curve = Template(_CURVE).substitute(
            color=COLORS[place % 5],
            band=" ".join(lower + upper[::-1]),
            line=" ".join(lower),
            y=32 + 18 * place,
            name=html.escape(run.name[:24]),
        )
        drawn.append(curve)
    return "\n".join(drawn)
