"""Pictures of privacy: the trade-off curve of a run, and epsilon against the number of steps.

A picture is made in two steps: a function of the hyperparameters computes the curves as arrays, with the standing of
each, and a ``plot_...`` function draws them on a new matplotlib figure. matplotlib is imported when something is drawn.
Curves are told apart by line style as well as by colour, so that a picture survives colour blindness and grey printing,
and figures have the width of a column.

Two pictures of the same trade-off curve f. In the plane of errors, G_mu and f_{epsilon, delta} are the familiar curves
under 1 - alpha. What a delta of 1e-5 is about happens near the corner (0, 1), though, where that picture shows nothing:
the logarithmic one shows the power 1 - f(alpha) of the best test against its type I error alpha.
"""

from gdpjax.plotting._curves import (
    EpsilonCurves,
    TradeoffCurves,
    approximate_dp_tradeoff,
    epsilon_curves,
    tradeoff_curves,
)
from gdpjax.plotting._draw import plot_epsilon, plot_tradeoff, save_figure

__all__ = [
    "EpsilonCurves",
    "TradeoffCurves",
    "approximate_dp_tradeoff",
    "epsilon_curves",
    "plot_epsilon",
    "plot_tradeoff",
    "save_figure",
    "tradeoff_curves",
]
