"""The rows and the sentences of a report, which every form writes in its notation.

Figures are lines and runs are columns, `SIDE_BY_SIDE` of them and further ones in tables below; as text, as many as fit
into 80 columns. A line has its standing at the end, and is left out where no run of the table has it. One run has both
ends of every bracket. Several runs have the end that can be relied on: the upper one of what privacy costs, and the
lower one of how much another accountant understates it. Lower ends are rounded down and upper ends up, so that whatever
is copied is true.
"""

from collections.abc import Sequence

from gdpjax._core.figures import rounded
from gdpjax._core.types import Bounds
from gdpjax.reporting._figures import CERTIFIED, COMPARISON, ESTIMATE, UPPER_BOUND, Figure
from gdpjax.reporting._runs import Described

SIDE_BY_SIDE = 3
_DIGITS = 5
_UNKNOWN, _NONE = "-", "none"
_ALONE = {CERTIFIED: "certified", COMPARISON: "certified", UPPER_BOUND: "upper bound", ESTIMATE: "estimate"}
_BESIDE = _ALONE | {CERTIFIED: "certified, upper", COMPARISON: "certified, lower"}
_MEANINGS = {
    "given": "Given: what was done, as whoever ran it states it. The noise multiplier is the standard deviation of the "
    "noise over the largest change that one unit can make. Poisson: every row joins each batch independently, with the "
    "sampling probability. Overflow: the probability, a part of delta, that some batch had more rows than its memory, "
    "at which a run that announces it stops.",
    "certified": "Certified: proved by computation. The truth is between the two ends, which are rounded outwards. "
    "Quote the upper one.",
    "certified, upper": "Certified, upper: proved by computation. The truth is at most this: quote it.",
    "certified, lower": "Certified, lower: the truth is at least this.",
    "upper bound": "Upper bound: the truth is at most this. It is proved, too, and usually larger than the certified "
    "one.",
    "estimate": "Estimate: no guarantee. It is often smaller than the truth; never quote it as the epsilon of a run.",
}
_SETTINGS = (
    "Every figure is that of runs whose settings were fixed beforehand. Choosing settings by results on the same data "
    "costs more, which is not included: gdpjax.accounting.tuning_epsilon."
)
Row = tuple[str, ...]


def tables_of(
    runs: Sequence[Described], figures: Sequence[Sequence[Figure]], side_by_side: int = SIDE_BY_SIDE
) -> list[list[Row]]:
    """Return tables of so many runs each, as rows: label, a cell for each run, standing; the head first."""
    standings = _ALONE if len(runs) == 1 else _BESIDE
    tables = []
    for start in range(0, len(runs), side_by_side):
        group = runs[start : start + side_by_side]
        names = [f"{run.name} (NOT PRIVATE)" if run.not_private else run.name for run in group]
        rows = [("quantity", *names, "standing")]
        for label in dict.fromkeys(label for run in group for label in run.facts):
            rows.append((label, *(run.facts.get(label, _UNKNOWN) for run in group), "given"))

        for line in zip(*figures[start : start + side_by_side], strict=True):
            standing = standings[line[0].standing]
            cells = [_cell(run, figure, standing) for run, figure in zip(group, line, strict=True)]
            if all(run.not_private for run in group):
                standing = "no guarantee"
            if set(cells) != {_UNKNOWN}:
                rows.append((line[0].label, *cells, standing))
        tables.append(rows)
    return tables


def _cell(run: Described, figure: Figure, standing: str) -> str:
    """Return a figure: in full for one run, and the end that can be relied on of one of several."""
    if figure.value is None:
        return _UNKNOWN
    if run.not_private:
        return _NONE
    if not isinstance(figure.value, Bounds):
        return rounded(figure.value, _DIGITS, "up")
    lower = rounded(figure.value.lower, _DIGITS, "down")
    upper = rounded(figure.value.upper, _DIGITS, "up")
    return {"certified, upper": upper, "certified, lower": lower}.get(standing, f"[{lower}, {upper}]")


def paragraph(run: Described, figures: Sequence[Figure]) -> str:
    """Return the figure to quote, what was done, and why figures are missing."""
    sentences = [f"Neighbouring data sets {run.neighbours}. Done: {run.scheme}."]
    first = figures[0]
    if run.not_private:
        sentences.insert(0, f"NOT PRIVATE: no guarantee, since {run.not_private}.")
    elif first.standing == CERTIFIED:
        sentences.insert(0, f"{first.label} is at most {_cell(run, first, 'certified, upper')}, certified.")
    for reason in dict.fromkeys(figure.reason for figure in figures if figure.value is None):
        sentences.append(f"Left out: {reason}.")
    # A text that a user gave may have line breaks, after which it would be no comment of LaTeX.
    return " ".join(f"{run.name}: {' '.join(sentences)}".split())


def notes_of(figures: Sequence[Figure], tables: Sequence[Sequence[Row]]) -> list[str]:
    """Return what the words of some tables mean."""
    standings = {row[-1] for rows in tables for row in rows}
    meanings = [meaning for standing, meaning in _MEANINGS.items() if standing in standings]
    return [*dict.fromkeys(figure.meaning for figure in figures), *meanings, _SETTINGS]
