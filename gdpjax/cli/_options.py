"""How the command line reads numbers, and what it says where there is none.

argparse reads "-1e-5" as an unknown option, and answers "0.5:2" with the name of a Python type. Here a number that
begins with a minus belongs to the option before it, and every option of type ``float`` or ``int`` is read by `number`
or `whole`.
"""

import argparse
import re
from collections.abc import Sequence
from typing import Any, NoReturn

from gdpjax._core.shown import shown

_NEGATIVE = re.compile(r"-(\d|\.\d|inf|nan)", re.IGNORECASE)


def number(text: str) -> float:
    """The number in ``text``; ArgumentTypeError, which argparse prints, where there is none."""
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected one number, got {shown(text)}{_hint(text)}") from None


def whole(text: str) -> int:
    """The whole number in ``text``; ArgumentTypeError where there is none."""
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected one whole number, got {shown(text)}{_hint(text)}") from None


def _hint(text: str) -> str:
    return "; lists and ranges are for gdpjax sweep" if ":" in text or "," in text else ""


def join_negative_numbers(arguments: Sequence[str]) -> list[str]:
    """``["--delta", "-1e-5"]`` as ``["--delta=-1e-5"]``, which argparse cannot take for two options.

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

    def error(self, message: str) -> NoReturn:
        """End with status 2 and one line on the standard error."""
        self.exit(2, f"{self.prog}: error: {message}\n")
