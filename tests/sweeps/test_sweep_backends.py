"""Chunks run on any backend: the logic is tested with one that does nothing, and with a cluster that loses a node."""

import concurrent.futures
import functools
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from experiments import cli
from gdpjax.sweeps import UserError, _ray, _sweep, _worker, list_trials, plan_trials
from tests.sweeps import on_ray, sweeps
from tests.sweeps.sweeps import SEVERAL, SMALL, Watcher, examples_of, run_small, spec_of, sweep_of, timeless, write_rows

TWO_SHAPES = SMALL.replace("epochs = 1", "epochs = [1, 2]") + "learning_rate = [0.1, 0.2, 0.3]\n"


class Fake:
    """A backend that trains nothing: a chunk has made-up scores, or the error that ``error_of`` gives it."""

    def __init__(self, limits, error_of=lambda chunk: None):
        self.limits = limits
        self.error_of = error_of
        self.chunks = []

    def submit(self, chunk):
        self.chunks.append(chunk)
        future = concurrent.futures.Future()
        error = self.error_of(chunk)
        if error is not None:
            future.set_exception(error)
        else:
            rows = [_worker.row_of(trial, {"test_accuracy": 0.5}) for trial in chunk.trials]
            future.set_result(rows)
        return future

    def result(self, future):
        return future.result()


@functools.cache
def plans(text):
    spec = spec_of(text)
    return plan_trials(spec, list_trials(spec), 64)


def rows_of(folder):
    """Return the rows of sweeps of these tests."""
    layout = None
    if not (folder / "sweep.json").is_file():
        layout = sweep_of(folder, plans(TWO_SHAPES)).layout
    return sweeps.rows_of(folder, layout)


def numbers_of_trials(backend):
    """Return the numbers of the trials of each chunk that a backend was given."""
    return [[trial.number for trial in chunk.trials] for chunk in backend.chunks]


def run(folder, backend, done=()):
    observer = Watcher()
    folder.mkdir(exist_ok=True)
    sweep = sweep_of(folder, plans(TWO_SHAPES))
    if done:
        write_rows(folder, [_worker.row_of(trial) for trial in sweep.trials if trial.number in done], sweep.layout)
    _sweep.run_trials(sweep, backend, observer)
    return observer


def test_chunks_have_one_shape_and_every_trial_is_in_one(tmp_path):
    """The trials of a chunk have one number of steps, and all trials are on record."""
    backend = Fake(_worker.Limits(2, 10**9))
    observer = run(tmp_path, backend)
    assert len(observer.rows) == 6
    assert numbers_of_trials(backend) == [[0, 2], [4], [1, 3], [5]]
    for chunk in backend.chunks:
        assert len({trial.plan.num_steps for trial in chunk.trials}) == 1
    assert [row["trial"] for row in rows_of(tmp_path)] == list(range(6))


def test_what_is_done_is_not_submitted(tmp_path):
    """Trials that are on record are in no chunk."""
    backend = Fake(_worker.Limits(8, 10**9))
    run(tmp_path, backend, done=[0, 1, 5])
    assert numbers_of_trials(backend) == [[2, 4], [3]]


@pytest.mark.parametrize(
    ("count", "width", "slots", "expected"),
    [(32, 32, 1, [32]), (32, 16, 2, [16, 16]), (40, 16, 2, [10] * 4), (3, 32, 8, [1, 1, 1]), (33, 32, 1, [17, 16])],
)
def test_chunks_fill_the_places(count, width, slots, expected):
    """Trials are spread evenly over the places, in chunks as wide as the limit allows."""
    (trial,) = plans(SMALL)
    keys = {0: np.zeros((2, 2), np.uint32)}
    chunks = list(_sweep.chunks_of((8, 8.0), [trial] * count, keys, _worker.Limits(width, 10**9, slots)))
    assert [len(chunk.trials) for chunk in chunks] == expected
    assert {chunk.width for chunk in chunks} == {max(expected)}


def test_a_chunk_takes_its_keys_along(tmp_path):
    """The keys are those of the trial in chunks of any width, and no two trials share one."""
    keys_in_chunks_of_two = keys_by_trial(tmp_path / "0", width=2)
    keys_in_chunks_of_one = keys_by_trial(tmp_path / "1", width=1)
    assert keys_in_chunks_of_two == keys_in_chunks_of_one
    assert len(set(keys_in_chunks_of_two.values())) == 6


def keys_by_trial(folder, width):
    """Run a sweep in chunks of some width, and return the words of each trial's keys."""
    backend = Fake(_worker.Limits(width, 10**9))
    run(folder, backend)
    keys = {}
    for chunk in backend.chunks:
        for trial, key_data in zip(chunk.trials, chunk.key_data, strict=True):
            keys[trial.number] = key_data.tobytes()
    return keys


def test_a_chunk_that_kills_its_workers_is_the_failure_of_its_trials(tmp_path):
    """Every trial of a lost chunk has its error, and the others have their scores."""

    def lose_second_shape(chunk):
        if chunk.trials[0].number == 1:
            return _worker.ChunkLost("4 workers died of it")
        return None

    run(tmp_path, Fake(_worker.Limits(8, 10**9), lose_second_shape))
    errors = [row["error"] for row in rows_of(tmp_path)]
    assert errors == [None, "ChunkLost: 4 workers died of it"] * 3


