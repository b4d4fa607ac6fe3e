"""A run that can be killed at any moment and goes on without spending twice or reusing noise.

**Written ahead.** Before a chunk of steps begins, a line in the journal says which steps it will take and under which
fingerprint (data, program, versions, devices); it is on disk before the first step. After the chunk the checkpoint
is replaced, and says how many lines of the journal it covers. So at any moment the journal pays for everything that
may have been computed, and the lines beyond the checkpoint are the chunks whose outcome was lost.

**Resumed.** With the same fingerprint, on a platform that repeats its bits, the lost chunk is repeated with the same
keys and the same length: the same bits, one release, charged once. Otherwise its outcome would be the same noise on a
different gradient; so the lost steps are charged to the ledger as if they had been seen, sampling and noise get new
keys, and training goes on with what is left of the budget. The keys are new even if nothing is known to be lost: a
folder that was restored from a backup does not know which steps were taken since. A checkpoint of another plan is
refused.

**One at a time.** A lock on the folder keeps a second process out, and the journal is appended to only where this run
left it.
"""

import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gdpjax._core.arguments import check_instance
from gdpjax._core.documents import DocumentError, read_document
from gdpjax._core.files import write_atomically
from gdpjax._core.keys import check_key, fresh_key
from gdpjax._core.shown import shown
from gdpjax._core.types import Array, PyTree
from gdpjax.ledger import Ledger, ledger_of, record_steps
from gdpjax.training import _checkpoint
from gdpjax.training._checkpoint import Index
from gdpjax.training._data import Data
from gdpjax.training._files import PUBLIC_FILE, CheckpointError, make_private_folder
from gdpjax.training._fingerprint import digest_of, environment, program_digest, repeats_bits, state_digest
from gdpjax.training._in_place import steps_in_place
from gdpjax.training._journal import JOURNAL, Journal
from gdpjax.training._json import plan_to_dict
from gdpjax.training._lock import FolderLock, lock_folder
from gdpjax.training._loop import FINISHED, RUNNING, Info, State, Training, check_status, num_steps_done
from gdpjax.training._plan import IN_EPOCHS
from gdpjax.training._processes import (
    beside,
    described_by_all,
    is_first_process,
    one_key_for_all,
    parameters_for_all,
    together,
)
from gdpjax.transforms import PrivatizeState

PLAN = "plan.json"


