"""The command ``python -m experiments reproduce``."""

from rich.console import Console
from rich.markdown import Markdown

from experiments.config import ReproduceConfig
from experiments.paper import figures, imdb_clipping, runs, tables
from experiments.paper.settings import EXPERIMENTS


def run(config: ReproduceConfig) -> None:
    """Train what is missing, or only draw."""
    console = Console()
    if config.what == "figures":
        figures.draw_all(config.results, config.figures, console)
    elif config.what == "imdb-clipping":
        imdb_clipping.write(config.results, console)
    elif config.what == "all":
        for name in EXPERIMENTS:
            _reproduce(name, config, console)
    else:
        _reproduce(config.what, config, console)


def _reproduce(name: str, config: ReproduceConfig, console: Console) -> None:
    """Train what is missing of one experiment, and write its result file with its table."""
    rows = [row for row in EXPERIMENTS[name] if row.name in config.rows or not config.rows]
    planned = runs.plan_runs(rows, config.runs / name, config.seeds)
    runs.refuse_others(planned)
    path = tables.path_of(config.results, name)

    # A damaged result file is refused before hours of training, not after.
    tables.recorded(path, EXPERIMENTS[name])
    if not config.report:
        runs.train_missing(planned, console)

    # What is in the folders takes the place of what the result file has.
    in_folders = runs.finished_runs(planned)
    in_file = tables.recorded(path, EXPERIMENTS[name])
    result = tables.result_of(name, planned, in_file | in_folders)
    tables.write(path, result)
    console.print(Markdown(tables.markdown(result)))
    num_kept = len(in_file.keys() - in_folders.keys())
    if num_kept:
        console.print(f"{num_kept} of the runs are as {path} had them, not from {config.runs}.", soft_wrap=True)
    console.print(f"Result: {path}", soft_wrap=True)
