"""Clipped gradients, ours and everybody else's, on one model after another: step and compile time, memory, flops.

    python -m benchmarks.test_clipping --output benchmarks/results/clipping_cpu.json

writes the JSON, and tables and a picture beside it. ``--models`` and ``--contenders`` choose some of them; ``--merge``
keeps the other models that the output already has, so that a long run can be made in parts. The peers are the
``benchmarks-clipping`` extra; a missing one is reported. ``--preset gpu`` takes larger models, in float32 and bfloat16.
As a test (``pytest benchmarks``) a tiny run of both lists checks that the result is complete and that everybody's sum
is the same; never a time.
"""

import argparse
import json
import pathlib
import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from benchmarks import machine, writing

if TYPE_CHECKING:
    from benchmarks.clipping.cases import Case

PACKAGES = ("gdpjax", "jax", "jaxlib", "numpy", "optax", "jax-privacy", "torch", "opacus")


class Settings(NamedTuple):
    """Of a run. No names: all of the preset's models, all contenders."""

    preset: str = "cpu"
    threads: int = 1
    repetitions: int = 11
    models: Sequence[str] = ()
    contenders: Sequence[str] = ()


def run(settings: Settings, save: Callable[[dict[str, Any]], None] = lambda result: None) -> dict[str, Any]:
    """The whole benchmark; ``save`` gets what there is after each model. JAX is imported after the cores are chosen."""
    from benchmarks.clipping import cases, compare, race

    start, load_before = time.perf_counter(), machine.load_average()
    chosen_cases = writing.chosen(
        settings.models, {case.name: case for case in cases.PRESETS[settings.preset]}, "model"
    )
    chosen = writing.chosen(settings.contenders, {name: name for name in race.names()}, "contender")
    missing = race.missing(chosen)
    present = [name for name in chosen if name not in missing]
    if set(present) & set(race.TORCH_NAMES):
        from benchmarks.clipping import torch_steps

        torch_steps.set_up(settings.threads)
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
        result["targets"] = compare.targets(cases.PRESETS[settings.preset], result["models"])
        result["load_average_after"] = machine.load_average()
        result["total_seconds"] = time.perf_counter() - start
        save(result)
    return result


def _measure(case: "Case", present: Sequence[str], repetitions: int) -> dict[str, Any]:
    """One model's race, and what it was."""
    import jax

    from benchmarks.clipping import compare, race

    results = race.run(case, present, repetitions)
    compare.add_ratios(results)
    times = (f"{name} {at['seconds']['median']:.3g}" for name, at in results.items() if "seconds" in at)
    print(f"{case.name}: {', '.join(times)} s", file=sys.stderr, flush=True)
    return {
        "title": case.title,
        "batch_size": case.batch_size,
        "clip_norm": case.clip_norm,
        "num_parameters": sum(leaf.size for leaf in jax.tree.leaves(case.data()[0])),
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
    output, merging = options.pop("output"), options.pop("merge")
    machine.use_cores(options["threads"])
    from benchmarks.clipping import figure, report

    made_by = {"command": writing.command("benchmarks.test_clipping", arguments)}
    settings = Settings(**options)
    previous = json.loads(output.read_text()) if merging and output.exists() else None

    def complete(result: dict[str, Any]) -> dict[str, Any]:
        """Add the command, and what an earlier part of the run measured."""
        result = result | made_by
        return result if previous is None else merge(previous, result)

    result = run(settings, lambda result: writing.write_json(complete(result), output))
    writing.write(complete(result), output, report.markdown, figure.draw)


# What needs no package of the extra: torch and jax_privacy stay out of a suite in which warnings are errors.
WITHOUT_PEERS = ("no privacy", "gdpjax auto", "gdpjax ghost", "gdpjax microbatch", "plain vmap")
TINY = {"cpu-tiny": ("mlp", "cnn", "flax_transformer", "lora"), "gpu-tiny": ("mlp_256_bf16", "vit_s16_f32")}


@pytest.fixture(scope="module", params=TINY)
def result(request) -> dict[str, Any]:
    return run(Settings(request.param, repetitions=1, models=TINY[request.param], contenders=WITHOUT_PEERS))


@pytest.mark.slow
def test_the_result_is_complete_json_and_a_table(result):
    from benchmarks.clipping import report

    again = json.loads(json.dumps(result, allow_nan=False))
    for model in again["models"].values():
        for name, at in model["contenders"].items():
            assert {"seconds", "compile_seconds", "temp_bytes", "flops", "over_no_privacy"} <= set(at), name
            assert at["refused"] == {}, name
    assert all({"target", "measured", "met"} <= set(target) for target in again["targets"].values())
    tables = report.markdown(result | {"command": "pytest"})
    assert all(name in tables for name in (*WITHOUT_PEERS, *(at["title"] for at in again["models"].values())))


@pytest.mark.slow
def test_everybody_s_clipped_sum_is_the_same(result):
    for model, at in result["models"].items():
        for name in ("gdpjax auto", "gdpjax microbatch"):
            limit = 3e-2 if model.endswith("bf16") else 1e-4  # the slack of so few rows is far below 1%
            assert at["contenders"][name]["relative_error"] < limit, (model, name)


def _part(model: str, **settings: Any) -> dict[str, Any]:
    """Return a result of one model, as far as merging reads it."""
    times = {"seconds": {"median": 1.0}, "compile_seconds": 1.0, "over_no_privacy": {"time": 1.0}}
    return {
        "machine": {"cpu": "some"},
        "settings": {"preset": "cpu", "threads": 1, "repetitions": 5} | settings,
        "missing": {},
        "models": {model: {"contenders": {"no privacy": times, "gdpjax auto": times}}},
        "load_average_before": 1.0,
        "load_average_after": 1.0,
        "total_seconds": 2.0,
        "command": f"measure {model}",
    }


def test_parts_of_a_run_are_merged_in_the_preset_s_order():
    merged = merge(_part("cnn"), _part("mlp"))
    assert list(merged["models"]) == ["mlp", "cnn"]
    assert {name.partition(":")[0] for name in merged["targets"]} == {"mlp", "cnn"}
    assert (merged["total_seconds"], merged["command"]) == (4.0, "measure cnn; measure mlp")


def test_parts_with_other_settings_are_not_merged():
    with pytest.raises(ValueError, match="threads 2, this one with 1"):
        merge(_part("cnn", threads=2), _part("mlp"))


def test_a_name_that_is_not_there_is_refused():
    with pytest.raises(ValueError, match="unknown model 'none'"):
        run(Settings("cpu-tiny", models=("none",)))


if __name__ == "__main__":
    main()
