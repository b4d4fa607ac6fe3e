"""The folder of a sweep: which spec it belongs to, the key of its unseeded trials, the programs that were compiled.

Not for release: ``keys.NOT_FOR_RELEASE.json``. An unseeded trial's keys come from one key drawn from the system's
entropy when the sweep begins; kept, it makes a trial that a crash cut short the same run with the same noise when it is
done again.
"""

import dataclasses
import json
import os
from pathlib import Path
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import msgspec
import numpy as np

import gdpjax
from experiments import records
from experiments.config import identity
from experiments.datasets import Dataset
from experiments.errors import UserError
from experiments.keys import make_keys
from experiments.sweeps._program import Keys
from experiments.sweeps._results import PARTS, RESULTS
from experiments.sweeps._spec import Range, Spec
from experiments.sweeps._trials import Trial

SPEC = "spec.toml"
SWEEP = "sweep.json"
KEYS = "keys.NOT_FOR_RELEASE.json"
PROGRAMS = "programs.jsonl"
Word = Annotated[int, msgspec.Meta(ge=0, lt=2**32)]


class Secret(msgspec.Struct):
    """``keys.NOT_FOR_RELEASE.json``."""

    key: tuple[Word, Word]
    data_sha256: str


class Searched(msgspec.Struct):
    """What the report says of a sweep; the other fields are only compared."""

    dataset: str
    model: str
    optimizer: str
    search: str
    seeds: int | list[int]
    hold_out: float | None = None


class Described(msgspec.Struct):
    """``sweep.json``."""

    sweep: Searched
    num_trials: records.Whole


class Program(msgspec.Struct):
    """A line of ``programs.jsonl``."""

    num_steps: records.Whole
    batch_size: records.Whole
    num_compiled: records.Whole


def begin(folder: Path, spec: Spec, dataset: Dataset, num_trials: int) -> jax.Array:
    """Make the folder of a new sweep; returns the key of its unseeded trials."""
    refuse_used(folder)
    key = gdpjax.fresh_key()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot make the folder {folder}: {error.strerror}; choose another --out") from error
    secret = {"key": np.asarray(jax.random.key_data(key)).tolist(), "data_sha256": dataset.digest()}
    with os.fdopen(os.open(folder / KEYS, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(json.dumps(secret))
    records.write_atomically(folder / SPEC, spec.text.encode())
    described = {"sweep": described_spec(spec), "num_trials": num_trials, "fingerprint": records.fingerprint()}
    records.write_json(folder / SWEEP, described)  # last: a folder with it is complete
    return key


def refuse_used(folder: Path) -> None:
    """UserError where there is a sweep, or what is left of one, which must not pass for another's results."""
    for name in (SWEEP, PARTS, RESULTS):
        if (folder / name).exists():
            raise UserError(
                f"{folder} already holds a sweep ({name}): add --resume to continue it, or choose another --out"
            )


def resume(folder: Path, spec: Spec, dataset: Dataset) -> jax.Array:
    """The key of a sweep that was begun with this spec and these data; a UserError names what differs, and where."""
    if not (folder / SWEEP).is_file():
        raise UserError(f"nothing to resume: there is no sweep in {folder}")
    saved, now = described(folder)["sweep"], json.loads(json.dumps(described_spec(spec)))
    for name in sorted(saved | now):
        if saved.get(name) != now.get(name):
            field = ("hyperparameters", name) if name in (*spec.choices, "seeds") else (name,)
            then = f"{name} is {json.dumps(now.get(name))} here, but {json.dumps(saved.get(name))} in the sweep"
            spec.fail(field, f"{then} in {folder}; restore {folder / SPEC}, or choose another --out")
    secret = records.read_json(folder / KEYS, Secret)
    if secret["data_sha256"] != dataset.digest():
        raise UserError(f"the data are not those that the sweep in {folder} was begun with; choose another --out")
    return jax.random.wrap_key_data(jnp.asarray(secret["key"], jnp.uint32))


def is_finished(folder: Path, spec: Spec) -> bool:
    """Whether a sweep of this spec was run in the folder to its end."""
    if not (folder / RESULTS).is_file() or not (folder / SWEEP).is_file():
        return False
    return described(folder)["sweep"] == json.loads(json.dumps(described_spec(spec)))


def described(folder: Path) -> dict[str, Any]:
    """What a folder says of its sweep: ``sweep``, ``num_trials`` and ``fingerprint``."""
    return records.read_json(folder / SWEEP, Described)


def described_spec(spec: Spec) -> dict[str, Any]:
    """What a sweep computes, without comments, layout and the name of the file."""
    plain = {n: v for n, v in dataclasses.asdict(spec).items() if n not in ("path", "text", "choices", "one_program")}
    ranges = {n: dataclasses.asdict(v) if isinstance(v, Range) else v for n, v in spec.choices.items()}
    return plain | ranges


def keys_of(trial: Trial, root: jax.Array) -> Keys:
    """A trial's own keys: those of ``train`` where it has a seed, else from the sweep's key and the trial's number."""
    if trial.seed is not None:
        return Keys(*make_keys(trial.seed, identity(trial.config)))
    return Keys(*jax.random.split(jax.random.fold_in(root, trial.number), 2))


def record_program(folder: Path, program: dict[str, Any]) -> None:
    """One more compiled program."""
    recorded = [*read_programs(folder), program]
    lines = "".join(json.dumps(each) + "\n" for each in recorded)
    records.write_atomically(folder / PROGRAMS, lines.encode())


def read_programs(folder: Path) -> list[dict[str, Any]]:
    """The programs that were compiled for a sweep, over all its resumptions."""
    path = folder / PROGRAMS
    return records.read_lines(path, Program) if path.is_file() else []
