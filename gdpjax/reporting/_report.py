"""The report card of one run or of several: `report` and its `Report`."""

import json
import time
from typing import Any

import jax

from gdpjax._core.arguments import check_number, check_text, did_you_mean, keyword_checked
from gdpjax._core.checks import OPEN_UNIT
from gdpjax._core.shown import shown
from gdpjax._core.types import Bounds
from gdpjax._core.version import VERSION
from gdpjax.reporting import _tables
from gdpjax.reporting._figures import Figure, figures_of, picture_points
from gdpjax.reporting._picture import picture
from gdpjax.reporting._runs import Described, describe_run

FORMAT_VERSION = 1
DELTAS = (1e-5, 1e-6, 1e-7)


class Report:
    """The figures of one run or of several, and their forms; made by `report`, which says what they are.

    ``str(report)`` is the text. The figures are certified brackets but for the moments accountant, an upper bound, and
    the central limit theorem, an estimate; every form says so.

    >>> from gdpjax import report
    >>> card = report((2.0, 0.02, 50), deltas=[1e-5])
    >>> bool(card.figure("epsilon_at_delta_1e-05").upper < 1), card.to_latex().splitlines()[0]
    (True, '\\\\begin{tabular}{lll}')
    """

    def __init__(self, runs: list[Described], figures: list[list[Figure]]) -> None:
        self._runs, self._figures = runs, figures
        today = time.strftime("%Y-%m-%d", time.gmtime())
        self._made = {"gdpjax": VERSION, "jax": jax.__version__, "date": today}

    def __str__(self) -> str:
        return self.to_text()

    def __repr__(self) -> str:
        return f"Report of {', '.join(run.name for run in self._runs)}"

    @property
    def names(self) -> list[str]:
        """The names of the runs, in order."""
        return [run.name for run in self._runs]

    def figure(self, key: str, run: int = 0) -> Bounds | float | None:
        """One figure of a run, by its name in `to_json`; None where it is not known for its scheme."""
        if not isinstance(run, int) or not -len(self._runs) <= run < len(self._runs):
            raise ValueError(f"run must be the place of a run, below {len(self._runs)}, got {shown(run)}")
        found = {figure.key: figure.value for figure in self._figures[run]}
        if key not in found:
            raise ValueError(f"key must be one of {', '.join(found)}, got {shown(key)}")
        return found[key]

    def to_text(self, *, figures: Any = None) -> str:
        """A table for a terminal, of all figures or of those named in ``figures``, laid out as in `to_latex`."""
        return _tables.as_text(self._table(self._chosen(figures)))

    def to_markdown(self, *, figures: Any = None) -> str:
        """A Markdown table, of all figures or of those named in ``figures``, laid out as in `to_latex`."""
        return _tables.as_markdown(self._table(self._chosen(figures)))

    def to_latex(self, *, figures: Any = None) -> str:
        r"""A LaTeX table with booktabs rules, narrow enough for a page; the preamble needs ``\usepackage{booktabs}``.

        Figures are lines and runs are columns, three side by side and further ones below them. Of several runs a cell
        is the end of the bracket that can be relied on, which the standing names. What was done stands in short cells,
        and in full in the notes: here, comments.

        Args:
            figures: which figures, in this order, by their names in `figure` and `to_json`; by default all.

        Raises:
            ValueError: a name that is no figure's, none, or one twice.

        >>> from gdpjax import report
        >>> card = report((2.0, 0.02, 50), (1.0, 0.02, 50), names=["ours", "theirs"], deltas=[1e-5])
        >>> print("\n".join(card.to_latex(figures=["epsilon_at_delta_1e-05"]).splitlines()[5:]))
        \toprule
        quantity & ours & theirs & standing \\
        \midrule
        batches & \multicolumn{2}{c}{Poisson} & given \\
        noise multiplier & 2 & 1 & given \\
        sampling probability & \multicolumn{2}{c}{0.02} & given \\
        steps & \multicolumn{2}{c}{50} & given \\
        neighbours & \multicolumn{2}{c}{add or remove} & given \\
        epsilon at delta 1e-05 & 0.2893 & 1.146 & certified, upper \\
        \bottomrule
        \end{tabular}
        """
        return _tables.as_latex(self._table(self._chosen(figures)))

    def to_json(self) -> str:
        """A JSON text: every figure of every run, brackets as [lower, upper], with its standing.

        Beside them the phases of each run in numbers, and the versions and the date that made the card.
        """
        runs = []
        for run, figures in zip(self._runs, self._figures, strict=True):
            values = {figure.key: _tables.json_value(figure.value) for figure in figures}
            words = {"name": run.name, "scheme": run.scheme, "neighbours": run.neighbours}
            phases = json.loads(run.phases.to_json())["events"]
            done = {"not_private": run.not_private or None, "phases": phases}
            runs.append({**words, **done, "figures": values})
        standing = {figure.key: figure.standing for figure in self._figures[0]}
        document = {"gdpjax_report": FORMAT_VERSION, "made": self._made, "runs": runs, "standing": standing}
        return json.dumps(document, indent=2, allow_nan=False)

    def to_html(self) -> str:
        """One HTML page with the table and the trade-off curves, which needs no other file."""
        curves = [picture_points(run.curve) for run in self._runs]
        return _tables.as_html(self._table(self._figures), picture(self.names, curves))

    def _table(self, figures: list[list[Figure]]) -> _tables.Table:
        made = "Made by gdpjax {gdpjax} with jax {jax} on {date}.".format(**self._made)
        table = _tables.table_of(self._runs, figures)
        return table._replace(notes=(*table.notes, made))

    def _chosen(self, keys: Any) -> list[list[Figure]]:
        """The figures of each run that have these names, in their order; all of them for None."""
        if keys is None:
            return self._figures
        keys = [keys] if isinstance(keys, str) else keys
        known = [figure.key for figure in self._figures[0]]
        if not isinstance(keys, list | tuple) or not keys or len(set(map(str, keys))) < len(keys):
            raise ValueError(f"figures must be names among {', '.join(known)}, each once, got {shown(keys)}")
        for key in keys:
            if key not in known:
                names = ", ".join(known)
                raise ValueError(f"figures must be names among {names}, got {shown(key)}{did_you_mean(key, known)}")
        places = [known.index(key) for key in keys]
        return [[own[place] for place in places] for own in self._figures]


