"""Pictures of the repeated experiments, drawn from the committed result files: nothing is trained here."""

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.console import Console

from experiments.paper import accountant_grid
from experiments.paper.settings import CERTIFIED_NOISE, FIGURE4_EPSILON
from experiments.paper.tables import path_of, read_rows
from gdpjax import accounting
from gdpjax.plotting.style import BLUE, GREEN, RED, look, save_figure
from gdpjax.sweeps import UserError
from gdpjax.sweeps.records import upper as rounded_up
from gdpjax.tradeoff import Gaussian

# The accountants that choose the noise of figure 4, with the colour and the line of each.
CERTIFIED = "certified"
CLT = "CLT"
MOMENTS = "MA"
LINES = {
    CERTIFIED: (BLUE, "-"),
    CLT: (GREEN, "--"),
    MOMENTS: (RED, ":"),
}
FIGURE4_NOISE = {
    20: {CERTIFIED: CERTIFIED_NOISE[20], CLT: 1.06, MOMENTS: 1.3},
    70: {CERTIFIED: CERTIFIED_NOISE[70], CLT: 0.638, MOMENTS: 0.7},
}
"""The noise multiplier that each chooses for `FIGURE4_EPSILON`, by the number of epochs."""

SAMPLING_PROB = 256 / 60_000
STEPS_PER_EPOCH = 60_000 / 256
DELTA = 1e-5

TRAINED = (
    ("mnist", "sigma1.3", "MNIST"),
    ("adult", "adult", "Adult"),
    ("imdb", "imdb", "IMDb"),
    ("movielens", "movielens", "MovieLens"),
)
"""The runs whose trade-off curves are drawn: experiment, row and title."""

LEAST_ALPHA = 1e-10
"""Where the trade-off curves begin: small enough for the CLT's to be below each certified band."""

MARKS: dict[str, dict[str, Any]] = {
    CERTIFIED: {},
    CLT: {"marker": "s", "markersize": 3.5, "markevery": 6},
    MOMENTS: {"marker": "^", "markersize": 4.0, "markevery": 6},
}
"""Three solid lines look alike where they are printed in grey."""

RowsByName = dict[str, dict[str, Any]]


def draw_all(results: Path, output: Path, console: Console) -> None:
    """Draw every figure whose result files are there; UserError where none is."""
    output.mkdir(parents=True, exist_ok=True)
    num_drawn = 0
    for name, draw in FIGURES.items():
        try:
            with look(**{"axes.grid": True}):
                save_figure(draw(results), output / name)
        except FileNotFoundError as error:
            experiment = Path(error.filename).stem.removeprefix("reproduce_")
            console.print(f"[yellow]{name} is left out: it needs {error.filename}", soft_wrap=True)
            console.print(f"  which comes from: python -m experiments reproduce {experiment}", soft_wrap=True)
            continue
        console.print(f"Figure: {output / name}", soft_wrap=True)
        num_drawn += 1
    if not num_drawn:
        raise UserError(f"no result file in {results}; run: python -m experiments reproduce all")


def read(results: Path, name: str) -> RowsByName:
    """Return the rows of a result file that have a finished run; FileNotFoundError without a file."""
    path = path_of(results, name)
    if not path.exists():
        raise FileNotFoundError(errno.ENOENT, "no result file", str(path))
    return {row["name"]: row for row in read_rows(path) if row["runs"]}


# ---- Figure 4: three accountants choose the noise for one epsilon ----


def figure4(results: Path) -> Figure:
    """Draw a column for each length: accuracy against epochs and against what was spent, and what was said of it."""
    rows = read(results, "figure4")
    lengths = []
    for epochs in FIGURE4_NOISE:
        if any(f"epochs{epochs}" in name for name in rows):
            lengths.append(epochs)

    size = (3.9 * len(lengths), 8.2)
    figure = Figure(size, layout="constrained")
    axes = figure.subplots(3, len(lengths), squeeze=False)
    for (by_epoch, by_cost, epsilons), epochs in zip(axes.T, lengths, strict=True):
        epsilon = FIGURE4_EPSILON[epochs]
        _draw_accuracy(by_epoch, rows, epochs, across="epoch")
        by_epoch.set_xlabel("epochs")
        by_epoch.set_title(f"{epochs} epochs, said to be ({epsilon}, 1e-5)-DP")
        by_epoch.legend(loc="lower right", frameon=True, framealpha=1, edgecolor="none")

        # The lines are those of the axes above, whose legend is enough.
        _draw_accuracy(by_cost, rows, epochs, across="epsilon_upper")
        _draw_promise(by_cost, epsilon)
        by_cost.set_xlabel(r"certified $\varepsilon$ spent")
        by_cost.set_title("accuracy for what was spent")

        _draw_epsilons(epsilons, epochs)
        epsilons.set_title("spent (solid), and said to be spent")
    return figure


def _name_of(noise: float, epochs: int) -> str:
    """Return the name of a run's row in the result file."""
    return f"sigma{noise:g}-epochs{epochs}"


