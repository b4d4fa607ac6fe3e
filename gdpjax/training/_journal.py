"""The journal of a run: the steps that were paid for, written before they are taken.

A line is a chunk of steps. Its checksum is over the line and the checksum of the line before, so that a number that
was changed, and a line that was lost, doubled or moved, are seen; the checkpoint names the checksum it ends with.
"""

import json
import os
from pathlib import Path
from typing import Annotated, Any

import msgspec

from gdpjax._core.documents import DocumentError, digest_of_document, parse_document, read_bytes
from gdpjax._core.files import sync, write_all
from gdpjax.training._processes import CheckpointError, is_first_process

JOURNAL = "journal.jsonl"


class Chunk(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A line of the journal: steps ``first`` to ``first + num_steps - 1``.

    Attributes:
      first: the first step.
      num_steps: how many steps there are.
      state: digest of the state before them: parameters, optimizer state, keys.
      fingerprint: of the process that takes them.
      sha256: checksum of this line and of the one before.
    """

    first: Annotated[int, msgspec.Meta(ge=0)]
    num_steps: Annotated[int, msgspec.Meta(ge=1)]
    state: str
    fingerprint: dict[str, Any]
    sha256: str

    @property
    def end(self) -> int:
        """Return the step after the last one."""
        return self.first + self.num_steps


class Journal:
    """The lines of a journal, in memory and on disk.

    Attributes:
      chunks: the lines so far.
      was_torn: whether the file ends in a line that was cut off.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.chunks: list[Chunk] = []
        self.was_torn = False
        self._size = 0

    @property
    def end(self) -> int:
        """Return the number of steps that are paid for."""
        if not self.chunks:
            return 0
        return self.chunks[-1].end

    def checksum(self, count: int) -> str:
        """Return the checksum that the first ``count`` lines end with."""
        if not count:
            return ""
        return self.chunks[count - 1].sha256

    def append(self, num_steps: int, state: str, fingerprint: dict[str, Any]) -> None:
        """Put the next ``num_steps`` steps on record; OSError or CheckpointError, without a record, if that fails."""
        content = {
            "first": self.end,
            "num_steps": num_steps,
            "state": state,
            "fingerprint": fingerprint,
        }
        content["sha256"] = digest_of_document([self.checksum(len(self.chunks)), content])
        if is_first_process():
            line = json.dumps(content)
            self._size = _append_line(self.path, line, self._size)
        self.chunks.append(Chunk(**content))

    def read(self, max_steps: int) -> None:
        """Read the file, without a last line that is cut off.

        A power cut leaves one, before any of its steps is taken. Whoever shortened the file by hand leaves one, too.

        Raises:
          CheckpointError: the file is damaged, or goes beyond ``max_steps``.
        """
        if not self.path.exists():
            return
        try:
            content = read_bytes(self.path)
            *lines, torn = content.split(b"\n")
            for number, line in enumerate(lines, start=1):
                self._take(line, f"{self.path}, line {number}", max_steps)
        except DocumentError as error:
            raise CheckpointError(f"the journal is damaged: {error}; restore the folder from a copy") from error
        self._size = len(content) - len(torn)
        self.was_torn = bool(torn)

    def remove_torn_line(self) -> None:
        """Let the file end where the last whole line does; when all processes have read it."""
        if self.was_torn and is_first_process():
            os.truncate(self.path, self._size)

    def _take(self, line: bytes, source: str, max_steps: int) -> None:
        """Add a line to the chunks; DocumentError unless it goes on where the line before ends."""
        chunk = parse_document(line, Chunk, source)
        if chunk.first != self.end:
            raise DocumentError(source, f"expected {self.end}, where the line before ends, got {chunk.first}", "first")
        if chunk.end > max_steps:
            raise DocumentError(source, f"expected an end within the plan's {max_steps} steps", "num_steps")

        # The checksum covers the line without itself.
        content = msgspec.structs.asdict(chunk)
        stated = content.pop("sha256")
        if stated != digest_of_document([self.checksum(len(self.chunks)), content]):
            raise DocumentError(source, "the checksum is not that of this line after the one before", "sha256")
        self.chunks.append(chunk)


_WRITTEN_BY_ANOTHER = (
    "{} is not as this run left it: another process has gone on with the run, or the file was changed. Nothing was "
    "run; end the other process, then call resume_run"
)


def _append_line(path: Path, line: str, expected_size: int) -> int:
    """Append one line to a private file, on disk before this returns the new size.

    Raises:
      CheckpointError: the file is not ``expected_size`` bytes long before, or not the line longer after, so somebody
        else has written it.
      OSError: the disk refuses; the file is as it was.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        size = os.fstat(descriptor).st_size
        if size != expected_size:
            raise CheckpointError(_WRITTEN_BY_ANOTHER.format(path))
        try:
            written = write_all(descriptor, line.encode() + b"\n")
            os.fsync(descriptor)
            sync(path.parent)
        except OSError:
            # A part of a line would spoil the next one.
            os.ftruncate(descriptor, size)
            raise
        # Where locks do not work, another process may have looked at the size at the same moment.
        if os.fstat(descriptor).st_size != size + written:
            raise CheckpointError(_WRITTEN_BY_ANOTHER.format(path))
    finally:
        os.close(descriptor)
    return size + written
