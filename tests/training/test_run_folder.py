"""The folder of a run: locked, private, durable and checked; and no noise on two gradients, whoever changed it."""

import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from gdpjax.training import CheckpointError, environment, private_training, resume_run, start_run
from tests.training import killed
from tests.training.interrupted import CHECKPOINTS, KEY, Killed, committed, stopped

fcntl = pytest.importorskip("fcntl")


def begun(small, folder):
    """A run with a checkpoint after seven steps."""
    run = committed(start_run(folder, *small, key=KEY, scan=False))
    run.advance(7)
    return run


@pytest.fixture(scope="module")
def seven(small, tmp_path_factory):
    """A folder with a checkpoint after seven steps, to be copied."""
    return begun(small, tmp_path_factory.mktemp("seven") / "run").folder


@pytest.fixture(scope="module")
def lost(small, tmp_path_factory):
    """A folder whose second chunk of seven was lost, to be copied."""
    run = begun(small, tmp_path_factory.mktemp("lost") / "run")
    stopped(run, 7, at=9)
    return run.folder


def keys_of(run):
    noise_key = run.state.opt_state[0].key_data
    return [np.asarray(noise_key).tolist(), jax.random.key_data(run.state.sampling_key).tolist()]


def other_values(small, what):
    """Two trainings that differ in values only: their programs are the same."""
    training, params, data = small
    plan = training.plan
    if what == "parameters":
        other_weights = params | {"w": params["w"] + 1}
        return (training, params, data), (training, other_weights, data)
    if what == "frozen":
        trainable = {"w": True, "b": False, "v": True}
        frozen = private_training(plan, killed.loss, optax.sgd(0.5), trainable=trainable)
        other_biases = params | {"b": params["b"] + 1}
        return (frozen, params, data), (frozen, other_biases, data)
    injected = optax.inject_hyperparams(optax.sgd)
    fast = private_training(plan, killed.loss, injected(learning_rate=0.5))
    slow = private_training(plan, killed.loss, injected(learning_rate=0.25))
    return (fast, params, data), (slow, params, data)


@pytest.mark.parametrize("what", ["parameters", "frozen", "hyperparameters"])
def test_a_key_used_for_other_values(small, tmp_path, what):
    """Trap 10: the program is the same, the noise too, the gradients are not: their difference shows them."""
    first, second = other_values(small, what)
    start_run(tmp_path / "a", *first, key=KEY, scan=False)
    start_run(tmp_path / "again", *first, key=KEY, scan=False)
    with pytest.raises(ValueError, match=r"already used in this process for another run \(other initial state\)"):
        start_run(tmp_path / "b", *second, key=KEY, scan=False)


def test_other_initial_values_on_resuming_change_nothing(small, seven, tmp_path):
    """They are the checkpoint's: a model may be initialised anew for its shapes."""
    folder = shutil.copytree(seven, tmp_path / "run")
    training, params, data = small
    before = keys_of(resume_run(folder, training, params, data, scan=False))
    run = resume_run(folder, training, jax.tree.map(lambda leaf: leaf + 1, params), data, scan=False)
    assert keys_of(run) == before


def test_a_restored_backup_with_a_changed_row_gets_new_keys(small, tmp_path):
    """Trap 12: steps 7 to 14 were taken once already, with this noise, on the row as it was."""
    run = begun(small, tmp_path / "run")
    backup = shutil.copytree(tmp_path / "run", tmp_path / "backup")
    run.advance(7)
    training, params, data = small
    same = resume_run(shutil.copytree(backup, tmp_path / "same"), *small, scan=False)
    assert keys_of(same) == keys_of(run), "the same data: the same steps again, bit for bit"
    data = data._replace(arrays=(data.arrays[0].at[3, 0].add(1.0), data.arrays[1]))
    changed = resume_run(backup, training, params, data, scan=False)
    assert (changed.step, changed.num_lost) == (7, 0)
    assert all(a != b for a, b in zip(keys_of(changed), keys_of(run), strict=True))
    again = resume_run(backup, training, params, data, scan=False)
    assert keys_of(again) == keys_of(changed), "they were on disk before they were used"


