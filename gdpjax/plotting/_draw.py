"""The pictures, one column wide: of curves, and of scores against the epsilon that trainings had spent."""

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from gdpjax._core.arguments import check_number
from gdpjax._core.figures import is_percentage, rounded, shown_score
from gdpjax._core.types import FAILURE
from gdpjax.accounting._gdp import DELTA
from gdpjax.plotting._curves import EpsilonCurves, TradeoffCurves
from gdpjax.plotting.style import BELOW, COLUMN, GREY, MARKERS, draw_band, figure, number_ticks, scale_x, scientific

if TYPE_CHECKING:
    from matplotlib.figure import Figure

EPSILON = "epsilon_upper"
NO_SCORES = ("step", "epoch", "mu_", "epsilon_")
"""How the names of what is no score begin in a log."""


def plot_tradeoff(curves: TradeoffCurves, *, log: bool = False) -> "Figure":
    """Draw a trade-off curve with its certified band, f_{epsilon, delta} and G_mu.

    Args:
        curves: from `tradeoff_curves`.
        log: draw the power 1 - f(alpha) of the best test on logarithmic axes, which shows the tails.

    Returns:
        a matplotlib figure, one column wide; save it with `save_figure`.

    Raises:
        ValueError: matplotlib is not installed.

    >>> from gdpjax import Bounds
    >>> x = np.array([0.0, 0.5, 1.0])
    >>> private = TradeoffCurves(x, Bounds(1 - x, 1 - x), 1 - x, 1 - x, 1 - x, Bounds(0.0, 0.0), 1e-5, 0.0, 0.0)
    >>> len(plot_tradeoff(private).axes[0].lines)
    6
    """
    # A bound in print is rounded up.
    epsilon = rounded(float(curves.epsilon.upper), 5, "up")
    mu = rounded(curves.mu_upper, 5, "up")
    lines = {
        rf"certified: $\varepsilon = {epsilon}$ at $\delta = {scientific(curves.delta)}$ alone": curves.approximate_dp,
        rf"certified: $\mu = {mu}$, with failure ${scientific(FAILURE)}$": curves.gaussian_certified,
    }
    if curves.gaussian_clt is not None:
        lines[rf"estimate (CLT): $\mu = {curves.mu_clt:.3g}$, no guarantee"] = curves.gaussian_clt

    def height(beta: np.ndarray) -> np.ndarray:
        return 1.0 - beta if log else beta

    alpha = curves.alpha
    with figure(size=(COLUMN, 4.0)) as (drawing, axes):
        draw_band(axes, alpha, *map(height, curves.curve), label="certified: no attack does better")
        for label, beta in lines.items():
            axes.plot(alpha, height(beta), label=label)
        blind = height(1.0 - alpha)
        axes.plot(alpha, blind, color=GREY, linestyle="-", linewidth=0.6, label="blind guess: perfect privacy")
        axes.set(
            xlabel=r"false alarms of an attack: type I error $\alpha$",
            ylabel=r"what the attack misses: type II error $\beta$",
            xlim=(0, 1),
            ylim=(0, 1),
        )
        if log:
            ends = min(1e-3, curves.delta / 100), 1
            axes.set(ylabel=r"what the attack finds: power $1 - \beta$")
            axes.set(xscale="log", yscale="log", xlim=ends, ylim=ends)
            number_ticks(axes)
        axes.set_box_aspect(1)
        drawing.legend(loc=BELOW)
    return drawing