class Run:
    """A training in a folder; made by `start_run` and `resume_run`.

    Attributes:
      state: the `State` after the steps done so far.
      fingerprint: what decides the bits of a step: data, program, initial state (parameters, frozen ones included,
        injected hyperparameters), versions, devices. Private: it holds a digest of the data.
    """

    def __init__(
        self,
        folder: Path,
        training: Training,
        data: Data,
        state: State,
        lock: FolderLock | None,
        initial: str,
        *,
        scan: bool,
    ) -> None:
        self.folder, self.training, self.data, self.state = folder, training, data, state
        # The lines hold a digest of private data, so they belong in the folder that is not for release.
        self.journal = folder / _checkpoint.FOLDER / JOURNAL
        self._scan, self._lock, self._initial = scan, lock, initial
        self._plan = _described_plan(training, scan)
        own = {
            "data": digest_of(*data.arrays, data.num_examples),
            "program": program_digest(training.step, state, data),
            "initial state": initial,
        }
        self.fingerprint = described_by_all(_as_json(environment()) | own)
        self._steps = steps_in_place(training, state, data)
        self._records = Journal(self.journal)
        self._pending: list[int] = []  # lengths of chunks that are on record and whose outcome is not
        self._saves = 0
        self._take_over(lock)

    @property
    def step(self) -> int:
        """How many of the plan's steps are charged."""
        return int(num_steps_done(self.state))

    @property
    def finished(self) -> bool:
        """Whether all planned steps are charged."""
        return int(self.state.status) == FINISHED

    @property
    def num_lost(self) -> int:
        """How many of the charged steps were not kept, because the run moved in the middle of a chunk."""
        (noised,) = [node for node in _private_states(self.state) if isinstance(node, PrivatizeState)]
        return self.step - int(noised.count)

    @property
    def ledger(self) -> Ledger:
        """What was run, for the accountants."""
        return ledger_of(self.state.opt_state)

    def advance(
        self,
        num_steps: int,
        on_step: Callable[[int], None] | None = None,
        before_checkpoint: Callable[[list[Info]], None] | None = None,
    ) -> list[Info]:
        """Take the next ``num_steps`` steps (fewer at the end of the plan), and make them the checkpoint.

        A chunk that a crash interrupted is repeated first, in its own length, and nothing else is done then.

        Args:
          num_steps: >= 1.
          on_step: called after every step with the number of steps done, unless the run scans.
          before_checkpoint: called with what is returned, after the steps and before the checkpoint. What it writes is
            complete whenever the checkpoint is; a crash in between writes it again.

        Returns:
          The private `Info` of the steps: one with a leading axis of a run that scans, else one for each step.

        Raises:
          ValueError: num_steps < 1.
          BatchOverflowError: a batch did not fit; what was done before is the checkpoint.
          CheckpointError: the disk refuses. Before the chunk: nothing was run. After it: it is in ``state``. Or the
            folder was resumed by another `Run` since; or, of several processes, one has ended.
        """
        if not isinstance(num_steps, int) or isinstance(num_steps, bool) or num_steps < 1:
            raise ValueError(f"num_steps must be a whole number >= 1, got {shown(num_steps)}")
        check_status(self.state)
        if self.finished:
            return []
        try:
            return self._advance(num_steps, on_step, before_checkpoint)
        except jax.errors.JaxRuntimeError as error:
            if jax.process_count() == 1:
                raise
            raise CheckpointError(
                f"the steps failed on process {jax.process_index()} of {jax.process_count()}: {str(error)[:300]}. If "
                "another process has ended, end all of them and start them again with resume_run: what was spent is "
                "on record"
            ) from None

    def _advance(
        self,
        num_steps: int,
        on_step: Callable[[int], None] | None,
        before_checkpoint: Callable[[list[Info]], None] | None,
    ) -> list[Info]:
        self._check_lock()
        self._charge_a_state_put_back()
        if self.finished:
            return []
        if self._pending and self._records.chunks[-len(self._pending)].state != state_digest(self.state):
            # The state was changed since: another gradient under the same noise, had the keys stayed.
            if self.training.plan.correlation is not None:
                raise ValueError(
                    "run.state was changed after a chunk was interrupted, and a run with correlated noise cannot go on "
                    "from there: the noise of later steps takes back that of the lost ones. Put it back as it was "
                    "(resume_run does), and the chunk is repeated"
                )
            self._pay_for_lost()
            if self.finished:
                return []
        if not self._pending:
            self._write_ahead(min(num_steps, self.training.plan.max_steps - self.step))
        # Interrupted in here, the chunk stays pending and is repeated: same keys, same length, same bits.
        infos = self._take(self._pending[0], on_step)
        self._pending.pop(0)
        if before_checkpoint is not None:
            before_checkpoint(infos)
        if not self._pending:  # a later lost chunk is still to be repeated, and is paid for beyond the checkpoint
            self.save()
        check_status(self.state)
        return infos

    def _take(self, num_steps: int, on_step: Callable[[int], None] | None) -> list[Info]:
        """Take the steps of a chunk; until it is complete ``state`` is the one from which it would be repeated."""
        if self._scan:
            state, info = self._steps.scan(self.state, self.data, num_steps)
            self.state = jax.block_until_ready(state)
            return [info]

        first = self.step

        def after_each(num_done: int) -> None:
            if on_step is not None:
                on_step(first + num_done)

        state, infos = self._steps.one_by_one(self.state, self.data, num_steps, after_each)
        self.state = jax.block_until_ready(state)
        return infos

    def _write_ahead(self, num_steps: int) -> None:
        digest = state_digest(self.state)
        try:
            together(lambda: self._records.append(num_steps, digest, self.fingerprint))
        except OSError as error:
            raise CheckpointError(
                f"the budget of the next {num_steps} steps could not be written to {self.journal}: {error}. "
                "They were not run; make room and go on"
            ) from error
        self._pending = [num_steps]

    def _take_over(self, lock: FolderLock | None) -> None:
        """From now on this run writes in the folder, and no earlier one of this process."""
        self._lock = lock
        if lock is not None:
            lock.give_to(self)

    def _check_lock(self) -> None:
        together(lambda: self._lock.check(self) if self._lock else None)

    def save(self) -> None:
        """Make the present state the checkpoint; `advance` does this by itself."""
        self._check_lock()
        self._charge_a_state_put_back()
        covered = len(self._records.chunks) - len(self._pending)
        about = {
            "step": self.step,
            "saves": self._saves + 1,
            "plan": self._plan,
            "fingerprint": self.fingerprint,
            "key_impl": str(jax.random.key_impl(self.state.sampling_key)),
            "journal": covered,
            "journal_sha256": self._records.checksum(covered),
            "initial": self._initial,
        }
        _checkpoint.save(self.folder, self.state, about)
        self._saves += 1

    def _go_on_from(self, index: Index) -> None:
        """Repeat what was lost, or charge for it; with new keys, unless the same bits are certain."""
        self._saves = index.saves
        with _disk(self.folder, "resume a run"):
            together(lambda: self._records.read(self.training.plan.max_steps))
            together(self._records.remove_torn_line)
        chunks, covered = self._records.chunks, index.journal
        if len(chunks) < covered:
            raise CheckpointError(f"{self.journal} is damaged: it lacks lines that the checkpoint covers")
        if self._records.checksum(covered) != index.journal_sha256 or self._paid(covered) != index.step:
            raise CheckpointError(f"{self.journal} is damaged: it is not the journal that the checkpoint belongs to")
        lost = chunks[covered:]
        fingerprints = [index.fingerprint, *(chunk.fingerprint for chunk in lost)]
        self._refuse_other_data(fingerprints)
        same = all(fingerprint == self.fingerprint for fingerprint in fingerprints)
        same = same and (not lost or lost[0].state == state_digest(self.state))
        same = same and not self._records.was_torn  # whether its steps were taken is not certain
        if same and repeats_bits(environment()):
            self._pending = [chunk.num_steps for chunk in lost]
            return
        if self.training.plan.correlation is not None:
            self._keep_correlated_keys(lost)
            return
        self._pay_for_lost()

    def _keep_correlated_keys(self, lost: list[Any]) -> None:
        """Go on with the same keys, which later noise needs to take back that of earlier steps, or refuse to."""
        if lost or self._records.was_torn:
            raise CheckpointError(
                f"the last chunk of {self.folder} was interrupted, and its bits are not sure to be the same if it is "
                "repeated here. With correlated noise it can neither be repeated otherwise (the same noise on other "
                "gradients) nor be left out under new keys (the noise of later steps takes back that of earlier ones). "
                "Resume on the machine, versions and data that it began with, or begin a new run and account for both"
            )
        self._pending = []

    def _refuse_other_data(self, fingerprints: list[dict[str, Any]]) -> None:
        """In epochs a row that moved would have another step, and its example might take part once too often."""
        if self.training.plan.sampling not in (*IN_EPOCHS, "cyclic_poisson"):
            return
        if any(fingerprint["data"] != self.fingerprint["data"] for fingerprint in fingerprints):
            raise ValueError(
                f'with sampling="{self.training.plan.sampling}" a run goes on with the data that it began with, row '
                "for row: the step of an example belongs to its row"
            )

    def _charge_a_state_put_back(self) -> None:
        """Where ``state`` was set to an earlier one, charge the steps made since, and go on with new keys.

        With the old keys they would be made again, on other parameters, with the same noise.
        """
        if self._pending or self.step == self._records.end:
            return
        if self.training.plan.correlation is not None:
            raise ValueError(
                "run.state was set to an earlier state, from which a run with correlated noise cannot go on: the noise "
                "of later steps takes back that of the steps that were made since"
            )
        if self.step > self._records.end:
            raise ValueError(
                f"run.state is charged for {self.step} steps, but this run has {self._records.end} on record: it is "
                "the state of another run"
            )
        self.state = _with_new_keys(self.training, self.state, self._records.end - self.step)

    def _pay_for_lost(self) -> None:
        """Charge all that is on record, and go on from there with new keys."""
        state = _with_new_keys(self.training, self.state, self._records.end - self.step)
        self.state, self._pending = state, []
        self.save()

    def _paid(self, num_lines: int) -> int:
        return self._records.chunks[num_lines - 1].end if num_lines else 0