def test_a_state_changed_by_hand_is_not_repeated_with_the_same_noise(small, tmp_path):
    """Trap 12: what the lost chunk began with is on record; the checkpoint holds something else."""
    run = begun(small, tmp_path / "run")
    old = keys_of(run)
    run.state = run.state._replace(params=jax.tree.map(lambda leaf: leaf * 2, run.state.params))
    stopped(run, 7)
    copy = shutil.copytree(tmp_path / "run", tmp_path / "copy")
    again = resume_run(copy, *small, scan=False)
    assert (again.step, again.num_lost) == (14, 7)
    assert keys_of(again) != old
    # The same in one process: the chunk is pending, and its state changes before it is repeated.
    run.state = run.state._replace(params=jax.tree.map(lambda leaf: leaf * 2, run.state.params))
    run.advance(1)
    assert (run.step, run.num_lost) == (15, 7)
    assert keys_of(run) != old


def test_a_state_changed_after_a_backup_gets_new_keys(small, seven, tmp_path):
    """Trap 12: steps 7 to 14 may have been taken once already; the same values on another device are no change."""
    run = resume_run(shutil.copytree(seven, tmp_path / "run"), *small, scan=False)
    old = keys_of(run)
    run.state = jax.device_put(run.state, jax.devices()[0])
    run.advance(1)
    assert keys_of(run) == old
    run.state = run.state._replace(params=jax.tree.map(lambda leaf: leaf / 2, run.state.params))
    run.advance(1)
    assert (run.step, run.num_lost) == (9, 0)
    assert all(a != b for a, b in zip(keys_of(run), old, strict=True))


def test_a_state_that_is_put_back_is_charged_and_gets_new_keys(small, tmp_path):
    """Going back after a divergence would make the same steps on other parameters, with the same noise."""
    run = begun(small, tmp_path / "run")
    earlier = run.state
    old = keys_of(run)
    run.advance(1)
    run.state = earlier._replace(params=jax.tree.map(lambda leaf: leaf * 2, earlier.params))
    run.advance(1)
    assert (run.step, run.num_lost) == (9, 1)
    assert all(a != b for a, b in zip(keys_of(run), old, strict=True))
    run.state = earlier
    run.save()
    assert (run.step, run.num_lost) == (9, 2)
    again = resume_run(run.folder, *small, scan=False)
    assert (again.step, keys_of(again)) == (9, keys_of(run))
    other = start_run(tmp_path / "other", *small, key=jax.random.key(12), scan=False)
    other.advance(7)
    other.state = earlier
    with pytest.raises(ValueError, match="the state of another run"):
        other.advance(1)


def test_saving_in_the_middle_of_a_chunk_leaves_the_chunk_lost(small, tmp_path):
    """The state that is saved in the middle of a chunk is the one before it."""
    run = begun(small, tmp_path / "run")
    stopped(run, 7)
    run.save()
    again = resume_run(tmp_path / "run", *small, scan=False)
    again.advance(2)
    assert again.step == 14, "repeated in its own length"


