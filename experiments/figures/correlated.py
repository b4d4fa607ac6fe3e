"""The picture of docs/correlated.md: how the noise of different steps is correlated, and its sum."""

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from gdpjax.correlated import BandedInverse, MinSep, bisr, lambda_cgd, optimize_banded_toeplitz

NUM_STEPS = 512
PROMISE = MinSep(max_participations=8, min_separation=64)
NUM_SHOWN = 24
"""Steps whose correlations are shown."""
LARGEST_CORRELATION = 0.7
"""Larger ones, such as that of a step with itself, have the same colour."""


def correlated_noise() -> Figure:
    """Draw the correlations of each strategy side by side, and below them the deviation of the running sums."""
    strategies = {
        "independent": BandedInverse([1.0]),
        r"$\lambda$-CGD, $\lambda$ = 0.9": lambda_cgd(0.9),
        "BISR, 8 draws": bisr(8),
        "BandMF, 64 bands": optimize_banded_toeplitz(NUM_STEPS, 64),
    }
    figure = Figure((7.2, 4.5), layout="constrained")
    names: list[Any] = list(strategies)
    panels = figure.subplot_mosaic([names, ["sums"] * len(names)])
    sums = panels["sums"]
    steps = np.arange(NUM_STEPS)
    lag = np.subtract.outer(steps, steps)
    for name, strategy in strategies.items():
        # C^(-1) is a lower triangular Toeplitz matrix: its entries depend on how long ago a draw was made. At mu = 1
        # the independent draws have the sensitivity as their deviation.
        column = strategy.inverse_column(NUM_STEPS)
        inverse = np.where(lag >= 0, column[np.abs(lag)], 0.0)
        of_draws = float(strategy.sensitivity(NUM_STEPS, PROMISE))
        covariance = of_draws**2 * inverse @ inverse.T

        # The correlations of the first steps, and how much noise one step has.
        deviations = np.sqrt(covariance.diagonal())
        shown = (covariance / np.outer(deviations, deviations))[:NUM_SHOWN, :NUM_SHOWN]
        panels[name].imshow(shown, cmap="PuOr_r", vmin=-LARGEST_CORRELATION, vmax=LARGEST_CORRELATION)
        panels[name].set(title=name, xlabel=f"stddev of one step: {deviations[-1]:.1f}", xticks=[], yticks=[])
        panels[name].spines[:].set_visible(False)

        # The variance of a running sum is the sum of a square block of the covariance.
        variances = covariance.cumsum(axis=0).cumsum(axis=1).diagonal()
        sums.plot(1 + steps, np.sqrt(variances), label=name)

    bar = figure.colorbar(panels[names[0]].images[0], ax=[panels[name] for name in names], extend="max", shrink=0.8)
    bar.set_label("correlation\n(diagonal: 1)")
    sums.set(xlim=(0, NUM_STEPS), ylim=(0, None), xlabel="step", ylabel="stddev of the running sum")
    sums.legend(loc="center right", bbox_to_anchor=(1.0, 0.55))
    sums.grid()
    return figure
