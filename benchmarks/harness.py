"""What every benchmark's program shares: its command line, a run part by part, and the files that it writes."""

import argparse
import collections.abc
import contextlib
import csv
import functools
import importlib
import pathlib
import shlex
import sys
import time
import typing
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from benchmarks import machine
from experiments.tables import write_json, write_with_table

Result = dict[str, Any]
"""What is written as JSON."""


class Benchmark(NamedTuple):
    """What a program measures.

    Args:
      module: its name after ``python -m``.
      what: it measures, for the JSON, in a line.
      packages: whose versions are written down.
      settings: a named tuple, the defaults of the command line.
      report: the module whose ``markdown(result)`` gives the tables; if it has them, ``draw(result, path)`` gives a
        picture and ``targets(result)`` what was aimed at beside what was measured.
      measure: yields what there is after each part of the run. It imports JAX, once the cores are chosen.
      room: without ``measure``, the package that has ``cases.PRESETS``, cases by preset, ``race.CONTENDERS``, and
        ``race.run(case, contenders, repetitions)``, which gives the result of a case.
      keeps_memory: whether `machine.keep_memory` is called.
    """

    module: str
    what: str
    packages: Sequence[str]
    settings: Any
    report: str
    measure: Callable[[Any], Iterator[Result]] | None = None
    room: str = ""
    keeps_memory: bool = False

    def preset(self, name: str) -> dict[str, Any]:
        """Return the cases of a preset, by name."""
        (preset,) = chosen([name], importlib.import_module(f"{self.room}.cases").PRESETS, "preset")
        return {case.name: case for case in preset}


class CaseSettings(NamedTuple):
    """Settings of a run: threads, and cores, are of JAX and of torch.

    No names: all of the preset's cases, all contenders.
    """

    preset: str = "cpu"
    threads: int = 1
    repetitions: int = 11
    cases: Sequence[str] = ()
    contenders: Sequence[str] = ()


class Contender(NamedTuple):
    """Somebody who takes part.

    Args:
      name: for the tables and the command line.
      build: what gives the step or the training, of a case and a microbatch size.
      modules: what must be there.
      sizes: the microbatch sizes that are tried; None is the whole batch, or its own choice.
    """

    name: str
    build: Any
    modules: tuple[str, ...] = ()
    sizes: tuple[int | None, ...] = (None,)


def run(benchmark: Benchmark, settings: Any, save: Callable[[Result], None] = lambda result: None) -> Result:
    """Run the whole benchmark; ``save`` gets what there is after each part."""
    start = time.perf_counter()
    result = {
        "what": benchmark.what,
        "load_average_before": machine.load_average(),
        "machine": machine.describe(benchmark.packages),
        "settings": settings._asdict(),
    }
    measure = benchmark.measure or functools.partial(_case_by_case, benchmark)
    for part in measure(settings):
        result |= part
        result |= _targets(benchmark, result)
        result |= {"load_average_after": machine.load_average(), "total_seconds": time.perf_counter() - start}
        save(result)
    return result


def _targets(benchmark: Benchmark, result: Result) -> Result:
    report: Any = importlib.import_module(benchmark.report)
    return {"targets": report.targets(result)} if hasattr(report, "targets") else {}


def _case_by_case(benchmark: Benchmark, settings: CaseSettings) -> Iterator[Result]:
    """Measure the chosen cases of a preset, with those of the chosen contenders that are there."""
    race: Any = importlib.import_module(f"{benchmark.room}.race")
    cases = chosen(settings.cases, benchmark.preset(settings.preset), "case")
    wanted = chosen(settings.contenders, {each.name: each for each in race.CONTENDERS}, "contender")
    missing = {each.name: reason for each in wanted if (reason := machine.why_missing(*each.modules))}
    present = [each for each in wanted if each.name not in missing]
    if any("torch" in each.modules for each in present):
        from benchmarks.clipping import torch_steps

        torch_steps.set_up(settings.threads)
    measured = {}
    for case in cases:
        measured[case.name] = race.run(case, present, settings.repetitions)
        say(case.title)
        yield {"missing": missing, "cases": measured}