def test_a_folder_that_another_process_has_open(small, seven, tmp_path):
    """A lock belongs to an open file, so a second one in this process stands for another process."""
    folder = shutil.copytree(seven, tmp_path / "run")
    with (folder / CHECKPOINTS / "lock").open("r+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(CheckpointError, match=r"another process .* open.*same noise: wait for it, or end it"):
            resume_run(folder, *small, scan=False)
    run = resume_run(folder, *small, scan=False)
    with (folder / CHECKPOINTS / "lock").open("r+") as file:
        with pytest.raises(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        del run
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_the_run_that_was_resumed_last_has_the_folder(small, tmp_path):
    """Two objects of one process take no step twice; a resumption that was refused takes nothing away."""
    run = begun(small, tmp_path / "run")
    with pytest.raises(ValueError, match="another plan"):
        resume_run(tmp_path / "run", *small, scan=True)
    run.advance(3)
    later = resume_run(tmp_path / "run", *small, scan=False)
    with pytest.raises(CheckpointError, match="was resumed in this process since"):
        run.advance(3)
    with pytest.raises(CheckpointError, match="was resumed in this process since"):
        run.save()
    later.advance(3)
    assert later.step == 13
    shutil.rmtree(tmp_path / "run")
    with pytest.raises(CheckpointError, match="deleted or replaced"):
        later.advance(3)


def test_a_journal_that_somebody_else_has_written(small, tmp_path):
    """The length of the journal shows another process before a step is taken, also where locks do not work."""
    run = begun(small, tmp_path / "run")
    journal = tmp_path / "run" / CHECKPOINTS / "journal.jsonl"
    with journal.open("a") as file:
        file.write(json.dumps({"first": 7}) + "\n")
    with pytest.raises(CheckpointError, match="another process has gone on with the run"):
        run.advance(7)
    assert run.step == 7


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_what_is_not_for_release_is_private_whatever_the_umask(small, tmp_path, umask):
    """Keys and private statistics are for their owner alone."""
    before = os.umask(umask)
    try:
        begun(small, tmp_path / "run")
    finally:
        os.umask(before)
    private = tmp_path / "run" / CHECKPOINTS
    for path in (private, *private.rglob("*")):
        expected = 0o700 if path.is_dir() else 0o600
        assert stat.S_IMODE(path.stat().st_mode) == expected, path
    assert stat.S_IMODE((tmp_path / "run" / "plan.json").stat().st_mode) == 0o666 & ~umask


def test_all_that_the_checksum_reads_is_on_disk_before_the_last_checkpoint_goes(small, tmp_path, monkeypatch):
    """A power cut in between must leave one or the other."""
    durable, order = set(), []
    fsync, rmtree = os.fsync, shutil.rmtree

    def identity(status):
        return status.st_dev, status.st_ino

    def synced(descriptor):
        fsync(descriptor)
        durable.add(identity(os.fstat(descriptor)))

    def deleted(path, **options):
        index = json.loads((path.parent / "index.json").read_text())
        arrays = path.parent / index["arrays"]
        kept = [arrays, *arrays.rglob("*"), path.parent, path.parent / "index.json"]
        order.append([other.name for other in kept if identity(other.stat()) not in durable])
        rmtree(path, **options)

    run = begun(small, tmp_path / "run")
    durable.clear()
    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(shutil, "rmtree", deleted)
    run.advance(7)
    assert order == [[]]


def test_saving_twice_at_one_step_keeps_a_checkpoint_at_every_moment(small, tmp_path, monkeypatch):
    """A second checkpoint that fails does not take the first one with it."""
    run = begun(small, tmp_path / "run")

    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=0))
    with pytest.raises(CheckpointError, match="no space"):
        run.save()
    monkeypatch.undo()
    assert resume_run(tmp_path / "run", *small, scan=False).step == 7


def test_killed_while_it_starts_it_can_start_again(small, tmp_path, monkeypatch):
    """The files that a start leaves behind before its first checkpoint are no run."""

    def kill(*args):
        raise Killed

    for module, name in ((os, "chmod"), (os, "fsync"), (Path, "replace"), (shutil, "disk_usage")):
        with monkeypatch.context() as patch:
            patch.setattr(module, name, kill)
            with pytest.raises(Killed):
                start_run(tmp_path / "run", *small, key=KEY, scan=False)
    assert start_run(tmp_path / "run", *small, key=KEY, scan=False).step == 0
    assert resume_run(tmp_path / "run", *small, scan=False).step == 0


def edited(line, **changes):
    return json.dumps(json.loads(line) | changes)


EDITS = [
    *(lambda text, n=n: edited(text, num_steps=n) for n in (0, -5, 100_000, 6, 2**70, 7.0, True, "7", None)),
    *(lambda text, n=n: edited(text, first=n) for n in (-1, 6, 14, [0])),
    lambda text: edited(text, fingerprint={}),
    lambda text: edited(text, fingerprint="other"),
    lambda text: edited(text, state="other"),
    lambda text: edited(text, more=1),
    lambda text: text[:-1],
    lambda text: "",
    lambda text: "null",
    lambda text: "[" * 100_000,
    lambda text: text + "\n" + text,
    lambda text: "\ud800",
    lambda text: text.replace("7", "NaN", 1),
]


