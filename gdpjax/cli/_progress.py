"""Progress of a command on one line of the standard error, shown only to people: on a terminal."""

import threading
import time
from typing import TextIO


class Progress:
    """What a command is at and the seconds that it has taken, from the second on; wiped out at the end.

    Use it as a context, and change its `note` as the work proceeds.
    """

    def __init__(self, stream: TextIO, command: str) -> None:
        self.note = "computing"
        self._stream = stream
        self._command = command
        self._done = threading.Event()
        self._clock = threading.Thread(target=self._count, daemon=True)

    def __enter__(self) -> "Progress":
        if self._stream.isatty():
            self._clock.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._done.set()
        if self._clock.ident is not None:
            self._clock.join()

    def _count(self) -> None:
        """Write the line once a second, until the command is done."""
        start = time.monotonic()
        text = ""
        while not self._done.wait(1.0):
            before, text = text, f"{self._command}: {self.note}, {time.monotonic() - start:.0f} s (Ctrl-C stops it)"
            self._write(text.ljust(len(before)))
        if text:
            self._write(" " * len(text) + "\r")

    def _write(self, text: str) -> None:
        self._stream.write(f"\r{text}")
        self._stream.flush()
