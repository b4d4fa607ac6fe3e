"""The result file of the recipes, and its table."""

from pathlib import Path
from typing import Any

import msgspec

from experiments.tables import table, write_with_table
from gdpjax.sweeps import records
from gdpjax.sweeps.records import interval, upper

NAME = "recipes.json"
HEAD = (
    "data",
    "score on the test data",
    "eps certified",
    "eps CLT",
    "eps MA",
    "mu CLT",
    "score to beat",
    "its eps certified",
    "tried",
    "eps with the choice paid",
)
NOTES = """\
Every epsilon but the last is that of ONE training with its settings fixed beforehand: an interval that contains the
truth (certified), an estimate that may understate (CLT), an upper bound (MA, the moments accountant). The settings were
chosen by held-out training data, never by the test data; `tried` counts everything that was chosen from. Were the data
private, the last column is what releasing the best of a random number of trainings, that many on average, would cost
(arXiv:2110.03620): an upper bound if each of them costs no more than the winner and is scored on public data. The
searches for adult and movielens also had trainings of larger epsilons, so that theirs would cost more."""


class Recipes(msgspec.Struct):
    """The parts of the result file that are read before a recipe is put into it."""

    what: str
    command: str
    recipes: dict[str, dict[str, Any]]


def write(folder: Path, name: str, record: dict[str, Any]) -> Path:
    """Put one recipe's record into the result file, and the table beside it; the others' records stay."""
    result = read(folder)
    result["recipes"][name] = record
    write_with_table(folder / NAME, result, markdown(result))
    return folder / NAME


def read(folder: Path) -> dict[str, Any]:
    """Return the result file, or an empty one."""
    path = folder / NAME
    if path.is_file():
        return records.read_json(path, Recipes)
    return {
        "what": "recipes found by sweeps on training data",
        "command": "python -m experiments recipes all",
        "recipes": {},
    }


def markdown(result: dict[str, Any]) -> str:
    """Return a table with one row for each recipe, and the notes."""
    recipes = result["recipes"].items()
    rows = table(HEAD, [_cells(name, record) for name, record in recipes])
    notes = [f"{name}: {record['published']['note']}." for name, record in recipes if record["published"]["note"]]
    return "\n\n".join(["# Recipes", f"`{result['command']}`", rows, NOTES, *notes]) + "\n"


def sentence(name: str, record: dict[str, Any]) -> str:
    """Return one recipe in words."""
    _, score, certified, *_, published, its_certified, _, price = _cells(name, record)
    return (
        f"{name}: {score} at certified epsilon {certified}; published {published} at {its_certified}. Had the choice "
        f"been made on private data, epsilon {price}."
    )


def _cells(name: str, record: dict[str, Any]) -> list[str]:
    cost, published, tuning = record["cost"], record["published"], record["tuning"]
    is_graded = record["score"] == "test_rmse"
    scale, digits, unit = (1, 3, " RMSE") if is_graded else (100, 1, " %")
    return [
        name,
        _score(record["test"], is_graded),
        interval(cost),
        upper(cost["epsilon_clt"], 3),
        upper(cost["epsilon_moments_accountant"], 3),
        upper(cost["mu_clt"], 3),
        f"{scale * published['score']:.{digits}f}{unit}",
        interval(published),
        f"{tuning['mean_num_runs']}",
        upper(tuning["epsilon"], 2),
    ]


def _score(test: dict[str, Any], is_graded: bool) -> str:
    """Return the mean and deviation over seeds, as an error of grades or as an accuracy in percent."""
    scale, digits, unit = (1, 4, " RMSE") if is_graded else (100, 2, " %")
    spread = "" if test["stdev"] is None else f" ± {scale * test['stdev']:.{digits}f}"
    num_seeds = len(test["values"])
    seeds = f"{num_seeds} seed{'s' if num_seeds > 1 else ''}"
    return f"{scale * test['mean']:.{digits}f}{spread}{unit} ({seeds})"
