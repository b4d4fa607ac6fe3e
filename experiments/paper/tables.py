"""What was published beside what was found: a result file of one experiment, and its table."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from experiments.config import identity
from experiments.paper.runs import Outcomes, Planned
from experiments.paper.settings import EXPERIMENTS, Row
from experiments.tables import markdown_table, mean_and_stdev
from gdpjax import accounting
from gdpjax.sweeps import records
from gdpjax.sweeps.rounding import interval, upper

SOURCE = "arXiv:1911.11607"
SCORES = ("test_accuracy", "test_rmse")


def result_of(name: str, planned: Sequence[Planned], finished: Outcomes) -> dict[str, Any]:
    """Everything public about the finished runs of an experiment."""
    rows = [_row(row, sum(run.row is row for run in planned) or row.seeds, finished) for row in EXPERIMENTS[name]]
    done, wanted = (sum(row["seeds"][count] for row in rows) for count in ("finished", "planned"))
    return {
        "what": f"{SOURCE}, {name}: test data after the last epoch, mean and sample standard deviation over seeds",
        "command": f"python -m experiments reproduce {name}",
        "partial": done < wanted,
        "runs": {"finished": done, "planned": wanted},
        "rows": rows,
    }


def path_of(folder: Path, name: str) -> Path:
    """The result file of an experiment; its table is beside it."""
    return folder / f"reproduce_{name}.json"


class RecordedRun(msgspec.Struct):
    """A finished run in a result file."""

    seed: records.Whole
    result: records.ResultFile
    epochs: list[records.Epoch]
    steps_per_second: float | None


class RecordedRow(msgspec.Struct):
    """A row of a result file."""

    name: str
    runs: list[RecordedRun]


class Recorded(msgspec.Struct):
    """What is read of a result file."""

    rows: list[RecordedRow]


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a result file; UserError where it is absent or damaged."""
    return records.read_json(path, Recorded)["rows"]


def recorded(path: Path, rows: Sequence[Row]) -> Outcomes:
    """What an earlier result file has of runs with the settings that the rows have now; none where there is no file."""
    saved = {row["name"]: row["runs"] for row in read_rows(path)} if path.is_file() else {}
    return {
        (row.name, run["seed"]): run
        for row in rows
        for run in saved.get(row.name, [])
        if run["result"]["config"] == identity(row.run(run["seed"]))
    }


def _row(row: Row, planned: int, finished: Outcomes) -> dict[str, Any]:
    runs = [run for (name, _), run in sorted(finished.items(), key=lambda item: item[0]) if name == row.name]
    result = runs[0]["result"] if runs else {}
    return {
        "name": row.name,
        "published": dict(row.published),
        "chosen": row.chosen,
        "found": {name: mean_and_stdev([run["result"][name] for run in runs]) for name in SCORES if name in result},
        "privacy": _privacy(result["privacy"]) if runs else {},
        "seeds": {"finished": len(runs), "planned": max(planned, len(runs))},
        "config": result.get("config", {}),
        "runs": runs,
    }


def _privacy(cost: dict[str, Any]) -> dict[str, float]:
    """The ledger's cost, with the moments accountant as it was when the paper was written."""
    run = (cost["noise_multiplier"], cost["sampling_prob"], cost["num_steps"], cost["delta"])
    classic = accounting.moments_accountant_epsilon(*run, conversion="classic")
    names = ("mu_clt", "epsilon_clt", "epsilon_moments_accountant", "epsilon_lower", "epsilon_upper", "delta")
    return {name: cost[name] for name in names} | {"epsilon_classic": float(classic)}


def markdown(result: dict[str, Any]) -> str:
    """The table, published / ours; a dash where nothing was published."""
    head = ("setting", "score", "mu (CLT)", "eps CLT", "eps MA, classic", "eps MA, tight", "eps certified", "seeds")
    lines = [f"# {result['what']}", "", f"`{result['command']}`", ""]
    if result["partial"]:
        lines += ["**Partial: {finished} of {planned} runs are finished.**".format(**result["runs"]), ""]
    lines += ["Published / ours.", "", markdown_table(head, map(_cells, result["rows"]))]
    notes = [f"{row['name']}: {row['chosen']}." for row in result["rows"] if row["chosen"]]
    return "\n".join([*lines, "", *notes]).rstrip() + "\n"


def _cells(row: dict[str, Any]) -> list[str]:
    published, privacy = row["published"], row["privacy"]

    def pair(name: str) -> str:
        # Both to the nearest digit, as the paper has them: here they are compared.
        return f"{_number(published.get(name))} / {_number(privacy.get(name))}"

    seeds = "{finished} of {planned}".format(**row["seeds"])
    return [
        row["name"], _score(row), pair("mu_clt"), pair("epsilon_clt"), pair("epsilon_classic"),
        _cost(privacy.get("epsilon_moments_accountant")), interval(privacy) if privacy else "-", seeds,
    ]  # fmt: skip


def _score(row: dict[str, Any]) -> str:
    name = "test_rmse" if "test_rmse" in row["found"] or "test_rmse" in row["published"] else "test_accuracy"
    found, graded = row["found"].get(name), name == "test_rmse"
    write = (lambda x: f"{x:.3f}") if graded else (lambda x: f"{100 * x:.1f}")
    ours = "-" if found is None else write(found["mean"])
    if found is not None and found["stdev"] is not None:
        ours += f" ± {found['stdev']:.4f}" if graded else f" ± {100 * found['stdev']:.2f}"
    published = write(row["published"][name]) if name in row["published"] else "-"
    return f"{published} / {ours} {'RMSE' if graded else '%'}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _cost(value: float | None) -> str:
    """An upper bound, rounded up: it may be copied."""
    return "-" if value is None else upper(value, 2)


def write(path: Path, result: dict[str, Any]) -> None:
    """The JSON file, and the table beside it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    records.write_json(path, result)
    path.with_suffix(".md").write_text(markdown(result))
