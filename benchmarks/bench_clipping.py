"""Clipped gradients, ours and everybody else's, on one model after another: step and compile time, memory, flops.

    python -m benchmarks.bench_clipping --output benchmarks/results/clipping_cpu.json

writes the JSON, and tables and a picture beside it. ``--models`` and ``--contenders`` choose some of them; ``--merge``
keeps the other models that the output already has, so that a long run can be made in parts. The peers are the
``benchmarks-clipping`` extra; a missing one is reported. ``--preset gpu`` takes larger models, in float32 and bfloat16.
"""

import argparse
import json
import pathlib
import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from benchmarks import machine, writing

if TYPE_CHECKING:
    from benchmarks.clipping.cases import Case

PACKAGES = ("gdpjax", "jax", "jaxlib", "numpy", "optax", "jax-privacy", "torch", "opacus")


class Settings(NamedTuple):
    """Settings of a run. No names: all of the preset's models, all contenders."""

    preset: str = "cpu"
    threads: int = 1
    repetitions: int = 11
    models: Sequence[str] = ()
    contenders: Sequence[str] = ()


def run(settings: Settings, save: Callable[[dict[str, Any]], None] = lambda result: None) -> dict[str, Any]:
    """Run the whole benchmark; ``save`` gets what there is after each model. JAX waits until the cores are chosen."""
    from benchmarks.clipping import cases, compare, race

    start = time.perf_counter()
    load_before = machine.load_average()

    # What is measured, and who is there.
    preset = cases.PRESETS[settings.preset]
    chosen_cases = writing.chosen(settings.models, {case.name: case for case in preset}, "model")
    chosen = writing.chosen(settings.contenders, {name: name for name in race.names()}, "contender")
    missing = race.missing(chosen)
    present = [name for name in chosen if name not in missing]
    if set(present) & set(race.TORCH_NAMES):
        from benchmarks.clipping import torch_steps

        torch_steps.set_up(settings.threads)

    # One model after the other.
    result: dict[str, Any] = {
        "what": "gradient steps with per-example clipping beside other libraries and beside no privacy",
        "machine": machine.describe(PACKAGES),
        "settings": settings._asdict(),
        "missing": missing,
        "load_average_before": load_before,
        "models": {},
    }
    for case in chosen_cases:
        result["models"][case.name] = _measure(case, present, settings.repetitions)
        result["targets"] = compare.targets(preset, result["models"])
        result["load_average_after"] = machine.load_average()
        result["total_seconds"] = time.perf_counter() - start
        save(result)
    return result


def _measure(case: "Case", present: Sequence[str], repetitions: int) -> dict[str, Any]:
    """Return one model's race, and what it was."""
    import jax

    from benchmarks.clipping import compare, race

    results = race.run(case, present, repetitions)
    compare.add_ratios(results)

    # On a terminal one sees how far it is.
    times = []
    for name, measured in results.items():
        if "seconds" in measured:
            times.append(f"{name} {measured['seconds']['median']:.3g}")
    print(f"{case.name}: {', '.join(times)} s", file=sys.stderr, flush=True)

    params = case.data()[0]
    return {
        "title": case.title,
        "batch_size": case.batch_size,
        "clip_norm": case.clip_norm,
        "num_parameters": sum(leaf.size for leaf in jax.tree.leaves(params)),
        "target": {"time": case.target.time, "temp_bytes": case.target.memory},
        "contenders": results,
    }


def merge(previous: dict[str, Any], result: dict[str, Any]) -> dict[str, Any]:
    """Return ``result`` with the models that only ``previous`` has; ValueError if they do not belong together."""
    from benchmarks.clipping import cases, compare

    preset = cases.PRESETS[result["settings"]["preset"]]
    merged = writing.merge(previous, result, "models", [case.name for case in preset])
    return merged | {"targets": compare.targets(preset, merged["models"])}


def main(arguments: list[str] | None = None) -> None:
    """Run, print the tables, write the JSON and the tables beside it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--output", type=pathlib.Path, required=True, help="the JSON to write; tables and a picture go beside it"
    )
    defaults = Settings()
    parser.add_argument("--preset", default=defaults.preset, help="cpu, gpu, cpu-tiny or gpu-tiny")
    parser.add_argument("--threads", type=int, default=defaults.threads, help="cores and threads, of JAX and torch")
    parser.add_argument("--repetitions", type=int, default=defaults.repetitions)
    parser.add_argument("--models", nargs="*", default=(), help="names of the preset's models; all without")
    parser.add_argument("--contenders", nargs="*", default=(), help="names as in the tables; all without")
    parser.add_argument(
        "--merge", action="store_true", help="keep the models that an earlier part of the run wrote to the output"
    )
    options = vars(parser.parse_args(arguments))
    output = options.pop("output")
    merging = options.pop("merge")
    machine.use_cores(options["threads"])
    from benchmarks.clipping import figure, report

    made_by = {"command": writing.command("benchmarks.bench_clipping", arguments)}
    settings = Settings(**options)
    previous = json.loads(output.read_text()) if merging and output.exists() else None

    def complete(result: dict[str, Any]) -> dict[str, Any]:
        """Add the command, and what an earlier part of the run measured."""
        result = result | made_by
        return result if previous is None else merge(previous, result)

    result = run(settings, lambda result: writing.write_json(complete(result), output))
    writing.write(complete(result), output, report.markdown, figure.draw)


if __name__ == "__main__":
    main()
