"""Progress on one line of the standard error, shown only to people: on a terminal.

`Progress` is the bar of a sweep; `Elapsed` counts the seconds of any other command that takes long.
"""

import threading
import time
from typing import TextIO

WIDTH = 30


class Progress:
    """The bar of a sweep: how many of ``total`` rows are done, how fast, how long the rest will take.

    Use it as a context.
    """

    def __init__(self, stream: TextIO, total: int, done: int) -> None:
        self._stream = stream
        self._total = total
        self._done = done
        self._shown = stream.isatty() and done < total
        # The time and the number of rows at which the speed is measured from.
        self._start: tuple[float, int] | None = None

    def __enter__(self) -> "Progress":
        self._draw("compiling, a few seconds")
        return self

    def __exit__(self, *exception: object) -> None:
        if self._shown:
            self._stream.write("\n")

    def advance(self, rows: int) -> None:
        """Count more rows as done; the speed is measured from the first call on, after the compilation."""
        self._done += rows
        now = time.monotonic()
        if self._start is None:
            self._start = now, self._done
        start_time, start_rows = self._start
        seconds = now - start_time
        rows_since = self._done - start_rows
        if rows_since > 0 and seconds > 0:
            speed = rows_since / seconds
            left = round((self._total - self._done) / speed)
            self._draw(f"{speed:.0f} rows/s, {left // 3600}:{left // 60 % 60:02}:{left % 60:02} left")
        else:
            self._draw("")

    def _draw(self, note: str) -> None:
        """Draw the bar with a note behind it."""
        if not self._shown:
            return
        filled = WIDTH * self._done // self._total
        bar = "#" * filled + "-" * (WIDTH - filled)
        # The blanks wipe out a longer note before this one.
        self._stream.write(f"\r[{bar}] {self._done}/{self._total} rows  {note:<40}")
        self._stream.flush()


class Elapsed:
    """The seconds that a command has taken, from the second on; wiped out at the end. Use it as a context."""

    def __init__(self, stream: TextIO, command: str, shown: bool = True) -> None:
        self._stream = stream
        self._command = command
        self._done = threading.Event()
        self._clock: threading.Thread | None = None
        if shown and stream.isatty():
            self._clock = threading.Thread(target=self._count, daemon=True)

    def __enter__(self) -> "Elapsed":
        if self._clock is not None:
            self._clock.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._done.set()
        if self._clock is not None:
            self._clock.join()

    def _count(self) -> None:
        """Write the seconds once a second, until the command is done."""
        start = time.monotonic()
        text = ""
        while not self._done.wait(1.0):
            seconds = round(time.monotonic() - start)
            text = f"{self._command}: computing, {seconds} s (Ctrl-C stops it)"
            self._stream.write(f"\r{text}")
            self._stream.flush()
        if text:
            self._stream.write(f"\r{' ' * len(text)}\r")
            self._stream.flush()