def _described_plan(training: Training, scan: bool) -> dict[str, Any]:
    """Return what the checkpoint says of the plan."""
    return _as_json(plan_to_dict(training.plan) | {"scan": scan})


def _as_json(value: dict[str, Any]) -> dict[str, Any]:
    """``value`` as it comes back from a file."""
    return json.loads(json.dumps(value))


def _private_states(state: State) -> list[Any]:
    return jax.tree.leaves(state.opt_state, is_leaf=lambda node: isinstance(node, PrivatizeState))


def _with_new_keys(training: Training, state: State, num_lost: int) -> State:
    """``state`` with ``num_lost`` steps charged and new keys for noise and, but for schemes of epochs, for sampling."""
    plan, impl = training.plan, jax.random.key_impl(state.sampling_key)
    sampling_key, noise_key = jax.random.split(one_key_for_all(fresh_key(str(impl))))
    if plan.sampling in IN_EPOCHS:
        # With a new key an example that took part in a lost step might do so once more in the same epoch. The lost
        # steps are left out, not repeated, so the old key gives every example its steps as before.
        sampling_key = state.sampling_key

    def renewed(node: Any) -> Any:
        if not isinstance(node, PrivatizeState):
            return node
        ledger = node.ledger
        if num_lost:
            each = (plan.noise_multiplier, plan.sampling_prob, plan.overflow_per_step)
            ledger = record_steps(ledger, num_lost, *each)
        return node._replace(key_data=beside(state.params, jax.random.key_data(noise_key)), ledger=ledger)

    opt_state = jax.tree.map(renewed, state.opt_state, is_leaf=lambda node: isinstance(node, PrivatizeState))
    state = state._replace(opt_state=opt_state, sampling_key=beside(state.params, sampling_key))
    done = num_steps_done(state)
    status = jnp.where((state.status == RUNNING) & (done >= plan.max_steps), FINISHED, state.status)
    return state._replace(status=status.astype(jnp.int32))