@pytest.mark.parametrize(("line", "edit"), [*((1, edit) for edit in EDITS), *((0, edit) for edit in EDITS[13:17])])
def test_every_changed_line_of_the_journal_is_refused(small, lost, tmp_path, line, edit):
    """A change to any line is found when the journal is read, and the line is named."""
    folder = shutil.copytree(lost, tmp_path / "run")
    path = folder / CHECKPOINTS / "journal.jsonl"
    lines = path.read_text().splitlines()
    assert len(lines) == 2
    lines[line] = edit(lines[line])
    path.write_bytes(("\n".join(lines) + "\n").encode(errors="surrogatepass"))
    with pytest.raises(CheckpointError, match=r"the journal is damaged: .*journal.jsonl, line [123]"):
        resume_run(folder, *small, scan=False)


def test_a_journal_with_lines_taken_out_doubled_or_of_another_run(small, lost, tmp_path):
    """The lines follow each other, and end as the checkpoint says."""
    original = (lost / CHECKPOINTS / "journal.jsonl").read_text()
    first, second = original.splitlines(keepends=True)
    for damaged in (second, first + first, second + first, first + second + second):
        folder = shutil.copytree(lost, tmp_path / "run", dirs_exist_ok=True)
        (folder / CHECKPOINTS / "journal.jsonl").write_text(damaged)
        with pytest.raises(CheckpointError, match="journal"):
            resume_run(folder, *small, scan=False)
    other = committed(start_run(tmp_path / "other", *small, key=jax.random.key(12), scan=False))
    other.advance(7)
    shutil.copy(other.journal, folder / CHECKPOINTS / "journal.jsonl")
    with pytest.raises(CheckpointError, match="not the journal that the checkpoint belongs to"):
        resume_run(folder, *small, scan=False)


