"""A run in a folder: killed anywhere, it goes on; nothing is paid twice, no noise is used for two gradients."""

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gdpjax
from gdpjax.training import CheckpointError, resume_run, start_run
from tests.training import interrupted as runs
from tests.training import killed
from tests.training.interrupted import CHECKPOINTS, KEY, Killed, committed, stopped


@pytest.fixture(scope="module")
def whole(small, tmp_path_factory):
    """The uninterrupted run's folder and final state."""
    return finished(start_run(tmp_path_factory.mktemp("whole") / "run", *small, key=KEY, scan=False))


def begun(small, folder):
    """Start the small run, whose steps are taken one by one."""
    return committed(start_run(folder, *small, key=KEY, scan=False))


def finished(run, chunk=7):
    runs.finished(run, chunk)
    return run


def same(first, second):
    """Whether parameters, moments, noise key and ledger of two states are equal bit for bit."""
    ours = jax.tree.leaves((first.params, first.opt_state))
    theirs = jax.tree.leaves((second.params, second.opt_state))
    return all(np.array_equal(one, other) for one, other in zip(ours, theirs, strict=True))


def num_lines(folder):
    return len((folder / CHECKPOINTS / "journal.jsonl").read_text().splitlines())


def interrupted(small, folder, at):
    """Stop without any farewell after ``at`` steps, in chunks of seven."""
    runs.interrupted(small, folder, at, 7, KEY)
    return folder


def test_a_run_that_stopped_states_what_was_planned_and_what_was_made(small, whole, tmp_path):
    """Trap 35: the guarantee stays that of the plan; the smaller epsilon has its condition beside it."""
    run = begun(small, tmp_path / "run")
    run.advance(7)
    lines = run.statement().splitlines()
    made = lines.pop(4)
    assert lines == run.training.plan.statement().splitlines() == whole.statement().splitlines()
    assert made.startswith("Steps: 7 of the 20 planned steps were made. The guarantee above is for all 20. ")
    assert "only if the decision to stop depended neither on the data nor on anything computed from them" in made
    (epsilon,) = re.findall(r"epsilon <= ([\d.]+)", made)
    upper = gdpjax.accounting.epsilon_bounds(run.ledger, delta=run.training.plan.delta).upper
    assert upper <= float(epsilon) < 1.001 * upper

    card = gdpjax.report(run.folder, deltas=[1e-5])
    assert made.removeprefix("Steps: ") in " ".join(card.to_text().split())
    assert "steps made & 7 of 20" in card.to_latex()
    assert card.figure("epsilon_at_delta_1e-05") == tuple(run.training.plan.curve.epsilon(1e-5))
    assert "steps made" not in gdpjax.report(whole.folder, deltas=[1e-5]).to_latex()


def test_a_report_counts_steps_that_were_scored_before_the_run_was_killed(small, tmp_path):
    """What is written of a chunk may be seen before its checkpoint; the journal has paid for it."""
    run = begun(small, tmp_path / "run")
    run.advance(4)

    def killed_after_scoring(infos):
        raise Killed

    with pytest.raises(Killed):
        run.advance(7, before_checkpoint=killed_after_scoring)
    assert "steps made & 11 of 20" in gdpjax.report(run.folder, deltas=[1e-5]).to_latex()


def test_what_is_not_marked_holds_nothing_of_the_data(whole):
    """Trap 36: the digest of the data, and the keys, are only in the folder that is not for release."""
    digest = whole.fingerprint["data"]
    assert digest in whole.journal.read_text()
    public = [path for path in whole.folder.rglob("*") if path.is_file() and CHECKPOINTS not in path.parts]
    assert [path.name for path in public] == ["plan.json"]
    assert all(digest not in path.read_text() for path in public)


@pytest.mark.parametrize("at", [1, 7, 12, killed.NUM_STEPS])
def test_interrupted_equals_uninterrupted(small, whole, tmp_path, at):
    """Trap 12: the lost chunk is repeated with the same keys; bit for bit, charged once."""
    run = resume_run(interrupted(small, tmp_path / "run", at), *small, scan=False)
    assert run.num_lost == 0
    assert same(finished(run).state, whole.state)
    assert run.ledger == whole.ledger


def test_a_lost_chunk_is_repeated_in_its_own_length(small, whole, tmp_path):
    """Another chunk length would be another program; the journal decides."""
    run = resume_run(interrupted(small, tmp_path / "run", 12), *small, scan=False)
    assert run.step == 7
    run.advance(2)
    assert run.step == 14


def test_scanned_chunks_resume_too(small, tmp_path):
    """A run whose chunks are scans goes on bit for bit."""
    reference = finished(start_run(tmp_path / "a", *small, key=KEY), 10)
    committed(start_run(tmp_path / "b", *small, key=KEY)).advance(10)
    again = resume_run(tmp_path / "b", *small)
    assert same(finished(again, 10).state, reference.state)


