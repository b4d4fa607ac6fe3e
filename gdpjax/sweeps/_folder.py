"""The folder of a sweep: its spec, the key of its unseeded trials, the programs that were compiled.

Not for release: ``keys.NOT_FOR_RELEASE.json``. An unseeded trial's keys come from one key drawn from the system's
entropy when the sweep begins; kept, it makes a trial that a crash cut short the same run with the same noise when it is
done again.
"""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import msgspec
import numpy as np

from gdpjax._core.files import write_atomically
from gdpjax._core.folder_lock import FolderIsLocked, lock_folder
from gdpjax._core.keys import fresh_key
from gdpjax.sweeps import records
from gdpjax.sweeps._errors import UserError
from gdpjax.sweeps._hyperparameters import STANDARD
from gdpjax.sweeps._keys import Keys, make_keys, with_settings
from gdpjax.sweeps._layout import Layout
from gdpjax.sweeps._spec import SECTION, Spec
from gdpjax.sweeps._task import Examples
from gdpjax.sweeps._trials import Trial, identity

SPEC = "spec.toml"
SPEC_OF_A_CALL = "spec.json"
SWEEP = "sweep.json"
KEYS = "keys.NOT_FOR_RELEASE.json"
PROGRAMS = "programs.jsonl"
RESULTS_OF_A_SWEEP = ("parts", "results.parquet")
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


class CompiledProgram(msgspec.Struct):
    """A line of ``programs.jsonl``."""

    num_steps: records.Whole
    batch_size: records.Whole
    num_compiled: records.Whole


@contextlib.contextmanager
def only_here(folder: Path) -> Iterator[None]:
    """Keep other sweeps out of the folder, which is made if there is none.

    Two sweeps that go on in one folder would both run the trials that are left.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = lock_folder(folder)
    except FolderIsLocked as holder:
        raise UserError(
            f"another process{holder} is running the sweep in {folder}: wait for it, or end it and add --resume, or "
            "choose another --out"
        ) from None
    except OSError as error:
        raise UserError(f"cannot make the folder {folder}: {error.strerror}; choose another --out") from error
    if lock.owner() is not None:
        raise UserError(f"the sweep in {folder} is running in another thread of this process; choose another --out")
    with contextlib.closing(lock):
        lock.give_to(lock)
        yield


def begin(
    folder: Path, spec: Spec, examples: Examples, layout: Layout, num_trials: int, program_sha256: str
) -> jax.Array:
    """Describe a new sweep in its folder, which is `only_here`; returns the key of its unseeded trials."""
    # Another process may have begun one before the folder was ours.
    refuse_used(folder)
    key = fresh_key()
    secret = {"key": np.asarray(jax.random.key_data(key)).tolist(), "data_sha256": examples.digest()}
    write_atomically(folder / KEYS, json.dumps(secret), mode=0o600)
    write_spec(folder, spec)
    about = {
        "sweep": spec.described(),
        "names": dict(spec.task.names),
        "layout": msgspec.to_builtins(layout),
        "num_trials": num_trials,
        "program_sha256": program_sha256,
        "fingerprint": records.fingerprint(),
    }
    # This file is the last one: a folder with it is complete.
    records.write_json(folder / SWEEP, about)
    return key


def write_spec(folder: Path, spec: Spec) -> None:
    """Keep the spec as it was given."""
    name = SPEC_OF_A_CALL if spec.source.path is None else SPEC
    write_atomically(folder / name, spec.source.text)


def has_sweep(folder: Path) -> bool:
    """Return whether a sweep was begun in the folder."""
    return (folder / SWEEP).is_file()


def refuse_used(folder: Path) -> None:
    """Raise UserError where there is a sweep, or the rest of one, which must not pass for another's results."""
    for name in (SWEEP, *RESULTS_OF_A_SWEEP):
        if (folder / name).exists():
            raise UserError(
                f"{folder} already holds a sweep ({name}): add --resume to continue it, or choose another --out"
            )


def refuse_others(folder: Path, spec: Spec) -> None:
    """Raise UserError, with the line of the first difference, unless the sweep was begun with this spec."""
    if not has_sweep(folder):
        raise UserError(f"nothing to resume: there is no sweep in {folder}")
    saved = described(folder).sweep
    now = spec.described()
    for name in sorted(saved | now):
        if saved.get(name) == now.get(name):
            continue
        is_searched = name in spec.task.hyperparameters or name in (*STANDARD, "seeds")
        field = (SECTION, name) if is_searched else (name,)
        then = f"{name} is {json.dumps(now.get(name))} here, but {json.dumps(saved.get(name))} in the sweep"
        spec.fail(field, f"{then} in {folder}; restore {folder / SPEC}, or choose another --out")


def resume(folder: Path, spec: Spec, examples: Examples, program_sha256: str) -> jax.Array:
    """Return the key of a sweep that was begun with this spec, these data and this model; UserError for another."""
    refuse_others(folder, spec)
    secret = records.read_json(folder / KEYS, Secret)
    if secret["data_sha256"] != examples.digest():
        raise UserError(f"the data are not those that the sweep in {folder} was begun with; choose another --out")
    if described(folder).program_sha256 != program_sha256:
        raise UserError(
            f"model, loss, scores or optimizer (or the version of jax) are not those that the sweep in {folder} was "
            "begun with: its rows would not be comparable; restore them, or choose another --out"
        )
    return jax.random.wrap_key_data(jnp.asarray(secret["key"], jnp.uint32))


def is_finished(folder: Path, spec: Spec) -> bool:
    """Return whether a sweep of this spec was run in the folder to its end."""
    for name in ("results.parquet", SWEEP):
        if not (folder / name).is_file():
            return False
    return described(folder).sweep == spec.described()


def described(folder: Path) -> Described:
    """Return the description that a folder has of its sweep."""
    if not has_sweep(folder):
        raise UserError(f"there is no sweep in {folder}")
    return msgspec.convert(records.read_json(folder / SWEEP, Described), Described)


def spec_text(folder: Path) -> str:
    """Return the spec of a sweep as it was given."""
    for name in (SPEC, SPEC_OF_A_CALL):
        path = folder / name
        if not path.is_file():
            continue
        try:
            return path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"{path} is damaged ({error}); restore it") from error
    return ""


def keys_of(trial: Trial, root: jax.Array) -> Keys:
    """Return a trial's own keys: those of `train` where it has a seed, else of the sweep's key, number and settings.

    A trial that is run again with other settings has other noise: with the same, the difference would have none.
    """
    if trial.seed is not None:
        return make_keys(trial.seed, identity(trial))
    key = with_settings(jax.random.fold_in(root, trial.number), identity(trial))
    init_key, training_key = jax.random.split(key, 2)
    return Keys(init_key, training_key)


def record_program(folder: Path, program: dict[str, Any]) -> None:
    """Record one more compiled program."""
    programs = [*read_programs(folder), program]
    lines = [json.dumps(each) + "\n" for each in programs]
    write_atomically(folder / PROGRAMS, "".join(lines))


def read_programs(folder: Path) -> list[dict[str, Any]]:
    """Return the programs that were compiled for a sweep, over all its resumptions."""
    path = folder / PROGRAMS
    if not path.is_file():
        return []
    return records.read_lines(path, CompiledProgram)
