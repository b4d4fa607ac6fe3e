"""``correlated-figure``: the picture of docs/correlated.md, how noise of different steps is correlated, and its sum."""

from typing import Any

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure

from experiments.config import CorrelatedFigureConfig
from gdpjax.correlated import BandedInverse, BandedToeplitz, MinSep, bisr, lambda_cgd, optimize_banded_toeplitz
from gdpjax.plotting.style import look, save_figure

SIGNED = LinearSegmentedColormap.from_list(
    "signed",
    ["#053061", "#2F79B5", "#FFFFFF", "#F6C667", "#E69F00"],
)
"""Blue below zero and orange above, which are dark and light where they are printed in grey."""
NUM_STEPS = 512
NUM_BANDS = 64
PROMISE = MinSep(max_participations=8, min_separation=64)
NUM_SHOWN = 24
"""Steps whose correlations are shown."""
LARGEST_CORRELATION = 0.7
"""Larger ones, such as that of a step with itself, have the same colour."""

Strategy = BandedInverse | BandedToeplitz


def run(config: CorrelatedFigureConfig) -> None:
    """Draw the figure into the output folder."""
    config.output.mkdir(parents=True, exist_ok=True)
    path = config.output / "correlated_noise.png"
    with look():
        save_figure(draw(), path)
    print(f"Figure: {path}")


def strategies() -> dict[str, Strategy]:
    """Return the strategies of the figure by name."""
    return {
        "independent": BandedInverse([1.0]),
        "$\\lambda$-CGD, $\\lambda$ = 0.9": lambda_cgd(0.9),
        "BISR, 8 draws": bisr(8),
        f"BandMF, {NUM_BANDS} bands": optimize_banded_toeplitz(NUM_STEPS, NUM_BANDS),
    }


def covariance(strategy: Strategy) -> Float[np.ndarray, "steps steps"]:
    """Return the covariance of the noise of all steps at mu = 1, in units of the squared clip norm."""
    column = strategy.inverse_column(NUM_STEPS)

    # C^(-1) is a lower triangular Toeplitz matrix: its entries depend on how long ago a draw was made.
    steps = np.arange(NUM_STEPS)
    lag = np.subtract.outer(steps, steps)
    inverse = np.where(lag >= 0, column[np.maximum(lag, 0)], 0.0)

    # At mu = 1 the independent draws have the sensitivity as their deviation.
    sensitivity = float(strategy.sensitivity(NUM_STEPS, PROMISE))
    return sensitivity**2 * inverse @ inverse.T


def deviations_of_sums(of_noise: Float[np.ndarray, "steps steps"]) -> Float[np.ndarray, " steps"]:
    """Return the standard deviation of the sum of the noise of all steps up to each one."""
    # The variance of a running sum is the sum of a square block of the covariance.
    sums_of_blocks = np.cumsum(np.cumsum(of_noise, axis=0), axis=1)
    return np.sqrt(sums_of_blocks.diagonal())


def draw() -> Figure:
    """Draw the correlations of each strategy side by side, and below them the deviation of the running sums."""
    figure = Figure((7.2, 4.5), layout="constrained")
    halves: Any = figure.subfigures(2, 1, height_ratios=(1.0, 1.05))
    upper_half, lower_half = halves
    images = upper_half.subplots(1, 4)
    sums = lower_half.subplots()

    # Two pictures of each strategy.
    steps = np.arange(1, NUM_STEPS + 1)
    for axes, (name, strategy) in zip(images, strategies().items(), strict=True):
        of_noise = covariance(strategy)
        _draw_correlations(axes, name, of_noise)
        sums.plot(steps, deviations_of_sums(of_noise), label=name)

    # What the colours mean, and what the lines are.
    bar = upper_half.colorbar(images[0].images[0], ax=images, extend="max", shrink=0.8, aspect=14, ticks=(-0.5, 0, 0.5))
    bar.set_label("correlation\n(diagonal: 1)")
    sums.set(xlim=(0, NUM_STEPS), ylim=(0, None), xlabel="step", ylabel="stddev of the running sum")
    sums.legend(loc="center right", bbox_to_anchor=(1.0, 0.55))
    sums.grid()
    return figure


def _draw_correlations(axes: Axes, name: str, of_noise: Float[np.ndarray, "steps steps"]) -> None:
    """Draw the correlations of the first steps, and say how much noise one step has."""
    deviations = np.sqrt(of_noise.diagonal())
    correlations = of_noise / np.outer(deviations, deviations)
    shown = correlations[:NUM_SHOWN, :NUM_SHOWN]
    axes.imshow(shown, cmap=SIGNED, vmin=-LARGEST_CORRELATION, vmax=LARGEST_CORRELATION)
    axes.set_title(name)
    axes.set_xlabel(f"stddev of one step: {deviations[-1]:.1f}")
    axes.set(xticks=[], yticks=[])
    axes.spines[:].set_visible(False)
