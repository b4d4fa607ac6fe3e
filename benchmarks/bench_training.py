"""The private training loop: what its bookkeeping and its noise cost, and steps per second beside other libraries.

    python -m benchmarks.bench_training --output benchmarks/results/training_cpu.json

writes the JSON, and tables and a picture beside it. ``--cases`` and ``--contenders`` choose some of them; ``--merge``
keeps the other cases that the output already has, so that a long run can be made in parts. The peers are the
``benchmarks-clipping`` extra; a missing one is reported.
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
    from benchmarks.training.cases import Case

PACKAGES = ("gdpjax", "jax", "jaxlib", "numpy", "optax", "jax-privacy", "dp-accounting", "torch", "opacus")


class Settings(NamedTuple):
    """Settings of a run. No names: all of the preset's cases, all contenders."""

    preset: str = "cpu"
    threads: int = 1
    repetitions: int = 11
    cases: Sequence[str] = ()
    contenders: Sequence[str] = ()


def run(settings: Settings, save: Callable[[dict[str, Any]], None] = lambda result: None) -> dict[str, Any]:
    """Run the whole benchmark; ``save`` gets what there is after each case. JAX waits until the cores are chosen."""
    from benchmarks.training import cases, parts, race, trainers

    start = time.perf_counter()
    load_before = machine.load_average()

    # What is measured, and who is there.
    preset = cases.PRESETS[settings.preset]
    contenders = {contender.name: contender for contender in trainers.CONTENDERS}
    chosen_cases = writing.chosen(settings.cases, {case.name: case for case in preset}, "case")
    chosen = writing.chosen(settings.contenders, contenders, "contender")
    missing = race.missing(chosen)
    present = [contender for contender in chosen if contender.name not in missing]
    if any(contender.modules == trainers.TORCH for contender in present):
        from benchmarks.clipping import torch_steps

        torch_steps.set_up(settings.threads)

    # The noise, then one case after the other.
    size = cases.NUM_COORDINATES[settings.preset]
    result: dict[str, Any] = {
        "what": "private training: its bookkeeping, its noise, and steps per second beside other libraries",
        "machine": machine.describe(PACKAGES),
        "settings": settings._asdict(),
        "missing": missing,
        "load_average_before": load_before,
        "noise": {"num_coordinates": size, "contenders": parts.measure_noise(size, settings.repetitions)},
        "cases": {},
    }
    for case in chosen_cases:
        result["cases"][case.name] = _measure(case, present, settings.repetitions)
        result["targets"] = race.targets(preset, result)
        result["load_average_after"] = machine.load_average()
        result["total_seconds"] = time.perf_counter() - start
        save(result)
    return result


def _measure(case: "Case", present: Sequence[Any], repetitions: int) -> dict[str, Any]:
    """Return one case's parts and race, and what it was."""
    import jax

    from benchmarks.training import parts, race

    plan = case.plan()
    measured = parts.measure(case, repetitions) if case.parts else {}
    raced = race.run(case, present, repetitions)

    # On a terminal one sees how far it is.
    rates = []
    for name, trainer in raced.items():
        if "seconds" in trainer:
            rates.append(f"{name} {trainer['steps_per_second']['median']:.3g}")
    print(f"{case.name}: steps/s {', '.join(rates)}", file=sys.stderr, flush=True)
    return {
        "title": case.title,
        "num_parameters": sum(leaf.size for leaf in jax.tree.leaves(case.params())),
        "plan": {
            "noise_multiplier": plan.noise_multiplier,
            "clip_norm": case.clip_norm,
            "max_steps": plan.num_steps,
            "expected_batch_size": case.expected_batch_size,
            "capacity": plan.capacity,
            "delta": plan.delta,
            "max_examples": plan.max_examples,
            "learning_rate": case.learning_rate,
        },
        "steps_per_turn": case.steps_per_turn,
        "first_loss": race.first_loss(case),
        "parts": measured,
        "trainers": raced,
    }


def merge(previous: dict[str, Any], result: dict[str, Any]) -> dict[str, Any]:
    """Return ``result`` with the cases that only ``previous`` has; ValueError if they do not belong together."""
    from benchmarks.training import cases, race

    preset = cases.PRESETS[result["settings"]["preset"]]
    merged = writing.merge(previous, result, "cases", [case.name for case in preset])
    return merged | {"targets": race.targets(preset, merged)}


def main(arguments: list[str] | None = None) -> None:
    """Run, print the tables, write the JSON, and the tables and a picture beside it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--output", type=pathlib.Path, required=True, help="the JSON to write; tables and a picture go beside it"
    )
    defaults = Settings()
    parser.add_argument("--preset", default=defaults.preset, help="cpu or cpu-tiny")
    parser.add_argument("--threads", type=int, default=defaults.threads, help="cores and threads, of JAX and torch")
    parser.add_argument("--repetitions", type=int, default=defaults.repetitions)
    parser.add_argument("--cases", nargs="*", default=(), help="names of the preset's cases; all without")
    parser.add_argument("--contenders", nargs="*", default=(), help="names as in the tables; all without")
    parser.add_argument(
        "--merge", action="store_true", help="keep the cases that an earlier part of the run wrote to the output"
    )
    options = vars(parser.parse_args(arguments))
    output = options.pop("output")
    merging = options.pop("merge")
    machine.use_cores(options["threads"])
    kept = machine.keep_memory()
    from benchmarks.training import figure, report

    made_by = {"command": writing.command("benchmarks.bench_training", arguments), "memory_kept": kept}
    previous = json.loads(output.read_text()) if merging and output.exists() else None

    def complete(result: dict[str, Any]) -> dict[str, Any]:
        """Add the command, and what an earlier part of the run measured."""
        result = result | made_by
        return result if previous is None else merge(previous, result)

    result = run(Settings(**options), lambda result: writing.write_json(complete(result), output))
    writing.write(complete(result), output, report.markdown, figure.draw)


if __name__ == "__main__":
    main()
