"""The folder of a sweep: its spec, the key of its unseeded trials, and its rows.

Not for release: ``keys.NOT_FOR_RELEASE.json``. An unseeded trial's keys come from one key drawn from the system's
entropy when the sweep begins; kept, it makes a trial that a crash cut short the same run with the same noise when it is
done again.

A Parquet file cannot be appended to, so each finished chunk of trials becomes a file of its own, under a temporary name
until it is whole: after a kill -9 a trial is either in a part, complete, or in none.
"""

import contextlib
import io
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import msgspec
import numpy as np

from gdpjax._core.files import FolderIsLocked, lock_folder, write_atomically
from gdpjax.sweeps import records
from gdpjax.sweeps._examples import Examples
from gdpjax.sweeps._results import Layout, Row
from gdpjax.sweeps._spec import Spec
from gdpjax.sweeps.records import UserError

SWEEP = "sweep.json"
KEYS = "keys.NOT_FOR_RELEASE.json"
PARTS = "parts"
RESULTS = "results.parquet"
Word = Annotated[int, msgspec.Meta(ge=0, lt=2**32)]


class Secret(msgspec.Struct):
    """``keys.NOT_FOR_RELEASE.json``."""

    key: tuple[Word, Word]
    data_sha256: str


class Described(msgspec.Struct):
    """``sweep.json``: the content of the spec, and the columns of the results."""

    sweep: dict[str, Any]
    names: dict[str, str]
    layout: Layout
    num_trials: records.Whole
    program_sha256: str


@contextlib.contextmanager
def only_here(folder: Path, private: bool = False) -> Iterator[None]:
    """Keep other sweeps out of the folder, which is made if there is none.

    Two sweeps that continue in one folder would both run the trials that are left.
    """
    records.make_folder(folder, private)
    try:
        lock = lock_folder(folder)
    except FolderIsLocked as holder:
        raise UserError(f"another process{holder} is running the sweep in {folder}: wait for it, or end it") from None
    if lock.owner() is not None:
        raise UserError(f"the sweep in {folder} is running in another thread of this process; choose another --out")
    with contextlib.closing(lock):
        lock.give_to(lock)
        yield


def begin(folder: Path, key: jax.Array, spec: Spec, examples: Examples, described: Described) -> None:
    """Describe a new sweep in its folder, which is `only_here`; ``key`` is that of its unseeded trials."""
    # Another process may have begun one before the folder was ours.
    refuse_used(folder)
    secret = {"key": np.asarray(jax.random.key_data(key)).tolist(), "data_sha256": examples.digest()}
    write_atomically(folder / KEYS, json.dumps(secret), mode=0o600)
    write_spec(folder, spec)
    # This file is the last one: a folder with it is complete.
    records.write_json(folder / SWEEP, msgspec.to_builtins(described) | {"fingerprint": records.fingerprint()})


def write_spec(folder: Path, spec: Spec) -> None:
    """Keep the spec as it was given."""
    name = "spec.json" if spec.source.path is None else "spec.toml"
    write_atomically(folder / name, spec.source.text)


def has_sweep(folder: Path) -> bool:
    """Return whether a sweep was begun in the folder."""
    return (folder / SWEEP).is_file()


def refuse_used(folder: Path) -> None:
    """Raise UserError where there is a sweep, or the rest of one, which must not pass for another's results."""
    for name in (SWEEP, PARTS, RESULTS):
        if (folder / name).exists():
            raise UserError(f"{folder} already holds a sweep ({name}): add --resume, or choose another --out")


def resume(folder: Path, examples: Examples, program_sha256: str) -> jax.Array:
    """Return the key of a sweep that was begun with these data and this model; UserError for another."""
    secret = records.read_json(folder / KEYS, Secret)
    if secret["data_sha256"] != examples.digest():
        raise UserError(f"the data are not those that the sweep in {folder} was begun with; choose another --out")
    if described(folder).program_sha256 != program_sha256:
        raise UserError(
            f"model, loss, scores or optimizer (or the version of jax) are not those that the sweep in {folder} was "
            "begun with; restore them, or choose another --out"
        )
    return jax.random.wrap_key_data(jnp.asarray(secret["key"], jnp.uint32))


def described(folder: Path) -> Described:
    """Return the description that a folder has of its sweep."""
    if not has_sweep(folder):
        raise UserError(f"there is no sweep in {folder}")
    return msgspec.convert(records.read_json(folder / SWEEP, Described), Described)


def spec_text(folder: Path) -> str:
    """Return the spec of a sweep as it was given."""
    (path,) = folder.glob("spec.*")
    return path.read_text(encoding="utf-8", errors="replace")


def write_part(folder: Path, rows: Sequence[Row], layout: Layout) -> None:
    """Add a finished chunk, whole or not at all."""
    parts = folder / PARTS
    parts.mkdir(exist_ok=True)
    numbers = [int(path.stem.split("-")[1]) for path in parts.glob("part-*.parquet")]
    _write(parts / f"part-{max(numbers, default=-1) + 1:06d}.parquet", rows, layout)


def finish(folder: Path, layout: Layout) -> None:
    """Write all rows into one file, too."""
    _write(folder / RESULTS, read_rows(folder, layout), layout)


def read_rows(folder: Path, layout: Layout) -> list[Row]:
    """Return the rows of a sweep so far, each trial once, in order; a UserError names a damaged file."""
    import pyarrow
    import pyarrow.parquet

    paths = sorted((folder / PARTS).glob("part-*.parquet"))
    if not paths and (folder / RESULTS).is_file():
        paths = [folder / RESULTS]
    # The first record of a trial counts.
    row_of_trial: dict[int, Row] = {}
    for path in paths:
        try:
            table = pyarrow.parquet.read_table(path)
        except (OSError, pyarrow.ArrowException) as error:
            raise UserError(f"{path} is damaged ({error}); remove it, and its trials will be run again") from error
        if table.column_names != list(layout.columns):
            raise UserError(f"{path} has other columns than its sweep; start a new sweep with another --out")
        for row in table.to_pylist():
            row_of_trial.setdefault(row["trial"], row)
    return [row_of_trial[number] for number in sorted(row_of_trial)]


def _write(path: Path, rows: Sequence[Row], layout: Layout) -> None:
    """Write rows into one Parquet file, atomically."""
    import pyarrow
    import pyarrow.parquet

    columns = [(name, pyarrow.type_for_alias(kind)) for name, kind in layout.columns.items()]
    content = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(list(rows), pyarrow.schema(columns)), content)
    write_atomically(path, content.getvalue())
