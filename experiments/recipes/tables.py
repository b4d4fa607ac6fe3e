"""The result file of the recipes, and its table."""

from pathlib import Path
from typing import Any

import msgspec

from experiments.tables import markdown_table
from gdpjax.sweeps import records
from gdpjax.sweeps.rounding import interval, upper

NAME = "recipes.json"
HEAD = (
    "data", "score on the test data", "eps certified", "eps CLT", "eps MA", "mu CLT", "score to beat",
    "its eps certified", "tried", "eps with the choice paid",
)  # fmt: skip
NOTES = """\
Every epsilon but the last is that of ONE training with its settings fixed beforehand: an interval that contains the
truth (certified), an estimate that may understate (CLT), an upper bound (MA, the moments accountant). The settings were
chosen by held-out training data, never by the test data; `tried` counts everything that was chosen from. Were the data
private, the last column is what releasing the best of a random number of trainings, that many on average, would cost
(arXiv:2110.03620): an upper bound if each of them costs no more than the winner and is scored on public data. The
searches for adult and movielens also had trainings of larger epsilons, so that theirs would cost more."""


class Recipes(msgspec.Struct):
    """What is read of the result file before a recipe is put into it."""

    what: str
    command: str
    recipes: dict[str, dict[str, Any]]


def write(folder: Path, name: str, record: dict[str, Any]) -> Path:
    """Put one recipe's record into the result file, and the table beside it; the others' records stay."""
    folder.mkdir(parents=True, exist_ok=True)
    result = read(folder)
    result["recipes"][name] = record
    records.write_json(folder / NAME, result)
    (folder / NAME).with_suffix(".md").write_text(markdown(result))
    return folder / NAME


def read(folder: Path) -> dict[str, Any]:
    """The result file, or an empty one."""
    path = folder / NAME
    if path.is_file():
        return records.read_json(path, Recipes)
    return {
        "what": "recipes found by sweeps on training data",
        "command": "python -m experiments recipes all",
        "recipes": {},
    }


def markdown(result: dict[str, Any]) -> str:
    """One row for each recipe."""
    table = markdown_table(HEAD, (_cells(name, each) for name, each in result["recipes"].items()))
    notes = [
        f"{name}: {each['published']['note']}." for name, each in result["recipes"].items() if each["published"]["note"]
    ]
    return "\n\n".join(["# Recipes", f"`{result['command']}`", table, NOTES, *notes]) + "\n"


def sentence(name: str, record: dict[str, Any]) -> str:
    """One recipe in words."""
    _, score, certified, *_, published, its_certified, _, price = _cells(name, record)
    return (
        f"{name}: {score} at certified epsilon {certified}; published {published} at {its_certified}. Had the choice "
        f"been made on private data, epsilon {price}."
    )


def _cells(name: str, record: dict[str, Any]) -> list[str]:
    test, cost, published = record["test"], record["cost"], record["published"]
    rmse = record["score"] == "test_rmse"
    scale, digits, unit = (1, 4, " RMSE") if rmse else (100, 2, " %")
    spread = "" if test["stdev"] is None else f" ± {scale * test['stdev']:.{digits}f}"
    seeds = f"{len(test['values'])} seed{'s' if len(test['values']) > 1 else ''}"
    return [
        name, f"{scale * test['mean']:.{digits}f}{spread}{unit} ({seeds})", interval(cost),
        *(upper(cost[each], 3) for each in ("epsilon_clt", "epsilon_moments_accountant", "mu_clt")),
        f"{scale * published['score']:.{3 if rmse else 1}f}{unit}", interval(published),
        f"{record['tuning']['mean_num_runs']}", upper(record["tuning"]["epsilon"], 2),
    ]  # fmt: skip
