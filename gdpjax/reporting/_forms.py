"""The forms of a report: how each writes a table, a sentence and the page around them."""

import html
import re
import string
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from gdpjax._core.figures import text_table

WIDTH = 80
_PAGE = Path(__file__).with_name("card.html")
Rows = Sequence[Sequence[str]]


class Form(NamedTuple):
    """A notation for reports.

    Attributes:
      table: writes rows of cells, the head first.
      sentence: writes a sentence.
      page: the places of the runs' sentences, the tables, the notes, and perhaps a picture.
    """

    table: Callable[[Rows], str]
    sentence: Callable[[str], str]
    page: str = "$runs\n\n$tables\n\n$notes"

    def write(self, runs: Sequence[str], tables: Sequence[Rows], notes: Sequence[str], picture: str = "") -> str:
        """Return a report in this form."""
        return string.Template(self.page).substitute(
            runs="\n".join(map(self.sentence, runs)),
            tables="\n\n".join(map(self.table, tables)),
            notes="\n".join(map(self.sentence, notes)),
            picture=picture,
        )


def _filled(text: str) -> str:
    return textwrap.fill(text, WIDTH, subsequent_indent="  ")


def _markdown(text: str) -> str:
    return re.sub(r"([\\|*_`\[\]])", r"\\\1", html.escape(text, quote=False))


def _markdown_table(rows: Rows) -> str:
    head, *body = ["| " + " | ".join(map(_markdown, row)) + " |" for row in rows]
    return "\n".join([head, "|" + "---|" * len(rows[0]), *body])


_COMMANDS = {character: f"\\{character}" for character in "{}$&#_%"}
_COMMANDS |= {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
_COMMANDS |= {"<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}"}


def _latex(text: str) -> str:
    """Return ``text`` with every character that LaTeX would take for a command written out."""
    return text.translate(str.maketrans(_COMMANDS))


def _latex_table(rows: Rows) -> str:
    columns = "l" + "r" * (len(rows[0]) - 2) + "l"
    head, *body = [" & ".join(map(_latex, row)) + r" \\" for row in rows]
    lines = [rf"\begin{{tabular}}{{{columns}}}", r"\toprule", head, r"\midrule", *body]
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"])


def _html_table(rows: Rows) -> str:
    head, *body = ["".join(f"<td>{html.escape(cell)}</td>" for cell in row) for row in rows]
    lines = [f"<tr>{cells}</tr>" for cells in body]
    return "\n".join(["<table>", f"<thead><tr>{head}</tr></thead>", *lines, "</table>"])


TEXT = Form(text_table, _filled)
MARKDOWN = Form(_markdown_table, lambda text: _markdown(text) + "\n", "$runs\n$tables\n\n$notes")
LATEX = Form(_latex_table, "% {}".format, "$runs\n$notes\n$tables")
HTML = Form(_html_table, lambda text: f"<p>{html.escape(text)}</p>", _PAGE.read_text(encoding="utf-8"))
