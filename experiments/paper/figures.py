"""Pictures of the repeated experiments, drawn from the committed result files: nothing is trained here."""

import errno
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

import numpy as np
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image
from rich.console import Console

from experiments.errors import UserError
from experiments.paper import accountant_grid
from experiments.paper.settings import CERTIFIED_NOISE, FIGURE4_EPSILON
from experiments.paper.tables import path_of, read_rows
from gdpjax import accounting
from gdpjax.sweeps.rounding import upper as rounded_up

BLUE, ORANGE, RED, GREEN = "#0072B2", "#E69F00", "#D55E00", "#009E73"  # Okabe and Ito
STYLE: Any = {
    "font.size": 9, "axes.spines.top": False, "axes.spines.right": False, "legend.frameon": False, "axes.grid": True,
    "grid.alpha": 0.25, "grid.linewidth": 0.5,
}  # fmt: skip
CHOSEN_BY = {"certified": (BLUE, "-"), "CLT": (ORANGE, "--"), "MA": (RED, ":")}
MARKS: dict[str, dict[str, Any]] = {
    "certified": {},
    "CLT": {"marker": "s", "markersize": 3.5, "markevery": 6},
    "MA": {"marker": "^", "markersize": 4.0, "markevery": 6},
}
NOISE = {20: {"MA": 1.3, "CLT": 1.06}, 70: {"MA": 0.7, "CLT": 0.638}}
PROB, STEPS_PER_EPOCH, DELTA = 256 / 60_000, 60_000 / 256, 1e-5


def draw_all(results: Path, output: Path, console: Console) -> None:
    """Every figure whose result files are there; UserError where none is."""
    output.mkdir(parents=True, exist_ok=True)
    drawn = 0
    with plt.rc_context(STYLE):
        for name, draw in FIGURES.items():
            try:
                figure = draw(results)
            except FileNotFoundError as error:
                experiment = Path(error.filename).stem.removeprefix("reproduce_")
                console.print(f"[yellow]{name} is left out: it needs {error.filename}", soft_wrap=True)
                console.print(f"  which comes from: python -m experiments reproduce {experiment}", soft_wrap=True)
                continue
            _save(figure, output / name)
            plt.close(figure)
            console.print(f"Figure: {output / name}", soft_wrap=True)
            drawn += 1
    if (results / "reproduce_figure4.json").is_file():
        print_sequel(results, console)
    if not drawn:
        raise UserError(f"no result file in {results}; run: python -m experiments reproduce all")


def _save(figure: Figure, path: Path) -> None:
    """A PNG file of 64 colours, which is a third of the size and looks the same."""
    buffer = io.BytesIO()
    figure.savefig(buffer, dpi=97, bbox_inches="tight")
    image = Image.open(buffer).convert("RGB").quantize(64, dither=Image.Dither.NONE)
    image.save(path, optimize=True)


def read(results: Path, name: str) -> dict[str, dict[str, Any]]:
    """The rows of a result file by name, those without a finished run left out; FileNotFoundError without a file."""
    path = path_of(results, name)
    if not path.exists():
        raise FileNotFoundError(errno.ENOENT, "no result file", str(path))
    rows = read_rows(path)
    return {row["name"]: row for row in rows if row["runs"]}


def figure4(results: Path) -> Figure:
    """Accuracy against epochs, accuracy against what was really spent, and what accountants say; a column a length."""
    rows = read(results, "figure4")
    lengths = [epochs for epochs in NOISE if any(f"epochs{epochs}" in name for name in rows)]
    figure, axes = plt.subplots(3, len(lengths), figsize=(3.9 * len(lengths), 8.2), layout="constrained", squeeze=False)
    for column, epochs in zip(axes.T, lengths, strict=True):
        noise = _noise(epochs)
        found = {by: rows.get(f"sigma{sigma:g}-epochs{epochs}") for by, sigma in noise.items()}
        _accuracy(column[0], found, noise, lambda e: e["epoch"], "epochs")
        _accuracy(column[1], found, noise, lambda e: e["epsilon_upper"], r"certified $\varepsilon$ spent")
        column[1].axvline(FIGURE4_EPSILON[epochs], color="0.4", linewidth=0.8)
        _epsilons(column[2], noise, epochs)
        column[0].set_title(f"{epochs} epochs, said to be ({FIGURE4_EPSILON[epochs]}, 1e-5)-DP")
        column[1].set_title("accuracy for what was spent")
        column[2].set_title("spent (solid), and said to be spent")
    return figure


def at_equal_cost(rows: dict[str, dict[str, Any]], epochs: int) -> dict[str, Any]:
    """Each run's accuracy at its last epoch within what the cheapest one cost, certified; empty if one is absent."""
    names = {by: f"sigma{sigma:g}-epochs{epochs}" for by, sigma in _noise(epochs).items()}
    if not set(names.values()) <= set(rows):
        return {}
    histories = {by: rows[name]["runs"][0]["epochs"] for by, name in names.items()}
    epsilon = min(history[-1]["epsilon_upper"] for history in histories.values())
    last = {by: [e for e in history if e["epsilon_upper"] <= epsilon][-1] for by, history in histories.items()}
    return {"epsilon": epsilon} | {by: each["test_accuracy"] for by, each in last.items()}


def print_sequel(results: Path, console: Console) -> None:
    """What each accountant's choice of noise buys for the same certified epsilon."""
    rows = read(results, "figure4")
    for epochs in NOISE:
        if found := at_equal_cost(rows, epochs):
            bought = ", ".join(f"{by} {100 * found[by]:.2f} %" for by in CHOSEN_BY)
            epsilon = rounded_up(found["epsilon"], 3)
            console.print(f"Figure 4, {epochs} epochs, at certified epsilon {epsilon}: noise by {bought}")