def plot_epsilon(curves: EpsilonCurves, *, log: bool = False) -> "Figure":
    """Draw epsilon against the number of steps for every accountant.

    Args:
        curves: from `epsilon_curves`.
        log: logarithmic axes.

    Returns:
        a matplotlib figure, one column wide; save it with `save_figure`.

    Raises:
        ValueError: matplotlib is not installed.

    >>> from gdpjax import Bounds
    >>> x = np.array([1.0, 2.0])
    >>> plot_epsilon(EpsilonCurves(x, 1e-5, Bounds(x, x), x, x, x)).axes[0].get_xlabel()
    'number of steps'
    """
    steps = curves.num_steps
    with figure(size=(COLUMN, 3.0)) as (drawing, axes):
        draw_band(axes, steps, *curves.certified, label="certified: lower and upper bound")
        axes.plot(steps, curves.moments_accountant, label="moments accountant: upper bound")
        axes.plot(steps, curves.moments_accountant_classic, label="moments accountant of 2016: upper bound")
        axes.plot(steps, curves.clt, label="estimate (CLT): may understate, no guarantee")
        axes.set(
            xlabel="number of steps",
            ylabel=rf"privacy loss $\varepsilon$ at $\delta = {scientific(curves.delta)}$",
        )
        if log:
            axes.set(xscale="log", yscale="log")
            axes.margins(x=0)
            number_ticks(axes)
        else:
            axes.set(xlim=(0, steps[-1]), ylim=(0, None))
        axes.grid()
        drawing.legend(loc=BELOW)
    return drawing


def plot_score(
    runs: Mapping[str, Sequence[Mapping[str, Any]]],
    *,
    delta: float,
    score: str | None = None,
) -> "Figure":
    """Draw the score of one or several trainings against the certified epsilon that they had spent.

    Args:
        runs: by the name that a run has in the legend, its records in the order of its steps: dictionaries with
            ``epsilon_upper`` and a score, such as the ``history`` of what `gdpjax.sweeps.train` returned.
        delta: of the epsilons, strictly between 0 and 1.
        score: the name of the score, by default the first one of a record. What ends in "accuracy" is in percent.

    Returns:
        a matplotlib figure, one column wide, with a line for each run: the score after each record against the
        certified upper end of epsilon there, which does not decrease. Records whose epsilon or score is not finite are
        left out.

    Raises:
        ValueError: no run, a run without a finite score and epsilon, epsilons that begin again (several runs in one
            list), matplotlib is not installed.

    >>> records = [{"epsilon_upper": 0.5, "accuracy": 0.8}, {"epsilon_upper": 0.8, "accuracy": 0.9}]
    >>> plot_score({"noise 2": records}, delta=1e-5).axes[0].lines[0].get_xydata().tolist()
    [[0.5, 80.0], [0.8, 90.0]]
    """
    if not runs:
        raise ValueError("plot_score needs the records of at least one run")
    delta = check_number("delta", delta, DELTA)
    if score is None:
        recorded = (name for records in runs.values() for record in records for name in record)
        score = next((name for name in recorded if not name.startswith(NO_SCORES)), "score")

    height = 2.2 + 0.15 * len(runs)
    with figure(size=(COLUMN, height)) as (drawing, axes):
        for (name, records), marker in zip(runs.items(), itertools.cycle(MARKERS)):
            epsilons, values = _points(records, score)
            axes.plot(epsilons, values, label=name, marker=marker, markevery=0.06)
        scale_x(axes, axes.dataLim.intervalx)
        axes.set(
            xlabel=rf"certified $\varepsilon$ spent, at $\delta = {scientific(delta)}$",
            ylabel=score.replace("_", " ") + (" (%)" if is_percentage(score) else ""),
        )
        axes.grid()
        drawing.legend(loc=BELOW)
    return drawing


def _points(records: Sequence[Mapping[str, Any]], score: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the certified epsilons of a run's records, which do not decrease, and the scores, as shown."""
    # Numbers that are not finite are texts in a log.
    found = []
    for record in records:
        epsilon, value = float(record.get(EPSILON, "nan")), float(record.get(score, "nan"))
        if math.isfinite(epsilon) and math.isfinite(value):
            found.append((epsilon, shown_score(score, value)))
    if not found:
        names = ", ".join(dict.fromkeys(name for record in records for name in record))
        got = f"those of {names}" if names else "no record"
        raise ValueError(f"expected records with a finite {EPSILON} and a finite score {score!r}, got {got}")
    epsilons, scores = np.array(found).T
    # Upper ends are 1e-3 from the truth or less: those of close steps may be in the other order.
    if (epsilons[1:] < 0.99 * epsilons[:-1]).any():
        raise ValueError("the epsilons of a run must increase; give several runs by a name each")
    return np.maximum.accumulate(epsilons), scores