def test_on_another_machine_the_lost_chunk_is_charged_and_gets_new_keys(small, whole, tmp_path, moved_to):
    """Trap 12: the same noise on another rounding of the gradient would cancel; so: paid again, new noise."""
    folder = interrupted(small, tmp_path / "run", 12)
    moved_to(cpu="another")
    run = resume_run(folder, *small, scan=False)
    assert (run.num_lost, run.step) == (7, 14)
    assert not np.array_equal(run.state.opt_state[0].key_data, whole.state.opt_state[0].key_data)
    sampling_keys = [jax.random.key_data(state.sampling_key) for state in (run.state, whole.state)]
    assert not np.array_equal(*sampling_keys)
    assert int(run.state.opt_state[0].count) == 7, "seven updates were kept"
    finished(run)
    (event,) = run.ledger.events
    assert event.num_steps == killed.NUM_STEPS, "the budget is the plan's, the lost steps are part of it"
    assert int(run.state.opt_state[0].count) == killed.NUM_STEPS - 7
    assert run.ledger[0].overflow >= whole.ledger[0].overflow


def test_a_move_between_chunks_costs_nothing_but_new_keys(small, tmp_path, moved_to):
    """The folder may be a backup, restored where later steps have been taken: they must not meet their noise again."""
    run = begun(small, tmp_path / "run")
    run.advance(7)
    moved_to(cpu="another")
    again = resume_run(tmp_path / "run", *small, scan=False)
    assert (again.step, again.num_lost) == (7, 0)
    assert again.changes == ("cpu",)
    assert not np.array_equal(again.state.opt_state[0].key_data, run.state.opt_state[0].key_data)


@pytest.mark.parametrize("change", ["data", "rate"])
def test_other_data_or_another_learning_rate_is_another_fingerprint(small, tmp_path, change):
    """Trap 12 again: whatever changes the gradient, or the program, must change the noise."""
    folder = interrupted(small, tmp_path / "run", 3)
    training, params, data = killed.build(rate=0.25) if change == "rate" else small
    if change == "data":
        data = data._replace(arrays=(data.arrays[0].at[0, 0].add(1.0), data.arrays[1]))
    run = resume_run(folder, training, params, data, scan=False)
    assert (run.num_lost, run.step) == (7, 7)
    assert run.changes == ("data" if change == "data" else "program",)


def test_lost_steps_never_exceed_the_budget(small, tmp_path, moved_to):
    """A run whose last chunk is lost is charged for all steps, and is over."""
    folder = interrupted(small, tmp_path / "run", killed.NUM_STEPS - 2)
    moved_to(cpu="another")
    run = resume_run(folder, *small, scan=False)
    assert run.finished
    assert run.step == killed.NUM_STEPS
    assert run.advance(5) == []


def test_another_plan_is_refused_with_the_difference(small, tmp_path):
    """A run goes on only with its own plan, and scanned or not as before."""
    start_run(tmp_path / "run", *small, key=KEY, scan=False)
    with pytest.raises(ValueError, match=r"noise_multiplier: 2.0 then, 1.0 now"):
        resume_run(tmp_path / "run", *killed.build(noise_multiplier=1.0), scan=False)
    with pytest.raises(ValueError, match=r"scan: False then, True now"):
        resume_run(tmp_path / "run", *small)


def test_a_folder_with_a_run_and_one_without(small, tmp_path):
    """A run is begun only where there is none, and resumed only where there is one."""
    start_run(tmp_path / "run", *small, key=KEY)
    with pytest.raises(ValueError, match="already holds a run"):
        start_run(tmp_path / "run", *small, key=KEY)
    with pytest.raises(CheckpointError, match="no checkpoint"):
        resume_run(tmp_path / "nothing", *small)


def test_one_call_begins_a_run_or_goes_on_with_it(small, whole, tmp_path):
    """A script that is started again has the keys, the steps and the bits of the run that it finds."""
    folder = tmp_path / "run"
    committed(start_run(folder, *small, key=KEY, scan=False, resume=True)).advance(7)
    again = start_run(folder, *small, key=gdpjax.fresh_key(), scan=False, resume=True)
    assert again.step == 7
    assert same(finished(again).state, whole.state)


@pytest.fixture
def seven(small, tmp_path):
    """A folder with a checkpoint after seven steps."""
    begun(small, tmp_path / "run").advance(7)
    return tmp_path / "run"


