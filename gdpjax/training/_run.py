"""A run that can be killed at any moment and goes on without spending twice or reusing noise.

**Written ahead.** Before a chunk of steps begins, a line in the journal says which steps it will take and under which
fingerprint (data, program, versions, devices); it is on disk before the first step. After the chunk the checkpoint
is replaced, and says how many lines of the journal it covers. So at any moment the journal pays for everything that
may have been computed, and the lines beyond the checkpoint are the chunks whose outcome was lost.

**Resumed.** With the same fingerprint, on a platform that repeats its bits, the lost chunk is repeated with the same
keys and the same length: the same bits, one release, charged once. Otherwise its outcome would be the same noise on a
different gradient; so the lost steps are charged to the ledger as if they had been seen, sampling and noise get new
keys, and training goes on with what is left of the budget. The keys are new even if nothing is known to be lost: a
folder that was restored from a backup does not know which steps were taken since. So they are where ``run.state`` was
changed by hand. A checkpoint of another plan is refused.

**One at a time.** A lock on the folder keeps a second process out, and the journal is appended to only where this run
left it.
"""

import contextlib
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import PRNGKeyArray

from gdpjax._core.arguments import MOST_INDEX, check_count, check_flag, check_instance, keyword_checked
from gdpjax._core.documents import DocumentError, read_document
from gdpjax._core.files import FolderIsLocked, FolderLock, lock_folder, write_atomically
from gdpjax._core.keys import check_key, fresh_key
from gdpjax._core.trees import nodes_of
from gdpjax._core.types import PyTree
from gdpjax.ledger import Ledger, ledger_of, record_steps
from gdpjax.training import _checkpoint
from gdpjax.training._checkpoint import Index, make_private_folder
from gdpjax.training._data import Data, check_data
from gdpjax.training._fingerprint import digest_of, environment, repeats_bits, settings, state_digest
from gdpjax.training._in_place import steps_in_place
from gdpjax.training._journal import JOURNAL, Chunk, Journal
from gdpjax.training._loop import FINISHED, RUNNING, Info, State, Training, own_copy
from gdpjax.training._plan import Plan
from gdpjax.training._processes import (
    CheckpointError,
    beside,
    described_by_all,
    is_first_process,
    one_key_for_all,
    parameters_for_all,
    spread_like,
    together,
)
from gdpjax.training._statement import plan_to_dict
from gdpjax.transforms import PrivatizeState

PLAN = "plan.json"


