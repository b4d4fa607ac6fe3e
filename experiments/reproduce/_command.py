"""What ``python -m experiments reproduce`` does."""

from rich.console import Console
from rich.markdown import Markdown

from experiments.config import ReproduceConfig
from experiments.errors import UserError
from experiments.reproduce import _figures, _runs, _tables, _unsummed
from experiments.reproduce._experiments import EXPERIMENTS


def run(config: ReproduceConfig) -> None:
    """Train what is missing, or only draw."""
    if config.seeds is not None and config.seeds < 1:
        raise UserError(f"seeds must be a whole number >= 1, got {config.seeds}")
    _refuse_unknown(config)
    console = Console()
    if config.what == "figures":
        _figures.draw_all(config.results, config.figures, console)
        return
    if config.what == "imdb-clipping":
        _unsummed.write(config.results, console)
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
    planned = _runs.plan_runs(rows, config.runs / name, config.seeds)
    _runs.refuse_others(planned)
    path = _tables.path_of(config.results, name)
    _tables.recorded(path, EXPERIMENTS[name])  # a damaged file is refused before hours of training, not after
    if not config.report:
        _runs.train_missing(planned, console)
    ours = _runs.outcomes(planned)
    before = _tables.recorded(path, EXPERIMENTS[name])
    result = _tables.result_of(name, planned, before | ours)
    _tables.write(path, result)
    console.print(Markdown(_tables.markdown(result)))
    if kept := len(before.keys() - ours.keys()):
        console.print(f"{kept} of the runs are as {path} had them, not from {config.runs}.", soft_wrap=True)
    console.print(f"Result: {path}", soft_wrap=True)