def test_every_damaged_file_is_detected(small, seven):
    """A file that is shorter, has another last bit or is missing is named as such."""
    arrays = next(path for path in (seven / CHECKPOINTS).iterdir() if path.is_dir())
    files = sorted(path for path in arrays.rglob("*") if path.is_file() and path.stat().st_size)
    for path in files:
        original = path.read_bytes()
        for broken in (original[:-1], original[:-1] + bytes([original[-1] ^ 1])):
            path.write_bytes(broken)
            with pytest.raises(CheckpointError, match="is damaged"):
                resume_run(seven, *small, scan=False)
        path.unlink()
        with pytest.raises(CheckpointError, match="is missing"):
            resume_run(seven, *small, scan=False)
        path.write_bytes(original)
    assert resume_run(seven, *small, scan=False).step == 7


@pytest.mark.parametrize(
    ("edits", "message"),
    [
        ({"version": 9}, "version 9, and this gdpjax reads version 3"),
        ({"step": 6}, "the folder of its own step and saves"),
        ({"journal": None}, "field `journal`"),
    ],
)
def test_a_damaged_index_is_detected(small, seven, edits, message):
    """An index with another value, or without a field (None), is refused."""
    path = seven / CHECKPOINTS / "index.json"
    content = json.loads(path.read_text()) | edits
    path.write_text(json.dumps({name: value for name, value in content.items() if value is not None}))
    with pytest.raises(CheckpointError, match=message):
        resume_run(seven, *small, scan=False)


def test_a_journal_that_lost_lines_is_detected_and_a_torn_line_is_not_a_chunk(small, seven):
    """A torn line is taken away, costs nothing and gives new keys; a journal that lacks a line is refused."""
    journal = seven / CHECKPOINTS / "journal.jsonl"
    original = journal.read_text()
    before = resume_run(shutil.copytree(seven, seven.parent / "copy"), *small, scan=False)
    journal.write_text(original + '{"first": 7, "num')
    run = resume_run(seven, *small, scan=False)
    assert run.num_lost == 0
    assert journal.read_text() == original
    same_key = np.array_equal(run.state.opt_state[0].key_data, before.state.opt_state[0].key_data)
    assert not same_key, "to be on the safe side"
    journal.write_text("")
    with pytest.raises(CheckpointError, match="not the journal"):
        resume_run(seven, *small, scan=False)


def test_arrays_of_another_model_are_refused(small, seven):
    """The shapes of the checkpoint are those of the training."""
    training, params, data = small
    with pytest.raises(CheckpointError, match=r"model or the optimizer changed.* at \.params\['v'\]: .* then, float32"):
        resume_run(seven, training, params | {"v": jnp.zeros((8, 3))}, data, scan=False)


def fill_disk(monkeypatch):
    """Let checkpoints fail; a line of the journal still fits."""
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=0))


def test_a_full_disk_loses_nothing(small, whole, tmp_path, monkeypatch):
    """After the chunk: the state is in memory, its budget on record. Before it: nothing is run."""
    run = begun(small, tmp_path / "run")
    run.advance(7)
    fill_disk(monkeypatch)
    with pytest.raises(CheckpointError, match=r"after step 14 could not be written.*no space.*run\.save"):
        run.advance(7)
    assert run.step == 14
    assert num_lines(tmp_path / "run") == 2
    monkeypatch.undo()
    copy = shutil.copytree(tmp_path / "run", tmp_path / "copy")
    assert same(finished(resume_run(copy, *small, scan=False)).state, whole.state), "had it been killed then"
    run.save()

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(CheckpointError, match="They were not run"):
        run.advance(7)
    assert run.step == 14
    assert num_lines(tmp_path / "run") == 2, "a line that may not be on the disk is taken back"
    monkeypatch.undo()
    assert same(finished(run).state, whole.state)


def test_interrupted_in_one_process_the_chunk_is_repeated_as_it_was(small, whole, tmp_path):
    """Ctrl-C, then on with the same object: same length, and no second line for the same steps."""
    run = begun(small, tmp_path / "run")
    run.advance(7)
    (how_to_go_on,) = stopped(run, 7, at=9, by=KeyboardInterrupt).__notes__
    assert how_to_go_on.startswith(f"7 of 20 steps are kept in {tmp_path / 'run'}, and 14 are charged: ")
    assert "start_run(..., resume=True)" in how_to_go_on
    run.advance(3)
    assert run.step == 14
    assert num_lines(tmp_path / "run") == 2
    assert same(finished(run).state, whole.state)