class Run:
    """A training in a folder; made by `start_run` and `resume_run`.

    Attributes:
      training: the `Training` that makes the steps.
      data: the `Data` that they are made on. Neither can be replaced: a chunk that was interrupted is repeated with the
        same keys, which must meet the same data.
      state: the `State` after the steps done so far.
      fingerprint: what decides the bits of a step: data, program, initial state (parameters, frozen ones included,
        injected hyperparameters), versions, devices. Private: it holds a digest of the data.
      changes: the names in the fingerprint under which a resumed run differs from the process that it goes on from,
        such as ("data",) or ("cpu", "jax"). Where there is any, the run goes on with new keys.
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
        self.folder = folder
        self._training = training
        # An array of NumPy, or a dict, could be changed by its owner between a chunk and its repetition.
        data = jax.tree.map(own_copy, data)
        self._data = data
        self._begin_with(state)
        # The lines hold a digest of private data, so they belong in the folder that is not for release.
        self.journal = folder / _checkpoint.FOLDER / JOURNAL

        self._scan = scan
        self._initial = initial
        self._plan = _described_plan(training, scan)

        # Everything that decides the bits of a step.
        self._steps = steps_in_place(training.step, state, data)
        own = {
            "data": digest_of(*jax.tree.leaves(data)),
            "program": self._steps.digest(state, data, in_a_loop=scan),
            "initial state": initial,
        }
        self._environment = environment(state.params, data)
        self.fingerprint = described_by_all(self._environment | own)
        self.changes: tuple[str, ...] = ()

        self._records = Journal(self.journal)
        # The lengths of chunks that are on record and whose outcome is not.
        self._pending: list[int] = []
        self._saves = 0
        self._is_advancing = False
        self._take_over(lock)

    def _begin_with(self, state: State) -> None:
        """Make ``state`` the one that this run goes on from."""
        self.state = state
        # The state that the run itself came to, and digests of the keys that it has had, the present ones last.
        self._own_state = state
        self._own_keys = [_digest_of_keys(state)]

    @property
    def training(self) -> Training:
        """Return the training that makes the steps."""
        return self._training

    @property
    def data(self) -> Data:
        """Return the data that the steps are made on, in containers of their own."""
        return jax.tree.map(own_copy, self._data)

    @property
    def step(self) -> int:
        """Return how many of the plan's steps are behind ``state``: kept, or lost and charged."""
        return int(self.state.num_steps_done)

    @property
    def finished(self) -> bool:
        """Return whether all planned steps are charged."""
        return bool(self.state.finished)

    @property
    def num_lost(self) -> int:
        """Return how many of the charged steps were not kept, because the run moved in the middle of a chunk."""
        (noised,) = nodes_of(self.state.opt_state, PrivatizeState)
        return self.step - int(noised.count)

    @property
    def ledger(self) -> Ledger:
        """Return what was run, for the accountants; both ends of a bracket count lost steps as released.

        So they count the steps of a chunk that was interrupted and is still to be repeated, which may have been shown.
        """
        return ledger_of(_charged(self._training.plan, self.state.opt_state, self._num_charged - self.step))

    def statement(self) -> str:
        """Return the training's statement; of a run that made fewer steps than planned it says so."""
        return self.training.statement(self._num_charged)

    @property
    def _num_charged(self) -> int:
        """Return how many steps are on record, whether or not their outcome is in ``state``."""
        return max(self.step, self._records.end)

    def advance(
        self,
        num_steps: int,
        on_step: Callable[[int], None] | None = None,
        before_checkpoint: Callable[[list[Info]], None] | None = None,
    ) -> list[Info]:
        """Take the next ``num_steps`` steps (fewer at the end of the plan), and make them the checkpoint.

        A chunk that a crash interrupted is repeated first, in its own length, and nothing else is done then.

        Args:
          num_steps: how many, at least 1.
          on_step: called after every step with the number of steps done, in a run with ``scan=False``.
          before_checkpoint: called with what is returned, after the steps and before the checkpoint. What it writes is
            complete whenever the checkpoint is; a crash in between writes it again.

        Returns:
          The private `Info` of the steps: one with a leading axis of a run that scans, else one for each step.

        Raises:
          ValueError: num_steps < 1, on_step in a run that scans, called by one of its callbacks, or other settings of
            JAX than the run was started or resumed with.
          BatchOverflowError: a batch did not fit; what was done before is the checkpoint.
          CheckpointError: the disk refuses. Before the chunk: nothing was run. After it: it is in ``state``. Or the
            folder was resumed by another `Run` since; or, of several processes, one has ended.
        """
        num_steps = check_count("num_steps", num_steps)
        if self._scan and on_step is not None:
            raise ValueError("on_step is called after each step, and this run takes them in a loop: give scan=False")
        self.state.check_status()
        if self._is_advancing:
            raise ValueError(
                "advance was called by a callback of advance; call it again after the first one has returned"
            )
        if self.finished:
            return []
        if changed := sorted(name for name, value in settings().items() if value != self._environment[name]):
            raise ValueError(
                f"the settings of JAX must be those of start_run or resume_run, and {', '.join(changed)} changed: "
                "change them back, or call resume_run with the new ones"
            )
        self._is_advancing = True
        try:
            return self._advance(num_steps, on_step, before_checkpoint)
        except KeyboardInterrupt as stop:
            stop.add_note(
                f"{self.step} of {self._training.plan.num_steps} steps are kept in {self.folder}, and "
                f"{self._records.end} are charged: advance again, or call start_run(..., resume=True) in a new "
                "process, to repeat what was interrupted and continue"
            )
            raise
        except jax.errors.JaxRuntimeError as error:
            if jax.process_count() == 1:
                raise
            raise CheckpointError(
                f"the steps failed on process {jax.process_index()} of {jax.process_count()}: {str(error)[:300]}. If "
                "another process has ended, end all of them and start them again with resume_run: what was spent is "
                "on record"
            ) from None
        finally:
            self._is_advancing = False

    def _advance(
        self,
        num_steps: int,
        on_step: Callable[[int], None] | None,
        before_checkpoint: Callable[[list[Info]], None] | None,
    ) -> list[Info]:
        """Take the next chunk, or repeat one that was lost; see `advance`."""
        self._check_lock()
        self._charge_a_state_put_back()
        if self.finished:
            return []

        # Compiled before anything is on record, so that an interrupt in the meantime costs nothing.
        if self._scan:
            self._steps.compile_loop(self.state, self._data)

        # The next steps are on record before the first of them is taken.
        if not self._pending:
            steps_left = self._training.plan.num_steps - self.step
            self._write_ahead(min(num_steps, steps_left))

        # Interrupted in here, the chunk stays pending and is repeated: same keys, same length, same bits.
        infos = self._take(self._pending[0], on_step)
        self._pending.pop(0)
        if before_checkpoint is not None:
            before_checkpoint(infos)

        # A later chunk that is still to be repeated is paid for beyond the checkpoint.
        if not self._pending:
            self.save()
        self.state.check_status()
        return infos

    def _take(self, num_steps: int, on_step: Callable[[int], None] | None) -> list[Info]:
        """Take the steps of a chunk; until it is complete ``state`` is the one from which it would be repeated."""
        if self._scan:
            state, info = self._steps.in_a_loop(self.state, self._data, num_steps)
            self.state = self._own_state = jax.block_until_ready(spread_like(state, self.state))
            return [info]

        first = self.step

        def after_each(num_done: int) -> None:
            if on_step is not None:
                on_step(first + num_done)

        state, infos = self._steps.one_by_one(self.state, self._data, num_steps, after_each)
        self.state = self._own_state = jax.block_until_ready(spread_like(state, self.state))
        return infos

    def _write_ahead(self, num_steps: int) -> None:
        """Put the next steps on record, before they are taken."""
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
        """Let this run write in the folder from now on, and no earlier one of this process."""
        self._lock = lock
        if lock is not None:
            lock.give_to(self)

    def _check_lock(self) -> None:
        """Raise CheckpointError unless the folder is still this run's."""

        def check() -> None:
            if self._lock is None:
                return
            if not self._lock.is_in_place():
                raise CheckpointError(
                    f"the folder {self._lock.path.parent} is no longer locked by this run: it was deleted or replaced, "
                    "or the process was forked. Nothing was run; call resume_run"
                )
            if self._lock.owner() is not self:
                raise CheckpointError(
                    f"the run in {self._lock.path.parent} was resumed in this process since: go on with what "
                    "resume_run returned then, or call it again"
                )

        together(check)

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
            together(lambda: self._records.read(self._training.plan.num_steps))
            together(self._records.remove_torn_line)

        # The journal must be the one that the checkpoint belongs to.
        chunks = self._records.chunks
        covered = index.journal
        paid = chunks[covered - 1].end if 0 < covered <= len(chunks) else 0
        is_whole = covered <= len(chunks) and self._records.checksum(covered) == index.journal_sha256
        if not is_whole or paid != index.step:
            raise CheckpointError(f"{self.journal} is damaged: it is not the journal that the checkpoint belongs to")

        # Repeat the chunks whose outcome was lost where they are certain to have the same bits.
        lost = chunks[covered:]
        fingerprints = [index.fingerprint]
        fingerprints += [chunk.fingerprint for chunk in lost]
        changes = set()
        for fingerprint in fingerprints:
            changes.update(_changed_names(fingerprint, self.fingerprint))
        self.changes = tuple(sorted(changes))
        self._refuse_other_data()
        if self._has_same_bits(lost):
            self._pending = [chunk.num_steps for chunk in lost]
            return

        # Otherwise they are charged for, and left out.
        if self._training.plan.release.strategy is not None:
            self._keep_correlated_keys(lost)
            return
        self._pay_for_lost()

    def _has_same_bits(self, lost: list[Chunk]) -> bool:
        """Return whether the chunks that were lost have the same bits again if they are repeated here."""
        if self.changes:
            return False
        if lost and lost[0].state != state_digest(self.state):
            return False
        # Whether the steps of a line that was cut off were taken is not certain.
        if self._records.was_torn:
            return False
        return repeats_bits(self._environment)

    def _keep_correlated_keys(self, lost: list[Chunk]) -> None:
        """Go on with the same keys, which later noise needs to take back that of earlier steps, or refuse to.

        A folder that lost nothing may be a backup, after which steps were taken: their noise would meet other gradients
        where another program, other data or another machine take them again.
        """
        if self.changes:
            why = f"{', '.join(self.changes)} of {self.folder} differ here"
        elif lost or self._records.was_torn:
            why = f"the last chunk of {self.folder} was interrupted, and may have other bits if it is repeated here"
        else:
            return
        raise CheckpointError(
            f"a run with correlated noise goes on only as it began, and {why}. It needs the same keys, and steps that "
            "were lost, or taken after a backup, would meet them with other gradients. Resume with the data, program, "
            "versions and machine that it began with, or begin a new run and account for both"
        )

    def _refuse_other_data(self) -> None:
        """Raise ValueError where a scheme of epochs would go on with other data.

        A row that moved would have another step, and its example might take part once too often.
        """
        if not self._training.plan.batches.draws_together:
            return
        if "data" in self.changes:
            raise ValueError(
                f"with {type(self._training.plan.batches).__name__} batches a run goes on with the data that it began "
                "with, row for row: the step of an example belongs to its row"
            )

    def _charge_a_state_put_back(self) -> None:
        """Charge the steps made since an earlier state to which ``state`` was set, and go on with new keys.

        With the old keys they would be made again, on other parameters, with the same noise. So might the next steps of
        a state that was changed, where a backup of the folder, or the same key elsewhere, has taken them already.
        """
        keys = _digest_of_keys(self.state)
        if keys not in self._own_keys:
            raise ValueError(
                "run.state was set to a state with keys that this run never had: it is the state of another run, whose "
                "steps would be made again with the same noise. Begin a run of its own with start_run"
            )
        if self._pending:
            # Chunks are repeated from the state that the first of them began with, or not at all.
            if self._records.chunks[-len(self._pending)].state != state_digest(self.state):
                self._pay_for_lost()
            return
        # Keys that were replaced may have made later steps elsewhere.
        is_newest = self.step == self._records.end and keys == self._own_keys[-1]
        if is_newest and self._is_as_it_was():
            return
        if self.step > self._records.end:
            raise ValueError(
                f"run.state is charged for {self.step} steps, but this run has {self._records.end} on record: it is "
                "the state of another run"
            )
        self._take_new_keys(self._records.end - self.step)

    def _is_as_it_was(self) -> bool:
        """Return whether ``state`` has the values that the run itself came to."""
        return self.state is self._own_state or state_digest(self.state) == state_digest(self._own_state)

    def _pay_for_lost(self) -> None:
        """Charge all that is on record, and go on from there with new keys."""
        self._take_new_keys(self._records.end - self.step)
        self._pending = []
        self.save()

    def _take_new_keys(self, num_lost: int) -> None:
        """Charge ``num_lost`` steps, and go on with new keys; ValueError where correlated noise needs the old ones."""
        # A run that stopped at a batch above its capacity makes no more steps.
        if self._training.plan.release.strategy is not None and not self.state.overflowed:
            raise ValueError(
                "run.state was changed, or set to an earlier state, and a run with correlated noise cannot go on from "
                "there: the noise of later steps takes back that of the steps on record. Put it back as it was "
                "(resume_run does)"
            )
        self.state = self._own_state = _with_new_keys(self._training, self.state, num_lost)
        self._own_keys.append(_digest_of_keys(self.state))


