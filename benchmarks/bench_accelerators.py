"""Compile for a TPU v5e and an H100 that are not there, and compare counts, or write them down. Nothing is executed.

    python -m benchmarks.bench_accelerators --libtpu build/libtpu --check tests/data/accelerators.json
    python -m benchmarks.bench_accelerators --libtpu build/libtpu --output benchmarks/results/accelerators.json

One process compiles for one target, the first of ``--targets`` that can be described after the other. A program that
fails, or takes longer than ``--limit`` seconds, is reported by its name, and the others go on. What a file of results
has already is kept, unless ``--again`` says otherwise.
"""

import argparse
import importlib.util
import json
import multiprocessing
import queue
from pathlib import Path
from typing import Any

from benchmarks.accelerators import counts
from benchmarks.accelerators.report import markdown
from benchmarks.accelerators.target import TARGETS, TITLES, describe
from benchmarks.harness import command


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Compile for a TPU v5e and an H100 that are not there.")
    parser.add_argument("--libtpu", type=Path, help="the folder into which pip put the wheel of TPUs")
    parser.add_argument("--targets", nargs="+", choices=TARGETS, default=list(TARGETS))
    parser.add_argument("--programs", nargs="*", default=[], help="only those whose names contain one of these")
    parser.add_argument("--limit", type=float, default=600.0, help="seconds for one program")
    parser.add_argument("--again", action="store_true", help="compile what the results have already, too")
    parser.add_argument("--check", type=Path, help="compare the checked programs with this file of expectations")
    parser.add_argument("--remake", action="store_true", help="with --check: write the file instead")
    parser.add_argument("--output", type=Path, help="write all programs to this file of results, and its page")
    options = parser.parse_args(arguments)

    path = options.check or options.output
    if path is None:
        parser.error("give --check or --output")
    known = json.loads(path.read_text()) if path.exists() else {}
    measured: dict[str, Any] = {}
    for target in options.targets:
        if not _has_compiler(target, options.libtpu):
            print(f"{TITLES[target]}: left out, its compiler is not installed (libtpu, jax[cuda12])")
            continue
        skipped = set() if options.check or options.again else set(known.get("figures", {}).get(target, {}))
        figures = compiled(target, options, skipped)
        measured[target] = figures
        if options.output:
            known = counts.merged(known, target, figures, command("benchmarks.bench_accelerators", arguments))
            path.write_text(json.dumps(known, indent=1) + "\n")
            path.with_suffix(".md").write_text(markdown(known))
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


def compiled(target: str, options: Any, skipped: set[str]) -> dict[str, Any]:
    """Return the figures of each program, by its name."""
    figures: dict[str, Any] = {}
    todo: list[str] | None = None
    context = multiprocessing.get_context("spawn")
    while todo is None or todo:
        results = context.Queue()
        # A program that hangs takes its process with it, and the next process goes on after it.
        worker = context.Process(target=_work, args=(target, options, skipped | set(figures), results), daemon=True)
        worker.start()
        try:
            todo = _next(results, worker, 120.0)
            while todo:
                name = todo[0]
                figures[name] = _next(results, worker, options.limit)
                todo = todo[1:]
                print(json.dumps({"target": target, "name": name, **figures[name]}), flush=True)
        except TimeoutError as error:
            if todo is None:
                raise
            figures[todo[0]] = {"failed": str(error)}
            print(json.dumps({"target": target, "name": todo[0], **figures[todo[0]]}), flush=True)
            todo = todo[1:]
        finally:
            worker.kill()
            worker.join()
    return figures


def _next(results: Any, worker: Any, seconds: float) -> Any:
    """Return what a worker sends next; TimeoutError if it takes too long or ends."""
    waited = 0.0
    while waited < seconds:
        try:
            return results.get(timeout=1.0)
        except queue.Empty:
            waited += 1.0
            if not worker.is_alive() and results.empty():
                raise TimeoutError("its process ended") from None
    raise TimeoutError(f"more than {seconds:.0f} seconds")


def _work(name: str, options: Any, skipped: set[str], results: Any) -> None:
    """Send the names of the programs, and then the figures of each."""
    target = describe(name, options.libtpu)
    from benchmarks.accelerators.programs import programs

    wanted = []
    for program in programs().values():
        is_named = not options.programs or any(part in program.name for part in options.programs)
        if is_named and program.name not in skipped and (program.checked or not options.check):
            wanted.append(program)
    results.put([program.name for program in wanted])
    for program in wanted:
        try:
            function, shapes, settings = program.build(target)
            results.put(target.compile(function, shapes, **settings))
        except Exception as error:
            results.put({"failed": f"{type(error).__name__}: {str(error)[:300]}"})


if __name__ == "__main__":
    raise SystemExit(main())
