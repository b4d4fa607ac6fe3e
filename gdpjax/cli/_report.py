"""The parser, the reports and the progress that all commands share.

A report is rows of quantity, value and standing, as a table for people or JSON for machines. argparse reads "-1e-5" as
an unknown option; here a number that begins with a minus belongs to the option before it. Of a misspelt option argparse
says that the right one is missing; here an unknown option is named first.
"""

import argparse
import json
import re
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, NoReturn, TextIO

from gdpjax._core.arguments import did_you_mean
from gdpjax._core.figures import plain, rounded, text_table
from gdpjax._core.types import Array, Bounds

CLT_CAVEAT = "asymptotic, no guarantee: may understate"
_DIGITS = 4
_NEGATIVE = re.compile(r"-(\d|\.\d|inf|nan)", re.IGNORECASE)
_ELSEWHERE = {"--sigma": "--noise-multiplier", "--sample-rate": "--sampling-prob"}
"""What other programs call these options, where no spelling is close."""


class Parser(argparse.ArgumentParser):
    """An argument parser whose complaints are one line."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self._negative_number_matcher = _NEGATIVE

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Parse after the refusal of unknown options; argparse calls this for each subcommand, which has its own."""
        if self._subparsers is None and not {"-h", "--help"} & set(args):
            self._refuse_unknown_options(args)
        return super().parse_known_args(args, namespace)

    def _refuse_unknown_options(self, arguments: Sequence[str]) -> None:
        """End with status 2 at the first option that there is not."""
        options = list(self._option_string_actions)
        for argument in arguments:
            name = argument.split("=")[0]
            # argparse takes a part of a long option for the whole.
            is_known = any(option.startswith(name) for option in options)
            if name.startswith("-") and not is_known and not _NEGATIVE.match(name):
                meant = _ELSEWHERE.get(name)
                hint = f"; did you mean {meant!r}?" if meant in options else did_you_mean(name, options)
                self.error(f"there is no option {name}{hint or f'; see {self.prog} --help'}")

    def error(self, message: str) -> NoReturn:
        """End with status 2 and one line on the standard error."""
        self.exit(2, f"{self.prog}: error: {message}\n")


class Row(NamedTuple):
    """One line of a report.

    Attributes:
        key: its name in the table and in JSON.
        value: None where not available.
        standing: what kind of number it is.
        rounding: to which side the table rounds it: "up" for what privacy costs, "down" for a lower bound, "exact" (all
            digits) for what was given, "nearest" for an estimate that nobody relies on.
    """

    key: str
    value: Any
    standing: str
    rounding: str = "nearest"


def clt_is_reliable(bounds: Bounds, epsilon_clt: Array) -> Array:
    """Return where the bracket proves the CLT's epsilon to be within 5% of every epsilon in it."""
    return (epsilon_clt >= 0.95 * bounds.upper) & (epsilon_clt <= 1.05 * bounds.lower)


def printed(report: Callable[[argparse.Namespace], list[Row]]) -> Callable[[argparse.Namespace], int]:
    """Return a command that prints ``report`` and ends with status 0."""

    def run(arguments: argparse.Namespace) -> int:
        rows = report(arguments)
        print(_as_json(rows, arguments.command) if arguments.json else _as_table(rows))
        return 0

    return run


def add_json_option(parser: argparse.ArgumentParser, instead_of: str = "a table") -> None:
    """Add ``--json``."""
    parser.add_argument("--json", action="store_true", help=f"one JSON object instead of {instead_of}")


def _as_json(rows: list[Row], command: str) -> str:
    """Return the values by their keys as one JSON object."""
    values: dict[str, Any] = {row.key: plain(row.value) for row in rows}
    # The keys of the other commands say their standing by name.
    if command == "convert":
        values["standing"] = {row.key: row.standing for row in rows}
    return json.dumps(values, allow_nan=False)


def _as_table(rows: list[Row]) -> str:
    """Return the rows as text, in columns."""
    cells = [("quantity", "value", "standing")]
    for key, value, standing, rounding in rows:
        text = rounded(value, _DIGITS, rounding) if isinstance(value, float) else str(value)
        cells.append((key, "-" if value is None else text, standing))
    return text_table(cells)


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
        while not self._done.wait(1.0):
            self._write(f"{self._command}: {self.note}, {time.monotonic() - start:.0f} s (Ctrl-C stops it)")
        self._write("")

    def _write(self, text: str) -> None:
        """Write a line in place of the one before."""
        self._stream.write(f"\r\033[K{text}")
        self._stream.flush()
