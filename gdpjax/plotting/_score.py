"""The score of trainings against the certified epsilon that they had spent, from their logs."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gdpjax._core.arguments import check_instance, check_number
from gdpjax._core.documents import read_document, read_document_lines
from gdpjax._core.figures import is_percentage, shown_score
from gdpjax.accounting._gdp import DELTA
from gdpjax.plotting.style import BELOW, COLUMN, MARKERS, figure, scale_x, scientific

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PLAN, LOG, EPSILON = "plan.json", "metrics.jsonl", "epsilon_upper"
NO_SCORES = ("notice", "step", "epoch", "mu_", "epsilon_")
"""How the names of what is no score begin in a log."""


def plot_score(
    *runs: Any, names: Sequence[str] | None = None, score: str | None = None, delta: float | None = None
) -> "Figure":
    """Draw the score of one or several trainings against the certified epsilon that they had spent.

    Args:
        runs: each the folder of a run, whose ``metrics.jsonl`` is read; what `gdpjax.sweeps.train` returned; or a
            run's records in the order of its steps, dictionaries with ``epsilon_upper`` and a score.
        names: of the runs in the legend, one each; by default the names of the folders.
        score: the name of the score, by default the first one of a record. What ends in "accuracy" is in percent.
        delta: of the epsilons, strictly between 0 and 1; needed where runs are records alone.

    Returns:
        a matplotlib figure, one column wide, with a line for each run: the score after each record against the
        certified upper end of epsilon there, which does not decrease. Records whose epsilon is infinite are left out.

    Raises:
        ValueError: no run, no record with this score and an epsilon, epsilons at several deltas or at none, a damaged
            file, epsilons that begin again (several runs in one list), matplotlib is not installed.

    >>> records = [{"epsilon_upper": 0.5, "accuracy": 0.8}, {"epsilon_upper": 0.8, "accuracy": 0.9}]
    >>> plot_score(records, delta=1e-5).axes[0].lines[0].get_xydata().tolist()
    [[0.5, 80.0], [0.8, 90.0]]
    """
    logs = [_log(run, delta) for run in runs]
    deltas = {delta_of_run for _, delta_of_run, _ in logs} | ({delta} - {None})
    if len(deltas) != 1 or None in deltas:
        raise ValueError(f"expected runs at one delta, or delta= for records, got deltas {sorted(map(str, deltas))}")
    delta = check_number("delta", deltas.pop(), DELTA)
    texts = [name for name, _, _ in logs] if names is None else check_instance("names", names, (list, tuple))
    if len(texts) != len(runs):
        raise ValueError(f"expected a name for each run, got {len(texts)} names for {len(runs)} runs")
    if score is None:
        figures = (name for record in logs[0][2] for name in record)
        score = next((name for name in figures if not name.startswith(NO_SCORES)), "score")

    with figure(size=(COLUMN, 2.2 + 0.15 * len(runs))) as (drawing, axes):
        for i, (_, _, records) in enumerate(logs):
            axes.plot(*_points(records, score), label=texts[i], marker=MARKERS[i % 7], markevery=0.06)
        scale_x(axes, axes.dataLim.intervalx)
        unit = " (%)" if is_percentage(score) else ""
        xlabel = rf"certified $\varepsilon$ spent, at $\delta = {scientific(delta)}$"
        axes.set(xlabel=xlabel, ylabel=score.replace("_", " ") + unit)
        axes.grid()
        if any(texts):
            drawing.legend(loc=BELOW)
    return drawing


def _log(run: Any, delta: float | None) -> tuple[str | None, float | None, Sequence[Mapping[str, Any]]]:
    """Return a run's name, the delta of its epsilons, and its records."""
    run = getattr(run, "out", run)
    if isinstance(run, list | tuple):
        return None, delta, run
    folder = Path(run)
    plan = read_document(folder / PLAN, dict[str, Any])
    return folder.resolve().name, plan.get("delta"), read_document_lines(folder / LOG, dict[str, Any])


def _points(records: Sequence[Mapping[str, Any]], score: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the certified epsilons of a run's records, which do not decrease, and the scores, as shown."""
    # Infinite epsilons are texts in a log.
    found = [record for record in records if score in record and math.isfinite(float(record.get(EPSILON, "inf")))]
    if not found:
        raise ValueError(
            f"expected records with a finite {EPSILON} and the score {score!r}, got none in {len(records)}"
        )
    epsilon = np.array([float(record[EPSILON]) for record in found])
    # Upper ends are 1e-3 from the truth or less: those of close steps may be in the other order.
    if (epsilon[1:] < 0.99 * epsilon[:-1]).any():
        raise ValueError("the epsilons of a run must increase; give several runs as several arguments")
    return np.maximum.accumulate(epsilon), np.array([shown_score(score, record[score]) for record in found])