def _described_plan(training: Training, scan: bool) -> dict[str, Any]:
    """Return what the checkpoint says of the plan."""
    described = plan_to_dict(training.plan) | {"scan": scan}
    # As it comes back from a file.
    return json.loads(json.dumps(described))


def _is_private_state(node: Any) -> bool:
    return isinstance(node, PrivatizeState)


def _digest_of_keys(state: State) -> str:
    """Return the SHA-256 of the keys of noise and sampling."""
    key_data = [node.key_data for node in nodes_of(state.opt_state, PrivatizeState)]
    return digest_of(*key_data, jax.random.key_data(state.sampling_key))


def _charged(plan: Plan, opt_state: Any, num_steps: int) -> Any:
    """Return an optimizer's state whose ledger has ``num_steps`` more steps of the plan."""

    def charged(node: Any) -> Any:
        if not num_steps or not isinstance(node, PrivatizeState):
            return node
        release = plan.release
        step = plan.noise_multiplier, release.sampling_prob, release.overflow_per_step
        return node._replace(ledger=record_steps(node.ledger, num_steps, *step))

    return jax.tree.map(charged, opt_state, is_leaf=_is_private_state)


def _with_new_keys(training: Training, state: State, num_lost: int) -> State:
    """Return ``state`` with ``num_lost`` steps charged, and with new keys.

    They are new for noise and, but for schemes of epochs, for sampling.
    """
    plan = training.plan
    impl = jax.random.key_impl(state.sampling_key)
    new_key = one_key_for_all(fresh_key(str(impl)))
    sampling_key, noise_key = jax.random.split(new_key)
    if plan.batches.draws_together:
        # With a new key an example that took part in a lost step might do so once more in the same epoch. The lost
        # steps are left out, not repeated, so the old key gives every example its steps as before.
        sampling_key = state.sampling_key

    def renewed(node: Any) -> Any:
        if not _is_private_state(node):
            return node
        return node._replace(key_data=beside(state.params, jax.random.key_data(noise_key)))

    opt_state = _charged(plan, state.opt_state, num_lost)
    opt_state = jax.tree.map(renewed, opt_state, is_leaf=_is_private_state)
    state = state._replace(opt_state=opt_state, sampling_key=beside(state.params, sampling_key))

    # The steps that were lost may have been the last ones.
    has_finished = state.num_steps_done >= plan.num_steps
    status = jnp.where((state.status == RUNNING) & has_finished, FINISHED, state.status)
    return state._replace(status=status.astype(jnp.int32))


