"""The subcommands of ``python -m experiments``. To add one, add a line to `COMMANDS`."""

import importlib
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tyro

from experiments import config
from gdpjax import use_compilation_cache
from gdpjax.sampling import BatchOverflowError
from gdpjax.sweeps import RunInterrupted

_DESCRIPTION = (
    "Compiled programs are kept in your cache folder, so that the next start takes seconds; "
    "GDPJAX_COMPILATION_CACHE=off keeps none."
)


class Command(NamedTuple):
    """A subcommand.

    Attributes:
      default: its configuration, or what gives one for a data set.
      place: module and function that run it, from which comes the exit code, or None for 0. JAX is imported with the
        module, so that --help is quick.
      help: its line in the help.
    """

    default: Any
    place: str
    help: str

    def run(self, config: Any) -> int | None:
        """Import what runs it, and run it."""
        module, name = self.place.split(":")
        run: Callable[[Any], int | None] = getattr(importlib.import_module(f"experiments.{module}"), name)
        return run(config)


COMMANDS = {
    "train": Command(config.PRESETS.__getitem__, "train.command:run", "Train one model with differential privacy."),
    "sweep": Command(
        config.SweepConfig(tyro.MISSING), "sweeps.command:run", "Train many configurations from a TOML file."
    ),
    "reproduce": Command(
        config.ReproduceConfig(tyro.MISSING),
        "paper.command:run",
        "Repeat the paper's experiments, published beside ours.",
    ),
    "recipes": Command(
        config.RecipesConfig(tyro.MISSING),
        "recipes.command:run",
        "Train better recipes than the paper's, and say how.",
    ),
    "correlated": Command(
        config.CorrelatedConfig(), "correlated.command:run", "Compare correlated noise with Poisson DP-SGD."
    ),
    "language": Command(
        config.LanguageConfig(), "language.command:run", "Fine-tune a language model privately, and compare."
    ),
    "language-cost": Command(
        config.LanguageCostConfig(),
        "language.cost_table:run",
        "Predict what a private step of a language model costs.",
    ),
    "demo": Command(config.DemoConfig(), "demo:run", "Train on digits, print the privacy table, save a figure."),
    "figures": Command(config.FiguresConfig(), "figures.fdp:run", "Draw the figures of docs/fdp.md and correlated.md."),
}


def parse(args: Sequence[str]) -> tuple[Command, Any]:
    """Return the chosen command and its configuration. The data set is read first, since it chooses the defaults."""
    chosen, _ = tyro.cli(config.DataConfig, args=args, return_unknown_args=True, add_help=False)
    defaults = {}
    for name, command in COMMANDS.items():
        defaults[name] = command.default(chosen.dataset) if callable(command.default) else command.default
    helps = {name: command.help for name, command in COMMANDS.items()}
    union = tyro.extras.subcommand_type_from_defaults(defaults, helps, prefix_names=False)
    given: Any = tyro.cli(
        union, args=args, prog="python -m experiments", description=_DESCRIPTION, config=(tyro.conf.OmitArgPrefixes,)
    )
    command = next(COMMANDS[name] for name, default in defaults.items() if type(default) is type(given))
    return command, given


def main(args: Sequence[str] | None = None) -> int:
    """Run a subcommand.

    Exit codes: 0 done, 1 stopped by an overflowing batch, a model that is not finite or a trial that failed, 2 user's
    mistake, 130 interrupted.
    """
    command, settings = parse(sys.argv[1:] if args is None else args)
    use_compilation_cache()
    try:
        exit_code = command.run(settings)
    except ValueError as error:  # such as a UserError
        print(f"error: {error}", file=sys.stderr)
        return 2
    except BatchOverflowError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except RunInterrupted as stop:
        print(str(stop), file=sys.stderr)
        return 130
    except OSError as error:  # a full disk, a folder that may not be read
        where = f"{error.filename}: " if error.filename is not None else ""
        print(f"error: {where}{error.strerror or error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    return exit_code or 0
