"""Figures of runs, drawn without a display."""

from pathlib import Path
from typing import Any

from matplotlib.axes import Axes

from gdpjax.sweeps.style import CERTIFIED_COLOR, draw_grid, figure_at, scientific

# a palette that survives colour blindness (Okabe and Ito) and greyscale, by line style
CURVES = (
    ("epsilon_moments_accountant", "moments accountant (upper bound)", "#D55E00", "--"),
    ("epsilon_clt", "CLT (asymptotic, may understate)", "#E69F00", ":"),
)
MARKER: dict[str, Any] = {"marker": ".", "markersize": 4}


def save_accuracy_and_epsilon(history: list[dict[str, Any]], delta: float, path: Path) -> None:
    """Test accuracy (left) and every epsilon (right) against steps, from the public records of a run."""
    steps = [record["step"] for record in history]
    accuracies = [100 * record["test_accuracy"] for record in history]
    with figure_at(path, 1, 2, figsize=(7.2, 2.9)) as (_, (left, right)):
        left.plot(steps, accuracies, color="black", **MARKER)
        left.set(xlabel="steps", ylabel="test accuracy (%)", title="Accuracy", xlim=(0, None), ylim=(None, 100))
        _draw_epsilons(right, history, steps)
        right.set(xlabel="steps", ylabel=rf"$\varepsilon$ at $\delta = {scientific(delta)}$", title="Privacy spent")
        # the curves are concave from the origin: with some headroom the upper left is free for the legend
        right.set(xlim=(0, None), ylim=(0, 1.45 * max(line.get_ydata()[-1] for line in right.lines)))
        right.legend(loc="upper left", borderaxespad=0, framealpha=1, edgecolor="none")
        for axes in (left, right):
            draw_grid(axes)


def _draw_epsilons(axes: Axes, history: list[dict[str, Any]], steps: list[int]) -> None:
    for name, label, color, style in CURVES:
        axes.plot(steps, [record[name] for record in history], style, color=color, label=label, **MARKER)
    lower, upper = ([record[name] for record in history] for name in ("epsilon_lower", "epsilon_upper"))
    axes.fill_between(steps, lower, upper, color=CERTIFIED_COLOR, alpha=0.3)
    axes.plot(steps, upper, color=CERTIFIED_COLOR, **MARKER, label="certified interval (upper end)")
