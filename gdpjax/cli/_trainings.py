"""``gdpjax train``, ``sweep-trainings``, ``sweep-report`` and ``new``: trainings of the user's own data and model."""

import argparse
import pathlib
import shlex
import shutil
import sys
from typing import Any

INTERRUPTED, FAILED = 130, 1
_SPEC = """\
the spec is a TOML file:

  data = "my_module:load"        load() returns (train, evaluation)
  model = "my_module:build"      build(example) returns gdpjax.sweeps.Model(init, loss, scores)
  optimizer = "sgd"              or adam, adamw, "my_module:optimizer"
  delta = 1e-5
  [hyperparameters]
  learning_rate = 0.1            in a sweep also a list, or { min = ..., max = ..., count = ..., log = true }
  l2_clip_norm = 1.0
  epsilon = 3.0                  a certified target; or noise_multiplier
  batch_size = 256
  epochs = 10
  seeds = 1                      fresh keys; [0, 1] can be repeated, and is not private against anybody who knows it

Modules are looked for in the folder of the spec. `gdpjax new DIR` writes an example that runs. See docs/sweeps.md.
"""


def add_parser(commands: Any) -> None:
    """Add the four commands."""
    train = _command(commands, "train", "one private training of your own model", _train)
    _add_spec(train)
    train.add_argument("--no-diagnostics", action="store_true", help="write no private losses and gradient norms")

    sweep = _command(commands, "sweep-trainings", "many trainings of your own model, in one compiled program", _sweep)
    _add_spec(sweep)
    sweep.add_argument("--backend", choices=("local", "ray"), default="local", help="this machine, or a Ray cluster")
    sweep.add_argument("--ray-address", metavar="HOST:PORT", help="head of the cluster; default: that of this machine")
    sweep.add_argument("--width", type=int, default=32, help="trials side by side, at most; a crash loses those")
    sweep.add_argument("--memory-gb", type=float, default=4.0, help="memory for the programs that run at a time")

    report = _command(commands, "sweep-report", "write the report of a sweep, finished or not", _report)
    report.add_argument("folder", type=pathlib.Path, metavar="FOLDER", help="folder of the sweep")
    report.add_argument("--epsilon", type=float, help="name the best within this certified epsilon of one training")

    new = _command(commands, "new", "files to begin with: a module, two specs, a README", _new)
    new.add_argument("folder", type=pathlib.Path, metavar="DIR", help="where to write them")


def _command(commands: Any, name: str, what: str, run: Any) -> argparse.ArgumentParser:
    formatter = argparse.RawDescriptionHelpFormatter
    epilog = _SPEC if run in (_train, _sweep) else None
    description = f"{what[:1].upper()}{what[1:]}."
    parser = commands.add_parser(name, help=what, description=description, epilog=epilog, formatter_class=formatter)
    parser.set_defaults(run=run)
    return parser


def _add_spec(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("spec", type=pathlib.Path, metavar="SPEC.toml", help="what is trained, and how")
    parser.add_argument("--out", type=pathlib.Path, metavar="FOLDER", required=True, help="where it is kept")
    parser.add_argument("--resume", action="store_true", help="continue what was interrupted in --out")


def _train(arguments: argparse.Namespace) -> int:
    from gdpjax.sampling import BatchOverflowError
    from gdpjax.sweeps import RunInterrupted, as_console, print_training, train

    console = as_console(None, quiet=False)
    try:
        result = train(
            None,
            arguments.spec,
            arguments.out,
            resume=arguments.resume,
            diagnostics=not arguments.no_diagnostics,
            console=console,
        )
    except BatchOverflowError as error:
        print(f"gdpjax train: error: {error}", file=sys.stderr)
        return FAILED
    except RunInterrupted as stop:
        print(f"gdpjax train: {stop}", file=sys.stderr)
        return INTERRUPTED
    print_training(console, result)
    if result.error is not None:
        print(f"gdpjax train: error: {result.error}", file=sys.stderr)
        return FAILED
    return 0


def _sweep(arguments: argparse.Namespace) -> int:
    from gdpjax.sweeps import RunInterrupted, as_console, run_sweep

    try:
        result = run_sweep(
            None,
            arguments.spec,
            arguments.out,
            resume=arguments.resume,
            backend=arguments.backend,
            width=arguments.width,
            memory_gb=arguments.memory_gb,
            ray_address=arguments.ray_address,
            console=as_console(None, quiet=False),
        )
    except RunInterrupted as stop:
        print(f"gdpjax sweep-trainings: {stop}", file=sys.stderr)
        return INTERRUPTED
    return FAILED if result.any_failed else 0


def _report(arguments: argparse.Namespace) -> int:
    from gdpjax.sweeps import as_console, report_sweep

    result = report_sweep(arguments.folder, as_console(None, quiet=False))
    if arguments.epsilon is not None:
        print(result.best_in_words(arguments.epsilon))
    return 0


def _new(arguments: argparse.Namespace) -> int:
    import gdpjax.sweeps as sweeps

    folder, template = arguments.folder, pathlib.Path(sweeps.__file__).with_name("template")
    # A new repository holds files whose names begin with a dot.
    others = sorted(path.name for path in folder.glob("[!.]*"))
    if others:
        raise ValueError(f"{folder} holds other files, such as {others[0]}; choose a new folder or an empty one")
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("my_task.py", "train.toml", "sweep.toml", "README.md"):
        print(shutil.copyfile(template / name, folder / name))
    print("\nNext:")
    print(f"  cd {shlex.quote(str(arguments.folder))}")
    print("  gdpjax train train.toml --out runs/train            # one private training and its epsilon")
    print("  gdpjax sweep-trainings sweep.toml --out runs/sweep  # 24 of them, with a report")
    return 0
