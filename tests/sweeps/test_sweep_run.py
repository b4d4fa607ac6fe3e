"""A sweep has one program for each shape, runs each trial as if alone, and loses nothing."""

import dataclasses
import fcntl
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

import gdpjax
from experiments import cli
from experiments.data import LOADERS, Dataset
from gdpjax.sweeps import (
    Blueprint,
    RunInterrupted,
    UserError,
    _folder,
    _program,
    _sweep,
    _worker,
    arguments_of,
    list_trials,
    make_keys,
    make_program,
    plan_trials,
    report_sweep,
)
from tests.compilations import Compilations
from tests.sweeps import sweeps
from tests.sweeps.sweeps import (
    SEVERAL,
    SMALL,
    Watcher,
    examples_of,
    local,
    on,
    rows_of,
    run_small,
    spec_of,
    sweep_of,
    timeless,
)

PARTS, RESULTS, KEYS, SWEEP = "parts", "results.parquet", "keys.NOT_FOR_RELEASE.json", "sweep.json"
pytestmark = pytest.mark.usefixtures("shared_programs")


def plans(text, dataset):
    """The trials of a spec."""
    spec = spec_of(text)
    return plan_trials(spec, list_trials(spec), dataset.num_examples)


@pytest.fixture(scope="module")
def several(shared_programs, tmp_path_factory, small_digits):
    """Eight trials of one shape, two at a time."""
    folder = tmp_path_factory.mktemp("several") / "sweep"
    run_small(SEVERAL, small_digits, folder)
    return folder


def test_one_program_for_each_shape(several, tmp_path, small_digits):
    """The program of 8 steps may be another test's."""
    text = SMALL.replace("epochs = 1", "epochs = [1, 2]") + "learning_rate = [0.1, 0.2, 0.3, 0.4]\n"
    trials = plans(text, small_digits)
    sweep, examples = sweep_of(tmp_path, trials), examples_of(small_digits)
    with Compilations() as compilations:
        watcher = Watcher(compilations)
        _sweep.run_trials(sweep, local()(sweep.task, examples, watcher), watcher)
    first, second, third, fourth = watcher.at_chunk
    assert second == first, "nothing is compiled once a shape has its program"
    assert third > second
    assert fourth == third
    rows = rows_of(tmp_path, sweep.layout)
    assert [row["trial"] for row in rows] == list(range(8))
    assert [row["num_steps"] for row in rows] == [8, 16] * 4
    assert all(row["error"] is None for row in rows)


def test_together_is_as_alone(several, small_digits):
    """A trial among others, and what ``train`` does with its settings and seed, are one run up to rounding."""
    trials = plans(SEVERAL, small_digits)
    chosen = [trials[2], trials[5]]
    blueprint = Blueprint(spec_of(SEVERAL).task, examples_of(small_digits), chosen[0].plan, chosen[0].settings)
    data = blueprint.training(chosen[0].settings).place(*blueprint.examples.train)
    program = make_program(blueprint, data, width=2, memory_bytes=10**9)
    keys = [trial.keys(jax.random.key(0)) for trial in chosen]
    arguments = arguments_of([trial.settings for trial in chosen], keys, blueprint.real, 2)
    together = _worker.lane(program.run(*arguments, data, lambda steps: None), 1)
    own, settings = make_keys(3, chosen[1].identity()), chosen[1].settings
    training = blueprint.training(settings)
    alone = training.init(blueprint.model(settings).init(own.init), own.training)
    for _ in range(8):
        alone, _ = training.step(alone, data)
    for ours, theirs in zip(jax.tree.leaves(together.params), jax.tree.leaves(alone.params), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)
    assert gdpjax.ledger_of(together.opt_state) == gdpjax.ledger_of(alone.opt_state)
    scores = _worker.make_scores(blueprint)(settings, alone.params)
    assert rows_of(several)[5]["test_accuracy"] == scores["test_accuracy"]


def test_every_trial_has_its_own_noise(small_digits):
    """Trap 38: neither seeds nor configurations share a key, and seeds of one configuration end differently."""
    seeded = plans(SEVERAL.replace("[3]", "[3, 4]"), small_digits)
    unseeded = plans(SEVERAL.replace("[3]", "3"), small_digits)
    for trials in (seeded, unseeded):
        keys = [trial.keys(jax.random.key(1)) for trial in trials]
        assert len({np.asarray(jax.random.key_data(k)).tobytes() for pair in keys for k in pair}) == 2 * len(trials)
    with pytest.raises(UserError, match="the same noise"):
        _sweep.distinct_keys([*trials, dataclasses.replace(trials[0], settings=trials[0].settings)], jax.random.key(1))
    other = [trial.keys(jax.random.key(2)) for trial in unseeded]
    assert len({np.asarray(jax.random.key_data(k)).tobytes() for pair in keys + other for k in pair}) == 96


