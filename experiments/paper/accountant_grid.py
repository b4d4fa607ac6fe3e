"""The central limit theorem and the moments accountant against the certified truth, over a wide grid.

Every cell is one setting of a training, accounted for and not trained: noise multiplier, batch as a part of the data,
epochs; delta = 1e-5. The table is a CSV file beside the other results.
"""

import io
import itertools
import math
from pathlib import Path

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.colors import TwoSlopeNorm
from matplotlib.figure import Figure

from gdpjax import accounting
from gdpjax.sweeps import records

NOISE = (0.5, 0.55, 0.6, 0.7, 0.8, 1.0, 1.3, 2.0, 4.0)
PROB = (0.001, 256 / 60_000, 0.0125, 0.05)
EPOCHS = (1, 5, 15, 50, 100, 400)
DELTA = 1e-5
FILE = "accountants_grid.csv"

LARGEST_ERROR = 60
"""In percent: larger ones have the same colour."""
LIGHT = (-35, 42)
"""In percent: between these black letters are read on the colour, and beyond them white ones."""

Table = dict[str, Float[np.ndarray, " cells"]]
"""Columns by name, a number for each cell; the sampling probability moves slower than the epochs."""


def compute() -> Table:
    """Compute all cells, each accountant in one batch."""
    # A column for each setting, and the number of steps of each cell.
    cells = list(itertools.product(NOISE, PROB, EPOCHS))
    noise, prob, epochs = (np.array(column) for column in zip(*cells, strict=True))
    num_steps = []
    for _, prob_of_cell, epochs_of_cell in cells:
        num_steps.append(max(math.floor(epochs_of_cell / prob_of_cell + 0.5), 1))
    steps = np.array(num_steps)

    # What each accountant says.
    run = (noise, prob, steps)
    lower, upper = accounting.epsilon_bounds(*run, DELTA)
    columns = {
        "noise_multiplier": noise,
        "sampling_prob": prob,
        "epochs": epochs,
        "num_steps": steps,
        "mu_clt": accounting.clt_mu_poisson(*run),
        "epsilon_clt": accounting.clt_epsilon(*run, DELTA),
        "epsilon_classic": accounting.moments_accountant_epsilon(*run, DELTA, conversion="classic"),
        "epsilon_moments_accountant": accounting.moments_accountant_epsilon(*run, DELTA),
        "epsilon_lower": lower,
        "epsilon_upper": upper,
    }
    return {name: np.asarray(column, np.float64) for name, column in columns.items()}


def write_table(results: Path) -> Table:
    """Compute the table, write it as CSV, and return it."""
    table = compute()
    text = io.StringIO()
    np.savetxt(text, np.transpose([*table.values()]), "%.6g", ",", header=",".join(table), comments="")
    results.mkdir(parents=True, exist_ok=True)
    records.write_atomically(results / FILE, text.getvalue())
    return table


def relative_errors(table: Table) -> Table:
    """Return what each accountant says over the middle of the certified interval, less one; negative understates."""
    certified = (table["epsilon_lower"] + table["epsilon_upper"]) / 2
    return {
        "CLT": table["epsilon_clt"] / certified - 1,
        "moments accountant (classic)": table["epsilon_classic"] / certified - 1,
    }


def draw(table: Table) -> Figure:
    """Draw a column of heat maps for each accountant, a row for each sampling probability."""
    errors = relative_errors(table)
    size = (7.1, 2.5 * len(PROB))
    figure = Figure(size, layout="constrained")
    axes = figure.subplots(len(PROB), len(errors), sharex=True, sharey=True, squeeze=False)
    for column, (accountant, error) in enumerate(errors.items()):
        percent = 100 * error.reshape(len(NOISE), len(PROB), len(EPOCHS))
        for row in range(len(PROB)):
            _draw_map(axes[row, column], percent[:, row])
        axes[0, column].set_title(accountant)

    # Labels at the left and at the bottom, and one bar of colours.
    for left, prob in zip(axes[:, 0], PROB, strict=True):
        left.set_ylabel(f"sampling probability {prob:.3g}\n" + r"noise multiplier $\sigma$")
    for lowest in axes[-1]:
        lowest.set_xlabel("epochs")
    colours = axes[0, 0].images[0]
    bar = figure.colorbar(colours, ax=axes, extend="both", location="bottom", pad=0.02, shrink=0.7, aspect=40)
    bar.set_label(r"$\varepsilon$ said / certified $\varepsilon$ - 1 (%); below 0 it is understated")
    return figure


def _draw_map(axes: Axes, percent: Float[np.ndarray, "noise epochs"]) -> None:
    """Draw one heat map, each cell with its number."""
    norm = TwoSlopeNorm(0, -LARGEST_ERROR, LARGEST_ERROR)
    axes.imshow(percent, cmap="PuOr_r", norm=norm, aspect="auto", origin="lower")
    for (y, x), value in np.ndenumerate(percent):
        color = "black" if LIGHT[0] < value < LIGHT[1] else "white"
        axes.text(x, y, f"{value:+.0f}", ha="center", va="center", fontsize=7, color=color)
    axes.set_xticks(range(len(EPOCHS)), [str(epochs) for epochs in EPOCHS])
    axes.set_yticks(range(len(NOISE)), [f"{noise:g}" for noise in NOISE])
    axes.grid(visible=False)
