"""The report card of one run or of several: `report` and its `Report`."""

import datetime
import json
from typing import Any

import jax
import numpy as np

from gdpjax._core import VERSION
from gdpjax._core.arguments import check_choice, check_names, check_number, keyword_checked
from gdpjax._core.checks import OPEN_UNIT
from gdpjax._core.shown import shown
from gdpjax._core.types import Bounds
from gdpjax.reporting._forms import HTML, LATEX, MARKDOWN, WIDTH, picture_of, write_text
from gdpjax.reporting._runs import Described, describe_run, figures_of
from gdpjax.reporting._tables import notes_of, paragraph, table_of

FORMAT_VERSION = 1
DELTAS = (1e-5, 1e-6, 1e-7)


class Report:
    """The figures of one run or of several, and their forms; made by `report`, which says what they are.

    ``print(report)`` prints the text. The figures are certified brackets, apart from that of the moments accountant,
    an upper bound, and those of the central limit theorem, asymptotic; every form names the standing of each.

    >>> from gdpjax import report
    >>> card = report((2.0, 0.02, 50), deltas=[1e-5])
    >>> bool(card.figure("epsilon_at_delta_1e-05").upper < 1), card.to_latex().splitlines()[-1]
    (True, '\\\\end{tabular}')
    """

    def __init__(self, runs: list[Described]) -> None:
        self._runs = runs
        self._made = {
            "gdpjax": VERSION,
            "jax": jax.__version__,
            "date": str(datetime.date.today()),
        }

    def __repr__(self) -> str:
        return self.to_text()

    @property
    def names(self) -> list[str]:
        """The names of the runs, in order."""
        return [run.name for run in self._runs]

    def figure(self, key: str, run: int | str = 0) -> Bounds | float | None:
        """One figure by its name in `to_json`, of a run by its name or place; None where it is not known."""
        place: Any = self.names.index(run) if run in self.names else run
        num_runs = len(self._runs)
        if place not in range(-num_runs, num_runs):
            raise ValueError(f"run must be one of {', '.join(self.names)}, or its place from 0 on, got {shown(run)}")
        figures = self._runs[place].figures
        return figures[check_choice("key", key, list(figures))].value

    def to_text(self, *, figures: Any = None) -> str:
        """A table for a terminal, of all figures or of those named in ``figures``, laid out as in `to_latex`."""
        text = ""
        for columns in (3, 2, 1):
            text = write_text(*self._parts(figures, columns))
            if max(map(len, text.splitlines())) <= WIDTH:
                break
        return text

    def to_markdown(self, *, figures: Any = None) -> str:
        """A Markdown table, of all figures or of those named in ``figures``, laid out as in `to_latex`."""
        return MARKDOWN.write(*self._parts(figures))

    def to_latex(self, *, figures: Any = None) -> str:
        r"""A LaTeX table with booktabs rules, narrow enough for a page; the preamble needs ``\usepackage{booktabs}``.

        Figures are lines and runs are columns, three side by side and further ones below them. Of several runs a cell
        is the end of the bracket that can be relied on, which the standing names. What was done stands in short cells,
        and in full in the notes: here, comments.

        Args:
            figures: which figures, in this order, by their names in `figure` and `to_json`; by default all.

        Raises:
            ValueError: a name that is no figure's.

        >>> from gdpjax import report
        >>> card = report((2.0, 0.02, 50), (1.0, 0.02, 50), names=["ours", "theirs"], deltas=[1e-5])
        >>> print("\n".join(card.to_latex(figures=["epsilon_at_delta_1e-05"]).splitlines()[-13:]))
        \begin{tabular}{llll}
        \toprule
        quantity & ours & theirs & standing \\
        \midrule
        batches & Poisson & Poisson & given \\
        noise multiplier & 2 & 1 & given \\
        sampling probability & 0.02 & 0.02 & given \\
        steps & 50 & 50 & given \\
        neighbours & add or remove & add or remove & given \\
        unit & not stated & not stated & given \\
        epsilon at delta 1e-05 & 0.28917 & 1.1448 & certified, upper \\
        \bottomrule
        \end{tabular}
        """
        return LATEX.write(*self._parts(figures))

    def to_json(self) -> str:
        """A JSON text: every figure of every run, brackets as [lower, upper], with its standing.

        Beside them the phases of each run in numbers, and the versions and the date that made the card.
        """
        runs = []
        for run in self._runs:
            described = {
                "name": run.name,
                "scheme": run.scheme,
                "neighbours": run.neighbours,
                "not_private": run.not_private or None,
                "phases": json.loads(run.events.to_json())["events"],
                "figures": {key: figure.in_json() for key, figure in run.figures.items()},
            }
            runs.append(described)
        document = {
            "gdpjax_report": FORMAT_VERSION,
            "made": self._made,
            "runs": runs,
            "standing": {key: figure.standing for key, figure in self._runs[0].figures.items()},
        }
        return json.dumps(document, indent=2, allow_nan=False)

    def to_html(self) -> str:
        """One HTML page with the table and the trade-off curves, which needs no other file."""
        return HTML.write(*self._parts(), picture=picture_of(self._runs))

    def _parts(self, keys: Any = None, columns: int = 3) -> tuple[list[str], list[Any], list[str]]:
        """The sentences on the runs, the tables of so many runs each, and the notes, of the figures with these keys."""
        runs = self._runs
        if keys is not None:
            keys = [keys] if isinstance(keys, str) else keys
            for key in keys:
                check_choice("figures", key, list(runs[0].figures))
            runs = [run._replace(figures={key: run.figures[key] for key in keys}) for run in runs]

        tables = []
        for start in range(0, len(runs), columns):
            side_by_side = runs[start : start + columns]
            tables.append(table_of(side_by_side, len(runs) == 1))
        sentences = [paragraph(run) for run in runs]
        made = "Made by gdpjax {gdpjax} with jax {jax} on {date}.".format(**self._made)
        return sentences, tables, [*notes_of(runs, tables), made]


