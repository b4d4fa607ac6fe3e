"""Where chunks run: the logic of it with backends that are not there, and a Ray cluster that loses a node."""

import concurrent.futures
import functools
import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import jax
import pytest

from experiments import cli
from experiments.errors import UserError
from gdpjax.sweeps import _folder, _ray, _sweep
from gdpjax.sweeps._run import ChunkLost, Limits, chunks_of, run_trials
from gdpjax.sweeps._trials import list_trials, plan_trials
from gdpjax.sweeps._worker import Outcome, Result, Worker
from tests.sweeps import on_ray, sweeps
from tests.sweeps.sweeps import SEVERAL, SMALL, examples_of, run_small, spec_of, sweep_of

TWO_SHAPES = SMALL.replace("epochs = 1", "epochs = [1, 2]") + "learning_rate = [0.1, 0.2, 0.3]\n"


class Fake:
    """A backend that does nothing until it is told to, in any order."""

    def __init__(self, limits, outcome=lambda chunk: None):
        self.limits, self.outcome, self.chunks = limits, outcome, []

    def submit(self, chunk):
        self.chunks.append(chunk)
        future = concurrent.futures.Future()
        if error := self.outcome(chunk):
            future.set_exception(error)
        else:
            future.set_result(Result([Outcome(trial, {"test_accuracy": 0.5}) for trial in chunk.trials], None))
        return future


class Silent:
    def __init__(self):
        self.rows = []

    def on_start(self, num_trials, on_record):
        pass

    def on_chunks(self, description):
        pass

    def on_chunk(self, rows):
        self.rows += rows


@functools.cache
def plans(text):
    return plan_trials(None, list_trials(spec_of(text)), 64)


def rows_of(folder):
    """The rows of sweeps of these tests."""
    described = folder / _folder.SWEEP
    layout = None if described.is_file() else sweep_of(folder, plans(TWO_SHAPES)).layout
    return sweeps.rows_of(folder, layout)


def run(folder, backend, done=()):
    observer = Silent()
    folder.mkdir(exist_ok=True)
    on_record = [{"trial": number} for number in done]
    run_trials(sweep_of(folder, plans(TWO_SHAPES)), on_record, backend, observer)
    return observer


def test_chunks_have_one_shape_and_every_trial_is_in_one(tmp_path):
    backend = Fake(Limits(2, 10**9))
    assert len(run(tmp_path, backend).rows) == 6
    numbers = [[trial.number for trial in chunk.trials] for chunk in backend.chunks]
    assert numbers == [[0, 2], [4], [1, 3], [5]]
    assert all(len({trial.plan.max_steps for trial in chunk.trials}) == 1 for chunk in backend.chunks)
    assert [row["trial"] for row in rows_of(tmp_path)] == list(range(6))


def test_what_is_done_is_not_submitted(tmp_path):
    backend = Fake(Limits(8, 10**9))
    run(tmp_path, backend, done=[0, 1, 5])
    assert [[trial.number for trial in chunk.trials] for chunk in backend.chunks] == [[2, 4], [3]]


@pytest.mark.parametrize(
    ("count", "width", "slots", "expected"),
    [(32, 32, 1, [32]), (32, 16, 2, [16, 16]), (40, 16, 2, [10] * 4), (3, 32, 8, [1, 1, 1]), (33, 32, 1, [17, 16])],
)
def test_chunks_fill_the_places(count, width, slots, expected):
    (trial,) = plans(SMALL)
    keys = {0: tuple(jax.random.split(jax.random.key(0)))}
    chunks = list(chunks_of((8, 8.0), [trial] * count, keys, Limits(width, 10**9, slots)))
    assert [len(chunk.trials) for chunk in chunks] == expected
    assert {chunk.width for chunk in chunks} == {max(expected)}


def test_a_chunk_takes_its_keys_along(tmp_path):
    """Whoever runs it, and how often: the keys are those of the trial, and no two trials share one."""
    first, second = Fake(Limits(2, 10**9)), Fake(Limits(1, 10**9))
    run(tmp_path / "0", first)
    run(tmp_path / "1", second)
    by_trial = [
        {
            t.number: data.tobytes()
            for chunk in backend.chunks
            for t, data in zip(chunk.trials, chunk.key_data, strict=True)
        }
        for backend in (first, second)
    ]
    assert by_trial[0] == by_trial[1]
    assert len(set(by_trial[0].values())) == 6


def test_a_chunk_that_kills_its_workers_is_the_failure_of_its_trials(tmp_path):
    lost = lambda chunk: ChunkLost("4 workers died of it") if chunk.trials[0].number == 1 else None  # noqa: E731
    run(tmp_path, Fake(Limits(8, 10**9), lost))
    errors = [row["error"] for row in rows_of(tmp_path)]
    assert errors == [None, "ChunkLost: 4 workers died of it"] * 3


def test_an_error_of_the_cluster_is_nobodys_result(tmp_path):
    """The sweep stops, what was done is on record, and the rest is for --resume."""
    gone = lambda chunk: RuntimeError("no such cluster") if chunk.trials[0].number == 4 else None  # noqa: E731
    with pytest.raises(RuntimeError, match="no such cluster"):
        run(tmp_path, Fake(Limits(2, 10**9), gone))
    assert not {4} & {row["trial"] for row in rows_of(tmp_path)}
    run(tmp_path, Fake(Limits(2, 10**9)), done={row["trial"] for row in rows_of(tmp_path)})
    assert [row["trial"] for row in rows_of(tmp_path)] == list(range(6))