def _noise(epochs: int) -> dict[str, float]:
    return {"certified": CERTIFIED_NOISE[epochs], **NOISE[epochs]}


def _accuracy(
    axes: Axes, found: dict[str, dict[str, Any] | None], noise: dict[str, float], across: Callable[[Any], float],
    label: str,
) -> None:  # fmt: skip
    tops, starts = [], []
    for by, (color, style) in CHOSEN_BY.items():
        row = found[by]
        if row is None:
            continue
        epochs = row["runs"][0]["epochs"]
        accuracy = [100 * e["test_accuracy"] for e in epochs]
        name = rf"$\sigma$ = {noise[by]:g}, by {by}: {accuracy[-1]:.2f} %"
        axes.plot([across(e) for e in epochs], accuracy, style, color=color, label=name, linewidth=1.4)
        tops.append(max(accuracy))
        starts.append(accuracy[len(accuracy) // 5])
    axes.set(xlabel=label, ylabel="test accuracy (%)", ylim=(min(starts) - 9, max(tops) + 0.7))
    axes.legend(loc="lower right", fontsize=8.5, frameon=True, framealpha=1, edgecolor="none")


def _epsilons(axes: Axes, noise: dict[str, float], epochs: int) -> None:
    """The certified interval of each run, and what the accountant that chose its noise says of it."""
    steps = np.unique(np.round(np.linspace(0.25, epochs, 40) * STEPS_PER_EPOCH)).astype(int)
    at = steps / STEPS_PER_EPOCH
    for by, (color, style) in CHOSEN_BY.items():
        sigma = noise[by]
        marks: Any = MARKS[by]  # three solid lines look alike where they are printed in grey
        lower, upper = (np.asarray(end) for end in accounting.epsilon_bounds(sigma, PROB, steps, DELTA))
        axes.fill_between(at, lower, upper, color=color, alpha=0.3, linewidth=0)
        axes.plot(at, upper, color=color, linewidth=1.4, label=rf"$\sigma$ = {sigma:g}, certified", **marks)
        if by == "CLT":
            said = accounting.clt_epsilon(sigma, PROB, steps, DELTA)
        elif by == "MA":
            said = accounting.moments_accountant_epsilon(sigma, PROB, steps, DELTA, conversion="classic")
        else:
            continue
        label = rf"$\sigma$ = {sigma:g}, {by} says"
        axes.plot(at, np.asarray(said), style, color=color, linewidth=1.4, label=label, **marks)
    axes.axhline(FIGURE4_EPSILON[epochs], color="0.4", linewidth=0.8)

    # Room above the curves for the legend.
    top = max(float(np.max(line.get_ydata())) for line in axes.lines)
    axes.set(xlabel="epochs", ylabel=r"$\varepsilon$ at $\delta = 10^{-5}$", xlim=(0, epochs), ylim=(0, 1.55 * top))
    axes.legend(loc="upper left", fontsize=8, ncols=2, handlelength=1.8, columnspacing=1.0)


def tradeoff(results: Path) -> Figure:
    """Trade-off curves of the trained models, as the power of the best test: what the CLT says, the certified band."""
    wanted = (("mnist", "sigma1.3", "MNIST"), ("adult", "adult", "Adult"), ("imdb", "imdb", "IMDb"),
              ("movielens", "movielens", "MovieLens"))  # fmt: skip
    figure, axes = plt.subplots(1, len(wanted), figsize=(2.7 * len(wanted), 2.9), layout="constrained")
    for each, (name, row, title) in zip(axes, wanted, strict=True):
        _curve(each, read(results, name)[row], title)
    axes[0].legend(loc="lower right")
    return figure


def _curve(axes: Axes, row: dict[str, Any], title: str) -> None:
    cost = row["runs"][0]["result"]["privacy"]
    run = (cost["noise_multiplier"], cost["sampling_prob"], cost["num_steps"])
    alpha = np.geomspace(1e-6, 1, 40)
    lower, upper = (np.asarray(end) for end in accounting.tradeoff_bounds(*run, alpha))
    axes.plot(alpha, alpha, color="0.75", linewidth=0.8)
    axes.fill_between(alpha, 1 - upper, 1 - lower, color=BLUE, alpha=0.5, linewidth=1.4, label="certified")
    clt = 1 - np.asarray(accounting.gdp_tradeoff(alpha, cost["mu_clt"]))
    axes.plot(alpha, clt, "--", color=ORANGE, label="CLT")
    found = row["found"]
    score = (
        f"RMSE {found['test_rmse']['mean']:.3f}"
        if "test_rmse" in found
        else f"{100 * found['test_accuracy']['mean']:.1f} %"
    )
    epsilon = rounded_up(cost["epsilon_upper"], 2)
    label = f"{title}, {score}\n$\\mu$ = {cost['mu_clt']:.2f}, $\\varepsilon \\leq$ {epsilon}"
    axes.set(xlabel=r"type I error $\alpha$", ylabel=r"power $1 - f(\alpha)$", xscale="log", yscale="log", title=label)
    axes.set(xlim=(1e-6, 1), ylim=(1e-6, 1.3), aspect="equal")


def grid(results: Path) -> Figure:
    """How far the CLT and the moments accountant are from the truth."""
    return accountant_grid.draw(accountant_grid.table(results))


FIGURES: dict[str, Callable[[Path], Figure]] = {
    "figure4.png": figure4,
    "trained_tradeoff.png": tradeoff,
    "accountants.png": grid,
}
