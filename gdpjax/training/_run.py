"""A run that can be killed at any moment and goes on without spending twice or reusing noise.

**Written ahead.** Before a chunk of steps begins, a line in the journal says which steps it will take and under which
fingerprint (data, program, versions, devices); it is on disk before the first step. After the chunk the checkpoint
is replaced, and says how many lines of the journal it covers. So at any moment the journal pays for everything that
may have been computed, and the lines beyond the checkpoint are the chunks whose outcome was lost.

**Resumed.** With the same fingerprint, on a platform that repeats its bits, the lost chunk is repeated with the same
keys and the same length: the same bits, one release, charged once. Otherwise its outcome would be the same noise on a
different gradient; so the lost steps are charged to the ledger as if they had been seen, sampling and noise get new
keys, and training goes on with what is left of the budget. A checkpoint of another plan is refused.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gdpjax._core.keys import check_key, fresh_key
from gdpjax._core.types import Array, PyTree
from gdpjax.ledger import Ledger, ledger_of, record_steps
from gdpjax.training import _checkpoint
from gdpjax.training._data import Data
from gdpjax.training._files import CheckpointError, append_line, read_lines
from gdpjax.training._fingerprint import digest_of, environment, program_digest, repeats_bits
from gdpjax.training._json import plan_to_dict
from gdpjax.training._loop import FINISHED, RUNNING, Info, State, Training, check_status, num_steps_done
from gdpjax.training._processes import barrier, beside, described_by_all, is_first_process, one_key_for_all
from gdpjax.transforms import PrivatizeState

JOURNAL = "journal.jsonl"
PLAN = "plan.json"


class Run:
    """A training in a folder; made by `start_run` and `resume_run`.

    Attributes:
      state: the `State` after the steps done so far.
      fingerprint: what decides the bits of a step: data, program, versions, devices. Private: it holds a digest of the
        data.
    """

    def __init__(self, folder: Path, training: Training, data: Data, state: State, *, scan: bool) -> None:
        self.folder, self.training, self.data, self.state = folder, training, data, state
        # The lines hold a digest of private data, so they belong in the folder that is not for release.
        self.journal = folder / _checkpoint.FOLDER / JOURNAL
        self._scan = scan
        self._plan = plan_to_dict(training.plan) | {"scan": scan}
        own = {
            "data": digest_of(*data.arrays, data.num_examples),
            "program": program_digest(training.step, state, data),
        }
        self.fingerprint = described_by_all(environment() | own)
        self._pending: list[int] = []  # lengths of chunks that are on record and whose outcome is not
        self._journal_lines = 0

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
          CheckpointError: the disk refuses. Before the chunk: nothing was run. After it: it is in ``state``.
        """
        if not isinstance(num_steps, int) or num_steps < 1:
            raise ValueError(f"num_steps must be a whole number >= 1, got {num_steps!r}")
        check_status(self.state)
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
        if self._scan:
            state, info = self.training.run_steps(self.state, self.data, num_steps)
            self.state = jax.block_until_ready(state)
            return [info]
        state, infos, first = self.state, [], self.step
        for done in range(first + 1, first + num_steps + 1):
            state, info = self.training.step(state, self.data)
            infos.append(info)
            if on_step is not None:
                on_step(done)
        self.state = jax.block_until_ready(state)
        return infos

    def _write_ahead(self, num_steps: int) -> None:
        line = {"first": self.step, "num_steps": num_steps, "fingerprint": self.fingerprint}
        try:
            if is_first_process():
                append_line(self.journal, line)
        except OSError as error:
            raise CheckpointError(
                f"the budget of the next {num_steps} steps could not be written to {self.journal}: {error}. "
                "They were not run; make room and go on"
            ) from error
        self._journal_lines += 1
        self._pending = [num_steps]
        barrier("gdpjax: written ahead")

    def save(self) -> None:
        """Make the present state the checkpoint; `advance` does this by itself."""
        about = {
            "plan": self._plan,
            "fingerprint": self.fingerprint,
            "key_impl": str(jax.random.key_impl(self.state.sampling_key)),
            "journal": self._journal_lines,
        }
        _checkpoint.save(self.folder, self.step, self.state, about)

    def _go_on_from(self, index: dict[str, Any]) -> None:
        """Repeat what was lost, or charge for it and change the keys."""
        lines = read_lines(self.journal)
        self._journal_lines = len(lines)
        if len(lines) < index["journal"]:
            raise CheckpointError(f"{self.journal} is damaged: it lacks lines that the checkpoint covers")
        lost = lines[index["journal"] :]
        if not lost:
            return
        starts = [self.step, *(line["first"] + line["num_steps"] for line in lost)]
        if [line["first"] for line in lost] != starts[:-1]:
            raise CheckpointError(f"{self.journal} is damaged: its chunks do not follow one another")
        same = all(line["fingerprint"] == json.loads(json.dumps(self.fingerprint)) for line in lost)
        if same and repeats_bits(environment()):
            self._pending = [line["num_steps"] for line in lost]
            return
        num_lost = starts[-1] - self.step
        self.state = _recharged(self.training, self.state, num_lost)
        self.save()


