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
    with figure_at(path, 1, 2, figsize=(7.2, 2.9)) as (_, (left, right)):
        _draw_accuracy(left, history)
        draw_grid(left)
        _draw_epsilons(right, history, delta)
        draw_grid(right)


def _draw_accuracy(axes: Axes, history: list[Record]) -> None:
    """Draw the test accuracy against steps."""
    accuracies = [100 * record["test_accuracy"] for record in history]
    axes.plot(_column(history, "step"), accuracies, color="black", **MARKER)
    axes.set_title("Accuracy")
    axes.set_xlabel("steps")
    axes.set_ylabel("test accuracy (%)")
    axes.set(xlim=(0, None), ylim=(None, 100))


def _draw_epsilons(axes: Axes, history: list[Record], delta: float) -> None:
    """Draw a line for each accountant, and the certified interval as a band with its upper end as a line."""
    steps = _column(history, "step")
    moments = _column(history, "epsilon_moments_accountant")
    axes.plot(steps, moments, "--", color=RED, label="moments accountant (upper bound)", **MARKER)
    estimates = _column(history, "epsilon_clt")
    axes.plot(steps, estimates, ":", color=ORANGE, label="CLT (asymptotic, may understate)", **MARKER)

    # The certified interval.
    lower = _column(history, "epsilon_lower")
    upper = _column(history, "epsilon_upper")
    axes.fill_between(steps, lower, upper, color=CERTIFIED_COLOR, alpha=0.3)
    axes.plot(steps, upper, color=CERTIFIED_COLOR, label="certified interval (upper end)", **MARKER)

    axes.set_title("Privacy spent")
    axes.set_xlabel("steps")
    axes.set_ylabel(rf"$\varepsilon$ at $\delta = {scientific(delta)}$")
    highest = max(moments[-1], estimates[-1], upper[-1])
    axes.set(xlim=(0, None), ylim=(0, HEADROOM * highest))
    axes.legend(loc="upper left", borderaxespad=0, framealpha=1, edgecolor="none")


def _column(history: list[Record], name: str) -> list[Any]:
    """Return one number of each record."""
    return [record[name] for record in history]