@keyword_checked(delta="deltas", name="names")
def report(*runs: Any, deltas: Any = None, names: Any = None, unit: str | None = None) -> Report:
    """Return the report card of runs: what they cost in privacy, by every measure that papers ask for.

    For each run: scheme and neighbours, epsilon at several deltas, mu and the regret of reporting it, the membership
    advantage, the true positive rate of the best attack at false positive rates of 1e-2 and 1e-3, the success of a
    Bayesian attacker with prior 1/2, the moments accountant's epsilon, and the central limit theorem's with the amount
    by which it understates.

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
    ['mu, failure 1e-10     [0.09425, 0.09432]  certified']
    """
    if not runs:
        raise ValueError("report needs at least one run: a plan, a ledger, an event, three numbers or a folder")
    if deltas is not None:
        deltas = _checked_deltas(deltas)
    if names is None:
        names = [None] * len(runs)
    elif isinstance(names, str) or not hasattr(names, "__len__") or len(names) != len(runs):
        raise ValueError(f"names must be one text for each of the {len(runs)} runs, got {shown(names)}")
    else:
        names = [check_text("a name", name) for name in names]
    if unit is not None:
        check_text("unit", unit, "what one row is, in the singular")
    pairs = enumerate(zip(runs, names, strict=True), start=1)
    described = [describe_run(run, name, f"run {place}", unit) for place, (run, name) in pairs]
    if deltas is None:
        of_plans = [run.delta for run in described if run.delta is not None]
        deltas = tuple(dict.fromkeys([*of_plans, *DELTAS]))
    return Report(described, [figures_of(run, deltas) for run in described])


def _checked_deltas(deltas: Any) -> tuple[float, ...]:
    try:
        numbers = list(deltas)
    except TypeError:
        numbers = [deltas]
    checked = tuple(check_number("deltas", delta, OPEN_UNIT) for delta in numbers)
    if not checked or len(set(checked)) < len(checked):
        raise ValueError("deltas must be at least one number, each once")
    return checked
