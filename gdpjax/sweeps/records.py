"""Write and read the files of a run: JSON documents and logs, whole or not at all, with a message for damaged ones.

Public: ``config.json``, ``metrics.jsonl``, ``model.npz``, ``result.json``. Not for release, since epsilon does not
cover them: ``private_diagnostics.NOT_FOR_RELEASE.jsonl``, and the checkpoints, which hold the keys of the noise.
"""

import decimal
import importlib.metadata
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any

import jax
import msgspec
import numpy as np

from gdpjax._core.documents import DocumentError, convert_document, read_document, read_document_lines
from gdpjax._core.figures import decimals_of, plain
from gdpjax._core.files import write_atomically
from gdpjax.training import environment

CONFIG = "config.json"
METRICS = "metrics.jsonl"
DIAGNOSTICS = "private_diagnostics.NOT_FOR_RELEASE.jsonl"
RESULT = "result.json"
MODEL = "model.npz"
NOTICES = {
    METRICS: "Scores are on the evaluation data, which are treated as public; held-out training data are private. "
    "Timings depend slightly on the sizes of the Poisson batches, which epsilon does not cover.",
    DIAGNOSTICS: "NOT FOR RELEASE: losses, gradient norms and batch sizes of private data, outside epsilon.",
}
Whole = Annotated[int, msgspec.Meta(ge=0)]


class UserError(ValueError):
    """A wrong argument, file or folder: what was expected, what was got, what to do."""


class RunInterrupted(Exception):
    """The user stopped a run or a sweep; the message says how to continue it."""


class ConfigFile(msgspec.Struct):
    """The fields of ``config.json`` that are read; every field of a configuration is compared."""

    config: dict[str, Any]


class Line(msgspec.Struct):
    """The field that every line of a log has after the notice. Infinite epsilons are written as texts."""

    step: Whole


NOT_SCORES = (
    *("step", "epoch", "steps_per_second"),
    *("privacy", "config", "test_data", "seeded", "hyperparameters", "fingerprint", "notice"),
)
"""The fields that stand beside the scores in ``metrics.jsonl`` and ``result.json``, which a score may not replace."""


def fingerprint() -> dict[str, Any]:
    """Return versions, devices and settings, which must be equal for the same run to give the same bits."""
    return {**environment(), "flax": importlib.metadata.version("flax")}


def read_json(path: Path, kind: type) -> dict[str, Any]:
    """Return the JSON object in a file, or raise a UserError where it is absent, damaged or not of this ``kind``.

    ``kind`` is a msgspec.Struct of the fields that are used; the others are returned unread.
    """
    if not path.exists():
        raise UserError(f"{path} is missing; restore it, or start anew in another folder")
    try:
        value = read_document(path, dict[str, Any])
        convert_document(value, kind, str(path))
    except DocumentError as error:
        raise _damaged(path, error) from error
    return value


def read_lines(path: Path, kind: type, header: int = 0) -> list[dict[str, Any]]:
    """Return the JSON objects of a file of lines, as `read_json`, without its first ``header`` lines.

    A last line without its end was cut off by a crash; its epoch or program is done again, so it is dropped.
    """
    try:
        objects = read_document_lines(path, dict[str, Any])[header:]
        for number, record in enumerate(objects, start=header + 1):
            convert_document(record, kind, f"{path}, line {number}")
    except DocumentError as error:
        raise _damaged(path, error) from error
    return objects


def _damaged(path: Path, error: Exception) -> UserError:
    return UserError(f"{path} is damaged ({error}); restore it, or start anew in another folder")


def refuse_differences(folder: Path, config: dict[str, Any]) -> None:
    """Raise UserError unless the run in ``folder`` was begun with the configuration ``config``."""
    path = folder / CONFIG
    if not path.is_file():
        raise UserError(f"nothing to resume: there is no run in {folder}")
    refuse_changes(folder, read_json(path, ConfigFile)["config"], config)


def refuse_changes(folder: Path, saved: dict[str, Any], config: dict[str, Any]) -> None:
    """Raise UserError unless the saved configuration of what is in ``folder`` is ``config``."""
    now = json.loads(json.dumps(plain(config)))
    differences = []
    for name in sorted(saved | now):
        if saved.get(name) != now.get(name):
            differences.append(f"{name}: {saved.get(name)!r} then, {now.get(name)!r} now")
    if differences:
        raise UserError(
            f"what is in {folder} was begun with another configuration ({'; '.join(differences)}); restore it, or "
            "choose another --out"
        )


def write_json(path: Path, value: Any) -> None:
    """Write an indented JSON file atomically."""
    write_atomically(path, json.dumps(plain(value), indent=2, allow_nan=False) + "\n")


def make_folder(folder: Path, private: bool = False) -> None:
    """Make a folder where there is none, for its owner alone if it is ``private``."""
    folder.mkdir(parents=True, exist_ok=True)
    if private:
        folder.chmod(0o700)


def start_log(folder: Path, name: str) -> None:
    """Begin a JSONL file with its notice."""
    mode = 0o600 if name == DIAGNOSTICS else 0o666
    notice = json.dumps({"notice": NOTICES[name]})
    write_atomically(folder / name, notice + "\n", mode)


def append(folder: Path, name: str, records: Iterable[dict[str, Any]]) -> None:
    """Append records to a JSONL file."""
    with (folder / name).open("a") as file:
        file.writelines(json.dumps(plain(record), allow_nan=False) + "\n" for record in records)


def rewind(folder: Path, name: str, step: int) -> list[dict[str, Any]]:
    """Drop the records after ``step``, and a line cut off by a crash; returns the others, without the notice."""
    lines = read_lines(folder / name, Line, header=1)
    kept = [record for record in lines if record["step"] <= step]
    start_log(folder, name)
    append(folder, name, kept)
    return kept


def named_arrays(params: Any) -> dict[str, Any]:
    """Return the arrays of a tree by path; UserError for a name that `numpy.savez` cannot write, or not twice.

    >>> named_arrays({"dense": {"bias": 1.0, "kernel": 2.0}})
    {'dense/bias': 1.0, 'dense/kernel': 2.0}
    """
    arrays = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        if name in arrays or name in ("file", "allow_pickle"):
            raise UserError(f"no two arrays of the parameters can be called {name} in {MODEL}; rename one of them")
        arrays[name] = leaf
    return arrays


def save_model(folder: Path, params: Any) -> None:
    """Write the trained parameters, by path: they are covered by epsilon and may be released."""
    temporary = folder / f"partial-{MODEL}"
    np.savez(temporary, **named_arrays(params))
    temporary.replace(folder / MODEL)


def interval(cost: Mapping[str, float], decimals: int = 3) -> str:
    """Return the certified interval, rounded outwards.

    >>> interval({"epsilon_lower": 2.4499, "epsilon_upper": 2.4511}, 2)
    '[2.44, 2.46]'
    """
    lower = decimals_of(cost["epsilon_lower"], decimals, decimal.ROUND_FLOOR)
    return f"[{lower}, {upper(cost['epsilon_upper'], decimals)}]"


def upper(bound: float, decimals: int) -> str:
    """Return an upper bound, rounded up.

    >>> upper(2.4513, 2), upper(2.5, 2), upper(float("inf"), 2)
    ('2.46', '2.50', 'inf')
    """
    return decimals_of(bound, decimals, decimal.ROUND_CEILING)
