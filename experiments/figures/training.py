"""The figure of one run: its accuracy, and what it spent by every accountant."""

from pathlib import Path
from typing import Any

from gdpjax.plotting.style import BELOW, COLUMN, draw_band, figure, scientific

Record = dict[str, Any]
"""What is public of a run after an epoch."""


def save_accuracy_and_epsilon(history: list[Record], delta: float, path: Path) -> None:
    """Draw test accuracy (left) and every epsilon (right) against steps."""
    steps = _column(history, "step")
    with figure(1, 2, size=(2 * COLUMN, 2.8), path=path) as (drawing, (left, right)):
        left.plot(steps, [100 * accuracy for accuracy in _column(history, "test_accuracy")])
        left.set(title="Accuracy", ylabel="test accuracy (%)", ylim=(None, 100))
        bounds = _column(history, "epsilon_lower"), _column(history, "epsilon_upper")
        draw_band(right, steps, *bounds, label="certified interval: lower and upper bound")
        right.plot(steps, _column(history, "epsilon_moments_accountant"), label="moments accountant: upper bound")
        right.plot(steps, _column(history, "epsilon_clt"), label="CLT: asymptotic, may understate")
        right.set(title="Privacy spent", ylabel=rf"$\varepsilon$ at $\delta = {scientific(delta)}$", ylim=(0, None))
        for axes in (left, right):
            axes.set(xlabel="steps", xlim=(0, None))
            axes.grid()
        drawing.legend(loc=BELOW, ncols=2)


def _column(history: list[Record], name: str) -> list[Any]:
    """Return one number of each record."""
    return [record[name] for record in history]