def test_an_error_of_the_cluster_is_nobodys_result(tmp_path):
    """The sweep stops, finished trials are on record, and the rest is for --resume."""

    def fail_at_fourth(chunk):
        if chunk.trials[0].number == 4:
            return RuntimeError("no such cluster")
        return None

    with pytest.raises(RuntimeError, match="no such cluster"):
        run(tmp_path, Fake(_worker.Limits(2, 10**9), fail_at_fourth))
    on_record = {row["trial"] for row in rows_of(tmp_path)}
    assert 4 not in on_record

    run(tmp_path, Fake(_worker.Limits(2, 10**9)))
    assert [row["trial"] for row in rows_of(tmp_path)] == list(range(6))


def test_large_programs_run_one_at_a_time(monkeypatch, small_digits):
    """A program above its share of the memory has all of it, alone."""
    (trial,) = plans(SMALL)
    keys = {0: np.zeros((2, 2), np.uint32)}
    (chunk,) = _sweep.chunks_of((8, 8.0), [trial], keys, _worker.Limits(1, 100))
    worker = _worker.Worker(spec_of(SMALL).task, examples_of(small_digits), 100, slots=2)
    was_alone = []

    def outcomes(*_):
        was_alone.append(worker._alone.locked())
        return [_worker.row_of(trial, error="x")]

    monkeypatch.setattr(_worker, "_train", outcomes)

    # Each of the two slots has a share of 50 bytes.
    for memory_bytes, is_alone in ((50, False), (51, True)):
        program = SimpleNamespace(width=1, memory_bytes=memory_bytes)
        worker._compiled.clear()
        monkeypatch.setattr(worker, "_compile", lambda chunk, program=program: SimpleNamespace(program=program))
        worker.run(chunk)
        assert was_alone.pop() is is_alone


def test_ray_that_is_not_installed_is_named_before_anything_runs(tmp_path, monkeypatch, capsys):
    """Without Ray the command says what to install, and makes no folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "ray", None)
    Path("sweep.toml").write_text(SMALL)
    assert cli.main(["sweep", "sweep.toml", "--backend", "ray"]) == 2
    complaint = capsys.readouterr().err
    assert "--backend ray needs Ray" in complaint
    assert "pip install '.[distributed]'" in complaint

    # Options of Ray belong to its backend.
    assert cli.main(["sweep", "sweep.toml", "--ray-address", "127.0.0.1:6379"]) == 2
    assert "--ray-address is for --backend ray" in capsys.readouterr().err
    assert not Path("runs").exists()


def test_a_node_with_other_versions_is_refused(small_digits):
    """A chunk does not run on a node that has another JAX than the driver."""
    versions = _ray.versions() | {"jax": "0.1"}
    with pytest.raises(UserError, match="install the same versions"):
        _ray._run_chunk(None, None, None, 10**9, versions)


def ray_process(*arguments):
    """Start a process of its own that uses Ray, whose warnings would be errors in this one."""
    pytest.importorskip("ray", reason="needs the extra distributed")
    environment = os.environ | {"RAY_USAGE_STATS_ENABLED": "0", "RAY_DEDUP_LOGS": "0"}
    command = [sys.executable, on_ray.__file__, *(str(argument) for argument in arguments)]
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    return subprocess.Popen(command, env=environment, text=True, **pipes)


@pytest.mark.slow
def test_a_cluster_that_loses_a_node_gives_the_same_rows(tmp_path, small_digits):
    """Two nodes, one of which is removed while its chunk runs, give the rows of this machine alone."""
    run_small(SEVERAL, small_digits, tmp_path / "local")
    with ray_process("two-nodes", tmp_path / "ray") as process:
        said, complaints = process.communicate(timeout=540)
    assert process.returncode == 0, complaints[-4000:]
    story = json.loads(said.splitlines()[-1])
    assert story["nodes"] == 2
    assert story["removed_after"] < 7, "both nodes had a chunk when one was removed"
    assert story["left"] == 1
    assert timeless(rows_of(tmp_path / "ray")) == timeless(rows_of(tmp_path / "local"))
    numbers = [row["trial"] for rows in story["chunks"] for row in rows]
    assert sorted(numbers) == list(range(8)), "each trial on record once"


@pytest.mark.slow
def test_killed_on_a_cluster_and_resumed_loses_and_repeats_nothing(tmp_path, small_digits):
    """A sweep whose driver is killed goes on with the trials that are not on record, and has the same rows."""
    run_small(SEVERAL, small_digits, tmp_path / "local")
    folder = tmp_path / "ray"
    with ray_process("cluster", 1) as cluster:
        address = cluster.stdout.readline().strip()
        with ray_process("begin", folder, address, 2) as killed:
            assert killed.stdout.readline() == "chunk 2\n"
            killed.kill()
            killed.communicate()
        num_kept = len(rows_of(folder))
        assert 2 <= num_kept < 8, "killed in the middle"
        num_chunks_left = (8 - num_kept) // 2
        with ray_process("resume", folder, address, 2) as resumed:
            said, complaints = resumed.communicate(timeout=540)
        assert resumed.returncode == 0, complaints[-4000:]
        assert said == "chunk 2\n" * num_chunks_left, "what was on record is not done again"
        cluster.communicate(timeout=60)
    assert timeless(rows_of(folder)) == timeless(rows_of(tmp_path / "local"))