def _changed_names(first: dict[str, Any], second: dict[str, Any]) -> list[str]:
    """Return the names under which two descriptions differ, in order."""
    names = sorted(first.keys() | second.keys())
    return [name for name in names if first.get(name) != second.get(name)]


def _differences(first: dict[str, Any], second: dict[str, Any]) -> list[str]:
    """Return what differs between two descriptions, one readable entry each."""
    differences = []
    for name in _changed_names(first, second):
        then = first.get(name)
        now = second.get(name)
        differences.append(f"{name}: {then!r} then, {now!r} now")
    return differences


_KEYS_USED: dict[tuple[str, str], dict[str, Any]] = {}
"""Fingerprint of the run that each key was used for in this process, by the key's implementation and digest."""


def _refuse_used_key(key: PRNGKeyArray, run: Run) -> None:
    """Raise ValueError if ``key`` made other steps with noise in this process; repeating the same run is harmless."""
    words, impl = check_key(key)
    used = _KEYS_USED.setdefault((impl, digest_of(words)), run.fingerprint)
    if used != run.fingerprint:
        names = ", ".join(_changed_names(used, run.fingerprint))
        raise ValueError(
            f"this key was already used in this process for another run (other {names}): the same noise on "
            "two different gradients can be subtracted away. Give every run its own, such as gdpjax.fresh_key()"
        )


