"""Options of the command line: how numbers are read, and the words for those that are missing or wrong.

argparse reads "-1e-5" as an unknown option, and answers "0.5:2" with the name of a Python type. Here a number that
begins with a minus belongs to the option before it, and every option of type ``float`` or ``int`` is read by `number`
or `whole`. Of a misspelt option argparse says that the right one is missing; here an unknown option is named first.
"""

import argparse
import re
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from gdpjax._core.arguments import did_you_mean
from gdpjax._core.shown import shown

_NEGATIVE = re.compile(r"-(\d|\.\d|inf|nan)", re.IGNORECASE)
_ELSEWHERE = {"--sigma": "--noise-multiplier", "--sample-rate": "--sampling-prob"}
"""What other programs call these options, where no spelling is close."""


def number(text: str) -> float:
    """Return the number in ``text``; ArgumentTypeError, which argparse prints, where there is none."""
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected one number, got {shown(text)}{_hint(text)}") from None


def whole(text: str) -> int:
    """Return the whole number in ``text``; ArgumentTypeError where there is none."""
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected one whole number, got {shown(text)}{_hint(text)}") from None


def _hint(text: str) -> str:
    return "; lists and ranges are for gdpjax sweep" if ":" in text or "," in text else ""


def join_negative_numbers(arguments: Sequence[str]) -> list[str]:
    """Return ``["--delta", "-1e-5"]`` as ``["--delta=-1e-5"]``, which argparse cannot take for two options.

    >>> join_negative_numbers(["convert", "--mu", "-1e-5", "--json"])
    ['convert', '--mu=-1e-5', '--json']
    """
    joined: list[str] = []
    for argument in arguments:
        after_option = bool(joined) and joined[-1].startswith("--") and "=" not in joined[-1]
        if after_option and _NEGATIVE.match(argument):
            joined[-1] += f"={argument}"
        else:
            joined.append(argument)
    return joined


class Parser(argparse.ArgumentParser):
    """An argument parser whose complaints are one line and whose numbers are read by this module."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.register("type", float, number)
        self.register("type", int, whole)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse after the refusal of unknown options; argparse calls this for each subcommand, too."""
        given = sys.argv[1:] if args is None else list(args)
        self._refuse_unknown_options(given)
        return super().parse_known_args(given, namespace)

    def _refuse_unknown_options(self, arguments: Sequence[str]) -> None:
        """End with status 2 at the first option that there is not, unless help is asked for."""
        options = list(self._option_string_actions)
        if "-h" in arguments or "--help" in arguments:
            return
        for argument in arguments:
            if argument == "--":
                return
            is_option = len(argument) > 1 and argument.startswith("-") and not _NEGATIVE.match(argument)
            if not is_option:
                # What follows the name of a subcommand is the subcommand's.
                if self._subparsers is not None:
                    return
                continue

            # argparse takes a part of a long option for the whole.
            name = argument.split("=")[0]
            is_known = name in options or (name.startswith("--") and any(option.startswith(name) for option in options))
            if not is_known:
                self.error(f"there is no option {name}{self._advice(name, options)}")

    def _advice(self, name: str, options: Sequence[str]) -> str:
        """Return which option may be meant, or where to look."""
        meant = _ELSEWHERE.get(name)
        if meant in options:
            return f"; did you mean {meant!r}?"
        return did_you_mean(name, options) or f"; see {self.prog} --help"

    def error(self, message: str) -> NoReturn:
        """End with status 2 and one line on the standard error."""
        self.exit(2, f"{self.prog}: error: {message}\n")