@pytest.mark.parametrize("text", [None, "", "[]", "{}", '{"gdpjax_plan": 1}', "[" * 100_000])
def test_a_plan_file_that_is_not_the_plan(small, seven, tmp_path, text):
    """A plan file that differs from the run's plan is refused, as readers of the folder believe it."""
    folder = shutil.copytree(seven, tmp_path / "run")
    (folder / "plan.json").unlink()
    if text is not None:
        (folder / "plan.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"plan"):
        resume_run(folder, *small, scan=False)


@pytest.mark.slow
def test_two_processes_resume_one_folder(tmp_path):
    """One goes on and the other is told why not; when the first is killed, the folder is free."""
    folder = tmp_path / "run"
    command = [sys.executable, str(Path(killed.__file__)), str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as first:
        lines = iter(first.stdout)
        assert next(lines).startswith("begin 0")
        first.send_signal(signal.SIGSTOP)  # it lives, and holds the lock
        second = subprocess.run(command, capture_output=True, text=True, timeout=300)
        assert second.returncode == 1
        assert f"another process ({first.pid} on " in second.stderr
        first.kill()
    time.sleep(0.1)
    third = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert third.stdout.splitlines()[-1] == "end", third.stderr


def scaled_in_half_precision():
    """An optimizer whose state has a weak type, by which a product of half precision stays one."""

    def init(params):
        return jnp.asarray(0.3)

    def update(mean, rate, params=None):
        steps = jax.tree.map(lambda leaf: rate * leaf.astype(jnp.bfloat16), mean)
        return jax.tree.map(lambda step: -step.astype(jnp.float32), steps), rate

    return optax.GradientTransformation(init, update)


def test_a_run_of_weakly_typed_numbers_has_the_same_bits_when_it_is_resumed(small, tmp_path):
    """A checkpoint holds no weak types: the same noise would have met parameters that were rounded otherwise."""
    training, params, data = small
    training = private_training(training.plan, killed.loss, scaled_in_half_precision())
    run = start_run(tmp_path / "run", training, params, data, key=KEY, scan=False)
    run.advance(1)
    again = resume_run(shutil.copytree(run.folder, tmp_path / "copy"), training, params, data, scan=False)
    for each in (run, again):
        each.advance(2)
    assert keys_of(run) == keys_of(again)
    assert all(map(np.array_equal, *(jax.tree.leaves(each.state.params) for each in (run, again))))


def test_a_chunk_that_is_to_be_repeated_is_charged_already(small, lost, tmp_path):
    """What it computed may have been shown before it was interrupted."""
    run = resume_run(shutil.copytree(lost, tmp_path / "run"), *small, scan=False)
    assert (run.step, run.ledger.num_steps) == (7, 14)
    assert "14 of the 20 planned steps were made" in run.statement()
    run.advance(7)
    assert (run.step, run.ledger.num_steps) == (14, 14)


def test_saving_an_earlier_state_in_the_middle_of_a_chunk_pays_for_the_chunk(small, tmp_path):
    """Else the checkpoint would not be of its journal, and nothing could go on from it."""
    run = begun(small, tmp_path / "run")
    earlier = run.state
    run.advance(1)
    stopped(run, 7)
    run.state = earlier
    run.save()
    assert (run.step, run.num_lost) == (15, 8)
    assert resume_run(run.folder, *small, scan=False).step == 15


def test_a_state_with_keys_that_were_replaced_gets_new_ones(small, seven, tmp_path, moved_to):
    """They may have made the next steps, elsewhere and on other data."""
    folder = shutil.copytree(seven, tmp_path / "run")
    earlier = resume_run(folder, *small, scan=False).state
    moved_to(cpu="another")
    run = resume_run(folder, *small, scan=False)
    run.state = earlier
    run.save()
    assert run.step == 7
    assert np.asarray(earlier.opt_state[0].key_data).tolist() not in keys_of(run)


def test_two_processes_that_write_at_the_same_moment_are_both_told(small, seven, tmp_path, monkeypatch):
    """Where locks do not work, both may have found the journal as they left it."""
    run = resume_run(shutil.copytree(seven, tmp_path / "run"), *small, scan=False)
    write = os.write

    def with_another(descriptor, content):
        monkeypatch.undo()
        with run.journal.open("ab") as file:
            file.write(content)
        return write(descriptor, content)

    monkeypatch.setattr(os, "write", with_another)
    with pytest.raises(CheckpointError, match="another process has gone on with the run"):
        run.advance(7)
    assert run.step == 7


def test_processors_with_other_instructions_are_other_processors(monkeypatch):
    """On ARM nothing has a model's name, and a virtual machine may hide instructions of a model."""

    read = Path.read_text

    def described(text):
        def told(path, **options):
            return text if path.name == "cpuinfo" else read(path, **options)

        with monkeypatch.context() as patch:
            patch.setattr(Path, "read_text", told)
            return environment()["cpu"]

    arm = "processor\t: 0\nFeatures\t: fp asimd {}\nCPU implementer\t: 0x41\nCPU part\t: {}\n"
    x86 = "model name\t: A Processor\nflags\t\t: fpu sse2 {}\n"
    texts = [arm.format("sve", "0xd40"), arm.format("sve", "0xd4f"), arm.format("", "0xd40")]
    texts += [x86.format("avx2"), x86.format("avx2 avx512f")]
    assert len(set(map(described, texts))) == 5
    assert described(x86.format("avx2 md_clear")) == described(x86.format("avx2")), "what the kernel adds"


def test_a_program_is_known_by_its_constants_wherever_they_are_held():
    """A frozen model that the loss closes over may be an argument of the program, of which the text has the type."""
    script = (
        "import jax, jax.numpy as jnp; from gdpjax._core.xla import program_digest; a = jnp.arange(16.0); "
        "print(len({program_digest(jax.jit(lambda x, c=c: x + c), a) for c in (a, a + 1, a + 0)}))"
    )
    environ = os.environ | {"JAX_USE_SIMPLIFIED_JAXPR_CONSTANTS": "1"}
    command = [sys.executable, "-c", script]
    assert subprocess.run(command, env=environ, capture_output=True, text=True, check=True).stdout == "2\n"


def test_the_device_that_decides_the_bits_is_where_the_arrays_are():
    """With JAX_PLATFORMS=cpu,cuda the first device is a processor, which repeats its bits as no GPU does."""
    gpu = SimpleNamespace(platform="gpu", id=0, device_kind="a GPU", client=SimpleNamespace(platform_version="13"))
    on_gpu = SimpleNamespace(devices=lambda: [gpu])
    assert environment(jnp.zeros(2), on_gpu)["platform"] == "gpu"
    assert environment(jnp.zeros(2))["platform"] == environment()["platform"] == jax.devices()[0].platform