def test_threads_change_nothing(several, tmp_path, small_digits):
    """Two chunks at a time give the same rows, each once."""
    run_small(SEVERAL, small_digits, tmp_path / "0", backend_for=local(2, slots=2))
    assert timeless(rows_of(tmp_path / "0")) == timeless(rows_of(several))


def test_failing_trials_are_on_record_and_the_others_go_on(tmp_path, small_digits):
    """A trial that diverges has its error on record, and the others their scores."""
    text = SMALL + "learning_rate = [0.5, 3e38]\nnoise_multiplier = 2.0\n"
    run_small(text, small_digits, tmp_path / "0", backend_for=local(4))
    good, diverged = rows_of(tmp_path / "0")
    assert good["error"] is None
    assert good["test_accuracy"] is not None
    assert "diverged" in diverged["error"]
    assert diverged["test_accuracy"] is None
    assert diverged["epsilon_upper"] == good["epsilon_upper"]
    assert diverged["num_steps"] == 8


def test_a_batch_that_does_not_fit_is_a_failure(tmp_path, small_digits, monkeypatch):
    """A trial with an overflowing batch has failed, and is charged for all planned steps."""

    def overflow(self, *arguments):
        state = run(self, *arguments)
        return state._replace(status=state.status.at[1].set(2))  # overflowed

    run = _program.Program.run
    monkeypatch.setattr(_program.Program, "run", overflow)
    run_small(SMALL + "learning_rate = [0.5, 0.25]\n", small_digits, tmp_path / "0")
    good, stopped = rows_of(tmp_path / "0")
    assert good["error"] is None
    assert "BatchOverflowError: a batch exceeded the planned capacity" in stopped["error"]
    assert stopped["num_steps"] == 8, "the planned maximum is charged, whenever it stopped"


def test_errors_that_are_raised_are_those_of_their_trials(tmp_path, small_digits, monkeypatch):
    """The compiler fails for one shape, the second chunk of the other runs out of memory."""
    trials = plans(SMALL.replace("epochs = 1", "epochs = [1, 2]") + "learning_rate = [0.1, 0.2, 0.3]\n", small_digits)

    def make(blueprint, *arguments, **limits):
        if blueprint.plan.num_steps == 8:
            raise UserError("needs more than --memory-gb allows")
        return _program.Program(1, 1, 1, None, None, memory_bytes=1)

    def outcomes(compiled, trials, key_data, on_steps):
        if trials[0].number == 3:
            return _worker.failures(trials, RuntimeError("RESOURCE_EXHAUSTED: Out of\nmemory"))
        return [_worker.row_of(trial, {"test_accuracy": 0.5}) for trial in trials]

    monkeypatch.setattr(_worker, "make_program", make)
    monkeypatch.setattr(_worker, "_train", outcomes)
    sweep = sweep_of(tmp_path, trials)
    _sweep.run_trials(sweep, local()(sweep.task, examples_of(small_digits), Watcher()), Watcher())
    errors = [row["error"] for row in rows_of(tmp_path, sweep.layout)]
    memory, exhausted = "needs more than --memory-gb allows", "RuntimeError: RESOURCE_EXHAUSTED: Out of memory"
    assert errors == [memory, None, memory, exhausted, memory, None]


def test_a_ledger_that_is_not_the_plans_is_noticed(small_digits):
    """A state that was made with less noise than the trial's plan is refused."""
    (trial,) = plans(SMALL, small_digits)
    louder = trial.plan.replace(noise_multiplier=1.0)
    settings = trial.settings | {"noise_multiplier": 1.0}
    blueprint = Blueprint(spec_of(SMALL).task, examples_of(small_digits), louder, settings)
    params = blueprint.model(settings).init(jax.random.key(0))
    state = blueprint.training(settings).init(params, jax.random.key(1))
    with pytest.raises((RuntimeError, ValueError)):
        _worker.refuse_wrong_ledger(trial, state)


def fake_compile(each):
    """A compiler that says that a program of width w needs 10^6 + w ``each`` bytes."""

    def compile_(blueprint, data, width):
        return _program.Program(width, 1, 1, None, None, memory_bytes=10**6 + width * each)

    return compile_


def test_the_width_follows_the_memory(monkeypatch):
    """As many trials run side by side as the memory allows, by halves of the width."""
    monkeypatch.setattr(_program, "_compile", fake_compile(1000))
    fits = make_program(None, None, width=32, memory_bytes=10**6 + 32_000)
    assert fits.width == 32
    narrow = make_program(None, None, width=32, memory_bytes=10**6 + 5_500)
    assert narrow.width == 4
    with pytest.raises(UserError, match=r"one trial alone needs 0\.001 GB.*--memory-gb"):
        make_program(None, None, width=32, memory_bytes=10**6)


