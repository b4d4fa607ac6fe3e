"""The parser of the command line.

argparse reads "-1e-5" as an unknown option; here a number that begins with a minus belongs to the option before it. Of
a misspelt option argparse says that the right one is missing; here an unknown option is named first.
"""

import argparse
import re
from collections.abc import Sequence
from typing import Any, NoReturn

from gdpjax._core.arguments import did_you_mean

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