@keyword_checked(delta="deltas", name="names")
def report(
    *runs: Any,
    deltas: Any = None,
    names: Any = None,
    unit: str | None = None,
) -> Report:
    """Return the report card of runs: what they cost in privacy, by every measure that papers ask for.

    For each run: scheme and neighbours, epsilon at several deltas, mu and the regret of reporting it, the membership
    advantage, the true positive rate of the best attack at false positive rates of 1e-2 and 1e-3, the success of a
    Bayesian attacker with prior 1/2, the moments accountant's epsilon, and the central limit theorem's.

    Args:
        runs: each a `Plan`, a `Ledger`, an event, a triple (noise_multiplier, sampling_prob, num_steps) of Poisson
            sampling, a `CertifiedCurve`, or the path of a run's folder or of the JSON text of a Plan or Ledger. A plan
            is reported for its maximum of steps.
        deltas: where epsilon is asked for, numbers strictly between 0 and 1; the other accountants at the first. By
            default those of the plans among the runs, and then 1e-5, 1e-6 and 1e-7.
        names: what the runs are called, one text each; by default the name of the folder or file, or "run 1".
        unit: what one row of the data is, in the singular, for runs that do not say it; a plan does.

    Returns:
        A `Report`. Certified: epsilon, mu, regret, advantage, rates and success are brackets. Of a run that is not
        private it says so.

    Raises:
        ValueError: no run, something that is none, or an argument outside its range.
        DocumentError: a file that cannot be read.

    Reference: Gomez, Kulynych et al., arXiv:2503.10945 (mu and regret); Kulynych et al., arXiv:2407.02191 (attacks).

    >>> card = report((2.0, 0.02, 50), deltas=[1e-5])
    >>> [line for line in card.to_text(figures="mu").splitlines() if line.startswith("mu")]
    ['mu, failure 1e-10     [0.094255, 0.094307]  certified']
    """
    if not runs:
        raise ValueError("report needs at least one run: a plan, a ledger, an event, three numbers or a folder")
    described: list[Described] = []
    for number, (run, name) in enumerate(zip(runs, check_names(names, len(runs)), strict=True), start=1):
        found = describe_run(run, name, f"run {number}", unit)
        # Two folders may have one name, as runs/a/train and runs/b/train have.
        if any(found.name == other.name for other in described):
            found = found._replace(name=f"{found.name} ({number})")
        described.append(found)

    if deltas is None:
        of_plans = [run.delta for run in described if run.delta is not None]
        deltas = [*of_plans, *DELTAS]
    checked = {}
    for delta in np.atleast_1d(deltas):
        checked[check_number("deltas", delta, OPEN_UNIT)] = None
    if not checked:
        raise ValueError("deltas must be at least one number, got none")
    return Report([run._replace(figures=figures_of(run, list(checked))) for run in described])