@keyword_checked()
def start_run(
    folder: str | Path,
    training: Training,
    params: PyTree,
    data: Data,
    *,
    key: PRNGKeyArray,
    scan: bool = True,
    resume: bool = False,
) -> Run:
    """Begin a run in an empty or new folder, or continue the one that it holds.

    Args:
      folder: for the plan, the journal and the checkpoint, which holds secret keys; shared by all processes.
      training: from `private_training`.
      params: initial parameters; with several processes the first one's, unless they lie on a mesh.
      data: ``training.place(...)``.
      key: one PRNG key, used for nothing else: `gdpjax.fresh_key()`.
      scan: take the steps of a chunk in one compiled loop, or one by one, so that ``on_step`` is called after each.
      resume: if the folder holds a run, continue it, as `resume_run` does; ``key`` is not used then. A script that
        is to be started again after any interruption needs nothing else.

    Raises:
      ValueError: the folder holds a run already, and ``resume`` is not set; or its path has signs that checkpoints
        cannot have; the key was used in this process for other data, another program (``scan`` is part of it) or other
        initial values. With ``resume`` also as `resume_run`.
      CheckpointError: the folder cannot be written, or another process has it open.
    """
    folder = _checked(folder, training, data)
    scan = check_flag("scan", scan)
    resume = check_flag("resume", resume)
    if not folder.parts:
        raise ValueError("name a folder of its own for the run, got an empty name or the present folder")
    _checkpoint.check_path(folder)
    # All processes have looked before the first one begins a run here.
    found: list[bool] = []
    together(lambda: found.append(has_run(folder)))
    if resume and found[0]:
        return resume_run(folder, training, params, data, scan=scan)
    lock = _locked(folder, begin=True)
    params = parameters_for_all(training.params_of(params), data.arrays)
    state = training.init(params, key)
    run = Run(folder, training, data, state, lock, state_digest(state), scan=scan)
    _refuse_used_key(key, run)

    def write_plan() -> None:
        if is_first_process():
            write_atomically(folder / PLAN, training.plan.to_json())

    with _disk(folder, "begin a run"):
        together(write_plan)
    run.save()
    return run


