"""The files of a run.

Public: ``config.json``, ``metrics.jsonl``, ``model.npz``, ``result.json``. Not for release, since epsilon does not
cover them: ``private_diagnostics.NOT_FOR_RELEASE.jsonl``, and the checkpoints, which hold the keys of the noise.
"""

import importlib.metadata
import json
import math
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import jax
import numpy as np

from experiments.errors import UserError
from gdpjax.training import environment

CONFIG = "config.json"
METRICS = "metrics.jsonl"
DIAGNOSTICS = "private_diagnostics.NOT_FOR_RELEASE.jsonl"
RESULT = "result.json"
MODEL = "model.npz"
NOTICES = {
    METRICS: "Accuracies are on the test data, which is treated as public. Timings depend slightly on the sizes of the "
    "Poisson batches, which epsilon does not cover.",
    DIAGNOSTICS: "NOT FOR RELEASE: losses, gradient norms and batch sizes of private data, outside epsilon.",
}


def fingerprint() -> dict[str, Any]:
    """What must be equal for the same run to give the same bits: versions, devices and settings."""
    return {**environment(), "flax": importlib.metadata.version("flax")}


def read_json(path: Path) -> Any:
    """What a JSON file holds, or a UserError where it is absent or damaged."""
    try:
        return json.loads(path.read_text())
    except FileNotFoundError as error:
        raise UserError(f"{path} is missing; restore it, or start anew in another folder") from error
    except ValueError as error:  # JSON's and Unicode's errors are ValueErrors
        raise UserError(f"{path} is damaged ({error}); restore it, or start anew in another folder") from error


def refuse_differences(folder: Path, config: dict[str, Any]) -> None:
    """UserError unless the run in ``folder`` was begun with the configuration ``config``."""
    path = folder / CONFIG
    if not path.is_file():
        raise UserError(f"nothing to resume: there is no run in {folder}")
    saved, now = read_json(path)["config"], json.loads(json.dumps(_plain(config)))
    found = [
        f"{n}: {saved.get(n)!r} then, {now.get(n)!r} now" for n in sorted(saved | now) if saved.get(n) != now.get(n)
    ]
    if found:
        raise UserError(
            f"this is not the configuration that the run in {folder} was begun with ({'; '.join(found)}); restore it, "
            "or start a new run with another --out"
        )


def _plain(value: Any) -> Any:
    """JSON has no infinities or NaN: they become strings."""
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def write_atomically(path: Path, content: bytes) -> None:
    """Replace ``path`` in one step that survives a crash: it holds the old content or the new, never a part."""
    temporary = path.with_name(path.name + ".partial")
    with temporary.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def write_json(path: Path, value: Any) -> None:
    """Write an indented JSON file atomically."""
    write_atomically(path, (json.dumps(_plain(value), indent=2, allow_nan=False) + "\n").encode())


def start_log(folder: Path, name: str) -> None:
    """Begin a JSONL file with its notice."""
    write_atomically(folder / name, (json.dumps({"notice": NOTICES[name]}) + "\n").encode())


def append(folder: Path, name: str, records: Iterable[dict[str, Any]]) -> None:
    """Append records to a JSONL file."""
    with (folder / name).open("a") as file:
        file.writelines(json.dumps(_plain(record), allow_nan=False) + "\n" for record in records)


def rewind(folder: Path, name: str, step: int) -> list[dict[str, Any]]:
    """Drop the records after ``step``, and a line cut off by a crash; returns what stays, without the notice."""
    if not (folder / name).is_file():
        raise UserError(f"{folder / name} is missing; start a new run with another --out")
    kept = []
    for line in (folder / name).read_text().splitlines()[1:]:
        try:
            record = json.loads(line)
        except json.JSONDecodeError:
            break  # only the last line can be incomplete, and its epoch is done again
        if record["step"] <= step:
            kept.append(record)
    start_log(folder, name)
    append(folder, name, kept)
    return kept


def save_model(folder: Path, params: Any) -> None:
    """The trained parameters, by path: they are covered by epsilon and may be released."""
    leaves = jax.tree_util.tree_leaves_with_path(params)
    arrays = {jax.tree_util.keystr(path, simple=True, separator="/"): np.asarray(leaf) for path, leaf in leaves}
    temporary = folder / f"partial-{MODEL}"
    np.savez(temporary, allow_pickle=False, **arrays)
    temporary.replace(folder / MODEL)