def _differences(first: dict[str, Any], second: dict[str, Any]) -> list[str]:
    """What differs between two descriptions, one readable entry each."""
    names = sorted(name for name in first | second if first.get(name) != second.get(name))
    return [f"{name}: {first.get(name)!r} then, {second.get(name)!r} now" for name in names]


_KEYS_USED: dict[str, dict[str, Any]] = {}
"""Fingerprint of the run that each key was used for in this process, by the key's digest."""


def _refuse_used_key(key: Array, run: Run) -> None:
    """ValueError if ``key`` made other noise-bearing steps in this process; repeating the same run is harmless."""
    words, impl = check_key(key)
    used = _KEYS_USED.setdefault(digest_of(np.asarray(words), np.frombuffer(impl.encode(), np.uint8)), run.fingerprint)
    if used != run.fingerprint:
        found = sorted(name for name in used | run.fingerprint if used.get(name) != run.fingerprint.get(name))
        raise ValueError(
            f"this key was already used in this process for another run (other {', '.join(found)}): the same noise on "
            "two different gradients can be subtracted away. Give every run its own, such as gdpjax.fresh_key()"
        )


def start_run(
    folder: str | Path, training: Training, params: PyTree, data: Data, *, key: Array, scan: bool = True
) -> Run:
    """Begin a run in an empty or new folder.

    Args:
      folder: for the plan, the journal and the checkpoint, which holds secret keys; shared by all processes.
      training: from `private_training`.
      params: initial parameters; with several processes the first one's, unless they lie on a mesh.
      data: ``training.place(...)``.
      key: one PRNG key, used for nothing else: `gdpjax.fresh_key()`.
      scan: take the steps of a chunk in one compiled scan, or one by one, so that ``on_step`` is called after each.

    Raises:
      ValueError: the folder holds a run already, or its path has signs that checkpoints cannot have; the key was used
        in this process for other data, another program or other initial values.
      CheckpointError: the folder cannot be written, or another process has it open.
    """
    folder = _folder(folder)
    check_instance("data", data, Data, "which training.place(...) returned")
    if not folder.parts:
        raise ValueError("name a folder of its own for the run, got an empty name or the present folder")
    _checkpoint.check_path(folder)
    lock = _locked(folder, begin=True)
    params = parameters_for_all(training.params_of(params), data.arrays)
    state = training.init(params, key)
    run = Run(folder, training, data, state, lock, state_digest(state), scan=scan)
    _refuse_used_key(key, run)

    def write_plan() -> None:
        if is_first_process():
            write_atomically(folder / PLAN, training.plan.to_json(), PUBLIC_FILE)

    with _disk(folder, "begin a run"):
        together(write_plan)
    run.save()
    return run


