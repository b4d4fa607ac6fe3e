"""What ``python -m experiments reproduce`` does."""

from rich.console import Console
from rich.markdown import Markdown

from experiments.config import ReproduceConfig
from experiments.errors import UserError
from experiments.paper import figures, imdb_clipping, runs, tables
from experiments.paper.settings import EXPERIMENTS


def run(config: ReproduceConfig) -> None:
    """Train what is missing, or only draw."""
    if config.seeds is not None and config.seeds < 1:
        raise UserError(f"seeds must be a whole number >= 1, got {config.seeds}")
    _refuse_unknown(config)
    console = Console()
    if config.what == "figures":
        figures.draw_all(config.results, config.figures, console)
        return
    if config.what == "imdb-clipping":
        imdb_clipping.write(config.results, console)
        return
    for name in EXPERIMENTS if config.what == "all" else (config.what,):
        _experiment(name, config, console)


def _refuse_unknown(config: ReproduceConfig) -> None:
    known = [row.name for row in EXPERIMENTS.get(config.what, ())]
    if unknown := sorted(set(config.rows) - set(known)):
        raise UserError(
            f"reproduce {config.what} has no rows {', '.join(unknown)}; "
            + (f"it has {', '.join(known)}" if known else "give --rows with one experiment")
        )


def _experiment(name: str, config: ReproduceConfig, console: Console) -> None:
    rows = [row for row in EXPERIMENTS[name] if row.name in config.rows or not config.rows]
    planned = runs.plan_runs(rows, config.runs / name, config.seeds)
    runs.refuse_others(planned)
    path = tables.path_of(config.results, name)
    tables.recorded(path, EXPERIMENTS[name])  # a damaged file is refused before hours of training, not after
    if not config.report:
        runs.train_missing(planned, console)
    ours = runs.outcomes(planned)
    before = tables.recorded(path, EXPERIMENTS[name])
    result = tables.result_of(name, planned, before | ours)
    tables.write(path, result)
    console.print(Markdown(tables.markdown(result)))
    if kept := len(before.keys() - ours.keys()):
        console.print(f"{kept} of the runs are as {path} had them, not from {config.runs}.", soft_wrap=True)
    console.print(f"Result: {path}", soft_wrap=True)
