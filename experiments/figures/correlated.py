"""``correlated-figure``: the picture of docs/correlated.md, how noise of different steps is correlated, and its sum."""

from typing import Any

import matplotlib

matplotlib.use("Agg")

import numpy as np
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure

from experiments.config import CorrelatedFigureConfig
from gdpjax.correlated import BandedInverse, BandedToeplitz, MinSep, bisr, lambda_cgd, optimize_banded_toeplitz

GREY, BLUE, GREEN, RED = "#555555", "#0072B2", "#009E73", "#D55E00"  # Okabe and Ito
STYLE: Any = {"font.size": 8, "axes.spines.top": False, "axes.spines.right": False, "axes.titlesize": 8}
SIGNED = LinearSegmentedColormap.from_list("signed", ["#053061", "#2F79B5", "#FFFFFF", "#F6C667", "#E69F00"])
"""Blue below zero and orange above, which are dark and light where they are printed in grey."""
NUM_STEPS, NUM_SHOWN, BANDS = 512, 24, 64
PROMISE = MinSep(max_participations=8, min_separation=64)


def run(config: CorrelatedFigureConfig) -> None:
    """Draw the figure into the output folder."""
    config.output.mkdir(parents=True, exist_ok=True)
    path = config.output / "correlated_noise.png"
    with plt.rc_context(STYLE):
        figure = draw()
        figure.savefig(path, dpi=110, metadata={"Software": None})
        plt.close(figure)
    print(f"Figure: {path}")


def strategies() -> dict[str, tuple[BandedInverse | BandedToeplitz, dict[str, Any]]]:
    """The strategies of the figure, and how their lines are drawn."""
    return {
        "independent": (BandedInverse([1.0]), {"color": GREY, "linestyle": "-"}),
        "$\\lambda$-CGD, $\\lambda$ = 0.9": (lambda_cgd(0.9), {"color": GREEN, "linestyle": "--"}),
        "BISR, 8 draws": (bisr(8), {"color": BLUE, "linestyle": "-."}),
        f"BandMF, {BANDS} bands": (
            optimize_banded_toeplitz(NUM_STEPS, BANDS),
            {"color": RED, "linestyle": (0, (1, 1.2)), "linewidth": 2.0},
        ),
    }


def covariance(strategy: BandedInverse | BandedToeplitz) -> np.ndarray:
    """The covariance of the noise of all steps at mu = 1, in units of the squared clip norm."""
    column = strategy.inverse_column(NUM_STEPS)
    lag = np.subtract.outer(np.arange(NUM_STEPS), np.arange(NUM_STEPS))
    inverse = np.where(lag >= 0, column[np.maximum(lag, 0)], 0.0)
    return float(strategy.sensitivity(NUM_STEPS, PROMISE)) ** 2 * inverse @ inverse.T


def draw() -> Figure:
    """One image of correlations for each strategy, and below the deviation of the running sums."""
    figure = plt.figure(figsize=(7.2, 4.5), layout="constrained")
    parts: Any = figure.subfigures(2, 1, height_ratios=(1.0, 1.05))
    above, below = parts
    images = above.subplots(1, 4)
    sums = below.subplots()
    for axes, (name, (strategy, line)) in zip(images, strategies().items(), strict=True):
        found = covariance(strategy)
        image = _correlations(axes, name, found)
        # A prefix sum's variance is the sum of a square block of the covariance.
        variances = np.cumsum(np.cumsum(found, axis=0), axis=1).diagonal()
        steps = np.arange(1, NUM_STEPS + 1)
        sums.plot(steps, np.sqrt(variances), label=name, **line)
    bar = above.colorbar(image, ax=images, shrink=0.8, aspect=14, ticks=(-0.5, 0, 0.5))
    bar.set_label("correlation")
    sums.set(xlim=(0, NUM_STEPS), ylim=(0, None), xlabel="step", ylabel="stddev of the running sum")
    sums.legend(loc="center right", bbox_to_anchor=(1.0, 0.55), frameon=False)
    sums.grid(alpha=0.25, linewidth=0.5)
    return figure


def _correlations(axes: Axes, name: str, found: np.ndarray) -> Any:
    """The correlations of the first steps, and in words how much noise one step has."""
    deviations = np.sqrt(found.diagonal())
    correlations = found / np.outer(deviations, deviations)
    image = axes.imshow(correlations[:NUM_SHOWN, :NUM_SHOWN], cmap=SIGNED, vmin=-0.6, vmax=0.6)
    axes.set(title=name, xticks=[], yticks=[], xlabel=f"stddev of one step: {deviations[-1]:.1f}")
    axes.spines[:].set_visible(False)
    return image
