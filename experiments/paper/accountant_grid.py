"""The central limit theorem and the moments accountant against the certified truth, over a wide grid.

Every cell is one setting of a training, accounted for and not trained: noise multiplier, batch as a part of the data,
epochs; delta = 1e-5. The table is a CSV file beside the other results.
"""

import csv
import itertools
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.colors import TwoSlopeNorm
from matplotlib.figure import Figure
from matplotlib.image import AxesImage

from gdpjax import accounting

NOISE = (0.5, 0.55, 0.6, 0.7, 0.8, 1.0, 1.3, 2.0, 4.0)
PROB = (0.001, 256 / 60_000, 0.0125, 0.05)
EPOCHS = (1, 5, 15, 50, 100, 400)
DELTA = 1e-5
COLUMNS = (
    "noise_multiplier", "sampling_prob", "epochs", "num_steps", "mu_clt", "epsilon_clt", "epsilon_classic",
    "epsilon_moments_accountant", "epsilon_lower", "epsilon_upper",
)  # fmt: skip
FILE = "accountants_grid.csv"

Table = dict[str, np.ndarray]


def compute() -> Table:
    """All cells, each accountant in one batch."""
    noise, prob, epochs = map(np.array, zip(*itertools.product(NOISE, PROB, EPOCHS), strict=True))
    steps = np.array([accounting.steps_of_epochs(e, 1, p) for e, p in zip(epochs, prob, strict=True)])
    run = (noise, prob, steps)
    lower, upper = accounting.epsilon_bounds(*run, DELTA)
    columns = (
        *(noise, prob, epochs, steps),
        accounting.clt_mu_poisson(*run),
        accounting.clt_epsilon(*run, DELTA),
        accounting.moments_accountant_epsilon(*run, DELTA, conversion="classic"),
        accounting.moments_accountant_epsilon(*run, DELTA),
        *(lower, upper),
    )
    return {name: np.asarray(column, np.float64) for name, column in zip(COLUMNS, columns, strict=True)}


def table(results: Path) -> Table:
    """Compute the table and write it."""
    found = compute()
    results.mkdir(parents=True, exist_ok=True)
    with (results / FILE).open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        for row in zip(*found.values(), strict=True):
            writer.writerow(f"{value:.6g}" for value in row)
    return found


def errors(found: Table) -> dict[str, np.ndarray]:
    """What each accountant says over the certified interval's middle, less one; negative understates."""
    truth = (found["epsilon_lower"] + found["epsilon_upper"]) / 2
    names = {"CLT": "epsilon_clt", "moments accountant (classic)": "epsilon_classic"}
    return {label: found[name] / truth - 1 for label, name in names.items()}


def _luminance(color: Sequence[float]) -> float:
    """Of sRGB, by the usual weights: dark letters are read on what is light."""
    return float(np.dot(color[:3], (0.299, 0.587, 0.114)))


def draw(found: Table) -> Figure:
    """A column of heat maps for each accountant, a row for each sampling probability."""
    columns = errors(found)
    size = (len(PROB), len(columns))
    figure, axes = plt.subplots(*size, figsize=(7.8, 2.7 * len(PROB)), layout="constrained", sharex=True, sharey=True)
    norm, shape = TwoSlopeNorm(0, -60, 60), (len(NOISE), len(PROB), len(EPOCHS))
    image = None
    for number, (label, error) in enumerate(columns.items()):
        for row, prob in enumerate(PROB):
            each = axes[row, number]
            percent = 100 * error.reshape(shape)[:, row]
            image = each.imshow(percent, cmap="PuOr_r", norm=norm, aspect="auto", origin="lower")
            _write_numbers(each, image, percent)
            each.set(xticks=range(len(EPOCHS)), yticks=range(len(NOISE)))
            each.set_xticklabels([str(epochs) for epochs in EPOCHS])
            each.set_yticklabels([f"{noise:g}" for noise in NOISE])
            each.grid(visible=False)
            each.set_title(f"{label}, sampling probability {prob:.3g}", fontsize=9.5)
    for each in axes[:, 0]:
        each.set_ylabel(r"noise multiplier $\sigma$")
    for each in axes[-1]:
        each.set_xlabel("epochs")
    assert image is not None
    bar = figure.colorbar(image, ax=axes, extend="both", location="bottom", shrink=0.7, aspect=40)
    bar.set_label(r"$\varepsilon$ said / certified $\varepsilon$ - 1 (%); below 0 it is understated")
    return figure


def _write_numbers(axes: Axes, image: AxesImage, percent: np.ndarray) -> None:
    """Write each cell's number into it."""
    for (y, x), value in np.ndenumerate(percent):
        color = "white" if _luminance(tuple(image.to_rgba(value))) < 0.5 else "black"
        axes.text(x, y, f"{value:+.0f}", ha="center", va="center", fontsize=8.5, color=color)
