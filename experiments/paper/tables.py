"""Published figures beside those of our runs: a result file of one experiment, and its table."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from experiments.config import identity
from experiments.paper.runs import FinishedRuns, PlannedRun, ResultFile
from experiments.paper.settings import EXPERIMENTS, Row
from experiments.tables import mean_and_stdev, table, write_with_table
from gdpjax import accounting
from gdpjax.sweeps import records
from gdpjax.sweeps.records import interval, upper

SOURCE = "arXiv:1911.11607"
SCORES = ("test_accuracy", "test_rmse")
COSTS = ("mu_clt", "epsilon_clt", "epsilon_moments_accountant", "epsilon_lower", "epsilon_upper", "delta")
HEAD = ("setting", "score", "mu (CLT)", "eps CLT", "eps MA, classic", "eps MA, tight", "eps certified", "seeds")


class RecordedRun(msgspec.Struct):
    """A finished run in a result file."""

    seed: records.Whole
    result: ResultFile
    epochs: list[records.Line]
    steps_per_second: float | None


class RecordedRow(msgspec.Struct):
    """A row of a result file."""

    name: str
    runs: list[RecordedRun]


class RecordedExperiment(msgspec.Struct):
    """The parts of a result file that are read."""

    rows: list[RecordedRow]


def path_of(folder: Path, name: str) -> Path:
    """Return the path of an experiment's result file; its table is beside it."""
    return folder / f"reproduce_{name}.json"


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a result file; UserError where it is absent or damaged."""
    return records.read_json(path, RecordedExperiment)["rows"]


def recorded(path: Path, rows: Sequence[Row]) -> FinishedRuns:
    """Return the runs that a result file has with the settings that the rows have now; none where there is no file."""
    if not path.is_file():
        return {}
    recorded_runs = {row["name"]: row["runs"] for row in read_rows(path)}
    same_settings = {}
    for row in rows:
        for run in recorded_runs.get(row.name, []):
            seed = run["seed"]
            if run["result"]["config"] == identity(row.run(seed)):
                same_settings[row.name, seed] = run
    return same_settings


def result_of(name: str, planned: Sequence[PlannedRun], finished: FinishedRuns) -> dict[str, Any]:
    """Return everything public about the finished runs of an experiment."""
    rows = []
    for row in EXPERIMENTS[name]:
        num_planned = sum(run.row is row for run in planned) or row.seeds
        rows.append(_row(row, num_planned, finished))
    num_finished = sum(row["seeds"]["finished"] for row in rows)
    num_planned = sum(row["seeds"]["planned"] for row in rows)
    return {
        "what": f"{SOURCE}, {name}: test data after the last epoch, mean and sample standard deviation over seeds",
        "command": f"python -m experiments reproduce {name}",
        "partial": num_finished < num_planned,
        "runs": {"finished": num_finished, "planned": num_planned},
        "rows": rows,
    }


def _row(row: Row, num_planned: int, finished: FinishedRuns) -> dict[str, Any]:
    """Return a row of the result file: what was published, the mean over its finished runs, and the runs."""
    seeds = sorted(seed for name, seed in finished if name == row.name)
    runs = [finished[row.name, seed] for seed in seeds]
    result = runs[0]["result"] if runs else {}
    scores = {}
    for name in SCORES:
        if name in result:
            scores[name] = mean_and_stdev([run["result"][name] for run in runs])
    return {
        "name": row.name,
        "published": dict(row.published),
        "chosen": row.chosen,
        "found": scores,
        "privacy": _privacy(result["privacy"]) if runs else {},
        "seeds": {"finished": len(runs), "planned": max(num_planned, len(runs))},
        "config": result.get("config", {}),
        "runs": runs,
    }


def _privacy(cost: dict[str, Any]) -> dict[str, float]:
    """Return the ledger's cost, and the moments accountant as it was when the paper was written."""
    run = (cost["noise_multiplier"], cost["sampling_prob"], cost["num_steps"])
    classic = accounting.moments_accountant_epsilon(*run, cost["delta"], conversion="classic")
    return {name: cost[name] for name in COSTS} | {"epsilon_classic": float(classic)}


def write(path: Path, result: dict[str, Any]) -> None:
    """Write the result file, and the table beside it."""
    write_with_table(path, result, markdown(result))


def markdown(result: dict[str, Any]) -> str:
    """Return the table, published / ours; a dash where nothing was published."""
    lines = [f"# {result['what']}", "", f"`{result['command']}`", ""]
    if result["partial"]:
        runs = result["runs"]
        lines += [f"**Partial: {runs['finished']} of {runs['planned']} runs are finished.**", ""]
    lines += ["Published / ours.", "", table(HEAD, [_cells(row) for row in result["rows"]]), ""]
    lines += [f"{row['name']}: {row['chosen']}." for row in result["rows"] if row["chosen"]]
    return "\n".join(lines).rstrip() + "\n"


def _cells(row: dict[str, Any]) -> list[str]:
    published, privacy, seeds = row["published"], row["privacy"], row["seeds"]

    def pair(name: str) -> str:
        # Both to the nearest digit, as the paper has them: here they are compared.
        return f"{_to_two_digits(published.get(name))} / {_to_two_digits(privacy.get(name))}"

    # These have nothing beside them and may be copied, so that they are rounded up.
    tight = f"{upper(privacy['epsilon_moments_accountant'], 2)}" if privacy else "-"
    certified = interval(privacy) if privacy else "-"
    return [
        row["name"],
        _score(row),
        pair("mu_clt"),
        pair("epsilon_clt"),
        pair("epsilon_classic"),
        tight,
        certified,
        f"{seeds['finished']} of {seeds['planned']}",
    ]


def _to_two_digits(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _score(row: dict[str, Any]) -> str:
    """Return a row's score, published / ours, as an error of grades or as an accuracy in percent."""
    is_graded = "test_rmse" in row["found"] or "test_rmse" in row["published"]
    name = "test_rmse" if is_graded else "test_accuracy"
    scale, digits, digits_of_spread, unit = (1, 3, 4, "RMSE") if is_graded else (100, 1, 2, "%")

    published = "-"
    if name in row["published"]:
        published = f"{scale * row['published'][name]:.{digits}f}"
    ours = "-"
    if name in row["found"]:
        score = row["found"][name]
        ours = f"{scale * score['mean']:.{digits}f}"
        if score["stdev"] is not None:
            ours += f" ± {scale * score['stdev']:.{digits_of_spread}f}"
    return f"{published} / {ours} {unit}"
