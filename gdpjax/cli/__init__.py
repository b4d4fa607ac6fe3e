"""The ``gdpjax`` command: one module a subcommand, each with ``add_parser``.

Every figure is printed with its *standing*: exact, upper bound, or asymptotic estimate. A central-limit figure never
appears without the sentence that it is not a guarantee, because it may understate the truth. ``--json`` prints one
object for machines; what would need a delta that was not given is null, and infinite values are the string "inf", since
JSON has no number for them. Bad input ends with status 2 and one line on the standard error; a
training whose parameters or scores are not finite, or a sweep that leaves out
bad rows ends with status 1, so do an audit that refutes the certified bound, a training whose batch overflows and a
sweep of trainings of which one failed; what is interrupted ends with 130, and what is printed into a closed
pipe, in silence, with 141.
"""

import os
import sys
from collections.abc import Sequence

from gdpjax._core.xla import use_compilation_cache
from gdpjax.cli import _account, _audit, _cards, _sweep, _trainings
from gdpjax.cli._report import Parser, Progress

CLOSED_PIPE = 141
"""What a shell reports of a program that the signal of a closed pipe ended."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; 0 on success, 2 (by SystemExit or returned) on bad input."""
    try:
        return _run(argv)
    except BrokenPipeError:
        # Whoever read the output, such as head, has enough of it. What is left of it must not fail again at the end.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        return CLOSED_PIPE


def _run(argv: Sequence[str] | None) -> int:
    """Run a command, and say in one line what is wrong with its input."""
    parser = Parser(prog="gdpjax", description="Privacy accounting for differentially private deep learning.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="command")
    for module in (_account, _cards, _sweep, _audit, _trainings):
        module.add_parser(commands)
    try:
        arguments = parser.parse_args(argv)
    except SystemExit:
        # After the text of --help.
        sys.stdout.flush()
        raise
    use_compilation_cache()
    try:
        # Trainings say themselves how far they are.
        if arguments.command in ("train", "sweep-trainings"):
            status = arguments.run(arguments)
        else:
            with Progress(sys.stderr, f"gdpjax {arguments.command}") as arguments.progress:
                status = arguments.run(arguments)
        sys.stdout.flush()  # so that a full disk is noticed here
        return status
    except BrokenPipeError:
        raise
    except OSError as error:
        where = f"{error.filename}: " if error.filename is not None else ""
        message = f"{where}{error.strerror or error}"
    except ValueError as error:
        message = str(error)
    print(f"gdpjax {arguments.command}: error: {' '.join(message.split())}", file=sys.stderr)
    return 2
