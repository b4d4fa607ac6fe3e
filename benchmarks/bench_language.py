"""Private steps of language models, beside the step without privacy on the same rows, and beside jax_privacy.

    python -m benchmarks.bench_language --preset tiny --output benchmarks/results/language_tiny.json
    python -m benchmarks.bench_language --preset 1B --device-flops 989e12 --output benchmarks/results/language_1B.json

writes the JSON, and tables beside it. ``tiny`` and ``small`` are for a processor; ``124M``, ``355M`` and ``1B`` are for
one GPU, whose dense bfloat16 operations a second are ``--device-flops``. ``--cases`` (full, lora), ``--contenders`` and
``--sizes`` choose some; ``--merge`` keeps the other cases that the output already has, so that a long run can be made
in parts. The peer is jax_privacy (the ``benchmarks-clipping`` extra); a missing one is reported.
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
    from benchmarks.language.cases import Case

PACKAGES = ("gdpjax", "jax", "jaxlib", "numpy", "optax", "flax", "jax-privacy")


class Settings(NamedTuple):
    """Settings of a run. No names: all of the preset's cases, all contenders; no sizes: those of each case."""

    preset: str = "tiny"
    threads: int = 1
    repetitions: int = 7
    cases: Sequence[str] = ()
    contenders: Sequence[str] = ()
    sizes: Sequence[int] = ()
    device_flops: float | None = None


def run(settings: Settings, save: Callable[[dict[str, Any]], None] = lambda result: None) -> dict[str, Any]:
    """Run the whole benchmark; ``save`` gets what there is after each case. JAX waits until the cores are chosen."""
    from benchmarks.language import cases, race, steps

    start, load_before = time.perf_counter(), machine.load_average()
    preset = cases.PRESETS[_known(settings.preset, cases.PRESETS)]
    chosen_cases = writing.chosen(settings.cases, {case.name: case for case in preset}, "case")
    chosen = writing.chosen(settings.contenders, {each.name: each for each in steps.CONTENDERS}, "contender")
    missing = race.missing(chosen)
    result: dict[str, Any] = {
        "what": "language models: private steps beside the step without privacy on the same rows",
        "machine": machine.describe(PACKAGES),
        "settings": settings._asdict(),
        "missing": missing,
        "load_average_before": load_before,
        "cases": {},
    }
    present = [each for each in chosen if each.name not in missing]
    for case in chosen_cases:
        result["cases"][case.name] = _measure(case, present, settings)
        result["load_average_after"] = machine.load_average()
        result["total_seconds"] = time.perf_counter() - start
        save(result)
    return result


def _known(name: str, presets: dict[str, Any]) -> str:
    if name not in presets:
        raise ValueError(f"unknown preset {name!r}; expected one of {', '.join(presets)}")
    return name


def _measure(case: "Case", present: Sequence[Any], settings: Settings) -> dict[str, Any]:
    """One case's race, and what it was."""
    from benchmarks.language import race
    from experiments.language.cost import step_cost

    sizes = tuple(settings.sizes) or case.sizes
    for size in sizes:
        if size < 1 or case.num_units % size:
            raise ValueError(f"expected microbatch sizes that divide the {case.num_units} units of a step, got {size}")
    contenders = race.run(case, present, sizes, settings.repetitions, settings.device_flops)
    rates = []
    for name, contender in contenders.items():
        speeds = [at["tokens_per_second"]["median"] for at in contender["sizes"].values()]
        if speeds:
            rates.append(f"{name} {max(speeds):,.0f}")
    print(f"{case.title}: tokens/s {', '.join(rates)}", file=sys.stderr, flush=True)
    cost = step_cost(case.config, num_units=1, length=case.length, lora=case.lora)
    return {
        "title": case.title,
        "num_parameters": case.config.num_params,
        "num_trained": sum(part.num_trained for part in cost.parts),
        "num_tokens": case.num_tokens,
        "num_units": case.num_units,
        "device_flops": settings.device_flops,
        "contenders": contenders,
    }


def merge(previous: dict[str, Any], result: dict[str, Any]) -> dict[str, Any]:
    """Return ``result`` with the cases that only ``previous`` has; ValueError if they do not belong together."""
    from benchmarks.language import cases

    preset = cases.PRESETS[result["settings"]["preset"]]
    return writing.merge(previous, result, "cases", [case.name for case in preset])


def main(arguments: list[str] | None = None) -> None:
    """Run, print the tables, write the JSON and the tables beside it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=pathlib.Path, required=True, help="the JSON to write; tables go beside it")
    defaults = Settings()
    parser.add_argument("--preset", default=defaults.preset, help="smallest, tiny, small, 124M, 355M or 1B")
    parser.add_argument("--threads", type=int, default=defaults.threads, help="cores and threads")
    parser.add_argument("--repetitions", type=int, default=defaults.repetitions)
    parser.add_argument("--cases", nargs="*", default=(), help="full, lora; both without")
    parser.add_argument("--contenders", nargs="*", default=(), help="names as in the tables; all without")
    parser.add_argument("--sizes", nargs="*", type=int, default=(), help="microbatch sizes; the preset's without")
    parser.add_argument(
        "--device-flops", type=float, help="operations that the device can do in a second, for model flops utilisation"
    )
    parser.add_argument(
        "--merge", action="store_true", help="keep the cases that an earlier part of the run wrote to the output"
    )
    options = vars(parser.parse_args(arguments))
    output, merging = options.pop("output"), options.pop("merge")
    machine.use_cores(options["threads"])
    made_by = {
        "memory_kept": machine.keep_memory(),
        "command": writing.command("benchmarks.bench_language", arguments),
    }
    from benchmarks.language import report

    previous = json.loads(output.read_text()) if merging and output.exists() else None

    def complete(result: dict[str, Any]) -> dict[str, Any]:
        """Add the command, and what an earlier part of the run measured."""
        result = result | made_by
        return result if previous is None else merge(previous, result)

    result = run(Settings(**options), lambda result: writing.write_json(complete(result), output))
    whole = complete(result)
    writing.write_with_tables(whole, output, report.markdown(whole))


if __name__ == "__main__":
    main()
