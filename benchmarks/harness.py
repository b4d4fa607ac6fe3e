"""What every benchmark's program shares: its command line, a run part by part, and the files that it writes."""

import argparse
import collections.abc
import importlib
import inspect
import json
import pathlib
import shlex
import sys
import time
import typing
from collections.abc import Callable, Iterable, Iterator, Sequence
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
      settings: a named tuple with defaults, of which the command line is made.
      measure: yields what there is after each part of the run. It imports JAX, once the cores are chosen.
      report: the module whose ``markdown(result)`` gives the tables; if it has them, ``draw(result, path)`` gives a
        picture and ``targets(result)`` what was aimed at beside what was measured.
      cases: the key of the result that may be measured in several runs, and the module with their ``PRESETS``.
      keeps_memory: whether `machine.keep_memory` is called.
    """

    module: str
    what: str
    packages: Sequence[str]
    settings: Any
    measure: Callable[[Any], Iterator[Result]]
    report: str
    cases: tuple[str, str] | None = None
    keeps_memory: bool = False

    def preset(self, name: str) -> dict[str, Any]:
        """Return the cases of a preset, by name."""
        assert self.cases is not None
        (preset,) = chosen([name], importlib.import_module(self.cases[1]).PRESETS, "preset")
        return {case.name: case for case in preset}


def run(benchmark: Benchmark, settings: Any, save: Callable[[Result], None] = lambda result: None) -> Result:
    """Run the whole benchmark; ``save`` gets what there is after each part."""
    start = time.perf_counter()
    result = {
        "what": benchmark.what,
        "load_average_before": machine.load_average(),
        "machine": machine.describe(benchmark.packages),
        "settings": settings._asdict(),
    }
    for part in benchmark.measure(settings):
        result |= part
        result |= _targets(benchmark, result)
        result |= {"load_average_after": machine.load_average(), "total_seconds": time.perf_counter() - start}
        save(result)
    return result


def _targets(benchmark: Benchmark, result: Result) -> Result:
    report: Any = importlib.import_module(benchmark.report)
    return {"targets": report.targets(result)} if hasattr(report, "targets") else {}


def case_by_case(
    benchmark: Benchmark,
    settings: Any,
    contenders: Iterable[Any],
    measure: Callable[[Any, list[Any]], Result],
) -> Iterator[Result]:
    """Measure the chosen cases of a preset, with those of the chosen contenders that are there.

    Args:
      benchmark: what is run.
      settings: with preset, threads, contenders, and the cases under their key.
      contenders: each with a name, and the modules that it needs.
      measure: gives the result of a case and its contenders.
    """
    assert benchmark.cases is not None
    key = benchmark.cases[0]
    cases = chosen(getattr(settings, key), benchmark.preset(settings.preset), key.removesuffix("s"))
    wanted = chosen(settings.contenders, {each.name: each for each in contenders}, "contender")
    missing = {each.name: reason for each in wanted if (reason := machine.why_missing(*each.modules))}
    present = [each for each in wanted if each.name not in missing]
    if any("torch" in each.modules for each in present):
        from benchmarks.clipping import torch_steps

        torch_steps.set_up(settings.threads)
    measured = {}
    for case in cases:
        measured[case.name] = measure(case, present)
        say(case.title)
        yield {"missing": missing, key: measured}


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


def merge(benchmark: Benchmark, previous: Result, result: Result) -> Result:
    """Return ``result`` with the cases that only ``previous`` has, in the preset's order.

    Ratios are of times from one machine: ValueError if the two were made on different ones, with other versions or
    with other settings.
    """
    assert benchmark.cases is not None
    key = benchmark.cases[0]
    if _made_on(previous) != _made_on(result):
        raise ValueError("cannot merge: the earlier part has another machine, version, preset, threads or repetitions")

    # What was measured again counts as it is now.
    measured = previous[key] | result[key]
    cases = {name: measured[name] for name in benchmark.preset(result["settings"]["preset"]) if name in measured}
    merged = result | {
        key: cases,
        "settings": result["settings"] | {key: list(cases)},
        "missing": previous["missing"] | result["missing"],
        "load_average_before": previous["load_average_before"],
        "total_seconds": previous["total_seconds"] + result["total_seconds"],
        "command": f"{previous['command']}; {result['command']}",
    }
    return merged | _targets(benchmark, merged)


def _made_on(result: Result) -> list[Any]:
    return [result["machine"], *(result["settings"][name] for name in ("preset", "threads", "repetitions"))]


# ---- The command line ----


def main(benchmark: Benchmark, arguments: list[str] | None = None) -> None:
    """Run, print the tables, write the JSON, and the tables and a picture beside it."""
    parser = argparse.ArgumentParser(
        description=f"{inspect.getmodule(benchmark.measure).__doc__}\n{benchmark.settings.__doc__}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--output", type=pathlib.Path, required=True, help="the JSON to write; the rest goes beside it")
    if benchmark.cases:
        parser.add_argument("--merge", action="store_true", help="keep the cases of an earlier part of the run")
    for name, hint in typing.get_type_hints(benchmark.settings).items():
        _add_option(parser, name, hint, benchmark.settings._field_defaults[name])
    options = vars(parser.parse_args(arguments))
    output, merging = options.pop("output"), options.pop("merge", False)

    # Before JAX is imported.
    machine.use_cores(options.get("threads", 1))
    made_by: Result = {"command": command(benchmark.module, arguments)}
    if benchmark.keeps_memory:
        made_by["memory_kept"] = machine.keep_memory()
    previous = json.loads(output.read_text()) if merging and output.exists() else None

    def complete(result: Result) -> Result:
        """Add the command, and what an earlier part of the run measured."""
        result = result | made_by
        return result if previous is None else merge(benchmark, previous, result)

    settings = benchmark.settings(**options)
    result = run(benchmark, settings, lambda result: write_json(output, complete(result)))
    write(complete(result), output, importlib.import_module(benchmark.report))


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
    if hasattr(report, "draw"):
        try:
            report.draw(result, path.with_suffix(".png"))
        except ImportError as missing:
            print(f"no picture: {missing}")


# ---- Targets ----


def at_most(target: float, measured: float, **beside: str) -> dict[str, Any]:
    """Return a target that is met by what is no larger; ``beside`` names whose number it is compared with."""
    met = bool(measured <= target)
    return {"target": target, "measured": measured, "at_least": False, "met": met, **beside}


def at_least(target: float, measured: float, **beside: Any) -> dict[str, Any]:
    """Return a target that is met by what is no smaller."""
    met = bool(measured >= target)
    return {"target": target, "measured": measured, "at_least": True, "met": met, **beside}