def test_large_programs_run_one_at_a_time(monkeypatch, small_digits):
    """A program above its share of the memory has all of it, alone."""
    (trial,) = plans(SMALL)
    (chunk,) = chunks_of((8, 8.0), [trial], {0: tuple(jax.random.split(jax.random.key(0)))}, Limits(1, 100))
    worker = Worker(spec_of(SMALL).task, examples_of(small_digits), 100, slots=2)
    held = []
    for size, alone in ((50, False), (51, True)):
        program = SimpleNamespace(width=1, memory_bytes=size)
        monkeypatch.setattr(worker, "compiled", lambda chunk, p=program: (SimpleNamespace(program=p), None))
        monkeypatch.setattr(
            worker, "outcomes", lambda *_: held.append(worker._alone.locked()) or [Outcome(trial, error="x")]
        )
        worker.run(chunk)
        assert held.pop() is alone


def test_ray_that_is_not_installed_is_named_before_anything_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "ray", None)
    Path("sweep.toml").write_text(SMALL)
    assert cli.main(["sweep", "sweep.toml", "--backend", "ray"]) == 2
    assert "--backend ray needs Ray" in (said := capsys.readouterr().err)
    assert "pip install 'gdpjax[distributed]'" in said
    assert cli.main(["sweep", "sweep.toml", "--ray-address", "127.0.0.1:6379"]) == 2
    assert "--ray-address is for --backend ray" in capsys.readouterr().err
    assert not Path("runs").exists()


def test_an_address_without_a_cluster_is_one_line(small_digits, monkeypatch):
    monkeypatch.setattr(_ray, "import_ray", lambda: None)  # nothing of Ray is needed to find that out
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"  # nobody listens there
        with pytest.raises(UserError, match=f"no Ray cluster at {address}.*ray start --head"):
            _ray.RayBackend(spec_of(SMALL).task, examples_of(small_digits), 1, 10**9, address)


def test_a_node_with_other_versions_is_refused(small_digits):
    with pytest.raises(UserError, match="install the same versions"):
        _ray._run_chunk(None, None, None, 10**9, _ray.versions() | {"jax": "0.1"})


def test_local_places(monkeypatch):
    monkeypatch.setattr(_sweep, "num_slots", lambda: 4)
    backend = _sweep.backend_of("local", 32, 4.0, None)(None, None, None)
    assert backend.limits == Limits(8, 4 * 10**9, 4)
    backend.close()
    backend = _sweep.backend_of("local", 2, 4.0, None)(None, None, None)
    assert (backend.limits.width, backend.limits.slots) == (1, 2)
    backend.close()


def ray_process(*arguments):
    """Ray's own warnings are its business: it runs in processes of its own."""
    pytest.importorskip("ray", reason="needs the extra distributed")
    quiet = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_DEDUP_LOGS": "0"}
    command = [sys.executable, on_ray.__file__, *map(str, arguments)]
    piped = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    return subprocess.Popen(command, env={**os.environ, **quiet}, text=True, **piped)


@pytest.mark.slow
def test_a_cluster_that_loses_a_node_gives_the_same_rows(tmp_path, small_digits):
    """Two real nodes, one of which is removed while its chunk runs: as on this machine alone, row for row."""
    run_small(SEVERAL, small_digits, tmp_path / "local")
    with ray_process("two-nodes", tmp_path / "ray") as process:
        said, complaints = process.communicate(timeout=540)
    assert process.returncode == 0, complaints[-4000:]
    story = json.loads(said.splitlines()[-1])
    assert story["nodes"] == 2
    assert story["removed_after"] < 7, "both nodes had a chunk when one was removed"
    assert story["left"] == 1
    ours, theirs = rows_of(tmp_path / "local"), rows_of(tmp_path / "ray")
    assert [row | {"seconds": 0} for row in theirs] == [row | {"seconds": 0} for row in ours]
    parts = [row["trial"] for rows in story["chunks"] for row in rows]
    assert sorted(parts) == list(range(8)), "each trial on record once"


@pytest.mark.slow
def test_killed_on_a_cluster_and_resumed_loses_and_repeats_nothing(tmp_path, small_digits):
    run_small(SEVERAL, small_digits, tmp_path / "local")
    folder = tmp_path / "ray"
    with ray_process("cluster") as cluster:
        address = cluster.stdout.readline().strip()
        with ray_process("begin", folder, address) as killed:
            assert killed.stdout.readline() == "chunk 2\n"
            killed.kill()
            killed.communicate()
        kept = [row["trial"] for row in rows_of(folder)]
        assert 2 <= len(kept) < 8, "killed in the middle"
        with ray_process("resume", folder, address) as resumed:
            said, complaints = resumed.communicate(timeout=540)
        assert resumed.returncode == 0, complaints[-4000:]
        assert said == "chunk 2\n" * ((8 - len(kept)) // 2), "what was on record is not done again"
        cluster.communicate(timeout=60)
    ours, theirs = rows_of(tmp_path / "local"), rows_of(folder)
    assert [row | {"seconds": 0} for row in theirs] == [row | {"seconds": 0} for row in ours]


@pytest.mark.parametrize(("number", "words"), [(1, "1 node, 1 chunk at"), (2, "2 nodes, 2 chunks at")])
def test_one_node_is_not_nodes(number, words):
    cluster = SimpleNamespace(nodes=lambda: [{"Alive": True}] * number)
    backend = SimpleNamespace(_ray=cluster, limits=Limits(1, 10**9, number))
    assert _ray.RayBackend.description.fget(backend) == f"Ray cluster of {words} a time"
