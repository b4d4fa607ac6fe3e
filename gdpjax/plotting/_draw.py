"""The curves on paper, one column wide."""

from typing import TYPE_CHECKING

import numpy as np

from gdpjax._core.arguments import check_instance
from gdpjax._core.figures import rounded
from gdpjax._core.types import FAILURE
from gdpjax.plotting._curves import EpsilonCurves, TradeoffCurves
from gdpjax.plotting.style import BELOW, COLUMN, GREY, draw_band, figure, number_ticks, scientific

if TYPE_CHECKING:
    from matplotlib.figure import Figure


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
    check_instance("curves", curves, TradeoffCurves, "made by tradeoff_curves")

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
    check_instance("curves", curves, EpsilonCurves, "made by epsilon_curves")
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
            axes.set(xscale="log", yscale="log", xlim=(1, steps[-1]))
            number_ticks(axes)
        else:
            axes.set(xlim=(0, steps[-1]), ylim=(0, None))
        axes.grid()
        drawing.legend(loc=BELOW)
    return drawing