def resume_run(
    folder: str | Path,
    training: Training,
    params: PyTree,
    data: Data,
    *,
    scan: bool = True,
) -> Run:
    """Go on with the run in ``folder``, after its last checkpoint; the arguments are those of `start_run`.

    The values of ``params`` do not matter: parameters, frozen ones included, and injected hyperparameters are the
    checkpoint's.

    Raises:
      ValueError: the checkpoint is of another plan; the differences are named.
      CheckpointError: there is no checkpoint, or it is damaged, or its version or its arrays are not this training's;
        another process has the folder open.
    """
    folder = _checked(folder, training, data)
    scan = check_flag("scan", scan)
    lock = _locked(folder, begin=False)
    index = _checkpoint.read_index(folder)

    # The plan is compared first: another one may have other arrays, and its differences say more than theirs.
    differences = _differences(index.plan, _described_plan(training, scan))
    if differences:
        listing = "; ".join(differences)
        raise ValueError(
            f"the checkpoint in {folder} belongs to another plan ({listing}); restore those, or start a new "
            "run in another folder"
        )

    # A state with the shapes and types of the checkpoint's, whose values do not matter.
    params = parameters_for_all(training.params_of(params), data.arrays)
    template = training.init(params, fresh_key(index.key_impl))
    _checkpoint.refuse_other_arrays(folder, index, template)
    run = Run(folder, training, data, template, None, index.initial, scan=scan)
    _check_plan_file(folder / PLAN, training)

    run._begin_with(_checkpoint.restore(folder, index, template))
    if int(run.step) != index.step:
        raise CheckpointError(
            f"the checkpoint in {folder} is damaged: its ledger has {run.step} steps, its index {index.step}"
        )
    run._take_over(lock)
    run._go_on_from(index)
    return run