def test_convolutions_keep_the_loop_outside(small_digits):
    """The loop over steps is outside the program for a model with convolutions, and inside for another."""
    images = np.zeros((4, 28, 28, 1), np.float32)
    mnist = Dataset(images, np.arange(4, dtype=np.int32), images, np.arange(4, dtype=np.int32))
    for text, data, outside in (('dataset = "mnist"\n', mnist, True), (SMALL, small_digits, False)):
        spec = spec_of(text)
        blueprint = Blueprint(spec.task, examples_of(data), None, list_trials(spec)[0].settings)
        assert _program._loops_outside(blueprint) is outside


class Killed(BaseException):
    """Stands for kill -9 where a process of its own would be too slow."""


def killed_here(folder, dataset):
    """Stop without any farewell once two chunks are on record."""

    class Killing(sweeps.Progress):
        num_chunks = 0

        def on_chunk(self, rows):
            self.num_chunks += 1
            if self.num_chunks == 2:
                raise Killed

    with pytest.raises(Killed):
        run_small(SEVERAL, dataset, folder, progress=Killing)


def killed_elsewhere(folder, dataset):
    """Kill a process of its own in the middle of the third chunk."""
    command = [sys.executable, str(Path(sweeps.__file__)), str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        said = [next(process.stdout).split()[0] for _ in range(3)]
        process.send_signal(signal.SIGKILL)
        process.stdout.read()
    assert process.wait() == -signal.SIGKILL
    assert sorted(said) == ["chunk", "chunk", "third"]


@pytest.mark.parametrize("kill", [killed_here, pytest.param(killed_elsewhere, marks=pytest.mark.slow)])
def test_killed_and_resumed_loses_and_repeats_nothing(kill, several, tmp_path, small_digits):
    """A killed sweep keeps its parts, trains the missing trials, and has the rows of one that was not killed."""
    folder = tmp_path / "killed"
    kill(folder, small_digits)
    kept = rows_of(folder)
    assert len(kept) == 4
    before = {path.name: path.read_bytes() for path in (folder / PARTS).iterdir()}
    (folder / PARTS / "part-000002.parquet.partial").write_bytes(b"half a file")
    run_small(SEVERAL, small_digits, folder, resume=True)
    for name, content in before.items():
        assert (folder / PARTS / name).read_bytes() == content
    numbers = [row["trial"] for path in sorted((folder / PARTS).glob("*.parquet")) for row in _parts(path)]
    assert sorted(numbers) == list(range(8)), "each trial once, over all parts"
    assert timeless(rows_of(folder)) == timeless(rows_of(several))


def test_a_sweep_goes_on_with_the_key_that_it_kept(several, tmp_path, small_digits, monkeypatch):
    """A new one would give trials without a seed other noise than their record was made with."""
    roots = []
    monkeypatch.setattr(_sweep, "distinct_keys", lambda trials, root: roots.append(root) or {})
    for name in ("one", "other"):
        run_small(SEVERAL, small_digits, shutil.copytree(several, tmp_path / name), resume=True)
    assert np.array_equal(*map(jax.random.key_data, roots))
    assert (several / KEYS).stat().st_mode & 0o077 == 0


def _parts(path):
    import pyarrow.parquet

    return pyarrow.parquet.read_table(path).to_pylist()


def test_a_folder_of_another_sweep_is_refused(several, small_digits):
    """A sweep goes on only in its own folder, with its own spec and data, and the difference is named."""
    with pytest.raises(UserError, match=r"already holds a sweep \(sweep.json\): add --resume"):
        run_small(SEVERAL, small_digits, several)
    other = SEVERAL.replace("[2.0, 4.0]", "[2.0, 5.0]")
    message = r"noise_multiplier: \[2.0, 4.0\] then, \[2.0, 5.0\] now"
    with pytest.raises(UserError, match=message):
        run_small(other, small_digits, several, resume=True)
    with pytest.raises(UserError, match="dataset: 'digits' then, 'mnist' now"):
        run_small(SEVERAL.replace("digits", "mnist"), small_digits, several, resume=True)
    changed = dataclasses.replace(small_digits, train_labels=small_digits.train_labels[::-1])
    with pytest.raises(UserError, match="the data are not those"):
        run_small(SEVERAL, changed, several, resume=True)
    with pytest.raises(UserError, match="there is no sweep in"):
        run_small(SEVERAL, small_digits, several / "none", resume=True)


def test_a_sweep_that_is_running_is_not_resumed_beside_it(several, tmp_path, small_digits):
    """A second process, for which an open file stands here, and a second thread are refused."""
    folder = shutil.copytree(several, tmp_path / "sweep")
    with (folder / "lock").open("r+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(UserError, match=r"another process .* is running the sweep .*: wait for it, or end it"):
            run_small(SEVERAL, small_digits, folder, resume=True)
    with _folder.only_here(folder), pytest.raises(UserError, match="running in another thread"):
        run_small(SEVERAL, small_digits, folder, resume=True)
    run_small(SEVERAL, small_digits, folder, resume=True)
    with (folder / "lock").open("r+") as file:
        # It is released at the end.
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_what_is_left_of_another_sweep_is_not_taken_for_this_ones(several, tmp_path, small_digits):
    _folder.finish(several, _folder.described(several).layout)
    for name in (PARTS, RESULTS):
        folder = tmp_path / name.split(".")[0]
        folder.mkdir()
        (shutil.copytree if (several / name).is_dir() else shutil.copy)(several / name, folder / name)
        with pytest.raises(UserError, match=rf"already holds a sweep \({name}\): add --resume"):
            run_small(SEVERAL.replace("epochs = 1", "epochs = 2"), small_digits, folder)
        assert [path.name for path in folder.iterdir()] == [name], "nothing is written there"


def test_a_damaged_folder_is_named(several, tmp_path, small_digits):
    _folder.finish(several, _folder.described(several).layout)
    folder = tmp_path / "sweep"
    shutil.copytree(several, folder)
    (folder / KEYS).unlink()
    with pytest.raises(UserError, match=f"{KEYS} is missing; restore it"):
        run_small(SEVERAL, small_digits, folder, resume=True)
    for key in ("[1]", "[-1, 0]", '"1"'):
        (folder / KEYS).write_text(f'{{"key": {key}, "data_sha256": "x"}}')
        with pytest.raises(UserError, match=f"{KEYS} is damaged .*; restore it"):
            run_small(SEVERAL, small_digits, folder, resume=True)
    for text in ('{"sweep": ', '{"sweep": 3, "num_trials": 1}', '{"sweep": {"dataset": 1}, "num_trials": 1}'):
        (folder / SWEEP).write_text(text)
        with pytest.raises(UserError, match=f"{SWEEP} is damaged .*; restore it"):
            report_sweep(folder)
    with pytest.raises(UserError, match=f"{SWEEP} is damaged .*; restore it"):
        run_small(SEVERAL, small_digits, folder, resume=True)


def test_a_model_that_is_not_for_the_data_is_refused_with_its_line(tmp_path, small_digits):
    with pytest.raises(UserError, match=r"sweep.toml, line 1: a training failed"):
        run_small('model = "paper_text"' + SMALL, small_digits, tmp_path / "sweep")
    assert not (tmp_path / "sweep").exists()


def test_a_sweep_of_failures_says_why_and_fails(tmp_path, capsys, monkeypatch, small_digits):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(LOADERS, "digits", lambda: small_digits)
    Path("sweep.toml").write_text(SMALL + "learning_rate = [2e38, 3e38]\n")
    assert cli.main(["sweep", "sweep.toml"]) == 2
    said = capsys.readouterr()
    assert "2 of 2 trials finished, 2 failed" in said.out
    assert "2 trials failed: " in said.out
    assert "diverged" in said.out
    assert "every trial failed" in said.err
    assert Path("runs/sweep-sweep/report/index.html").is_file()


def test_an_interrupted_sweep_says_truly_what_was_begun(several, tmp_path, small_digits, monkeypatch):
    def interrupted(*arguments):
        raise KeyboardInterrupt

    def sweep(folder, **options):
        with pytest.raises(RunInterrupted) as stop:
            _sweep.run_sweep(None, on(small_digits, SEVERAL), folder, **options)
        return str(stop.value)

    used = shutil.copytree(several, tmp_path / "used")
    monkeypatch.setattr(_sweep, "run_trials", interrupted)
    assert "finished trials are on record" in sweep(tmp_path / "running")
    for name in ("plan_trials", "load_examples", "list_trials"):
        monkeypatch.setattr(_sweep, name, interrupted)
        assert "before the first trial: nothing was begun" in sweep(tmp_path / "new")
        assert not (tmp_path / "new").exists()
        assert "--resume" in sweep(used, resume=True)
    with pytest.raises(UserError, match="already holds a sweep"):
        _sweep.run_sweep(None, on(small_digits, SEVERAL), used)


def test_a_damaged_part_is_named(several, tmp_path):
    """A part that cannot be read is refused by its name, with what to do."""
    layout = _folder.described(several).layout
    _folder.write_part(tmp_path, rows_of(several)[:1], layout)
    (tmp_path / PARTS / "part-000000.parquet").write_bytes(b"PAR1 and no more")
    with pytest.raises(UserError, match=r"part-000000\.parquet is damaged.*remove it"):
        rows_of(tmp_path, layout)