def recorded(path: pathlib.Path) -> list[dict[str, Any]]:
    """Return the rows of a CSV file of what others took and found; numbers where they are, None for an empty cell."""
    with path.open() as file:
        return [{key: _number(text) for key, text in row.items()} for row in csv.DictReader(file)]


def _number(text: str) -> Any:
    for kind in (int, float):
        with contextlib.suppress(ValueError):
            return kind(text)
    return text or None


def say(done: str) -> None:
    """Print how far it is."""
    print(f"done: {done}", file=sys.stderr, flush=True)


def chosen(wanted: Sequence[str], there: dict[str, Any], what: str) -> list[Any]:
    """Return those that are named, in the order in which they are there.

    Args:
      wanted: names; all without.
      there: what can be chosen, by name.
      what: what it is called in the message of a ValueError for a name that is not there.
    """
    for name in wanted:
        if name not in there:
            raise ValueError(f"unknown {what} {name!r}; expected some of {', '.join(there)}")
    return [value for name, value in there.items() if not wanted or name in wanted]


# ---- The command line ----


def main(benchmark: Benchmark, arguments: list[str] | None = None) -> None:
    """Run, print the tables, write the JSON, and the tables and a picture beside it."""
    parser = argparse.ArgumentParser(
        description=f"{importlib.import_module(benchmark.module).__doc__}\n{benchmark.settings.__doc__}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--output", type=pathlib.Path, required=True, help="the JSON to write; the rest goes beside it")
    for name, hint in typing.get_type_hints(type(benchmark.settings)).items():
        _add_option(parser, name, hint, getattr(benchmark.settings, name))
    options = vars(parser.parse_args(arguments))
    output = options.pop("output")

    # Before JAX is imported.
    machine.use_cores(options.get("threads", 1))
    made_by: Result = {"command": command(benchmark.module, arguments)}
    if benchmark.keeps_memory:
        made_by["memory_kept"] = machine.keep_memory()
    settings = benchmark.settings._replace(**options)
    result = run(benchmark, settings, lambda result: write_json(output, result | made_by))
    write(result | made_by, output, importlib.import_module(benchmark.report))


def _add_option(parser: argparse.ArgumentParser, name: str, hint: Any, default: Any) -> None:
    """Add the option of a setting: of its type, or of several values of the type that a sequence has."""
    flag = f"--{name.replace('_', '-')}"
    kind = next(iter(typing.get_args(hint)), hint)
    if kind is bool:
        parser.add_argument(flag, action=argparse.BooleanOptionalAction, default=default)
    else:
        several = "*" if typing.get_origin(hint) is collections.abc.Sequence else None
        parser.add_argument(flag, type=kind, nargs=several, default=default)


def command(module: str, arguments: list[str] | None) -> str:
    """Return what to type to run ``module`` with these arguments; None: those of this process."""
    given = sys.argv[1:] if arguments is None else arguments
    return shlex.join(["python", "-m", module, *given])


def write(result: Result, path: pathlib.Path, report: Any) -> None:
    """Write the JSON at ``path``, the tables and (with matplotlib) the picture beside it; print the tables, too."""
    page = report.markdown(result)
    write_with_table(path, result, page)
    print(page)
    if hasattr(report, "draw") and not machine.why_missing("matplotlib"):
        report.draw(result, path.with_suffix(".png"))


# ---- Targets ----


def at_most(target: float, measured: float, **beside: str) -> dict[str, Any]:
    """Return a target that is met by what is no larger; ``beside`` names whose number it is compared with."""
    met = bool(measured <= target)
    return {"target": target, "measured": measured, "at_least": False, "met": met, **beside}


def at_least(target: float, measured: float, **beside: Any) -> dict[str, Any]:
    """Return a target that is met by what is no smaller."""
    met = bool(measured >= target)
    return {"target": target, "measured": measured, "at_least": True, "met": met, **beside}