def _checked(folder: Any, training: Any, data: Any) -> Path:
    """Return the path of a run's folder; ValueError unless training and data are what a run is made of."""
    check_instance("training", training, Training, "which private_training(...) returned")
    check_instance("training.plan", training.plan, Plan)
    check_data(data)
    return _path(folder)


def _path(folder: Any) -> Path:
    """Return the path of a run's folder."""
    return Path(os.path.expanduser(folder))


@contextlib.contextmanager
def _disk(folder: Path, what: str) -> Iterator[None]:
    """Say in one sentence what the operating system has against the folder: its name, its length, its permissions."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or error
        raise CheckpointError(f"cannot {what} in {folder}: {reason}; choose another folder") from None


def _locked(folder: Path, *, begin: bool) -> FolderLock | None:
    """Return the lock of the run's private folder, on the first process; a new run must not find a run there."""
    locks: list[FolderLock] = []

    def lock() -> None:
        if not is_first_process():
            return
        private = folder / _checkpoint.FOLDER
        if begin:
            make_private_folder(private)
        elif not _checkpoint.exists(folder):
            raise CheckpointError(f"nothing to resume: there is no checkpoint in {folder}")
        try:
            locks.append(lock_folder(private))
        except FolderIsLocked as holder:
            raise CheckpointError(
                f"another process{holder} has the run in {private} open. Two would take the same steps with the same "
                "noise: wait for it, or end it, then call resume_run"
            ) from None
        # Asked only now: another process may have begun one before the lock was ours.
        if begin and has_run(folder):
            raise ValueError(
                f"{folder} already holds a run: start_run(..., resume=True) continues it; else choose another folder"
            )

    with _disk(folder, "begin a run" if begin else "resume a run"):
        together(lock)
    return locks[0] if locks else None


def has_run(folder: str | Path) -> bool:
    """Return whether ``folder`` holds a run: `start_run` would refuse it, and `resume_run` is what continues it.

    A process that is killed inside `start_run` may leave a folder without a run; nothing was spent, so start again.

    >>> has_run("a folder that is not there")
    False
    """
    folder = _path(folder)
    with _disk(folder, "look for a run"):
        return _checkpoint.exists(folder) or (folder / _checkpoint.FOLDER / JOURNAL).exists()


def num_steps_on_record(folder: str | Path) -> int | None:
    """Return how many steps the folder's journal pays for; None without a run that can be read.

    They may be more than the checkpoint has: what was scored or shown of a chunk that was interrupted is covered, too.

    >>> num_steps_on_record("a folder that is not there") is None
    True
    """
    folder = _path(folder)
    try:
        step = _checkpoint.read_index(folder).step
        records = Journal(folder / _checkpoint.FOLDER / JOURNAL)
        records.read(MOST_INDEX)
    except (CheckpointError, OSError):
        return None
    return max(step, records.end)


def _check_plan_file(path: Path, training: Training) -> None:
    """Raise CheckpointError unless the file beside the checkpoint is the training's plan.

    Readers will take it for that.
    """
    try:
        stated = read_document(path, dict[str, Any])
    except DocumentError as error:
        raise CheckpointError(f"the plan is missing or damaged: {error}; restore it from a copy") from error
    differences = _differences(stated, json.loads(training.plan.to_json()))
    if differences:
        listing = "; ".join(differences)
        raise CheckpointError(f"{path} is damaged: it is not the plan of the checkpoint beside it ({listing})")
