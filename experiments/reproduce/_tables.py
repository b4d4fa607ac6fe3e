"""What was published beside what was found: a result file of one experiment, and its table."""

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments import records
from experiments.reproduce._experiments import EXPERIMENTS, Row
from experiments.reproduce._runs import Planned, outcome
from gdpjax import accounting

SOURCE = "arXiv:1911.11607"
SCORES = ("test_accuracy", "test_rmse")


def result_of(name: str, planned: Sequence[Planned]) -> dict[str, Any]:
    """Everything public about the finished runs of an experiment."""
    rows = [_row(row, [run for run in planned if run.row is row]) for row in EXPERIMENTS[name]]
    finished = sum(run.finished for run in planned)
    return {
        "what": f"{SOURCE}, {name}: test data after the last epoch, mean and sample standard deviation over seeds",
        "command": f"python -m experiments reproduce {name}",
        "partial": finished < len(planned),
        "runs": {"finished": finished, "planned": len(planned)},
        "rows": rows,
    }


def _row(row: Row, planned: Sequence[Planned]) -> dict[str, Any]:
    done = [outcome(run) for run in planned if run.finished]
    found = {name: summary([run["result"][name] for run in done]) for name in SCORES if done and name in _names(done)}
    return {
        "name": row.name,
        "published": dict(row.published),
        "chosen": row.chosen,
        "found": found,
        "privacy": _privacy(done[0]["result"]["privacy"]) if done else {},
        "seeds": {"finished": len(done), "planned": len(planned)},
        "config": done[0]["result"]["config"] if done else {},
        "runs": done,
    }


def _names(done: Sequence[dict[str, Any]]) -> set[str]:
    return set(done[0]["result"])


def summary(values: Sequence[float]) -> dict[str, float | None]:
    """Mean and sample standard deviation, which one value does not have."""
    return {"mean": statistics.mean(values), "stdev": statistics.stdev(values) if len(values) > 1 else None}


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
    lines += ["Published / ours.", "", _line(head), _line(["---"] * len(head))]
    lines += [_line(_cells(row)) for row in result["rows"]]
    notes = [f"{row['name']}: {row['chosen']}." for row in result["rows"] if row["chosen"]]
    return "\n".join([*lines, "", *notes]).rstrip() + "\n"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _cells(row: dict[str, Any]) -> list[str]:
    published, privacy = row["published"], row["privacy"]

    def pair(name: str) -> str:
        return f"{_number(published.get(name))} / {_number(privacy.get(name))}"

    certified = f"[{privacy['epsilon_lower']:.3f}, {privacy['epsilon_upper']:.3f}]" if privacy else "-"
    seeds = "{finished} of {planned}".format(**row["seeds"])
    return [
        row["name"], _score(row), pair("mu_clt"), pair("epsilon_clt"), pair("epsilon_classic"),
        _number(privacy.get("epsilon_moments_accountant")), certified, seeds,
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


def write(folder: Path, name: str, result: dict[str, Any]) -> Path:
    """The JSON file, and the table beside it."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"reproduce_{name}.json"
    records.write_json(path, result)
    path.with_suffix(".md").write_text(markdown(result))
    return path