def _draw_accuracy(axes: Axes, rows: RowsByName, epochs: int, across: str) -> None:
    """Draw the accuracy of each run that is there, against one of its metrics."""
    highest = []
    early = []
    for accountant, noise in FIGURE4_NOISE[epochs].items():
        row = rows.get(_name_of(noise, epochs))
        if row is None:
            continue
        history = row["runs"][0]["epochs"]
        places = [epoch[across] for epoch in history]
        accuracies = [100 * epoch["test_accuracy"] for epoch in history]
        color, line = LINES[accountant]
        label = rf"$\sigma$ = {noise:g}, by {accountant}: {accuracies[-1]:.2f} %"
        axes.plot(places, accuracies, line, color=color, label=label, linewidth=1.4)
        highest.append(max(accuracies))
        early.append(accuracies[len(accuracies) // 5])

    # From below what the runs have after a fifth of the epochs, with room for the legend.
    axes.set_ylabel("test accuracy (%)")
    axes.set_ylim(min(early) - 9, max(highest) + 0.7)


def _draw_promise(axes: Axes, epsilon: float) -> None:
    """Draw a vertical line at the epsilon for which the noise was chosen, and write beside it what it is."""
    axes.axvline(epsilon, color="0.4", linewidth=0.8)
    just_left_of_it = (-4, 0)
    axes.annotate(
        "said to be spent",
        (epsilon, 0.05),
        just_left_of_it,
        xycoords=axes.get_xaxis_transform(),
        textcoords="offset points",
        ha="right",
    )


def _draw_epsilons(axes: Axes, epochs: int) -> None:
    """Draw the certified interval of each run, and what the accountant that chose its noise says of it."""
    # At whole steps.
    times = np.linspace(0.25, epochs, 40)
    steps = np.unique(np.round(times * STEPS_PER_EPOCH)).astype(int)
    at = steps / STEPS_PER_EPOCH
    for accountant, noise in FIGURE4_NOISE[epochs].items():
        color, line = LINES[accountant]
        marks = MARKS[accountant]
        run = (noise, SAMPLING_PROB, steps, DELTA)

        # What is certified.
        bounds = accounting.epsilon_bounds(*run)
        lower = np.asarray(bounds.lower)
        upper = np.asarray(bounds.upper)
        axes.fill_between(at, lower, upper, color=color, alpha=0.3, linewidth=0)
        label = rf"$\sigma$ = {noise:g}, certified"
        axes.plot(at, upper, "-", color=color, linewidth=1.4, label=label, **marks)

        # What the accountant says.
        if accountant == CLT:
            said = accounting.clt_epsilon(*run)
        elif accountant == MOMENTS:
            said = accounting.moments_accountant_epsilon(*run, conversion="classic")
        else:
            continue
        label = rf"$\sigma$ = {noise:g}, {accountant} says"
        axes.plot(at, np.asarray(said), line, color=color, linewidth=1.4, label=label, **marks)
    axes.axhline(FIGURE4_EPSILON[epochs], color="0.4", linewidth=0.8)

    # Room above the curves for the legend.
    highest = max(float(np.max(line.get_ydata())) for line in axes.lines)
    axes.set(xlabel="epochs", xlim=(0, epochs))
    axes.set(ylabel=r"$\varepsilon$ at $\delta = 10^{-5}$", ylim=(0, 1.55 * highest))
    axes.legend(loc="upper left", ncols=2, handlelength=1.8, columnspacing=1.0)


# ---- Trade-off curves of the trained models ----


def tradeoff(results: Path) -> Figure:
    """Draw the power of the best test against each trained model: what the CLT says, and the certified band."""
    size = (7.1, 7.0)
    figure = Figure(size, layout="constrained")
    grid = figure.subplots(2, 2)
    for axes, (experiment, name, title) in zip(grid.flat, TRAINED, strict=True):
        _draw_power(axes, read(results, experiment)[name], title)
        axes.legend(loc="lower right")
    return figure


def _draw_power(axes: Axes, row: dict[str, Any], title: str) -> None:
    """Draw the power of tests against one model, by the CLT and certified."""
    cost = row["runs"][0]["result"]["privacy"]
    run = (cost["noise_multiplier"], cost["sampling_prob"], cost["num_steps"])

    # The power of a test is 1 - f(alpha).
    alpha = np.geomspace(LEAST_ALPHA, 1, 60)
    bounds = accounting.tradeoff_bounds(*run, alpha)
    least = 1 - np.asarray(bounds.upper)
    most = 1 - np.asarray(bounds.lower)
    estimated = 1 - np.asarray(Gaussian(cost["mu_clt"])(alpha))

    # The band is so narrow that its edge is what is seen of it, also in the gaps of a thin dashed line above it.
    axes.plot(alpha, alpha, ":", color="0.4", linewidth=1, label="perfect privacy")
    axes.fill_between(alpha, least, most, color=BLUE, linewidth=2.6, label="certified band")
    axes.plot(alpha, estimated, color="black", linewidth=1.1, linestyle=(0, (5, 4)), label="CLT")

    # What the model achieves, and what it costs.
    found = row["found"]
    score = f"{100 * found['test_accuracy']['mean']:.1f} %"
    if "test_rmse" in found:
        score = f"RMSE {found['test_rmse']['mean']:.3f}"
    epsilon = rounded_up(cost["epsilon_upper"], 2)
    axes.set_title(f"{title}, {score}\n$\\mu$ = {cost['mu_clt']:.2f}, $\\varepsilon \\leq$ {epsilon}")
    axes.set(xlabel=r"type I error $\alpha$", xscale="log", xlim=(LEAST_ALPHA, 1))
    axes.set(ylabel=r"power $1 - f(\alpha)$", yscale="log", ylim=(LEAST_ALPHA, 1.3), aspect="equal")


# ---- The accountants over a grid ----


def accountants(results: Path) -> Figure:
    """Draw how far the CLT and the moments accountant are from the truth."""
    return accountant_grid.draw(accountant_grid.write_table(results))


FIGURES: dict[str, Callable[[Path], Figure]] = {
    "figure4.png": figure4,
    "trained_tradeoff.png": tradeoff,
    "accountants.png": accountants,
}
"""By the name of the file."""