def resume_run(folder: str | Path, training: Training, params: PyTree, data: Data, *, scan: bool = True) -> Run:
    """Go on with the run in ``folder``, after its last checkpoint; the arguments are those of `start_run`.

    The values of ``params`` do not matter: parameters, frozen ones included, and injected hyperparameters are the
    checkpoint's.

    Raises:
      ValueError: the checkpoint is of another plan; the differences are named.
      CheckpointError: there is no checkpoint, or it is damaged, or its version or its arrays are not this training's;
        another process has the folder open.
    """
    folder = _folder(folder)
    check_instance("data", data, Data, "which training.place(...) returned")
    lock = _locked(folder, begin=False)
    index = _checkpoint.read_index(folder)
    # The plan first: another one may have other arrays, and its differences say more than theirs.
    found = _differences(index.plan, _described_plan(training, scan))
    if found:
        raise ValueError(
            f"the checkpoint in {folder} belongs to another plan ({'; '.join(found)}); restore those, or start a new "
            "run in another folder"
        )
    template = training.init(parameters_for_all(training.params_of(params), data.arrays), fresh_key(index.key_impl))
    _checkpoint.refuse_other_arrays(folder, index, template)
    run = Run(folder, training, data, template, None, index.initial, scan=scan)
    _check_plan_file(folder / PLAN, training)
    run.state = _checkpoint.restore(folder, index, template)
    if int(run.step) != index.step:
        raise CheckpointError(
            f"the checkpoint in {folder} is damaged: its ledger has {run.step} steps, its index {index.step}"
        )
    run._take_over(lock)
    run._go_on_from(index)
    return run


def _folder(folder: str | Path) -> Path:
    if not isinstance(folder, str | Path):
        raise ValueError(f"folder must be a path or its text, got {type(folder).__name__}")
    if "\0" in str(folder):
        raise ValueError(f"folder must be a path without a zero byte, got {str(folder)!r}")
    try:
        return Path(folder).expanduser()
    except RuntimeError as error:
        raise ValueError(f"folder begins with the home of a user who is not known: {str(folder)!r}") from error


@contextlib.contextmanager
def _disk(folder: Path, what: str) -> Iterator[None]:
    """One sentence for whatever the operating system has against the folder: its name, its length, its permissions."""
    try:
        yield
    except OSError as error:
        name = str(folder) if len(str(folder)) < 300 else f"{str(folder)[:300]}..."
        raise CheckpointError(f"cannot {what} in {name}: {error.strerror or error}; choose another folder") from None


def _locked(folder: Path, *, begin: bool) -> FolderLock | None:
    """The lock of the run's private folder, on the first process; a new run must not find one there."""
    locks: list[FolderLock] = []

    def lock() -> None:
        if not is_first_process():
            return
        private = folder / _checkpoint.FOLDER
        if begin:
            _refuse_a_second_run(folder)
            make_private_folder(private)
        elif not _checkpoint.exists(folder):
            raise CheckpointError(f"nothing to resume: there is no checkpoint in {folder}")
        locks.append(lock_folder(private))
        if begin:  # another process may have begun one before the lock was ours
            _refuse_a_second_run(folder)

    with _disk(folder, "begin a run" if begin else "resume a run"):
        together(lock)
    return locks[0] if locks else None


def has_run(folder: str | Path) -> bool:
    """Return whether ``folder`` holds a run: `start_run` would refuse it, and `resume_run` is what continues it.

    A process that is killed inside `start_run` may leave a folder without a run; nothing was spent, so start again.

    >>> has_run("a folder that is not there")
    False
    """
    folder = _folder(folder)
    with _disk(folder, "look for a run"):
        return _checkpoint.exists(folder) or (folder / _checkpoint.FOLDER / JOURNAL).exists()


def _refuse_a_second_run(folder: Path) -> None:
    if has_run(folder):
        raise ValueError(f"{folder} already holds a run: resume_run continues it; else choose another folder")


def _check_plan_file(path: Path, training: Training) -> None:
    """CheckpointError unless the file beside the checkpoint is the training's plan, which readers will take it for."""
    try:
        stated = read_document(path, dict[str, Any])
    except DocumentError as error:
        raise CheckpointError(f"the plan is missing or damaged: {error}; restore it from a copy") from error
    found = _differences(stated, json.loads(training.plan.to_json()))
    if found:
        raise CheckpointError(f"{path} is damaged: it is not the plan of the checkpoint beside it ({'; '.join(found)})")
