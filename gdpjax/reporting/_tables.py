"""The rows and the sentences of a report, which every form writes in its notation.

Figures are lines and runs are columns. A line has its standing at the end, and is left out where no run of the table
has it. One run has both ends of every bracket. Several runs have the end that can be relied on, the upper one. Lower
ends are rounded down and upper ends up, so that whatever is copied is true.
"""

import re
from collections.abc import Sequence

from gdpjax._core.figures import rounded
from gdpjax._core.types import Bounds
from gdpjax.reporting._runs import CERTIFIED, Described, Figure

_UNKNOWN = "-"
_NOTES = {
    "epsilon at .*": "Epsilon, delta: whatever is released, its probability is at most e^epsilon times that under a "
    "neighbouring data set, plus delta. Delta should be well below 1 / size of the data.",
    "mu, .*": "Mu: to tell two neighbouring data sets apart is at least as hard as to tell a draw of the normal law "
    "N(0, 1) from one of N(mu, 1), except with the probability of failure.",
    "regret .*": "Regret: by how much mu overstates, at most, how well attacks do; near 0, mu alone describes the run.",
    "membership .*|TPR .*|Bayes .*": "An attack guesses which of two neighbouring data sets was used, such as whether "
    "a person is in it. Its true and false positive rates (TPR, FPR) are how often it says yes, rightly and wrongly; "
    "membership advantage: the largest difference of the two, 0 for a blind guess and 1 for certainty; Bayes success: "
    "how often the best guess is right if both data sets are as likely, 0.5 for a blind guess.",
    "moments .*": "Moments epsilon: at this delta, by the moments accountant, to compare with papers that used it.",
    ".*CLT.*": "CLT: by the central limit theorem, to compare with papers that used it.",
    "given": "Given: what was done, as whoever ran it states it.",
    "noise multiplier.*": "Noise multiplier: the standard deviation of the noise over the largest change that one unit "
    "can make, of all that a step releases together. A step of adaptive clipping releases a sum and a count; if their "
    "own noise multipliers are s and c, that of both together is (1 / s^2 + 1 / c^2)^(-1/2), which is less than s.",
    "Poisson.*": "Poisson: every {unit} joins each batch independently, with the sampling probability. Where batches "
    "have at most so many {unit}s, a surplus is left out at random.",
    ".* times, .* apart": "m times, b apart: each {unit} is in at most m batches, and two of these are at least b "
    "steps apart.",
    "overflow": "Overflow: the probability, a part of delta, that some batch had more {unit}s than its memory, at "
    "which a run that announces it stops.",
    "certified": "Certified: proved by computation, for keys that stay secret. The truth is between the two ends, "
    "which are rounded outwards. Quote the upper one.",
    "certified, upper": "Certified, upper: proved by computation, for keys that stay secret. The truth is at most "
    "this: quote it.",
    "upper bound": "Upper bound: the truth is at most this. It is proved, too, and usually larger than the certified "
    "one.",
    "asymptotic": "Asymptotic: no guarantee. It may understate; never quote it as the epsilon of a run.",
}
"""Patterns of cells, and what these mean; {unit} is what one row of the data is."""
_SETTINGS = (
    "Every figure is that of runs whose settings were fixed beforehand. Choosing settings by results on the same data "
    "costs more, which is not included: gdpjax.accounting.tuning_epsilon."
)
Row = tuple[str, ...]


def table_of(runs: Sequence[Described], is_alone: bool) -> list[Row]:
    """Return the rows of a table: label, a cell for each run, standing; the head first."""
    names = [f"{run.name} (NOT PRIVATE)" if run.not_private else run.name for run in runs]
    rows = [("quantity", *names, "standing")]
    for label in dict.fromkeys(label for run in runs for label in run.facts):
        rows.append((label, *(run.facts.get(label, _UNKNOWN) for run in runs), "given"))

    for key, figure in runs[0].figures.items():
        standing = figure.standing
        if standing == CERTIFIED and not is_alone:
            standing = f"{standing}, upper"
        cells = [_cell(run, run.figures[key], standing) for run in runs]
        if all(run.not_private for run in runs):
            standing = "no guarantee"
        if set(cells) != {_UNKNOWN}:
            rows.append((figure.label, *cells, standing))
    return rows


def _cell(run: Described, figure: Figure, standing: str) -> str:
    """Return a figure: in full for one run, and the end that can be relied on of one of several."""
    if figure.value is None:
        return _UNKNOWN
    if run.not_private:
        return "none"
    if not isinstance(figure.value, Bounds):
        return rounded(figure.value, 5, "up")
    upper = rounded(figure.value.upper, 5, "up")
    return f"[{rounded(figure.value.lower, 5, 'down')}, {upper}]" if standing == CERTIFIED else upper


def paragraph(run: Described) -> str:
    """Return the figure to quote, what was done, and why figures are missing."""
    sentences = [f"Neighbouring data sets {run.neighbours}. Done: {run.scheme}."]
    first, *_ = run.figures.values()
    if run.not_private:
        sentences.insert(0, f"NOT PRIVATE: no guarantee, since {run.not_private}.")
    elif isinstance(first.value, Bounds):
        sentences.insert(0, f"{first.label} is at most {rounded(first.value.upper, 5, 'up')}, certified.")
    for reason in dict.fromkeys(figure.reason for figure in run.figures.values() if figure.value is None):
        sentences.append(f"Left out: {reason}.")
    # A text that a user gave may have line breaks, after which it would be no comment of LaTeX.
    return " ".join(f"{run.name}: {' '.join(sentences)}".split())


def notes_of(runs: Sequence[Described], tables: Sequence[Sequence[Row]]) -> list[str]:
    """Return what the words in the tables of some runs mean."""
    first, *others = {run.unit for run in runs}
    unit = "row" if others else first
    cells = {cell for _, *rows in tables for row in rows for cell in row}
    notes = [note for pattern, note in _NOTES.items() if any(re.fullmatch(pattern, cell) for cell in cells)]
    return [note.format(unit=unit) for note in (*notes, _SETTINGS)]
