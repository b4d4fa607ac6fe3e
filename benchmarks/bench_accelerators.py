"""Compile for a TPU v5e and an H100 that are not there, and compare counts, or write them down. Nothing is executed.

    python -m benchmarks.bench_accelerators --libtpu build/libtpu --check tests/data/accelerators.json
    python -m benchmarks.bench_accelerators --libtpu build/libtpu --output benchmarks/results/accelerators.json

One process compiles for one target, the first of ``--targets`` that can be described after the other. A program that
fails, or takes longer than ``--limit`` seconds, is reported by its name, and the others go on. What a file of results
has already is kept.
"""

import argparse
import functools
import importlib.util
import json
import multiprocessing
import signal
from concurrent import futures
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

from benchmarks import harness
from benchmarks.accelerators import counts, report
from benchmarks.accelerators.target import TARGETS, TITLES, describe


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Compile for a TPU v5e and an H100 that are not there.")
    parser.add_argument("--libtpu", type=Path, help="the folder into which pip put the wheel of TPUs")
    parser.add_argument("--targets", nargs="+", choices=TARGETS, default=list(TARGETS))
    parser.add_argument("--programs", nargs="*", default=[], help="only those whose names contain one of these")
    parser.add_argument("--limit", type=int, default=600, help="seconds for one program")
    files = parser.add_mutually_exclusive_group(required=True)
    files.add_argument("--check", type=Path, help="compare the checked programs with this file of expectations")
    files.add_argument("--output", type=Path, help="write all programs to this file of results, and its page")
    parser.add_argument("--remake", action="store_true", help="with --check: write the file instead")
    options = parser.parse_args(arguments)

    path = options.check or options.output
    known = json.loads(path.read_text()) if path.exists() else {}
    measured: dict[str, Any] = {}
    for target in options.targets:
        if not _has_compiler(target, options.libtpu):
            print(f"{TITLES[target]}: left out, its compiler is not installed (libtpu, jax[cuda12])")
            continue
        skipped = set() if options.check else set(known.get("figures", {}).get(target, {}))
        figures = compiled(target, options, skipped)
        measured[target] = figures
        if options.output:
            known = counts.merged(known, target, figures, harness.command("benchmarks.bench_accelerators", arguments))
            harness.write(known, path, report)
    if not measured:
        return 1
    if not options.check:
        return 0
    if options.remake:
        path.write_text(json.dumps(counts.expected(known, measured), indent=1, sort_keys=True) + "\n")
        return 0
    failures = counts.compare(known, measured, complete=not options.programs)
    print("\n".join(failures) or f"all counts of {' and '.join(TITLES[name] for name in measured)} are as expected")
    return 1 if failures else 0


def _has_compiler(target: str, libtpu: Path | None) -> bool:
    if target == "tpu":
        return libtpu is not None
    return any(importlib.util.find_spec(f"jax_cuda{version}_plugin") for version in (12, 13))


_described = functools.cache(describe)


def compiled(target: str, options: Any, skipped: set[str]) -> dict[str, Any]:
    """Return the figures of each program, by its name."""
    figures: dict[str, Any] = {}
    spawn = multiprocessing.get_context("spawn")
    while True:
        # A program that fails badly, or hangs, takes its process with it, and the next process goes on after it.
        with futures.ProcessPoolExecutor(1, spawn) as worker:
            for name in worker.submit(_names, target, options, skipped | set(figures)).result():
                work = worker.submit(_figures, target, options, name)
                error = work.exception()
                figures[name] = {"failed": f"{type(error).__name__}: {str(error)[:300]}"} if error else work.result()
                print(json.dumps({"target": target, "name": name, **figures[name]}), flush=True)
                if isinstance(error, BrokenProcessPool):
                    break
            else:
                return figures


def _names(target: str, options: Any, skipped: set[str]) -> list[str]:
    """Return the names of the programs that are wanted."""
    _described(target, options.libtpu)
    from benchmarks.accelerators.programs import programs

    wanted = []
    for program in programs().values():
        is_named = not options.programs or any(part in program.name for part in options.programs)
        if is_named and program.name not in skipped and (program.checked or not options.check):
            wanted.append(program.name)
    return wanted


def _figures(target: str, options: Any, name: str) -> dict[str, Any]:
    """Return the figures of a program; the process ends with its time, whatever the compiler does."""
    from benchmarks.accelerators.programs import programs

    signal.alarm(options.limit)
    described = _described(target, options.libtpu)
    function, shapes, settings = programs()[name].build(described)
    figures = described.compile(function, shapes, **settings)
    signal.alarm(0)
    return figures


if __name__ == "__main__":
    raise SystemExit(main())
