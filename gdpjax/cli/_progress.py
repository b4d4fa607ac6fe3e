"""Progress on one line of the standard error, shown only to people: on a terminal.

`Progress` is the bar of a sweep; `Elapsed` counts the seconds of any other command that takes long.
"""

import threading
import time
from typing import TextIO

WIDTH = 30


class Progress:
    """How many of ``total`` rows are done, how fast, and how long the rest will take. Use it as a context."""

    def __init__(self, stream: TextIO, total: int, done: int) -> None:
        self._stream, self._total, self._done, self._shown = stream, total, done, stream.isatty() and done < total
        self._start: tuple[float, int] | None = None

    def __enter__(self) -> "Progress":
        self._draw("compiling, a few seconds")
        return self

    def __exit__(self, *exception: object) -> None:
        if self._shown:
            self._stream.write("\n")

    def advance(self, rows: int) -> None:
        """Some more rows are done; the speed is measured from the first call, after the compilation."""
        self._done += rows
        now = time.monotonic()
        if self._start is None:
            self._start = now, self._done
        seconds, since = now - self._start[0], self._done - self._start[1]
        if since > 0 and seconds > 0:
            speed = since / seconds
            left = round((self._total - self._done) / speed)
            self._draw(f"{speed:.0f} rows/s, {left // 3600}:{left // 60 % 60:02}:{left % 60:02} left")
        else:
            self._draw("")

    def _draw(self, note: str) -> None:
        if self._shown:
            filled = WIDTH * self._done // self._total
            bar = "#" * filled + "-" * (WIDTH - filled)
            # the blanks wipe out what was longer before
            self._stream.write(f"\r[{bar}] {self._done}/{self._total} rows  {note:<40}")
            self._stream.flush()


class Elapsed:
    """The seconds that a command has taken, from the second on; wiped out at the end. Use it as a context."""

    def __init__(self, stream: TextIO, command: str, shown: bool = True) -> None:
        self._stream, self._command = stream, command
        self._done = threading.Event()
        self._clock = threading.Thread(target=self._count, daemon=True) if shown and stream.isatty() else None

    def __enter__(self) -> "Elapsed":
        if self._clock is not None:
            self._clock.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._done.set()
        if self._clock is not None:
            self._clock.join()

    def _count(self) -> None:
        start, text = time.monotonic(), ""
        while not self._done.wait(1.0):
            seconds = round(time.monotonic() - start)
            text = f"{self._command}: computing, {seconds} s (Ctrl-C stops it)"
            self._stream.write(f"\r{text}")
            self._stream.flush()
        if text:
            self._stream.write(f"\r{' ' * len(text)}\r")
            self._stream.flush()
