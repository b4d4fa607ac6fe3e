"""``demo``: the whole path on digits, ending in a report card and a figure."""

import dataclasses

from rich.console import Console

from experiments.config import PRESETS, DemoConfig
from experiments.train.command import run_quietly
from gdpjax.plotting import plot_score
from gdpjax.plotting.style import save_figure
from gdpjax.reporting import report
from gdpjax.sweeps import print_training

FIGURE = "accuracy_and_epsilon.png"


def run(config: DemoConfig) -> None:
    """Train on digits with the defaults of ``train``."""
    console = Console()
    result = run_quietly(dataclasses.replace(PRESETS["digits"], run=config.run), console, "demo")
    print_training(console, result)
    print(report(result.out))
    save_figure(plot_score({"digits": result.history}, delta=result.cost.delta), result.out / FIGURE)
    console.print(f"Figure: {result.out / FIGURE}", soft_wrap=True)