def _private_states(state: State) -> list[Any]:
    return jax.tree.leaves(state.opt_state, is_leaf=lambda node: isinstance(node, PrivatizeState))


def _recharged(training: Training, state: State, num_lost: int) -> State:
    """``state`` with ``num_lost`` steps charged and new keys for sampling and noise."""
    plan, impl = training.plan, jax.random.key_impl(state.sampling_key)
    sampling_key, noise_key = jax.random.split(one_key_for_all(fresh_key(str(impl))))

    def renewed(node: Any) -> Any:
        if not isinstance(node, PrivatizeState):
            return node
        ledger = record_steps(node.ledger, num_lost, plan.noise_multiplier, plan.sampling_prob, plan.overflow_per_step)
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
      params: initial parameters.
      data: ``training.place(...)``.
      key: one PRNG key, used for nothing else: `gdpjax.fresh_key()`.
      scan: take the steps of a chunk in one compiled scan, or one by one (convolutions in a scan are slow on a CPU).

    Raises:
      ValueError: the folder holds a run already; the key was used in this process for other data or another program.
      CheckpointError: the folder cannot be written.
    """
    folder = Path(folder)
    if _checkpoint.exists(folder) or (folder / _checkpoint.FOLDER / JOURNAL).exists():
        raise ValueError(f"{folder} already holds a run: resume_run continues it; else choose another folder")
    barrier("gdpjax: looked")
    run = Run(folder, training, data, training.init(params, key), scan=scan)
    _refuse_used_key(key, run)
    try:
        if is_first_process():
            folder.mkdir(parents=True, exist_ok=True)
            (folder / PLAN).write_text(training.plan.to_json())
    except OSError as error:
        raise CheckpointError(f"cannot begin a run in {folder}: {error}; choose another folder") from error
    run.save()
    return run


def resume_run(folder: str | Path, training: Training, params: PyTree, data: Data, *, scan: bool = True) -> Run:
    """Go on with the run in ``folder``, after its last checkpoint; the arguments are those of `start_run`.

    Raises:
      ValueError: the checkpoint is of another plan; the differences are named.
      CheckpointError: there is no checkpoint, or it is damaged, or its version or its arrays are not this training's.
    """
    folder = Path(folder)
    index = _checkpoint.read_index(folder)
    template = training.init(params, fresh_key(index["key_impl"]))
    run = Run(folder, training, data, template, scan=scan)
    found = _differences(index["plan"], json.loads(json.dumps(run._plan)))
    if found:
        raise ValueError(
            f"the checkpoint in {folder} belongs to another plan ({'; '.join(found)}); restore those, or start a new "
            "run in another folder"
        )
    run.state = _checkpoint.restore(folder, index, template)
    if int(run.step) != index["step"]:
        raise CheckpointError(
            f"the checkpoint in {folder} is damaged: its ledger has {run.step} steps, its index {index['step']}"
        )
    run._go_on_from(index)
    return run