@pytest.mark.parametrize(
    ("platform", "flags", "repeats"),
    [
        ("cpu", "", True),
        ("tpu", "", True),
        ("gpu", "", False),
        ("gpu", "--xla_gpu_deterministic_ops=true", False),
        ("gpu", "--xla_gpu_deterministic_ops=true --xla_gpu_autotune_level=0", True),
    ],
)
def test_a_platform_that_does_not_repeat_its_bits_is_charged_again(small, tmp_path, moved_to, platform, flags, repeats):
    """Trap 12 on a GPU: sums in an order of the moment are other gradients under the same noise."""
    moved_to(platform=platform, xla_flags=flags)
    run = resume_run(interrupted(small, tmp_path / "run", 3), *small, scan=False)
    assert run.num_lost == (0 if repeats else 7)


def test_two_chunks_lost_to_a_full_disk_are_repeated_in_order(small, whole, tmp_path, monkeypatch):
    """Each in its own length, bit for bit."""
    run = begun(small, tmp_path / "run")
    fill_disk(monkeypatch)
    for chunk in (7, 5):
        with pytest.raises(CheckpointError, match="no space"):
            run.advance(chunk)
    monkeypatch.undo()
    again = resume_run(tmp_path / "run", *small, scan=False)
    again.advance(7)
    again.advance(7)
    assert again.step == 12
    assert same(finished(again).state, whole.state)


def test_a_key_used_twice(small, tmp_path):
    """Trap 10: the same key may repeat the same run, and nothing else."""
    key = jax.random.key(77)
    start_run(tmp_path / "a", *small, key=key)
    start_run(tmp_path / "again", *small, key=key)
    with pytest.raises(ValueError, match=r"already used in this process for another run \(other program"):
        start_run(tmp_path / "b", *killed.build(rate=0.25), key=key)
    training, params, data = small
    other = data._replace(arrays=(data.arrays[0] + 1, data.arrays[1]))
    with pytest.raises(ValueError, match=r"another run \(other data"):
        start_run(tmp_path / "c", training, params, other, key=key)
    # One by one the same steps are rounded otherwise.
    with pytest.raises(ValueError, match=r"another run \(other program"):
        start_run(tmp_path / "d", *small, key=key, scan=False)


def launch(folder, kill_after):
    """Run until the n-th line of output, then kill -9; True if it ended by itself."""
    command = [sys.executable, str(Path(killed.__file__)), str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for count, line in enumerate(process.stdout):
            if line.startswith("end"):
                process.wait()
                return True
            if count >= kill_after:
                process.send_signal(signal.SIGKILL)
                return False
    raise AssertionError(f"the run failed with status {process.returncode}")


@pytest.mark.parametrize("kills", [1, pytest.param(20, marks=pytest.mark.slow)])
def test_kill_9_at_random(kills, small, whole, tmp_path):
    """However often it is killed, the final parameters, moments, keys and ledger are the uninterrupted run's."""
    # Of these places the first is in the second chunk.
    places = random.Random(kills + 4)
    folder = tmp_path / "run"
    for _ in range(kills):
        while launch(folder, places.randrange(1, 16)):
            shutil.rmtree(folder)
    # This process, where other runs of the same training were made, takes the steps that are left.
    run = resume_run(folder, *small, scan=False)
    assert run.num_lost == 0
    assert kills > 1 or run.step == 7
    assert same(finished(run).state, whole.state)
    assert run.ledger == whole.ledger


def test_state_without_a_ledger_is_refused(small):
    """Trap 12: parameters alone do not say what was spent."""
    with pytest.raises(ValueError, match="got 0 ledgers"):
        gdpjax.ledger_of(small[1])


def test_steps_under_other_settings_of_jax_than_the_fingerprint_has_are_refused(small, tmp_path):
    """Under the settings of the fingerprint they would be repeated with the same noise and other bits."""
    run = start_run(tmp_path / "run", *small, key=KEY)
    with jax.default_matmul_precision("bfloat16"), pytest.raises(ValueError, match="jax_default_matmul_precision"):
        run.advance(3)
    run.advance(3)
    assert run.step == run.ledger[0].num_steps == 3


def test_a_callback_cannot_advance_the_run_that_calls_it(small, tmp_path):
    """The steps of the inner call would be taken in the middle of a chunk that is on record."""
    run = start_run(tmp_path / "run", *small, key=gdpjax.fresh_key(), scan=False)
    with pytest.raises(ValueError, match="called by a callback"):
        run.advance(3, on_step=lambda done: run.advance(1))

    # The chunk is repeated then, and the run goes on.
    run.advance(3)
    assert run.step == 3
    assert run.ledger.num_steps == 3


def test_training_and_data_of_a_run_cannot_be_replaced(small, tmp_path):
    """A chunk that is repeated meets the same data."""
    training, params, data = small
    run = start_run(tmp_path / "run", training, params, data, key=gdpjax.fresh_key(), scan=False)
    assert run.training is training
    assert run.data.arrays[0] is data.arrays[0]
    for name in ("training", "data"):
        with pytest.raises(AttributeError):
            setattr(run, name, None)
