"""Pictures of privacy: a run's trade-off curve, epsilon against its steps, and its score against epsilon.

The first two are made in two steps: a function of the hyperparameters computes the curves as arrays, with the standing
of each, and a ``plot_...`` function draws them. `plot_score` draws the records of trainings. What is drawn is a new
matplotlib figure, as wide as a column of a paper, in the one `style` of this project.

Two pictures of the same trade-off curve f. In the plane of errors, G_mu and f_{epsilon, delta} are the familiar curves
under 1 - alpha. What a delta of 1e-5 is about happens near the corner (0, 1), though, where that picture shows nothing:
the logarithmic one shows the power 1 - f(alpha) of the best test against its type I error alpha.
"""

from gdpjax.plotting._curves import epsilon_curves, tradeoff_curves
from gdpjax.plotting._curves import limiting_mu as limiting_mu
from gdpjax.plotting._draw import plot_epsilon, plot_score, plot_tradeoff
from gdpjax.plotting.style import save_figure

__all__ = [
    "epsilon_curves",
    "plot_epsilon",
    "plot_score",
    "plot_tradeoff",
    "save_figure",
    "tradeoff_curves",
]
