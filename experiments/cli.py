"""The subcommands of ``python -m experiments``. To add one, add a line to `COMMANDS`."""

import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tyro

from experiments.config import (
    PRESETS,
    CorrelatedConfig,
    CorrelatedFigureConfig,
    DataConfig,
    DemoConfig,
    FdpFiguresConfig,
    GradientsFigureConfig,
    LanguageConfig,
    LanguageCostConfig,
    RecipesConfig,
    ReproduceConfig,
    SweepConfig,
    SweepReportConfig,
)
from experiments.errors import RunInterrupted, UserError
from gdpjax import use_compilation_cache
from gdpjax.sampling import BatchOverflowError

NO_CACHE = "--no-compilation-cache"
_DESCRIPTION = (
    "Compiled programs are kept in your cache folder, so that the next start takes seconds; "
    f"{NO_CACHE}, or GDPJAX_COMPILATION_CACHE=off, keeps none."
)


class Command(NamedTuple):
    """A subcommand: its configuration for a data set, what runs it (None for exit code 0), and its line in the help."""

    default: Callable[[str], Any]
    run: Callable[[Any], int | None]
    help: str


def _train(config: Any) -> int:
    from experiments.train.command import run  # jax is imported late, so that --help is quick

    return run(config)


def _demo(config: Any) -> None:
    from experiments.demo import run

    run(config)


def _fdp_figures(config: Any) -> None:
    from experiments.figures.fdp import run

    run(config)


def _gradients_figure(config: Any) -> None:
    from experiments.figures.gradients import run

    run(config)


def _correlated(config: Any) -> None:
    from experiments.correlated.command import run

    run(config)


def _correlated_figure(config: Any) -> None:
    from experiments.figures.correlated import run

    run(config)


def _language(config: Any) -> None:
    from experiments.language.command import run

    run(config)


def _language_cost(config: Any) -> None:
    from experiments.language.cost_table import run

    run(config)


def _sweep(config: Any) -> int:
    from experiments.sweeps.command import run

    return run(config)


def _sweep_report(config: Any) -> None:
    from experiments.sweeps.command import report

    report(config)


def _reproduce(config: Any) -> None:
    from experiments.paper.command import run

    run(config)


def _recipes(config: Any) -> None:
    from experiments.recipes.command import run

    run(config)


COMMANDS = {
    "train": Command(lambda dataset: PRESETS[dataset], _train, "Train one model with differential privacy."),
    "sweep": Command(lambda dataset: SweepConfig(tyro.MISSING), _sweep, "Train many configurations from a TOML file."),
    "sweep-report": Command(
        lambda dataset: SweepReportConfig(tyro.MISSING), _sweep_report, "Report on a sweep, finished or not."
    ),
    "reproduce": Command(
        lambda dataset: ReproduceConfig(tyro.MISSING),
        _reproduce,
        "Repeat the paper's experiments, published beside ours.",
    ),
    "recipes": Command(
        lambda dataset: RecipesConfig(tyro.MISSING), _recipes, "Train better recipes than the paper's, and say how."
    ),
    "correlated": Command(
        lambda dataset: CorrelatedConfig(), _correlated, "Compare correlated noise with Poisson DP-SGD."
    ),
    "language": Command(
        lambda dataset: LanguageConfig(), _language, "Fine-tune a language model privately, and compare."
    ),
    "language-cost": Command(
        lambda dataset: LanguageCostConfig(), _language_cost, "Predict what a private step of a language model costs."
    ),
    "demo": Command(lambda dataset: DemoConfig(), _demo, "Train on digits, print a table, save a figure."),
    "fdp-figures": Command(lambda dataset: FdpFiguresConfig(), _fdp_figures, "Draw the figures of docs/fdp.md."),
    "gradients-figure": Command(
        lambda dataset: GradientsFigureConfig(), _gradients_figure, "Draw the figure of docs/theory/gradients.md."
    ),
    "correlated-figure": Command(
        lambda dataset: CorrelatedFigureConfig(), _correlated_figure, "Draw the figure of docs/correlated.md."
    ),
}


def parse(args: Sequence[str]) -> tuple[Command, Any]:
    """Return the chosen command and its configuration. The data set is read first, since it chooses the defaults."""
    chosen, _ = tyro.cli(DataConfig, args=args, return_unknown_args=True, add_help=False)
    defaults = {name: command.default(chosen.dataset) for name, command in COMMANDS.items()}
    helps = {name: command.help for name, command in COMMANDS.items()}
    union = tyro.extras.subcommand_type_from_defaults(defaults, helps, prefix_names=False)
    config: Any = tyro.cli(
        union, args=args, prog="python -m experiments", description=_DESCRIPTION, config=(tyro.conf.OmitArgPrefixes,)
    )
    command = next(COMMANDS[name] for name, default in defaults.items() if type(default) is type(config))
    return command, config


def main(args: Sequence[str] | None = None) -> int:
    """Run a subcommand.

    Exit codes: 0 done, 1 stopped by an overflowing batch, a model that is not finite or a trial that failed, 2 user's
    mistake, 130 interrupted.
    """
    given = sys.argv[1:] if args is None else args
    command, config = parse([word for word in given if word != NO_CACHE])
    if NO_CACHE not in given:
        use_compilation_cache()
    try:
        exit_code = command.run(config)
    except UserError as error:
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
