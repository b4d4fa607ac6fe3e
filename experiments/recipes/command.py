"""The command ``python -m experiments recipes``."""

import json
from pathlib import Path
from typing import Any

from rich.console import Console

from experiments.config import RecipesConfig, SweepConfig
from experiments.recipes import tables
from experiments.recipes.catalogue import RECIPES, Recipe
from experiments.recipes.outcome import Row, outcome
from experiments.sweeps import command as sweep
from gdpjax.sweeps import report_sweep


def run(config: RecipesConfig) -> None:
    """Search and train what is missing, then write the results."""
    names = list(RECIPES) if config.what == "all" else [config.what]
    reproduce(names, config.runs, config.results, Console())


def reproduce(names: list[str], runs: Path, results: Path, console: Console) -> Path:
    """Run every sweep of these recipes, finished ones from their folders, and return the result file."""
    path = results
    for name in names:
        # Each is written at once: what is done is on record.
        record = _record(RECIPES[name], runs)
        path = tables.write(results, name, record)
        console.print(tables.sentence(name, record), soft_wrap=True)
    console.print(f"Results: {path} and {path.with_suffix('.md')}", soft_wrap=True)
    return path


def _record(recipe: Recipe, runs: Path) -> dict[str, Any]:
    """Return what a recipe's search and its winner say together."""
    search_folder = runs / f"{recipe.name}-search"
    winner_folder = runs / f"{recipe.name}-winner"
    searched = _rows_of_sweep(recipe.search, search_folder)
    trained = _rows_of_sweep(recipe.winner, winner_folder)
    specs = (sweep.read(recipe.search), sweep.read(recipe.winner))
    return outcome(recipe, specs, searched, trained)


def _rows_of_sweep(spec: Path, out: Path) -> list[Row]:
    """Return the rows of a sweep, from its folder as far as they are there."""
    if not _is_finished(out, spec):
        # One trial at a time: they are large.
        config = SweepConfig(spec, out=out, resume=(out / "sweep.json").is_file(), width=1)
        sweep.run(config)
    return report_sweep(out).rows


def _is_finished(out: Path, spec: Path) -> bool:
    """Return whether a sweep of this spec was run to its end."""
    if not (out / "results.parquet").is_file():
        return False
    return json.loads((out / "sweep.json").read_text())["sweep"] == sweep.read(spec).described()
