"""The figure of one run: its accuracy, and what it spent by every accountant."""

from pathlib import Path
from typing import Any

from matplotlib.axes import Axes

from experiments.figures.style import ORANGE, RED
from gdpjax.sweeps.style import CERTIFIED_COLOR, draw_grid, figure_at, scientific

Record = dict[str, Any]
"""What is public of a run after an epoch."""

MARKER: dict[str, Any] = {"marker": ".", "markersize": 4}
HEADROOM = 1.45
"""The curves of epsilon are concave from the origin: with some headroom the upper left is free for the legend."""


def save_accuracy_and_epsilon(history: list[Record], delta: float, path: Path) -> None:
    """Draw test accuracy (left) and every epsilon (right) against steps."""
    steps = [record["step"] for record in history]
    accuracies = [100 * record["test_accuracy"] for record in history]

    with figure_at(path, 1, 2, figsize=(7.2, 2.9)) as (_, (left, right)):
        left.plot(steps, accuracies, color="black", **MARKER)
        left.set(title="Accuracy", xlabel="steps", ylabel="test accuracy (%)")
        left.set(xlim=(0, None), ylim=(None, 100))

        _draw_epsilons(right, history, steps)
        right.set(title="Privacy spent", xlabel="steps", ylabel=rf"$\varepsilon$ at $\delta = {scientific(delta)}$")
        highest = max(line.get_ydata()[-1] for line in right.lines)
        right.set(xlim=(0, None), ylim=(0, HEADROOM * highest))
        right.legend(loc="upper left", borderaxespad=0, framealpha=1, edgecolor="none")

        for axes in (left, right):
            draw_grid(axes)


def _draw_epsilons(axes: Axes, history: list[Record], steps: list[int]) -> None:
    """Draw a line for each accountant, and the certified interval as a band with its upper end as a line."""
    moments = [record["epsilon_moments_accountant"] for record in history]
    axes.plot(steps, moments, "--", color=RED, label="moments accountant (upper bound)", **MARKER)
    estimates = [record["epsilon_clt"] for record in history]
    axes.plot(steps, estimates, ":", color=ORANGE, label="CLT (asymptotic, may understate)", **MARKER)

    lower = [record["epsilon_lower"] for record in history]
    upper = [record["epsilon_upper"] for record in history]
    axes.fill_between(steps, lower, upper, color=CERTIFIED_COLOR, alpha=0.3)
    axes.plot(steps, upper, color=CERTIFIED_COLOR, label="certified interval (upper end)", **MARKER)
